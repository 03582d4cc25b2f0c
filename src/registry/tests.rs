//! What is asked of a registry, how often, and when its answers are believed.

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
    assert!(heard.unknown.is_empty() && heard.questions.contains_key(&id));
    heard.note(id, known(3));
    assert!(matches!(heard.look_up(id, &news), Lookup::Known(_)));
    assert_eq!((heard.known.len(), heard.bytes), (1, 3));
}

fn missing() -> Result<Schema, Failure> {
    Err(Failure::Missing("it is not there".to_owned()))
}

fn trouble() -> Result<Schema, Failure> {
    Err(Failure::Trouble("it is away".to_owned()))
}

/// Lets time pass.
fn later(heard: &mut Heard, by: Duration) {
    heard.missing_at = heard.missing_at.and_then(|at| at.checked_sub(by));
    for question in heard.questions.values_mut() {
        question.due -= by;
        question.missing_since = question.missing_since.and_then(|since| since.checked_sub(by));
    }
}

#[test]
fn one_schema_that_brings_trouble_holds_up_no_other() {
    let (mut heard, news) = (Heard::default(), Condvar::new());
    let ids: Vec<_> = (0..1000).map(SchemaId::Number).collect();
    for &id in &ids {
        heard.look_up(id, &news);
        heard.hear(id, trouble());
    }
    let new = SchemaId::Number(5000);
    later(&mut heard, BACKOFF.1);
    heard.look_up(new, &news);
    assert_eq!(heard.next(), Ok(new), "what was never asked goes first");
    heard.hear(new, missing());
    // Whatever becomes of the others meanwhile, its own time runs.
    for _ in 0..3 {
        later(&mut heard, MISSING_AFTER / 2);
        for &id in &ids {
            heard.hear(id, trouble());
        }
        heard.hear(new, missing());
    }
    assert!(matches!(heard.peek(new), Some(Lookup::Unknown(_))));
    assert!(ids.iter().all(|&id| heard.peek(id).is_none()), "trouble is no answer");
}

#[test]
fn a_registry_that_was_away_has_not_said_that_there_is_none() {
    let (mut heard, news, id) = (Heard::default(), Condvar::new(), SchemaId::Number(1));
    heard.look_up(id, &news);
    heard.hear(id, missing());
    later(&mut heard, MISSING_AFTER);
    heard.hear(id, trouble());
    heard.hear(id, missing());
    assert!(heard.peek(id).is_none());
    later(&mut heard, MISSING_AFTER);
    heard.hear(id, missing());
    assert!(matches!(heard.peek(id), Some(Lookup::Unknown(_))));
}

/// Asks for schemas until the registry is believed that they are missing. Returns how long that took.
fn wait_for_missing(heard: &mut Heard, ids: std::ops::Range<u32>) -> Duration {
    const STEP: Duration = Duration::from_millis(500);
    let (news, mut took) = (Condvar::new(), Duration::ZERO);
    loop {
        let is_awaited = |heard: &mut Heard, id| matches!(heard.look_up(SchemaId::Number(id), &news), Lookup::Awaited);
        let awaited: Vec<_> = ids.clone().filter(|&id| is_awaited(heard, id)).collect();
        if awaited.is_empty() {
            return took;
        }
        let asked: Vec<_> = heard.questions.keys().copied().collect();
        for id in asked {
            heard.hear(id, missing());
        }
        later(heard, STEP);
        took += STEP;
    }
}

#[test]
fn schemas_that_are_missing_are_waited_for_together() {
    let mut heard = Heard::default();
    assert!(wait_for_missing(&mut heard, 0..1024) < 2 * MISSING_AFTER);
    assert!(heard.waited() < 2 * MISSING_AFTER, "{:?}", heard.waited());
}

#[test]
fn no_more_than_so_many_schemas_are_asked_for_at_a_time() {
    let (mut heard, news) = (Heard::default(), Condvar::new());
    for id in 0..10_000 {
        assert!(matches!(heard.look_up(SchemaId::Number(id), &news), Lookup::Awaited));
    }
    assert_eq!(heard.questions.len(), QUESTIONS_MAX);
    wait_for_missing(&mut heard, 0..3072);
}

#[test]
fn random_ids_stall_records_for_a_minute_and_not_for_ever() {
    let mut heard = Heard::default();
    let total: Duration = (0..100).map(|id| wait_for_missing(&mut heard, id..id + 1)).sum();
    assert!((WAITED_MAX..4 * WAITED_MAX).contains(&total), "{total:?}");
    // After a while, a new schema gets its time again.
    later(&mut heard, 20 * WAITED_MAX);
    assert!(wait_for_missing(&mut heard, 200..201) >= MISSING_AFTER);
}

#[test]
fn a_schema_that_comes_late_gives_others_their_time_again() {
    let (mut heard, news, late) = (Heard::default(), Condvar::new(), SchemaId::Number(1000));
    for id in 0..100 {
        wait_for_missing(&mut heard, id..id + 1);
    }
    assert_eq!(heard.missing_after(), MISSING_AFTER_LONG_WAIT);
    heard.look_up(late, &news);
    heard.hear(late, missing());
    heard.hear(late, Ok(Schema::new(Format::Avro, Body::Text("\"int\"".to_owned()), Vec::new())));
    assert_eq!(heard.missing_after(), MISSING_AFTER);
}

#[test]
fn to_peek_asks_nothing() {
    let mut heard = Heard::default();
    assert!(heard.peek(SchemaId::Number(1)).is_none() && heard.questions.is_empty());
    assert_eq!(heard.next(), Err(None));
    heard.look_up(SchemaId::Number(1), &Condvar::new());
    heard.hear(SchemaId::Number(1), trouble());
    assert!(heard.next().is_err_and(|due| due.is_some_and(|due| due > Instant::now())));
}
