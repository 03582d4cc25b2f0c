//! `unseen plan`: what each kind of filter costs, how often it is wrong, and what it promises.

use crate::config::{Config, Topic, flags};
use crate::content::CompareContent;
use crate::filter::Window;
use crate::format::{Format as ValueFormat, NoSchemas, Schemas};
use crate::key::{Field, KeySpec, Part};
use crate::plan::{Ask, Comparison, Proposal, Sample, SampleOptions};
use crate::replay::Format;
use crate::stats::wrong_unit;
use anyhow::Context;
use clap::ArgGroup;
use clap::error::ErrorKind;
use std::fmt::Display;
use std::fs::File;
use std::io::{self, BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// What is planned for where nothing says it.
const RATE: f64 = 1e-4;
const SLICES: u32 = 4;

const JSON_HELP: &str = "\
JSON (--json), one object; sizes in bytes, of the whole topic unless they say otherwise:
  ask      keys, false_positive_rate, partitions, slices, window_ms, memory_bytes
  sample   null, or records, distinct, relative_error (its standard error; 0 if exact), repeats, repeat_share, invalid, untimed, span_ms, window_keys
  proposal null, or of a sample without --key and -c: records, is_cut, time, candidates[] of key, distinct, repeats, conflicts,
           conflict_share and differ_in[], reasons[], window_ms, capacity, configuration (null if no key fits)
  kinds[]  kind, memory_bytes, partition_bytes, steady_partition_bytes (once slices have sized themselves), pod_bytes (of a pod
           that has all of it), disk_bytes, bits_per_key, k, reads, mean_rate (over a window; null for kinds to compare),
           loads[] and curve[] of load, rate and memory_bytes; remembers, forgets (share of repeats a window old that are
           called unseen), can_retract, overfull, fits and rate_within_memory (null without --memory), configuration";

/// Options of `unseen plan`.
#[derive(clap::Args)]
#[command(after_long_help = JSON_HELP, group(ArgGroup::new("size").required(true).args(["keys", "rate", "sample"])))]
pub struct Args {
    /// Distinct keys that the whole topic shows in a window, such as 10M.
    #[arg(long, value_name = "N", value_parser = flags::keys)]
    keys: Option<u64>,
    /// New keys in a time, such as 5000/s; with --window.
    #[arg(long, value_name = "N/TIME", value_parser = flags::per_time, requires = "window")]
    rate: Option<(u64, Duration)>,
    /// Count the keys of a recorded stream; `-` is the standard input.
    #[arg(long, value_name = "FILE")]
    sample: Option<PathBuf>,
    /// How long a key stays seen, such as 24h.
    #[arg(long, value_name = "TIME", value_parser = window)]
    window: Option<Duration>,
    /// Share of unseen keys that may be called seen; that of -c, or 1e-4.
    #[arg(long, value_name = "RATE", value_parser = flags::false_positive_rate)]
    false_positive_rate: Option<f64>,
    /// How many partitions the topic has.
    #[arg(short, long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    partitions: u32,
    /// Parts that a window is forgotten in; those of -c, or 4.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=64))]
    slices: Option<u32>,
    /// Which kinds to compare, separated by commas; without it, all: aging, unchained (aging without
    /// chaining, which comes along with it), pair (aging with one slice), stable, cuckoo, exact, bloom
    /// (plain, without forgetting, to compare).
    #[arg(long, value_name = "KIND", value_delimiter = ',')]
    kinds: Vec<String>,
    /// Memory that the whole topic may take, such as 2GiB: also says what error each kind reaches within it.
    #[arg(long, value_name = "SIZE", value_parser = flags::bytes)]
    memory: Option<u64>,
    /// What a line of the sample is.
    #[arg(short, long, value_enum, default_value_t = super::replay::LineFormat::Ndjson, conflicts_with_all = ["keys", "rate"])]
    format: super::replay::LineFormat,
    /// Read the sample's key, formats, window, slices, and rate from this configuration file.
    #[arg(short, long, value_name = "FILE", conflicts_with = "key", requires = "sample")]
    config: Option<PathBuf>,
    /// Which of its topics, by input; needed if there are several.
    #[arg(long, value_name = "TOPIC", requires = "config")]
    topic: Option<String>,
    /// JSON pointer to a part of the key, in order. Without it, a key is proposed for a file; where none fits, it is the record key of a
    /// capture, the whole line of ndjson.
    #[arg(long, value_name = "POINTER", conflicts_with_all = ["keys", "rate"])]
    key: Vec<String>,
    /// For a proposal, JSON pointer to a field in which repeats may differ, with all that is in it, such as the number of an attempt.
    /// May be given more than once.
    #[arg(long, value_name = "POINTER", conflicts_with_all = ["keys", "rate", "key", "config"])]
    ignore: Vec<String>,
    /// For ndjson, JSON pointer to the field that stands for Kafka's timestamp: integer milliseconds or RFC 3339. Not needed if the topic
    /// has `time`.
    #[arg(long, value_name = "POINTER", conflicts_with_all = ["keys", "rate"])]
    time: Option<String>,
    /// Print one JSON object instead of tables; --help says what is in it.
    #[arg(long)]
    json: bool,
}

/// Prints the comparison.
///
/// # Errors
/// When the sample cannot be read.
pub fn run(args: &Args) -> anyhow::Result<()> {
    if args.sample.is_some() && Format::from(args.format) == Format::Kcat && args.time.is_some() {
        usage("--time: lines of a capture bring the record's own time");
    }
    let config = args.config.as_deref().map(|file| Config::load(file, &[])).transpose()?;
    let topic = config.as_ref().map(|config| super::topic::choose(config, args.topic.as_deref())).transpose()?;
    let required = topic.and_then(|topic| topic.time.as_ref()).filter(|time| !time.optional && args.time.is_some());
    if let Some(time) = required {
        usage(format!("--time: the topic's `time` is {} of each record; leave out --time", time.place));
    }
    let proposal = args.sample.as_deref().filter(|path| path.is_file() && args.config.is_none() && args.key.is_empty());
    let proposal = proposal.map(|path| propose(args, path)).transpose()?;
    let configured = topic.and_then(|topic| topic.window.length_ms()).map(i64::unsigned_abs);
    let window = args.window.map(|window| u64::try_from(window.as_millis()).unwrap_or(u64::MAX)).or(configured);
    let window = window.or_else(|| proposal.as_ref()?.window_ms);
    let schemas = || config.as_ref().map_or_else(|| Ok(Arc::new(NoSchemas) as _), super::schemas::patient);
    let sample = args.sample.as_deref().map(|path| sample(args, path, topic, proposal.as_ref(), schemas()?)).transpose()?;
    let keys = match (args.keys, args.rate, args.window, &sample) {
        (_, Some(rate), Some(window), _) => flags::keys_in(rate, window).unwrap_or_else(|message| usage(format!("--rate: {message}"))),
        (_, _, _, Some(sample)) => sample.keys().max(1),
        (keys, ..) => keys.unwrap_or(1),
    };
    let ask = Ask {
        keys,
        false_positive_rate: args.false_positive_rate.or(topic.map(|topic| topic.filter.false_positive_rate)).unwrap_or(RATE),
        partitions: args.partitions,
        slices: slices(args, topic),
        window_ms: window,
        memory_bytes: args.memory,
    };
    let mut report = Comparison::new(ask, &args.kinds, sample).unwrap_or_else(|error| usage(format!("--kinds: {error}")));
    report.proposal = proposal;
    let proposed = report.proposal.as_ref().map_or_else(String::new, |proposal| proposal.text() + "\n");
    let text = if args.json { serde_json::to_string(&report)? + "\n" } else { proposed + &report.table() };
    super::print(&text)
}

/// A configuration that fits what a file shows.
fn propose(args: &Args, path: &Path) -> anyhow::Result<Proposal> {
    let name = || path.display().to_string();
    let input = BufReader::with_capacity(1 << 16, File::open(path).with_context(name)?);
    let compare = CompareContent::new(args.ignore.clone()).unwrap_or_else(|message| usage(format!("--ignore: {message}")));
    Proposal::new(input, args.format.into(), time(args).as_ref(), &compare).with_context(name)
}

/// The field that holds a record's time.
fn time(args: &Args) -> Option<Field> {
    args.time.as_deref().map(|time| Field::new(time).unwrap_or_else(|error| usage(format!("--time: {error}"))))
}

fn sample(
    args: &Args,
    path: &Path,
    topic: Option<&Topic>,
    proposal: Option<&Proposal>,
    schemas: Arc<dyn Schemas>,
) -> anyhow::Result<Sample> {
    let format = Format::from(args.format);
    if let Some(value) = topic.map(|topic| topic.formats.value.format).filter(|value| *value != ValueFormat::Json)
        && format == Format::Ndjson
    {
        usage(format!(
            "--format: a line of ndjson is JSON, and the topic's values are {value}; record with `unseen capture`, and say --format capture"
        ));
    }
    let proposed = proposal.map_or(&[][..], |proposal| &proposal.parts);
    let parts: Vec<_> = match (args.key.as_slice(), format) {
        ([], _) if !proposed.is_empty() => proposed.to_vec(),
        ([], Format::Ndjson) => vec![Part::RecordValue],
        ([], Format::Kcat) => vec![Part::RecordKey],
        (pointers, _) => pointers.iter().cloned().map(Part::Field).collect(),
    };
    let options = SampleOptions {
        format,
        key: match topic {
            Some(topic) => topic.key.clone(),
            None => KeySpec::new(parts).unwrap_or_else(|error| usage(format!("--key: {error}"))),
        },
        // A line of values has no frame.
        formats: topic.filter(|_| format == Format::Kcat).map(|topic| topic.formats.clone()).unwrap_or_default(),
        schemas,
        event_time: topic.and_then(|topic| topic.time.clone()),
        time: time(args).or_else(|| Field::new(proposal?.time.as_deref()?).ok()),
        window: window_of_sample(args, topic, proposal),
    };
    let stdin = path == Path::new("-");
    let name = if stdin { "standard input".to_owned() } else { path.display().to_string() };
    let input: Box<dyn BufRead> = if stdin {
        Box::new(BufReader::with_capacity(1 << 16, io::stdin()))
    } else {
        Box::new(BufReader::with_capacity(1 << 16, File::open(path).with_context(|| name.clone())?))
    };
    let sample = Sample::count(input, &options).context(name)?;
    if let Some((time, unit)) = sample.last_time.and_then(|time| Some((time, wrong_unit(time)?))) {
        eprintln!(
            "warning: times such as {time} look like {unit}, so the keys in a window are not counted right; times must be milliseconds since 1970"
        );
    }
    Ok(sample)
}

/// Parts of a window.
fn slices(args: &Args, topic: Option<&Topic>) -> u32 {
    args.slices.or(topic.map(|topic| topic.window.slices())).unwrap_or(SLICES)
}

/// The window to count keys in.
fn window_of_sample(args: &Args, topic: Option<&Topic>, proposal: Option<&Proposal>) -> Option<Window> {
    let named = args.window.map(|window| i64::try_from(window.as_millis()).unwrap_or(i64::MAX));
    let proposed = proposal.and_then(|proposal| i64::try_from(proposal.window_ms?).ok());
    let configured = topic.map(|topic| topic.window).filter(|window| window.length_ms().is_some());
    let of = |length| Window::time(length, slices(args, topic));
    named.map(of).or(configured).or_else(|| proposed.map(of))
}

fn window(text: &str) -> Result<Duration, String> {
    let window = flags::duration(text)?;
    if window.as_millis() == 0 { Err(format!("expected at least a millisecond, got {text}")) } else { Ok(window) }
}

/// Ends the process as clap does for a command line that it refuses.
fn usage(message: impl Display) -> ! {
    clap::Error::raw(ErrorKind::ValueValidation, format!("{message}\n")).exit()
}
