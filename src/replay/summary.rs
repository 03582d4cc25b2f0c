//! The counts of a replay.

use super::truth::Counts;
use crate::content::Conflicts;
use crate::record::Timestamp;
use crate::values::{self, Counted};
use std::collections::BTreeMap;

/// Counts of the records so far, from [`Replay::summary`](super::Replay::summary).
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Summary {
    /// Records read: one per nonempty line.
    pub records: u64,
    /// Records emitted as unseen. With `late = "emit"`, late records are included.
    pub unseen: u64,
    /// Records reported as duplicates, including false positives. Their lines are not written.
    pub duplicates: u64,
    /// Records that are older than the window and whose key is not remembered. The topic's `late` decides what happens to them.
    pub late: u64,
    /// Retractions, which are not emitted.
    pub retracted: u64,
    /// Records whose key cannot be read because they have no value. The topic's `on_tombstone` decides what happens to them. With
    /// `on_tombstone = "invalid"`, they count as `invalid` instead.
    pub tombstones: u64,
    /// Records that `when` does not select, which are emitted.
    pub passed: u64,
    /// Unseen records that the filter alone would have dropped, if the topic sets `confirm`.
    pub corrected: u64,
    /// Records without a key, by the label of the reason. The topic's `on_invalid` decides what happens to them.
    pub invalid: BTreeMap<&'static str, u64>,
    /// Lines without a key that look like output of `kcat -J`, although they are read as values.
    pub envelopes: u64,
    /// Records whose time is after the `max_timestamp` of [`Replay::run_and_list`](super::Replay::run_and_list). They are evaluated but do
    /// not move the window.
    pub future: u64,
    /// The time of the last record counted in `future`, in milliseconds since the epoch. If several rules have such records, the latest of
    /// these times.
    pub future_time: Option<Timestamp>,
    /// Stream time of the most advanced partition, in milliseconds since the epoch. `None` before the first record with a time.
    pub stream_time: Option<Timestamp>,
    /// Records that the worker would have sent to a dead-letter topic.
    pub dead_letters: u64,
    /// Records without a time, which do not move a window by time. Of the records without a key, only those without a Kafka timestamp
    /// count, and only if the topic does not set `time`.
    pub untimed: u64,
    /// Partitions that had a record with a key.
    pub partitions: u64,
    /// Fill level of the fullest filter, divided by the planned fill level. See [`Usage::load`](crate::filter::Usage::load).
    pub load: f64,
    /// Memory of the filters, in bytes.
    pub memory: u64,
    /// Errors of the filter, if [`Options::truth`](super::Options::truth) is set.
    pub truth: Option<Counts>,
    /// Counts per value of `count_by`, most records first. The last entry has no value and counts all other records. Empty without
    /// `count_by`.
    pub values: Vec<(Option<String>, Counted)>,
    /// Result of comparing duplicates with their originals, for a sample of keys. Fields that `key_conflicts` leaves out are not compared.
    pub key_conflicts: Conflicts,
}

impl Summary {
    /// Adds the counts of another rule of the same input.
    #[must_use]
    pub(super) fn and(mut self, other: Self) -> Self {
        let Self {
            records,
            unseen,
            duplicates,
            late,
            retracted,
            tombstones,
            passed,
            corrected,
            invalid,
            envelopes,
            future,
            future_time,
            stream_time,
            dead_letters,
            untimed,
            partitions,
            load,
            memory,
            truth,
            values,
            key_conflicts,
        } = other;
        self.records += records;
        self.unseen += unseen;
        self.duplicates += duplicates;
        self.late += late;
        self.retracted += retracted;
        self.tombstones += tombstones;
        self.passed += passed;
        self.corrected += corrected;
        for (reason, count) in invalid {
            *self.invalid.entry(reason).or_default() += count;
        }
        self.envelopes += envelopes;
        self.future += future;
        self.future_time = self.future_time.max(future_time);
        self.stream_time = self.stream_time.max(stream_time);
        self.dead_letters += dead_letters;
        self.untimed += untimed;
        self.partitions = self.partitions.max(partitions);
        self.load = self.load.max(load);
        self.memory += memory;
        if let (Some(sum), Some(truth)) = (&mut self.truth, truth) {
            sum.add(truth);
        }
        self.values = values::sum(self.values, values);
        self.key_conflicts.add(key_conflicts);
        self
    }
}
