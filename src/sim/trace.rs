//! The trace of a simulation: the last events of a run and a digest to compare two runs.

use super::random::mix;
use std::collections::VecDeque;
use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Duration;

/// The maximum number of events in the rendered trace. The digest covers all events.
const KEPT: usize = 20_000;

#[derive(Clone, Debug)]
pub(super) struct Event {
    pub(super) micros: u64,
    pub(super) thread: usize,
    pub(super) what: &'static str,
    /// If the event has a topic, `numbers[0]` is the partition.
    pub(super) topic: Option<Arc<str>>,
    pub(super) numbers: [i64; 2],
}

#[derive(Debug, Default)]
pub(super) struct Trace {
    events: VecDeque<Event>,
    count: u64,
    digest: u64,
}

impl Trace {
    pub(super) fn push(&mut self, event: Event) {
        let Event { micros, thread, what, ref topic, numbers } = event;
        let words = [micros, thread as u64, what.len() as u64, numbers[0].cast_unsigned(), numbers[1].cast_unsigned()];
        let bytes = what.bytes().chain(topic.iter().flat_map(|topic| topic.bytes()));
        let name = bytes.fold(0_u64, |hash, byte| hash.wrapping_mul(31).wrapping_add(u64::from(byte)));
        self.digest = words.iter().fold(self.digest ^ name, |digest, word| mix(digest.wrapping_add(*word)));
        self.count += 1;
        // Fetches and heartbeats are so frequent that they would displace more useful events.
        if matches!(what, "Fetch" | "Heartbeat") {
            return;
        }
        if self.events.len() == KEPT {
            self.events.pop_front();
        }
        self.events.push_back(event);
    }

    pub(super) const fn digest(&self) -> (u64, u64) {
        (self.count, self.digest)
    }

    pub(super) fn render(&self, lines: usize, thread_name: &dyn Fn(usize) -> String) -> String {
        let mut text = String::new();
        for event in self.events.iter().skip(self.events.len().saturating_sub(lines)) {
            let Event { micros, thread, what, topic, numbers: [a, b] } = event;
            let time = Duration::from_micros(*micros).as_secs_f64() * 1000.0;
            let _ = write!(text, "{time:>12.3} ms  {:<24} {what}", thread_name(*thread));
            let _ = match topic {
                Some(topic) => writeln!(text, " {topic}[{a}] {b}"),
                None => writeln!(text, " {a} {b}"),
            };
        }
        text
    }
}
