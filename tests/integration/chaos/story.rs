//! The log of a plan and counters for the summary.

use std::collections::BTreeMap;
use std::fmt::{self, Write};
use std::time::Instant;

pub struct Story {
    began: Instant,
    text: String,
    counts: Counts,
}

#[derive(Clone, Default)]
pub struct Counts {
    faults: BTreeMap<&'static str, usize>,
    answers: usize,
}

impl Story {
    pub fn new(plan: impl fmt::Display) -> Self {
        Self { began: Instant::now(), text: format!("{plan}\n"), counts: Counts::default() }
    }

    pub fn tell(&mut self, what: impl fmt::Display) {
        writeln!(self.text, "{:8.3} {what}", self.began.elapsed().as_secs_f64()).expect("text grows");
    }

    pub fn count(&mut self, what: &'static str) {
        *self.counts.faults.entry(what).or_default() += 1;
    }

    pub const fn judged(&mut self) {
        self.counts.answers += 1;
    }

    pub const fn counts(&self) -> &Counts {
        &self.counts
    }

    pub fn text(&self) -> &str {
        &self.text
    }
}

impl Counts {
    pub fn add(&mut self, other: &Self) {
        for (what, count) in &other.faults {
            *self.faults.entry(what).or_default() += count;
        }
        self.answers += other.answers;
    }

    pub fn total(&self) -> usize {
        self.faults.values().sum()
    }

    pub fn of(&self, what: &str) -> usize {
        self.faults.get(what).copied().unwrap_or_default()
    }
}

impl fmt::Display for Counts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let counts: Vec<_> = self.faults.iter().map(|(what, count)| format!("{count} {what}")).collect();
        write!(f, "{} faults ({}), {} answers judged", self.total(), counts.join(", "), self.answers)
    }
}
