//! Promise: whatever step a worker is killed before, in or after, and whichever fails, the same comes out.
//!
//! Each scenario arms fault points (src/fault.rs) one after the other over one stream: the worker dies at
//! one, the next is started with another armed, and what came out at the end is compared with the truth.

use crate::harness::state::damage_page;
use crate::harness::{News, Reader, Worker, broker, committed_offset, topic, wait_until};
use crate::stream::{LIMIT, PARTITIONS, Stream};
use std::collections::BTreeSet;
use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::time::Duration;

/// Records that each life of a worker is given to read.
const PART: usize = 500;
const HOUR: Duration = Duration::from_secs(3600);

const AGING: &str = "filter = { kind = \"aging\", capacity = \"2k\", false_positive_rate = 1e-9 }";
const LARGE_CONFIRMED: &str = "filter = { kind = \"aging\", capacity = \"300M\", false_positive_rate = 1e-3, confirm = true }";
const EXACT: &str = "filter = { kind = \"exact\" }";

/// Points that any life passes which reads some records.
const READING: &[&str] = &[
    "connect.begin:1:kill",
    "connect.ready:1:kill",
    "assign.begin:1:kill",
    "assign.committed:1:kill",
    "restore.begin:1:kill",
    "restore.offsets:1:kill",
    "restore.loaded:3:kill",
    "restore.placed:1:kill",
    "assign.restored:1:kill",
    "assign.assigned:1:kill",
    "transaction.begin:1:kill",
    "transaction.begin:4:kill",
    "transaction.begun:3:kill",
    "transaction.send:40:kill",
    "transaction.sent:1:kill",
    "transaction.sent:60:abort",
    "commit.logged:1:kill",
    "commit.logged:3:kill",
    "commit.begin:1:kill",
    "commit.begin:3:kill",
    "commit.offsets_sent:1:kill",
    "commit.offsets_sent:4:kill",
    "commit.flushed:2:kill",
    "commit.committed:1:kill",
    "commit.committed:3:kill",
    "commit.booked:2:kill",
    "checkpoint.begin:2:kill",
    "checkpoint.write:1:kill",
    "checkpoint.write:3:kill",
    "checkpoint.written:1:kill",
    "checkpoint.written:3:kill",
    "checkpoint.clean:2:kill",
    "checkpoint.trimmed:4:kill",
];

/// Points on the way back from a transaction that failed: what makes it fail comes first.
const FAILING: &[&str] = &[
    "commit.begin:2:error,abort.begin:1:kill",
    "transaction.send:40:error,abort.aborted:1:kill",
    "commit.offsets_sent:2:error,abort.rewound:1:kill",
    "commit.committed:2:error,resolve.begin:1:kill",
    "commit.committed:2:error,resolve.replaced:1:kill",
    "commit.flushed:2:error,resolve.replaced:1:kill",
    "commit.flushed:2:error,resolve.committed:1:kill",
    "commit.committed:2:error,resolve.committed:1:kill",
    "commit.committed:2:error,resolve.resolved:1:kill",
    "commit.offsets_sent:1:error,abort.begin:1:error,resolve.resolved:1:kill",
];

/// Points on the way to an ordered end.
const DRAINING: &[&str] = &["drain.begin:1:kill", "drain.committed:1:kill", "drain.checkpointed:1:kill", "drain.left:1:kill"];

/// Points on the way to giving partitions to another member.
const REVOKED: &[&str] = &[
    "revoke.begin:1:kill",
    "revoke.committed:1:kill",
    "revoke.checkpointed:1:kill",
    "revoke.forgotten:1:kill",
    "revoke.unassigned:1:kill",
];

/// Points passed when partitions are someone else's already.
const LOST: &[&str] = &["lose.begin:1:kill", "lose.forgotten:1:kill", "lose.aborted:1:kill"];

/// Points in reading again what is past a checkpoint: its begin, its middle, its end.
const WARMING_UP: &[&str] = &["warm_up.record:1:kill", "warm_up.record:600:kill", "warm_up.ended:1:kill", "warm_up.ended:4:kill"];

/// Points in a checkpoint that is put together in files: after the first, after the last, and before and after the store
/// takes them in.
const LARGE: &[&str] = &[
    "checkpoint.file:1:kill",
    "checkpoint.file:2:kill",
    "checkpoint.write:2:kill",
    "checkpoint.written:2:kill",
    "checkpoint.trimmed:2:kill",
];

/// Points in a seed, which `seed` kills it at.
pub const SEEDING: &[&str] = &["seed.written:1:kill", "seed.offsets_sent:1:kill", "seed.committed:1:kill"];

/// Points passed without usable state.
const DAMAGED: &[&str] = &["quarantine.moved:1:kill", "quarantine.opened:1:kill"];
const DELETED: &[&str] = &["restore.cold:1:kill", "restore.cold:3:kill"];

/// Points on the way from a changelog to a memory.
const REBUILDING: &[&str] = &[
    "rebuild.begin:1:kill",
    "rebuild.record:1:kill",
    "rebuild.record:40:kill",
    "rebuild.ended:1:kill",
    "rebuild.ended:4:kill",
    "rebuild.taken:1:kill",
    "rebuild.taken:3:kill",
];

/// Steps that may fail, each several times in one life.
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

/// Points at which a transaction is open that the broker gives up while the worker stands still.
const STANDSTILLS: &[&str] =
    &["transaction.sent:30:stop", "commit.begin:2:stop", "commit.offsets_sent:2:stop", "commit.flushed:2:stop", "abort.begin:1:stop"];

#[test]
fn every_point_has_a_scenario() {
    let scenarios = [READING, FAILING, DRAINING, REVOKED, LOST, WARMING_UP, LARGE, DAMAGED, DELETED, REBUILDING, SEEDING].concat();
    let arms = scenarios.iter().flat_map(|arms| arms.split(','));
    let killed_at: BTreeSet<_> = arms.filter(|arm| !arm.ends_with(":error")).map(point).collect();
    assert_eq!(killed_at, unseen::fault::POINTS.iter().copied().collect());
}

/// The point that the last of some arms names.
fn point(arms: &str) -> &str {
    let last = arms.rsplit(',').next().unwrap_or_default();
    last.split(':').next().unwrap_or_default()
}

/// A stream whose records are read bit by bit, and the lives that read it.
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
        Self { stream, produced: 0, overrides: vec!["worker.checkpoint_interval=200ms".to_owned()] }
    }

    /// A membership that outlives a process, so that the next need not wait for the end of its session.
    fn with_instance(mut self) -> Self {
        self.overrides.push(format!("kafka.instance_id={}", self.stream.setup.group()));
        self
    }

    fn start(&self, faults: &str) -> Worker {
        let overrides: Vec<_> = self.overrides.iter().map(String::as_str).collect();
        self.stream.setup.start_armed("a", &overrides, faults)
    }

    /// Gives the next life something to read.
    fn feed(&mut self) {
        self.stream.produce(self.produced..self.produced + PART);
        self.produced += PART;
    }

    /// A life that ends at the last of some armed points, for which the test does something.
    fn dies(&mut self, faults: &str, provoke: impl FnOnce(&Self, &mut Worker)) {
        let mut worker = self.start(faults);
        self.feed();
        provoke(self, &mut worker);
        died_at(worker, faults);
    }

    /// Lives that end so by themselves.
    fn each_dies(&mut self, all: &[&str]) {
        for faults in all {
            self.dies(faults, |_, _| {});
        }
    }

    /// The last life, which reads all that is left.
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
fn kills_while_reading() {
    let mut lives = Lives::new("faults-reading", READING.len(), HOUR / 3, AGING).with_instance();
    lives.each_dies(READING);
    lives.check();
}

#[test]
fn kills_while_reading_into_an_exact_memory() {
    // What differs is what a checkpoint writes.
    let first = READING.iter().position(|faults| faults.starts_with("checkpoint")).expect("there are such");
    let mut lives = Lives::new("faults-exact", READING.len() - first, HOUR / 3, EXACT).with_instance();
    lives.each_dies(&READING[first..]);
    lives.check();
}

#[test]
fn kills_on_the_way_back_from_a_failure() {
    let mut lives = Lives::new("faults-failing", FAILING.len(), HOUR / 3, AGING).with_instance();
    lives.each_dies(FAILING);
    lives.check();
}

/// While transactions are full before their time, there are checkpoints all the same, and not only at the end.
#[test]
fn full_transactions_do_not_keep_checkpoints_off() {
    let mut lives = Lives::new("faults-full", 60, HOUR / 3, AGING).with_instance();
    // So many commits that two checkpoints are due long before half of them, however fast this machine is.
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

#[test]
fn kills_while_draining() {
    let mut lives = Lives::new("faults-draining", DRAINING.len(), HOUR / 3, AGING).with_instance();
    for faults in DRAINING {
        lives.dies(faults, |lives, worker| {
            lives.stream.wait_until_read(lives.produced - PART / 2, worker);
            worker.sigterm();
        });
    }
    lives.check();
}

#[test]
fn kills_while_giving_partitions_back() {
    let mut lives = Lives::new("faults-revoked", REVOKED.len(), 24 * HOUR, AGING);
    for faults in REVOKED {
        let mut other = None;
        lives.dies(faults, |lives, worker| {
            lives.stream.wait_until_read(lives.produced - PART / 2, worker);
            other = Some(lives.stream.setup.start("b"));
        });
        other.expect("it was started").drain();
    }
    lives.check();
}

/// Two members that outlive their processes: what the one was giving up is not left without an owner.
#[test]
fn a_member_killed_while_giving_partitions_back_leaves_none_behind() {
    let mut lives = Lives::new("faults-left", 2, 24 * HOUR, AGING).with_instance();
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
fn kills_after_losing_partitions() {
    let mut lives = Lives::new("faults-lost", LOST.len(), 24 * HOUR, AGING);
    for faults in LOST {
        let mut heir = None;
        lives.dies(faults, |lives, worker| {
            worker.wait_for_log("partitions assigned", LIMIT);
            worker.sigstop();
            let mut other = lives.stream.setup.start("b");
            other.wait_for_log("partitions assigned", LIMIT);
            heir = Some(other);
            worker.sigcont();
        });
        heir.expect("it was started").drain();
    }
    lives.check();
}

#[test]
fn kills_while_warming_up() {
    let mut lives = Lives::new("faults-warming", WARMING_UP.len() + 2, HOUR / 3, AGING).with_instance();
    // But for the first, which is empty, there are no checkpoints: all that was read is read again.
    lives.overrides.extend(["worker.checkpoint_interval=1h".to_owned(), "state.changelog=false".to_owned()]);
    for _ in 0..2 {
        lives.feed();
        let mut worker = lives.start("");
        lives.stream.wait_until_read(lives.produced, &mut worker);
        worker.kill9();
    }
    lives.each_dies(WARMING_UP);
    lives.check();
}

#[test]
fn kills_while_a_large_checkpoint_is_written() {
    // Each key has a page of its own, almost, and there is one checkpoint a partition at the end of each life.
    let mut lives = Lives::new("faults-large", 6 * LARGE.len(), 24 * HOUR, LARGE_CONFIRMED).with_instance();
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

#[test]
fn kills_without_usable_state() {
    let mut lives = Lives::new("faults-state", DAMAGED.len() + DELETED.len() + 1, 24 * HOUR, AGING).with_instance();
    lives.overrides.push("state.changelog=false".to_owned());
    lives.feed();
    let state = lives.stream.setup.state_dir("a");
    let read_all = |lives: &mut Lives| {
        let mut worker = lives.start("");
        lives.stream.wait_until_read(lives.produced, &mut worker);
        worker.drain();
    };
    for faults in DAMAGED {
        read_all(&mut lives);
        damage_page(&state);
        lives.dies(faults, |_, _| {});
    }
    for faults in DELETED {
        read_all(&mut lives);
        fs::remove_dir_all(&state).expect("it can be deleted");
        lives.dies(faults, |_, _| {});
    }
    lives.check();
}

#[test]
fn kills_while_rebuilding() {
    // A window that rotates: what has expired must not come back with the rest.
    let mut lives = Lives::new("faults-rebuild", 2 * REBUILDING.len() + 1, HOUR / 3, AGING).with_instance();
    lives.overrides.push("state.cold_start=fail".to_owned());
    lives.feed();
    for faults in REBUILDING {
        let mut worker = lives.start("");
        lives.stream.wait_until_read(lives.produced, &mut worker);
        worker.kill9();
        fs::remove_dir_all(lives.stream.setup.state_dir("a")).expect("it can be deleted");
        lives.dies(faults, |_, _| {});
    }
    lives.check();
}

#[test]
fn steps_that_fail() {
    for (hint, filter) in [("faults-errors", AGING), ("faults-errors-exact", EXACT)] {
        let mut lives = Lives::new(hint, 4, HOUR / 3, filter).with_instance();
        let mut worker = lives.start(&ERRORS.join(","));
        let reached = |log: &str| log.matches("fault point reached").count();
        let arms = ERRORS.join(",").split(',').count();
        for _ in 0..4 {
            lives.feed();
            lives.stream.wait_until_read(lives.produced, &mut worker);
        }
        wait_until("every step has failed", LIMIT, || (reached(&worker.log()) == arms).then_some(()));
        lives.stream.produce(lives.produced..);
        lives.stream.check(worker);
    }
}

/// Behind a backlog, what was decided before an abort comes again among much that is new. The new waits for it.
#[test]
fn what_was_decided_comes_before_what_is_new() {
    for repeats in 0..3 {
        let mut lives = Lives::new("faults-backlog", 60, 24 * HOUR, AGING).with_instance();
        lives.overrides.push(format!("worker.max_transaction_records={}", 50 << repeats));
        lives.stream.produce(..);
        let faults = ["commit.begin:2:error", "transaction.send:900:error", "commit.offsets_sent:9:error", "commit.begin:15:error"];
        let log = lives.stream.check(lives.start(&faults.join(",")));
        assert_eq!(log.matches("transaction aborted").count(), faults.len(), "{log}");
        assert!(!log.contains("restoring partitions"), "{log}");
    }
}

#[test]
fn standstills_past_the_end_of_the_transaction() {
    let mut lives = Lives::new("faults-stops", STANDSTILLS.len(), HOUR / 3, AGING).with_instance();
    lives.overrides.extend(["worker.transaction_timeout=1s".to_owned(), "kafka.properties.session.timeout.ms=60000".to_owned()]);
    for faults in STANDSTILLS {
        let faults = if point(faults) == "abort.begin" { format!("commit.begin:2:error,{faults}") } else { (*faults).to_owned() };
        lives.feed();
        let mut worker = lives.start(&faults);
        worker.wait_for_log(&format!("fault point reached point={:?}", point(&faults)), LIMIT);
        // The broker gives the transaction up: then nothing of the output is in doubt any more.
        Reader::new(&lives.stream.broker, &lives.stream.output, PARTITIONS).read_to_end(LIMIT);
        worker.sigcont();
        lives.stream.wait_until_read(lives.produced, &mut worker);
        worker.drain();
    }
    lives.check();
}
