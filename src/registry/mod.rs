//! The schemas of a registry: asked for once, kept, and waited for by nobody but who needs them.
//!
//! Owns the one thread that asks, and what it has heard. Must never drop a question because the registry is down: it is
//! asked again until it answers. Must never take its silence for an answer.

mod client;

use crate::config::SchemaRegistry;
use crate::format::{Lookup, Schema, SchemaId, Schemas};
use crate::stats::RegistryReport;
use client::{Client, Failure};
use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Schemas that are kept, and their bytes; past that, the oldest goes, and is asked for again.
const SCHEMAS_MAX: usize = 4096;
const BYTES_MAX: usize = 64 << 20;

/// Schemas that are known not to be there. They are counted by themselves: records may name any.
const UNKNOWN_MAX: usize = 4096;

/// How long a registry must say that it does not know a schema before that is taken for true. One that starts knows none
/// for a while (so does Karapace), and one that follows another hears late.
const MISSING_AFTER: Duration = Duration::from_secs(10);

/// How long it then stands.
const UNKNOWN_FOR: Duration = Duration::from_secs(60);

/// Waits between tries that fail: from the first, doubled up to the second.
const BACKOFF: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(5));

/// A schema registry.
pub struct Registry {
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    heard: Mutex<Heard>,
    /// Something was asked, or heard, or it is over.
    news: Condvar,
}

#[derive(Default)]
struct Heard {
    entries: HashMap<SchemaId, Entry>,
    /// Those that are known, the oldest first, and their bytes.
    known: VecDeque<SchemaId>,
    bytes: usize,
    /// Those that are not there, the oldest first.
    unknown: VecDeque<SchemaId>,
    /// To be asked for, the next first.
    asked: VecDeque<SchemaId>,
    /// Since when the registry has said that it does not know them.
    missing: HashMap<SchemaId, Instant>,
    report: RegistryReport,
    closing: bool,
}

enum Entry {
    Known(Arc<Schema>),
    Unknown { why: Arc<str>, until: Instant },
    Asked,
}

impl fmt::Debug for Registry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Registry").field("report", &self.report()).finish_non_exhaustive()
    }
}

impl Registry {
    /// Begins to answer; asks nothing yet.
    ///
    /// # Errors
    /// A sentence, when the configured files cannot be used.
    pub fn start(config: &SchemaRegistry) -> Result<Self, String> {
        let client = Client::new(config)?;
        let shared = Arc::new(Shared::default());
        let asking = Arc::clone(&shared);
        let thread = std::thread::Builder::new().name("schemas".to_owned());
        // It ends by itself: nobody waits for a registry that does not answer.
        thread.spawn(move || asking.ask(&client)).map_err(|error| format!("cannot start a thread: {error}"))?;
        Ok(Self { shared })
    }

    /// The newest schema of a subject, asked for at once; `None` if the registry has no such subject.
    ///
    /// # Errors
    /// A sentence, when the registry cannot be asked.
    pub fn latest(config: &SchemaRegistry, subject: &str) -> Result<Option<Schema>, String> {
        match Client::new(config)?.latest(subject) {
            Ok(schema) => Ok(Some(schema)),
            Err(Failure::Missing(_)) => Ok(None),
            Err(Failure::Trouble(why) | Failure::Unusable(why)) => Err(why),
        }
    }

    /// How it stands.
    #[must_use]
    pub fn report(&self) -> RegistryReport {
        let heard = self.shared.lock();
        RegistryReport { awaited: heard.asked.len(), known: heard.known.len(), ..heard.report.clone() }
    }

    /// The same, for who can do nothing but wait: up to `patience` for each schema.
    #[must_use]
    pub const fn patient(self, patience: Duration) -> Patient {
        Patient { registry: self, patience }
    }
}

impl Schemas for Registry {
    fn get(&self, id: SchemaId) -> Lookup {
        self.shared.lock().look_up(id, &self.shared.news)
    }

    fn trouble(&self) -> Option<String> {
        self.report().trouble
    }
}

impl Drop for Registry {
    fn drop(&mut self) {
        self.shared.lock().closing = true;
        self.shared.news.notify_all();
    }
}

/// A registry whose answers are waited for.
#[derive(Debug)]
pub struct Patient {
    registry: Registry,
    patience: Duration,
}

impl Schemas for Patient {
    fn get(&self, id: SchemaId) -> Lookup {
        let shared = &self.registry.shared;
        let (mut heard, deadline) = (shared.lock(), Instant::now() + self.patience);
        loop {
            let answer = heard.look_up(id, &shared.news);
            let left = deadline.saturating_duration_since(Instant::now());
            if !matches!(answer, Lookup::Awaited) || left.is_zero() {
                return answer;
            }
            heard = shared.news.wait_timeout(heard, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    fn trouble(&self) -> Option<String> {
        self.registry.trouble()
    }
}

impl Heard {
    /// What is known; asks for it if it is not known yet.
    fn look_up(&mut self, id: SchemaId, news: &Condvar) -> Lookup {
        match self.entries.get(&id) {
            Some(Entry::Known(schema)) => return Lookup::Known(Arc::clone(schema)),
            Some(Entry::Unknown { why, until }) if *until > Instant::now() => return Lookup::Unknown(Arc::clone(why)),
            Some(Entry::Asked) => return Lookup::Awaited,
            Some(Entry::Unknown { .. }) => self.unknown.retain(|other| *other != id),
            None => {}
        }
        self.entries.insert(id, Entry::Asked);
        self.asked.push_back(id);
        news.notify_all();
        Lookup::Awaited
    }

    /// Notes an answer.
    fn note(&mut self, id: SchemaId, entry: Entry) {
        self.asked.retain(|other| *other != id);
        self.missing.remove(&id);
        self.report.answers += 1;
        self.report.trouble = None;
        match &entry {
            Entry::Known(schema) => {
                self.known.push_back(id);
                self.bytes += schema.size();
            }
            Entry::Unknown { .. } => self.unknown.push_back(id),
            Entry::Asked => {}
        }
        self.entries.insert(id, entry);
        self.make_room();
    }

    /// Drops the oldest entries past the bounds. One that alone is past them stays.
    fn make_room(&mut self) {
        while self.known.len() > SCHEMAS_MAX || self.bytes > BYTES_MAX && self.known.len() > 1 {
            let Some(oldest) = self.known.pop_front() else { break };
            if let Some(Entry::Known(schema)) = self.entries.remove(&oldest) {
                self.bytes -= schema.size();
            }
        }
        if self.unknown.len() > UNKNOWN_MAX
            && let Some(oldest) = self.unknown.pop_front()
        {
            self.entries.remove(&oldest);
        }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Heard> {
        self.heard.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Asks for what is asked for, until it is over.
    fn ask(&self, client: &Client) {
        let mut backoff = BACKOFF.0;
        // Questions in a row that brought nothing, each for another schema.
        let mut missed = 0;
        while let Some(id) = self.next() {
            match client.schema(id) {
                Ok(schema) => {
                    tracing::info!(schema = %id, format = %schema.format, references = schema.references.len(), "schema fetched");
                    self.lock().note(id, Entry::Known(Arc::new(schema)));
                    backoff = BACKOFF.0;
                }
                Err(Failure::Missing(why)) if !self.is_missing_for_long(id) => {
                    missed += 1;
                    // The others are asked for first, without a wait: one that is not there must not hold up one that is.
                    let is_round = missed >= self.lock().asked.len();
                    let wait = if is_round { backoff } else { Duration::ZERO };
                    self.put_off(id, format!("{why}; it is asked again for {} s", MISSING_AFTER.as_secs()), wait);
                    if is_round {
                        missed = 0;
                        backoff = (backoff * 2).min(BACKOFF.1);
                    }
                }
                Err(Failure::Missing(why) | Failure::Unusable(why)) => {
                    tracing::warn!(schema = %id, "there is no usable schema {id}: {why}; its records are invalid");
                    self.lock().note(id, Entry::Unknown { why: why.into(), until: Instant::now() + UNKNOWN_FOR });
                    backoff = BACKOFF.0;
                }
                Err(Failure::Trouble(trouble)) => {
                    // It was away, so what it did not know before says nothing of what it knows once it is back.
                    self.lock().missing.clear();
                    self.put_off(id, trouble, backoff);
                    backoff = (backoff * 2).min(BACKOFF.1);
                }
            }
            self.news.notify_all();
        }
    }

    /// Whether the registry has said for long that it does not know a schema. Notes that it says so.
    fn is_missing_for_long(&self, id: SchemaId) -> bool {
        self.lock().missing.entry(id).or_insert_with(Instant::now).elapsed() >= MISSING_AFTER
    }

    /// The next schema to ask for; `None` once it is over.
    fn next(&self) -> Option<SchemaId> {
        let mut heard = self.lock();
        loop {
            if heard.closing {
                return None;
            }
            if let Some(&id) = heard.asked.front() {
                return Some(id);
            }
            heard = self.news.wait(heard).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Asks for others first, after a while.
    fn put_off(&self, id: SchemaId, trouble: String, backoff: Duration) {
        let mut heard = self.lock();
        if heard.report.trouble.as_ref() != Some(&trouble) {
            tracing::warn!(schema = %id, "the schema registry has no answer yet; partitions with records of this schema wait, and it is asked again: {trouble}");
        }
        heard.report.failures += 1;
        heard.report.trouble = Some(trouble);
        heard.asked.rotate_left(1);
        let until = Instant::now() + backoff;
        while !heard.closing && Instant::now() < until {
            let left = until.saturating_duration_since(Instant::now());
            heard = self.news.wait_timeout(heard, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::{Body, Format};

    fn known(bytes: usize) -> Entry {
        Entry::Known(Arc::new(Schema::new(Format::Avro, Body::Text(" ".repeat(bytes)), Vec::new())))
    }

    fn unknown() -> Entry {
        Entry::Unknown { why: "it is not there".into(), until: Instant::now() + UNKNOWN_FOR }
    }

    fn is_known(heard: &Heard, id: u32) -> bool {
        matches!(heard.entries.get(&SchemaId::Number(id)), Some(Entry::Known(_)))
    }

    #[test]
    fn schemas_that_are_not_there_displace_none_that_is() {
        let mut heard = Heard::default();
        heard.note(SchemaId::Number(0), known(1));
        for id in 1..=10_000 {
            heard.note(SchemaId::Number(id), unknown());
        }
        assert!(is_known(&heard, 0));
        assert_eq!((heard.entries.len(), heard.unknown.len()), (UNKNOWN_MAX + 1, UNKNOWN_MAX));
    }

    #[test]
    fn what_is_kept_is_bounded() {
        let mut heard = Heard::default();
        for id in 0..10_000 {
            heard.note(SchemaId::Number(id), known(1));
        }
        assert_eq!((heard.entries.len(), heard.known.len(), heard.bytes), (SCHEMAS_MAX, SCHEMAS_MAX, SCHEMAS_MAX));
        assert!(is_known(&heard, 9_999) && !is_known(&heard, 0));
        // Large ones leave room for few, and one that is too large for itself alone.
        heard.note(SchemaId::Number(10_000), known(BYTES_MAX - 10));
        assert_eq!((heard.known.len(), heard.bytes), (11, BYTES_MAX));
        heard.note(SchemaId::Number(10_001), known(BYTES_MAX + 1));
        assert_eq!((heard.known.len(), heard.bytes), (1, BYTES_MAX + 1));
        heard.note(SchemaId::Number(10_002), known(1));
        assert_eq!((heard.entries.len(), heard.bytes), (1, 1));
    }

    #[test]
    fn what_was_unknown_is_asked_for_again() {
        let mut heard = Heard::default();
        let (id, news) = (SchemaId::Number(1), Condvar::new());
        heard.note(id, Entry::Unknown { why: "it is not there".into(), until: Instant::now() });
        assert!(matches!(heard.look_up(id, &news), Lookup::Awaited));
        assert!(heard.unknown.is_empty() && heard.asked == [id]);
        heard.note(id, known(3));
        assert!(matches!(heard.look_up(id, &news), Lookup::Known(_)));
        assert_eq!((heard.known.len(), heard.bytes), (1, 3));
    }
}
