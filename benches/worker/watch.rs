//! A run as seen from outside: how far it had come when, and what processor time that had taken.

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
    at: Duration,
    count: u64,
    worked: Duration,
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
}

/// Watches a process until it is complete and has been still for a second.
pub fn watch(process: &mut Process, mut progress: impl FnMut() -> Progress) -> Samples {
    let mut samples: Vec<Sample> = Vec::new();
    let mut grown = Instant::now();
    loop {
        process.must_live();
        let Progress { count, complete } = progress();
        if samples.last().is_none_or(|last| count > last.count) {
            samples.push(Sample { at: process.started.elapsed(), count, worked: process.worked() });
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
    /// How it went between these two shares of all, if `records` were read for all of it.
    pub fn between(&self, from: f64, to: f64, records: usize) -> Pace {
        let all = self.0.last().map_or(0, |last| last.count) as f64;
        let at = |share: f64| *self.0.iter().find(|sample| sample.count > 0 && sample.count as f64 >= all * share).expect("something came");
        let (from, to) = (at(from), at(to));
        let records = (to.count - from.count) as f64 / all * records as f64;
        let (took, worked) = ((to.at - from.at).as_secs_f64(), (to.worked - from.worked).as_secs_f64());
        assert!(took > 0.0, "it was over before it could be watched: give it more records");
        Pace { rate: records / took, cpu: worked * 1e6 / records }
    }
}
