//! One topic in the status.
//!
//! Owns what is said of its records. Must never say more of a value than that it was counted by.

use crate::config::Topic;
use crate::content::Conflicts;
use crate::record::Reason;
use crate::stats::{TopicCounts, get};
use crate::values::{Counted, ValueCounts};
use schemars::JsonSchema;
use serde::Serialize;
use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

/// What was decided of one topic's records.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct TopicStatus {
    /// The input topic.
    pub topic: String,
    /// Its key space.
    pub space: String,
    /// Whether it has no output: nothing of it is written but its state.
    pub shadow: bool,
    /// Records by verdict.
    pub records: VerdictCounts,
    /// Invalid records by reason, those that there were.
    pub invalid: BTreeMap<String, u64>,
    /// Bytes of keys and values that were read, also again and in a warm-up.
    pub consumed_bytes: u64,
    /// Records written to the topic for dead letters.
    pub dead_letters: u64,
    /// Records whose time was too far ahead of the clock.
    pub future: u64,
    /// What is wrong with the record times if the window does not move, or moves too slowly: most records are too far ahead of
    /// the clock, or times are in seconds. Null if they are as expected.
    pub time_warning: Option<String>,
    /// Records read again without emitting.
    pub warmed_up: u64,
    /// A sample of one record in 32 by the value of `count_by`, most records first, and the rest at the end; none where there is
    /// no `count_by`.
    pub values: Vec<ValueStatus>,
    /// Duplicates of a sample that were compared with the record that they repeat; null without `key_conflicts`.
    pub key_conflicts: Option<ConflictStatus>,
}

/// Duplicates and the records that they repeat.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct ConflictStatus {
    /// Duplicates that were compared.
    pub compared: u64,
    /// Of these, the ones whose content differs.
    pub conflicts: u64,
    /// In how many of these each field differs at least, by JSON pointer: up to 64.
    pub fields: BTreeMap<String, u64>,
}

/// Records with one value of those that they are counted by.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct ValueStatus {
    /// The value, cut after 64 bytes; null for all that are not named, and records without one.
    pub value: Option<String>,
    /// Records with it since it is named.
    pub records: u64,
    /// Of these, duplicates.
    pub duplicates: u64,
}

/// Records by verdict.
#[derive(Clone, Copy, Debug, Serialize, JsonSchema)]
pub struct VerdictCounts {
    /// Went out, but for those of a shadow.
    pub unseen: u64,
    /// Were dropped as seen.
    pub duplicate: u64,
    /// Were older than the window, and set apart.
    pub late: u64,
    /// Had no key, or could not be written.
    pub invalid: u64,
    /// Retracted their key.
    pub retracted: u64,
    /// Had no value to take a key from; `on_tombstone` says whether they went out.
    pub tombstone: u64,
}

pub(super) fn topic_status(((name, topic), counts): ((String, &Topic), &TopicCounts)) -> TopicStatus {
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
        },
        invalid,
        consumed_bytes: get(&counts.bytes),
        dead_letters: get(&counts.dead_letters),
        future: get(&counts.future),
        time_warning: counts.time_warning(),
        warmed_up: get(&counts.warmed_up),
        values: counts.values.as_ref().map_or_else(Vec::new, values),
        key_conflicts: counts.contents.as_ref().map(|contents| {
            let Conflicts { compared, conflicts, fields } = contents.read();
            ConflictStatus { compared, conflicts, fields: fields.into_iter().collect() }
        }),
    }
}

fn values(counts: &Mutex<ValueCounts>) -> Vec<ValueStatus> {
    let all = counts.lock().unwrap_or_else(PoisonError::into_inner).read();
    all.into_iter().map(|(value, Counted { records, duplicates })| ValueStatus { value, records, duplicates }).collect()
}
