//! The structure of an explanation. `docs/reference/explain.schema.json` is generated from these types.

use crate::filter::Slice;
use crate::record::{Offset, Timestamp};
use schemars::JsonSchema;
use serde::Serialize;

/// The output of `unseen explain --json`.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct Explanations {
    /// One explanation if a record was requested. If a key was requested, one per partition that can contain the key and per interpretation
    /// of the key, such as text or number.
    pub explanations: Vec<Explanation>,
}

/// The verdict on a record and its cause, or the state of a key.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct Explanation {
    /// The key space.
    pub space: String,
    /// The parts of the key, in order; empty if the record has no key.
    pub key: Vec<KeyPart>,
    /// The record; null if a key was requested.
    pub record: Option<ExplainedRecord>,
    /// The number of the partition that processes the key.
    pub partition: Option<i32>,
    /// The verdict on the record; null if a key was requested.
    pub verdict: Option<VerdictName>,
    /// The cause of the verdict; null if the verdict needs no cause.
    pub cause: Option<Cause>,
    /// True if verdict and cause are certain. If not, `limits` lists what is unknown.
    pub certain: bool,
    /// The explanation as English sentences.
    pub sentences: Vec<String>,
    /// The emission that the record duplicates; null if the record is not a duplicate, or if the emission is unknown.
    pub repeats: Option<Emission>,
    /// The first known emission of the key.
    pub first: Option<Emission>,
    /// The last emission of the key; null if the key was retracted afterward.
    pub last: Option<Emission>,
    /// Number of known emissions of the key.
    pub emissions: u64,
    /// Number of known retractions of the key.
    pub retractions: u64,
    /// True if the next record with this key will be a duplicate; null if unknown. False does not exclude a false positive. With
    /// `emit = "on_change"`, only a record with the same content will be a duplicate.
    pub seen: Option<bool>,
    /// The time when the key will be forgotten; null if the key is not seen, or if the time is unknown.
    pub forgotten: Option<Forgetting>,
    /// The part of the changelog that was read; null if the changelog was not read.
    pub changelog: Option<ChangelogReach>,
    /// Messages about what is unknown.
    pub limits: Vec<String>,
}

/// A part of a key.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct KeyPart {
    /// The source of the part, such as a field.
    pub part: String,
    /// The value as JSON, bytes as text, or the digest of a content in parentheses.
    pub value: String,
}

/// The requested record.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct ExplainedRecord {
    /// The topic.
    pub topic: String,
    /// The partition.
    pub partition: i32,
    /// The offset.
    pub offset: Offset,
    /// The time that the window uses, or Kafka's timestamp if the record has no key, in milliseconds since the epoch; null if the record
    /// has no such time.
    pub time_ms: Option<Timestamp>,
}

/// The verdict on a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum VerdictName {
    /// The record was emitted, unless the output rejected it.
    Unseen,
    /// The record was a duplicate or a false positive.
    Duplicate,
    /// The record was older than the window; `late` applied.
    Late,
    /// The record retracted its key.
    Retracted,
    /// The record has no value; `on_tombstone` applied.
    Tombstone,
    /// The record has no valid key; `on_invalid` applied.
    Invalid,
    /// `when` does not select the record, so the record was emitted without deduplication.
    Passed,
    /// The group has not processed the record yet.
    Pending,
    /// The available data does not show the verdict. `limits` has the reasons.
    Unknown,
}

/// The cause of a verdict.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Cause {
    /// No record with the key had been emitted within the window.
    First,
    /// The window of the previous record with the key had ended.
    Expired,
    /// The content differs from the content of the last emitted record with the key.
    Changed,
    /// The key had been emitted and retracted.
    AfterRetraction,
    /// The filter had forgotten the key too early.
    Forgotten,
    /// A record with the key had been emitted within the window.
    Repeat,
    /// No record with the key had been emitted within the window: a false positive of the filter.
    FalsePositive,
    /// The cause is unknown.
    Unknown,
}

/// The emission of a record with the key.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Emission {
    /// Ranges of input records that contain the emitted record. A single range with one offset identifies the record. Empty for a seeded
    /// key.
    pub inputs: Vec<InputRange>,
    /// The slice that the key was inserted into; null if unknown.
    pub slice: Option<Slice>,
    /// Time of the commit, in milliseconds since 1970; null with `--capture`, because a capture has no commits.
    pub committed_at_ms: Option<Timestamp>,
    /// Offset of the commit's first record in the changelog; null with `--capture`.
    pub changelog_offset: Option<Offset>,
    /// Ownership epoch of the partition at the commit, which increases when another worker takes the partition over; null with
    /// `--capture`.
    pub epoch: Option<i64>,
}

/// A range of records of one partition.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct InputRange {
    /// The topic.
    pub topic: String,
    /// The partition.
    pub partition: i32,
    /// The first offset.
    pub first_offset: Offset,
    /// The last offset.
    pub last_offset: Offset,
}

/// The time when a key will be forgotten.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Forgetting {
    /// The slice that makes the partition forget the key: the key is remembered until this slice starts.
    pub at_slice: Slice,
    /// The start of `at_slice` in stream time; null for a count window.
    pub at_stream_time_ms: Option<Timestamp>,
    /// The current slice of the partition; null if the partition does not have a slice yet.
    pub slice: Option<Slice>,
    /// The current stream time of the partition; null if the partition does not have a stream time yet.
    pub stream_time_ms: Option<Timestamp>,
}

/// The part of a changelog that was read.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct ChangelogReach {
    /// The topic.
    pub topic: String,
    /// The partition.
    pub partition: i32,
    /// The first offset that still exists.
    pub first_offset: Offset,
    /// The end of the range that was read (exclusive).
    pub end_offset: Offset,
    /// For each input topic, the first offset whose effect is in the changelog.
    pub inputs_from: Vec<InputStart>,
}

/// The first offset of an input topic whose effect is in the changelog.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct InputStart {
    /// The topic.
    pub topic: String,
    /// The first offset whose effect is in the changelog.
    pub offset: Offset,
}
