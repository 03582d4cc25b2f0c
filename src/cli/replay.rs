//! `unseen replay`: deduplicates a captured stream without Kafka.

use super::topic;
use crate::config::{OnDuplicate, OnInvalid, OnTombstone, Topic};
use crate::content::Conflicts;
use crate::dedup::Late;
use crate::record::Timestamp;
use crate::replay::{Counts, Error, Format, Options, Replay, Summary};
use crate::runtime;
use crate::stats::RecentTimes;
use crate::values::Counted;
use anyhow::Context;
use indicatif::{HumanBytes, HumanCount, ProgressBar, ProgressStyle};
use serde_json::{Value, json};
use std::fmt::Write as _;
use std::fs::{File, Metadata};
use std::io::{self, BufRead, BufReader, BufWriter, ErrorKind, IsTerminal, Read, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

/// Maximum number of values that get their own line in the summary. Another line sums up all other values.
const VALUES_MAX: usize = 10;
/// Maximum number of conflicting fields in the summary.
const FIELDS_MAX: usize = 3;

const EXAMPLES: &str = "\
Examples:
  unseen replay -c unseen.toml --format capture --partitions 4 hour.jsonl > unseen.jsonl
  unseen replay -c unseen.toml --time /published --truth news.ndjson > unseen.ndjson
  unseen replay -c unseen.toml --truth --json news.ndjson        # only the counts

JSON output (--json): one object.
  records            number of records
  verdicts           number of records by verdict: unseen, duplicate, late, invalid, retracted, tombstone, passed.
                     Late records that are emitted also count as unseen
  invalid            number of invalid records by reason
  dead_letters, corrected, future, untimed
                     number of records for the dead-letter topic, records that the filter alone would have dropped wrongly,
                     records that were too far ahead to move the window, and records without a time
  stream_time_ms     latest stream time in milliseconds since 1970, or null
  partitions, memory_bytes, load
                     partitions that had a record, memory of their filters, and how full the fullest open slice is (1: full)
  truth              null without --truth; unseen, false_positives, false_negatives, rate
  values[]           value (null: all others), records, duplicates; empty without `count_by`
  key_conflicts      compared, conflicts, and fields[]: field, conflicts
  warnings           warnings";

#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    #[command(flatten)]
    config: super::ConfigArgs,
    /// Input topic; required if the configuration has several inputs or a pattern
    #[arg(short, long, value_name = "INPUT")]
    topic: Option<String>,
    /// Format of a line
    #[arg(short, long, value_enum, default_value_t = LineFormat::Ndjson)]
    format: LineFormat,
    /// Also keep an exact window and count the errors of the filter
    #[arg(long)]
    truth: bool,
    /// With --truth, file for the lines of the records that were dropped as false positives
    #[arg(long, value_name = "FILE", requires = "truth")]
    wrong: Option<PathBuf>,
    /// Number of partitions of the topic; the capacity is divided among them
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    partitions: u32,
    /// For ndjson: JSON pointer to the field to use as Kafka's timestamp (integer milliseconds or RFC 3339). Omit this option if the topic
    /// has `time`
    #[arg(long, value_name = "POINTER")]
    time: Option<String>,
    /// Time when the stream was read, in RFC 3339 [default: modification time of the file, or now for stdin]
    ///
    /// A record with a time more than `max_future` ahead of --read-at does not move the window, as in the worker.
    #[arg(long, value_name = "TIME", value_parser = humantime::parse_rfc3339_weak)]
    read_at: Option<SystemTime>,
    /// Do not print a summary or progress
    #[arg(short, long)]
    quiet: bool,
    /// Print the summary as JSON instead of the records
    #[arg(long, conflicts_with = "quiet")]
    json: bool,
    /// Captured stream; `-` reads from stdin [default: -]
    input: Option<PathBuf>,
}

/// Format of the lines of a captured stream.
#[derive(Clone, Copy, clap::ValueEnum)]
pub(super) enum LineFormat {
    /// The value of a record
    Ndjson,
    /// A record in the format of `unseen capture`
    Capture,
    /// A record in the format of `kcat -J`
    Kcat,
}

impl From<LineFormat> for Format {
    fn from(format: LineFormat) -> Self {
        match format {
            LineFormat::Ndjson => Self::Ndjson,
            LineFormat::Capture | LineFormat::Kcat => Self::Kcat,
        }
    }
}

pub fn run(args: &Args) -> anyhow::Result<()> {
    let config = args.config.load_with(args.topic.as_deref())?;
    let rules: Vec<_> = config.rules(topic::input(&config, args.topic.as_deref())?).map(|(_, topic)| topic).collect();
    let options = Options { format: args.format.into(), time: args.time.clone(), partitions: args.partitions, truth: args.truth };
    let mut replay = Replay::of_rules(&rules, &options)?.with_schemas(super::schemas::blocking(&config)?);
    let path = args.input.as_deref().filter(|path| *path != Path::new("-"));
    let name = path.map_or_else(|| "standard input".to_owned(), |path| path.display().to_string());
    let (input, progress) = open(path, !args.quiet).with_context(|| name.clone())?;

    let started = Instant::now();
    let max_future = rules[0].max_future;
    let written = path.and_then(|path| path.metadata().ok()).filter(Metadata::is_file).and_then(|data| data.modified().ok());
    let read_at = args.read_at.or(written);
    let wrong: Box<dyn Write> = match &args.wrong {
        Some(file) => Box::new(BufWriter::new(File::create(file).with_context(|| format!("--wrong: cannot write {}", file.display()))?)),
        None => Box::new(io::sink()),
    };
    let output = if args.json { Box::new(io::sink()) } else { output() };
    let result = replay.run_and_list(input, output, wrong, || max_timestamp_ms(read_at.unwrap_or_else(SystemTime::now), max_future));
    progress.finish_and_clear();
    let kcat = if replay.summary().envelopes > 0 {
        "; the lines look like the output of `unseen capture` or `kcat -J`; use --format capture"
    } else {
        ""
    };
    match result {
        Ok(()) => {}
        Err(error @ Error::Line { .. }) if !kcat.is_empty() => anyhow::bail!("{name}: {error}{kcat}"),
        // A reader such as `head` has closed the pipe, which is not an error.
        Err(Error::Write(error)) if error.kind() == ErrorKind::BrokenPipe => return Ok(()),
        Err(error @ Error::Line { .. }) => return Err(anyhow::Error::new(error).context(name)),
        Err(error) => return Err(error.into()),
    }
    let summary = replay.summary();
    let warnings = time_warnings(&replay.summaries(), read_at.unwrap_or_else(SystemTime::now));
    if args.json {
        super::print(&format!("{}\n", json(&summary, &warnings)))?;
    } else if !args.quiet {
        eprint!("{}", report(&summary, &rules, args, started.elapsed()));
    }
    for warning in warnings {
        eprintln!("warning: {warning}");
    }
    let Summary { records, invalid, .. } = summary;
    anyhow::ensure!(
        records == 0 || invalid.values().sum::<u64>() < records,
        "{name}: no record has a key; check the topic's `key` and formats{kcat}"
    );
    Ok(())
}

/// Opens a file, or stdin if `path` is `None`. The progress bar is hidden unless `show` is true, stderr is a terminal, and stdout is not.
pub(super) fn open(path: Option<&Path>, show: bool) -> io::Result<(impl BufRead + use<>, ProgressBar)> {
    let (input, bytes): (Box<dyn Read>, _) = match path {
        None => (Box::new(io::stdin()), None),
        Some(path) => {
            let file = File::open(path)?;
            let data = file.metadata()?;
            (Box::new(file), data.is_file().then_some(data.len()))
        }
    };
    // A progress bar would mix with the output if both go to the terminal.
    let progress = match bytes {
        _ if !show || !io::stderr().is_terminal() || io::stdout().is_terminal() => ProgressBar::hidden(),
        Some(bytes) => ProgressBar::new(bytes).with_style(style("{bar:40} {bytes} of {total_bytes}, {bytes_per_sec}, {eta} left")),
        None => ProgressBar::new_spinner().with_style(style("{spinner} {bytes}, {bytes_per_sec}")),
    };
    Ok((BufReader::with_capacity(1 << 16, progress.wrap_read(input)), progress))
}

fn style(template: &str) -> ProgressStyle {
    ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar())
}

/// Returns stdout, line-buffered if it is a terminal and block-buffered otherwise.
fn output() -> Box<dyn Write> {
    let stdout = io::stdout();
    if stdout.is_terminal() { Box::new(stdout) } else { Box::new(BufWriter::with_capacity(1 << 16, stdout)) }
}

/// Returns the latest record time that moves the window if the record is read at `read_at`.
pub(super) fn max_timestamp_ms(read_at: SystemTime, max_future: Duration) -> Timestamp {
    read_at.checked_add(max_future).map_or(Timestamp::MAX, runtime::millis)
}

/// Returns a warning for each entry whose keys expire by record time, if the record times are implausible. With such times, the window does
/// not move as it should.
fn time_warnings(summaries: &[(&Topic, Summary)], read_at: SystemTime) -> Vec<String> {
    let timed = summaries.iter().filter(|(topic, _)| topic.forgets_by_time());
    let warning = |(topic, summary): &(&Topic, Summary)| {
        let &Summary { records, future, future_time, stream_time, .. } = summary;
        let recent = RecentTimes { records, future, future_time, stream_time };
        let warning = recent.warning(topic.max_future, "the time when they were read", runtime::millis(read_at))?;
        Some(if summaries.len() > 1 { format!("space {:?}: {warning}", topic.space) } else { warning })
    };
    timed.filter_map(warning).collect()
}

/// Returns the value of an option if all entries of an input have the same value.
fn common<'t, T: PartialEq>(rules: &[&'t Topic], option: impl Fn(&'t Topic) -> T) -> Option<T> {
    let mut all = rules.iter().map(|rule| option(rule));
    let first = all.next()?;
    all.all(|other| other == first).then_some(first)
}

fn invalid(summary: &Summary, rules: &[&Topic]) -> String {
    let reasons: Vec<_> = summary.invalid.iter().map(|(reason, count)| format!("{} {reason}", HumanCount(*count))).collect();
    let outcome = common(rules, |topic| match topic.on_invalid {
        OnInvalid::Emit => "; emitted",
        OnInvalid::Topic(_) => "; dead letters",
        OnInvalid::Drop | OnInvalid::Fail => "; dropped",
    });
    reasons.join(", ") + outcome.unwrap_or_default()
}

fn untimed(summary: &Summary, rules: &[&Topic], args: &Args) -> String {
    let hint = match args.format {
        LineFormat::Ndjson if args.time.is_none() => "; use --time if a field has the time",
        _ => "",
    };
    let what = if summary.untimed != summary.records {
        "evaluated at the stream time of the previous records"
    } else if rules.iter().all(|topic| topic.window.length_ms().is_some()) {
        "all records, so no key expired"
    } else {
        "all records, so keys expired only in windows by count"
    };
    format!("{}: {what}{hint}", HumanCount(summary.untimed))
}

fn json(summary: &Summary, warnings: &[String]) -> Value {
    let truth = summary.truth.map(|truth| {
        let Counts { unseen, false_positives, false_negatives } = truth;
        json!({ "unseen": unseen, "false_positives": false_positives, "false_negatives": false_negatives, "rate": truth.rate() })
    });
    let values = summary
        .values
        .iter()
        .map(|(value, Counted { records, duplicates })| json!({ "value": value, "records": records, "duplicates": duplicates }));
    let Conflicts { compared, conflicts, fields } = &summary.key_conflicts;
    let fields = fields.iter().map(|(field, conflicts)| json!({ "field": field, "conflicts": conflicts }));
    json!({
        "records": summary.records,
        "verdicts": {
            "unseen": summary.unseen, "duplicate": summary.duplicates, "late": summary.late,
            "invalid": summary.invalid.values().sum::<u64>(), "retracted": summary.retracted, "tombstone": summary.tombstones,
            "passed": summary.passed,
        },
        "invalid": summary.invalid,
        "dead_letters": summary.dead_letters,
        "corrected": summary.corrected,
        "future": summary.future,
        "untimed": summary.untimed,
        "stream_time_ms": summary.stream_time,
        "partitions": summary.partitions,
        "memory_bytes": summary.memory,
        "load": summary.load,
        "truth": truth,
        "values": values.collect::<Vec<_>>(),
        "key_conflicts": { "compared": compared, "conflicts": conflicts, "fields": fields.collect::<Vec<_>>() },
        "warnings": warnings,
    })
}

/// Returns the summary as text. If the entries of the input treat records with the same verdict differently, the summary shows only the
/// number of these records.
fn report(summary: &Summary, rules: &[&Topic], args: &Args, elapsed: Duration) -> String {
    let mut text = String::new();
    let mut row = |name: &str, what: String| _ = writeln!(text, "{name:<11} {what}");
    #[expect(clippy::cast_precision_loss, clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a rate for display")]
    let rate = (summary.records as f64 / elapsed.as_secs_f64().max(1e-3)) as u64;
    row("records", format!("{}, {} per second", HumanCount(summary.records), HumanCount(rate)));
    if rules.iter().all(|topic| topic.is_shadow()) {
        row("shadow", "the topic has no output; the worker updates only its state".to_owned());
    }
    row("unseen", HumanCount(summary.unseen).to_string());
    if summary.corrected > 0 {
        row("corrected", format!("{}: records that the filter alone would have dropped wrongly", HumanCount(summary.corrected)));
    }
    if summary.retracted > 0 {
        row("retracted", format!("{}, not emitted", HumanCount(summary.retracted)));
    }
    if summary.tombstones > 0 {
        let outcome = common(rules, |topic| if topic.on_tombstone == OnTombstone::Emit { ", emitted" } else { ", dropped" });
        row("tombstones", format!("{}{}", HumanCount(summary.tombstones), outcome.unwrap_or_default()));
    }
    if summary.passed > 0 {
        row("passed", format!("{}, emitted without deduplication", HumanCount(summary.passed)));
    }
    let outcome = common(rules, |topic| match &topic.on_duplicate {
        OnDuplicate::Drop => String::new(),
        OnDuplicate::Mark => ", emitted with a mark by the worker".to_owned(),
        OnDuplicate::Topic(name) => format!(", sent to {name} by the worker"),
    });
    row("duplicates", HumanCount(summary.duplicates).to_string() + &outcome.unwrap_or_default());
    if summary.late > 0 {
        let outcome = common(rules, |topic| match topic.late {
            Late::Emit => ", emitted; included in unseen",
            Late::Drop => ", dropped",
            Late::DeadLetter => ", dead letters",
        });
        row("late", format!("{}{}", HumanCount(summary.late), outcome.unwrap_or_default()));
    }
    if !summary.invalid.is_empty() {
        row("invalid", invalid(summary, rules));
    }
    if summary.future > 0 {
        let ahead = common(rules, |topic| topic.max_future).map(|ahead| humantime::format_duration(ahead).to_string());
        let ahead = ahead.as_deref().unwrap_or("`max_future`");
        let what =
            format!("{}: more than {ahead} ahead of the time when they were read; did not move the window", HumanCount(summary.future));
        let hint = if args.read_at.is_none() { "; set that time with --read-at" } else { "" };
        row("future", what + hint);
    }
    if summary.untimed > 0 && rules.iter().any(|topic| topic.window.length_ms().is_some()) {
        row("no time", untimed(summary, rules, args));
    }
    for (value, Counted { records, duplicates }) in shown(summary) {
        let of = value.as_ref().map_or_else(|| "others".to_owned(), |value| format!("{value:?}"));
        row("by value", format!("{of}: {} duplicates of {} records", HumanCount(duplicates), HumanCount(records)));
    }
    if summary.key_conflicts.conflicts > 0 {
        row("conflicts", conflicts(&summary.key_conflicts, rules));
    }
    let partitions = if summary.partitions == 1 { "partition" } else { "partitions" };
    row(
        "filter",
        format!("{} in {} {partitions}, open slice {:.0} % full", HumanBytes(summary.memory), summary.partitions, summary.load * 100.0),
    );
    if let Some(truth) = summary.truth {
        row("truth", errors(&truth, common(rules, |topic| topic.filter.false_positive_rate)));
    }
    text
}

fn conflicts(all: &Conflicts, rules: &[&Topic]) -> String {
    let of_key = common(rules, |topic| topic.key.to_string()).map_or_else(String::new, |key| format!(" of {key}"));
    let share = all.share() * 100.0;
    let share = if share >= 1.0 { format!("{share:.0} %") } else { format!("{share:.2} %") };
    let fields: Vec<_> = all.fields.iter().take(FIELDS_MAX).map(|(field, _)| field.as_str()).collect();
    let pointers: Vec<_> = fields.iter().filter(|field| field.starts_with('/')).map(|&field| Value::from(field).to_string()).collect();
    let except = if pointers.is_empty() {
        String::new()
    } else {
        format!(" If the key is complete, set key_conflicts = {{ except = [{}] }} to ignore the difference.", pointers.join(", "))
    };
    format!(
        "{share} of the duplicates{of_key} differ in {} ({} compared). Check whether the key lacks a field.{except}",
        fields.join(", "),
        HumanCount(all.compared)
    )
}

/// Returns the counts of the most frequent values, and one sum for all others.
fn shown(summary: &Summary) -> Vec<(Option<String>, Counted)> {
    let (first, others) = summary.values.split_at(VALUES_MAX.min(summary.values.len().saturating_sub(1)));
    let rest = others.iter().fold(Counted::default(), |rest, (_, counted)| Counted {
        records: rest.records + counted.records,
        duplicates: rest.duplicates + counted.duplicates,
    });
    first.iter().cloned().chain((!others.is_empty()).then_some((None, rest))).collect()
}

fn errors(truth: &Counts, target: Option<f64>) -> String {
    let target = target.map_or_else(String::new, |target| format!(", target {target:.1e}"));
    format!(
        "{} false positives of {} unseen ({:.1e}{target}), {} false negatives",
        HumanCount(truth.false_positives),
        HumanCount(truth.unseen),
        truth.rate(),
        HumanCount(truth.false_negatives)
    )
}
