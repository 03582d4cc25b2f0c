//! Tests which requests are sent, how often they are sent, and which responses the cache believes.

use super::*;
use crate::format::{Body, Format};

fn known(bytes: usize) -> Entry {
    Entry::Known(Arc::new(Schema::new(Format::Avro, Body::Text(" ".repeat(bytes)), Vec::new())))
}

fn unknown() -> Entry {
    Entry::Unknown { why: "it does not exist".into(), until: Instant::now() + UNKNOWN_FOR }
}

fn is_known(cache: &Cache, id: u32) -> bool {
    matches!(cache.entries.get(&SchemaId::Number(id)), Some(Entry::Known(_)))
}

#[test]
fn missing_schemas_do_not_displace_known_ones() {
    let mut cache = Cache::default();
    cache.note(SchemaId::Number(0), known(1));
    for id in 1..=10_000 {
        cache.note(SchemaId::Number(id), unknown());
    }
    assert!(is_known(&cache, 0));
    assert_eq!((cache.entries.len(), cache.unknown.len()), (UNKNOWN_MAX + 1, UNKNOWN_MAX));
}

#[test]
fn the_cache_is_bounded() {
    let mut cache = Cache::default();
    for id in 0..10_000 {
        cache.note(SchemaId::Number(id), known(1));
    }
    assert_eq!((cache.entries.len(), cache.known.len(), cache.bytes), (SCHEMAS_MAX, SCHEMAS_MAX, SCHEMAS_MAX));
    assert!(is_known(&cache, 9_999) && !is_known(&cache, 0));
    // A large schema displaces some schemas, and a schema above the limit displaces all others.
    cache.note(SchemaId::Number(10_000), known(BYTES_MAX - 10));
    assert_eq!((cache.known.len(), cache.bytes), (11, BYTES_MAX));
    cache.note(SchemaId::Number(10_001), known(BYTES_MAX + 1));
    assert_eq!((cache.known.len(), cache.bytes), (1, BYTES_MAX + 1));
    cache.note(SchemaId::Number(10_002), known(1));
    assert_eq!((cache.entries.len(), cache.bytes), (1, 1));
}

#[test]
fn a_missing_schema_is_requested_again_later() {
    let mut cache = Cache::default();
    let (id, news) = (SchemaId::Number(1), Condvar::new());
    cache.note(id, Entry::Unknown { why: "it does not exist".into(), until: Instant::now() });
    assert!(matches!(cache.look_up(id, &news), Lookup::Awaited));
    assert!(cache.unknown.is_empty() && cache.requests.contains_key(&id));
    cache.note(id, known(3));
    assert!(matches!(cache.look_up(id, &news), Lookup::Known(_)));
    assert_eq!((cache.known.len(), cache.bytes), (1, 3));
}

fn missing() -> Result<Schema, Failure> {
    Err(Failure::Missing("it does not exist".to_owned()))
}

fn unavailable() -> Result<Schema, Failure> {
    Err(Failure::Unavailable("the registry is down".to_owned()))
}

/// Moves the times of the requests and of the last wait into the past, as if the duration `by` had passed. Does not change when cached
/// results expire.
fn later(cache: &mut Cache, by: Duration) {
    cache.missing_at = cache.missing_at.and_then(|at| at.checked_sub(by));
    for request in cache.requests.values_mut() {
        request.due -= by;
        request.missing_since = request.missing_since.and_then(|since| since.checked_sub(by));
    }
}

#[test]
fn a_failing_request_does_not_delay_others() {
    let (mut cache, news) = (Cache::default(), Condvar::new());
    let ids: Vec<_> = (0..1000).map(SchemaId::Number).collect();
    for &id in &ids {
        cache.look_up(id, &news);
        cache.handle_response(id, unavailable());
    }
    let new = SchemaId::Number(5000);
    later(&mut cache, BACKOFF.1);
    cache.look_up(new, &news);
    assert_eq!(cache.next(), Ok(new), "new requests come first");
    cache.handle_response(new, missing());
    for _ in 0..3 {
        later(&mut cache, MISSING_AFTER / 2);
        for &id in &ids {
            cache.handle_response(id, unavailable());
        }
        cache.handle_response(new, missing());
    }
    assert!(matches!(cache.peek(new), Some(Lookup::Unknown(_))));
    assert!(ids.iter().all(|&id| cache.peek(id).is_none()), "an error is not an answer");
}

#[test]
fn an_unreachable_registry_does_not_make_schemas_missing() {
    let (mut cache, news, id) = (Cache::default(), Condvar::new(), SchemaId::Number(1));
    cache.look_up(id, &news);
    cache.handle_response(id, missing());
    later(&mut cache, MISSING_AFTER);
    cache.handle_response(id, unavailable());
    cache.handle_response(id, missing());
    assert!(cache.peek(id).is_none());
    later(&mut cache, MISSING_AFTER);
    cache.handle_response(id, missing());
    assert!(matches!(cache.peek(id), Some(Lookup::Unknown(_))));
}

/// Requests schemas. Returns the time until the cache believes that all of them are missing.
fn wait_for_missing(cache: &mut Cache, ids: std::ops::Range<u32>) -> Duration {
    const STEP: Duration = Duration::from_millis(500);
    let (news, mut took) = (Condvar::new(), Duration::ZERO);
    loop {
        let is_awaited = |cache: &mut Cache, id| matches!(cache.look_up(SchemaId::Number(id), &news), Lookup::Awaited);
        let awaited: Vec<_> = ids.clone().filter(|&id| is_awaited(cache, id)).collect();
        if awaited.is_empty() {
            return took;
        }
        let asked: Vec<_> = cache.requests.keys().copied().collect();
        for id in asked {
            cache.handle_response(id, missing());
        }
        later(cache, STEP);
        took += STEP;
    }
}

#[test]
fn waits_for_missing_schemas_overlap() {
    let mut cache = Cache::default();
    assert!(wait_for_missing(&mut cache, 0..1024) < 2 * MISSING_AFTER);
    assert!(cache.waited() < 2 * MISSING_AFTER, "{:?}", cache.waited());
}

#[test]
fn pending_requests_are_bounded() {
    let (mut cache, news) = (Cache::default(), Condvar::new());
    for id in 0..10_000 {
        assert!(matches!(cache.look_up(SchemaId::Number(id), &news), Lookup::Awaited));
    }
    assert_eq!(cache.requests.len(), REQUESTS_MAX);
    wait_for_missing(&mut cache, 0..3072);
}

#[test]
fn random_ids_stall_records_for_one_minute_only() {
    let mut cache = Cache::default();
    let total: Duration = (0..100).map(|id| wait_for_missing(&mut cache, id..id + 1)).sum();
    assert!((WAITED_MAX..4 * WAITED_MAX).contains(&total), "{total:?}");
    // If enough time passes without a missing schema, the full waiting time applies again.
    later(&mut cache, 20 * WAITED_MAX);
    assert!(wait_for_missing(&mut cache, 200..201) >= MISSING_AFTER);
}

#[test]
fn a_late_schema_restores_the_full_wait_for_others() {
    let (mut cache, news, late) = (Cache::default(), Condvar::new(), SchemaId::Number(1000));
    for id in 0..100 {
        wait_for_missing(&mut cache, id..id + 1);
    }
    assert_eq!(cache.missing_after(), MISSING_AFTER_LONG_WAIT);
    cache.look_up(late, &news);
    cache.handle_response(late, missing());
    cache.handle_response(late, Ok(Schema::new(Format::Avro, Body::Text("\"int\"".to_owned()), Vec::new())));
    assert_eq!(cache.missing_after(), MISSING_AFTER);
}

#[test]
fn peek_sends_no_request() {
    let mut cache = Cache::default();
    assert!(cache.peek(SchemaId::Number(1)).is_none() && cache.requests.is_empty());
    assert_eq!(cache.next(), Err(None));
    cache.look_up(SchemaId::Number(1), &Condvar::new());
    cache.handle_response(SchemaId::Number(1), unavailable());
    assert!(cache.next().is_err_and(|due| due.is_some_and(|due| due > Instant::now())));
}
