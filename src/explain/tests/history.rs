//! Tests of the history of a key in the changelog, and of the occurrences of a key in the input.

use super::*;
use crate::changelog::Cut;
use crate::config::Config;
use crate::explain::client::Keys;
use crate::format::NoSchemas;
use crate::key::NoKey;
use crate::record::Record;

/// Logs a commit that covers a range of offsets of topic `a` and inserts a key.
fn committed(log: &mut Vec<Vec<u8>>, epoch: i64, (start, end): (Offset, Offset), number: u64) {
    logged(log, epoch, &[Span { topic: "a", start, end }], number, 1_000);
}

/// Logs a commit of the given spans that inserts a key at the given time.
fn logged(log: &mut Vec<Vec<u8>>, epoch: i64, spans: &[Span<'_>], number: u64, time: Timestamp) {
    let (mut dedup, mut pending) = (Dedup::new(rules(Window::time(1_000, 4), 3, false, Late::Emit)), PendingChanges::default());
    dedup.judge(key(number), Some(time), i64::MAX).unwrap();
    pending.note(&dedup, TopicId(0), 0, key(number));
    let records = pending.records(&dedup, ORIGIN, epoch, spans, &[(TopicId(0), Offset::MAX)], Some(time));
    log.extend(records.into_iter().map(|(_, record)| record));
}

#[test]
fn emissions_voided_by_an_offset_reset_do_not_count() {
    let mut log = Vec::new();
    committed(&mut log, 1, (0, 10), 1);
    committed(&mut log, 1, (10, 20), 2);
    committed(&mut log, 2, (10, 20), 3);
    let rules = rules(Window::time(1_000, 4), 3, false, Late::Emit);
    let wanted = Wanted { fingerprints: vec![key(1), key(2), key(3)], record: None };
    let read = |cuts: &[Cut]| {
        let mut history = History::new(&wanted, &rules, ORIGIN, BTreeMap::new(), 0);
        for (at, bytes) in (0..).zip(&log) {
            match history.take(at, None, &ChangelogRecord::decode(bytes).unwrap(), cuts) {
                Next::Continue => {}
                Next::Restart(cut) => return Err(cut),
                next => panic!("{next:?}"),
            }
        }
        Ok(history.known.iter().map(|known| known.emissions).collect::<Vec<_>>())
    };
    let cut = read(&[]).unwrap_err();
    assert_eq!(cut, Cut { before: 2, topic: "a".to_owned(), start: 10, ends: vec![("a".to_owned(), 20)] });
    assert_eq!(read(&[cut]), Ok(vec![1, 0, 1]));
}

#[test]
fn uncommitted_records_and_other_keys_are_ignored() {
    let mut log = Vec::new();
    committed(&mut log, 1, (0, 10), 1);
    committed(&mut log, 1, (10, 20), 1);
    let rules = rules(Window::time(1_000, 4), 3, false, Late::Emit);
    let wanted = Wanted { fingerprints: vec![key(1)], record: Some(("a".to_owned(), 12)) };
    let bounds = BTreeMap::from([("a".to_owned(), 10)]);
    let mut history = History::new(&wanted, &rules, ORIGIN, bounds, 0);
    for bytes in &log {
        assert_eq!(history.take(0, None, &ChangelogRecord::decode(bytes).unwrap(), &[]), Next::Continue);
    }
    assert_eq!((history.known[0].emissions, history.target.is_some()), (1, false));
    let mut other = History::new(&wanted, &rules, Origin { keys: 9, ..ORIGIN }, BTreeMap::new(), 0);
    for bytes in &log {
        assert_eq!(other.take(0, None, &ChangelogRecord::decode(bytes).unwrap(), &[]), Next::Continue);
    }
    assert_eq!((other.known[0].emissions, other.has_other_keys), (0, true));
}

/// If an incomplete history counted as complete, a duplicate of an unlogged emission would be reported as a certain false positive.
#[test]
fn history_with_unlogged_offsets_is_incomplete() {
    let rules = rules(Window::time(1_000, 4), 1, false, Late::Emit);
    let wanted = Wanted { fingerprints: vec![key(1)], record: None };
    let a = |start, end| Span { topic: "a", start, end };
    let is_whole = |log: &[Vec<u8>], readings: &[(&str, Reading)]| {
        let mut history = History::new(&wanted, &rules, ORIGIN, BTreeMap::new(), 0);
        for (at, bytes) in (0..).zip(log) {
            assert_eq!(history.take(at, None, &ChangelogRecord::decode(bytes).unwrap(), &[]), Next::Continue);
        }
        let readings = readings.iter().map(|&(log, reading)| (log.to_owned(), reading)).collect();
        history.is_whole(history.clock, &readings)
    };
    let read = |committed, stream_time| Reading { first: Some(0), committed: Some(committed), stream_time };
    let mut log = Vec::new();
    logged(&mut log, 1, &[a(0, 10)], 1, 10_000);
    assert!(is_whole(&log, &[("a", read(10, None))]));
    assert!(!is_whole(&log, &[("a", read(12, Some(10_000)))]), "the changelog was switched off again");
    assert!(is_whole(&log, &[("a", read(10, None)), ("b", Reading::default())]), "topic b has no committed offset");
    assert!(is_whole(&log, &[("a", read(10, None)), ("b", read(0, None))]), "topic b was not read");
    assert!(!is_whole(&log, &[("a", read(10, None)), ("b", read(5, Some(10_000)))]), "topic b was read but not logged");
    assert!(!is_whole(&log, &[("a", read(10, None)), ("b", Reading { first: None, ..read(5, None) })]));
    // Stream time is now 12,000 ms, and the window is 1,000 ms long. Unlogged records from stream time 10,000 ms no longer matter.
    logged(&mut log, 1, &[a(10, 20)], 2, 12_000);
    assert!(!is_whole(&log, &[("a", read(20, None)), ("b", read(5, Some(11_000)))]));
    assert!(is_whole(&log, &[("a", read(20, None)), ("b", read(5, Some(10_000)))]));
    assert!(!is_whole(&log, &[("a", read(20, None)), ("b", read(5, None))]));

    // Offsets 20 to 24 are missing in the changelog.
    logged(&mut log, 1, &[a(25, 30)], 3, 12_000);
    assert!(!is_whole(&log, &[("a", read(30, None))]));
    logged(&mut log, 1, &[a(30, 40)], 4, 13_000);
    assert!(!is_whole(&log, &[("a", read(40, None))]));
    logged(&mut log, 1, &[a(40, 50)], 5, 14_000);
    assert!(is_whole(&log, &[("a", read(50, None))]), "everything before the gap has left the window");

    // An empty changelog is complete if the group has read nothing.
    assert!(!is_whole(&[], &[("a", read(10, None))]));
    assert!(is_whole(&[], &[("a", read(0, None))]));
    // Seeded keys are logged without spans, before the group starts.
    let mut log = Vec::new();
    logged(&mut log, 0, &[], 1, 10_000);
    logged(&mut log, 0, &[], 2, 10_000);
    let began = Reading { first: Some(7), ..read(7, None) };
    assert!(is_whole(&log, &[("a", began), ("b", began)]));
    logged(&mut log, 1, &[a(7, 9)], 3, 10_000);
    assert!(is_whole(&log, &[("a", Reading { committed: Some(9), ..began }), ("b", began)]));
}

#[test]
fn records_of_an_earlier_entry_are_not_occurrences_of_a_key() {
    let entry = |key: &str, options: &str| {
        format!("[[topics]]\ninput = \"in\"\noutput = \"out\"\nwindow = {{ keys = 9 }}\nkey = {{ field = \"{key}\" }}\n{options}\n")
    };
    let entries = entry("/id", "when = { header = \"type\", equals = \"a\" }") + &entry("/no", "space = \"rest\"");
    let config = Config::of_text(&format!("[kafka]\nbootstrap_servers = \"localhost:1\"\n{entries}"));
    let mut keys = Keys::new(&config, &config.topics[1], &NoSchemas);
    let mut read = |kind: &str| {
        let headers = [("type", Some(kind.as_bytes()))];
        keys.read(&Record { key: None, value: Some(b"{\"id\":1,\"no\":1}"), headers: &headers }, None).map(drop)
    };
    assert_eq!((read("a"), read("b")), (Err(NoKey::Passes), Ok(())));
    assert!(keys.reads_headers());
    let mut first = Keys::new(&config, &config.topics[0], &NoSchemas);
    let headers = [("type", Some(&b"a"[..]))];
    assert!(first.read(&Record { key: None, value: Some(b"{\"id\":1}"), headers: &headers }, None).is_ok());
}
