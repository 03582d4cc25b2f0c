//! The contenders: raw librdkafka calls, the worker, and other systems, each as a command.

use crate::broker::Topic;
use crate::process::Process;
use crate::records::{Ids, Stream};
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

/// Number of threads of Kafka Streams and Flink.
const PEER_THREADS: &str = "2";
const SLICES: usize = 4;
const AGING: &str = "aging";
/// Configuration line of a worker that writes duplicates, including their headers, to another topic.
pub const DUPLICATES: &str = r#"on_duplicate = { topic = "OUTPUT-duplicates" }"#;

/// Allocator of a process that only makes raw librdkafka calls.
#[derive(Clone, Copy)]
pub enum Allocator {
    /// The worker's allocator.
    Jemalloc,
    Glibc,
}

#[derive(Clone)]
pub enum Contender {
    /// Reads records and does nothing else: the upper bound for reading.
    Consume {
        allocator: Allocator,
    },
    /// Reads records and forwards one in `every` in transactions: the upper bound for a worker.
    PassOn {
        allocator: Allocator,
        every: usize,
        commit: Duration,
        /// See [`Unseen::callgrind`].
        callgrind: Option<PathBuf>,
    },
    Unseen(Unseen),
    KafkaStreams {
        commit: Duration,
    },
    Flink {
        commit: Duration,
    },
}

/// Options of a worker that differ between rows.
#[derive(Clone)]
pub struct Unseen {
    pub binary: PathBuf,
    /// Key, in configuration syntax.
    pub key: &'static str,
    pub commit: Duration,
    pub checkpoint: Duration,
    pub workers: usize,
    pub delivery: &'static str,
    pub confirm: bool,
    /// Compression of the output, in librdkafka's terms.
    pub compression: &'static str,
    /// Listen address of the status endpoint, or `off`.
    pub http: String,
    /// Prefix of callgrind's output files, one file per thread. `None` if the worker does not run under callgrind.
    pub callgrind: Option<PathBuf>,
    /// Additional configuration lines of the topic, with INPUT and OUTPUT as placeholders for topic names.
    pub lines: &'static str,
    pub kind: &'static str,
    /// Capacity of the filter, if `kind` is `aging`. If `None`, the filter is sized for all ids of the stream.
    pub capacity: Option<usize>,
}

impl Unseen {
    pub fn new(binary: PathBuf, commit: Duration) -> Self {
        Self {
            binary,
            key: r#"{ field = "/id" }"#,
            commit,
            checkpoint: Duration::from_secs(10),
            workers: 1,
            delivery: "exactly_once",
            confirm: false,
            compression: "lz4",
            http: "off".to_owned(),
            callgrind: None,
            lines: "",
            kind: AGING,
            capacity: None,
        }
    }

    fn configuration(&self, job: &Job) -> String {
        let Self { key, commit, checkpoint, workers, delivery, confirm, compression, http, lines, kind, .. } = self;
        let stream = job.topic.stream;
        // With random ids, the records' timestamps span the window, so each slice gets its share of the ids. With consecutive ids, all ids
        // may be in one slice, so each slice must be sized for all ids.
        let slices = if stream.ids == Ids::Random { 1 } else { SLICES };
        let capacity = self.capacity.unwrap_or(slices * stream.distinct());
        // The worker is about fifty times slower under callgrind, so it needs longer timeouts.
        let (timeout, session) = if self.callgrind.is_some() { ("60s", r#", "session.timeout.ms" = "60000""#) } else { ("10s", "") };
        let filter = format!(", capacity = {capacity}, false_positive_rate = 1e-4, confirm = {confirm}");
        format!(
            r#"
            [kafka]
            properties = {{ "compression.type" = "{compression}"{session} }}
            bootstrap_servers = "{broker}"
            group_id = "{group}"
            [worker]
            workers = {workers}
            delivery = "{delivery}"
            commit_interval = "{commit:?}"
            checkpoint_interval = "{checkpoint:?}"
            transaction_timeout = "{timeout}"
            [state]
            dir = "{state}"
            [http]
            listen = "{http}"
            [log]
            format = "json"
            [[topics]]
            input = "{input}"
            output = "{output}"
            space = "seen"
            key = [{key}]
            window = "{hours}h"
            filter = {{ kind = "{kind}", slices = {SLICES}{filter} }}
            {lines}
            "#,
            filter = if kind == &AGING { filter } else { String::new() },
            lines = lines.replace("INPUT", &job.topic.name).replace("OUTPUT", &job.output()),
            hours = stream.hours(),
            broker = job.broker,
            group = job.name,
            state = job.state().display(),
            input = job.topic.name,
            output = job.output(),
        )
    }
}

pub struct Job<'a> {
    pub broker: &'a str,
    pub topic: &'a Topic,
    /// The consumer group, and the prefix of the names of all topics that the contender creates.
    pub name: String,
    pub dir: PathBuf,
}

impl Job<'_> {
    pub fn output(&self) -> String {
        format!("{}-out", self.name)
    }

    /// The topic for duplicates, `OUTPUT-duplicates` in [`Unseen::lines`].
    pub fn duplicates(&self) -> String {
        format!("{}-duplicates", self.output())
    }

    pub fn state(&self) -> PathBuf {
        self.dir.join("state")
    }
}

impl Contender {
    /// Starts the contender. If it has no output, also returns a counter of the records it has read.
    pub fn start(&self, job: &Job) -> (Process, Option<Arc<AtomicU64>>) {
        let log = job.dir.join("log");
        let mut command = self.command(job);
        match self {
            Self::Consume { .. } => {
                let (process, read) = Process::start_counting(&mut command, &log);
                (process, Some(read))
            }
            _ => (Process::start(&mut command, &log), None),
        }
    }

    fn command(&self, job: &Job) -> Command {
        match self {
            Self::Consume { allocator } => raw(*allocator, job),
            Self::PassOn { allocator, every, commit, callgrind } => {
                let mut command = raw(*allocator, job);
                command.args(["--output", &job.output(), "--every", &every.to_string(), "--commit-ms", &commit.as_millis().to_string()]);
                under(callgrind.as_deref(), command)
            }
            Self::Unseen(unseen) => {
                let file = job.dir.join("unseen.toml");
                std::fs::write(&file, unseen.configuration(job)).expect("a configuration");
                let mut command = Command::new(&unseen.binary);
                command.args(["run", "-c"]).arg(file);
                under(unseen.callgrind.as_deref(), command)
            }
            Self::KafkaStreams { commit } => peer("kafka-streams", job, *commit),
            Self::Flink { commit } => peer("flink", job, *commit),
        }
    }

    /// True for Kafka Streams and Flink. They run on a JVM, which needs time to warm up.
    pub fn is_peer(&self) -> bool {
        matches!(self, Self::KafkaStreams { .. } | Self::Flink { .. })
    }

    /// True for a worker that writes duplicates to [`Job::duplicates`].
    pub fn writes_duplicates(&self) -> bool {
        matches!(self, Self::Unseen(Unseen { lines: DUPLICATES, .. }))
    }

    pub fn outputs(&self, stream: &Stream) -> RangeInclusive<usize> {
        let ids = stream.distinct();
        match self {
            Self::Consume { .. } => 0..=0,
            Self::PassOn { every, .. } => stream.records.div_ceil(*every)..=stream.records.div_ceil(*every),
            // Up to 1 in 5,000 ids (twice the configured false-positive rate) plus ten may be missing.
            Self::Unseen(Unseen { confirm: false, kind: AGING, .. }) => ids.saturating_sub(ids / 5000 + 10)..=ids,
            _ => ids..=ids,
        }
    }
}

/// Runs the command under callgrind if `callgrind` is set.
fn under(callgrind: Option<&Path>, command: Command) -> Command {
    let Some(counts) = callgrind else { return command };
    let mut wrapped = Command::new("valgrind");
    wrapped.args(["--tool=callgrind", "--separate-threads=yes", &format!("--callgrind-out-file={}", counts.display())]);
    wrapped.arg(command.get_program()).args(command.get_args());
    wrapped
}

fn raw(allocator: Allocator, job: &Job) -> Command {
    let mut command = match allocator {
        Allocator::Jemalloc => {
            let mut command = Command::new(std::env::current_exe().expect("a name"));
            command.arg("raw");
            command
        }
        Allocator::Glibc => Command::new(std::env::var_os("UNSEEN_BENCH_GLIBC").expect("scripts/bench builds the binary with glibc")),
    };
    command.args(["--broker", job.broker, "--topic", &job.topic.name, "--group", &job.name]);
    command.args(["--partitions", &job.topic.stream.partitions.to_string()]);
    command
}

/// Returns the build directory of Kafka Streams and Flink. `None` if scripts/bench could not build them.
pub fn peers() -> Option<PathBuf> {
    std::env::var_os("UNSEEN_BENCH_PEERS").map(PathBuf::from)
}

fn peer(name: &str, job: &Job, commit: Duration) -> Command {
    let built = peers().expect("scripts/bench builds the peers").join(name);
    let mut command = Command::new("java");
    command.args(["-Xmx1g", "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn"]);
    command.args(["--add-opens=java.base/java.util=ALL-UNNAMED", "--add-opens=java.base/java.lang=ALL-UNNAMED"]);
    command.arg("-cp").arg(format!("{0}/classes:{0}/libs/*", built.display())).arg("Dedup");
    command.args([job.broker, &job.topic.name, &job.output(), &job.name]).arg(&job.dir);
    command.args([&commit.as_millis().to_string(), PEER_THREADS, &job.topic.stream.hours().to_string()]);
    command
}
