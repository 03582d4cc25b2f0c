//! `unseen plan`: compares the memory, error rates, and guarantees of the filter kinds.

use super::key_part::{self, KeyPart};
use super::usage;
use crate::config::{Config, Topic, flags};
use crate::content::CompareContent;
use crate::filter::{Kind, Window};
use crate::format::{Formats, NoSchemas, RecordFormat, Schemas};
use crate::key::{Field, KeySpec, Part, Predicate};
use crate::plan::{self, Ask, Comparison, Proposal, Sample, SampleOptions};
use crate::replay::Format;
use crate::stats::wrong_unit;
use anyhow::Context;
use clap::ArgGroup;
use std::fs::File;
use std::io::{self, BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

const DEFAULT_RATE: f64 = 1e-4;
const DEFAULT_SLICES: u32 = 4;

const EXAMPLES: &str = "\
Examples:
  unseen plan --keys 10M --window 24h --false-positive-rate 1e-4
  unseen plan --sample news.jsonl                                   # propose a configuration
  unseen plan --sample hour.jsonl --format capture -c unseen.toml   # use the configured key";

const JSON_HELP: &str = "\
JSON output (--json): one object. Sizes are in bytes and for the whole topic unless noted.
  ask       keys, false_positive_rate, partitions, slices, window_ms, memory_bytes
  sample    null without --sample; records, distinct, relative_error (standard error of distinct;
            0 if exact), repeats, repeat_share, invalid, passed, untimed, span_ms, window_keys
  proposal  null unless a sample is given without --key and --config; records, is_cut, time,
            candidates[] (key, distinct, repeats, conflicts, conflict_share, differ_in[]),
            reasons[], window_ms, capacity, configuration (null if no key fits)
  kinds[]   kind, memory_bytes, partition_bytes, steady_partition_bytes (after slices have
            adapted), pod_bytes (for one pod with all partitions), disk_bytes, bits_per_key, k,
            reads, mean_rate (over a window; null for kinds that are only for comparison),
            loads[] (load, rate, memory_bytes), remembers, forgets (share of duplicates that are
            one window old and are emitted), can_retract, overfull, fits and rate_within_memory
            (null without --memory), configuration";

#[derive(clap::Args)]
#[command(after_help = EXAMPLES, after_long_help = format!("{EXAMPLES}\n\n{JSON_HELP}"), group(ArgGroup::new("size").required(true).args(["keys", "rate", "sample"])))]
pub struct Args {
    /// Number of distinct keys per window in the whole topic, such as 10M
    #[arg(long, value_name = "N", value_parser = flags::keys)]
    keys: Option<u64>,
    /// Rate of new keys, such as 5000/s; requires --window
    #[arg(long, value_name = "N/TIME", value_parser = flags::per_time, requires = "window")]
    rate: Option<(u64, Duration)>,
    /// Captured stream to count the keys of; `-` reads from stdin
    #[arg(long, value_name = "FILE")]
    sample: Option<PathBuf>,
    /// Length of the window, such as 24h
    #[arg(long, value_name = "TIME", value_parser = window)]
    window: Option<Duration>,
    /// Maximum false-positive rate [default: the rate of the configuration, or 1e-4]
    #[arg(long, value_name = "RATE", value_parser = flags::false_positive_rate)]
    false_positive_rate: Option<f64>,
    /// Number of partitions of the topic
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    partitions: u32,
    /// Number of slices per window [default: the slices of the configuration, or 4]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=64))]
    slices: Option<u32>,
    /// Comma-separated list of filter kinds to compare [default: all]
    #[arg(long, value_name = "KIND", value_delimiter = ',', long_help = kinds_help())]
    kinds: Vec<String>,
    /// Memory limit for the whole topic, such as 2GiB. Also shows the error rate of each kind within that limit
    #[arg(long, value_name = "SIZE", value_parser = flags::bytes)]
    memory: Option<u64>,
    /// Format of the sample's lines
    #[arg(short, long, value_enum, default_value_t = super::replay::LineFormat::Ndjson, conflicts_with_all = ["keys", "rate"])]
    format: super::replay::LineFormat,
    /// Configuration file, in TOML or YAML; defines the key, formats, window, slices, and rate. If this option, --key, and --ignore are all
    /// omitted, `plan` uses the file in the environment variable `UNSEEN_CONFIG`, if any
    #[arg(short, long, value_name = "FILE", conflicts_with = "key", requires = "sample")]
    config: Option<PathBuf>,
    /// Override a setting of the configuration, for example `--set topics.0.window=2h`. Repeat the option to override several
    #[arg(long, value_name = "PATH=VALUE", value_parser = super::key_value, requires = "sample")]
    set: Vec<(String, String)>,
    /// Input topic, or an entry's `space` if several entries read the topic; optional if there is only one choice
    #[arg(short, long, value_name = "INPUT", requires = "sample")]
    topic: Option<String>,
    /// Part of the key: a JSON pointer such as /order/id, `key` for the record key, or `header:NAME`. Repeat the option for each part
    /// of the key, in order
    ///
    /// Without --key and a configuration, `plan` proposes a key if the sample is a file. If no key fits, `plan` uses the record key of a
    /// capture, or the whole line of ndjson.
    #[arg(long, value_name = "PART", value_parser = key_part::parse, conflicts_with_all = ["keys", "rate"])]
    key: Vec<KeyPart>,
    /// JSON pointer to a field that may differ between duplicates, such as an attempt number. Repeat the option for several fields
    ///
    /// Only for a proposed key. Fields within that field may differ too.
    #[arg(long, value_name = "POINTER", conflicts_with_all = ["keys", "rate", "key", "config"])]
    ignore: Vec<String>,
    /// For ndjson: JSON pointer to the field to use as Kafka's timestamp (integer milliseconds or RFC 3339). Omit this option if the topic
    /// has `time`
    #[arg(long, value_name = "POINTER", conflicts_with_all = ["keys", "rate"])]
    time: Option<String>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

fn kinds_help() -> String {
    let (kinds, default) = (plan::names().join(", "), Kind::default().name());
    format!(
        "Comma-separated list of filter kinds to compare [default: all]\n\nThe kinds are {kinds}. unchained is {default} without chaining, \
         and always shown with {default}; pair is {default} with one slice; bloom is a plain Bloom filter that never forgets, only for \
         comparison."
    )
}

pub fn run(args: &Args) -> anyhow::Result<()> {
    if args.sample.is_some() && Format::from(args.format) == Format::Kcat && args.time.is_some() {
        usage("--time: lines of a capture already have the record time; remove --time");
    }
    let load = |file: PathBuf| super::topic::expand_rule(&Config::load(&file, &args.set)?, args.topic.as_deref());
    let config = config_file(args).map(load).transpose()?;
    if config.is_none() && (args.topic.is_some() || !args.set.is_empty()) {
        usage("--topic and --set need a configuration; add -c, or set UNSEEN_CONFIG, and leave out --key and --ignore");
    }
    let topic = config.as_ref().map(|config| super::topic::choose(config, args.topic.as_deref())).transpose()?;
    let required = topic.and_then(|topic| topic.time.as_ref()).filter(|time| !time.optional && args.time.is_some());
    if let Some(time) = required {
        usage(format!("--time: the topic's `time` already specifies {}; leave out --time", time.place));
    }
    let proposal = args.sample.as_deref().filter(|path| path.is_file() && config.is_none() && args.key.is_empty());
    let proposal = proposal.map(|path| propose(args, path)).transpose()?;
    let configured = topic.and_then(|topic| topic.window.length_ms()).map(i64::unsigned_abs);
    let window = args.window.map(|window| u64::try_from(window.as_millis()).unwrap_or(u64::MAX)).or(configured);
    let window = window.or_else(|| proposal.as_ref()?.window_ms);
    let schemas = || config.as_ref().map_or_else(|| Ok(Arc::new(NoSchemas) as _), super::schemas::blocking);
    let earlier = || config.iter().zip(topic).flat_map(|(config, topic)| config.earlier_rules(topic)).cloned().collect();
    let sample = args.sample.as_deref().map(|path| sample(args, path, (topic, earlier()), proposal.as_ref(), schemas()?)).transpose()?;
    let keys = match (args.keys, args.rate, args.window, &sample) {
        (_, Some(rate), Some(window), _) => flags::keys_in(rate, window).unwrap_or_else(|message| usage(format!("--rate: {message}"))),
        (_, _, _, Some(sample)) => sample.keys().max(1),
        (keys, ..) => keys.unwrap_or(1),
    };
    let ask = Ask {
        keys,
        false_positive_rate: args.false_positive_rate.or(topic.map(|topic| topic.filter.false_positive_rate)).unwrap_or(DEFAULT_RATE),
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

/// Returns the configuration file that defines the key of the sample. `UNSEEN_CONFIG` may be set for other commands, so it applies only if
/// `--sample` is set and `--key` and `--ignore` are not.
fn config_file(args: &Args) -> Option<PathBuf> {
    let from_environment = || std::env::var_os("UNSEEN_CONFIG").filter(|file| !file.is_empty()).map(PathBuf::from);
    let needs_config = args.sample.is_some() && args.key.is_empty() && args.ignore.is_empty();
    args.config.clone().or_else(|| from_environment().filter(|_| needs_config))
}

fn propose(args: &Args, path: &Path) -> anyhow::Result<Proposal> {
    let name = || path.display().to_string();
    let input = BufReader::with_capacity(1 << 16, File::open(path).with_context(name)?);
    let compare = CompareContent::new(args.ignore.clone()).unwrap_or_else(|message| usage(format!("--ignore: {message}")));
    Proposal::new(input, args.format.into(), time(args).as_ref(), &compare).with_context(name)
}

/// Returns the field that `--time` selects. Exits if the option is not a JSON Pointer.
fn time(args: &Args) -> Option<Field> {
    args.time.as_deref().map(|time| Field::new(time).unwrap_or_else(|error| usage(format!("--time: {error}"))))
}

fn sample(
    args: &Args,
    path: &Path,
    (topic, earlier): (Option<&Topic>, Vec<Topic>),
    proposal: Option<&Proposal>,
    schemas: Arc<dyn Schemas>,
) -> anyhow::Result<Sample> {
    let format = Format::from(args.format);
    if let Some(value) = topic.map(|topic| topic.formats.value().format).filter(|value| !value.is_json())
        && format == Format::Ndjson
    {
        usage(format!(
            "--format: ndjson lines are JSON, but the values of the topic are {value}; use `unseen capture` and --format capture"
        ));
    }
    let is_absent = |test: &&Predicate| format == Format::Ndjson && (test.reads_headers() || test.reads_key());
    if let Some(test) = earlier.iter().flat_map(|rule| &rule.when).chain(topic.into_iter().flat_map(|topic| &topic.when)).find(is_absent) {
        usage(format!(
            "--format: `when` tests {}, which an ndjson line does not have; use `unseen capture` and --format capture",
            test.place()
        ));
    }
    let proposed = proposal.map_or(&[][..], |proposal| &proposal.parts);
    let parts: Vec<_> = match (args.key.as_slice(), format) {
        ([], _) if !proposed.is_empty() => proposed.to_vec(),
        ([], Format::Ndjson) => vec![Part::RecordValue],
        ([], Format::Kcat) => vec![Part::RecordKey],
        (parts, _) => parts.iter().cloned().map(Part::from).collect(),
    };
    let options = SampleOptions {
        format,
        key: match topic {
            Some(topic) => topic.key.clone(),
            None => KeySpec::new(parts).unwrap_or_else(|error| usage(format!("--key: {error}"))),
        },
        when: topic.map_or_else(Vec::new, |topic| topic.when.clone()),
        earlier,
        // An ndjson line is plain JSON without the frame of a schema registry, so the topic's formats do not apply to it.
        formats: match topic {
            Some(topic) if format == Format::Kcat => topic.formats.clone(),
            Some(_) => Formats::default(),
            None => Formats::new(RecordFormat::default(), proposal.map(|proposal| proposal.format.clone()).unwrap_or_default()),
        },
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
            "warning: times such as {time} look like {unit}, so the count of keys per window is wrong; times must be milliseconds since 1970"
        );
    }
    Ok(sample)
}

fn slices(args: &Args, topic: Option<&Topic>) -> u32 {
    args.slices.or(topic.map(|topic| topic.window.slices())).unwrap_or(DEFAULT_SLICES)
}

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
