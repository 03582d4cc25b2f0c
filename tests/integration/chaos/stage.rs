//! Carries out a plan: feeds the stream, and manages the members.
//!
//! A worker that exits is restarted if the plan expected the exit, or gave the worker a reason to exit. Any other exit fails the plan.

use super::options::{Memory, Options, RETRACTS};
use super::plan::{Conditions, MEMBERS_MAX, Plan};
use super::server::Server;
use super::story::Story;
use super::table::{self, Promise};
use super::truth::{self, LIMIT_BYTES, MAX_TIMESTAMP, Written};
use crate::harness::{
    Feed, Group, News, Oracle, OwnBroker, RETRACT, Setup, SplitMix, TestRecord, Worker, by_partition, produce, produce_raw, read_committed,
    topic_with, wait_until,
};
use crate::stream::{LIMIT, PARTITIONS, Stream};
use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::ExitStatus;
use std::time::{Duration, Instant};
use unseen::checkpoint::Store;

/// The rate of the feed in records per second.
const PACE: u32 = 6_000;
/// The number of records that the feed may be ahead of the next fault, so that workers have something to read.
const LEAD: usize = 4_000;
/// The number of records after the last fault.
const LAST: usize = 1_000;

/// The number of records before the group starts.
pub const BEFORE: usize = 500;

/// Reasons for which a worker may exit while another process has its name.
const FENCED: [&str; 3] = [
    "another process that uses transactional id",
    "another process uses transactional id",
    "another process joined the group with the same kafka.instance_id",
];

pub struct Stage<'a> {
    pub conditions: &'a Conditions,
    pub stream: Stream,
    pub broker: Option<&'a mut OwnBroker>,
    /// True once a broker was killed, stopped, or slow.
    pub broker_failed: bool,
    /// The time at which the current fault of one of three brokers ends.
    pub ailment_ends: Option<Instant>,
    /// True if another process has had the name of a member.
    pub twinned: bool,
    pub members: Vec<Member>,
    pub story: &'a mut Story,
    /// The other topic of the space, if there is one.
    pub other: Option<String>,
    /// The topics of dead letters and of duplicates.
    side_outputs: [String; 2],
    /// The current filter configuration.
    pub memory: Memory,
    /// True if partitions were added to the input.
    pub has_more_partitions: bool,
    /// The server alongside the members, if there is a changelog.
    pub server: Option<Server>,
    pub promise: Promise,
    promise_without_delivery: Promise,
    /// The seeds: keys that occur later in the stream, each once and with the same time.
    pub seeds: Vec<TestRecord>,
    group: Group,
    feed: Option<Feed>,
    /// The number of records that the feed may send.
    allowed: usize,
    /// The number of records that were written in addition to the feed.
    beside: usize,
    /// The directory for the files of a failed plan.
    dir: &'a Path,
}

/// A process that is or may become a member of the group.
pub struct Member {
    pub name: &'static str,
    pub worker: Option<Worker>,
    pub lives: usize,
    /// Fault points that are armed for the current process.
    pub armed: String,
    /// The time for which the process stops at such a point.
    pub standstill: Duration,
    /// The time at which the process continues, if it is stopped at such a point.
    resume: Option<Instant>,
}

impl Member {
    /// Returns the process of the member, if it has not exited.
    pub fn alive(&mut self) -> Option<&mut Worker> {
        let worker = self.worker.as_mut()?;
        if worker.runs() { Some(worker) } else { None }
    }
}

/// The stream of a plan, including the records from before the group's start, the other topic of its space, if there is one, and the topics
/// of its dead letters and duplicates.
fn stream(address: &str, conditions: &Conditions, memory: &Memory) -> (Stream, Option<String>, [String; 2]) {
    let options = &conditions.options;
    let hint = format!("chaos-{}", conditions.seed);
    let endless = ("message.timestamp.after.max.ms", "9223372036854775807");
    let limit = LIMIT_BYTES.to_string();
    let output = match () {
        () if options.has("records that the output refuses") => vec![endless, ("cleanup.policy", "compact")],
        () if options.has("records too large for the output") => vec![endless, ("max.message.bytes", &*limit)],
        () => vec![endless],
    };
    let make = |what: &str, properties: &[(&str, &str)]| topic_with(address, &format!("{hint}-{what}"), 4, properties);
    let (input, output) = (make("in", &[endless]), make("out", &output));
    let other = options.has("a space that topics share").then(|| make("other", &[endless]));
    let (session, heartbeat) = (conditions.session_ms, conditions.session_ms / 5);
    let key = format!("{}space = \"news\"", options.key());
    let [dead, duplicates] = ["dead", "duplicates"].map(|what| make(what, &[endless]));
    let lines = options.lines(&dead, &duplicates);
    let lines = format!("{key}\n{}{lines}", memory.lines());
    let setup = Setup::new(address, &hint)
        .properties("\"fetch.wait.max.ms\" = \"20\"\n\"topic.metadata.refresh.interval.ms\" = \"500\"")
        .properties(&format!("\"session.timeout.ms\" = \"{session}\"\n\"heartbeat.interval.ms\" = \"{heartbeat}\""));
    let rule = options.rule(memory, "").map(|rule| format!("{rule}{}", options.lines(&dead, &duplicates)));
    let entries: Vec<_> = rule.iter().chain([&lines]).collect();
    let add = |setup, input: &String| entries.iter().fold(setup, |setup: Setup, lines| setup.topic(input, &output, lines));
    let setup = std::iter::once(&input).chain(&other).fold(setup, add);
    let (records, oracle) = (records(conditions), Oracle::new(Duration::from_secs(1), 1));
    produce(address, &input, &records[..BEFORE]);
    (Stream { broker: address.to_owned(), input, output, records, expected: Vec::new(), oracle, setup }, other, [dead, duplicates])
}

impl<'a> Stage<'a> {
    /// Sets up a stream and the state of all members. Each member has the empty checkpoint of the group's start, as if it had been a member
    /// then. Without that checkpoint, a member would not know what was seen before its window.
    pub fn new(plan: &'a Plan, address: &str, mut broker: Option<&'a mut OwnBroker>, story: &'a mut Story, dir: &'a Path) -> Self {
        // A failed plan may have left a broker down.
        if let Some(broker) = &mut broker {
            broker.wait_until_whole();
        }
        let conditions = &plan.conditions;
        let memory = conditions.options.memory(conditions.capacity);
        let (stream, other, side_outputs) = stream(address, conditions, &memory);
        let group = Group::new(address, stream.setup.group(), &stream.input, PARTITIONS);
        let member = |name| Member { name, worker: None, lives: 0, armed: String::new(), standstill: Duration::ZERO, resume: None };
        let members = ["a", "b", "c"].map(member);
        let members: [Member; MEMBERS_MAX] = members;
        let promise = table::promise(plan.rows());
        let promise_without_delivery = table::promise_without_delivery(plan.rows());
        let mut stage = Self {
            conditions,
            stream,
            broker,
            broker_failed: false,
            ailment_ends: None,
            twinned: false,
            members: members.into(),
            story,
            other,
            side_outputs,
            memory,
            has_more_partitions: false,
            server: None,
            promise,
            promise_without_delivery,
            seeds: Vec::new(),
            group,
            feed: None,
            allowed: 0,
            beside: 0,
            dir,
        };
        stage.story.tell(format_args!("{:?}", stage.promise));
        if conditions.options.has("a seed") {
            stage.seed();
        }
        stage.begin_server();
        stage.start(0, "");
        let first = stage.stream.setup.state_dir("a");
        wait_until("the first checkpoints are written", LIMIT, || {
            let heads = Store::open_to_read(&first).and_then(|store| store.all_metadata()).ok()?;
            (heads.len() == PARTITIONS).then_some(())
        });
        stage.terminate(0);
        for other in ["b", "c"] {
            copy(&first.join("checkpoints"), &stage.stream.setup.state_dir(other).join("checkpoints"));
        }
        stage.start(0, "");
        if let Some(other) = &stage.other {
            // Both topics are read at the same time, so their keys are in no certain order.
            produce(address, other, stage.stream.records.iter().step_by(3));
        }
        let rest = stage.stream.records[BEFORE..].to_vec();
        stage.feed = Some(Feed::start_gated(address, &stage.stream.input, rest, PACE));
        stage
    }

    /// The indexes of the running members.
    pub fn running(&self) -> Vec<usize> {
        (0..self.members.len()).filter(|&at| self.members[at].worker.is_some()).collect()
    }

    // ---- Processes ----

    /// Starts a member with armed fault points.
    pub fn start(&mut self, at: usize, armed: &str) {
        let name = self.members[at].name;
        let worker = self.spawn(name, name, armed);
        let member = &mut self.members[at];
        member.worker = Some(worker);
        armed.clone_into(&mut member.armed);
        member.lives += 1;
        member.resume = None;
        let armed = if armed.is_empty() { String::new() } else { format!(", armed with {armed}") };
        self.story.tell(format_args!("{name} starts, life {}{armed}", self.members[at].lives));
    }

    /// Starts a worker with a name. Its static name is `known_as` if members are static.
    pub fn spawn(&self, name: &str, known_as: &str, armed: &str) -> Worker {
        let Conditions { options, commit_ms, checkpoint_ms, transaction_ms, .. } = self.conditions;
        let mut overrides = options.overrides();
        overrides.extend([
            "log.level=info,unseen=debug".to_owned(),
            format!("worker.commit_interval={commit_ms}ms"),
            format!("worker.checkpoint_interval={checkpoint_ms}ms"),
            format!("worker.transaction_timeout={transaction_ms}ms"),
        ]);
        if options.has("instance_id") {
            overrides.push(format!("kafka.instance_id={}-{known_as}", self.stream.setup.group()));
        }
        let overrides: Vec<_> = overrides.iter().map(String::as_str).collect();
        let config = self.write_config(name);
        let dir = self.stream.setup.dir().join(name);
        let life = fs::read_dir(&dir)
            .map_or(0, |entries| entries.flatten().filter(|entry| entry.file_name().to_string_lossy().starts_with("log-")).count());
        Worker::start_armed(&config, &overrides, armed, &dir.join(format!("log-{life}")))
    }

    /// Writes the current configuration. Returns its path.
    pub fn write_config(&self, name: &str) -> PathBuf {
        let config = self.stream.setup.write_config(name);
        let options = &self.conditions.options;
        let first = options.memory(self.conditions.capacity);
        let mut text = self.stream.setup.config(name).replace(&first.lines(), &self.memory.lines());
        if let (Some(first), Some(now)) = (options.rule(&first, ""), options.rule(&self.memory, "")) {
            text = text.replace(&first, &now);
        }
        fs::write(&config, text).expect("the configuration can be written");
        config
    }

    pub fn kill(&mut self, at: usize) {
        let Some(mut worker) = self.members[at].worker.take() else { return };
        self.story.tell(format_args!("{} is killed", self.members[at].name));
        if worker.runs() {
            worker.kill9();
            self.story.count("kill -9");
        }
    }

    /// Stops a member gracefully, and waits until it has exited.
    pub fn terminate(&mut self, at: usize) {
        let Some(worker) = self.members[at].worker.take() else { return };
        let name = self.members[at].name;
        self.end(worker, name);
    }

    /// Stops a worker gracefully, and waits until it has exited.
    pub fn end(&mut self, mut worker: Worker, name: &str) {
        self.story.tell(format_args!("{name} is told to end"));
        if worker.runs() {
            worker.sigterm();
        }
        self.wait("a worker that was told to ends", |_| {
            // The worker may be stopped at a fault point.
            if worker.runs() {
                worker.sigcont();
            }
            worker.ended().is_some()
        });
        let status = worker.ended().expect("it has ended");
        let why = self.why(status, &worker.log());
        self.story.tell(format_args!("{name} has ended: {}", why.unwrap_or_else(|| panic!("{name}, told to end, ended with {status}"))));
    }

    /// Returns the reason for which a worker may have exited with this status and log, if there is one.
    fn why(&mut self, status: ExitStatus, log: &str) -> Option<&'static str> {
        if log.contains("fault point reached") && matches!(status.signal(), Some(6 | 9)) {
            self.story.count("kill at a point");
            return Some("killed at a fault point");
        }
        if self.twinned && FENCED.iter().any(|sentence| log.contains(sentence)) {
            return Some("fenced by another process of its name");
        }
        if self.broker_failed && log.contains("the workers did not stop within worker.shutdown_timeout") {
            return Some("it could not drain");
        }
        match (status.success(), status.signal()) {
            (true, _) if log.contains("shutting down") => Some("drained"),
            // The worker received SIGTERM before it had installed its handler.
            (_, Some(15)) => Some("terminated"),
            _ => None,
        }
    }

    /// Restarts members that have exited, and continues members that were stopped for long enough.
    fn tend(&mut self) {
        for at in 0..self.members.len() {
            let member = &mut self.members[at];
            let Some(worker) = &mut member.worker else { continue };
            let name = member.name;
            if let Some(status) = worker.ended() {
                let log = worker.log();
                let why = self.why(status, &log).unwrap_or_else(|| panic!("{name} ended by itself with {status}"));
                self.story.tell(format_args!("{name} has ended: {why}"));
                self.start(at, "");
            } else if let Some(resume) = member.resume {
                if Instant::now() >= resume {
                    member.resume = None;
                    member.armed.clear();
                    worker.sigcont();
                    self.story.tell(format_args!("{name} continues"));
                }
            } else if member.armed.ends_with(":stop") && worker.log().contains("action=Stop") {
                member.resume = Some(Instant::now() + member.standstill);
                self.story.tell(format_args!("{name} stands still at its fault point"));
                self.story.count("stop at a point");
            }
        }
    }

    // ---- Waiting ----

    /// Waits for a condition, and manages the members meanwhile.
    pub fn wait(&mut self, what: &str, condition: impl FnMut(&mut Self) -> bool) {
        assert!(self.wait_for(LIMIT, condition), "not within {LIMIT:?}: {what}");
    }

    /// Waits up to a limit. Returns `true` if the condition holds.
    pub fn wait_for(&mut self, limit: Duration, mut condition: impl FnMut(&mut Self) -> bool) -> bool {
        let deadline = Instant::now() + limit;
        loop {
            self.tend();
            self.tend_brokers();
            self.tend_server();
            if condition(self) {
                return true;
            }
            if Instant::now() >= deadline {
                return false;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// The group's committed offsets in the input. `None` if the broker does not respond.
    pub fn group_offsets(&self) -> Option<Vec<i64>> {
        self.group.committed()
    }

    /// The number of records that the group has committed.
    pub fn committed(&self) -> usize {
        let offsets = self.group_offsets().unwrap_or_default();
        offsets.into_iter().map(|offset| usize::try_from(offset).expect("not negative")).sum()
    }

    /// Waits until this number of records is sent and, if requested, committed.
    pub fn reach(&mut self, records: usize, read: bool) {
        self.allow(records);
        self.wait("so many records are sent", |stage| stage.feed().sent() >= records);
        if read {
            self.wait("so many records are committed", |stage| stage.committed() >= records);
        }
    }

    /// Lets the feed continue to the next fault and beyond it. The last records wait until all faults are over, because a server with a
    /// changed configuration does not answer before the workers have written to every partition with that configuration.
    pub fn allow(&mut self, records: usize) {
        let most = (records + LEAD).min(self.conditions.records - LAST).max(records);
        self.allowed = self.allowed.max(most);
        self.feed().allow(self.allowed);
    }

    /// Waits until all allowed records are committed.
    pub fn rest(&mut self) {
        let most = self.allowed.min(self.conditions.records);
        self.wait("what may be sent is sent", |stage| stage.feed().sent() >= most);
        let all = BEFORE + self.feed().sent() + self.beside;
        self.wait("all of it is committed", |stage| stage.committed() >= all);
    }

    /// Writes some records of time 0, which the feed cannot write, with keys that have occurred and keys that will occur.
    pub fn bring_of_time_0(&mut self, near: usize) {
        let some = self.stream.records[near.saturating_sub(1_000)..].iter().step_by(71).take(40);
        let some: Vec<_> = some.map(|record| TestRecord { timestamp: 0, ..record.clone() }).collect();
        for records in by_partition(some, PARTITIONS).iter().filter(|records| !records.is_empty()) {
            // A leader may be down or not elected yet.
            let (broker, input) = (self.stream.broker.clone(), self.stream.input.clone());
            self.wait("the broker takes records of time 0", |_| produce_raw(&broker, &input, records) == 0);
            self.beside += records.len();
        }
    }

    fn feed(&self) -> &Feed {
        self.feed.as_ref().expect("it was started")
    }

    // ---- The end ----

    /// Lets the group read everything, stops the members, and compares the output with the expected one.
    pub fn finish(&mut self) {
        self.story.tell("no more faults");
        self.wait_until_whole();
        self.feed().allow(usize::MAX / 2);
        self.wait("everything is sent", |stage| stage.feed().is_finished());
        self.feed.take().expect("it was started").join();
        self.wait("everything is committed", |stage| stage.group.has_read_all());
        if let Some(other) = self.other.clone() {
            let group = Group::new(&self.stream.broker, self.stream.setup.group(), &other, PARTITIONS);
            self.wait("everything of the other topic is committed", |_| group.has_read_all());
        }
        let inputs = self.inputs();
        if self.conditions.options.has("repartition = true") {
            // The repartition topic does not show when everything is read, because its transaction markers are not read.
            let keys = truth::keys(&self.conditions.options, &self.seeds, &inputs);
            // Each check reads the whole output, so it needs no pause.
            self.wait_for(LIMIT, |stage| truth::lacks_nothing(&keys, &stage.stream.output()));
        }
        for at in self.running() {
            self.terminate(at);
        }
        self.finish_server();
        let output = self.stream.output();
        self.story.tell(format_args!("{} records were emitted", output.iter().map(Vec::len).sum::<usize>()));
        let [dead_letters, duplicates] = self.side_outputs.each_ref().map(|topic| read_committed(&self.stream.broker, topic, PARTITIONS));
        let written = Written { output, duplicates, dead_letters };
        let promises = (self.promise, self.promise_without_delivery);
        truth::check(&self.conditions.options, promises, (&self.seeds, &self.stream.records[..BEFORE]), &inputs, &written);
        self.judge_server(&inputs);
        self.delete_topics();
    }

    /// The records that the group must read, by input and partition.
    fn inputs(&self) -> Vec<Vec<Vec<TestRecord>>> {
        let mut input = read_committed(&self.stream.broker, &self.stream.input, PARTITIONS);
        if self.conditions.options.has("start = \"latest\"") {
            for (partition, records) in input.iter_mut().enumerate() {
                let before = self.stream.records[..BEFORE].iter().filter(|record| usize::try_from(record.partition) == Ok(partition));
                records.drain(..before.count());
            }
        }
        let other = self.other.as_ref().map(|other| read_committed(&self.stream.broker, other, PARTITIONS));
        std::iter::once(input).chain(other).collect()
    }
}

impl Drop for Stage<'_> {
    fn drop(&mut self) {
        self.members.iter_mut().for_each(|member| drop(member.worker.take()));
        drop(self.server.take());
        if std::thread::panicking() || std::env::var_os("UNSEEN_CHAOS_KEEP").is_some() {
            // Replaces the files of an earlier failure, which are only for a person who investigates it.
            let _ = fs::remove_dir_all(self.dir);
            let _ = fs::create_dir_all(self.dir.parent().unwrap_or(self.dir));
            let _ = fs::rename(self.stream.setup.dir(), self.dir);
            self.broker.iter().for_each(|broker| broker.copy_logs(self.dir));
        }
    }
}

/// The records of the stream, some of them unusual.
fn records(conditions: &Conditions) -> Vec<TestRecord> {
    let mut records = News { seed: conditions.seed, count: conditions.records + BEFORE, ..News::default() }.records();
    let mut random = SplitMix(conditions.seed);
    if conditions.options.has("retract") {
        let some = records.iter_mut().filter(|_| random.below(10) == 0);
        some.for_each(|record| record.headers.push((RETRACT.to_owned(), Some(RETRACTS.into()))));
    }
    // Each oversized record costs a separate transaction.
    let rare = if conditions.options.has("records too large for the output") { 1_000 } else { 50 };
    let some = records.iter_mut().filter(|_| random.below(rare) == 0).collect::<Vec<_>>();
    let mut random = SplitMix(conditions.seed);
    for record in some {
        make_odd(&conditions.options, record, &mut random);
    }
    truth::move_times(&conditions.options, &mut records, conditions.seed);
    truth::set_states(&conditions.options, &mut records, conditions.seed);
    truth::mark_passing(&conditions.options, &mut records, conditions.seed);
    truth::mark_rules(&conditions.options, &mut records, conditions.seed);
    truth::encode(&conditions.options, &mut records);
    records
}

fn make_odd(options: &Options, record: &mut TestRecord, random: &mut SplitMix) {
    if options.has("records of time 0, or before it") {
        record.timestamp = -2 - i64::try_from(random.below(100_000_000)).unwrap_or_default();
    } else if options.has("records that are late, from the future, or without a time") {
        // Days late, near the epoch, without a time, or years ahead of any clock.
        record.timestamp = [record.timestamp - 3 * 24 * 3_600_000, 1, -1, MAX_TIMESTAMP + 1_000_000_000_000][random.below(4)];
    } else if options.has("tombstones") {
        record.value = None;
    } else if options.has("records that lack what the key is made of") {
        record.value.iter_mut().for_each(|value| value.truncate(20));
    } else if options.has("records that the output refuses") {
        record.key = None;
    } else if options.has("records too large for the output") {
        let padding: String = (0..30_000).map(|_| char::from(b'a' + u8::try_from(random.below(26)).unwrap_or_default())).collect();
        let text = record.text().trim_end_matches('}').to_owned();
        record.value = Some(format!("{text},\"padding\":\"{padding}\"}}").into_bytes());
    }
}

/// Copies a directory and its files.
pub fn copy(from: &Path, to: &PathBuf) {
    fs::create_dir_all(to).expect("a directory");
    for entry in fs::read_dir(from).expect("a directory") {
        let entry = entry.expect("an entry");
        if entry.path().is_dir() {
            copy(&entry.path(), &to.join(entry.file_name()));
        } else {
            fs::copy(entry.path(), to.join(entry.file_name())).expect("a copy");
        }
    }
}
