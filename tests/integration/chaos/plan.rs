//! A plan, drawn from a seed: a configuration, and faults while a stream is produced.
//!
//! As text, a plan has one line for the configuration and one line for each fault. To reduce a failing plan, delete lines of faults.

use super::options::{Change, EVENT_TIMES, ON_CHANGE, Options};
use super::truth::ServerFilter;
use crate::harness::{SplitMix, pick};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::fmt;

pub const MEMBERS_MAX: usize = 3;

#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    pub conditions: Conditions,
    pub steps: Vec<Step>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Conditions {
    pub seed: u64,
    /// The number of the test's own brokers, which the plan may kill. 0 means the shared broker, which the plan must not kill.
    pub brokers: usize,
    pub records: usize,
    pub options: Options,
    pub server: ServerFilter,
    /// The `capacity` of the filter. In some plans, it is so small that the filter must grow.
    pub capacity: usize,
    pub commit_ms: u64,
    pub checkpoint_ms: u64,
    pub session_ms: u64,
    pub transaction_ms: u64,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Step {
    /// The number of records that the feed must have sent before the fault begins.
    pub at: usize,
    /// True if the group must also have committed `at` records before the fault begins.
    pub read: bool,
    /// An additional delay before the fault, so that the fault can hit any part of a transaction.
    pub delay_ms: u64,
    /// The index of the affected member among the running members, modulo their number.
    pub who: usize,
    pub fault: Fault,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Fault {
    /// SIGKILL, followed by a restart.
    Kill,
    /// Restart with armed fault points that kill the process.
    KillAt(String),
    /// Restart with armed fault points that make their steps fail.
    FailAt(String),
    /// Restart with armed fault points that stop the process for `ms`.
    StopAt { points: String, ms: u64 },
    /// SIGSTOP, and SIGCONT after `ms`.
    Stop { ms: u64 },
    /// SIGTERM and a graceful stop, followed by a restart.
    Terminate,
    /// Another process joins the group.
    Join,
    /// A member is killed or stops gracefully and does not restart.
    Leave { killed: bool },
    /// All members are restarted one by one.
    Roll,
    /// A second process runs with the same name and a copy of the state.
    Twin { killed: bool },
    /// The only broker is killed and restarts. With `worker_too`, a worker is killed, too.
    Broker { worker_too: bool },
    /// One of three brokers has a fault for `ms`, while the plan continues. With `worker_too`, a worker is killed, too.
    OneBroker { ailment: Ailment, number: usize, ms: u64, worker_too: bool },
    /// All leaders and all coordinators move to other brokers.
    MoveLeaders,
    /// The brokers restart one after the other.
    RollBrokers,
    /// A worker is killed or stops gracefully, its state is damaged, and it starts again.
    State { harm: Harm, killed: bool },
    /// The files of a worker cannot grow beyond `kib` KiB until the limit is lifted or the worker is killed.
    FullDisk { kib: u64, killed: bool },
    /// All members stop and start with another configuration.
    Change(Change),
    /// Partitions are added to the inputs.
    AddPartitions,
    /// All members stop, and the group's offsets are deleted.
    LoseOffsets,
    /// All members stop, and the group's offset of a partition is set past the end of its log, as if the log had been truncated.
    ShortLog { partition: i32 },
    /// The server has a fault for `ms`, while the plan continues.
    Server { trouble: Trouble, ms: u64 },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Trouble {
    /// SIGKILL and a restart at the end.
    Killed,
    /// SIGSTOP, and SIGCONT at the end.
    Stopped,
    /// The server cannot reach the brokers.
    CutOff,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Ailment {
    /// SIGKILL and a restart at the end.
    Killed,
    /// SIGSTOP, and SIGCONT at the end.
    Paused,
    /// Stopped for nine tenths of the time.
    Slow,
}

/// Damage to the state. The number selects a file, modulo the number of files.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub enum Harm {
    Deleted,
    Cut(usize),
    Flipped(usize),
    Removed(usize),
    Page,
    Tables,
}

#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    pub records: usize,
    pub faults: usize,
    /// See [`Conditions::brokers`].
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
            // Replication makes transactions slower, so plans on a cluster have longer timeouts.
            transaction_ms: pick(random, &[1_000, 2_000]) * if bounds.brokers > 1 { 2 } else { 1 },
            server: pick(&mut SplitMix(!seed), &[ServerFilter::Worker, ServerFilter::Aging, ServerFilter::Cuckoo]),
        }
    }
}

impl Plan {
    pub fn draw(seed: u64, bounds: Bounds) -> Self {
        let mut random = SplitMix(seed);
        let conditions = Conditions::draw(seed, bounds, &mut random);
        let (mut members, mut broker) = (1, bounds.brokers == 1);
        let part = bounds.records / (bounds.faults + 1);
        let mut had = BTreeSet::new();
        // A fault that weakens the promises weakens the checks of all other faults, too. Half of the plans therefore avoid such faults.
        let keeps_little = random.below(2) == 0;
        let step = |number| {
            let mut fault = Fault::draw(&conditions, members, broker, &mut random);
            for _ in 0..8 {
                // Draws again if the plan already has this kind of fault, to make rare kinds about as likely as frequent kinds. Also draws
                // again if the fault weakens promises that the plan should keep.
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
                // A plan kills its only broker at most once, because this takes as long as several other faults.
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
        // Only the test's own brokers have proxies, which can cut off the server.
        let troubles = [Trouble::Killed, Trouble::Stopped, Trouble::CutOff];
        let trouble = pick(random, &troubles[..if bounds.brokers > 0 { 3 } else { 2 }]);
        let fault = Fault::Server { trouble, ms: pick(random, &[0, 300, 1_500, 4_000]) };
        Self { at: random.below(bounds.records), read: false, delay_ms: 0, who: 0, fault }
    }

    /// Draws distinct broker faults. Their number is half the number of worker faults, rounded up.
    fn of_brokers(bounds: Bounds, random: &mut SplitMix) -> Vec<Self> {
        let mut had = BTreeSet::new();
        let mut steps = Vec::new();
        while steps.len() < bounds.faults.div_ceil(2) {
            // The duration of the fault. A killed broker restarts at once, within its session timeout of 4 s, or after its session has
            // expired.
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
        // A stop is longer than the transaction timeout, longer than the session timeout, or shorter than both.
        let ms = pick(random, &[300, conditions.transaction_ms + 1_500, conditions.session_ms + 1_500]);
        let killed = random.below(2) == 0;
        let has = |choice| conditions.options.has(choice);
        // True if the plan may contain faults that destroy state or offsets. Without a changelog, such a fault can cause duplicates, so the
        // output must be predictable by key. Without a changelog, such a fault would also stop a worker with `cold_start = "fail"`.
        let is_spared = has("state.changelog = true") || conditions.options.is_judged_by_keys() && !has("cold_start = \"fail\"");
        let may_change = |change| match change {
            Change::Size => conditions.options.filter().keeps_window(),
            // A filter of another kind is rebuilt from the changelog, which does not contain every refresh of a key, so such a plan has
            // `refresh = false`.
            Change::Kind => {
                has("state.changelog = true") && has("refresh = false") && conditions.options.filter().keeps_window() && !has(ON_CHANGE)
            }
            Change::Stable => has("state.changelog = true") && conditions.options.is_judged_by_keys(),
            Change::Emit => false,
            Change::Slices | Change::Window | Change::Time | Change::When | Change::Rules => {
                has("state.changelog = true") && !conditions.options.rotates()
            }
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

    /// True if an operator causes this fault by changing topics or offsets. Plans assume that operators do not do this while a broker is
    /// down.
    pub const fn is_of_operator(&self) -> bool {
        matches!(self, Self::AddPartitions | Self::LoseOffsets | Self::ShortLog { .. })
    }

    /// The name of the fault in the summary and, with a few exceptions ([`Plan::rows`]), in docs/contributing/promises.md.
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
            Self::Change(Change::Emit) => "another emit",
            Self::Change(Change::Rules) => "another number of entries",
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
    /// The rows of docs/contributing/promises.md that apply to this plan.
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

/// Draws a fault point and returns it in the format of `UNSEEN_FAULT`. A worker reaches some points only after a failure, so for these
/// points, also makes an earlier step fail.
fn points(conditions: &Conditions, random: &mut SplitMix, action: &str) -> String {
    // A worker must be able to reach the point. In chaos plans, partitions warm up only without a changelog and are rebuilt only with one.
    let has_changelog = conditions.options.has("state.changelog = true");
    let is_passed = |point: &str| match point.split('.').next() {
        Some("warm_up") => !has_changelog,
        // To make the worker reach these points, `arm` damages its state. Without a changelog, the damage can cause duplicates, so only
        // plans with a changelog have these points.
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
