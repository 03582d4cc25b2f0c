//! The shape of an explanation: `docs/explain.schema.json` is made from these types.
//!
//! Owns names and units. Must never hold what is not for people to see: of a key, it shows what the record has.

use crate::filter::Slice;
use crate::record::{Offset, Timestamp};
use schemars::JsonSchema;
use serde::Serialize;

/// What `unseen explain --json` prints.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct Explanations {
    /// Of a record, one. Of a key, one for each partition that may have it, and for each key that is meant.
    pub explanations: Vec<Explanation>,
}

/// What became of a record and why, or what is known of a key.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct Explanation {
    /// The key space.
    pub space: String,
    /// The parts of the key, in order; empty if the record has none.
    pub key: Vec<KeyPart>,
    /// The record; null if a key was asked for.
    pub record: Option<ExplainedRecord>,
    /// The partition number whose state decided, or decides.
    pub partition: Option<i32>,
    /// What was decided of the record; null if a key was asked for.
    pub verdict: Option<VerdictName>,
    /// Why; null where there is nothing to say.
    pub cause: Option<Cause>,
    /// Whether verdict and cause are certain. If not, `limits` says what is not known.
    pub certain: bool,
    /// The same in words.
    pub sentences: Vec<String>,
    /// What the record repeats.
    pub repeats: Option<Emission>,
    /// The first time that the key came out, of those that are known.
    pub first: Option<Emission>,
    /// The last time.
    pub last: Option<Emission>,
    /// How often it came out, as far as that is known.
    pub emissions: u64,
    /// How often it was retracted.
    pub retractions: u64,
    /// Whether the next record with this key is a repeat; null if that is not known. False does not exclude a false positive.
    pub seen: Option<bool>,
    /// When the key will be forgotten; null if it is not seen, or nobody knows.
    pub forgotten: Option<Forgetting>,
    /// What was read of the changelog; null if nothing was.
    pub changelog: Option<ChangelogReach>,
    /// What is not known, each as a sentence.
    pub limits: Vec<String>,
}

/// A part of a key.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct KeyPart {
    /// What it is taken from.
    pub part: String,
    /// What it is: a JSON value, or a digest in brackets. Bytes are shown as a text.
    pub value: String,
}

/// The record that was asked for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct ExplainedRecord {
    /// The topic.
    pub topic: String,
    /// The partition.
    pub partition: i32,
    /// The offset.
    pub offset: Offset,
    /// Its time, in milliseconds since the epoch; null if it has none.
    pub time_ms: Option<Timestamp>,
}

/// What was decided of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum VerdictName {
    /// It came out, unless the output refused it.
    Unseen,
    /// It did not, for its key had been seen, or was taken for seen.
    Duplicate,
    /// It was older than the window, and `late` decided.
    Late,
    /// It took its key back.
    Retracted,
    /// It has no value, and `on_tombstone` decided.
    Tombstone,
    /// It has no key, and `on_invalid` decided.
    Invalid,
    /// It is still to be decided.
    Pending,
    /// It is not known.
    Unknown,
}

/// Why that was decided.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Cause {
    /// No record with its key had come out within the window.
    First,
    /// One had before, and its window was over.
    Expired,
    /// One had, and was retracted since.
    AfterRetraction,
    /// One had, and the filter had forgotten it before its time.
    Forgotten,
    /// One had, within the window.
    Repeat,
    /// None had within the window: the filter was wrong.
    FalsePositive,
    /// It is not known.
    Unknown,
}

/// That a key came out.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Emission {
    /// The records one of which it was; if it is just one offset, it was that one. None of a key that the group was seeded with.
    pub inputs: Vec<InputRange>,
    /// The slice that its key was inserted into; null if that is not known.
    pub slice: Option<Slice>,
    /// When it was committed, in milliseconds since the epoch; null in a replay.
    pub committed_at_ms: Option<Timestamp>,
    /// Where its commit begins in the changelog; null in a replay.
    pub changelog_offset: Option<Offset>,
    /// The epoch of who committed it; null in a replay.
    pub epoch: Option<i64>,
}

/// Records of one partition, one after the other.
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

/// When a key will be forgotten.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Forgetting {
    /// With the beginning of this slice.
    pub at_slice: Slice,
    /// Stream time at which that begins; null in a window by count.
    pub at_stream_time_ms: Option<Timestamp>,
    /// The slice that the partition is in; null if it has none yet.
    pub slice: Option<Slice>,
    /// Stream time of the partition; null if it has none yet.
    pub stream_time_ms: Option<Timestamp>,
}

/// What was read of a changelog.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct ChangelogReach {
    /// The topic.
    pub topic: String,
    /// The partition.
    pub partition: i32,
    /// The first offset that it still has.
    pub first_offset: Offset,
    /// The offset up to which it was read.
    pub end_offset: Offset,
    /// The input that it begins with.
    pub inputs_from: Vec<InputStart>,
}

/// Where a changelog begins with an input.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct InputStart {
    /// The topic.
    pub topic: String,
    /// The first offset whose effect it has.
    pub offset: Offset,
}
