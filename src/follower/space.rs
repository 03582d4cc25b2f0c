//! A followed key space: its partitions and the lookup of its keys.
//!
//! A space never answers for a partition that this process does not follow.

use super::Error;
use super::partition::Partition;
use super::query::{Answer, Query, Unavailable};
use super::routing::Routing;
use crate::changelog::Origin;
use crate::checkpoint::Settings;
use crate::config::{Config, Filter, KeySpace, Partitions, Topic};
use crate::dedup::Rules;
use crate::filter::{Kind, Size, Window};
use crate::key::{Fingerprint, KeySpec, LookupError, Part};
use crate::record::TopicPartition;
use crate::runtime;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::Duration;

/// A key space of a [`Follower`](super::Follower), for lookups of its keys.
#[derive(Debug)]
pub struct Space {
    name: String,
    changelog: String,
    /// The distinct key definitions of the space's topics, each with the index of the part that is the record key, if any.
    keys: Vec<(KeySpec, Option<usize>)>,
    /// The first topic of the space, with the filter of this follower. Its window and all other settings that must be equal in a space
    /// apply to all topics of the space.
    topic: Topic,
    pub(super) routing: Routing,
    wanted: Option<Partitions>,
    max_staleness: Option<Duration>,
    /// The origin (hashes of settings) that a worker with this configuration writes to changelog records.
    written: Origin,
    /// The origin of this follower's states. Can differ from `written`, because an origin contains the text of the filter, and the follower
    /// can use a different filter than the worker.
    origin: Origin,
    /// The partitions by number. `None` if a partition is not followed, or not known yet. Empty until the changelog is found.
    partitions: RwLock<Vec<Option<Arc<Partition>>>>,
    /// The length of `partitions`, for lookups without the lock.
    count: AtomicU32,
    /// True if the number of partitions has changed since the start. An old key may then be in a different partition than the one that its
    /// hash selects now.
    pub(super) was_resized: AtomicBool,
    /// The last result of [`Space::sized`], with its number of partitions.
    sized: Mutex<Option<(u32, Rules)>>,
    pub(super) restarts: AtomicU64,
    pub(super) seen: AtomicU64,
    pub(super) unseen: AtomicU64,
    pub(super) unknown: AtomicU64,
}

impl Space {
    pub(super) fn new(config: &Config, space: &KeySpace<'_>) -> Result<Self, Error> {
        let first = space.first();
        let own = config.serve.filters.get(space.name);
        let filter = own.cloned().filter(|_| first.on_change.is_none()).map_or_else(|| default_filter(space), Ok)?;
        let mut keys: Vec<(KeySpec, Option<usize>)> = Vec::new();
        for topic in &space.topics {
            // If two key definitions produce the same fingerprints from the same texts, one lookup covers both.
            if !keys.iter().any(|(known, _)| same_fingerprints(known, &topic.key)) {
                let record_key = topic.key.parts().iter().position(|part| *part == Part::RecordKey);
                keys.push((topic.key.clone(), record_key));
            }
        }
        let settings = Settings::of(config, first);
        let origin_of = |filter: &Filter| {
            let topic = Topic { filter: filter.clone(), ..first.clone() };
            let settings = Settings { filter: filter.to_string(), ..settings.clone() };
            settings.origin(config, &topic, &topic.rules(1))
        };
        let changelog = config.changelog(space.name).unwrap_or_default();
        Ok(Self {
            name: space.name.to_owned(),
            changelog,
            keys,
            routing: Routing::new(space, config.serve.partitioner),
            wanted: config.serve.partitions.clone(),
            max_staleness: config.serve.max_staleness,
            written: origin_of(&first.filter),
            origin: origin_of(&filter),
            topic: Topic { filter, ..first.clone() },
            partitions: RwLock::default(),
            count: AtomicU32::new(0),
            was_resized: AtomicBool::new(false),
            sized: Mutex::default(),
            restarts: AtomicU64::new(0),
            seen: AtomicU64::new(0),
            unseen: AtomicU64::new(0),
            unknown: AtomicU64::new(0),
        })
    }

    /// Returns the name of the key space.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the deduplication window of the key space.
    #[must_use]
    pub const fn window(&self) -> Window {
        self.topic.window
    }

    /// Returns the filter of this follower: the entry in `serve.filters`, or else the worker's filter without its exact store.
    #[must_use]
    pub const fn filter(&self) -> &Filter {
        &self.topic.filter
    }

    /// Returns the rules of a partition if the space has `partitions` partitions. Sizing a filter takes milliseconds, so the last result is
    /// cached.
    fn sized(&self, partitions: u32) -> Rules {
        let mut last = self.sized.lock().unwrap_or_else(PoisonError::into_inner);
        match *last {
            Some((of, rules)) if of == partitions => rules,
            _ => last.insert((partitions, self.topic.rules(partitions))).1,
        }
    }

    /// Adds a key to a query, given the texts of its parts. See [`KeySpec::fingerprints_of_texts`].
    ///
    /// # Errors
    /// Returns [`LookupError`] if no topic of the space has such keys, or if the texts have too many interpretations. The query is then
    /// unchanged.
    #[expect(clippy::needless_pass_by_value, reason = "an iterator that the caller creates")]
    pub fn add<'t>(&self, query: &mut Query, texts: impl ExactSizeIterator<Item = &'t [u8]> + Clone) -> Result<(), LookupError> {
        let is_routed = self.routing != Routing::Any && !self.was_resized.load(Ordering::Relaxed);
        let partitions = if is_routed { self.count() } else { 0 };
        let mut problem = None;
        let before = query.fingerprints.len();
        for (keys, record_key) in &self.keys {
            let begin = query.fingerprints.len();
            match keys.fingerprints_of_texts(texts.clone(), &mut query.scratch, &mut query.fingerprints) {
                Ok(()) if partitions == 0 => query.partitions.resize(query.fingerprints.len(), None),
                Ok(()) => {
                    let record_key = record_key.and_then(|at| texts.clone().nth(at));
                    for &fingerprint in &query.fingerprints[begin..] {
                        query.partitions.push(self.routing.partition(fingerprint, record_key, partitions));
                    }
                }
                // The texts may be a key of this definition, but they have too many interpretations to look up all of them. Without these
                // lookups, the answer "not seen" could be wrong.
                Err(error @ LookupError::Ambiguous) => {
                    query.fingerprints.truncate(before);
                    query.partitions.truncate(before);
                    return Err(error);
                }
                Err(error) => problem = Some(error),
            }
        }
        match problem {
            Some(problem) if query.fingerprints.len() == before => Err(problem),
            _ => {
                query.ends.push(query.fingerprints.len());
                Ok(())
            }
        }
    }

    pub(super) fn lock(&self) -> std::sync::RwLockReadGuard<'_, Vec<Option<Arc<Partition>>>> {
        self.partitions.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns one answer per key of a query, in order. If an answer is [`Answer::Unknown`], also returns the reason.
    pub fn answer<'l>(&self, query: &'l mut Query) -> (&'l [Answer], Option<Unavailable>) {
        let unavailable = self.ask(query);
        query.answers.clear();
        let mut begin = 0;
        for &end in &query.ends {
            let (seen, unknown) = (&query.seen[begin..end], &query.unknown[begin..end]);
            query.answers.push(match (seen.contains(&true), unknown.contains(&true)) {
                (true, _) => Answer::Seen,
                (false, true) => Answer::Unknown,
                (false, false) => Answer::Unseen,
            });
            begin = end;
        }
        for (answer, count) in [(Answer::Seen, &self.seen), (Answer::Unseen, &self.unseen), (Answer::Unknown, &self.unknown)] {
            let answers = query.answers.iter().filter(|&&other| other == answer).count();
            if answers > 0 {
                count.fetch_add(answers as u64, Ordering::Relaxed);
            }
        }
        (&query.answers, unavailable)
    }

    fn ask(&self, query: &mut Query) -> Option<Unavailable> {
        let Query { fingerprints, partitions, seen, unknown, .. } = query;
        for flags in [&mut *seen, &mut *unknown] {
            flags.clear();
            flags.resize(fingerprints.len(), false);
        }
        let all = self.lock();
        if let Some(unavailable) = self.unavailable(&all) {
            unknown.fill(true);
            return Some(unavailable);
        }
        if !partitions.contains(&None) && !self.was_resized.load(Ordering::Relaxed) {
            return self.ask_by_partition(&all, query);
        }
        let mut unavailable = None;
        for (number, partition) in all.iter().enumerate() {
            if let Err(reason) = self.ask_one(number, partition.as_deref(), fingerprints, seen) {
                unknown.fill(true);
                unavailable = Some(reason);
            }
        }
        unavailable
    }

    fn ask_by_partition(&self, all: &[Option<Arc<Partition>>], query: &mut Query) -> Option<Unavailable> {
        let Query { fingerprints, partitions, seen, unknown, order, chosen, found, .. } = query;
        let partition = |number: &usize| partitions[*number].unwrap_or_default();
        order.clear();
        order.extend(0..fingerprints.len());
        order.sort_unstable_by_key(partition);
        let mut unavailable = None;
        for numbers in order.chunk_by(|one, next| partition(one) == partition(next)) {
            let at = partition(&numbers[0]) as usize;
            chosen.clear();
            chosen.extend(numbers.iter().map(|&number| fingerprints[number]));
            found.clear();
            found.resize(chosen.len(), false);
            let answer = self.ask_one(at, all.get(at).and_then(Option::as_deref), chosen, found);
            for (&number, &found) in numbers.iter().zip(&*found) {
                (seen[number], unknown[number]) = (found, answer.is_err());
            }
            unavailable = unavailable.or(answer.err());
        }
        unavailable
    }

    fn ask_one(
        &self,
        number: usize,
        partition: Option<&Partition>,
        fingerprints: &[Fingerprint],
        seen: &mut [bool],
    ) -> Result<(), Unavailable> {
        partition.ok_or_else(|| self.missing(number))?.ask(fingerprints, seen)
    }

    pub(super) fn missing(&self, number: usize) -> Unavailable {
        let partition = i32::try_from(number).unwrap_or(i32::MAX);
        if self.follows(partition) { Unavailable::Loading { partition, percent: 0 } } else { Unavailable::NotFollowed { partition } }
    }

    /// Returns the reason if the space cannot answer any query.
    pub(super) fn unavailable(&self, all: &[Option<Arc<Partition>>]) -> Option<Unavailable> {
        if all.is_empty() {
            return Some(Unavailable::Nothing { changelog: self.changelog.clone() });
        }
        let most = self.max_staleness?;
        // Partitions that are not ready report their own reasons.
        let as_of = all.iter().flatten().filter_map(|partition| partition.as_of()).min()?;
        let age = Duration::from_millis(runtime::wall_clock().saturating_sub(as_of).unsigned_abs());
        (age > most).then_some(Unavailable::Stale { age, most })
    }

    pub(super) fn changelog(&self, partition: i32) -> TopicPartition {
        TopicPartition { topic: self.changelog.clone(), partition }
    }

    pub(super) fn changelog_name(&self) -> &str {
        &self.changelog
    }

    pub(super) const fn written(&self) -> Origin {
        self.written
    }

    pub(super) const fn origin(&self) -> Origin {
        self.origin
    }

    pub(super) fn follows(&self, partition: i32) -> bool {
        self.wanted.as_ref().is_none_or(|wanted| wanted.contains(partition))
    }

    /// True until the changelog of the partition is completely applied. Also true for a partition that is not known yet.
    pub(super) fn is_loading(&self, partition: i32) -> bool {
        let all = self.partitions.read().unwrap_or_else(PoisonError::into_inner);
        let known = usize::try_from(partition).ok().and_then(|at| all.get(at)?.as_ref());
        known.is_none_or(|partition| partition.is_loading())
    }

    /// Returns the number of partitions, or 0 if it is not known.
    pub(super) fn count(&self) -> u32 {
        self.count.load(Ordering::Acquire)
    }

    /// Drops all partitions, because the changelog was recreated with fewer partitions.
    pub(super) fn clear(&self) {
        let mut all = self.partitions.write().unwrap_or_else(PoisonError::into_inner);
        self.was_resized.store(true, Ordering::Relaxed);
        all.clear();
        self.count.store(0, Ordering::Release);
    }

    /// Adds or replaces a partition. `partitions` is the number of all partitions. `followed` is `None` if this process does not follow the
    /// partition.
    pub(super) fn set(&self, followed: Option<Arc<Partition>>, partition: i32, partitions: u32) {
        let mut all = self.partitions.write().unwrap_or_else(PoisonError::into_inner);
        let count = usize::try_from(partitions).unwrap_or(0).max(all.len());
        if !all.is_empty() && count > all.len() {
            self.was_resized.store(true, Ordering::Relaxed);
        }
        all.resize(count, None);
        self.count.store(u32::try_from(count).unwrap_or(u32::MAX), Ordering::Release);
        if let Some(place) = usize::try_from(partition).ok().and_then(|at| all.get_mut(at)) {
            *place = followed;
        }
    }

    /// Returns the rules of a followed partition if the space has `partitions` partitions. The follower has no exact store, because the
    /// stored fingerprints are on the worker's disk.
    pub(super) fn rules(&self, partitions: u32) -> Rules {
        let rules = Rules { exact: false, ..self.sized(partitions) };
        // In a window by count, the worker and the follower may divide the window into the same slices. The follower then takes the slice
        // of each key from the changelog and must not count keys itself.
        let window = match rules.window {
            Window::Keys { slices, .. } if self.written.clock == self.origin.clock => Window::Keys { slice_keys: u64::MAX, slices },
            window => window,
        };
        Rules { window, ..rules }
    }
}

/// True if the same texts give the same fingerprints with both definitions.
fn same_fingerprints(one: &KeySpec, other: &KeySpec) -> bool {
    let kind = |part: &Part| match part {
        // Bytes from all sources have the same hash. The record key is listed separately, because it can determine the partition.
        Part::RecordKey => (0, None),
        Part::RecordValue | Part::Header(_) | Part::HeaderInAnyCase(_) | Part::CloudEvent(_) => (1, None),
        Part::Field(_) | Part::KeyField(_) | Part::Embedded(..) => (2, None),
        Part::Content { except } => (3, Some(except.clone())),
        Part::Optional(_) | Part::FirstOf(_) | Part::Normalized(..) => (4, Some(vec![part.to_string()])),
    };
    one.hashing_id() == other.hashing_id() && one.parts().iter().map(kind).eq(other.parts().iter().map(kind))
}

/// Returns the filter of a space without an entry in `serve.filters`: the worker's filter, without the exact store on the worker's disk.
fn default_filter(space: &KeySpace<'_>) -> Result<Filter, Error> {
    let first = space.first();
    let filter = Filter { confirm: false, ..first.filter.clone() };
    let name = space.name;
    if first.on_change.is_some() {
        let message =
            "`unseen serve` does not follow a space with emit = \"on_change\"; give the servers a configuration without its topics";
        return Err(Error::Config(format!("space {name:?}: {message}")));
    }
    let kinds = Kind::list('"', |kind| kind.can_retract && kind.size == Size::Capacity);
    let own = format!("configure a filter for serving this space: [serve.filters.{name}] kind = {kinds}, capacity = ...");
    if filter.is_exact() {
        return Err(Error::Config(format!(
            "space {name:?}: a filter of kind {:?} stores its keys on the worker's disk, where a server cannot read them; {own}",
            filter.kind.name()
        )));
    }
    // With `confirm`, the filter in memory may have a high error rate. Without the exact store, a retraction would often remove another
    // key.
    if first.filter.confirm && space.topics.iter().any(|topic| topic.retract.is_some()) {
        return Err(Error::Config(format!(
            "space {name:?}: with confirm, exact retraction needs the fingerprints on the worker's disk, which a server cannot read; {own}"
        )));
    }
    Ok(filter)
}
