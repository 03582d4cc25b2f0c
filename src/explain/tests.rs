//! Every explanation that is marked certain matches an exact model, for all filter kinds.

use super::client::Keys;
use super::history::{History, Next, Reading, Wanted};
use super::judge::{Judgment, Repeated, judge};
use super::outcome::{Occurrence, Occurrences};
use super::report::{Cause, VerdictName};
use crate::changelog::{ChangelogRecord, Cut, Origin, PendingChanges, Progress, Span};
use crate::config::Config;
use crate::dedup::{Dedup, Emit, Late, Rules};
use crate::filter::{AgingSizing, CuckooSizing, Slice, Spec, StableSizing, Window};
use crate::format::NoSchemas;
use crate::key::numbered::key;
use crate::key::{Fingerprint, NoKey};
use crate::record::{Offset, Record, Timestamp, TopicId, Verdict};
use proptest::prelude::*;
use std::collections::{BTreeMap, HashMap};

const TOPICS: [&str; 2] = ["a", "b"];
const ORIGIN: Origin = Origin { owner: 1, keys: 2, clock: 3, kind: 4 };

/// The number of contents that each key can have with `Emit::OnChange`.
const CONTENTS: u64 = 3;

/// Returns the number of a record's key. With `Emit::OnChange`, `CONTENTS` consecutive numbers are contents of the same key.
const fn key_number(rules: &Rules, number: u64) -> u64 {
    match rules.emit {
        Emit::First => number,
        Emit::OnChange => number / CONTENTS,
    }
}

fn fingerprint(rules: &Rules, number: u64, retracts: bool) -> Fingerprint {
    let alone = key(key_number(rules, number));
    if rules.emit == Emit::OnChange && !retracts { alone.with_content(key(number)) } else { alone }
}

#[derive(Clone, Copy, Debug)]
struct Arrival {
    topic: usize,
    number: u64,
    /// Milliseconds since the previous record.
    after: i64,
    /// Number of milliseconds that the record's own time lags behind.
    behind: i64,
    retracts: bool,
    /// True if the transaction ends after this record.
    commits: bool,
}

fn arrivals(topics: usize, retractions: f64) -> impl Strategy<Value = Vec<Arrival>> {
    let after = prop_oneof![12 => 0..6_i64, 1 => 60..400_i64];
    let behind = prop_oneof![9 => Just(0_i64), 1 => 0..600_i64];
    let one = (0..topics, 0..80_u64, after, behind, prop::bool::weighted(retractions), prop::bool::weighted(0.2));
    let arrival =
        one.prop_map(|(topic, number, after, behind, retracts, commits)| Arrival { topic, number, after, behind, retracts, commits });
    prop::collection::vec(arrival, 1..160)
}

/// A processed record, its verdict, and the expected original from an exact window.
#[derive(Clone, Copy, Debug)]
struct Judged {
    topic: usize,
    offset: Offset,
    number: u64,
    time: Timestamp,
    retracts: bool,
    verdict: Verdict,
    /// The emitted record with the same key within the window, if any.
    repeats: Option<(usize, Offset)>,
}

/// A topic and an offset.
type Place = (usize, Offset);

/// Topic, offset, and number of the last record that was emitted or renewed the key, and its slice.
type Emitted = (usize, Offset, u64, Option<Slice>);

/// A state, its changelog, and an exact model.
struct Live {
    dedup: Dedup,
    pending: PendingChanges,
    position: [Offset; 2],
    committed: [Offset; 2],
    /// Stream time at the last commit of each topic.
    committed_at: [Option<Timestamp>; 2],
    log: Vec<Vec<u8>>,
    progress: Progress,
    emitted: HashMap<u64, Emitted>,
    judged: Vec<Judged>,
}

impl Live {
    fn run(rules: Rules, arrivals: &[Arrival]) -> Self {
        let mut live = Self {
            dedup: Dedup::new(rules),
            pending: PendingChanges::default(),
            position: [0; 2],
            committed: [0; 2],
            committed_at: [None; 2],
            log: Vec::new(),
            progress: Progress::default(),
            emitted: HashMap::new(),
            judged: Vec::new(),
        };
        let mut time = 1_000;
        for arrival in arrivals {
            time += arrival.after;
            live.take(arrival, time - arrival.behind);
            if arrival.commits {
                live.commit();
            }
        }
        live.commit();
        live
    }

    fn take(&mut self, arrival: &Arrival, time: Timestamp) {
        let &Arrival { topic, number, retracts, .. } = arrival;
        let (before, rules) = (self.dedup.clock(), *self.dedup.rules());
        let fingerprint = fingerprint(&rules, number, retracts);
        let verdict = if retracts {
            self.dedup.retract(fingerprint, Some(time), i64::MAX)
        } else {
            self.dedup.judge(fingerprint, Some(time), i64::MAX)
        };
        let verdict = verdict.unwrap();
        let offset = self.position[topic];
        self.pending.note(&self.dedup, TopicId(topic), offset, fingerprint);
        self.position[topic] += 1;
        let clock = self.dedup.clock();
        // In a count window, an insertion advances the clock after the verdict.
        let judged_at = if rules.window.length_ms().is_none() { before } else { clock };
        let is_kept = |slice: Option<Slice>| match (slice, judged_at) {
            (Some(slice), Some(clock)) if rules.is_sliced() => clock.0 - slice.0 <= i64::from(rules.window.slices()),
            _ => true,
        };
        let of_key = key_number(&rules, number);
        let emitted = self.emitted.get(&of_key).copied().filter(|&(_, _, last, slice)| is_kept(slice) && last == number);
        self.judged.push(Judged {
            topic,
            offset,
            number,
            time,
            retracts,
            verdict,
            repeats: emitted.map(|(topic, offset, ..)| (topic, offset)),
        });
        match (verdict, emitted) {
            (Verdict::Retracted, _) => drop(self.emitted.remove(&of_key)),
            (Verdict::Unseen, _) => drop(self.emitted.insert(of_key, (topic, offset, number, clock))),
            (Verdict::Duplicate, Some((topic, offset, ..))) if rules.refresh => {
                self.emitted.insert(of_key, (topic, offset, number, clock));
            }
            _ => {}
        }
    }

    fn commit(&mut self) {
        let ends = self.position;
        let span = |topic: usize| Span { topic: TOPICS[topic], start: self.committed[topic], end: ends[topic] };
        let spans: Vec<_> = (0..2).filter(|&topic| ends[topic] > self.committed[topic]).map(span).collect();
        if spans.is_empty() {
            return;
        }
        let by_number: Vec<_> = (0..).map(TopicId).zip(ends).collect();
        for (slice, record) in self.pending.records(&self.dedup, ORIGIN, 1, &spans, &by_number, self.dedup.stream_time()) {
            self.progress.logged(slice, Offset::try_from(self.log.len()).unwrap());
            self.log.push(record);
        }
        self.pending.committed(&by_number);
        for (topic, _) in (0..).zip(ends).filter(|&(topic, end)| end > self.committed[topic]) {
            self.committed_at[topic] = self.dedup.stream_time();
        }
        self.committed = ends;
    }

    /// Returns the progress of the group in each topic.
    fn readings(&self) -> BTreeMap<String, Reading> {
        let reading = |topic: usize| {
            let (committed, stream_time) = (Some(self.committed[topic]), self.committed_at[topic]);
            (TOPICS[topic].to_owned(), Reading { first: Some(0), committed, stream_time })
        };
        (0..2).map(reading).collect()
    }

    /// Determines the verdict on a record from the changelog starting at `low`, or `None` if the changelog has no commit with the record.
    /// Also returns the positions of the commit's records with the same key.
    fn judge(&self, judged: &Judged, low: usize) -> Result<Option<(Judgment, Vec<Place>)>, TestCaseError> {
        let rules = *self.dedup.rules();
        let wanted_key = rules.emit.key_of(fingerprint(&rules, judged.number, true));
        let wanted = Wanted { fingerprints: vec![wanted_key], record: Some((TOPICS[judged.topic].to_owned(), judged.offset)) };
        let mut history = History::new(&wanted, &rules, ORIGIN, BTreeMap::new(), Offset::try_from(low).unwrap());
        for (at, bytes) in self.log.iter().enumerate().skip(low) {
            let next = history.take(Offset::try_from(at).unwrap(), None, &ChangelogRecord::decode(bytes).unwrap(), &[]);
            prop_assert_eq!(next, Next::Continue);
        }
        let Some(target) = &history.target else { return Ok(None) };
        let mut occurrences = Occurrences::default();
        for (span, (topic, offsets)) in target.commit.spans.iter().enumerate() {
            let same_key = |other: &Judged| key_number(&rules, other.number) == key_number(&rules, judged.number);
            let is_requested = |other: &&Judged| TOPICS[other.topic] == topic && offsets.contains(&other.offset) && same_key(other);
            for other in self.judged.iter().filter(is_requested) {
                let content = rules.emit.content_of(fingerprint(&rules, other.number, other.retracts));
                occurrences.push(Occurrence { span, offset: other.offset, time: Some(other.time), retracts: other.retracts, content });
            }
        }
        let place = |at: usize| {
            let occurrence = occurrences.all[at];
            let topic = &target.commit.spans[occurrence.span].0;
            (TOPICS.iter().position(|name| name == topic).unwrap(), occurrence.offset)
        };
        let places: Vec<_> = (0..occurrences.all.len()).map(place).collect();
        let at = places.iter().position(|&place| place == (judged.topic, judged.offset)).unwrap();
        let is_whole = history.is_whole(target.clock.0, &self.readings());
        let outcome = occurrences.outcome(at, target, &rules);
        Ok(Some((judge(outcome, at, &occurrences, target, is_whole, &rules), places)))
    }

    /// Explains a record from the changelog starting at `low`. Returns true if the explanation is certain.
    fn explain(&self, judged: &Judged, low: usize) -> Result<bool, TestCaseError> {
        let rules = *self.dedup.rules();
        let Some((judgment, places)) = self.judge(judged, low)? else { return Ok(false) };
        let verdict = match judged.verdict {
            Verdict::Unseen => VerdictName::Unseen,
            Verdict::Duplicate => VerdictName::Duplicate,
            Verdict::Late => VerdictName::Late,
            _ => VerdictName::Retracted,
        };
        let is_known = judgment.verdict != VerdictName::Unknown && (judgment.verdict != VerdictName::Late || judgment.is_certain);
        if is_known {
            prop_assert_eq!(judgment.verdict, verdict, "{:?} of {:?}", &judgment, judged);
        }
        if !judgment.is_certain {
            return Ok(false);
        }
        match (judgment.cause, judgment.repeats) {
            (Some(Cause::Repeat), Some(Repeated::Record(other))) => prop_assert_eq!(Some(places[other]), judged.repeats),
            (Some(Cause::Repeat), Some(Repeated::Emission(emission))) => {
                let Some((topic, offset)) = judged.repeats else {
                    // For a kind without slices, the explanation does not know what the filter has forgotten.
                    prop_assert!(!rules.is_sliced(), "{:?} repeats nothing", judged);
                    return Ok(true);
                };
                let is_in = emission.commit.spans.iter().any(|(name, offsets)| name == TOPICS[topic] && offsets.contains(&offset));
                prop_assert!(is_in, "{:?} is not in {:?}", judged, emission);
            }
            (Some(Cause::FalsePositive), _) => prop_assert_eq!(judged.repeats, None, "{:?}", judged),
            (Some(Cause::First | Cause::Changed), _) => prop_assert_eq!(judged.repeats, None, "{:?}", judged),
            _ => {}
        }
        Ok(true)
    }

    /// Explains all records. Returns the number of certain explanations.
    fn explain_all(&self, low: usize) -> Result<usize, TestCaseError> {
        self.judged.iter().try_fold(0, |certain, judged| Ok(certain + usize::from(self.explain(judged, low)?)))
    }
}

fn rules(window: Window, kind: u8, refresh: bool, late: Late) -> Rules {
    let aging = |rate| Some(Spec::Aging(AgingSizing::new(window, 12, rate)));
    let (filter, exact) = match kind {
        // Small enough for frequent false positives.
        0 => (aging(0.4), false),
        1 => (aging(1e-9), false),
        2 => (aging(0.4), true),
        3 | 6 => (None, true),
        4 => (Some(Spec::Cuckoo(CuckooSizing::new(window, 16, 0.2))), false),
        _ => (Some(Spec::Stable(StableSizing::new(64, 0.2))), false),
    };
    Rules { window, filter, exact, refresh, late, emit: if kind == 6 { Emit::OnChange } else { Emit::First } }
}

fn windows() -> impl Strategy<Value = Window> {
    prop_oneof![
        (1..=4_u32, 100..1_000_i64).prop_map(|(slices, length)| Window::time(length, slices)),
        (1..=4_u32, 8..60_u64).prop_map(|(slices, keys)| Window::keys(keys, slices)),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn certain_explanations_match_the_model(window in windows(), kind in 0_u8..7, refresh: bool, arrivals in arrivals(2, 0.1)) {
        // Only these kinds can retract.
        let can_retract = matches!(kind, 2..=4 | 6);
        let arrivals: Vec<_> = arrivals.into_iter().map(|arrival| Arrival { retracts: arrival.retracts && can_retract, ..arrival }).collect();
        let mut live = Live::run(rules(window, kind, refresh, Late::Emit), &arrivals);
        live.explain_all(0)?;
        // A worker trims the changelog records that have left the window.
        let low = live.dedup.oldest().and_then(|oldest| live.progress.needed_from(oldest));
        if let Some(low) = low {
            live.explain_all(usize::try_from(low).unwrap())?;
        }
    }

    /// With one topic, one slice, and no retractions, every explanation is certain.
    #[test]
    fn everything_within_one_slice_is_certain(kind in prop_oneof![0_u8..5, Just(6)], arrivals in arrivals(1, 0.0)) {
        let window = Window::time(1_000_000_000, 1);
        let live = Live::run(rules(window, kind, false, Late::Emit), &arrivals);
        prop_assert_eq!(live.explain_all(0)?, arrivals.len());
    }

    #[test]
    fn late_records_are_recognized(kind in prop_oneof![0_u8..5, Just(6)], arrivals in arrivals(1, 0.0)) {
        let live = Live::run(rules(Window::time(200, 2), kind, false, Late::Drop), &arrivals);
        live.explain_all(0)?;
    }
}

/// Logs a commit of offsets of topic `a` that inserts a key.
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
    // One window later, only records within the window matter.
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

/// If `retract` was configured later, a record that would retract now was processed as a normal record.
#[test]
fn a_retraction_that_did_not_happen_is_uncertain() {
    let arrival = |number, retracts, commits| Arrival { topic: 0, number, after: 1, behind: 0, retracts, commits };
    for kind in 2..=4 {
        let rules = rules(Window::time(1_000_000, 1), kind, false, Late::Emit);
        for arrivals in [
            vec![arrival(7, false, false), arrival(7, false, true)],
            vec![arrival(7, false, true), arrival(7, false, true)],
            vec![arrival(7, false, true), arrival(7, false, false), arrival(7, false, true)],
            vec![arrival(8, false, true), arrival(7, true, false), arrival(7, false, false), arrival(7, false, true)],
        ] {
            let mut live = Live::run(rules, &arrivals);
            let last = live.judged.len() - 1;
            live.judged[last].retracts = true;
            let judged = live.judged[last];
            let (judgment, places) = live.judge(&judged, 0).unwrap().unwrap();
            assert!(!judgment.is_certain, "{arrivals:?}: {judgment:?}");
            assert!(judgment.limit.is_some());
            // All other explanations of that commit are uncertain too.
            for other in live.judged.iter().filter(|other| places.contains(&(other.topic, other.offset))) {
                assert!(!live.judge(other, 0).unwrap().unwrap().0.is_certain, "{arrivals:?}: {other:?}");
            }
        }
        let retracted = Live::run(rules, &[arrival(7, false, true), arrival(7, true, true)]);
        assert_eq!(retracted.explain_all(0).unwrap(), 2);
    }
}

#[test]
fn records_of_one_commit_are_distinguished_only_by_order() {
    let arrival = |topic, commits| Arrival { topic, number: 7, after: 1, behind: 0, retracts: false, commits };
    let rules = rules(Window::time(1_000_000, 1), 1, false, Late::Emit);
    let one = Live::run(rules, &[arrival(0, false), arrival(0, true)]);
    assert_eq!(one.explain_all(0).unwrap(), 2);
    let two = Live::run(rules, &[arrival(0, false), arrival(1, true)]);
    assert_eq!(two.explain_all(0).unwrap(), 0, "either topic may have been first");
}

#[test]
fn a_key_removed_by_the_retraction_of_another_key_is_uncertain() {
    let arrival = |number, retracts| Arrival { topic: 0, number, after: 1, behind: 0, retracts, commits: true };
    let rules = rules(Window::keys(8, 1), 4, false, Late::Emit);
    let takes = |other: &u64| {
        let mut dedup = Dedup::new(rules);
        dedup.judge(key(0), Some(1_000), i64::MAX).unwrap();
        dedup.retract(key(*other), Some(1_000), i64::MAX).unwrap();
        dedup.judge(key(0), Some(1_000), i64::MAX).unwrap() == Verdict::Unseen
    };
    let other = (1..100_000).find(takes).unwrap();
    // The slice of key 0 is full, and the next slice has started. Key 0 is still within the window, but may soon be trimmed.
    let mut arrivals = vec![arrival(0, false), arrival(other, true)];
    arrivals.extend((200_000..200_008).map(|number| arrival(number, false)));
    arrivals.push(arrival(0, false));
    let live = Live::run(rules, &arrivals);
    let last = live.judged.last().unwrap();
    assert_eq!((last.verdict, last.repeats), (Verdict::Unseen, Some((0, 0))));
    let reaches = |low| live.explain(last, low).unwrap();
    assert!(reaches(0));
    assert!(!reaches(arrivals.len() - 2));
}

#[test]
fn records_of_an_earlier_entry_are_not_occurrences_of_a_key() {
    let entry = |key: &str, options: &str| {
        format!("[[topics]]\ninput = \"in\"\noutput = \"out\"\nwindow = {{ keys = 9 }}\nkey = {{ field = \"{key}\" }}\n{options}\n")
    };
    let dir = tempfile::tempdir().unwrap();
    let (file, when) = (dir.path().join("unseen.toml"), "when = { header = \"type\", equals = \"a\" }");
    let entries = entry("/id", when) + &entry("/no", "space = \"rest\"");
    std::fs::write(&file, format!("[kafka]\nbootstrap_servers = \"localhost:1\"\n{entries}")).unwrap();
    let config = Config::load(&file, &[]).unwrap();
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
