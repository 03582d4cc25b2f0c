//! `unseen init`: writes a commented, minimal configuration from flags or from records.

use super::capture;
use super::interrupt::Interrupt;
use super::key_part::{self, KeyPart};
use super::replay::LineFormat;
use crate::config::{self, Config, flags};
use crate::content::CompareContent;
use crate::kafka::{self, Capture, Message, Wanted};
use crate::key::Field;
use crate::plan::Proposal;
use crate::replay::Format;
use anyhow::{Context as _, anyhow, bail, ensure};
use std::fmt::Write as _;
use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, Write as _};
use std::path::PathBuf;

/// Maximum number of records to read from a topic as a sample.
const SAMPLE_RECORDS_MAX: usize = 100_000;
/// Size of the sample, as lines in the format of `unseen capture`, at which reading stops.
const SAMPLE_BYTES_MAX: usize = 64 << 20;

const EXAMPLES: &str = "\
Examples:
  # A key that you know
  unseen init news.events news.unseen --key /news_id --window 24h > unseen.toml

  # A key, a window, and a capacity that fit the first records of the topic
  unseen init news.events news.unseen -b localhost:9092 --create-topics -o unseen.toml

  # The same from a file
  unseen init news.events news.unseen --sample hour.jsonl --format capture";

#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Input topic
    input: String,
    /// Output topic
    output: String,
    /// Addresses of the brokers
    #[arg(short, long, value_name = "HOST:PORT,...", default_value = "localhost:9092")]
    bootstrap_servers: String,
    /// Consumer group, and prefix of the changelog topics and the transactional ids [default: unseen-INPUT]
    #[arg(short, long, value_name = "NAME")]
    group_id: Option<String>,
    /// librdkafka property, such as `security.protocol=SSL`. Repeat the option for several properties
    #[arg(short = 'X', long, value_name = "NAME=VALUE", value_parser = super::key_value)]
    property: Vec<(String, String)>,
    /// Part of the key: a JSON pointer such as /order/id, `key` for the record key, or `header:NAME`. Repeat the option for a key of
    /// several parts. By default, unseen proposes a key that fits the sample
    #[arg(long, value_name = "PART", value_parser = part)]
    key: Vec<String>,
    /// Length of the window [default: twice the longest time between duplicates of the sample; without a sample, 24h]
    #[arg(long, value_name = "TIME", value_parser = window)]
    window: Option<String>,
    /// Distinct keys per window in the whole topic [default: estimate from the sample; without a sample, 10M]
    #[arg(long, value_name = "N", value_parser = flags::keys)]
    capacity: Option<u64>,
    /// Topic for records without a key. Without this topic, the first such record stops the worker
    #[arg(long, value_name = "TOPIC")]
    dead_letters: Option<String>,
    /// File with a recorded stream to examine instead of the first records of the input topic. `-` is the standard input
    #[arg(long, value_name = "FILE", conflicts_with = "key")]
    sample: Option<PathBuf>,
    /// Format of the sample's lines
    #[arg(short, long, value_enum, default_value_t = LineFormat::Ndjson, requires = "sample")]
    format: LineFormat,
    /// JSON pointer to the record's time in an ndjson sample: integer milliseconds, or RFC 3339
    #[arg(long, value_name = "POINTER", requires = "sample")]
    time: Option<String>,
    /// JSON pointer to a field that may differ between duplicates, such as an attempt number. Repeat the option for several fields
    #[arg(long, value_name = "POINTER", conflicts_with = "key")]
    ignore: Vec<String>,
    /// Create the output topic and the dead-letter topic if they do not exist, with the number of partitions of the input topic
    #[arg(long)]
    create_topics: bool,
    /// File to write, which must not exist. `-` is the standard output
    #[arg(short, long = "output", value_name = "FILE", default_value = "-")]
    output_file: PathBuf,
}

pub fn run(args: &Args) -> anyhow::Result<()> {
    let is_stdout = args.output_file.as_os_str() == "-";
    ensure!(is_stdout || !args.output_file.exists(), "{} already exists; choose another file with -o", args.output_file.display());
    if let Some((name, _)) = args.property.iter().find(|(name, value)| config::is_secret(name) && !value.starts_with("${")) {
        bail!(
            "-X {name}: a secret would be readable in the file; write '{name}=${{VARIABLE}}' or '{name}=${{file:PATH}}', which unseen reads at each start"
        );
    }
    let interrupt = Interrupt::listen()?;
    let reads_topic = args.key.is_empty() && args.sample.is_none();
    let mut broker = if reads_topic || args.create_topics { Some(Broker::connect(args, &interrupt)?) } else { None };
    let proposal = match (&args.sample, &mut broker) {
        _ if !args.key.is_empty() => None,
        (Some(path), _) => Some(propose(args, path)?),
        (None, Some(broker)) => Some(broker.propose(args, &interrupt)?),
        (None, None) => None,
    };
    let text = configuration(args, proposal.as_ref())?;
    let config = parse(&text)?;
    if let Some(broker) = broker.filter(|_| args.create_topics) {
        broker.create_topics(args, &config)?;
    }
    if is_stdout {
        return super::print(&text);
    }
    let mut file = File::create_new(&args.output_file).with_context(|| format!("cannot create {}", args.output_file.display()))?;
    file.write_all(text.as_bytes())
        .and_then(|()| file.sync_all())
        .with_context(|| format!("cannot write {}", args.output_file.display()))?;
    let file = args.output_file.display();
    eprintln!("Wrote {file}. Next:\n  unseen check -c {file} --connect\n  unseen run -c {file}");
    Ok(())
}

struct Broker {
    capture: Capture,
    partitions: u32,
}

impl Broker {
    fn connect(args: &Args, interrupt: &Interrupt) -> anyhow::Result<Self> {
        // The key does not matter yet, because this configuration is only used to connect.
        let config = parse(&render(args, "{ record = \"key\" }", "24h", 1, ""))?;
        kafka::check_properties(&config).map_err(|errors| anyhow!("--property: {}", join(&errors)))?;
        let wanted = Wanted { topic: args.input.clone(), ..Wanted::default() };
        let capture = Capture::start(&config, &wanted, &|| interrupt.received(), &|trouble| eprintln!("{trouble}"))?;
        let partitions = capture.partitions();
        Ok(Self { capture, partitions })
    }

    fn propose(&mut self, args: &Args, interrupt: &Interrupt) -> anyhow::Result<Proposal> {
        let (mut lines, mut count) = (Vec::new(), 0);
        let mut take = |message: &Message<'_>, _| -> anyhow::Result<bool> {
            capture::write(message, &mut lines)?;
            count += 1;
            Ok(count < SAMPLE_RECORDS_MAX && lines.len() < SAMPLE_BYTES_MAX)
        };
        self.capture.read(&|| interrupt.received(), &|trouble| eprintln!("{trouble}"), &mut take)?;
        ensure!(!interrupt.received(), "interrupted; nothing was written");
        ensure!(count > 0, "topic {:?} has no records to propose a key from; set the key with --key", args.input);
        usable(args, Proposal::new(&*lines, Format::Kcat, None, &compare(args)?).with_context(|| args.input.clone())?)
    }

    fn create_topics(&self, args: &Args, config: &Config) -> anyhow::Result<()> {
        let names: Vec<_> = std::iter::once(&*args.output).chain(args.dead_letters.as_deref()).collect();
        for name in kafka::create_topics(config, &names, self.partitions)? {
            eprintln!("Created topic {name} with {} partitions.", self.partitions);
        }
        Ok(())
    }
}

fn propose(args: &Args, path: &PathBuf) -> anyhow::Result<Proposal> {
    let is_stdin = path.as_os_str() == "-";
    let name = || if is_stdin { "standard input".to_owned() } else { path.display().to_string() };
    let input: Box<dyn BufRead> =
        if is_stdin { Box::new(io::stdin().lock()) } else { Box::new(BufReader::new(File::open(path).with_context(name)?)) };
    let time = args.time.as_deref().map(Field::new).transpose().map_err(|error| anyhow!("--time: {error}"))?;
    usable(args, Proposal::new(input, args.format.into(), time.as_ref(), &compare(args)?).with_context(name)?)
}

fn compare(args: &Args) -> anyhow::Result<CompareContent> {
    CompareContent::new(args.ignore.clone()).map_err(|message| anyhow!("--ignore: {message}"))
}

/// Rejects a proposal without a key. Without a dead-letter topic, also rejects a key that some records lack, because such a record stops
/// the worker.
fn usable(args: &Args, proposal: Proposal) -> anyhow::Result<Proposal> {
    if proposal.parts.is_empty() {
        bail!("no key fits the records; set one with --key\n\n{}", proposal.text().trim_end());
    }
    if proposal.without_key > 0 && args.dead_letters.is_none() {
        bail!(
            "{} of {} records do not have this key and would stop the worker; set a topic for them with --dead-letters, or another key with --key\n\n{}",
            proposal.without_key,
            proposal.records,
            proposal.text().trim_end()
        );
    }
    Ok(proposal)
}

fn configuration(args: &Args, proposal: Option<&Proposal>) -> anyhow::Result<String> {
    let key = match (args.key.as_slice(), proposal.and_then(|proposal| proposal.candidates.first())) {
        ([], Some(candidate)) => candidate.key.clone(),
        ([only], _) => only.clone(),
        (parts, _) => format!("[{}]", parts.join(", ")),
    };
    let window = args.window.clone().or_else(|| proposal?.window());
    if let (Some(proposal), None) = (proposal, &window) {
        bail!("the records have no times to propose a window from; set --window\n\n{}", proposal.text().trim_end());
    }
    let capacity = args.capacity.or_else(|| proposal?.capacity);
    let mut more = String::new();
    if let Some(proposal) = proposal {
        more.push_str(proposal.encoding());
        more.push_str("# Proposed because of these records:\n");
        for reason in &proposal.reasons {
            let _ = writeln!(more, "# - {reason}");
        }
        let _ =
            writeln!(more, "# Report duplicates that differ from the first record with their key.\nkey_conflicts = {}", conflicts(args));
    }
    Ok(render(args, &key, window.as_deref().unwrap_or("24h"), capacity.unwrap_or(10_000_000), &more))
}

/// Returns the TOML value of the option `key_conflicts`: `true`, or a table with the fields to leave out of the comparison.
fn conflicts(args: &Args) -> String {
    let pointers: Vec<_> = args.ignore.iter().map(|pointer| quoted(pointer)).collect();
    if pointers.is_empty() { "true".to_owned() } else { format!("{{ except = [{}] }}", pointers.join(", ")) }
}

fn render(args: &Args, key: &str, window: &str, capacity: u64, more: &str) -> String {
    let group = args.group_id.clone().unwrap_or_else(|| format!("unseen-{}", args.input));
    let properties = match args.property.as_slice() {
        [] => "# Properties of librdkafka, for example for TLS and SASL:\n# [kafka.properties]\n# \"security.protocol\" = \"SASL_SSL\"\n"
            .to_owned(),
        all => {
            let lines = all.iter().map(|(name, value)| format!("{} = {}\n", quoted(name), quoted(value)));
            format!("[kafka.properties]\n{}", lines.collect::<String>())
        }
    };
    let invalid = match &args.dead_letters {
        Some(topic) => format!("# Records without a key and records that the output rejects go to this topic.\non_invalid = {{ topic = {} }}\n", quoted(topic)),
        None => "# Records without a key stop the worker. Alternatives: \"drop\", \"emit\", { topic = \"a dead-letter topic\" }\non_invalid = \"fail\"\n"
            .to_owned(),
    };
    let capacity = if capacity.is_multiple_of(1_000_000) { format!("\"{}M\"", capacity / 1_000_000) } else { capacity.to_string() };
    format!(
        "\
# Written by `unseen init`. config/example.toml documents every option.

[kafka]
bootstrap_servers = {}
# The consumer group. It also names the changelog topics and the transactional ids.
group_id = {}

{properties}
[state]
# Keep this directory across restarts. If it is lost, the worker restores its state from the changelog.
dir = \"./state\"

[[topics]]
input = {}
output = {}
# Records with the same key are duplicates. They must be in the same partition. If they are not, add: repartition = true
key = {key}
# How long a key is remembered.
window = {}
# Keys per window in the whole topic, and the share of new keys that may be dropped as false positives.
filter = {{ capacity = {capacity}, false_positive_rate = 1e-4 }}
{invalid}{more}",
        quoted(&args.bootstrap_servers),
        quoted(&group),
        quoted(&args.input),
        quoted(&args.output),
        quoted(window),
    )
}

fn parse(text: &str) -> anyhow::Result<Config> {
    let failed = || {
        format!("cannot create a directory in {}; set TMPDIR to a directory that this user can write to", std::env::temp_dir().display())
    };
    let dir = tempfile::tempdir().with_context(failed)?;
    let file = dir.path().join("unseen.toml");
    fs::write(&file, text).with_context(|| format!("cannot write {}", file.display()))?;
    Config::load(&file, &[]).map_err(|config::Errors(errors)| {
        let messages: Vec<_> = errors.into_iter().map(|error| format!("{}: {}", error.path, error.message)).collect();
        anyhow!("the flags do not make a valid configuration: {}", messages.join("; "))
    })
}

fn join(errors: &[impl ToString]) -> String {
    errors.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")
}

fn quoted(text: &str) -> String {
    toml::Value::from(text).to_string()
}

/// Parses a part of the key from the command line. Returns the TOML value that defines the part in a configuration.
fn part(text: &str) -> Result<String, String> {
    Ok(match key_part::parse(text)? {
        KeyPart::RecordKey => "{ record = \"key\" }".to_owned(),
        KeyPart::Header(name) => format!("{{ header = {} }}", quoted(&name)),
        KeyPart::Field(pointer) => format!("{{ field = {} }}", quoted(&pointer)),
    })
}

fn window(text: &str) -> Result<String, String> {
    flags::duration(text).map(|_| text.to_owned())
}
