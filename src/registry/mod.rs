//! The schemas of a registry: asked for once, kept, and waited for by nobody but who needs them.
//!
//! Owns the one thread that asks, and what it has heard. Must never drop a question because the registry is down: it is
//! asked again until it answers. Must never take its silence for an answer.

mod client;

use crate::config::SchemaRegistry;
use crate::format::{Lookup, Schema, SchemaId, Schemas};
use crate::stats::RegistryReport;
use client::{Client, Failure};
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::fmt;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Schemas that are kept, and the memory that they take; past that, the oldest goes, and is asked for again.
const SCHEMAS_MAX: usize = 4096;
const BYTES_MAX: usize = 256 << 20;

/// Schemas that are known not to be there. They are counted by themselves: records may name any.
const UNKNOWN_MAX: usize = 4096;

/// Schemas that are asked for at a time. Records may name any number of schemas, and a registry is not to be flooded.
const QUESTIONS_MAX: usize = 1024;

/// How long a registry must say, each time, that it does not know a schema before unseen believes it. A registry that starts
/// knows none for a while (so does Karapace), and one that follows another hears late.
const MISSING_AFTER: Duration = Duration::from_secs(10);

/// The same once records have waited for [`WAITED_MAX`] in vain: random bytes name a new schema in each record.
const MISSING_AFTER_LONG_WAIT: Duration = Duration::from_secs(1);

/// How long records may wait in all for schemas that turn out to be missing. A tenth of the time that passes is given back,
/// and all of it when a schema turns up that was missing at first.
const WAITED_MAX: Duration = Duration::from_secs(60);

/// Missing schemas that are logged one by one. Past that, each time that their number has doubled.
const MISSING_LOGGED_MAX: u64 = 8;

/// How long it then stands.
const UNKNOWN_FOR: Duration = Duration::from_secs(60);

/// Waits between tries for the same schema: from the first, doubled up to the second.
const BACKOFF: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(5));

/// Questions without an answer whose trouble is logged; that of others is not.
const TOLD_MAX: usize = 8;

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
    /// Those that are known, the oldest first, and the memory that they take.
    known: VecDeque<SchemaId>,
    bytes: usize,
    /// Those that are not there, the oldest first.
    unknown: VecDeque<SchemaId>,
    /// What has no answer yet.
    questions: BTreeMap<SchemaId, Question>,
    /// Schemas that turned out to be missing, how long records waited for them in all, and when the last did.
    missing: u64,
    waited: Duration,
    missing_at: Option<Instant>,
    answers: u64,
    failures: u64,
    closing: bool,
}

enum Entry {
    Known(Arc<Schema>),
    Unknown { why: Arc<str>, until: Instant },
}

/// A schema that is asked for. Each has its own time: one that brings trouble holds up no other.
struct Question {
    due: Instant,
    backoff: Duration,
    /// Since when the registry has said, each time, that it does not know the schema.
    missing_since: Option<Instant>,
    /// Why there is no answer yet.
    trouble: Option<String>,
}

impl Question {
    fn new() -> Self {
        Self { due: Instant::now(), backoff: BACKOFF.0, missing_since: None, trouble: None }
    }
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
        RegistryReport {
            answers: heard.answers,
            failures: heard.failures,
            known: heard.known.len(),
            awaited: heard.questions.len(),
            trouble: heard.questions.values().find_map(|question| question.trouble.clone()),
        }
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
    /// What is known, if anything is.
    fn peek(&self, id: SchemaId) -> Option<Lookup> {
        match self.entries.get(&id)? {
            Entry::Known(schema) => Some(Lookup::Known(Arc::clone(schema))),
            Entry::Unknown { why, until } => (*until > Instant::now()).then(|| Lookup::Unknown(Arc::clone(why))),
        }
    }

    /// Returns what is known, and asks for a schema that is not known yet. If too much is asked for, the schema is asked for
    /// when it is looked up again.
    fn look_up(&mut self, id: SchemaId, news: &Condvar) -> Lookup {
        if let Some(found) = self.peek(id) {
            return found;
        }
        if self.entries.remove(&id).is_some() {
            self.unknown.retain(|other| *other != id);
        }
        if self.questions.len() < QUESTIONS_MAX {
            self.questions.entry(id).or_insert_with(|| {
                news.notify_all();
                Question::new()
            });
        }
        Lookup::Awaited
    }

    /// The question to ask now, or when there will be one. Those that were never asked go first.
    fn next(&self) -> Result<SchemaId, Option<Instant>> {
        let now = Instant::now();
        let due = self.questions.iter().filter(|(_, question)| question.due <= now);
        match due.min_by_key(|(_, question)| (question.trouble.is_some(), question.due)) {
            Some((&id, _)) => Ok(id),
            None => Err(self.questions.values().map(|question| question.due).min()),
        }
    }

    /// Asks again after a while. The trouble of a schema that is `missing` may become its answer.
    fn put_off(&mut self, id: SchemaId, trouble: String, missing: bool) {
        self.failures += 1;
        let is_told = self.questions.values().filter(|question| question.trouble.is_some()).count() < TOLD_MAX;
        let Some(question) = self.questions.get_mut(&id) else { return };
        if question.trouble.is_none() && is_told {
            tracing::warn!(schema = %id, "the schema registry has no answer yet; partitions with records of this schema wait, and it is asked again: {trouble}");
        }
        // It was away, so what it did not know before says nothing of what it knows once it is back.
        question.missing_since = question.missing_since.or_else(|| Some(Instant::now())).filter(|_| missing);
        question.trouble = Some(trouble);
        question.due = Instant::now() + question.backoff;
        question.backoff = (question.backoff * 2).min(BACKOFF.1);
    }

    /// Since when the registry has said, each time, that it does not know a schema.
    fn missing_since(&self, id: SchemaId) -> Option<Instant> {
        self.questions.get(&id).and_then(|question| question.missing_since)
    }

    /// How long records have waited for missing schemas, less what was given back since.
    fn waited(&self) -> Duration {
        self.waited.saturating_sub(self.missing_at.map_or(Duration::ZERO, |at| at.elapsed() / 10))
    }

    /// How long the registry must say of a schema that it does not know it.
    fn missing_after(&self) -> Duration {
        if self.waited() < WAITED_MAX { MISSING_AFTER } else { MISSING_AFTER_LONG_WAIT }
    }

    /// Notes that a schema is missing. Schemas that were waited for at the same time add no time.
    fn note_missing(&mut self, id: SchemaId, why: &str) {
        if let Some(since) = self.missing_since(id) {
            let waited = self.missing_at.map_or(since, |at| at.max(since)).elapsed();
            self.waited = (self.waited() + waited).min(2 * WAITED_MAX);
            self.missing_at = Some(Instant::now());
        }
        self.missing += 1;
        if self.missing <= MISSING_LOGGED_MAX || self.missing.is_power_of_two() {
            tracing::warn!(schema = %id, missing = self.missing, "there is no usable schema {id}: {why}; its records are invalid");
        }
        self.note(id, Entry::Unknown { why: why.into(), until: Instant::now() + UNKNOWN_FOR });
    }

    /// Takes what the registry said of a schema.
    fn hear(&mut self, id: SchemaId, answer: Result<Schema, Failure>) {
        match answer {
            Ok(schema) => {
                if self.missing_since(id).is_some() {
                    self.waited = Duration::ZERO;
                }
                tracing::info!(schema = %id, format = %schema.format, references = schema.references.len(), "schema fetched");
                self.note(id, Entry::Known(Arc::new(schema)));
            }
            Err(Failure::Trouble(trouble)) => self.put_off(id, trouble, false),
            Err(Failure::Missing(why)) if self.missing_since(id).is_none_or(|since| since.elapsed() < self.missing_after()) => {
                let trouble = format!("{why}; it is asked again for {} s", self.missing_after().as_secs());
                self.put_off(id, trouble, true);
            }
            Err(Failure::Missing(why) | Failure::Unusable(why)) => self.note_missing(id, &why),
        }
    }

    /// Notes an answer.
    fn note(&mut self, id: SchemaId, entry: Entry) {
        self.questions.remove(&id);
        self.answers += 1;
        match &entry {
            Entry::Known(schema) => {
                self.known.push_back(id);
                self.bytes += schema.memory();
            }
            Entry::Unknown { .. } => self.unknown.push_back(id),
        }
        self.entries.insert(id, entry);
        self.make_room();
    }

    /// Drops the oldest entries past the bounds. One that alone is past them stays.
    fn make_room(&mut self) {
        while self.known.len() > SCHEMAS_MAX || self.bytes > BYTES_MAX && self.known.len() > 1 {
            let Some(oldest) = self.known.pop_front() else { break };
            if let Some(Entry::Known(schema)) = self.entries.remove(&oldest) {
                self.bytes -= schema.memory();
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
        while let Some(id) = self.next() {
            let answer = client.schema(id);
            self.lock().hear(id, answer);
            self.news.notify_all();
        }
    }

    /// The next schema to ask for; `None` once it is over.
    fn next(&self) -> Option<SchemaId> {
        let mut heard = self.lock();
        loop {
            if heard.closing {
                return None;
            }
            let left = match heard.next() {
                Ok(id) => return Some(id),
                Err(due) => due.map(|due| due.saturating_duration_since(Instant::now())),
            };
            heard = match left {
                Some(left) => self.news.wait_timeout(heard, left).unwrap_or_else(PoisonError::into_inner).0,
                None => self.news.wait(heard).unwrap_or_else(PoisonError::into_inner),
            };
        }
    }
}

#[cfg(test)]
mod tests;
