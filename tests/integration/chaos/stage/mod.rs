//! The stage of a running plan: feeds the stream, waits until the group has committed records, and checks the output at the end. The module
//! `act` injects the faults.

mod members;
mod stream;

use super::options::Memory;
use super::plan::{Conditions, MEMBERS_MAX, Plan};
use super::server::Server;
use super::story::Story;
use super::table::{self, Promise};
use super::truth::{self, Written};
use crate::harness::{Feed, Group, OwnBroker, TestRecord, by_partition, produce, produce_raw, read_committed, wait_until};
use crate::stream::{LIMIT, PARTITIONS, Stream};
use members::Member;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use stream::stream;
use unseen::checkpoint::Store;

/// The rate of the feed in records per second.
const PACE: u32 = 6_000;
/// The number of records that the feed may send beyond the position of the next fault, so that workers have records to read during the
/// fault.
const LEAD: usize = 4_000;
/// The number of records at the end of the stream that [`LEAD`] does not include (see [`Stage::allow`]).
const LAST: usize = 1_000;

/// The number of records that are produced before the group starts.
pub const BEFORE: usize = 500;

pub struct Stage<'a> {
    pub conditions: &'a Conditions,
    pub stream: Stream,
    pub broker: Option<&'a mut OwnBroker>,
    /// True once a broker has been killed, paused, slowed down, or restarted.
    pub broker_failed: bool,
    /// The end of the current fault of one of three brokers. `None` if no broker has such a fault.
    pub ailment_ends: Option<Instant>,
    /// True once a second process has used the name of a member.
    pub twinned: bool,
    pub members: Vec<Member>,
    pub story: &'a mut Story,
    /// The other topic of the space, if there is one.
    pub other: Option<String>,
    /// The topics of dead letters and of duplicates.
    side_outputs: [String; 2],
    pub memory: Memory,
    pub has_more_partitions: bool,
    pub server: Option<Server>,
    pub promise: Promise,
    promise_without_delivery: Promise,
    /// The records that seed the group: one record for each seeded key. All of them have the start time of the stream.
    pub seeds: Vec<TestRecord>,
    group: Group,
    feed: Option<Feed>,
    allowed: usize,
    /// The number of records in the input that the feed did not send and that were produced after the start of the group.
    beside: usize,
    /// The directory for the files of a failed plan.
    dir: &'a Path,
}

impl<'a> Stage<'a> {
    /// Sets up the stream and starts the first member. All members get a copy of the empty checkpoints from the group's start. Without a
    /// checkpoint and without a changelog, a member would warm up from the records of a single window, and it would not know the keys that
    /// were seen before that window.
    pub fn new(plan: &'a Plan, address: &str, mut broker: Option<&'a mut OwnBroker>, story: &'a mut Story, dir: &'a Path) -> Self {
        // The previous plan may have failed and left a broker down.
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
            // The group reads this topic at the same time as the input, so the order of the records of the two topics is not determined.
            produce(address, other, stage.stream.records.iter().step_by(3));
        }
        let rest = stage.stream.records[BEFORE..].to_vec();
        stage.feed = Some(Feed::start_gated(address, &stage.stream.input, rest, PACE));
        stage
    }

    /// Waits for a condition. Meanwhile, restarts members that have exited, ends faults whose time is over, and queries the server. Panics
    /// after [`LIMIT`].
    pub fn wait(&mut self, what: &str, condition: impl FnMut(&mut Self) -> bool) {
        assert!(self.wait_for(LIMIT, condition), "not within {LIMIT:?}: {what}");
    }

    /// The same as [`Stage::wait`], but returns `false` if the condition does not hold within `limit`.
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

    /// The group's committed offset in each partition of the input. `None` if the broker does not respond.
    pub fn group_offsets(&self) -> Option<Vec<i64>> {
        self.group.committed()
    }

    pub fn committed(&self) -> usize {
        let offsets = self.group_offsets().unwrap_or_default();
        offsets.into_iter().map(|offset| usize::try_from(offset).expect("not negative")).sum()
    }

    /// Waits until `records` records are sent and, with `read`, committed.
    pub fn reach(&mut self, records: usize, read: bool) {
        self.allow(records);
        self.wait("the requested records are sent", |stage| stage.feed().sent() >= records);
        if read {
            self.wait("the requested records are committed", |stage| stage.committed() >= records);
        }
    }

    /// Lets the feed send `records` records and up to [`LEAD`] more. The additional records never include the last [`LAST`] records of the
    /// stream. These records are kept for the end of the plan, because a server with a changed configuration answers only after the workers
    /// have written to every partition with that configuration.
    pub fn allow(&mut self, records: usize) {
        let most = (records + LEAD).min(self.conditions.records - LAST).max(records);
        self.allowed = self.allowed.max(most);
        self.feed().allow(self.allowed);
    }

    /// Waits until all allowed records are committed.
    pub fn rest(&mut self) {
        let most = self.allowed.min(self.conditions.records);
        self.wait("all allowed records are sent", |stage| stage.feed().sent() >= most);
        let all = BEFORE + self.feed().sent() + self.beside;
        self.wait("all sent records are committed", |stage| stage.committed() >= all);
    }

    /// Writes records with timestamp 0. Some of their keys have already occurred in the stream, and others occur later. The feed cannot
    /// write such records, because librdkafka replaces timestamp 0 with the current time.
    pub fn bring_of_time_0(&mut self, near: usize) {
        let some = self.stream.records[near.saturating_sub(1_000)..].iter().step_by(71).take(40);
        let some: Vec<_> = some.map(|record| TestRecord { timestamp: 0, ..record.clone() }).collect();
        for records in by_partition(some, PARTITIONS).iter().filter(|records| !records.is_empty()) {
            // Repeats the request, because a leader may be down or not elected yet.
            let (broker, input) = (self.stream.broker.clone(), self.stream.input.clone());
            self.wait("the broker takes records of time 0", |_| produce_raw(&broker, &input, records) == 0);
            self.beside += records.len();
        }
    }

    fn feed(&self) -> &Feed {
        self.feed.as_ref().expect("it was started")
    }

    /// Lets the group read everything, stops the members, and compares the output with the expected output.
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
            // The committed offsets of the input do not show whether the workers have also read the repartition topic, so this waits for
            // the expected keys in the output.
            let keys = truth::keys(&self.conditions.options, &self.seeds, &inputs);
            // If keys are still missing at the limit, `truth::check` reports one of them.
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

    /// The records that the group must read, by input topic and partition.
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
            // Only a person who investigates a failure needs these files, so they replace the files of an earlier run of the plan.
            let _ = fs::remove_dir_all(self.dir);
            let _ = fs::create_dir_all(self.dir.parent().unwrap_or(self.dir));
            let _ = fs::rename(self.stream.setup.dir(), self.dir);
            self.broker.iter().for_each(|broker| broker.copy_logs(self.dir));
        }
    }
}

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
