//! Promise: the output does not change if a worker is killed or frozen, or if a step of a transaction or a checkpoint fails.
//!
//! tests/simulation/plans kills a simulated worker at every fault point (src/fault.rs) that a simulated worker can reach. This file covers
//! the fault points where a real broker or a real disk may matter. In the scenarios with kills, several workers process one stream, one
//! after the other. Each worker dies at its armed point, and the next worker starts with another point armed. At the end, each test
//! compares the output with the expected output.

use crate::harness::state::damage_page;
use crate::harness::{News, Reader, Worker, broker, committed_offset, topic, wait_until};
use crate::stream::{LIMIT, PARTITIONS, Stream};
use std::os::unix::process::ExitStatusExt;
use std::time::Duration;

/// The number of records that are produced for each worker.
const PART: usize = 500;
const HOUR: Duration = Duration::from_secs(3600);

const AGING: &str = "filter = { kind = \"aging\", capacity = \"2k\", false_positive_rate = 1e-9 }";
const LARGE_CONFIRMED: &str = "filter = { kind = \"aging\", capacity = \"300M\", false_positive_rate = 1e-3, confirm = true }";
const EXACT: &str = "filter = { kind = \"exact\" }";

/// Points in a transaction and in a checkpoint. If a worker reaches a point only after a failed transaction, an earlier fault makes the
/// transaction fail.
const TRANSACTION: &[&str] = &[
    "transaction.begun:3:kill",
    "transaction.send:40:kill",
    "transaction.sent:60:abort",
    "commit.logged:3:kill",
    "commit.begin:3:kill",
    "commit.offsets_sent:4:kill",
    "commit.flushed:2:kill",
    "commit.committed:3:kill",
    "commit.booked:2:kill",
    "checkpoint.write:3:kill",
    "checkpoint.written:3:kill",
    "commit.begin:2:error,abort.begin:1:kill",
    "commit.offsets_sent:2:error,abort.rewound:1:kill",
    "commit.committed:2:error,resolve.begin:1:kill",
    "commit.flushed:2:error,resolve.replaced:1:kill",
    "commit.committed:2:error,resolve.committed:1:kill",
    "commit.offsets_sent:1:error,abort.begin:1:error,resolve.resolved:1:kill",
];

/// Points in a checkpoint that is assembled in files: after each of its three files, and after the store has ingested them.
const LARGE: &[&str] = &["checkpoint.file:1:kill", "checkpoint.file:2:kill", "checkpoint.file:3:kill", "checkpoint.written:2:kill"];

/// Points that a worker reaches only if its state is corrupt.
const DAMAGED: &[&str] = &["quarantine.moved:1:kill", "quarantine.opened:1:kill"];

/// The steps that fail in a single worker. Half of the steps fail twice.
const ERRORS: &[&str] = &[
    "connect.begin:1:error",
    "transaction.begin:2:error",
    "transaction.send:30:error",
    "transaction.send:200:error",
    "commit.begin:3:error",
    "commit.offsets_sent:5:error",
    "commit.flushed:6:error",
    "commit.committed:7:error",
    "commit.begin:9:error,abort.begin:4:error",
    "commit.committed:9:error",
    "checkpoint.write:2:error",
    "checkpoint.write:6:error",
    "checkpoint.written:3:error",
    "checkpoint.written:5:error",
];

/// Points within an open transaction. The broker aborts the transaction while the worker is frozen.
const STANDSTILLS: &[&str] = &["commit.offsets_sent:2:stop", "commit.flushed:2:stop", "abort.begin:1:stop"];

fn point(arms: &str) -> &str {
    let last = arms.rsplit(',').next().unwrap_or_default();
    last.split(':').next().unwrap_or_default()
}

struct Lives {
    stream: Stream,
    produced: usize,
    overrides: Vec<String>,
}

impl Lives {
    fn new(hint: &str, lives: usize, window: Duration, filter: &str) -> Self {
        let records = News { count: (lives + 2) * PART, ..News::default() }.records();
        let output = topic(broker(), &format!("{hint}-out"), 4);
        let stream = Stream::remembered_by(broker(), hint, output, records, window, filter).with(|setup| {
            setup
                .worker("max_transaction_records = 100\ntransaction_timeout = \"2s\"")
                .properties("\"session.timeout.ms\" = \"2000\"\n\"heartbeat.interval.ms\" = \"500\"\n\"fetch.wait.max.ms\" = \"20\"")
        });
        // With static membership, the next process does not have to wait until the previous session expires.
        let instance = format!("kafka.instance_id={}", stream.setup.group());
        Self { stream, produced: 0, overrides: vec!["worker.checkpoint_interval=200ms".to_owned(), instance] }
    }

    fn start(&self, faults: &str) -> Worker {
        let overrides: Vec<_> = self.overrides.iter().map(String::as_str).collect();
        self.stream.setup.start_armed("a", &overrides, faults)
    }

    fn feed(&mut self) {
        self.stream.produce(self.produced..self.produced + PART);
        self.produced += PART;
    }

    /// Runs a worker that dies at the last of the armed points. `provoke` makes the worker reach that point.
    fn dies(&mut self, faults: &str, provoke: impl FnOnce(&Self, &mut Worker)) {
        let mut worker = self.start(faults);
        self.feed();
        provoke(self, &mut worker);
        died_at(worker, faults);
    }

    /// Runs a worker per fault. Each worker reaches its fault point by itself and dies there.
    fn each_dies(&mut self, all: &[&str]) {
        for faults in all {
            self.dies(faults, |_, _| {});
        }
    }

    fn check(mut self) -> String {
        self.stream.produce(self.produced..);
        self.produced = self.stream.records.len();
        self.stream.check(self.start(""))
    }
}

fn died_at(mut worker: Worker, faults: &str) {
    let status = worker.wait(LIMIT);
    let killed = matches!(status.signal(), Some(6 | 9));
    let reached = worker.log().contains(&format!("fault point reached point={:?}", point(faults)));
    assert!(killed && reached, "armed with {faults} the worker ended with {status}");
}

#[test]
fn kills_at_steps_of_transactions_and_checkpoints_do_not_change_the_output() {
    let mut lives = Lives::new("faults-transaction", TRANSACTION.len(), HOUR / 3, EXACT);
    lives.each_dies(TRANSACTION);
    lives.check();
}

/// If transactions fill up before the commit interval ends, the worker still takes checkpoints while it runs, not only when it drains.
#[test]
fn full_transactions_do_not_prevent_checkpoints() {
    let mut lives = Lives::new("faults-full", 60, HOUR / 3, AGING);
    // The number of commits is large enough that two checkpoints are due well before half of the commits, even on a fast machine.
    let overrides = ["worker.commit_interval=1s", "worker.max_transaction_records=100", "worker.checkpoint_interval=100ms"];
    lives.overrides.extend(overrides.map(str::to_owned));
    lives.stream.produce(..);
    lives.produced = lives.stream.records.len();
    died_at(lives.start("checkpoint.clean:8:kill"), "checkpoint.clean:8:kill");
    let committed =
        (0..4).filter_map(|partition| committed_offset(&lives.stream.broker, lives.stream.setup.group(), &lives.stream.input, partition));
    let (committed, all) = (committed.sum::<i64>(), i64::try_from(lives.produced).expect("few enough"));
    assert!(committed < all / 2, "{committed} of {all} were read before the second checkpoint");
    lives.check();
}

/// The first of two static members is killed while its partitions are being revoked. When it has restarted, all partitions must have an
/// owner again.
#[test]
fn member_killed_during_a_revocation_leaves_no_partition_unowned() {
    let mut lives = Lives::new("faults-left", 2, 24 * HOUR, AGING);
    let mut other = None;
    lives.dies("revoke.begin:1:kill", |lives, worker| {
        lives.stream.wait_until_read(lives.produced - PART / 2, worker);
        let name = format!("kafka.instance_id={}-b", lives.stream.setup.group());
        other = Some(lives.stream.setup.start_with("b", &[&name]));
    });
    let mut worker = lives.start("");
    lives.stream.produce(lives.produced..);
    lives.stream.wait_until_read(lives.stream.records.len(), &mut worker);
    other.expect("it was started").drain();
    lives.stream.check(worker);
}

#[test]
fn kills_while_a_large_checkpoint_is_written_do_not_change_the_output() {
    // Nearly every key has its own page, so checkpoints are large. Because of the long interval, a worker writes large checkpoints only
    // when it stops.
    let mut lives = Lives::new("faults-large", 6 * LARGE.len(), 24 * HOUR, LARGE_CONFIRMED);
    lives.overrides.extend(["worker.checkpoint_interval=1h".to_owned(), "state.changelog=false".to_owned()]);
    for faults in LARGE {
        (0..5).for_each(|_| lives.feed());
        lives.dies(faults, |lives, worker| {
            lives.stream.wait_until_read(lives.produced - PART / 2, worker);
            worker.sigterm();
        });
    }
    lives.check();
}

/// The worker finds the corrupt page when it loads the state and then moves the whole store aside.
#[test]
fn kills_while_corrupt_state_is_moved_aside_do_not_change_the_output() {
    let mut lives = Lives::new("faults-state", DAMAGED.len(), 24 * HOUR, AGING);
    lives.overrides.push("state.changelog=false".to_owned());
    lives.feed();
    for faults in DAMAGED {
        let mut worker = lives.start("");
        lives.stream.wait_until_read(lives.produced, &mut worker);
        worker.drain();
        assert!(damage_page(&lives.stream.setup.state_dir("a")), "there is no page");
        lives.dies(faults, |_, _| {});
    }
    lives.check();
}

#[test]
fn failed_steps_do_not_change_the_output() {
    let mut lives = Lives::new("faults-errors", 4, HOUR / 3, AGING);
    let mut worker = lives.start(&ERRORS.join(","));
    for _ in 0..4 {
        lives.feed();
        lives.stream.wait_until_read(lives.produced, &mut worker);
    }
    let arms = ERRORS.join(",").split(',').count();
    let reached = |log: &str| log.matches("fault point reached").count();
    wait_until("every step has failed", LIMIT, || (reached(&worker.log()) == arms).then_some(()));
    lives.stream.produce(lives.produced..);
    lives.stream.check(worker);
}

#[test]
fn workers_frozen_past_the_transaction_timeout_do_not_change_the_output() {
    let mut lives = Lives::new("faults-stops", STANDSTILLS.len(), HOUR / 3, AGING);
    lives.overrides.extend(["worker.transaction_timeout=1s".to_owned(), "kafka.properties.session.timeout.ms=60000".to_owned()]);
    for faults in STANDSTILLS {
        let faults = if point(faults) == "abort.begin" { format!("commit.begin:2:error,{faults}") } else { (*faults).to_owned() };
        lives.feed();
        let mut worker = lives.start(&faults);
        worker.wait_for_log(&format!("fault point reached point={:?}", point(&faults)), LIMIT);
        // Waits until the broker has aborted the open transaction.
        Reader::new(&lives.stream.broker, &lives.stream.output, PARTITIONS).read_to_end(LIMIT);
        worker.sigcont();
        lives.stream.wait_until_read(lives.produced, &mut worker);
        worker.drain();
    }
    lives.check();
}
