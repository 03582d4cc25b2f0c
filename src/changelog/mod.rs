//! The changelog of a dedup state: records of its changes, to rebuild the state.
//!
//! Defines the format of these records, collects the changes that wait for a commit, and replays the records. Records contain fingerprints
//! instead of filter bits, so that a filter of a different kind or size can be rebuilt from them. Does no I/O. A change is in the changelog
//! only if the outputs of its record are committed or, without transactions, written.

mod pending;
mod progress;
mod record;

pub use pending::PendingChanges;
pub use pending::RECORD_FINGERPRINTS_MAX;
pub use progress::Progress;
pub use record::insertions;
pub use record::{ChangelogRecord, DecodeError, KeyRun, Span};

use crate::dedup::Dedup;
use crate::filter::{ExactError, Slice};
use crate::record::{Offset, Timestamp};
use std::collections::BTreeMap;
use xxhash_rust::xxh3::xxh3_64;

/// Identifies the writer of a changelog record and the settings of the writer. The fields are hashes, because they are only compared for
/// equality.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Origin {
    /// The group and the key space. Readers reject records of another owner, because two different pairs of group and key space can result
    /// in the same topic name.
    pub owner: u64,
    /// The key and hash settings. Fingerprints with different settings cannot be compared.
    pub keys: u64,
    /// The clock that counts slices: the window with the number and the length of its slices or, for a `stable` filter without an exact
    /// store, the settings of the filter. Slice numbers of different clocks cannot be compared.
    pub clock: u64,
    /// The kind of filter. The replay info of a record (see [`ChangelogRecord::replay_info`]) is valid only for the kind that wrote it.
    pub kind: u64,
}

impl Origin {
    #[must_use]
    pub fn new(owner: &str, keys: &str, clock: &str, kind: &str) -> Self {
        let [owner, keys, clock, kind] = [owner, keys, clock, kind].map(|text| xxh3_64(text.as_bytes()));
        Self { owner, keys, clock, kind }
    }
}

#[derive(Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The record has an effect. [`Applier::follow`] has applied this effect. After [`Applier::accept`], the caller must apply it.
    Taken,
    /// The record was skipped, because it has different key settings or a lower epoch, or contains only effects that were already applied.
    Passed,
    /// The record was skipped, because it ends past the bound of a topic (in a rebuild, the group's committed offset).
    PastBounds,
    /// The record starts below the applied offset, because the group's offsets were reset or, without transactions, because an owner wrote
    /// changelog records but did not commit their offsets. Earlier changelog records are void if they contain effects of input records from
    /// this record's start on.
    SetBack,
    /// The changelog does not continue from the checkpoint. There are three cases:
    ///
    /// - The first record that the checkpoint lacks starts after the checkpoint's offset.
    /// - A warm-up ended early, and the next record starts after the applied offset.
    /// - A record of a warm-up starts before the applied offset and ends after it.
    Gap,
    /// The record was written by another group or for another key space.
    Foreign,
}

#[derive(Debug)]
pub struct Applier {
    /// The applied offset of each input, by topic incarnation: the end offset of the input records whose effects are applied.
    pub offsets: BTreeMap<String, Offset>,
    pub fingerprints: u64,
    origin: Origin,
    /// The bound of each input, by topic incarnation. Records that end past a bound are skipped. In a rebuild, the bound is the group's
    /// committed offset. Inputs without an entry are unbounded.
    bounds: BTreeMap<String, Offset>,
    /// The oldest slice whose keys have not expired, if known.
    oldest_slice: Option<Slice>,
    /// True if the state was loaded from a checkpoint, which may have keys that the changelog lacks.
    has_checkpoint: bool,
    pub has_skipped_expired: bool,
    /// The highest epoch so far, of the records or of the initial state.
    pub epoch: i64,
    /// The spans of the last applied commit. All changelog records of a commit (its parts) have the same spans and the same epoch.
    last: Vec<(String, Offset, Offset)>,
    last_epoch: i64,
    last_parts: u32,
    last_warms_up: bool,
    /// The number of records that were written with another window or other keys. Their effects are missing or may be in other slices.
    of_other_settings: u64,
}

impl Applier {
    /// Creates an applier that continues from a state at `offsets` and `epoch`, up to `bounds`. Keys of slices before `oldest_slice` have
    /// expired.
    #[must_use]
    pub fn new(
        offsets: BTreeMap<String, Offset>,
        origin: Origin,
        bounds: BTreeMap<String, Offset>,
        oldest_slice: Option<Slice>,
        epoch: i64,
    ) -> Self {
        let has_checkpoint = !offsets.is_empty();
        Self {
            offsets,
            fingerprints: 0,
            origin,
            bounds,
            oldest_slice,
            has_checkpoint,
            has_skipped_expired: false,
            epoch,
            last: Vec::new(),
            last_epoch: epoch,
            last_parts: 0,
            last_warms_up: false,
            of_other_settings: 0,
        }
    }

    /// True if the record is another part of the last applied commit.
    #[must_use]
    pub fn continues(&self, record: &ChangelogRecord<'_>) -> bool {
        let same = |(span, last): (&Span<'_>, &(String, Offset, Offset))| (span.topic, span.start, span.end) == (&*last.0, last.1, last.2);
        // A record without spans is a commit of its own.
        !record.spans.is_empty()
            && record.epoch == self.last_epoch
            && record.spans.len() == self.last.len()
            && record.spans.iter().zip(&self.last).all(same)
    }

    /// True if the record starts after the applied offset. The changelog then lacks the effects of the input records in between.
    #[must_use]
    pub fn leaves_hole(&self, record: &ChangelogRecord<'_>) -> bool {
        let lacks = |span: &Span<'_>| self.offsets.get(span.topic).is_some_and(|&applied| span.start > applied);
        !self.continues(record) && record.spans.iter().any(lacks)
    }

    /// True if the applied records have built a complete state without a checkpoint: all records that were read have the settings of this
    /// applier, and the last applied record does not belong to a warm-up.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        !self.has_checkpoint && self.of_other_settings == 0 && !self.last.is_empty() && !self.last_warms_up
    }

    /// Decides the outcome of the next record and applies the record to the state if it has an effect.
    ///
    /// # Errors
    /// Returns [`ExactError`] if the filter cannot store a key, or if the exact store cannot be read.
    pub fn follow(&mut self, dedup: &mut Dedup, record: &ChangelogRecord<'_>) -> Result<Outcome, ExactError> {
        let outcome = self.accept(record);
        if outcome == Outcome::Taken {
            let effect = self.effect(record);
            effect.begin(dedup);
            for run in effect.runs {
                run.fingerprints().try_for_each(|fingerprint| dedup.apply(run.mutation, fingerprint))?;
            }
            effect.end(dedup);
        }
        Ok(outcome)
    }

    /// Decides the outcome of the next record. If the outcome is [`Outcome::Taken`], the caller must apply [`Applier::effect`] to the state
    /// before the next record, because `offsets` already include the record.
    pub fn accept(&mut self, record: &ChangelogRecord<'_>) -> Outcome {
        if record.origin.owner != self.origin.owner {
            return Outcome::Foreign;
        }
        self.of_other_settings += u64::from((record.origin.keys, record.origin.clock) != (self.origin.keys, self.origin.clock));
        // A record with a lower epoch comes from a worker that has lost the partition but may not know about the loss yet. Without
        // transactions, such a worker can still write.
        if record.epoch < self.epoch {
            return Outcome::Passed;
        }
        self.epoch = record.epoch;
        let beyond = |span: &Span<'_>| self.bounds.get(span.topic).is_some_and(|&bound| span.end > bound);
        if record.origin.keys != self.origin.keys {
            return Outcome::Passed;
        }
        if record.spans.iter().any(beyond) {
            return Outcome::PastBounds;
        }
        let same = self.continues(record);
        // If a worker does not know the outcome of a commit, it may log the commit again with the same parts. This happens without
        // transactions. With transactions, it happens only during a warm-up, because the group's offset does not move then and cannot show
        // the outcome. A part must not be applied twice: a cuckoo filter would store two copies of a key, and a window by count would count
        // its keys twice.
        if same && record.part < self.last_parts {
            return Outcome::Passed;
        }
        if !same {
            let known = |span: &&Span<'_>| self.offsets.get(span.topic).is_some_and(|&applied| span.start < applied);
            if record.spans.iter().any(|span| known(&span)) {
                // If the applier starts from a checkpoint, the changelog may also contain records whose effects are in the checkpoint. They
                // do not show a reset.
                let old = record.spans.iter().all(|span| self.offsets.get(span.topic).is_some_and(|&applied| span.end <= applied));
                // A warm-up logs the effects of records that the group has read before, so a warm-up record below the applied offset does
                // not show a reset. It shows that the changelog was recreated, and that its owner warmed up from an older state. Keys from
                // before the warm-up are then only in checkpoints. Without a checkpoint, such a record counts as a reset if it ends after
                // the applied offset.
                return match (old, self.last.is_empty()) {
                    (true, is_first) if is_first || record.warms_up => Outcome::Passed,
                    (false, _) if record.warms_up && self.has_checkpoint => Outcome::Gap,
                    _ => Outcome::SetBack,
                };
            }
            // A hole after an unfinished warm-up shows that a member with a newer checkpoint took over. The newer checkpoint contains the
            // effects that the changelog lacks, and this applier's checkpoint lacks them as well.
            let after_warm_up = self.has_checkpoint && self.last_warms_up;
            if (self.last.is_empty() || after_warm_up) && self.leaves_hole(record) {
                return Outcome::Gap;
            }
            (self.last_epoch, self.last_parts) = (record.epoch, 0);
            self.last = record.spans.iter().map(|span| (span.topic.to_owned(), span.start, span.end)).collect();
        }
        self.last_parts = record.part.saturating_add(1);
        self.last_warms_up = record.warms_up;
        for span in &record.spans {
            self.offsets.insert(span.topic.to_owned(), span.end);
        }
        let fingerprints = self.effect(record).runs.iter().map(KeyRun::len).sum::<u64>();
        self.has_skipped_expired |= fingerprints == 0 && !record.runs.is_empty();
        self.fingerprints += fingerprints;
        Outcome::Taken
    }

    #[must_use]
    pub fn effect<'r>(&self, record: &'r ChangelogRecord<'r>) -> Effect<'r> {
        let slice = record.slice.filter(|_| record.origin.clock == self.origin.clock);
        let is_expired = slice.is_some_and(|slice| self.oldest_slice.is_some_and(|oldest| slice < oldest));
        Effect {
            start: (!is_expired).then(|| {
                // The slice of a record without keys only shows when the record was written. The state may not have reached that slice and
                // must not advance to it.
                let slice = slice.filter(|_| !record.runs.is_empty());
                (record.time, slice, record.replay_info.filter(|_| record.origin.kind == self.origin.kind))
            }),
            runs: if is_expired { &[] } else { &record.runs },
            end_time: record.end_time,
        }
    }

    /// Returns the offset reset that a record with [`Outcome::SetBack`] shows. `before` is the changelog offset of the record.
    #[must_use]
    pub fn cut(&self, before: Offset, record: &ChangelogRecord<'_>) -> Option<Cut> {
        let back = record.spans.iter().find(|span| self.offsets.get(span.topic).is_some_and(|&applied| span.start < applied))?;
        let ends = record.spans.iter().map(|span| (span.topic.to_owned(), span.end)).collect();
        Some(Cut { before, topic: back.topic.to_owned(), start: back.start, ends })
    }
}

/// The effect of a record on a state: call `begin`, apply the runs in order, then call `end`.
#[derive(Debug)]
pub struct Effect<'r> {
    /// The stream time, slice, and replay info at the start, or `None` if the keys have expired.
    start: Option<(Option<Timestamp>, Option<Slice>, Option<u64>)>,
    pub runs: &'r [KeyRun<'r>],
    end_time: Option<Timestamp>,
}

impl Effect<'_> {
    /// Advances the state to the time and the slice of the keys, unless the keys have expired.
    pub fn begin(&self, dedup: &mut Dedup) {
        if let Some((time, slice, replay_info)) = self.start {
            dedup.resume(time, slice, replay_info);
        }
    }

    pub fn end(&self, dedup: &mut Dedup) {
        dedup.resume(self.end_time, None, None);
    }
}

/// The changelog records that an offset reset makes void: records below `before` with effects of `topic` from `start` on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cut {
    /// The changelog offset of the record that shows the reset.
    pub before: Offset,
    pub topic: String,
    /// The first input offset whose effect is void.
    pub start: Offset,
    /// The end offset of each input topic in the record that shows the reset.
    pub ends: Vec<(String, Offset)>,
}

impl Cut {
    /// The maximum number of offset resets in a changelog. A changelog with more resets is not replayed.
    pub const MAX: usize = 100;

    /// Adds this reset to `cuts`, for another read of the changelog. If this reset voids the record that showed an earlier reset, removes
    /// the earlier reset, because the worker that logged this reset had restored its state without that record.
    ///
    /// Each read adds a reset and removes only resets from earlier records, so the number of reads is finite.
    pub fn add_to(self, cuts: &mut Vec<Self>) {
        let is_void =
            |cut: &Self| cut.before < self.before && cut.ends.iter().any(|(topic, end)| *topic == self.topic && *end > self.start);
        cuts.retain(|cut| !is_void(cut));
        cuts.push(self);
    }

    #[must_use]
    pub fn voids(&self, offset: Offset, record: &ChangelogRecord<'_>) -> bool {
        offset < self.before && record.spans.iter().any(|span| span.topic == self.topic && span.end > self.start)
    }
}

#[cfg(test)]
mod tests;
