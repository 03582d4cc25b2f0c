//! The status of one topic. It must not contain record data except the values of `count_by` and the names of conflicting fields.

use crate::config::Topic;
use crate::content::Conflicts;
use crate::record::Reason;
use crate::stats::{TopicCounts, get};
use crate::values::{self, Counted, ValueCounts};
use schemars::JsonSchema;
use serde::Serialize;
use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

/// Counts of one topic. If several entries of the configuration read the topic, their counts are added up.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct TopicStatus {
    /// The input topic.
    pub topic: String,
    /// The key space of the topic, or of its first entry.
    pub space: String,
    /// True if the topic has no output, so only its state is updated.
    pub shadow: bool,
    /// Records by verdict.
    pub records: VerdictCounts,
    /// Invalid records by reason. Reasons without records are left out.
    pub invalid: BTreeMap<String, u64>,
    /// Bytes of keys and values read, including records that were read again and warm-up.
    pub consumed_bytes: u64,
    /// Records written to the dead-letter topic.
    pub dead_letters: u64,
    /// Records with a time more than `max_future` ahead of the clock.
    pub future: u64,
    /// Warning if record times keep the window from moving as expected: most records are too far ahead of the clock, or their times
    /// are in seconds. Null if the times are plausible.
    pub time_warning: Option<String>,
    /// Warning that no record has any part of the content that `emit` compares, so all changes are dropped; null otherwise.
    pub content_warning: Option<String>,
    /// Number of records that were read again during a warm-up and not emitted.
    pub warmed_up: u64,
    /// Upper bound for the number of records that were deleted before they were read, by the topic's retention or by a request to delete
    /// records. Aborted records and transaction markers count, too.
    pub deleted_unread: u64,
    /// Counts by value of `count_by`, from a sample of one record in 32: most frequent first, all others last. Empty without
    /// `count_by`.
    pub values: Vec<ValueStatus>,
    /// Comparison of sampled duplicates with their original records; null without `key_conflicts`.
    pub key_conflicts: Option<ConflictStatus>,
}

/// Comparison of duplicates with their original records.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct ConflictStatus {
    /// Number of compared duplicates.
    pub compared: u64,
    /// Number of compared duplicates whose content differs from the original.
    pub conflicts: u64,
    /// Lower bound for the number of conflicts per field, by JSON pointer, for up to 64 fields.
    pub fields: BTreeMap<String, u64>,
}

/// Counts of records with one value of `count_by`.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct ValueStatus {
    /// The value, cut after 64 bytes; null for all other values and for records without a value.
    pub value: Option<String>,
    /// Number of sampled records since the value has been listed.
    pub records: u64,
    /// Number of duplicates among these records.
    pub duplicates: u64,
}

/// Records by verdict.
#[derive(Clone, Copy, Debug, Serialize, JsonSchema)]
pub struct VerdictCounts {
    /// Unseen records. They are emitted unless the topic is a shadow.
    pub unseen: u64,
    /// Duplicates, including false positives.
    pub duplicate: u64,
    /// Records older than the window, unless `late = "emit"`.
    pub late: u64,
    /// Records without a valid key and records that the output rejected.
    pub invalid: u64,
    /// Records that retracted their key.
    pub retracted: u64,
    /// Tombstones whose key cannot be read; `on_tombstone` determines whether they are emitted.
    pub tombstone: u64,
    /// Records that `when` does not select. They are emitted without deduplication.
    pub passed: u64,
}

/// Returns the status of each topic that is read. Adds up the counts of an input's entries, so each topic has one row.
pub(super) fn topic_statuses<'c>(all: impl Iterator<Item = ((String, &'c Topic), &'c TopicCounts)>) -> Vec<TopicStatus> {
    let (mut statuses, mut numbers) = (Vec::<TopicStatus>::new(), BTreeMap::new());
    for status in all.map(topic_status) {
        let number = *numbers.entry(status.topic.clone()).or_insert(statuses.len());
        match statuses.get_mut(number) {
            Some(known) => known.add(status),
            None => statuses.push(status),
        }
    }
    statuses
}

impl TopicStatus {
    /// Adds the counts of another entry of the same input.
    fn add(&mut self, other: Self) {
        let VerdictCounts { unseen, duplicate, late, invalid, retracted, tombstone, passed } = other.records;
        let records = &mut self.records;
        records.unseen += unseen;
        records.duplicate += duplicate;
        records.late += late;
        records.invalid += invalid;
        records.retracted += retracted;
        records.tombstone += tombstone;
        records.passed += passed;
        for (reason, count) in other.invalid {
            *self.invalid.entry(reason).or_default() += count;
        }
        self.consumed_bytes += other.consumed_bytes;
        self.dead_letters += other.dead_letters;
        self.future += other.future;
        self.time_warning = self.time_warning.take().or(other.time_warning);
        self.content_warning = self.content_warning.take().or(other.content_warning);
        self.warmed_up += other.warmed_up;
        self.deleted_unread += other.deleted_unread;
        let counts = |values: Vec<ValueStatus>| {
            let count = |ValueStatus { value, records, duplicates }| (value, Counted { records, duplicates });
            values.into_iter().map(count).collect()
        };
        self.values = value_statuses(values::sum(counts(std::mem::take(&mut self.values)), counts(other.values)));
        self.key_conflicts = match (self.key_conflicts.take(), other.key_conflicts) {
            (Some(mut sum), Some(ConflictStatus { compared, conflicts, fields })) => {
                (sum.compared, sum.conflicts) = (sum.compared + compared, sum.conflicts + conflicts);
                for (field, count) in fields {
                    *sum.fields.entry(field).or_default() += count;
                }
                Some(sum)
            }
            (one, other) => one.or(other),
        };
    }
}

fn topic_status(((name, topic), counts): ((String, &Topic), &TopicCounts)) -> TopicStatus {
    let invalid = Reason::ALL.into_iter().zip(&counts.invalid).map(|(reason, count)| (reason.label().to_owned(), get(count)));
    let invalid: BTreeMap<_, _> = invalid.filter(|(_, count)| *count > 0).collect();
    TopicStatus {
        topic: name,
        space: topic.space.clone(),
        shadow: topic.is_shadow(),
        records: VerdictCounts {
            unseen: get(&counts.unseen),
            duplicate: get(&counts.duplicate),
            late: get(&counts.late),
            invalid: invalid.values().sum(),
            retracted: get(&counts.retracted),
            tombstone: get(&counts.tombstone),
            passed: get(&counts.passed),
        },
        invalid,
        consumed_bytes: get(&counts.bytes),
        dead_letters: get(&counts.dead_letters),
        future: get(&counts.future),
        time_warning: counts.time_warning(),
        content_warning: counts.compared.warning(),
        warmed_up: get(&counts.warmed_up),
        deleted_unread: get(&counts.deleted_unread),
        values: counts.values.as_ref().map_or_else(Vec::new, |counts| value_statuses(read(counts))),
        key_conflicts: counts.contents.as_ref().map(|contents| {
            let Conflicts { compared, conflicts, fields } = contents.read();
            ConflictStatus { compared, conflicts, fields: fields.into_iter().collect() }
        }),
    }
}

fn read(counts: &Mutex<ValueCounts>) -> Vec<(Option<String>, Counted)> {
    counts.lock().unwrap_or_else(PoisonError::into_inner).read()
}

fn value_statuses(all: Vec<(Option<String>, Counted)>) -> Vec<ValueStatus> {
    all.into_iter().map(|(value, Counted { records, duplicates })| ValueStatus { value, records, duplicates }).collect()
}
