//! The documented window, as a simple list of keys.

use super::super::options::{ON_CHANGE, Options, RULE_SLICES};
use super::records::{
    FIRST_ONLY, MAX_TIMESTAMP, as_written, has_header, id, is_broken, is_of_first_entry, is_refused, passes, state, time,
};
use crate::harness::{RETRACT, TestRecord};
use std::collections::BTreeMap;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Destination {
    Output,
    /// The output, marked as a duplicate.
    Marked,
    Duplicates,
    DeadLetters,
}

/// The documented window of one partition: each key with the slice of its last insertion.
pub(super) struct Model<'o> {
    options: &'o Options,
    /// True for the first of two entries of an input.
    is_first: bool,
    stream_time: Option<i64>,
    /// The number of keys in the current slice of a window by count, and the number of that slice.
    counted: (i64, i64),
    /// Each key with the slice of its last insertion. The slice is `None` if the key was inserted before any time was known.
    pub(super) keys: BTreeMap<Vec<u8>, Option<i64>>,
    /// The value of `/state` in the last emitted record of each key.
    states: BTreeMap<Vec<u8>, Option<Vec<u8>>>,
    emits_changes: bool,
}

impl<'o> Model<'o> {
    /// Creates a model that has seen the partition's seeds.
    pub(super) fn new(options: &'o Options, is_first: bool, seeds: &[TestRecord], partition: usize) -> Self {
        let mut model = Self {
            options,
            is_first,
            stream_time: None,
            counted: (0, 0),
            keys: BTreeMap::new(),
            states: BTreeMap::new(),
            emits_changes: options.has(ON_CHANGE) && !is_first,
        };
        let seeds = seeds.iter().filter(|seed| is_of_first_entry(seed) == is_first);
        for seed in seeds.filter(|seed| usize::try_from(seed.partition) == Ok(partition)) {
            model.pass(Some(seed.timestamp).filter(|_| options.window_keys().is_none()));
            model.put(id(seed));
        }
        model
    }

    fn slices(&self) -> i64 {
        i64::from(if self.is_first { RULE_SLICES } else { self.options.slices() })
    }

    /// The window of this entry as a multiple of the window in the options.
    const fn scale(&self) -> i64 {
        if self.is_first { 2 } else { 1 }
    }

    fn window_ms(&self) -> i64 {
        self.options.window_seconds() * 1_000 * self.scale()
    }

    fn slice(&self) -> Option<i64> {
        let slice_ms = self.window_ms().div_euclid(self.slices());
        match self.options.window_keys() {
            Some(_) => Some(self.counted.1),
            None => self.stream_time.map(|time| time.div_euclid(slice_ms)),
        }
    }

    fn pass(&mut self, time: Option<i64>) {
        if let Some(time) = time.filter(|&time| time <= MAX_TIMESTAMP && self.stream_time.is_none_or(|now| time > now)) {
            self.stream_time = Some(time);
            let first = self.slice();
            self.keys.values_mut().filter(|slice| slice.is_none()).for_each(|slice| *slice = first);
        }
    }

    pub(super) fn remembers(&self, id: &[u8]) -> bool {
        self.keys.get(id).is_some_and(|at| match (self.slice(), at) {
            (Some(now), Some(at)) => now - at <= self.slices(),
            _ => true,
        })
    }

    /// Advances stream time if the record is later. Returns `true` if the key of the record is remembered at the resulting stream time.
    pub(super) fn remembers_when(&mut self, record: &TestRecord) -> bool {
        self.pass(time(record));
        self.remembers(&id(record))
    }

    fn put(&mut self, id: Vec<u8>) {
        if let Some(keys) = self.options.window_keys() {
            let keys = keys * self.scale();
            if self.counted.0 >= (keys + self.slices() - 1) / self.slices() {
                self.counted = (0, self.counted.1 + 1);
            }
            self.counted.0 += 1;
        }
        let slice = self.slice();
        self.keys.insert(id, slice);
    }

    /// Decides where a record goes and updates the model. Returns `None` if the record is dropped.
    pub(super) fn judge(&mut self, record: &TestRecord) -> Option<Destination> {
        if passes(record) {
            return self.written(record, Destination::Output);
        }
        if record.value.is_none() {
            return match () {
                () if self.options.has("on_tombstone = \"emit\"") => self.written(record, Destination::Output),
                () if self.options.has("on_tombstone = \"drop\"") => None,
                () => self.invalid(),
            };
        }
        if is_broken(record) {
            return self.invalid();
        }
        let (id, time) = (id(record), time(record));
        self.pass(time);
        if self.options.has("retract") && record.headers.iter().any(|(name, _)| name == RETRACT) {
            self.keys.remove(&id);
            return None;
        }
        let is_changed = self.emits_changes && self.states.get(&id).is_some_and(|last| *last != state(record));
        if self.remembers(&id) && !is_changed {
            if self.options.has("refresh = true") && self.keys[&id] != self.slice() {
                self.put(id);
            }
            return match () {
                () if self.options.has("on_duplicate = \"mark\"") => self.written(record, Destination::Marked),
                () if self.options.has("on_duplicate = { topic }") => Some(Destination::Duplicates),
                () => None,
            };
        }
        let is_late = match (self.options.window_keys(), self.stream_time, time) {
            (None, Some(now), Some(time)) => now - time > self.window_ms(),
            _ => false,
        };
        if is_late && !self.options.has("late = \"emit\"") {
            return Some(Destination::DeadLetters).filter(|_| self.options.has("late = \"dead_letter\""));
        }
        self.states.insert(id.clone(), state(record));
        self.put(id);
        self.written(record, Destination::Output)
    }

    fn invalid(&self) -> Option<Destination> {
        Some(Destination::DeadLetters).filter(|_| self.options.has("on_invalid = { topic }"))
    }

    /// Returns `to`, or the destination of invalid records if the output rejects the record.
    fn written(&self, record: &TestRecord, to: Destination) -> Option<Destination> {
        if is_refused(self.options, record) { self.invalid() } else { Some(to) }
    }
}

/// The records that an undisturbed run with this input writes to one destination, by partition.
pub(super) fn expected(options: &Options, seeds: &[TestRecord], input: &[Vec<TestRecord>], to: Destination) -> Vec<Vec<TestRecord>> {
    let of_partition = |(partition, records): (usize, &Vec<TestRecord>)| {
        let mut models = [false, true].map(|is_first| Model::new(options, is_first, seeds, partition));
        // After a change of `emit`, the worker evaluates all records again. A second model therefore evaluates all records with
        // `emit = "first"`. It decides about the records that the worker read with that setting.
        let mut other = options.has(ON_CHANGE).then(|| Model { emits_changes: false, ..Model::new(options, false, seeds, partition) });
        let mut judge = |record: &TestRecord| {
            let is_first = is_of_first_entry(record);
            let own = models[usize::from(is_first)].judge(record);
            if is_first {
                return own;
            }
            let other = other.as_mut().map(|other| other.judge(record));
            other.filter(|_| has_header(record, FIRST_ONLY)).unwrap_or(own)
        };
        records.iter().filter(|record| judge(record) == Some(to)).cloned().map(as_written).collect()
    };
    input.iter().enumerate().map(of_partition).collect()
}
