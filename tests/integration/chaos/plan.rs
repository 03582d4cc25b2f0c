//! What a round does, drawn from a seed: a configuration, and faults over a stream.
//!
//! As text, a plan is a line for the configuration and one for each fault, so that a failing one can be
//! made smaller by striking lines out.

use super::options::{Change, EVENT_TIMES, Options};
use super::server::Own;
use crate::harness::SplitMix;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::fmt;

/// Most members of the group.
pub const MEMBERS_MAX: usize = 3;

/// A round.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    pub conditions: Conditions,
    pub steps: Vec<Step>,
}

/// The configuration of a round.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Conditions {
    pub seed: u64,
    /// Brokers of the plan's own; 0 for the shared broker.
    pub brokers: usize,
    pub records: usize,
    pub options: Options,
    /// What remembers the keys of the server beside the workers.
    pub server: Own,
    /// Distinct keys that the filter is told to expect; fewer than there are make it chain.
    pub capacity: usize,
    pub commit_ms: u64,
    pub checkpoint_ms: u64,
    pub session_ms: u64,
    pub transaction_ms: u64,
}

/// A fault, and when it is due.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Step {
    /// Records that were sent by then.
    pub at: usize,
    /// Whether they are to be read and committed by then, too.
    pub read: bool,
    /// And how much later: somewhere in a transaction.
    pub delay_ms: u64,
    /// Which of the members that run.
    pub who: usize,
    pub fault: Fault,
}

/// What is done to a worker, its state or its broker.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Fault {
    /// SIGKILL.
    Kill,
    /// It is started again with these fault points armed, that kill it.
    KillAt(String),
    /// The same, but steps fail.
    FailAt(String),
    /// The same, but it stands still for so long.
    StopAt { points: String, ms: u64 },
    /// SIGSTOP, and SIGCONT so much later.
    Stop { ms: u64 },
    /// SIGTERM; it drains, and is started again.
    Terminate,
    /// Another process joins the group.
    Join,
    /// One of several leaves for good, with or without a word.
    Leave { killed: bool },
    /// One after the other is terminated and started again.
    Roll,
    /// Another process runs under the same names, with a copy of the state.
    Twin { killed: bool },
    /// The broker is killed and comes back; with it a worker, if so.
    Broker { worker_too: bool },
    /// One of three brokers has a fault for some time, while the plan continues. A worker may be killed with it.
    OneBroker { ailment: Ailment, number: usize, ms: u64, worker_too: bool },
    /// All leaders move to other brokers, and with them the coordinators.
    MoveLeaders,
    /// Brokers are restarted one after the other.
    RollBrokers,
    /// While the worker is down, something happens to its state.
    State { harm: Harm, killed: bool },
    /// No file may grow any more, until it may again, or until the worker is killed.
    FullDisk { kib: u64, killed: bool },
    /// All members end, and start with another configuration.
    Change(Change),
    /// The input gets more partitions.
    AddPartitions,
    /// All members end, and the group's offsets are deleted.
    LoseOffsets,
    /// All members end, and the group's offset of a partition is past the end of its log, as if that had become shorter.
    ShortLog { partition: i32 },
    /// Something ails the server for so long, while the plan goes on.
    Server { trouble: Trouble, ms: u64 },
}

/// What may ail the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Trouble {
    /// SIGKILL; it is started again at the end.
    Killed,
    /// SIGSTOP, and SIGCONT at the end.
    Stopped,
    /// The brokers cannot be reached.
    CutOff,
}

/// A fault of one of three brokers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Ailment {
    /// SIGKILL; restarted at the end.
    Killed,
    /// SIGSTOP; SIGCONT at the end.
    Paused,
    /// Stopped for nine tenths of the time.
    Slow,
}

/// What may happen to state. A file is named by a number that is taken modulo their count.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub enum Harm {
    Deleted,
    Cut(usize),
    Flipped(usize),
    Removed(usize),
    Page,
    Tables,
}

/// How large plans are to be.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    pub records: usize,
    pub faults: usize,
    /// Brokers of the plan's own, which may be killed; 0 for the shared broker, which may not.
    pub brokers: usize,
}

impl Conditions {
    fn draw(seed: u64, bounds: Bounds, random: &mut SplitMix) -> Self {
        Self {
            seed,
            brokers: bounds.brokers,
            records: bounds.records,
            options: Options::of_seed(seed),
            capacity: pick(random, &[400, 2_000, 400_000]),
            commit_ms: pick(random, &[20, 50, 100, 200]),
            checkpoint_ms: pick(random, &[100, 300, 1_000, 2_000]),
            session_ms: pick(random, &[2_000, 3_000, 6_000]),
            // Replication makes transactions slower.
            transaction_ms: pick(random, &[1_000, 2_000]) * if bounds.brokers > 1 { 2 } else { 1 },
            server: pick(&mut SplitMix(!seed), &[Own::Worker, Own::Aging, Own::Cuckoo]),
        }
    }
}

impl Plan {
    /// The plan of a seed.
    pub fn draw(seed: u64, bounds: Bounds) -> Self {
        let mut random = SplitMix(seed);
        let conditions = Conditions::draw(seed, bounds, &mut random);
        let (mut members, mut broker) = (1, bounds.brokers == 1);
        let part = bounds.records / (bounds.faults + 1);
        let mut had = BTreeSet::new();
        // After a fault that weakens the promise, all others are held against less.
        let keeps_little = random.below(2) == 0;
        let step = |number| {
            let mut fault = Fault::draw(&conditions, members, broker, &mut random);
            for _ in 0..8 {
                // The rare ones are as welcome as the frequent.
                let is_welcome = !had.contains(fault.name()) && (keeps_little || !fault.weakens(&conditions.options));
                if is_welcome {
                    break;
                }
                fault = Fault::draw(&conditions, members, broker, &mut random);
            }
            had.insert(fault.name());
            match fault {
                Fault::Join => members += 1,
                Fault::Leave { .. } => members -= 1,
                // Once is enough: it takes as long as several others.
                Fault::Broker { .. } => broker = false,
                _ => {}
            }
            Step {
                at: part * number + random.below(part),
                read: random.below(2) == 0,
                delay_ms: random.next() % conditions.commit_ms,
                who: random.below(MEMBERS_MAX),
                fault,
            }
        };
        let mut steps: Vec<_> = (0..bounds.faults).map(step).collect();
        if conditions.options.has("state.changelog = true") {
            steps.extend((0..bounds.faults / 2).map(|_| Step::of_server(bounds, &mut random)));
        }
        if bounds.brokers > 1 {
            steps.extend(Step::of_brokers(bounds, &mut random));
        }
        steps.sort_by_key(|step| step.at);
        Self { conditions, steps }
    }

    /// A plan from its text.
    pub fn parse(text: &str) -> Result<Self, serde_json::Error> {
        let mut lines = text.lines().filter(|line| !line.trim().is_empty() && !line.starts_with('#'));
        let conditions = serde_json::from_str(lines.next().unwrap_or_default())?;
        Ok(Self { conditions, steps: lines.map(serde_json::from_str).collect::<Result<_, _>>()? })
    }
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", serde_json::to_string(&self.conditions).expect("it is plain"))?;
        self.steps.iter().try_for_each(|step| writeln!(f, "{}", serde_json::to_string(step).expect("it is plain")))
    }
}

impl Step {
    fn of_server(bounds: Bounds, random: &mut SplitMix) -> Self {
        // Only a broker of our own has another way to it.
        let troubles = [Trouble::Killed, Trouble::Stopped, Trouble::CutOff];
        let trouble = pick(random, &troubles[..if bounds.brokers > 0 { 3 } else { 2 }]);
        let fault = Fault::Server { trouble, ms: pick(random, &[0, 300, 1_500, 4_000]) };
        Self { at: random.below(bounds.records), read: false, delay_ms: 0, who: 0, fault }
    }

    /// Different faults of a cluster, half as many as of workers.
    fn of_brokers(bounds: Bounds, random: &mut SplitMix) -> Vec<Self> {
        let mut had = BTreeSet::new();
        let mut steps = Vec::new();
        while steps.len() < bounds.faults.div_ceil(2) {
            // Restarted at once, out for less than the session of 4 s, and out for longer.
            let ms = pick(random, &[0, 2_000, 8_000]);
            let (number, worker_too) = (random.below(bounds.brokers), random.below(2) == 0);
            let ail = |ailment, ms| Fault::OneBroker { ailment, number, ms, worker_too };
            let faults = [
                ail(Ailment::Killed, ms),
                ail(Ailment::Paused, ms.max(1_000)),
                ail(Ailment::Slow, 5_000),
                Fault::MoveLeaders,
                Fault::RollBrokers,
            ];
            let fault = pick(random, &[0, 0, 1, 1, 2, 3, 4]);
            if had.insert(fault) {
                let at = random.below(bounds.records);
                steps.push(Self { at, read: false, delay_ms: random.next() % 200, who: number, fault: faults[fault].clone() });
            }
        }
        steps
    }
}

impl Fault {
    fn draw(conditions: &Conditions, members: usize, broker: bool, random: &mut SplitMix) -> Self {
        // Past the transaction's end, past the session's, or neither.
        let ms = pick(random, &[300, conditions.transaction_ms + 1_500, conditions.session_ms + 1_500]);
        let killed = random.below(2) == 0;
        let has = |choice| conditions.options.has(choice);
        // What is not exact any more must be told by the keys alone.
        let is_spared = has("state.changelog = true") || conditions.options.is_judged_by_keys() && !has("cold_start = \"fail\"");
        let may_change = |change| match change {
            Change::Size => !has("kind = \"stable\""),
            // Renewals are not all in the changelog.
            Change::Kind => has("state.changelog = true") && has("refresh = false") && !has("kind = \"stable\""),
            Change::Stable => has("state.changelog = true") && conditions.options.is_judged_by_keys(),
            Change::Slices | Change::Window | Change::Time | Change::When => has("state.changelog = true") && !conditions.options.rotates(),
        };
        loop {
            let change = pick(random, &[Change::Kind, Change::Kind, Change::Stable, Change::Size, Change::Slices, Change::Window]);
            let change = if change == Change::Slices && killed && has(EVENT_TIMES) { Change::Time } else { change };
            return match random.below(32) {
                0..=3 => Self::Kill,
                4..=8 => Self::KillAt(points(conditions, random, "kill")),
                9..=10 => Self::FailAt(failures(random)),
                11..=12 => Self::StopAt { points: points(conditions, random, "stop"), ms },
                13..=14 => Self::Stop { ms },
                15 => Self::Terminate,
                16..=17 if members < MEMBERS_MAX => Self::Join,
                18..=19 if members > 1 => Self::Leave { killed },
                20 => Self::Roll,
                21 => Self::Twin { killed },
                22 if broker => Self::Broker { worker_too: killed },
                23..=24 if is_spared => Self::State { harm: Harm::draw(random), killed },
                26 | 29..=30 if may_change(change) => Self::Change(change),
                31 => Self::ShortLog { partition: pick(random, &[0, 1, 2, 3]) },
                27 if conditions.options.is_judged_by_keys() => Self::AddPartitions,
                28 if is_spared => Self::LoseOffsets,
                25 => Self::FullDisk { kib: pick(random, &[1, 16, 64, 256]), killed },
                _ => continue,
            };
        }
    }

    /// Whether less is promised after it.
    fn weakens(&self, options: &Options) -> bool {
        let has = |choice| options.has(choice);
        match self {
            Self::Change(Change::Stable) => true,
            Self::State { .. } => has("state.changelog = false"),
            Self::LoseOffsets => has("state.changelog = false") || has("repartition = true"),
            Self::AddPartitions => has("repartition = false"),
            _ => false,
        }
    }

    /// True if an operator changes topics or offsets. Nobody does so while a broker is out.
    pub const fn is_of_operator(&self) -> bool {
        matches!(self, Self::AddPartitions | Self::LoseOffsets | Self::ShortLog { .. })
    }

    /// Its name in a sum.
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Kill => "kill -9",
            Self::KillAt(_) => "a kill at a given point of the code",
            Self::FailAt(_) => "steps of a transaction or a checkpoint fail",
            Self::StopAt { .. } => "a process stands still at a given point of the code",
            Self::Stop { .. } => "a process stands still",
            Self::Terminate => "a process is told to stop",
            Self::Join => "a process joins the group",
            Self::Leave { .. } => "a process leaves the group",
            Self::Roll => "a rolling restart",
            Self::Twin { .. } => "two processes of one name",
            Self::Broker { .. } => "the only broker is killed",
            Self::OneBroker { ailment: Ailment::Killed, .. } => "one of three brokers is killed",
            Self::OneBroker { ailment: Ailment::Paused, .. } => "one of three brokers stands still",
            Self::OneBroker { ailment: Ailment::Slow, .. } => "one of three brokers is slow",
            Self::MoveLeaders => "all leaders and coordinators move",
            Self::RollBrokers => "a rolling restart of three brokers",
            Self::State { .. } => "the state directory is lost or harmed",
            Self::FullDisk { .. } => "the disk is full",
            Self::Change(Change::Kind) => "another kind of filter",
            Self::Change(Change::Stable) => "a change to or from stable",
            Self::Change(Change::Size) => "another capacity and rate",
            Self::Change(Change::Slices) => "other slices",
            Self::Change(Change::Window) => "a longer or shorter window, where both cover all",
            Self::Change(Change::When) => "another condition",
            Self::Change(Change::Time) => "event times instead of Kafka's timestamps, or the reverse, where the window covers all",
            Self::AddPartitions => "partitions are added",
            Self::LoseOffsets => "the group's offsets are lost",
            Self::ShortLog { .. } => "the log ends before the group's offset",
            Self::Server { trouble: Trouble::Killed, .. } => "a server is killed",
            Self::Server { trouble: Trouble::Stopped, .. } => "a server stands still",
            Self::Server { trouble: Trouble::CutOff, .. } => "a server is cut off from the brokers",
        }
    }
}

impl Plan {
    /// The rows of docs/contributing/promises.md that it meets.
    pub fn rows(&self) -> Vec<&str> {
        let options = &self.conditions.options;
        let faults = self.steps.iter().map(|step| match step.fault {
            Fault::State { .. } if options.has("state.changelog = false") => "the state directory is lost or harmed, without a changelog",
            Fault::LoseOffsets if options.has("repartition = true") => "the group's offsets are lost, with repartition",
            Fault::LoseOffsets if options.has("state.changelog = false") => "the group's offsets are lost, without a changelog",
            Fault::AddPartitions if options.has("repartition = true") => "partitions are added, with repartition",
            _ => step.fault.name(),
        });
        options.names().chain(faults).collect()
    }
}

impl Harm {
    fn draw(random: &mut SplitMix) -> Self {
        let file = random.below(64);
        pick(random, &[Self::Deleted, Self::Cut(file), Self::Flipped(file), Self::Removed(file), Self::Page, Self::Tables])
    }
}

/// A fault point where something happens, and what must happen first for it to be passed.
fn points(conditions: &Conditions, random: &mut SplitMix, action: &str) -> String {
    // With a changelog, nothing is read again; without one, nothing is rebuilt.
    let has_changelog = conditions.options.has("state.changelog = true");
    let is_passed = |point: &str| match point.split('.').next() {
        Some("warm_up") => !has_changelog,
        // State is harmed for these.
        Some("rebuild" | "quarantine") => has_changelog,
        _ => point != "restore.cold",
    };
    let mut point = pick(random, unseen::fault::POINTS);
    while !is_passed(point) {
        point = pick(random, unseen::fault::POINTS);
    }
    let count = match point {
        "transaction.send" | "transaction.sent" => 1 + random.below(1_000),
        "rebuild.record" => 1 + random.below(200),
        "transaction.begin" | "transaction.begun" => 1 + random.below(8),
        _ if point.starts_with("commit.") || point.starts_with("checkpoint.") => 1 + random.below(8),
        _ => 1,
    };
    let first = match point {
        _ if point.starts_with("abort.") => "commit.begin:2:error,",
        _ if point.starts_with("resolve.") => pick(random, &["commit.flushed:2:error,", "commit.committed:2:error,"]),
        _ => "",
    };
    format!("{first}{point}:{count}:{action}")
}

/// Several steps that fail.
fn failures(random: &mut SplitMix) -> String {
    let steps = [
        "connect.begin",
        "transaction.begin",
        "transaction.send",
        "commit.begin",
        "commit.offsets_sent",
        "commit.flushed",
        "commit.committed",
        "checkpoint.write",
        "checkpoint.written",
        "abort.begin",
    ];
    let arms: Vec<_> = (0..2 + random.below(3)).map(|_| format!("{}:{}:error", pick(random, &steps), 1 + random.below(6))).collect();
    arms.join(",")
}

pub fn pick<T: Copy>(random: &mut SplitMix, choices: &[T]) -> T {
    choices[random.below(choices.len())]
}
