//! A proposed configuration for a recorded stream, with reasons.
//!
//! A proposed key must have duplicates in the stream, and each duplicate must have the same value in every compared field as the previous
//! record with its key. This module never proposes a key whose duplicates differ, because such a key would drop records that are not
//! duplicates.

use super::columns::{Column, Columns, MISSING, Place};
use super::{SampleError, rounded};
use crate::content::{self, CompareContent};
use crate::format::RecordFormat;
use crate::key::{Field, Part};
use crate::record::Timestamp;
use crate::replay::Format;
use serde::Serialize;
use std::collections::{HashMap, HashSet};
use std::fmt::Write as _;
use std::io::BufRead;
use std::time::Duration;

/// A field can be part of a key only if at most one in `MISSING_MAX` records lacks the field.
const MISSING_MAX: usize = 100;
const SHOWN_MAX: usize = 8;
/// The window lengths that can be proposed, in seconds.
const WINDOWS: [u64; 12] = [1, 10, 60, 300, 900, 3_600, 21_600, 86_400, 259_200, 604_800, 2_592_000, 7_776_000];

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Candidate {
    /// The key, as written in the configuration.
    pub key: String,
    pub distinct: u64,
    /// Number of records whose key also occurs in an earlier record.
    pub repeats: u64,
    /// Number of duplicates that differ from the previous record with their key. If there is no other field to compare, every duplicate
    /// counts as a conflict.
    pub conflicts: u64,
    pub conflict_share: f64,
    /// At most three fields that differ between conflicting duplicates, most frequent first.
    pub differ_in: Vec<String>,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Proposal {
    /// Number of records examined, from the start of the stream.
    pub records: u64,
    /// True if the stream has more records than were examined.
    pub is_cut: bool,
    /// The field that was chosen as the record time. `None` if the format or the caller determines the time, or if no field is suitable.
    pub time: Option<String>,
    /// Possible keys, best first.
    pub candidates: Vec<Candidate>,
    /// Reasons for proposing the first candidate or for proposing no candidate.
    pub reasons: Vec<String>,
    /// Number of records without the proposed key. 0 if no key fits.
    pub without_key: u64,
    pub window_ms: Option<u64>,
    /// Proposed capacity of the whole topic: the keys in a window plus a quarter, rounded up to two digits, and at least 1,000.
    pub capacity: Option<u64>,
    /// Configuration section for the topic, or `None` if no key fits, or if the records have no times.
    pub configuration: Option<String>,
    #[serde(skip)]
    pub parts: Vec<Part>,
    #[serde(skip)]
    pub format: RecordFormat,
}

impl Proposal {
    /// Examines the start of `input`. `time` is the field with a record's time, for formats whose lines have no timestamp. Duplicates may
    /// differ in the fields that `compare` leaves out, and in record keys and headers, as in `key_conflicts`.
    ///
    /// # Errors
    /// Returns an error if a line is malformed, or if there are no records.
    pub fn new(input: impl BufRead, format: Format, time: Option<&Field>, compare: &CompareContent) -> Result<Self, SampleError> {
        let table = Columns::read(input, format, time, compare)?;
        if table.records == 0 {
            return Err(SampleError::Empty);
        }
        Ok(propose(&table, compare))
    }

    #[must_use]
    pub fn window(&self) -> Option<String> {
        self.window_ms.map(duration)
    }

    /// Returns the configuration line with the encoding of the values, or an empty text if the values are not encoded.
    #[must_use]
    pub fn encoding(&self) -> &'static str {
        if self.format.encodings.is_empty() { "" } else { "value_encoding = \"gzip\"\n" }
    }

    #[must_use]
    pub fn text(&self) -> String {
        let mut text = String::from("Possible keys:\n\n");
        let width = self.candidates.iter().map(|candidate| candidate.key.len()).max().unwrap_or(0);
        for candidate in &self.candidates {
            let _ = write!(text, "  {:width$}  {} keys, {} duplicates", candidate.key, candidate.distinct, candidate.repeats);
            if candidate.conflicts > 0 {
                let share = percent(candidate.conflict_share);
                let _ = match candidate.differ_in.as_slice() {
                    [] => write!(text, ", no other field to compare"),
                    fields => write!(text, ", {share} of them differ in {}", fields.join(", ")),
                };
            }
            text.push('\n');
        }
        text.push('\n');
        for reason in &self.reasons {
            let _ = writeln!(text, "- {reason}");
        }
        if let Some(configuration) = &self.configuration {
            let _ = write!(text, "\n{configuration}");
        }
        text
    }
}

fn percent(share: f64) -> String {
    let percent = share * 100.0;
    if percent >= 1.0 { format!("{percent:.0} %") } else { format!("{percent:.2} %") }
}

struct Evaluation {
    parts: Vec<usize>,
    distinct: usize,
    repeats: usize,
    conflicts: usize,
    /// Columns that differ between conflicting duplicates, each with its number of conflicts.
    differ: Vec<(usize, usize)>,
    /// Columns of headers and record keys that differ between duplicates. Such a difference is not a conflict.
    aside: Vec<usize>,
    /// Time between each duplicate and the previous record with its key, in milliseconds.
    distances: Vec<u64>,
}

impl Evaluation {
    #[expect(clippy::cast_precision_loss, reason = "a share")]
    fn conflict_share(&self) -> f64 {
        self.conflicts as f64 / self.repeats.max(1) as f64
    }

    fn fits(&self) -> bool {
        self.repeats > 0 && self.conflicts == 0
    }
}

fn propose(table: &Columns, compare: &CompareContent) -> Proposal {
    let evaluate = |parts| evaluate(table, compare, parts);
    let eligible: Vec<_> = (0..table.fields.len()).filter(|&number| is_eligible(&table.fields[number], table.records)).collect();
    let mut evaluated: Vec<_> = eligible.iter().map(|&number| evaluate(vec![number])).filter(|evaluated| evaluated.repeats > 0).collect();
    rank(&mut evaluated);
    if evaluated.first().is_some_and(|best| !best.fits()) {
        // A candidate may fit if it is combined with a field that differs between its duplicates.
        let (mut pairs, mut tried) = (Vec::new(), HashSet::new());
        for one in evaluated.iter().take(4) {
            for &(other, _) in one.differ.iter().filter(|(other, _)| eligible.contains(other)).take(3) {
                let first = one.parts[0];
                // Evaluate each pair of columns only once, in either order.
                if tried.insert((first.min(other), first.max(other))) {
                    pairs.push(evaluate(vec![first, other]));
                }
            }
        }
        evaluated.extend(pairs.into_iter().filter(|evaluated| evaluated.repeats > 0));
        rank(&mut evaluated);
    }
    evaluated.truncate(SHOWN_MAX);
    let candidates = evaluated.iter().map(|evaluated| candidate(table, evaluated)).collect();
    let mut proposal = Proposal {
        records: table.records as u64,
        is_cut: table.is_cut,
        time: table.time.clone(),
        candidates,
        reasons: Vec::new(),
        without_key: 0,
        window_ms: None,
        capacity: None,
        configuration: None,
        parts: Vec::new(),
        format: table.format.clone().unwrap_or_default(),
    };
    match evaluated.first() {
        Some(best) if best.fits() => fill(&mut proposal, table, compare, best),
        Some(_) => proposal.reasons.push(
            "No key fits: every key has duplicates that differ or that have no other field to compare. If they differ only in a delivery field, such as an attempt number, use --ignore POINTER.".to_owned(),
        ),
        None => proposal.reasons.push(format!("No possible key has duplicates among the sample's records ({}). Use a longer sample.", table.records)),
    }
    proposal
}

fn is_eligible(column: &Column, records: usize) -> bool {
    column.place != Place::Rest && !column.is_time() && (records - column.present()) * MISSING_MAX <= records
}

/// Sorts candidates. Keys that fit come first, sorted by most duplicates and then by fewest parts. The other keys follow, sorted by the
/// lowest share of conflicts.
fn rank(all: &mut [Evaluation]) {
    all.sort_by(|one, two| {
        let order = |evaluated: &Evaluation| (!evaluated.fits(), std::cmp::Reverse(evaluated.repeats), evaluated.parts.len());
        if one.fits() || two.fits() {
            return order(one).cmp(&order(two));
        }
        one.conflict_share().total_cmp(&two.conflict_share())
    });
}

fn evaluate(table: &Columns, compare: &CompareContent, parts: Vec<usize>) -> Evaluation {
    let columns = &table.fields;
    let mut last: HashMap<Vec<u64>, usize> = HashMap::new();
    let mut pairs = Vec::new();
    for row in 0..table.records {
        let key: Vec<_> = parts.iter().map(|&part| columns[part].hashes[row]).collect();
        if key.contains(&MISSING) {
            continue;
        }
        if let Some(before) = last.insert(key, row) {
            pairs.push((before, row));
        }
    }
    let differs = |column: &Column, &(before, row): &(usize, usize)| column.hashes[before] != column.hashes[row];
    let is_compared = |&number: &usize| match &columns[number].place {
        Place::Field(pointer) => !compare.leaves_out(pointer),
        Place::Rest => true,
        Place::RecordKey | Place::Header(_) => false,
    };
    let (compared, others): (Vec<_>, Vec<_>) = (0..columns.len()).partition(is_compared);
    // Equal duplicates prove nothing if no other field could differ. The exception is a key that consists of the whole record, apart from
    // fields that are left out of the comparison.
    let shows = |&number: &usize| !parts.contains(&number) && !columns[number].is_constant();
    let is_ignored = |&number: &usize| matches!(columns[number].place, Place::Field(_));
    let is_shown = compared.iter().any(shows) || others.iter().all(|other| parts.contains(other) || is_ignored(other));
    let conflict = |pair: &&(usize, usize)| !is_shown || compared.iter().any(|&number| differs(&columns[number], pair));
    let conflicts: Vec<_> = pairs.iter().filter(conflict).collect();
    let count = |&number: &usize| (number, conflicts.iter().filter(|pair| differs(&columns[number], pair)).count());
    let mut differ: Vec<_> = compared.iter().map(count).collect();
    differ.retain(|&(_, count)| count > 0);
    differ.sort_by_key(|&(_, count)| std::cmp::Reverse(count));
    let is_aside = |&number: &usize| {
        let column = &columns[number];
        !matches!(column.place, Place::Field(_)) && !parts.contains(&number) && pairs.iter().any(|pair| differs(column, pair))
    };
    let aside = others.into_iter().filter(is_aside).collect();
    let distance = |&(before, row): &(usize, usize)| Some(table.times[row]?.abs_diff(table.times[before]?));
    Evaluation {
        distinct: last.len(),
        repeats: pairs.len(),
        conflicts: conflicts.len(),
        differ,
        aside,
        distances: pairs.iter().filter_map(distance).collect(),
        parts,
    }
}

fn candidate(table: &Columns, evaluated: &Evaluation) -> Candidate {
    Candidate {
        key: key(table, &evaluated.parts),
        distinct: evaluated.distinct as u64,
        repeats: evaluated.repeats as u64,
        conflicts: evaluated.conflicts as u64,
        conflict_share: rounded(evaluated.conflict_share()),
        differ_in: evaluated.differ.iter().take(3).map(|&(number, _)| name(&table.fields[number].place)).collect(),
    }
}

fn name(place: &Place) -> String {
    match place {
        Place::RecordKey => "the record key".to_owned(),
        Place::Header(name) => format!("header {}", content::shown(name)),
        Place::Field(pointer) => content::shown(pointer),
        Place::Rest => "the rest of the value".to_owned(),
    }
}

fn key(table: &Columns, parts: &[usize]) -> String {
    let quoted = |text: &str| toml::Value::from(text).to_string();
    let part = |&number: &usize| match &table.fields[number].place {
        Place::RecordKey => "{ record = \"key\" }".to_owned(),
        Place::Header(name) => format!("{{ header = {} }}", quoted(name)),
        Place::Field(pointer) => format!("{{ field = {} }}", quoted(pointer)),
        // `is_eligible` excludes this column.
        Place::Rest => String::new(),
    };
    match parts {
        [only] => part(only),
        several => format!("[{}]", several.iter().map(part).collect::<Vec<_>>().join(", ")),
    }
}

fn fill(proposal: &mut Proposal, table: &Columns, compare: &CompareContent, best: &Evaluation) {
    let part = |&number: &usize| match &table.fields[number].place {
        Place::RecordKey => Some(Part::RecordKey),
        Place::Header(name) => Some(Part::Header(name.clone())),
        Place::Field(pointer) => Some(Part::Field(pointer.clone())),
        Place::Rest => None,
    };
    proposal.parts = best.parts.iter().filter_map(part).collect();
    let Proposal { reasons, .. } = proposal;
    reasons.push(format!(
        "key: {} of {} records are duplicates with this key, and none of them differs from the previous record with its key.",
        best.repeats, table.records
    ));
    let without = table.records - best.distinct - best.repeats;
    proposal.without_key = without as u64;
    if without > 0 {
        reasons.push(format!("{without} of {} records do not have this key, so on_invalid decides what happens to them.", table.records));
    }
    if !compare.except.is_empty() {
        reasons.push(format!("Differences in {} were ignored (--ignore).", compare.except.join(", ")));
    }
    if !best.aside.is_empty() {
        let names: Vec<_> = best.aside.iter().map(|&number| name(&table.fields[number].place)).collect();
        reasons.push(format!(
            "Duplicates differ in {}, but only fields of the value are compared. If this difference distinguishes records, add it to the key.",
            names.join(", ")
        ));
    }
    if table.is_cut {
        reasons.push(format!("Only the first {} records were examined.", table.records));
    }
    let mut distances = best.distances.clone();
    distances.sort_unstable();
    let span = span_ms(&table.times);
    let (Some(&furthest), Some(span)) = (distances.last(), span) else {
        reasons.push("window: the records have no times. If a field contains the time, set the field with --time.".to_owned());
        return;
    };
    let near = distances[(distances.len() * 99).div_ceil(100).saturating_sub(1)];
    // Double the longest distance, because other duplicates may arrive later than the duplicates in the sample.
    let wanted = furthest.saturating_mul(2).div_ceil(1000);
    let seconds = WINDOWS.into_iter().find(|&window| window >= wanted).unwrap_or(WINDOWS[WINDOWS.len() - 1]);
    let window_ms = seconds * 1000;
    let margin = if seconds >= wanted {
        "The window is at least twice as long, to catch later duplicates"
    } else {
        "Duplicates that arrive later are emitted"
    };
    reasons.push(format!("window: 99 % of the duplicates arrive within {}, all within {}. {margin}.", duration(near), duration(furthest)));
    if window_ms > span {
        reasons.push(format!("The sample covers only {}, so it cannot show duplicates that are further apart.", duration(span)));
    }
    let busiest = busiest(table, best, window_ms);
    let counted = if window_ms > span { busiest.saturating_mul(window_ms).div_ceil(span.max(1)) } else { busiest };
    // Add a quarter for busier days.
    let capacity = round_up(counted + counted / 4);
    let how = if window_ms > span { "at the rate of the sample" } else { "in the busiest window" };
    reasons.push(format!(
        "capacity: {counted} keys {how}, plus a quarter. This is the capacity of the whole topic if the sample has all partitions."
    ));
    reasons.push("key_conflicts: the worker reports duplicates of this key that differ.".to_owned());
    proposal.window_ms = Some(window_ms);
    proposal.capacity = Some(capacity);
    proposal.configuration = Some(format!(
        "[[topics]]\ninput = \"the topic\"\noutput = \"the-topic-unseen\"\nkey = {}\n{}window = \"{}\"\nfilter = {{ capacity = {capacity} }}\nkey_conflicts = {}\n",
        key(table, &best.parts),
        proposal.encoding(),
        duration(window_ms),
        key_conflicts(compare),
    ));
}

/// Returns the TOML value of the option `key_conflicts`: `true`, or a table with the fields to leave out of the comparison.
fn key_conflicts(compare: &CompareContent) -> String {
    let pointers: Vec<_> = compare.except.iter().map(|pointer| serde_json::Value::from(pointer.as_str()).to_string()).collect();
    if pointers.is_empty() { "true".to_owned() } else { format!("{{ except = [{}] }}", pointers.join(", ")) }
}

fn span_ms(times: &[Option<Timestamp>]) -> Option<u64> {
    let known = || times.iter().flatten();
    Some(known().max()?.abs_diff(*known().min()?))
}

/// Divides the stream into consecutive windows and returns the number of distinct keys in the fullest window.
fn busiest(table: &Columns, best: &Evaluation, window_ms: u64) -> u64 {
    let begin = table.times.iter().flatten().min().copied().unwrap_or_default();
    let mut keys: HashMap<u64, HashSet<Vec<u64>>> = HashMap::new();
    for row in 0..table.records {
        let key: Vec<_> = best.parts.iter().map(|&part| table.fields[part].hashes[row]).collect();
        if key.contains(&MISSING) {
            continue;
        }
        let window = table.times[row].map_or(0, |time| time.abs_diff(begin) / window_ms.max(1));
        keys.entry(window).or_default().insert(key);
    }
    keys.values().map(|keys| keys.len() as u64).max().unwrap_or(0)
}

/// Rounds up to two digits, and to at least 1,000.
fn round_up(keys: u64) -> u64 {
    let unit = 10_u64.pow(keys.max(1).ilog10().saturating_sub(1));
    keys.max(1_000).div_ceil(unit) * unit
}

fn duration(ms: u64) -> String {
    const DAY: u64 = 86_400_000;
    // Show long durations in days: `humantime` would use months, which have no fixed length.
    if ms >= DAY {
        return format!("{}d", ms.div_ceil(DAY));
    }
    let rounded = if ms >= 10_000 { ms.div_ceil(1000) * 1000 } else { ms };
    humantime::format_duration(Duration::from_millis(rounded)).to_string()
}

#[cfg(test)]
mod tests;
