//! Schemas from a schema registry. Fetched schemas are cached. While a schema is fetched, only partitions whose next record needs the
//! schema wait.
//!
//! A thread sends the requests and caches the responses. If the registry is down, the thread retries each request until the registry
//! answers. A request without a response never makes a schema count as missing.

mod client;

use crate::config::SchemaRegistry;
use crate::format::{Lookup, Schema, SchemaId, Schemas};
use crate::stats::RegistryReport;
use client::{Client, Failure};
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::fmt;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// The maximum number of cached schemas and their maximum total size in bytes. If one of these limits is exceeded, the oldest schemas are
/// dropped. The registry is asked for a dropped schema again when a record needs the schema.
const SCHEMAS_MAX: usize = 4096;
const BYTES_MAX: usize = 256 << 20;

/// The maximum number of schema ids that are cached as missing or unusable. These ids have their own limit, so random ids in records do not
/// displace known schemas.
const UNKNOWN_MAX: usize = 4096;

/// The maximum number of pending requests. Records can contain any number of schema ids and must not cause a flood of requests.
const REQUESTS_MAX: usize = 1024;

/// The time for which the registry must report a schema as missing before records with this schema are invalid. A registry such as Karapace
/// has no schemas for a while after it starts, and a follower registry learns about new schemas late.
const MISSING_AFTER: Duration = Duration::from_secs(10);

/// Replaces [`MISSING_AFTER`] after records have waited for missing schemas for [`WAITED_MAX`] in total. Otherwise, a topic with random
/// bytes would almost stand still: each record would have a new schema id and wait for the full time.
const MISSING_AFTER_LONG_WAIT: Duration = Duration::from_secs(1);

/// The total time that records wait for missing schemas before [`MISSING_AFTER_LONG_WAIT`] applies. A tenth of the time since the last wait
/// is subtracted from the total. If a schema that was missing appears, the total is reset to zero.
const WAITED_MAX: Duration = Duration::from_secs(60);

/// The number of missing or unusable schemas that are logged one by one. For further schemas, a line is logged each time the number has
/// doubled.
const MISSING_LOGGED_MAX: u64 = 8;

/// The lifetime of a cached result that a schema is missing or cannot be used.
const UNKNOWN_FOR: Duration = Duration::from_secs(60);

/// The first and the longest wait before a retry for the same schema. The wait doubles with each retry.
const BACKOFF: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(5));

/// If at least this number of pending requests have failed, the errors of further requests are not logged.
const LOGGED_MAX: usize = 8;

pub struct Registry {
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    cache: Mutex<Cache>,
    /// Notified after a new request, after a new response, and when the registry is dropped.
    news: Condvar,
}

#[derive(Default)]
struct Cache {
    entries: HashMap<SchemaId, Entry>,
    /// The ids of the cached schemas, oldest first.
    known: VecDeque<SchemaId>,
    /// The estimated memory of the cached schemas, in bytes.
    bytes: usize,
    /// The ids that are cached as missing or unusable, oldest first.
    unknown: VecDeque<SchemaId>,
    requests: BTreeMap<SchemaId, Request>,
    /// The number of times that a schema was found to be missing or unusable.
    missing: u64,
    /// The result of [`Cache::waited`] at `missing_at`, at most twice [`WAITED_MAX`]. Reset to zero when a missing schema appears.
    waited: Duration,
    /// The end of the last wait for a missing schema.
    missing_at: Option<Instant>,
    answers: u64,
    failures: u64,
    closing: bool,
}

enum Entry {
    Known(Arc<Schema>),
    Unknown { why: Arc<str>, until: Instant },
}

/// A pending request for a schema. Each request has its own retry time, so other requests are sent while a failed request waits for its
/// retry.
struct Request {
    due: Instant,
    backoff: Duration,
    /// Time of the first of the registry's consecutive reports that the schema is missing. `None` after a failed request, and before the
    /// first response.
    missing_since: Option<Instant>,
    /// The error of the last attempt, or `None` before the first response.
    error: Option<String>,
}

impl Request {
    fn new() -> Self {
        Self { due: Instant::now(), backoff: BACKOFF.0, missing_since: None, error: None }
    }
}

impl fmt::Debug for Registry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Registry").field("report", &self.report()).finish_non_exhaustive()
    }
}

impl Registry {
    pub fn start(config: &SchemaRegistry) -> Result<Self, String> {
        let client = Client::new(config)?;
        let shared = Arc::new(Shared::default());
        let asking = Arc::clone(&shared);
        let thread = std::thread::Builder::new().name("schemas".to_owned());
        // Nobody joins the thread, so a registry that does not respond does not delay the end of the process.
        thread.spawn(move || asking.ask(&client)).map_err(|error| {
            format!("cannot start the thread that fetches schemas: {error}; raise the limit of threads, then restart the process")
        })?;
        Ok(Self { shared })
    }

    /// Fetches the latest schema of a subject without the cache and without retries. Returns `None` if the registry does not have the
    /// subject.
    pub fn latest(config: &SchemaRegistry, subject: &str) -> Result<Option<Schema>, String> {
        match Client::new(config)?.latest(subject) {
            Ok(schema) => Ok(Some(schema)),
            Err(Failure::Missing(_)) => Ok(None),
            Err(Failure::Unavailable(why) | Failure::Unusable(why)) => Err(why),
        }
    }

    #[must_use]
    pub fn report(&self) -> RegistryReport {
        let cache = self.shared.lock();
        RegistryReport {
            answers: cache.answers,
            failures: cache.failures,
            known: cache.known.len(),
            awaited: cache.requests.len(),
            trouble: cache.requests.values().find_map(|request| request.error.clone()),
        }
    }

    /// Returns a registry whose lookups each wait for up to `patience`.
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

#[derive(Debug)]
pub struct Patient {
    registry: Registry,
    patience: Duration,
}

impl Schemas for Patient {
    fn get(&self, id: SchemaId) -> Lookup {
        let shared = &self.registry.shared;
        let (mut cache, deadline) = (shared.lock(), Instant::now() + self.patience);
        loop {
            let answer = cache.look_up(id, &shared.news);
            let left = deadline.saturating_duration_since(Instant::now());
            if !matches!(answer, Lookup::Awaited) || left.is_zero() {
                return answer;
            }
            cache = shared.news.wait_timeout(cache, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    fn trouble(&self) -> Option<String> {
        self.registry.trouble()
    }
}

impl Cache {
    /// Returns the cached result. A result for a missing or unusable schema expires after [`UNKNOWN_FOR`].
    fn peek(&self, id: SchemaId) -> Option<Lookup> {
        match self.entries.get(&id)? {
            Entry::Known(schema) => Some(Lookup::Known(Arc::clone(schema))),
            Entry::Unknown { why, until } => (*until > Instant::now()).then(|| Lookup::Unknown(Arc::clone(why))),
        }
    }

    /// Returns the cached result, or requests the schema. If [`REQUESTS_MAX`] requests are pending, does not request the schema: the next
    /// lookup of the schema tries again.
    fn look_up(&mut self, id: SchemaId, news: &Condvar) -> Lookup {
        if let Some(found) = self.peek(id) {
            return found;
        }
        if self.entries.remove(&id).is_some() {
            self.unknown.retain(|other| *other != id);
        }
        if self.requests.len() < REQUESTS_MAX {
            self.requests.entry(id).or_insert_with(|| {
                news.notify_all();
                Request::new()
            });
        }
        Lookup::Awaited
    }

    /// Returns the id of the schema to request now. If no request is due, returns the time of the next request, if there is one. New
    /// requests come before retries.
    fn next(&self) -> Result<SchemaId, Option<Instant>> {
        let now = Instant::now();
        let due = self.requests.iter().filter(|(_, request)| request.due <= now);
        match due.min_by_key(|(_, request)| (request.error.is_some(), request.due)) {
            Some((&id, _)) => Ok(id),
            None => Err(self.requests.values().map(|request| request.due).min()),
        }
    }

    /// Schedules a retry. `missing` is true if the registry reported that the schema does not exist. If the registry repeats this report
    /// for [`Self::missing_after`], the schema counts as missing.
    fn retry_later(&mut self, id: SchemaId, error: String, missing: bool) {
        self.failures += 1;
        let is_logged = self.requests.values().filter(|request| request.error.is_some()).count() < LOGGED_MAX;
        let Some(request) = self.requests.get_mut(&id) else { return };
        if request.error.is_none() && is_logged {
            tracing::warn!(schema = %id, "cannot fetch a schema; records with this schema wait while unseen retries: {error}");
        }
        // If this attempt failed in another way, the registry's earlier reports that the schema is missing do not count.
        request.missing_since = request.missing_since.or_else(|| Some(Instant::now())).filter(|_| missing);
        request.error = Some(error);
        request.due = Instant::now() + request.backoff;
        request.backoff = (request.backoff * 2).min(BACKOFF.1);
    }

    fn missing_since(&self, id: SchemaId) -> Option<Instant> {
        self.requests.get(&id).and_then(|request| request.missing_since)
    }

    /// Returns the time that counts toward [`WAITED_MAX`]: the total time that records have waited for missing schemas, minus a tenth of
    /// the time since the last wait ended.
    fn waited(&self) -> Duration {
        self.waited.saturating_sub(self.missing_at.map_or(Duration::ZERO, |at| at.elapsed() / 10))
    }

    fn missing_after(&self) -> Duration {
        if self.waited() < WAITED_MAX { MISSING_AFTER } else { MISSING_AFTER_LONG_WAIT }
    }

    /// Caches that a schema is missing or cannot be used, which makes records with this schema invalid. If records waited for several
    /// missing schemas at the same time, this time counts once.
    fn record_missing(&mut self, id: SchemaId, why: &str) {
        if let Some(since) = self.missing_since(id) {
            let waited = self.missing_at.map_or(since, |at| at.max(since)).elapsed();
            self.waited = (self.waited() + waited).min(2 * WAITED_MAX);
            self.missing_at = Some(Instant::now());
        }
        self.missing += 1;
        if self.missing <= MISSING_LOGGED_MAX || self.missing.is_power_of_two() {
            tracing::warn!(schema = %id, missing = self.missing, "schema {id} cannot be used: {why}; records with this schema are invalid. `missing` is the number of such results so far, including results that were not logged");
        }
        self.note(id, Entry::Unknown { why: why.into(), until: Instant::now() + UNKNOWN_FOR });
    }

    fn handle_response(&mut self, id: SchemaId, answer: Result<Schema, Failure>) {
        match answer {
            Ok(schema) => {
                if self.missing_since(id).is_some() {
                    self.waited = Duration::ZERO;
                }
                tracing::info!(schema = %id, format = %schema.format, references = schema.references.len(), "schema fetched");
                self.note(id, Entry::Known(Arc::new(schema)));
            }
            Err(Failure::Unavailable(error)) => self.retry_later(id, error, false),
            Err(Failure::Missing(why)) if self.missing_since(id).is_none_or(|since| since.elapsed() < self.missing_after()) => {
                let error = format!(
                    "{why}; if the schema is still missing after {} s, records with this schema are invalid",
                    self.missing_after().as_secs()
                );
                self.retry_later(id, error, true);
            }
            Err(Failure::Missing(why) | Failure::Unusable(why)) => self.record_missing(id, &why),
        }
    }

    fn note(&mut self, id: SchemaId, entry: Entry) {
        self.requests.remove(&id);
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

    /// Drops the oldest entries beyond the limits. The newest schema is kept even if it exceeds the memory limit on its own.
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
    fn lock(&self) -> MutexGuard<'_, Cache> {
        self.cache.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn ask(&self, client: &Client) {
        while let Some(id) = self.next() {
            let answer = client.schema(id);
            self.lock().handle_response(id, answer);
            self.news.notify_all();
        }
    }

    /// Waits for the next request. Returns `None` after the registry was dropped.
    fn next(&self) -> Option<SchemaId> {
        let mut cache = self.lock();
        loop {
            if cache.closing {
                return None;
            }
            let left = match cache.next() {
                Ok(id) => return Some(id),
                Err(due) => due.map(|due| due.saturating_duration_since(Instant::now())),
            };
            cache = match left {
                Some(left) => self.news.wait_timeout(cache, left).unwrap_or_else(PoisonError::into_inner).0,
                None => self.news.wait(cache).unwrap_or_else(PoisonError::into_inner),
            };
        }
    }
}

#[cfg(test)]
mod tests;
