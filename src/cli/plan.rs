//! `unseen plan`: what each kind of filter costs, how often it is wrong, and what it promises.

use anyhow::Context;
use clap::ArgGroup;
use clap::error::ErrorKind;
use std::fmt::Display;
use std::fs::{self, File};
use std::io::{self, BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use unseen::config::{Config, Topic, flags};
use unseen::filter::Window;
use unseen::format::{Format as ValueFormat, NoSchemas, Schemas};
use unseen::key::{Field, KeySpec, Part};
use unseen::plan::{Ask, Comparison, Sample, SampleOptions};
use unseen::replay::Format;

const JSON_HELP: &str = "\
JSON (--json), one object; sizes in bytes, of the whole topic unless they say otherwise:
  ask      keys, false_positive_rate, partitions, slices, window_ms, memory_bytes
  sample   null, or records, distinct, relative_error (its standard error; 0 if exact), repeats, repeat_share, invalid, untimed, span_ms, window_keys
  kinds[]  kind, memory_bytes, partition_bytes, pod_bytes (of a pod that has all of it), disk_bytes, bits_per_key, k, reads,
           loads[] and curve[] of load, rate and memory_bytes; remembers, forgets
           (share of repeats a window old that are called unseen), can_retract, overfull,
           fits and rate_within_memory (null without --memory), configuration";

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
    /// Share of unseen keys that may be called seen.
    #[arg(long, value_name = "RATE", default_value = "1e-4", value_parser = flags::false_positive_rate)]
    false_positive_rate: f64,
    /// How many partitions the topic has.
    #[arg(short, long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    partitions: u32,
    /// Parts that a window is forgotten in.
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=64))]
    slices: u32,
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
    /// Take key, formats and window from this configuration file instead.
    #[arg(short, long, value_name = "FILE", conflicts_with_all = ["keys", "rate", "key"])]
    config: Option<PathBuf>,
    /// Which of its topics, by input; needed if there are several.
    #[arg(long, value_name = "TOPIC", requires = "config")]
    topic: Option<String>,
    /// JSON pointer to a part of the key, in order; without it, the record key of a capture, the whole line of ndjson.
    #[arg(long, value_name = "POINTER", conflicts_with_all = ["keys", "rate"])]
    key: Vec<String>,
    /// For ndjson, JSON pointer to the record's time: integer milliseconds or RFC 3339.
    #[arg(long, value_name = "POINTER", conflicts_with_all = ["keys", "rate"])]
    time: Option<String>,
    /// Also write the curves as a picture.
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
    /// Print one JSON object instead of tables; --help says what is in it.
    #[arg(long)]
    json: bool,
}

/// Prints the comparison.
///
/// # Errors
/// When the sample is at fault, or the picture cannot be written.
pub fn run(args: &Args) -> anyhow::Result<()> {
    let config = args.config.as_deref().map(|file| Config::load(file, &[])).transpose()?;
    let topic = config.as_ref().map(|config| super::topic::choose(config, args.topic.as_deref())).transpose()?;
    let configured = topic.and_then(|topic| topic.window.length_ms()).map(i64::unsigned_abs);
    let window = args.window.map(|window| u64::try_from(window.as_millis()).unwrap_or(u64::MAX)).or(configured);
    let schemas = || config.as_ref().map_or_else(|| Ok(Arc::new(NoSchemas) as _), super::schemas::patient);
    let sample = args.sample.as_deref().map(|path| sample(args, path, topic, schemas()?)).transpose()?;
    let keys = match (args.keys, args.rate, args.window, &sample) {
        (_, Some(rate), Some(window), _) => flags::keys_in(rate, window).unwrap_or_else(|message| usage(format!("--rate: {message}"))),
        (_, _, _, Some(sample)) => sample.keys().max(1),
        (keys, ..) => keys.unwrap_or(1),
    };
    let ask = Ask {
        keys,
        false_positive_rate: args.false_positive_rate,
        partitions: args.partitions,
        slices: args.slices,
        window_ms: window,
        memory_bytes: args.memory,
    };
    let report = Comparison::new(ask, &args.kinds, sample).unwrap_or_else(|error| usage(format!("--kinds: {error}")));
    if let Some(path) = &args.svg {
        fs::write(path, report.svg()).with_context(|| format!("cannot write {}", path.display()))?;
    }
    let text = if args.json { serde_json::to_string(&report)? + "\n" } else { format!("{}\n{}", report.table(), report.curve()) };
    super::print(&text)
}

fn sample(args: &Args, path: &Path, topic: Option<&Topic>, schemas: Arc<dyn Schemas>) -> anyhow::Result<Sample> {
    let format = Format::from(args.format);
    if let Some(value) = topic.map(|topic| topic.formats.value.format).filter(|value| *value != ValueFormat::Json)
        && format == Format::Ndjson
    {
        usage(format!(
            "--format: a line of ndjson is JSON, and the topic's values are {value}; record with `unseen capture`, and say --format capture"
        ));
    }
    let parts: Vec<_> = match (args.key.as_slice(), format) {
        ([], Format::Ndjson) => vec![Part::RecordValue],
        ([], Format::Kcat) => vec![Part::RecordKey],
        (pointers, _) => pointers.iter().cloned().map(Part::Field).collect(),
    };
    if format == Format::Kcat && args.time.is_some() {
        usage("--time: lines of a capture bring the record's own time");
    }
    let options = SampleOptions {
        format,
        key: match topic {
            Some(topic) => topic.key.clone(),
            None => KeySpec::new(parts).unwrap_or_else(|error| usage(format!("--key: {error}"))),
        },
        // A line of values has no frame.
        formats: topic.filter(|_| format == Format::Kcat).map(|topic| topic.formats.clone()).unwrap_or_default(),
        schemas,
        time: args.time.as_deref().map(|time| Field::new(time).unwrap_or_else(|error| usage(format!("--time: {error}")))),
        window: args.window.map_or_else(
            || topic.map(|topic| topic.window).filter(|window| window.length_ms().is_some()),
            |window| Some(Window::time(i64::try_from(window.as_millis()).unwrap_or(i64::MAX), args.slices)),
        ),
    };
    let stdin = path == Path::new("-");
    let name = if stdin { "standard input".to_owned() } else { path.display().to_string() };
    let input: Box<dyn BufRead> = if stdin {
        Box::new(BufReader::with_capacity(1 << 16, io::stdin()))
    } else {
        Box::new(BufReader::with_capacity(1 << 16, File::open(path).with_context(|| name.clone())?))
    };
    Sample::count(input, &options).context(name)
}

fn window(text: &str) -> Result<Duration, String> {
    let window = flags::duration(text)?;
    if window.as_millis() == 0 { Err(format!("expected at least a millisecond, got {text}")) } else { Ok(window) }
}

/// Ends the process as clap does for a command line that it refuses.
fn usage(message: impl Display) -> ! {
    clap::Error::raw(ErrorKind::ValueValidation, format!("{message}\n")).exit()
}
