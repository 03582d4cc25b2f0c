//! Applies changelogs to states, record by record, for ever.
//!
//! Owns how far each partition has come. Must never call a state ready that lacks what was committed when it began, nor
//! hold up those who ask for longer than a few keys take.

use crate::broker::{ChangelogTail, Logged, TailEvent as Event};
use crate::changelog::{Applier, ChangelogRecord, Cut, Outcome};
use crate::dedup::Rules;
use crate::follower::Error;
use crate::follower::partition::{Partition, Standing};
use crate::follower::space::Space;
use crate::follower::watcher::Watermarks;
use crate::key::Fingerprint;
use crate::record::{Offset, TopicPartition};
use crate::runtime;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::Receiver;
use std::time::{Duration, Instant};

/// Most events that are taken at a time.
const EVENTS: usize = 256;
/// How long to wait for some; bounds how late a stop and a new partition are noticed.
const WAIT: Duration = Duration::from_millis(50);
/// Keys that are applied while nobody may ask.
const KEYS: usize = 64;
/// How often a line says how far a load has come.
const PROGRESS_INTERVAL: Duration = Duration::from_secs(5);

/// What is applied.
pub(super) struct Appliers<'a, T> {
    spaces: &'a [Space],
    tail: &'a T,
    partitions: Vec<PartitionApplier<'a>>,
    by_name: HashMap<TopicPartition, usize>,
}

/// How far a partition's changelog is applied.
struct PartitionApplier<'a> {
    space: &'a Space,
    shared: Arc<Partition>,
    changelog: TopicPartition,
    rules: Rules,
    applier: Applier,
    cuts: Vec<Cut>,
    low: Offset,
    /// The next offset.
    next: Offset,
    /// What was committed when it began.
    target: Offset,
    /// What was committed when the brokers were asked last, and the id of the log that they were asked for.
    end: Offset,
    log: Option<Arc<str>>,
    /// How far it reached when the brokers were asked, until all of that was applied.
    awaited: Option<Watermarks>,
    /// What the last record says.
    standing: Standing,
    /// How it is read.
    reading: Reading,
    began: Instant,
    reported: Instant,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reading {
    /// Its events are taken.
    Yes,
    /// It is to begin with nothing, as soon as it is known where.
    Anew,
    /// It is to be read from where it has come to.
    Again,
    /// It cannot be followed.
    Never,
}

impl<'a, T: ChangelogTail> Appliers<'a, T> {
    pub(super) fn new(spaces: &'a [Space], tail: &'a T) -> Self {
        Self { spaces, tail, partitions: Vec::new(), by_name: HashMap::new() }
    }

    /// Applies until told to stop.
    pub(super) fn run(mut self, watermarks: &Receiver<Watermarks>, stop: &AtomicBool) -> Result<(), Error> {
        while !stop.load(Ordering::Relaxed) {
            for watermarks in watermarks.try_iter() {
                self.reach(watermarks)?;
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

    /// Takes note of how far a partition reaches. One that was not known begins.
    fn reach(&mut self, watermarks: Watermarks) -> Result<(), Error> {
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
        if !space.wants(watermarks.partition) {
            space.set(None, watermarks.partition, watermarks.partitions);
            return Ok(());
        }
        if let Some(&at) = self.by_name.get(&changelog) {
            self.partitions[at].reaches(watermarks);
            return Ok(());
        }
        let partition = PartitionApplier::new(space, &watermarks);
        // Before it is counted among the partitions: a key may lie in it.
        space.set(Some(Arc::clone(&partition.shared)), watermarks.partition, watermarks.partitions);
        self.tail.start(&changelog, watermarks.low)?;
        self.by_name.insert(changelog, self.partitions.len());
        self.partitions.push(partition);
        if let Some(partition) = self.partitions.last_mut() {
            partition.reaches(watermarks);
        }
        Ok(())
    }

    /// True unless the topic is known to be the same. A broker whose metadata is old may report fewer partitions than there are.
    fn is_recreated(&self, space: &Space, watermarks: &Watermarks) -> bool {
        let known = self.partitions.iter().find(|partition| std::ptr::eq(partition.space, space));
        known.and_then(|partition| partition.log.as_ref()).is_none_or(|known| watermarks.log.as_ref().is_some_and(|log| log != known))
    }

    /// Stops reading all partitions of a space, and drops their states. Each is sized for the previous number of partitions.
    fn drop_partitions(&mut self, space: &Space) -> Result<(), Error> {
        for partition in self.partitions.extract_if(.., |partition| std::ptr::eq(partition.space, space)) {
            self.tail.stop(&partition.changelog)?;
        }
        self.by_name = self.partitions.iter().enumerate().map(|(at, partition)| (partition.changelog.clone(), at)).collect();
        space.clear();
        Ok(())
    }
}

/// Of a state that has seen nothing.
fn fresh(space: &Space) -> Applier {
    Applier::new(BTreeMap::new(), space.origin(), BTreeMap::new(), None, 0)
}

impl<'a> PartitionApplier<'a> {
    /// Nothing of it was applied yet.
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
            target: watermarks.end,
            end: watermarks.end,
            log: watermarks.log.clone(),
            awaited: None,
            standing: Standing::Unowned,
            reading: Reading::Yes,
            began: runtime::now(),
            reported: runtime::now(),
        }
    }

    /// The brokers were asked how far it reaches.
    fn reaches(&mut self, watermarks: Watermarks) {
        if self.is_another_log(&watermarks) {
            tracing::warn!(changelog = %self.changelog, "the changelog was made anew; loading it anew");
            self.forget();
        } else if watermarks.low > self.next && self.reading == Reading::Yes {
            tracing::warn!(changelog = %self.changelog, trimmed_to = watermarks.low, read_to = self.next, "the changelog was trimmed past this follower; loading it anew");
            self.forget();
        }
        (self.low, self.end, self.log) = (watermarks.low, watermarks.end, watermarks.log.clone().or(self.log.take()));
        if self.reading == Reading::Anew {
            self.begin_anew(watermarks.low, watermarks.end);
            self.reading = Reading::Again;
        }
        // One at a time, or a busy partition would never come to the end of any.
        self.awaited.get_or_insert(watermarks);
        self.arrive();
    }

    /// Whether a topic of the same name was made since.
    fn is_another_log(&self, watermarks: &Watermarks) -> bool {
        match (&self.log, &watermarks.log) {
            (Some(known), Some(log)) => known != log,
            // This time, the brokers did not say.
            (Some(_), None) => false,
            // Where brokers give no ids. A new leader, too, may not know at once how far it reaches.
            (None, _) => watermarks.end < self.end,
        }
    }

    /// Something came of it. What it cannot take breaks it, and no other partition.
    fn take(&mut self, event: &Event<'_>) {
        if self.reading != Reading::Yes {
            // What comes is read again.
            return;
        }
        match *event {
            Event::Record(Logged { offset, value, .. }) if offset >= self.next => {
                if let Err(sentence) = self.apply(offset, value) {
                    tracing::error!(changelog = %self.changelog, offset, "{sentence}");
                    self.shared.broken(format!("{} offset {offset}: {sentence}", self.changelog));
                    self.reading = Reading::Never;
                }
            }
            Event::Record { .. } => {}
            Event::End(offset) => self.next = self.next.max(offset),
            Event::OutOfRange => {
                tracing::warn!(changelog = %self.changelog, read_to = self.next, "the changelog does not reach to where it was read; loading it anew");
                self.forget();
            }
            Event::Error => self.reading = Reading::Again,
        }
        self.arrive();
    }

    /// Nothing is known of it until it was read from its beginning, which the brokers' next word says.
    fn forget(&mut self) {
        self.shared.begin(self.rules);
        // They were of what was read before; what is read now says its own.
        self.cuts.clear();
        self.reading = Reading::Anew;
    }

    /// Whether it is loaded, and as of when it is up to date.
    fn arrive(&mut self) {
        if matches!(self.reading, Reading::Anew | Reading::Never) {
            return;
        }
        if self.next < self.target {
            self.shared.come_to(self.next - self.low, self.target - self.low);
            if runtime::since(self.reported) > PROGRESS_INTERVAL {
                self.reported = runtime::now();
                let percent = (self.next - self.low) * 100 / (self.target - self.low).max(1);
                tracing::info!(changelog = %self.changelog, percent, keys = self.applier.fingerprints, "loading the state from the changelog");
            }
            return;
        }
        let was_ready = self.shared.is_ready();
        self.shared.arrived(self.standing);
        if !was_ready && self.shared.is_ready() {
            let elapsed_ms = runtime::since(self.began).as_millis();
            tracing::info!(changelog = %self.changelog, keys = self.applier.fingerprints, elapsed_ms, "state loaded from the changelog; following it");
        }
        if let Some(watermarks) = self.awaited.take_if(|watermarks| watermarks.end <= self.next) {
            self.shared.is_as_of(watermarks.asked);
        }
    }

    fn apply(&mut self, offset: Offset, value: &[u8]) -> Result<(), String> {
        let record = ChangelogRecord::decode(value).map_err(|error| format!("{error}; run the version of unseen that wrote it"))?;
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
            Outcome::Passed => Ok(()),
            Outcome::Foreign => {
                Err("another consumer group or key space writes to this changelog; is kafka.group_id the worker's?".to_owned())
            }
            Outcome::SetBack => {
                // What was set back within what is trimmed by now needs no cut any more.
                let low = self.low;
                self.cuts.retain(|cut| cut.before > low);
                let cut = self.applier.cut(offset, &record).filter(|_| self.cuts.len() < Cut::MAX);
                let cut = cut.ok_or(
                    "the group was set back too often for its changelog to be followed; delete the topic, and start the workers again",
                )?;
                tracing::info!(changelog = %self.changelog, topic = cut.topic, offset = cut.start, "the group was set back; loading anew without what was logged past that");
                let mut cuts = std::mem::take(&mut self.cuts);
                self.forget();
                cut.add_to(&mut cuts);
                self.cuts = cuts;
                Ok(())
            }
            // There is no checkpoint that it could begin after.
            Outcome::Gap => {
                self.forget();
                Ok(())
            }
        }
    }

    /// Changes the state by a record, a few keys at a time.
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

    /// Goes on with a state that has seen nothing, where the changelog reaches from `low` to `end`.
    fn begin_anew(&mut self, low: Offset, end: Offset) {
        self.shared.begin(self.rules);
        (self.low, self.next, self.target) = (low, low, end);
        (self.applier, self.awaited, self.standing) = (fresh(self.space), None, Standing::Unowned);
        self.space.restarts.fetch_add(1, Ordering::Relaxed);
        self.began = runtime::now();
    }

    /// Has it read elsewhere, if that is to be, and can be.
    fn restart(&mut self, tail: &impl ChangelogTail) -> Result<(), Error> {
        if self.reading == Reading::Again {
            tail.stop(&self.changelog)?;
            tail.start(&self.changelog, self.next)?;
            self.reading = Reading::Yes;
            self.arrive();
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
