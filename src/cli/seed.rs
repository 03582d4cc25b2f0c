//! `unseen seed`: what was seen before unseen came.

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
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

const FORMAT_HELP: &str = "\
Formats:
  ndjson    each line is the value of a record, from which the topic's key is taken
  csv       a table; its first line names the columns, one for each part of the key: `key` for the record key, `value`, `content`,
            the name of a header, the pointer of a field with or without its first slash. A number in the column of a field means
            the number and the text, so it counts as two keys
  capture   each line is a record, as `unseen capture` or `kcat -J` writes it: of the input, or of what came out elsewhere";

/// Options of `unseen seed`.
#[derive(clap::Args)]
#[command(after_long_help = FORMAT_HELP)]
pub struct Args {
    #[command(flatten)]
    config: super::ConfigArgs,
    /// The file, in which each key stands with the time when it was last seen; `-` is the standard input.
    #[arg(value_name = "FILE")]
    input: PathBuf,
    /// The input topic whose keys they are; needed if the configuration has several.
    #[arg(short, long, value_name = "INPUT")]
    topic: Option<String>,
    #[command(flatten)]
    file: FileArgs,
    /// Begin where this group, the other tool's, has come to, in place of where kafka.start says.
    #[arg(long, value_name = "GROUP")]
    offsets_of: Option<String>,
    /// Read the file and look at the group, but write nothing.
    #[arg(long)]
    dry_run: bool,
    /// No progress.
    #[arg(short, long)]
    quiet: bool,
}

/// How the file is to be read.
#[derive(clap::Args)]
struct FileArgs {
    /// What a line is.
    #[arg(long, value_name = "FORMAT", value_enum, default_value_t = LineFormat::Ndjson)]
    format: LineFormat,
    /// Where the time is: a JSON pointer, or the name of a column, by default `time`. It is in milliseconds since 1970, or in RFC 3339.
    #[arg(long, value_name = "PLACE")]
    time: Option<String>,
    /// The time of lines that have none: RFC 3339, or `now`.
    #[arg(long, value_name = "TIME", value_parser = moment)]
    at: Option<Timestamp>,
    /// Where the record key is, if it is not in the line itself: a JSON pointer, or the name of a column.
    #[arg(long, value_name = "PLACE")]
    record_key: Option<String>,
    /// How producers choose a partition by the record key: `murmur2` (Java) or `crc32` (librdkafka). The default is
    /// serve.partitioner. Not used if `key_format` puts a frame before the record key: seed from a capture of the input topic, or
    /// with --every-partition.
    #[arg(long, value_name = "NAME", value_enum)]
    partitioner: Option<PartitionerName>,
    /// Put keys whose partition is not known into each of them. Each then takes as much memory as all of them need.
    #[arg(long)]
    every_partition: bool,
    /// Leave lines without a key out, and count them.
    #[arg(long)]
    skip_invalid: bool,
    /// Most keys, each counted as often as it is put into a partition. Each takes 32 bytes of memory while they are sorted.
    #[arg(long, value_name = "N", default_value = "100M", value_parser = max_keys)]
    max_keys: u64,
}

#[derive(Clone, Copy, clap::ValueEnum)]
enum LineFormat {
    Ndjson,
    Csv,
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

/// They are numbered in 32 bits.
fn max_keys(text: &str) -> Result<u64, String> {
    let keys = flags::keys(text)?;
    let most = u64::from(u32::MAX);
    if keys <= most { Ok(keys) } else { Err(format!("expected at most {most} keys, got {text}")) }
}

/// Writes the keys to the changelog.
///
/// # Errors
/// When the configuration, the brokers or the file are at fault, or the group has begun. Then nothing is written.
pub fn run(args: &Args) -> anyhow::Result<()> {
    let config = args.config.load()?;
    args.config.check_properties(&config)?;
    let topic = topic::choose(&config, args.topic.as_deref())?;
    let options = args.file.options(&config, topic);
    let interrupt = Interrupt::listen()?;
    let waiting = Waiting { stop: &|| interrupt.came(), report: &|trouble| eprintln!("{trouble}") };
    let group = Group::find(&config, topic, args.dry_run, &waiting)?;
    let begin = args.offsets_of.as_ref().map_or_else(|| Ok(BTreeMap::new()), |other| group.offsets_of(other))?;
    let mut seeds = Seeds::new(&config, topic, &options, group.partitions(), schemas::patient(&config)?)?;
    let path = Some(&*args.input).filter(|path| *path != Path::new("-"));
    let name = path.map_or_else(|| "standard input".to_owned(), |path| path.display().to_string());
    let (input, progress) = replay::open(path, !args.quiet).with_context(|| name.clone())?;
    let read = seeds.read(input, &|| interrupt.came());
    progress.finish_and_clear();
    match read {
        Err(error @ seed::Error::Line { .. }) => return Err(anyhow::Error::new(error).context(name)),
        other => other?,
    }
    let counts = seeds.counts();
    if args.dry_run {
        return super::print(&format!("{}; nothing was written\n", lines(&counts, seeds.keys())));
    }
    if topic.late != Late::Emit && args.offsets_of.is_none() && config.kafka.start == Start::Earliest {
        eprintln!(
            "warning: stream time begins at the last of these keys, so records of the input that are older than that by more than the window are late, and do not come out (late)"
        );
    }
    let keys = seeds.keys();
    let seeded = group.seed(seeds, &begin)?;
    super::print(&report(&counts, keys, &seeded, &config.kafka.group_id, group.partitions()))?;
    let age = seeded.stream_time.map_or(0, |time| runtime::wall_clock() - time);
    if topic.window.length_ms().is_some_and(|window| age > window) {
        eprintln!("warning: that is longer ago than the window, so records of now find none of them; are the times in milliseconds?");
    }
    Ok(())
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
    let left_out = [(counts.invalid, "lines without a key left out"), (counts.tombstones, "lines without a value left out")];
    let left_out = left_out.iter().filter(|(count, _)| *count > 0).map(|(count, what)| format!("{} {what}", HumanCount(*count)));
    let read = [format!("{} lines", HumanCount(counts.lines)), format!("{} keys", HumanCount(keys))];
    read.into_iter().chain(left_out).collect::<Vec<_>>().join(", ")
}

fn report(counts: &Counts, keys: u64, seeded: &Seeded, group: &str, partitions: u32) -> String {
    let Seeded { keys: logged, expired, evicted, stream_time } = *seeded;
    let latest = stream_time.map_or_else(String::new, |time| format!(", the last of them seen at {}", format_rfc3339(time)));
    let begins = format!("group {group:?} begins with {} different keys in {partitions} partitions{latest}", HumanCount(logged));
    let left_out = [
        (expired, "keys are older than the window, and were left out"),
        (evicted, "keys do not fit into filter.max_memory, and will come out again"),
    ];
    let left_out = left_out.iter().filter(|(count, _)| *count > 0).map(|(count, what)| format!("{} {what}", HumanCount(*count)));
    [lines(counts, keys), begins].into_iter().chain(left_out).map(|line| line + "\n").collect()
}
