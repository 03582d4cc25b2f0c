//! One pass of a rebuild over a changelog.
//!
//! Decides for each changelog record whether to apply it, skip it, or end the pass. Never applies a change that the group has not
//! committed, because the input record of such a change is read again and would look like a duplicate.

use super::Error;
use super::rebuild_job::{Context, Job, PROGRESS_INTERVAL};
use crate::broker::{Broker, ChangelogReader, Logged, ReadEnd};
use crate::changelog::{Applier, ChangelogRecord, Cut, Outcome};
use crate::fault;
use crate::filter::ExactError;
use crate::record::Offset;
use crate::runtime;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

/// Changelog records that were skipped because they end past the committed offset.
pub(super) struct Skipped {
    /// The changelog offset of the first skipped record.
    pub(super) offset: Offset,
    /// The highest epoch of the records before that offset.
    pub(super) epoch: i64,
    topics: BTreeSet<String>,
}

pub(super) struct Follow<'a, B: Broker> {
    pub(super) context: &'a Context<B>,
    pub(super) job: &'a mut Job,
    pub(super) low: Offset,
    pub(super) end: Offset,
    pub(super) cuts: &'a [Cut],
    pub(super) reported: Instant,
    pub(super) cut: Option<Cut>,
    pub(super) gap: bool,
    /// The records that were skipped because they end past the committed offset. Reset to `None` when a later changelog record of one of
    /// their input topics is applied, because that record shows that the group never committed the skipped records.
    pub(super) past_bounds: Option<Skipped>,
    /// True if the changelog lacks the effects of some input records, for example because `state.changelog` was off for a while.
    pub(super) has_hole: bool,
    /// If the changelog has a gap, the input offsets that the group had reached according to the changelog.
    pub(super) group_offsets: BTreeMap<String, Offset>,
    /// True if the store was quarantined while it held keys of the state.
    pub(super) is_lost: bool,
}

impl<B: Broker> Follow<'_, B> {
    pub(super) fn read(&mut self, reader: &B::ChangelogReader, from: Offset, stop: &dyn Fn() -> bool) -> Result<(Applier, ReadEnd), Error> {
        let (job, origin) = (&*self.job, self.job.origin);
        let epoch = job.state.changelog.epoch;
        let mut applier = Applier::new(job.state.offsets.clone(), origin, job.bounds.clone(), job.oldest_slice, epoch);
        let (changelog, end) = (job.changelog.clone(), self.end);
        if from >= end {
            return Ok((applier, ReadEnd::Reached));
        }
        let ended = reader.read(&changelog, (from, end), stop, &mut |logged| self.take(&mut applier, &logged))?;
        Ok((applier, ended))
    }

    fn take(&mut self, applier: &mut Applier, logged: &Logged<'_>) -> Result<bool, Error> {
        let record = match ChangelogRecord::decode(logged.value) {
            Ok(record) => record,
            Err(error) => {
                return Err(Error::Exit(format!(
                    "{} offset {}: {error}; run the version of unseen that wrote this record, or delete the changelog topic and set state.cold_start to choose how to start without a changelog",
                    self.job.changelog, logged.offset
                )));
            }
        };
        let warms_up = record.warms_up && !fault::defect("warm_up_taken_for_reset");
        let record = ChangelogRecord { warms_up, ..record };
        if self.gap && record.epoch >= applier.epoch {
            self.note_group_offsets(&record);
        }
        if self.gap || self.cuts.iter().any(|cut| cut.voids(logged.offset, &record)) {
            applier.epoch = applier.epoch.max(record.epoch);
            return Ok(true);
        }
        if self.job.state.is_urgent() && !applier.continues(&record) {
            // The checkpoint frees memory, because it moves the keys of an exact store to disk.
            self.job.state.offsets.clone_from(&applier.offsets);
            let (end, epoch) = self.past_bounds.as_ref().map_or((logged.offset, applier.epoch), |skipped| (skipped.offset, skipped.epoch));
            (self.job.state.changelog.end, self.job.state.changelog.epoch) = (Some(end), epoch);
            let Job { state, cancellation, partition, claim, settings, .. } = &mut *self.job;
            cancellation.save(|| {
                state.save(&self.context.store, &self.context.stats, (&*partition, &*claim), settings);
            });
        }
        fault::point("rebuild.record");
        let (epoch, leaves_hole) = (applier.epoch, applier.leaves_hole(&record));
        let step = match applier.follow(&mut self.job.state.dedup, &record) {
            Ok(step) => step,
            // The store was quarantined, so the keys in it are lost.
            Err(ExactError::Archive(_)) if self.job.state.is_lost(&self.context.store) => {
                self.is_lost = true;
                return Ok(false);
            }
            Err(error) => return Err(Error::Exit(format!("cannot rebuild {} from its changelog: {error}", self.job.partition))),
        };
        match step {
            Outcome::Taken => {
                let is_redone = |skipped: &mut Skipped| record.spans.iter().any(|span| skipped.topics.contains(span.topic));
                self.past_bounds.take_if(is_redone);
                let state = &mut self.job.state;
                if leaves_hole {
                    self.has_hole = true;
                    state.changelog.forget();
                }
                // The state may not have reached the slice of a record without keys, so the record determines the slice.
                let slice = record.slice.filter(|_| record.origin.clock == self.job.origin.clock);
                let clock = if record.runs.is_empty() { slice } else { state.dedup.clock() };
                let _ = state.changelog.logged(clock, logged.offset);
            }
            Outcome::Passed => return Ok(true),
            Outcome::PastBounds => {
                let new = || Skipped { offset: logged.offset, epoch, topics: BTreeSet::new() };
                let skipped = self.past_bounds.get_or_insert_with(new);
                skipped.topics.extend(record.spans.iter().map(|span| span.topic.to_owned()));
                return Ok(true);
            }
            Outcome::Foreign => {
                return Err(Error::Exit(format!(
                    "{} offset {}: another consumer group or key space writes to this changelog, because its group_id and space result in the same topic name; change kafka.group_id or the name of the space in this configuration. If both groups or both key spaces have already written to the topic, delete the topic",
                    self.job.changelog, logged.offset
                )));
            }
            Outcome::Gap => {
                // The remaining records are read only to find the highest epoch and the input offsets that the group has reached.
                self.gap = true;
                self.group_offsets.clone_from(&applier.offsets);
                self.note_group_offsets(&record);
                return Ok(true);
            }
            Outcome::SetBack => {
                self.cut = applier.cut(logged.offset, &record);
                return Ok(self.cut.is_none());
            }
        }
        if runtime::since(self.reported) > PROGRESS_INTERVAL {
            self.reported = runtime::now();
            let percent = (logged.offset - self.low) * 100 / (self.end - self.low).max(1);
            tracing::info!(partition = %self.job.partition, percent, keys = applier.fingerprints, "rebuilding state from the changelog");
        }
        Ok(true)
    }

    /// Updates the input offsets that the group had reached. A record of a warm-up never lowers these offsets, because a warm-up also logs
    /// input records that the group had read long before.
    fn note_group_offsets(&mut self, record: &ChangelogRecord<'_>) {
        for span in &record.spans {
            let known = self.group_offsets.get(span.topic).copied().filter(|_| record.warms_up).unwrap_or(span.end);
            self.group_offsets.insert(span.topic.to_owned(), span.end.max(known));
        }
    }
}
