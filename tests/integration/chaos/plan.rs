//! What a round does, drawn from a seed: a configuration, and faults over a stream.
//!
//! As text, a plan is a line for the configuration and one for each fault, so that a failing one can be
//! made smaller by striking lines out.

use crate::harness::SplitMix;
use serde::{Deserialize, Serialize};
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
    pub records: usize,
    pub kind: Kind,
    /// Distinct keys that the filter is told to expect; fewer than there are make it chain.
    pub capacity: usize,
    /// Whether some records take their key back.
    pub takes_back: bool,
    /// Whether the window covers all records, or rotates a score of times.
    pub covers: bool,
    /// Worker threads of a process.
    pub threads: u8,
    /// Whether membership outlives a process.
    pub named: bool,
    pub commit_ms: u64,
    pub checkpoint_ms: u64,
    pub session_ms: u64,
    pub transaction_ms: u64,
}

/// What remembers.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub enum Kind {
    Aging,
    Cuckoo,
    Exact,
    Confirmed,
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
    /// While the worker is down, something happens to its state.
    State { harm: Harm, killed: bool },
    /// No file may grow any more, until it may again, or until the worker is killed.
    FullDisk { kib: u64, killed: bool },
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
    /// Whether the broker may be killed.
    pub broker: bool,
}

impl Conditions {
    fn draw(seed: u64, records: usize, random: &mut SplitMix) -> Self {
        let kind = pick(random, &[Kind::Aging, Kind::Aging, Kind::Cuckoo, Kind::Exact, Kind::Confirmed]);
        Self {
            seed,
            records,
            kind,
            capacity: pick(random, &[400, 2_000, 400_000]),
            takes_back: kind != Kind::Aging && random.below(3) == 0,
            covers: random.below(2) == 0,
            threads: pick(random, &[1, 1, 2]),
            named: random.below(3) > 0,
            commit_ms: pick(random, &[20, 50, 100, 200]),
            checkpoint_ms: pick(random, &[100, 300, 1_000, 2_000]),
            session_ms: pick(random, &[2_000, 3_000, 6_000]),
            transaction_ms: pick(random, &[1_000, 2_000]),
        }
    }
}

impl Plan {
    /// The plan of a seed.
    pub fn draw(seed: u64, bounds: Bounds) -> Self {
        let mut random = SplitMix(seed);
        let conditions = Conditions::draw(seed, bounds.records, &mut random);
        let (mut members, mut broker) = (1, bounds.broker);
        let part = bounds.records / (bounds.faults + 1);
        let step = |number| {
            let fault = Fault::draw(&conditions, members, broker, &mut random);
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
        let steps = (0..bounds.faults).map(step).collect();
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

impl Fault {
    fn draw(conditions: &Conditions, members: usize, broker: bool, random: &mut SplitMix) -> Self {
        // Past the transaction's end, past the session's, or neither.
        let ms = pick(random, &[300, conditions.transaction_ms + 1_500, conditions.session_ms + 1_500]);
        let killed = random.below(2) == 0;
        loop {
            return match random.below(26) {
                0..=3 => Self::Kill,
                4..=8 => Self::KillAt(points(random, "kill")),
                9..=10 => Self::FailAt(failures(random)),
                11..=12 => Self::StopAt { points: points(random, "stop"), ms },
                13..=14 => Self::Stop { ms },
                15 => Self::Terminate,
                16..=17 if members < MEMBERS_MAX => Self::Join,
                18..=19 if members > 1 => Self::Leave { killed },
                20 => Self::Roll,
                21 => Self::Twin { killed },
                22 if broker => Self::Broker { worker_too: killed },
                23..=24 => Self::State { harm: Harm::draw(random), killed },
                25 => Self::FullDisk { kib: pick(random, &[1, 16, 64, 256]), killed },
                _ => continue,
            };
        }
    }

    /// Its name in a sum.
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Kill => "kill -9",
            Self::KillAt(_) => "kill at a point",
            Self::FailAt(_) => "failing steps",
            Self::StopAt { .. } => "stop at a point",
            Self::Stop { .. } => "sigstop",
            Self::Terminate => "sigterm",
            Self::Join => "member joins",
            Self::Leave { .. } => "member leaves",
            Self::Roll => "rolling restart",
            Self::Twin { .. } => "twin",
            Self::Broker { .. } => "broker kill -9",
            Self::State { .. } => "state harmed",
            Self::FullDisk { .. } => "full disk",
        }
    }
}

impl Harm {
    fn draw(random: &mut SplitMix) -> Self {
        let file = random.below(64);
        pick(random, &[Self::Deleted, Self::Cut(file), Self::Flipped(file), Self::Removed(file), Self::Page, Self::Tables])
    }
}

/// A fault point where something happens, and what must happen first for it to be passed.
fn points(random: &mut SplitMix, action: &str) -> String {
    // With a changelog, nothing is read again.
    let is_passed = |point: &str| point != "restore.cold" && !point.starts_with("warm_up.");
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
        _ if point.starts_with("settle.") => pick(random, &["commit.flushed:2:error,", "commit.committed:2:error,"]),
        _ => "",
    };
    format!("{first}{point}:{count}:{action}")
}

/// Several steps that fail.
fn failures(random: &mut SplitMix) -> String {
    let steps = [
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

fn pick<T: Copy>(random: &mut SplitMix, choices: &[T]) -> T {
    choices[random.below(choices.len())]
}
