//! What is counted while records flow, for whoever shows it.
//!
//! Written by the workers once a batch, read by anyone. Counts only; must never hold a key or an offset.

use crate::record::Verdict;
use std::sync::atomic::{AtomicU64, Ordering};

/// Counts since the start, of all workers together.
#[derive(Debug, Default)]
pub struct Stats {
    /// Records that a verdict was taken of; warm-up not included.
    pub records: AtomicU64,
    /// Of these, unseen.
    pub unseen: AtomicU64,
    /// Of these, duplicates.
    pub duplicates: AtomicU64,
    /// Of these, late and set apart.
    pub late: AtomicU64,
    /// Of these, invalid.
    pub invalid: AtomicU64,
    /// Of these, such as took their key back.
    pub unsee: AtomicU64,
    /// Unseen records that the filter alone would have dropped; the exact memory put it right.
    pub corrected: AtomicU64,
    /// Keys forgotten before their time, because a filter may not grow.
    pub evicted: AtomicU64,
    /// Records read again without emitting, to close the gap between a checkpoint and the committed offset.
    pub warmed_up: AtomicU64,
    /// Records whose time was too far ahead to be believed.
    pub future: AtomicU64,
    /// Keys of a sample of one in 1,024 that came out of more than one partition.
    pub misplaced: AtomicU64,
    /// Transactions committed.
    pub commits: AtomicU64,
    /// Transactions aborted.
    pub aborts: AtomicU64,
    /// Checkpoints written.
    pub checkpoints: AtomicU64,
    /// Checkpoints that could not be written.
    pub checkpoint_failures: AtomicU64,
    /// Memories rebuilt from a changelog.
    pub rebuilds: AtomicU64,
    /// Keys that they hold.
    pub rebuilt_keys: AtomicU64,
    /// Time it took, in milliseconds, all together.
    pub rebuild_ms: AtomicU64,
    /// Memories that are being rebuilt now; their partitions wait.
    pub rebuilding: AtomicU64,
    /// Highest load of an open generation, in thousandths of its capacity.
    pub load_permille: AtomicU64,
}

/// Adds to a count.
pub fn add(count: &AtomicU64, by: u64) {
    count.fetch_add(by, Ordering::Relaxed);
}

/// Takes from a count of what there is now.
pub fn take(count: &AtomicU64, by: u64) {
    count.fetch_sub(by, Ordering::Relaxed);
}

/// Reads a count.
#[must_use]
pub fn get(count: &AtomicU64) -> u64 {
    count.load(Ordering::Relaxed)
}

/// What one worker has counted since it last reported.
#[derive(Debug, Default)]
pub struct Tally {
    unseen: u64,
    duplicates: u64,
    late: u64,
    invalid: u64,
    unsee: u64,
    /// See [`Stats::warmed_up`].
    pub warmed_up: u64,
    /// See [`Stats::future`].
    pub future: u64,
}

impl Tally {
    /// Counts a verdict.
    pub const fn count(&mut self, verdict: Verdict) {
        match verdict {
            Verdict::Unseen => self.unseen += 1,
            Verdict::Duplicate => self.duplicates += 1,
            Verdict::Late => self.late += 1,
            Verdict::Invalid(_) => self.invalid += 1,
            Verdict::Unsee => self.unsee += 1,
        }
    }

    /// Adds it to what all workers have counted.
    pub fn report(self, stats: &Stats) {
        add(&stats.records, self.unseen + self.duplicates + self.late + self.invalid + self.unsee);
        add(&stats.unseen, self.unseen);
        add(&stats.duplicates, self.duplicates);
        add(&stats.late, self.late);
        add(&stats.invalid, self.invalid);
        add(&stats.unsee, self.unsee);
        add(&stats.warmed_up, self.warmed_up);
        add(&stats.future, self.future);
    }
}
