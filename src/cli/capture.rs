//! `unseen capture`: writes the records of a topic to a file, for `unseen replay` and `unseen plan --sample`.

use super::interrupt::Interrupt;
use super::topic;
use crate::broker::Record as _;
use crate::config::{Config, flags};
use crate::kafka::{self, Capture, Message, Wanted};
use crate::record::Timestamp;
use crate::replay::{Captured, parse_rfc3339};
use crate::runtime;
use anyhow::{Context as _, bail, ensure};
use indicatif::{HumanCount, ProgressBar, ProgressStyle};
use std::fs::Permissions;
use std::io::{self, BufWriter, ErrorKind, IntoInnerError, IsTerminal as _, Write};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::time::SystemTime;
use tempfile::NamedTempFile;

const EXAMPLES: &str = "\
Examples:
  unseen capture -c unseen.toml --from 2h --to 1h -o hour.jsonl
  unseen capture -c unseen.toml --topic news.events -p 3 | zstd > partition-3.jsonl.zst";

const FORMAT_HELP: &str = "\
Output: one JSON object per record and line, as in `kcat -J` except for data that is not UTF-8:
  topic, partition, offset
  tstype, ts                  create or logappend, and the time in milliseconds; absent if the
                              record has no time
  headers                     alternating names and values, in order; a value can be null
  headers_base64              replaces headers if a name or a value is not UTF-8
  key, payload                key and value as text, or null
  key_base64, payload_base64  replace key or payload if it is not UTF-8";

#[derive(clap::Args)]
#[command(after_help = EXAMPLES, after_long_help = format!("{EXAMPLES}\n\n{FORMAT_HELP}"))]
pub struct Args {
    #[command(flatten)]
    config: super::ConfigArgs,
    /// Topic to read; need not be an input. Required if the configuration has several inputs or a pattern
    #[arg(short, long)]
    topic: Option<String>,
    /// Partition to read [default: all]. Repeat the option to read several
    #[arg(short, long, value_name = "N", value_parser = clap::value_parser!(i32).range(0..))]
    partition: Vec<i32>,
    /// Start each partition at its first record of this time or later: RFC 3339, or an age such as 1h [default: first record]
    #[arg(long, value_name = "TIME", value_parser = moment)]
    from: Option<Moment>,
    /// Stop each partition before its first record of this time or later [default: end of the partition when the command starts]
    #[arg(long, value_name = "TIME", value_parser = moment)]
    to: Option<Moment>,
    /// Maximum number of records to write
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    limit: Option<u64>,
    /// File to create; `-` writes to stdout
    #[arg(short, long, value_name = "FILE", default_value = "-")]
    output: PathBuf,
    /// Do not print a summary or progress
    #[arg(short, long)]
    quiet: bool,
}

#[derive(Clone, Copy, Debug)]
enum Moment {
    At(Timestamp),
    Ago(std::time::Duration),
}

impl Moment {
    fn timestamp(self, now: SystemTime) -> Timestamp {
        match self {
            Self::At(time) => time,
            Self::Ago(age) => now.checked_sub(age).map_or(0, runtime::millis),
        }
    }
}

fn moment(text: &str) -> Result<Moment, String> {
    let at = parse_rfc3339(text).filter(|&time| time >= 0).map(Moment::At);
    let moment = at.or_else(|| flags::duration(text).ok().map(Moment::Ago));
    moment.ok_or_else(|| format!("expected a time such as 2026-11-23T14:00:00Z, or an age such as 1h, got {text:?}"))
}

pub fn run(args: &Args) -> anyhow::Result<()> {
    let config = args.config.load_with(args.topic.as_deref())?;
    args.config.check_properties(&config)?;
    let wanted = wanted(args, &config)?;
    let interrupt = Interrupt::listen()?;
    let output = Output::new(&args.output)?;
    let capacity = if args.output == Path::new("-") && io::stdout().is_terminal() { 0 } else { 1 << 16 };
    let mut output = BufWriter::with_capacity(capacity, output);
    let mut written = 0;
    let partitions = match copy(args, &config, &wanted, &interrupt, &mut output, &mut written) {
        Ok(Some(partitions)) => partitions,
        Ok(None) => bail!(interrupted(&args.output, written)),
        // A reader such as `head` has closed the pipe, which is not an error.
        Err(error) if error.chain().any(is_broken_pipe) => return Ok(()),
        Err(error) => return Err(error),
    };
    let output = output.into_inner().map_err(IntoInnerError::into_error).with_context(|| unwritten(&args.output))?;
    output.finish(&args.output)?;
    if !args.quiet {
        eprintln!("{}", summary(args, &config, &wanted.topic, written, partitions));
    }
    Ok(())
}

/// Writes the requested records to `output`. Returns the number of partitions of the topic, or `None` if the command was interrupted.
fn copy(
    args: &Args,
    config: &Config,
    wanted: &Wanted,
    interrupt: &Interrupt,
    output: &mut impl Write,
    written: &mut u64,
) -> anyhow::Result<Option<u32>> {
    let stop = || interrupt.received();
    let mut capture = match Capture::start(config, wanted, &stop, &|problem| eprintln!("{problem}")) {
        Err(kafka::Error::Stopped) => return Ok(None),
        result => result?,
    };
    let total = capture.left();
    // A progress bar would mix with the output if both go to the terminal.
    let shows = !args.quiet && io::stderr().is_terminal() && !io::stdout().is_terminal();
    let progress = if shows { ProgressBar::new(total).with_style(style()) } else { ProgressBar::hidden() };
    let report = |problem: &str| progress.suspend(|| eprintln!("{problem}"));
    let limit = args.limit.unwrap_or(u64::MAX);
    let mut take = |message: &Message<'_>, left| -> anyhow::Result<bool> {
        write(message, &mut *output).with_context(|| unwritten(&args.output))?;
        *written += 1;
        progress.set_position(total - left);
        Ok(*written < limit)
    };
    let is_whole = capture.read(&stop, &report, &mut take)?;
    progress.finish_and_clear();
    let partitions = capture.partitions();
    if !is_whole && *written < limit {
        return Ok(None);
    }
    output.flush().with_context(|| unwritten(&args.output))?;
    Ok(Some(partitions))
}

pub(super) fn write(message: &Message<'_>, output: impl Write) -> io::Result<()> {
    let headers: Vec<_> = message.all_headers().collect();
    let record = Captured {
        topic: message.topic(),
        partition: message.partition(),
        offset: message.offset(),
        time: message.stamp(),
        key: message.key(),
        value: message.value(),
        headers: &headers,
    };
    record.write(output)
}

fn wanted(args: &Args, config: &Config) -> anyhow::Result<Wanted> {
    // A topic from the command line need not be configured.
    let topic = match &args.topic {
        Some(topic) => topic,
        None => topic::input(config, None)?,
    };
    let now = SystemTime::now();
    let [from, to] = [args.from, args.to].map(|moment| moment.map(|moment| moment.timestamp(now)));
    ensure!(from.zip(to).is_none_or(|(from, to)| from < to), "--from must be before --to");
    Ok(Wanted { topic: topic.to_owned(), partitions: args.partition.clone(), from, to, ..Wanted::default() })
}

pub(super) fn style() -> ProgressStyle {
    let style = ProgressStyle::with_template("{bar:40} {human_pos} of {human_len} offsets, {per_sec}, {eta} left");
    style.unwrap_or_else(|_| ProgressStyle::default_bar())
}

fn summary(args: &Args, config: &Config, topic: &str, written: u64, partitions: u32) -> String {
    let place = if args.output == Path::new("-") { String::new() } else { format!(" to {}", args.output.display()) };
    let what = format!("wrote {} {} of {topic}{place}", HumanCount(written), if written == 1 { "record" } else { "records" });
    let is_input = config.topics.iter().any(|configured| configured.input == topic);
    if !is_input || place.is_empty() {
        return what;
    }
    let choice = if config.only_input().is_none() { format!(" --topic {topic}") } else { String::new() };
    let file = args.config.config.display();
    format!(
        "{what}; to deduplicate them, run: unseen replay -c {file}{choice} --format capture --partitions {partitions} {}",
        args.output.display()
    )
}

fn is_broken_pipe(error: &(dyn std::error::Error + 'static)) -> bool {
    error.downcast_ref::<io::Error>().is_some_and(|error| error.kind() == ErrorKind::BrokenPipe)
}

fn interrupted(path: &Path, written: u64) -> String {
    let what = if path == Path::new("-") { "the output is incomplete" } else { "no file was written" };
    format!(
        "interrupted after {} records, so {what}; run the command again, or capture less with --from, --to, or --limit",
        HumanCount(written)
    )
}

/// The destination of the records. A file gets its final name only when it is complete.
enum Output {
    Stdout(io::Stdout),
    File(NamedTempFile),
}

impl Output {
    fn new(path: &Path) -> anyhow::Result<Self> {
        if path == Path::new("-") {
            return Ok(Self::Stdout(io::stdout()));
        }
        ensure!(path.symlink_metadata().is_err(), exists(path));
        let dir = path.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let name = path.file_name().with_context(|| format!("--output: {} is not a file name", path.display()))?;
        let name = format!("{}.", name.display());
        // Temporary files are private by default. With mode 0666, the umask decides who may read this file, as for any new file.
        let file = tempfile::Builder::new().prefix(&name).suffix(".partial").permissions(Permissions::from_mode(0o666)).tempfile_in(dir);
        file.map(Self::File)
            .with_context(|| format!("--output: cannot create a file in {}; use a directory that this user can write to", dir.display()))
    }

    fn finish(self, path: &Path) -> anyhow::Result<()> {
        let Self::File(file) = self else { return Ok(()) };
        file.as_file().sync_all().with_context(|| unwritten(path))?;
        match file.persist_noclobber(path) {
            Ok(_) => Ok(()),
            Err(error) if error.error.kind() == ErrorKind::AlreadyExists => bail!(exists(path)),
            Err(error) => Err(error.error).with_context(|| unwritten(path)),
        }
    }
}

impl Write for Output {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Stdout(stdout) => stdout.write(bytes),
            Self::File(file) => file.as_file_mut().write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Self::Stdout(stdout) => stdout.flush(),
            Self::File(_) => Ok(()),
        }
    }
}

fn exists(path: &Path) -> String {
    format!("--output: {} already exists; use another name, or move the existing file", path.display())
}

fn unwritten(path: &Path) -> String {
    if path == Path::new("-") {
        return "cannot write to stdout, so the output is incomplete; run the command again".to_owned();
    }
    format!("cannot write {}, so no file was written; if the disk is full, free space, or use another disk", path.display())
}
