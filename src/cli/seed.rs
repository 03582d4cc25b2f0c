//! `unseen seed`: initializes a consumer group with keys that another tool has already emitted.

use super::interrupt::Interrupt;
use super::{replay, schemas, topic};
use crate::config::{Config, Partitioner, Start, Topic, flags};
use crate::dedup::Late;
use crate::record::Timestamp;
use crate::replay::{format_rfc3339, parse_rfc3339};
use crate::runtime;
use crate::seed::{self, Counts, Format, Group, Options, Seeded, Seeds, Waiting};
use anyhow::Context as _;
use indicatif::HumanCount;
use serde_json::json;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

const EXAMPLES: &str = "\
Examples:
  unseen seed -c unseen.toml emitted.csv --format csv
  unseen seed -c unseen.toml emitted.jsonl --format capture --dry-run

JSON output (--json): one object.
  lines, keys        number of lines, and of keys in them; a key in several partitions counts several times
  invalid, tombstones, passed
                     number of lines that were skipped: without a key, without a value, or not selected by `when`
  seeded             null with --dry-run; group, partitions, keys (distinct), expired (older than the window, so not written),
                     evicted (do not fit into filter.max_memory), and stream_time_ms (time of the latest key, or null)
  warnings           warnings";

const FORMAT_HELP: &str = "\
Formats:
  ndjson    Each line is the value of a record. The key is read from it as configured.
  csv       The first line names the columns, one per part of the key: `key` for the record key,
            `value`, `content`, the name of a header, or the pointer of a field with or without
            its first slash. A number in a field's column means both the number and the string,
            and counts as two keys.
  capture   Each line is a record in the format of `unseen capture` or `kcat -J`, from the input
            or from another tool's output.";

#[derive(clap::Args)]
#[command(after_help = EXAMPLES, after_long_help = format!("{EXAMPLES}\n\n{FORMAT_HELP}"))]
pub struct Args {
    #[command(flatten)]
    config: super::ConfigArgs,
    /// File with the keys and the times when they were last seen; `-` reads from stdin
    #[arg(value_name = "FILE")]
    input: PathBuf,
    /// Input topic, or an entry's `space` if several entries read the topic; optional if there is only one choice
    #[arg(short, long, value_name = "INPUT")]
    topic: Option<String>,
    #[command(flatten)]
    file: FileArgs,
    /// Start at the committed offsets of another group instead of `kafka.start`
    #[arg(long, value_name = "GROUP")]
    offsets_of: Option<String>,
    #[command(flatten)]
    write: super::WriteArgs,
}

#[derive(clap::Args)]
struct FileArgs {
    /// Format of a line
    #[arg(short, long, value_name = "FORMAT", value_enum, default_value_t = LineFormat::Ndjson)]
    format: LineFormat,
    /// JSON pointer or column name of the time: milliseconds since 1970, or RFC 3339 [default column: time]
    #[arg(long, value_name = "PLACE")]
    time: Option<String>,
    /// Time of lines without a time: RFC 3339, or `now`
    #[arg(long, value_name = "TIME", value_parser = moment)]
    at: Option<Timestamp>,
    /// JSON pointer or column name of the record key, which determines the partition
    #[arg(long, value_name = "PLACE")]
    record_key: Option<String>,
    /// Partitioner of the producers: `murmur2` (Java) or `crc32` (librdkafka) [default: `serve.partitioner`]
    ///
    /// Has no effect if `key_format` has a schema registry's frame. In that case, seed from a capture of the input topic or use
    /// --every-partition.
    #[arg(long, value_name = "NAME", value_enum)]
    partitioner: Option<PartitionerName>,
    /// Add keys with an unknown partition to every partition. Every partition then needs memory for all of these keys
    #[arg(long)]
    every_partition: bool,
    /// Skip lines without a key and count them
    #[arg(long)]
    skip_invalid: bool,
    /// Maximum number of keys; a key in several partitions counts several times. Sorting uses 32 bytes of memory per key
    #[arg(long, value_name = "N", default_value = "100M", value_parser = max_keys)]
    max_keys: u64,
}

#[derive(Clone, Copy, clap::ValueEnum)]
enum LineFormat {
    Ndjson,
    Csv,
    // `unseen replay` accepts `capture` and `kcat` for the same format, so this command does, too.
    #[value(alias = "kcat")]
    Capture,
}

#[derive(Clone, Copy, clap::ValueEnum)]
enum PartitionerName {
    Murmur2,
    Crc32,
}

fn moment(text: &str) -> Result<Timestamp, String> {
    if text == "now" {
        return Ok(runtime::wall_clock());
    }
    let time = parse_rfc3339(text).filter(|&time| time >= 0);
    time.ok_or_else(|| format!("expected a time such as 2026-11-23T14:00:00Z, or now, got {text:?}"))
}

fn max_keys(text: &str) -> Result<u64, String> {
    let keys = flags::keys(text)?;
    let most = u64::from(u32::MAX);
    if keys <= most { Ok(keys) } else { Err(format!("expected at most {most} keys, got {text}")) }
}

/// Seeds the group. After an error, nothing has been written, unless the message states otherwise.
pub fn run(args: &Args) -> anyhow::Result<()> {
    let config = topic::expand_rule(&args.config.load()?, args.topic.as_deref())?;
    args.config.check_properties(&config)?;
    let topic = topic::choose(&config, args.topic.as_deref())?;
    let options = args.file.options(&config, topic);
    let interrupt = Interrupt::listen()?;
    let waiting = Waiting { stop: &|| interrupt.received(), report: &|problem| eprintln!("{problem}") };
    let group = Group::find(&config, topic, args.write.dry_run, &waiting)?;
    let begin = args.offsets_of.as_ref().map_or_else(|| Ok(BTreeMap::new()), |other| group.offsets_of(other))?;
    let mut seeds = Seeds::new(&config, topic, &options, group.partitions(), schemas::blocking(&config)?)?;
    let path = Some(&*args.input).filter(|path| *path != Path::new("-"));
    let name = path.map_or_else(|| "standard input".to_owned(), |path| path.display().to_string());
    let (input, progress) = replay::open(path, !args.write.quiet).with_context(|| name.clone())?;
    let read = seeds.read(input, &|| interrupt.received());
    progress.finish_and_clear();
    match read {
        Err(error @ seed::Error::Line { .. }) => return Err(anyhow::Error::new(error).context(name)),
        other => other?,
    }
    let (counts, keys) = (seeds.counts(), seeds.keys());
    if args.write.dry_run {
        let text =
            if args.write.json { json(&counts, keys, None, &[]) } else { format!("{}; nothing was written\n", lines(&counts, keys)) };
        return super::print(&text);
    }
    let mut warnings = Vec::new();
    let mut warn = |warning: &'static str| {
        eprintln!("warning: {warning}");
        warnings.push(warning);
    };
    if topic.late != Late::Emit && args.offsets_of.is_none() && config.kafka.start == Start::Earliest {
        warn(
            "stream time starts at the latest time of these keys; input records that are older than that time by more than the window are late and are emitted only if late = \"emit\"",
        );
    }
    let seeded = group.seed(seeds, &begin)?;
    let age = seeded.stream_time.map_or(0, |time| runtime::wall_clock() - time);
    let is_old = topic.window.length_ms().is_some_and(|window| age > window);
    if is_old {
        warn(
            "even the latest of these keys is older than the window, so the keys do not affect current records; check that the times are in milliseconds",
        );
    }
    let (group, partitions) = (&*config.kafka.group_id, group.partitions());
    super::print(&if args.write.json {
        json(&counts, keys, Some((group, partitions, &seeded)), &warnings)
    } else {
        report(&counts, keys, &seeded, group, partitions)
    })
}

impl FileArgs {
    fn options(&self, config: &Config, topic: &Topic) -> Options {
        Options {
            format: match self.format {
                LineFormat::Ndjson => Format::Ndjson,
                LineFormat::Csv => Format::Csv,
                LineFormat::Capture => Format::Capture,
            },
            time: self.time.clone(),
            at: self.at,
            latest: replay::max_timestamp_ms(SystemTime::now(), topic.max_future),
            record_key: self.record_key.clone(),
            partitioner: self.partitioner.map_or(config.serve.partitioner, |name| {
                Some(match name {
                    PartitionerName::Murmur2 => Partitioner::Murmur2,
                    PartitionerName::Crc32 => Partitioner::Crc32,
                })
            }),
            every_partition: self.every_partition,
            skip_invalid: self.skip_invalid,
            max_keys: self.max_keys,
        }
    }
}

fn lines(counts: &Counts, keys: u64) -> String {
    let left_out = [
        (counts.invalid, "skipped lines without a key"),
        (counts.tombstones, "skipped lines without a value"),
        (counts.passed, "skipped lines that `when` does not select"),
    ];
    let left_out = left_out.iter().filter(|(count, _)| *count > 0).map(|(count, what)| format!("{} {what}", HumanCount(*count)));
    let read = [format!("{} lines", HumanCount(counts.lines)), format!("{} keys", HumanCount(keys))];
    read.into_iter().chain(left_out).collect::<Vec<_>>().join(", ")
}

/// Returns the JSON report. `seeded` has the group ID, the number of changelog partitions, and the counts of written keys. It is `None`
/// in a dry run.
fn json(counts: &Counts, keys: u64, seeded: Option<(&str, u32, &Seeded)>, warnings: &[&str]) -> String {
    let Counts { lines, invalid, tombstones, passed } = counts;
    let seeded = seeded.map(|(group, partitions, Seeded { keys, expired, evicted, stream_time })| {
        json!({ "group": group, "partitions": partitions, "keys": keys, "expired": expired, "evicted": evicted, "stream_time_ms": stream_time })
    });
    let report = json!({
        "lines": lines, "keys": keys, "invalid": invalid, "tombstones": tombstones, "passed": passed, "seeded": seeded, "warnings": warnings,
    });
    format!("{report}\n")
}

fn report(counts: &Counts, keys: u64, seeded: &Seeded, group: &str, partitions: u32) -> String {
    let Seeded { keys: logged, expired, evicted, stream_time } = *seeded;
    let latest = stream_time.map_or_else(String::new, |time| format!(", the latest seen at {}", format_rfc3339(time)));
    let summary = format!("seeded group {group:?} with {} distinct keys in {partitions} partitions{latest}", HumanCount(logged));
    let left_out = [
        (expired, "keys are older than the window and were skipped"),
        (evicted, "keys do not fit into filter.max_memory; the next records with these keys will be emitted again"),
    ];
    let left_out = left_out.iter().filter(|(count, _)| *count > 0).map(|(count, what)| format!("{} {what}", HumanCount(*count)));
    [lines(counts, keys), summary].into_iter().chain(left_out).map(|line| line + "\n").collect()
}
