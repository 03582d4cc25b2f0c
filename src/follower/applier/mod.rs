//! Applies the records of changelogs to states, continuously.
//!
//! Tracks the progress of each partition. A state is reported as ready only after it contains everything that was committed when loading
//! began. A query is never blocked for longer than it takes to apply a few keys.

use crate::broker::{ChangelogTail, Logged, TailEvent as Event};
use crate::changelog::{Applier, ChangelogRecord, Cut, Outcome};
use crate::dedup::Rules;
use crate::follower::Error;
use crate::follower::partition::{Partition, Standing};
use crate::follower::space::Space;
use crate::follower::watcher::Watermarks;
use crate::key::Fingerprint;
use crate::record::{Offset, TopicPartition, log_topic};
use crate::runtime;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::Receiver;
use std::time::{Duration, Instant};

const EVENTS: usize = 256;
/// The longest wait for events. Stop requests and new partitions are noticed within this time.
const WAIT: Duration = Duration::from_millis(50);
/// The number of keys to apply before the write lock is released, so that queries can run in between.
const KEYS: usize = 64;
const PROGRESS_INTERVAL: Duration = Duration::from_secs(5);

pub(super) struct Appliers<'a, T> {
    spaces: &'a [Space],
    tail: &'a T,
    partitions: Vec<PartitionApplier<'a>>,
    by_name: HashMap<TopicPartition, usize>,
}

struct PartitionApplier<'a> {
    space: &'a Space,
    shared: Arc<Partition>,
    changelog: TopicPartition,
    rules: Rules,
    applier: Applier,
    cuts: Vec<Cut>,
    low: Offset,
    next: Offset,
    /// The high watermark of the changelog when loading began.
    target: Offset,
    /// The last stable offset in the latest watermarks.
    end: Offset,
    /// The id of the changelog topic, or `None` if the brokers do not report ids.
    log: Option<Arc<str>>,
    /// The oldest watermarks with an `end` that is not applied yet. Once the state reaches this `end`, it contains everything that was
    /// committed when the watermarks were requested.
    awaited: Option<Watermarks>,
    standing: Standing,
    reading: Reading,
    began: Instant,
    reported: Instant,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reading {
    Active,
    /// The state must be loaded again. The next watermarks show where the changelog starts.
    Reload,
    /// The reader must seek to `next`.
    Seek,
    Failed,
}

impl<'a, T: ChangelogTail> Appliers<'a, T> {
    pub(super) fn new(spaces: &'a [Space], tail: &'a T) -> Self {
        Self { spaces, tail, partitions: Vec::new(), by_name: HashMap::new() }
    }

    pub(super) fn run(mut self, watermarks: &Receiver<Watermarks>, stop: &AtomicBool) -> Result<(), Error> {
        while !stop.load(Ordering::Relaxed) {
            for watermarks in watermarks.try_iter() {
                self.handle_watermarks(watermarks)?;
            }
            let (by_name, partitions) = (&self.by_name, &mut self.partitions);
            self.tail.poll(EVENTS, WAIT, &mut |topic, partition, event| {
                let name = TopicPartition { topic: topic.to_owned(), partition };
                if let Some(&at) = by_name.get(&name) {
                    partitions[at].take(&event);
                }
            })?;
            for partition in &mut self.partitions {
                partition.restart(self.tail)?;
            }
        }
        Ok(())
    }

    /// Updates a partition, or starts to follow it if it is new.
    fn handle_watermarks(&mut self, watermarks: Watermarks) -> Result<(), Error> {
        let space = &self.spaces[watermarks.space];
        if watermarks.partitions < space.count() && self.is_recreated(space, &watermarks) {
            tracing::warn!(
                changelog = space.changelog_name(),
                partitions = watermarks.partitions,
                before = space.count(),
                "the changelog was recreated with fewer partitions; loading it again"
            );
            self.drop_partitions(space)?;
        }
        let changelog = space.changelog(watermarks.partition);
        if !space.follows(watermarks.partition) {
            space.set(None, watermarks.partition, watermarks.partitions);
            return Ok(());
        }
        if let Some(&at) = self.by_name.get(&changelog) {
            self.partitions[at].update_watermarks(watermarks);
            return Ok(());
        }
        let partition = PartitionApplier::new(space, &watermarks);
        // `set` adds the partition and updates the number of partitions at the same time, because the new number routes keys to the new
        // partition.
        space.set(Some(Arc::clone(&partition.shared)), watermarks.partition, watermarks.partitions);
        self.tail.start(&changelog, watermarks.low)?;
        self.by_name.insert(changelog, self.partitions.len());
        self.partitions.push(partition);
        if let Some(partition) = self.partitions.last_mut() {
            partition.update_watermarks(watermarks);
        }
        Ok(())
    }

    /// True if a lower number of partitions means that the changelog was recreated: the topic id has changed, or no id was known before.
    /// Otherwise, the lower number may come from a broker with outdated metadata.
    fn is_recreated(&self, space: &Space, watermarks: &Watermarks) -> bool {
        let known = self.partitions.iter().find(|partition| std::ptr::eq(partition.space, space));
        known.and_then(|partition| partition.log.as_ref()).is_none_or(|known| watermarks.log.as_ref().is_some_and(|log| log != known))
    }

    /// Stops reading all partitions of a space and drops their states, which are sized for the previous number of partitions.
    fn drop_partitions(&mut self, space: &Space) -> Result<(), Error> {
        for partition in self.partitions.extract_if(.., |partition| std::ptr::eq(partition.space, space)) {
            self.tail.stop(&partition.changelog)?;
        }
        self.by_name = self.partitions.iter().enumerate().map(|(at, partition)| (partition.changelog.clone(), at)).collect();
        space.clear();
        Ok(())
    }
}

fn fresh(space: &Space) -> Applier {
    Applier::new(BTreeMap::new(), space.origin(), BTreeMap::new(), None, 0)
}

impl<'a> PartitionApplier<'a> {
    fn new(space: &'a Space, watermarks: &Watermarks) -> Self {
        let rules = space.rules(watermarks.partitions);
        Self {
            space,
            shared: Arc::new(Partition::new(watermarks.partition, rules)),
            changelog: space.changelog(watermarks.partition),
            rules,
            applier: fresh(space),
            cuts: Vec::new(),
            low: watermarks.low,
            next: watermarks.low,
            target: watermarks.high.unwrap_or(watermarks.end),
            end: watermarks.end,
            log: watermarks.log.clone(),
            awaited: None,
            standing: Standing::Unowned,
            // Without a high watermark, the partition waits for the next watermarks.
            reading: if watermarks.high.is_some() { Reading::Active } else { Reading::Reload },
            began: runtime::now(),
            reported: runtime::now(),
        }
    }

    fn update_watermarks(&mut self, watermarks: Watermarks) {
        if self.is_another_log(&watermarks) {
            tracing::warn!(changelog = %self.changelog, "the changelog was recreated; loading it again");
            self.forget();
        } else if watermarks.low > self.next && self.reading == Reading::Active {
            tracing::warn!(changelog = %self.changelog, trimmed_to = watermarks.low, read_to = self.next, "records of the changelog were deleted before this server read them; loading the changelog again");
            self.forget();
        }
        (self.low, self.end, self.log) = (watermarks.low, watermarks.end, watermarks.log.clone().or(self.log.take()));
        // Watermarks that were requested while the partition was not loading have no high watermark.
        if self.reading == Reading::Reload
            && let Some(high) = watermarks.high
        {
            self.reload(watermarks.low, high);
            self.reading = Reading::Seek;
        }
        // Keep the oldest watermarks until their end is applied. The end of a busy partition moves all the time, so the state would never
        // reach the end of newer watermarks.
        self.awaited.get_or_insert(watermarks);
        self.update_progress();
    }

    fn is_another_log(&self, watermarks: &Watermarks) -> bool {
        match (&self.log, &watermarks.log) {
            (Some(known), Some(log)) => known != log,
            // The brokers did not report the id this time.
            (Some(_), None) => false,
            // Without topic ids, a lower end shows a recreated topic. A new leader can also report a lower end, which causes a needless
            // reload.
            (None, _) => watermarks.end < self.end,
        }
    }

    /// Handles an event. An invalid record stops only this partition.
    fn take(&mut self, event: &Event<'_>) {
        if self.reading != Reading::Active {
            // Unless the partition has failed, the reader delivers these events again after the next seek.
            return;
        }
        match *event {
            Event::Record(Logged { offset, value, .. }) if offset >= self.next => {
                if let Err(message) = self.apply(offset, value) {
                    tracing::error!(changelog = %self.changelog, offset, "{message}");
                    self.shared.set_broken(format!("{} offset {offset}: {message}", self.changelog));
                    self.reading = Reading::Failed;
                }
            }
            Event::Record { .. } => {}
            Event::End(offset) => self.next = self.next.max(offset),
            Event::OutOfRange => {
                tracing::warn!(changelog = %self.changelog, read_to = self.next, "the next offset to read is outside the changelog; loading the changelog again");
                self.forget();
            }
            Event::Error => self.reading = Reading::Seek,
        }
        self.update_progress();
    }

    /// Drops the state. The partition is loaded again after the next watermarks show where the changelog starts.
    fn forget(&mut self) {
        self.shared.begin(self.rules);
        // The cuts are no longer needed, because reading the changelog from its start detects the offset resets again.
        self.cuts.clear();
        self.reading = Reading::Reload;
    }

    fn update_progress(&mut self) {
        if matches!(self.reading, Reading::Reload | Reading::Failed) {
            return;
        }
        if self.next < self.target {
            self.shared.set_progress(self.next - self.low, self.target - self.low);
            if runtime::since(self.reported) > PROGRESS_INTERVAL {
                self.reported = runtime::now();
                let percent = (self.next - self.low) * 100 / (self.target - self.low).max(1);
                tracing::info!(changelog = %self.changelog, percent, keys = self.applier.fingerprints, "loading state from the changelog");
            }
            return;
        }
        let was_ready = self.shared.is_ready();
        self.shared.set_applied(self.standing);
        if !was_ready && self.shared.is_ready() {
            let elapsed_ms = runtime::millis_since(self.began);
            tracing::info!(changelog = %self.changelog, keys = self.applier.fingerprints, elapsed_ms, "state loaded from the changelog; following new records");
        }
        if let Some(watermarks) = self.awaited.take_if(|watermarks| watermarks.end <= self.next) {
            self.shared.set_as_of(watermarks.asked);
        }
    }

    fn apply(&mut self, offset: Offset, value: &[u8]) -> Result<(), String> {
        let record =
            ChangelogRecord::decode(value).map_err(|error| format!("{error}; run the version of unseen that wrote this record"))?;
        self.next = offset + 1;
        if self.cuts.iter().any(|cut| cut.voids(offset, &record)) {
            self.applier.epoch = self.applier.epoch.max(record.epoch);
            return Ok(());
        }
        if record.epoch >= self.applier.epoch {
            let written = self.space.written();
            let is_alike = (record.origin.keys, record.origin.clock) == (written.keys, written.clock);
            self.standing = if is_alike && record.warms_up {
                Standing::WarmingUp
            } else if is_alike {
                Standing::Complete
            } else {
                Standing::OtherKeys
            };
        }
        match self.applier.accept(&record) {
            Outcome::Taken => self.change(&record),
            Outcome::Passed | Outcome::PastBounds => Ok(()),
            Outcome::Foreign => {
                Err("another consumer group or key space writes to this changelog; check that kafka.group_id is the same as the worker's"
                    .to_owned())
            }
            Outcome::SetBack => {
                // Cuts that affect only trimmed records are no longer needed.
                let low = self.low;
                self.cuts.retain(|cut| cut.before > low);
                let cut = self.applier.cut(offset, &record).filter(|_| self.cuts.len() < Cut::MAX);
                let cut = cut.ok_or(
                    "the group's offsets were reset too many times to replay the changelog; stop the workers, keep their state directories, delete the changelog topic, and start the workers again",
                )?;
                tracing::info!(changelog = %self.changelog, input = log_topic(&cut.topic), input_offset = cut.start, "the group's offset for this input was reset to input_offset, or changes from that offset on were never committed; loading the changelog again without the outdated changes");
                let mut cuts = std::mem::take(&mut self.cuts);
                self.forget();
                cut.add_to(&mut cuts);
                self.cuts = cuts;
                Ok(())
            }
            // A follower has no checkpoint, so a gap means that records of the changelog are missing. Load the changelog again.
            Outcome::Gap => {
                self.forget();
                Ok(())
            }
        }
    }

    /// Locks the state for at most [`KEYS`] keys at a time, so that queries can run in between.
    fn change(&self, record: &ChangelogRecord<'_>) -> Result<(), String> {
        let effect = self.applier.effect(record);
        effect.begin(&mut self.shared.write());
        let mut keys: Vec<Fingerprint> = Vec::with_capacity(KEYS);
        for run in effect.runs {
            let mut fingerprints = run.fingerprints();
            loop {
                keys.clear();
                keys.extend(fingerprints.by_ref().take(KEYS));
                if keys.is_empty() {
                    break;
                }
                let mut state = self.shared.write();
                state.prefetch(&keys);
                let done = keys.iter().try_for_each(|&key| state.apply(run.mutation, key));
                done.map_err(|error| error.to_string())?;
            }
            self.shared.applied.fetch_add(run.len(), Ordering::Relaxed);
        }
        effect.end(&mut self.shared.write());
        Ok(())
    }

    fn reload(&mut self, low: Offset, high: Offset) {
        self.shared.begin(self.rules);
        (self.low, self.next, self.target) = (low, low, high);
        (self.applier, self.awaited, self.standing) = (fresh(self.space), None, Standing::Unowned);
        self.space.restarts.fetch_add(1, Ordering::Relaxed);
        self.began = runtime::now();
    }

    fn restart(&mut self, tail: &impl ChangelogTail) -> Result<(), Error> {
        if self.reading == Reading::Seek {
            tail.stop(&self.changelog)?;
            tail.start(&self.changelog, self.next)?;
            self.reading = Reading::Active;
            self.update_progress();
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
