//! The documented window, as a simple list of keys. The model shares no code with the implementation.

use std::collections::HashMap;
use unseen::dedup::{Late, Rules};
use unseen::filter::Window;
use unseen::record::Verdict;

#[derive(Clone)]
pub struct Model {
    pub window: Window,
    refresh: bool,
    late: Late,
    pub stream_time: Option<i64>,
    /// The number of keys in the current slice of a window by count, and the number of that slice.
    counted: (u64, i64),
    /// The slice of the last insertion or renewal of each key, or `None` for keys that were inserted before any time was known.
    pub keys: HashMap<u64, Option<i64>>,
    /// The content of the last emitted record with each key.
    contents: HashMap<u64, u64>,
}

impl Model {
    pub fn new(rules: &Rules) -> Self {
        Self {
            window: rules.window,
            refresh: rules.refresh,
            late: rules.late,
            stream_time: None,
            counted: (0, 0),
            keys: HashMap::new(),
            contents: HashMap::new(),
        }
    }

    pub fn slice(&self) -> Option<i64> {
        match self.window {
            Window::Time { slice_ms, .. } => self.stream_time.map(|time| time.div_euclid(slice_ms)),
            Window::Keys { .. } => Some(self.counted.1),
        }
    }

    fn pass(&mut self, time: Option<i64>, max_timestamp: i64) {
        if let Some(time) = time.filter(|&time| time <= max_timestamp && self.stream_time.is_none_or(|now| time > now)) {
            self.stream_time = Some(time);
            let first = self.slice();
            // Keys that were inserted before any time was known belong to the first slice.
            self.keys.values_mut().filter(|slice| slice.is_none()).for_each(|slice| *slice = first);
        }
    }

    pub fn remembers(&self, number: u64) -> bool {
        self.keys.get(&number).is_some_and(|at| match (self.slice(), at) {
            (Some(now), Some(at)) => now - at <= i64::from(self.window.slices()),
            _ => true,
        })
    }

    fn put(&mut self, number: u64) {
        if let Window::Keys { slice_keys, .. } = self.window {
            if self.counted.0 >= slice_keys {
                self.counted = (0, self.counted.1 + 1);
            }
            self.counted.0 += 1;
        }
        self.keys.insert(number, self.slice());
    }

    /// Evaluates a record. `content` is the content of the record with [`Emit::OnChange`](unseen::dedup::Emit::OnChange), otherwise 0.
    pub fn judge(&mut self, number: u64, content: u64, time: Option<i64>, max_timestamp: i64) -> Verdict {
        self.pass(time, max_timestamp);
        if self.remembers(number) && self.contents[&number] == content {
            if self.refresh && self.keys[&number] != self.slice() {
                self.put(number);
            }
            return Verdict::Duplicate;
        }
        let is_late = match (self.window, self.stream_time, time) {
            (Window::Time { slice_ms, slices }, Some(now), Some(time)) => now - time > slice_ms * i64::from(slices),
            _ => false,
        };
        if is_late && self.late != Late::Emit {
            return Verdict::Late;
        }
        self.contents.insert(number, content);
        self.put(number);
        Verdict::Unseen
    }

    pub fn retract(&mut self, number: u64, time: Option<i64>, max_timestamp: i64) -> Verdict {
        self.pass(time, max_timestamp);
        self.keys.remove(&number);
        Verdict::Retracted
    }
}
