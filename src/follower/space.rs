//! One key space that is followed: how its keys are asked for, and where its states are.
//!
//! Must never answer for a partition that it does not hold.

use super::Error;
use super::held::Held;
use super::lookup::{Answer, Lookup, Unavailable};
use super::routing::Routing;
use crate::changelog::Origin;
use crate::checkpoint::Settings;
use crate::clock;
use crate::config::{Config, Filter, KeySpace, Partitions, Topic};
use crate::dedup::Rules;
use crate::filter::Window;
use crate::key::{Fingerprint, KeySpec, LookupError, Part};
use crate::record::{Timestamp, TopicPartition};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

/// A key space that is followed.
#[derive(Debug)]
pub struct Space {
    name: String,
    changelog: String,
    /// The ways in which its topics make keys; no two are alike.
    keys: Vec<KeySpec>,
    /// The topic that says for all what they agree on, with the filter that this follower has.
    topic: Topic,
    routing: Routing,
    wanted: Option<Partitions>,
    max_staleness: Option<Duration>,
    /// What the worker writes, by this configuration.
    written: Origin,
    /// What this follower makes of it.
    origin: Origin,
    /// By their numbers; none for those that are not held.
    held: RwLock<Vec<Option<Arc<Held>>>>,
    /// Whether partitions were added since it began: where a key of before lies is not known then.
    has_grown: AtomicBool,
    pub(super) restarts: AtomicU64,
    seen: AtomicU64,
    unseen: AtomicU64,
    unknown: AtomicU64,
}

/// How a space stands.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct SpaceReport {
    /// Partitions of its changelog that are held.
    pub partitions: usize,
    /// Of these, those that are ready to be asked.
    pub ready: usize,
    /// Why it cannot be asked, if it cannot.
    pub unavailable: Option<Unavailable>,
    /// Since what time there may be commits that are not known, in milliseconds since the epoch.
    pub as_of: Option<Timestamp>,
    /// The latest stream time of its partitions.
    pub stream_time: Option<Timestamp>,
    /// Keys remembered.
    pub keys: u64,
    /// Keys that the filters are made for.
    pub capacity: u64,
    /// Memory of the filters, in bytes.
    pub bytes: u64,
    /// Share of unseen keys that are called seen, by formula, over all partitions that a key is asked for in.
    pub rate: f64,
    /// Keys that were applied from the changelog since the start.
    pub applied: u64,
    /// Times that a partition was begun anew.
    pub restarts: u64,
    /// Answers that a key was seen, that it was not, and that this is not known.
    pub answers: [u64; 3],
}

impl Space {
    pub(super) fn new(config: &Config, space: &KeySpace<'_>) -> Result<Self, Error> {
        let first = space.first();
        let own = config.serve.filters.get(space.name);
        let filter = own.cloned().map_or_else(|| default_filter(space), Ok)?;
        let mut keys: Vec<KeySpec> = Vec::new();
        for topic in &space.topics {
            // What a text means follows from the kinds of the parts alone, so a way of the same kinds is asked once.
            if !keys.iter().any(|known| means_the_same(known, &topic.key)) {
                keys.push(topic.key.clone());
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
            held: RwLock::default(),
            has_grown: AtomicBool::new(false),
            restarts: AtomicU64::new(0),
            seen: AtomicU64::new(0),
            unseen: AtomicU64::new(0),
            unknown: AtomicU64::new(0),
        })
    }

    /// Its name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The window of its keys.
    #[must_use]
    pub const fn window(&self) -> Window {
        self.topic.window
    }

    /// What remembers its keys here.
    #[must_use]
    pub const fn filter(&self) -> &Filter {
        &self.topic.filter
    }

    /// Adds a key to a lookup, by the texts of its parts: see [`KeySpec::fingerprints_of_texts`].
    ///
    /// # Errors
    /// [`LookupError`] when no topic of the space has such keys. The lookup is as it was.
    #[expect(clippy::needless_pass_by_value, reason = "an iterator, made where it is given")]
    pub fn add<'t>(&self, lookup: &mut Lookup, texts: impl ExactSizeIterator<Item = &'t [u8]> + Clone) -> Result<(), LookupError> {
        let is_routed = self.routing != Routing::Any && !self.has_grown.load(Ordering::Relaxed);
        let partitions = if is_routed { self.partitions() } else { 0 };
        let mut problem = None;
        let before = lookup.fingerprints.len();
        for keys in &self.keys {
            let begin = lookup.fingerprints.len();
            match keys.fingerprints_of_texts(texts.clone(), &mut lookup.scratch, &mut lookup.fingerprints) {
                Ok(()) if partitions == 0 => {}
                Ok(()) => {
                    let at = keys.parts().iter().position(|part| *part == Part::RecordKey);
                    let record_key = at.and_then(|at| texts.clone().nth(at));
                    let found = lookup.fingerprints[begin..].iter();
                    lookup.partitions.extend(found.map(|&fingerprint| self.routing.partition(fingerprint, record_key, partitions)));
                }
                // Here there may be such a key, and it is not asked for.
                Err(error @ LookupError::Ambiguous) => {
                    lookup.fingerprints.truncate(before);
                    lookup.partitions.truncate(lookup.partitions.len().min(before));
                    return Err(error);
                }
                Err(error) => problem = Some(error),
            }
        }
        match problem {
            Some(problem) if lookup.fingerprints.len() == before => Err(problem),
            _ => {
                lookup.ends.push(lookup.fingerprints.len());
                Ok(())
            }
        }
    }

    /// Number of partitions of the changelog, as far as it is known.
    fn partitions(&self) -> u32 {
        u32::try_from(self.lock().len()).unwrap_or(u32::MAX)
    }

    fn lock(&self) -> std::sync::RwLockReadGuard<'_, Vec<Option<Arc<Held>>>> {
        self.held.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Answers for each key of a lookup, in order, and says why where one is [`Answer::Unknown`].
    pub fn answer<'l>(&self, lookup: &'l mut Lookup) -> (&'l [Answer], Option<Unavailable>) {
        let unavailable = self.ask(lookup);
        lookup.answers.clear();
        let mut begin = 0;
        for &end in &lookup.ends {
            let (seen, unknown) = (&lookup.seen[begin..end], &lookup.unknown[begin..end]);
            lookup.answers.push(match (seen.contains(&true), unknown.contains(&true)) {
                (true, _) => Answer::Seen,
                (false, true) => Answer::Unknown,
                (false, false) => Answer::Unseen,
            });
            begin = end;
        }
        for (answer, count) in [(Answer::Seen, &self.seen), (Answer::Unseen, &self.unseen), (Answer::Unknown, &self.unknown)] {
            let answers = lookup.answers.iter().filter(|&&other| other == answer).count();
            if answers > 0 {
                count.fetch_add(answers as u64, Ordering::Relaxed);
            }
        }
        (&lookup.answers, unavailable)
    }

    fn ask(&self, lookup: &mut Lookup) -> Option<Unavailable> {
        let Lookup { fingerprints, partitions, seen, unknown, .. } = lookup;
        for flags in [&mut *seen, &mut *unknown] {
            flags.clear();
            flags.resize(fingerprints.len(), false);
        }
        let held = self.lock();
        if let Some(unavailable) = self.unavailable(&held) {
            unknown.fill(true);
            return Some(unavailable);
        }
        let is_routed = partitions.len() == fingerprints.len() && !partitions.contains(&None);
        if is_routed && !self.has_grown.load(Ordering::Relaxed) {
            return self.ask_where_they_lie(&held, lookup);
        }
        let mut unavailable = None;
        for (number, held) in held.iter().enumerate() {
            if let Err(reason) = self.ask_one(number, held.as_deref(), fingerprints, seen) {
                unknown.fill(true);
                unavailable = Some(reason);
            }
        }
        unavailable
    }

    /// Asks each partition for the keys that lie in it.
    fn ask_where_they_lie(&self, held: &[Option<Arc<Held>>], lookup: &mut Lookup) -> Option<Unavailable> {
        let Lookup { fingerprints, partitions, seen, unknown, order, chosen, found, .. } = lookup;
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
            let answer = self.ask_one(at, held.get(at).and_then(Option::as_deref), chosen, found);
            for (&number, &found) in numbers.iter().zip(&*found) {
                (seen[number], unknown[number]) = (found, answer.is_err());
            }
            unavailable = unavailable.or(answer.err());
        }
        unavailable
    }

    fn ask_one(&self, number: usize, held: Option<&Held>, fingerprints: &[Fingerprint], seen: &mut [bool]) -> Result<(), Unavailable> {
        held.ok_or_else(|| self.missing(number))?.ask(fingerprints, seen)
    }

    /// Why a partition is not there.
    fn missing(&self, number: usize) -> Unavailable {
        let partition = i32::try_from(number).unwrap_or(i32::MAX);
        if self.wants(partition) { Unavailable::Loading { partition, percent: 0 } } else { Unavailable::NotHeld { partition } }
    }

    /// Why nothing can be said of any key.
    fn unavailable(&self, held: &[Option<Arc<Held>>]) -> Option<Unavailable> {
        if held.is_empty() {
            return Some(Unavailable::Nothing { changelog: self.changelog.clone() });
        }
        let most = self.max_staleness?;
        // What is not ready says so itself.
        let as_of = held.iter().flatten().filter_map(|held| held.as_of()).min()?;
        let age = Duration::from_millis(clock::now().saturating_sub(as_of).unsigned_abs());
        (age > most).then_some(Unavailable::Stale { age, most })
    }

    /// How it stands now.
    #[must_use]
    pub fn report(&self) -> SpaceReport {
        let held = self.lock();
        let mut report = SpaceReport {
            unavailable: self.unavailable(&held),
            restarts: self.restarts.load(Ordering::Relaxed),
            answers: [&self.seen, &self.unseen, &self.unknown].map(|count| count.load(Ordering::Relaxed)),
            ..SpaceReport::default()
        };
        let rules = self.rules(u32::try_from(held.len()).unwrap_or(u32::MAX));
        let mut rates = Vec::new();
        for (number, held) in held.iter().enumerate() {
            let Some(held) = held else {
                if self.wants(i32::try_from(number).unwrap_or(i32::MAX)) {
                    report.partitions += 1;
                    report.unavailable = Some(self.missing(number));
                }
                continue;
            };
            report.partitions += 1;
            match held.check() {
                Ok(()) => report.ready += 1,
                Err(reason) => report.unavailable = Some(reason),
            }
            let (usage, stream_time, rate) = held.usage();
            report.keys += usage.keys;
            report.bytes += usage.bytes;
            report.capacity += rules.capacity().unwrap_or(0);
            report.stream_time = report.stream_time.max(stream_time);
            report.applied += held.applied.load(Ordering::Relaxed);
            rates.push(rate);
        }
        report.rate = match self.routing {
            Routing::Repartitioned | Routing::ByRecordKey(_) if !self.has_grown.load(Ordering::Relaxed) => {
                rates.iter().copied().fold(0.0, f64::max)
            }
            _ => 1.0 - rates.iter().map(|rate| 1.0 - rate).product::<f64>(),
        };
        report.as_of = self.as_of_all(&held);
        report
    }

    /// Since what time there may be commits that are not known, in milliseconds since the epoch; none until that is
    /// known of all partitions.
    #[must_use]
    pub fn as_of(&self) -> Option<Timestamp> {
        self.as_of_all(&self.lock())
    }

    fn as_of_all(&self, all: &[Option<Arc<Held>>]) -> Option<Timestamp> {
        let mut least = None;
        for (number, held) in all.iter().enumerate() {
            match held {
                Some(held) => least = Some(held.as_of()?).filter(|&time| least.is_none_or(|least| time < least)).or(least),
                None if self.wants(i32::try_from(number).unwrap_or(i32::MAX)) => return None,
                None => {}
            }
        }
        least
    }

    // ---- For those who fill it. ----

    /// A partition of its changelog.
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

    /// Whether a partition is to be held here.
    pub(super) fn wants(&self, partition: i32) -> bool {
        self.wanted.as_ref().is_none_or(|wanted| wanted.contains(partition))
    }

    /// Holds a partition, of so many.
    pub(super) fn hold(&self, held: Option<Arc<Held>>, partition: i32, partitions: u32) {
        let mut all = self.held.write().unwrap_or_else(PoisonError::into_inner);
        let count = usize::try_from(partitions).unwrap_or(0).max(all.len());
        if !all.is_empty() && count > all.len() {
            self.has_grown.store(true, Ordering::Relaxed);
        }
        all.resize(count, None);
        if let Some(place) = usize::try_from(partition).ok().and_then(|at| all.get_mut(at)) {
            *place = held;
        }
    }

    /// The rules of one of so many partitions. Nothing is confirmed: fingerprints on disk are the worker's.
    pub(super) fn rules(&self, partitions: u32) -> Rules {
        let rules = Rules { exact: false, ..self.topic.rules(partitions) };
        // Which slice a key belongs to is said by who counts them: the worker, if it has slices.
        let window = match rules.window {
            Window::Keys { slices, .. } if self.written.clock == self.origin.clock => Window::Keys { slice_keys: u64::MAX, slices },
            window => window,
        };
        Rules { window, ..rules }
    }
}

/// Whether texts mean the same keys to both.
fn means_the_same(one: &KeySpec, other: &KeySpec) -> bool {
    let kind = |part: &Part| match part {
        // Bytes, whatever they are called. A record key may say which partition it lies in.
        Part::RecordKey => (0, None),
        Part::RecordValue | Part::Header(_) | Part::CloudEvent(_) => (1, None),
        Part::Field(_) | Part::KeyField(_) => (2, None),
        Part::Content { except } => (3, Some(except.clone())),
    };
    one.hashing_id() == other.hashing_id() && one.parts().iter().map(kind).eq(other.parts().iter().map(kind))
}

/// The filter of a space that has none of its own here: the worker's, without what is on the worker's disk.
fn default_filter(space: &KeySpace<'_>) -> Result<Filter, Error> {
    let first = space.first();
    let filter = Filter { confirm: false, ..first.filter.clone() };
    let name = space.name;
    let own = format!("give this space a filter of its own here: [serve.filters.{name}] kind = \"cuckoo\", capacity = ...");
    if filter.is_exact() {
        return Err(Error::Config(format!("space {name:?}: kind \"exact\" is kept on the worker's disk; {own}")));
    }
    if space.topics.iter().any(|topic| topic.retract.is_some()) && !filter.can_retract() {
        let kind = filter.kind.name();
        return Err(Error::Config(format!(
            "space {name:?}: kind {kind:?} alone cannot retract a key, and the worker's disk is not here; {own}"
        )));
    }
    Ok(filter)
}
