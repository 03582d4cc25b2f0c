//! A plan: a configuration and faults over a stream of records.
//!
//! As text, a plan has one line for the configuration and one line per step.

mod draw;
mod fault;

pub use fault::{FAILING, Fault};

use crate::options::{Change, Options};
use crate::truth::ServerFilter;
use serde::{Deserialize, Serialize};
use std::fmt;

/// The maximum number of processes in the group.
pub const MEMBERS: usize = 3;

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[expect(clippy::struct_excessive_bools, reason = "independent choices")]
pub struct Plan {
    pub seed: u64,
    pub records: usize,
    pub options: Options,
    /// The number of distinct keys that the filter is sized for.
    pub capacity: usize,
    pub commit_ms: u64,
    pub checkpoint_ms: u64,
    pub session_ms: u64,
    pub transaction_ms: u64,
    /// The maximum number of records per transaction.
    pub transaction_records: usize,
    /// For each of the first two members, the number of client calls before it is killed. `None` if the group starts with one member that
    /// is not killed.
    #[serde(default)]
    pub begin_kills: Option<[u64; 2]>,
    /// True if a killed `unseen seed` has left an aborted transaction in the changelog before the group starts.
    #[serde(default)]
    pub aborted_seed: bool,
    /// The filter of the server that follows the changelog, or `None` for a plan without a server.
    #[serde(default)]
    pub server: Option<ServerFilter>,
    /// True if random faults of the network and the brokers occur, such as lost requests, late answers, and outages.
    pub network: bool,
    /// The time that brokers need for each record of a transaction.
    #[serde(default)]
    pub record_ms: u64,
    /// The number of partitions of every topic.
    #[serde(default = "Plan::few")]
    pub partitions: i32,
    /// `max.poll.interval.ms`, or `None` for the default.
    #[serde(default)]
    pub max_poll_ms: Option<u64>,
    /// True if the input has `message.timestamp.type=LogAppendTime`.
    #[serde(default)]
    pub append_time: bool,
    /// The difference between each process's wall clock at its first start and the brokers' clock, in milliseconds. Positive if the
    /// process's clock is ahead.
    #[serde(default)]
    pub clocks_ms: [i64; MEMBERS],
    /// True if the input is configured by a pattern, which also matches topics that appear later.
    #[serde(default)]
    pub pattern: bool,
    #[serde(skip)]
    pub steps: Vec<Step>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Step {
    /// The number of records that are appended after the group's start and before the step.
    pub at: usize,
    /// The virtual time that passes after the last of the `at` records and before the step, in milliseconds.
    pub delay_ms: u64,
    /// The index of the affected process among the running processes, modulo their number.
    pub who: usize,
    pub fault: Fault,
}

impl Plan {
    const fn few() -> i32 {
        4
    }

    pub const fn space(&self) -> &'static str {
        if self.pattern { "news_in" } else { "news" }
    }

    pub fn parse(text: &str) -> Result<Self, serde_json::Error> {
        let mut lines = text.lines().filter(|line| !line.trim().is_empty());
        let mut plan: Self = serde_json::from_str(lines.next().unwrap_or_default())?;
        plan.steps = lines.map(serde_json::from_str).collect::<Result<_, _>>()?;
        Ok(plan)
    }

    pub fn has(&self, fault: &Fault) -> bool {
        self.steps.iter().any(|step| step.fault == *fault)
    }

    pub fn has_reset_offset(&self) -> bool {
        self.steps.iter().any(|step| matches!(step.fault, Fault::ResetOffset { .. }))
    }

    /// True if a step starts an additional process, which can get partitions.
    fn starts_others(&self) -> bool {
        self.steps.iter().any(|step| matches!(step.fault, Fault::Join | Fault::Twin { .. } | Fault::ExpireUnderWay))
    }

    /// True if all keys from before a deletion of the changelog have expired when record `at` is appended.
    fn has_whole_window(&self, at: usize) -> bool {
        let mut deleted = self.steps.iter().filter(|step| step.fault == Fault::DeleteChangelog).map(|step| step.at);
        // Half of the records span an hour, and a key expires after at most 40 minutes.
        self.options.has("a window by time that rotates") && self.partitions == Self::few() && deleted.all(|of| of + self.records / 2 <= at)
    }

    /// Returns the rows of docs/contributing/promises.md that apply to the plan.
    pub fn rows(&self) -> Vec<&str> {
        let has = |choice| self.options.has(choice);
        // After the changelog is deleted, its keys are only in checkpoints and in the input. So the promises without a changelog apply.
        let lacks_changelog = has("state.changelog = false") || self.has(&Fault::DeleteChangelog);
        let faults = self.steps.iter().filter_map(|step| {
            Some(match step.fault {
                Fault::LoseDisk { .. } | Fault::DamageDisk { .. } | Fault::OldDisk | Fault::DeleteDisk if lacks_changelog => {
                    "the state directory is lost or harmed, without a changelog"
                }
                // With `cold_start = "empty"`, a joining member starts with an empty state if it has no checkpoint of a partition, so the
                // partition's keys are lost.
                Fault::DeleteChangelog if has("cold_start = \"empty\"") => "the state directory is lost or harmed, without a changelog",
                // A repartition topic is trimmed, so another process cannot read its records again.
                Fault::DeleteChangelog if has("repartition = true") && self.starts_others() => {
                    "the state directory is lost or harmed, without a changelog"
                }
                Fault::ExpireInput if self.has_whole_window(step.at) => return None,
                Fault::RecreateInput
                | Fault::RecreateInputAndDisks
                | Fault::ExpireInput
                | Fault::ExpireUnderWay
                | Fault::ShortLog { .. }
                | Fault::Change(_)
                    if self.has(&Fault::DeleteChangelog) =>
                {
                    "the state directory is lost or harmed, without a changelog"
                }
                // The group reads the records from the new offset again and emits their keys again, like a group that has lost its offsets.
                Fault::ResetOffset { .. } => "the group's offsets are lost, without a changelog",
                Fault::LoseOffsets if has("repartition = true") => "the group's offsets are lost, with repartition",
                Fault::LoseOffsets if lacks_changelog => "the group's offsets are lost, without a changelog",
                Fault::AddPartitions if has("repartition = true") => "partitions are added, with repartition",
                Fault::AddPartitions => "partitions are added",
                Fault::Change(Change::Stable) => "a change to or from stable",
                _ => return None,
            })
        });
        self.options.names().chain(faults).collect()
    }
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", serde_json::to_string(self).expect("plain data"))?;
        self.steps.iter().try_for_each(|step| writeln!(f, "{}", serde_json::to_string(step).expect("plain data")))
    }
}
