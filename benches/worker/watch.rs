//! A run as seen from outside: how far it had come when, and what processor time that had taken.

use crate::machine::Usage;
use crate::process::Process;
use serde::Serialize;
use std::time::{Duration, Instant};

const STEP: Duration = Duration::from_millis(20);
/// Without anything new for so long, it will not come.
const PATIENCE: Duration = Duration::from_secs(120);

/// How far it has come.
pub struct Progress {
    pub count: u64,
    /// Whether this may be all: enough, and nothing under way.
    pub complete: bool,
}

#[derive(Clone, Copy)]
struct Sample {
    /// Seconds since its start.
    at: f64,
    count: u64,
    /// Seconds of processor time.
    worked: f64,
    machine: Usage,
}

/// What was seen, in order.
pub struct Samples(Vec<Sample>);

/// How it went between two samples.
#[derive(Clone, Copy, Serialize)]
pub struct Pace {
    /// Records read a second.
    pub rate: f64,
    /// Microseconds of processor time a record read.
    pub cpu: f64,
    /// Processor time that nobody took, as a share of the machine's.
    pub idle: f64,
}

/// Watches a process until it is complete and has been still for a second.
pub fn watch(process: &mut Process, mut progress: impl FnMut() -> Progress) -> Samples {
    let mut samples: Vec<Sample> = Vec::new();
    let mut grown = Instant::now();
    loop {
        process.must_live();
        let Progress { count, complete } = progress();
        if samples.last().is_none_or(|last| count > last.count) {
            let (at, worked) = (process.started.elapsed().as_secs_f64(), process.worked().as_secs_f64());
            samples.push(Sample { at, count, worked, machine: Usage::now() });
            grown = Instant::now();
        }
        if complete && grown.elapsed() > Duration::from_secs(1) {
            return Samples(samples);
        }
        assert!(grown.elapsed() < PATIENCE, "stands still at {count}:\n{}", process.last_words());
        std::thread::sleep(STEP);
    }
}

impl Samples {
    /// How much there was in the end.
    pub fn all(&self) -> u64 {
        self.0.last().map_or(0, |last| last.count)
    }

    /// How it went between these two counts, of which each stands for so many records read.
    pub fn between(&self, from: u64, to: u64, records: f64) -> Pace {
        let at = |count: u64| *self.0.iter().find(|sample| sample.count >= count.max(1)).expect("it came as far");
        let (from, to) = (at(from), at(to));
        let records = (to.count - from.count) as f64 * records;
        let (took, worked) = (to.at - from.at, to.worked - from.worked);
        assert!(took > 0.0, "it was over before it could be watched: give it more records");
        Pace { rate: records / took, cpu: worked * 1e6 / records, idle: to.machine.idle_since(&from.machine) }
    }
}
