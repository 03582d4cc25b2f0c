//! A run as seen from outside: its progress over time and its CPU time.

use crate::machine::Usage;
use crate::process::Process;
use serde::Serialize;
use std::time::{Duration, Instant};

const STEP: Duration = Duration::from_millis(20);
/// Maximum time without progress.
const PATIENCE: Duration = Duration::from_secs(120);

pub struct Progress {
    pub count: u64,
    /// True if the run may be complete: enough output, and nothing in flight.
    pub complete: bool,
}

#[derive(Clone, Copy)]
struct Sample {
    /// Seconds since the start.
    at: f64,
    count: u64,
    /// CPU time in seconds.
    worked: f64,
    machine: Usage,
}

pub struct Samples(Vec<Sample>);

/// Averages between two samples.
#[derive(Clone, Copy, Serialize)]
pub struct Pace {
    /// Records read per second.
    pub rate: f64,
    /// CPU time per record read, in microseconds.
    pub cpu: f64,
    /// Idle share of the machine's CPU time.
    pub idle: f64,
    /// CPU time of all other processes per record read, in microseconds. Almost all of it is the broker's.
    pub others: f64,
}

/// Samples a process until its run is complete and has made no progress for a second.
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
        assert!(grown.elapsed() < PATIENCE, "no progress at {count}:\n{}", process.last_words());
        std::thread::sleep(STEP);
    }
}

impl Samples {
    pub fn all(&self) -> u64 {
        self.0.last().map_or(0, |last| last.count)
    }

    /// Returns the averages between two counts. `records` is the number of records read per counted record.
    pub fn between(&self, from: u64, to: u64, records: f64) -> Pace {
        let at = |count: u64| *self.0.iter().find(|sample| sample.count >= count.max(1)).expect("a sample with this count");
        let (from, to) = (at(from), at(to));
        let records = (to.count - from.count) as f64 * records;
        let (took, worked) = (to.at - from.at, to.worked - from.worked);
        assert!(took > 0.0, "the run ended before it could be measured; use more records");
        let others = to.machine.busy_since(&from.machine) - worked;
        Pace {
            rate: records / took,
            cpu: worked * 1e6 / records,
            idle: to.machine.idle_since(&from.machine),
            others: others * 1e6 / records,
        }
    }
}
