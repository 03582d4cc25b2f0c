//! Formats a plan as text for a terminal with 80 columns.

use super::{Comparison, Point, Row, Sample};
use std::fmt::Write as _;
use std::ops::Range;
use std::time::Duration;

impl Comparison {
    #[must_use]
    pub fn table(&self) -> String {
        let ask = &self.ask;
        let mut text = self.sample.as_ref().map_or_else(String::new, |sample| counted(sample, ask.window_ms) + "\n");
        let each = if ask.partitions == 1 { "1 partition".to_owned() } else { format!("{} partitions", ask.partitions) };
        _ = writeln!(
            text,
            "{} keys per window of {} slices, {each}\nrate: false-positive rate, at most {:e} when every slice is full;\n      the mean over a window is not higher\n",
            count(ask.keys),
            ask.slices,
            ask.false_positive_rate
        );
        for (table, ends_in_text) in [(self.costs(), true), (self.errors(), false), (self.guarantees(), true)] {
            if table.len() == 1 {
                continue;
            }
            text += &columns(&table, 1..table[0].len() - usize::from(ends_in_text));
            text.push('\n');
        }
        if let Some(row) = self.kinds.iter().find(|row| row.configuration.is_some()) {
            _ = writeln!(text, "memory of a pod with one worker thread, kind {}: at most {}\n", row.kind, size(row.pod_bytes));
        }
        if self.kinds.iter().any(|row| row.mean_rate.is_some()) {
            text += "mean: average rate over a window with the planned number of keys";
            if self.kinds.iter().any(|row| row.steady_partition_bytes > row.partition_bytes) {
                text +=
                    ".\n      Slices of aging adapt and are an eighth larger than planned; only the\n      memory of a pod includes that";
            }
            text += "\n\n";
        }
        if self.kinds.iter().any(|row| !row.remembers) {
            text += "forgets: share of duplicates that are one window old and are emitted\n\n";
        }
        if let Some(bytes) = ask.memory_bytes
            && self.kinds.iter().any(|row| row.fits == Some(false))
        {
            _ = writeln!(text, "! does not fit into {} at this rate\n", size(bytes));
        }
        let lines: Vec<_> = self.kinds.iter().filter_map(|row| row.configuration.as_deref()).collect();
        if !lines.is_empty() {
            text += "To configure the topic, use one of these lines:\n";
            for line in lines {
                _ = writeln!(text, "  {line}");
            }
        }
        text
    }

    fn costs(&self) -> Vec<Vec<String>> {
        let many = self.ask.partitions > 1;
        let mut head = vec!["kind", "memory"];
        if many {
            head.push("per partition");
        }
        head.extend(["bits/key", "at 4x", "reads per lookup"]);
        let row = |row: &Row| {
            let memory = if row.disk_bytes > 0 { format!("{} disk", size(row.disk_bytes)) } else { size(row.memory_bytes) };
            let mut cells = vec![row.kind.clone(), memory + if row.fits == Some(false) { " !" } else { "" }];
            if many {
                let disk = row.disk_bytes.div_ceil(u64::from(self.ask.partitions));
                cells.push(size(if row.disk_bytes > 0 { disk } else { row.partition_bytes }));
            }
            let most = row.loads.last().map_or_else(String::new, |last| {
                if row.disk_bytes > 0 { scaled(row.disk_bytes, last.load) } else { size(last.memory_bytes) }
            });
            cells.extend([format!("{:.1}", row.bits_per_key), most, row.reads.clone()]);
            cells
        };
        table(&head, self.kinds.iter().map(row))
    }

    fn errors(&self) -> Vec<Vec<String>> {
        let mut head: Vec<String> = vec!["rate at".to_owned()];
        let loads = self.kinds.first().map_or(&[][..], |row| &row.loads);
        head.extend(loads.iter().map(|point| format!("{}x", point.load)));
        head.push("mean".to_owned());
        let within = self.ask.memory_bytes.map(|bytes| format!("best within {}", size(bytes)));
        head.extend(within.clone());
        let row = |row: &Row| {
            let mut cells = vec![row.kind.clone()];
            cells.extend(row.loads.iter().map(|point: &Point| rate(point.rate)));
            cells.push(row.mean_rate.map_or_else(|| "-".to_owned(), rate));
            if within.is_some() {
                cells.push(row.rate_within_memory.map_or_else(|| "does not fit".to_owned(), rate));
            }
            cells
        };
        let head: Vec<_> = head.iter().map(String::as_str).collect();
        table(&head, self.kinds.iter().map(row))
    }

    fn guarantees(&self) -> Vec<Vec<String>> {
        let row = |row: &Row| {
            let forgets = if row.remembers { "never".to_owned() } else { format!("{} %", percent(row.forgets)) };
            vec![row.kind.clone(), forgets, if row.can_retract { "yes" } else { "no" }.to_owned(), row.overfull.clone()]
        };
        table(&["kind", "forgets", "delete", "above the planned keys"], self.kinds.iter().map(row))
    }
}

fn counted(sample: &Sample, window_ms: Option<u64>) -> String {
    let mut text = format!(
        "sample: {} records, {} distinct keys, {} duplicates ({} %)",
        sample.records,
        sample.distinct,
        sample.repeats,
        percent(sample.repeat_share)
    );
    if sample.relative_error > 0.0 {
        _ = write!(text, ", keys estimated within {} %", percent(2.0 * sample.relative_error));
    }
    if sample.invalid > 0 {
        _ = write!(text, ", {} without a key", sample.invalid);
    }
    if sample.passed > 0 {
        _ = write!(text, ", {} that `when` does not select", sample.passed);
    }
    text.push('\n');
    let Some(span_ms) = sample.span_ms else {
        return text + "        the records have no time, so all keys are assumed to be in one window\n";
    };
    let span = duration(span_ms);
    match (sample.window_keys, window_ms) {
        (Some(keys), Some(window_ms)) => {
            _ = writeln!(text, "        {keys} in the busiest window of {}", duration(window_ms));
            if span_ms < window_ms {
                let per_hour = u128::from(sample.distinct) * 3_600_000 / u128::from(span_ms.max(1));
                _ = writeln!(
                    text,
                    "        covers only {span}, less than a window; to extrapolate, use --rate {per_hour}/h --window {}",
                    duration(window_ms).replace(' ', "")
                );
            }
        }
        _ => _ = writeln!(text, "        covers {span}; use --window to count the keys per window"),
    }
    text
}

fn table(head: &[&str], rows: impl Iterator<Item = Vec<String>>) -> Vec<Vec<String>> {
    std::iter::once(head.iter().map(|&cell| cell.to_owned()).collect()).chain(rows).collect()
}

/// Formats rows as lines. The columns in `numbers` are right-aligned, and all others are left-aligned.
pub(crate) fn columns(rows: &[impl AsRef<[String]>], numbers: Range<usize>) -> String {
    let width = |column: usize| rows.iter().map(|row| row.as_ref()[column].chars().count()).max().unwrap_or(0);
    let widths: Vec<_> = (0..rows.first().map_or(0, |row| row.as_ref().len())).map(width).collect();
    let mut text = String::new();
    for row in rows {
        let cells =
            row.as_ref().iter().zip(&widths).enumerate().map(|(column, (cell, &width))| {
                if numbers.contains(&column) { format!("{cell:>width$}") } else { format!("{cell:width$}") }
            });
        text += cells.collect::<Vec<_>>().join("  ").trim_end();
        text.push('\n');
    }
    text
}

#[expect(clippy::cast_precision_loss, reason = "an estimate")]
fn scaled(bytes: u64, load: f64) -> String {
    size(super::whole(bytes as f64 * load))
}

pub(crate) fn size(bytes: u64) -> String {
    let units = [(40, "TiB"), (30, "GiB"), (20, "MiB"), (10, "KiB")];
    let Some((shift, unit)) = units.into_iter().find(|(shift, _)| bytes >> shift > 0) else { return format!("{bytes} B") };
    let tenths = bytes.saturating_mul(10) >> shift;
    format!("{}.{} {unit}", tenths / 10, tenths % 10)
}

/// Rounds `bytes` down to a size that is readable in a configuration. Returns the size and its text, such as `40MiB`.
pub(super) fn whole_size(bytes: u64) -> (u64, String) {
    let units = [(30, "GiB"), (20, "MiB"), (10, "KiB")];
    // Keep at least two digits, so rounding down loses little.
    let unit = units.into_iter().find(|(shift, _)| bytes >> shift >= 10 || (bytes > 0 && bytes.is_multiple_of(1 << shift)));
    unit.map_or_else(|| (bytes, bytes.to_string()), |(shift, unit)| (bytes >> shift << shift, format!("{}{unit}", bytes >> shift)))
}

/// Formats a count for a configuration: `10M`. Uses a unit only if it divides the number.
pub(super) fn count(number: u64) -> String {
    let units = [(1_000_000_000, "G"), (1_000_000, "M"), (1_000, "k")];
    let unit = units.into_iter().find(|(scale, _)| number > 0 && number.is_multiple_of(*scale));
    unit.map_or_else(|| number.to_string(), |(scale, unit)| format!("{}{unit}", number / scale))
}

fn rate(rate: f64) -> String {
    if rate == 0.0 { "0".to_owned() } else { format!("{rate:.1e}") }
}

pub(super) fn percent(share: f64) -> String {
    let percent = share * 100.0;
    match percent {
        _ if percent == 0.0 || percent >= 0.1 => format!("{percent:.1}"),
        _ => format!("{percent:.0e}"),
    }
}

pub(super) fn duration(milliseconds: u64) -> String {
    humantime::format_duration(Duration::from_millis(milliseconds)).to_string()
}
