//! A memory made from its log is the memory that was logged.

use super::*;
use crate::dedup::{Late, Rules};
use crate::filter::{CuckooPlan, Exact, Growth, PageId, Plan, Spec, StablePlan, Window};
use crate::key::Fingerprint;
use crate::record::Verdict;
use proptest::prelude::*;
use xxhash_rust::xxh3::xxh3_128;

const TOPICS: [&str; 2] = ["a", "b"];

fn key(number: u64) -> Fingerprint {
    Fingerprint(xxh3_128(&number.to_le_bytes()))
}

#[derive(Clone, Copy, Debug)]
struct Arrival {
    topic: usize,
    number: u64,
    clock: i64,
    timed: bool,
    unsee: bool,
    /// The transaction ends after it: with all of it, or, after an abort, with the first half.
    commit: Option<bool>,
}

fn arrival() -> impl Strategy<Value = Arrival> {
    let clock = prop_oneof![8 => 0..20_i64, 2 => 60..700_i64];
    let commit = prop_oneof![8 => Just(None), 2 => Just(Some(true)), 1 => Just(Some(false))];
    (0..2_usize, 0..60_u64, clock, prop::bool::weighted(0.95), prop::bool::weighted(0.1), commit)
        .prop_map(|(topic, number, clock, timed, unsee, commit)| Arrival { topic, number, clock, timed, unsee, commit })
}

fn windows() -> impl Strategy<Value = Window> {
    prop_oneof![
        (1..=4_u32, 100..1_000_i64).prop_map(|(slices, length)| Window::time(length, slices)),
        (1..=4_u32, 4..60_u64).prop_map(|(slices, keys)| Window::keys(keys, slices)),
    ]
}

fn rules(with: impl Fn(Window) -> (Option<Spec>, bool) + Clone) -> impl Strategy<Value = Rules> {
    (windows(), any::<bool>()).prop_map(move |(window, refresh)| {
        let (filter, exact) = with(window);
        Rules { window, filter, exact, refresh, late: Late::Emit }
    })
}

/// Kinds that forget by slices, and whose state does not depend on what has expired.
fn sliced() -> impl Strategy<Value = Rules> {
    // So small that slices chain, and the next are sized from the last.
    let aging = |rate: f64| {
        move |window| {
            let growth = Growth { adapt: true, ..Growth::default() };
            Some(Spec::Aging { window, plan: Plan::new(window, 12, rate).with_growth(growth) })
        }
    };
    prop_oneof![rules(move |window| (aging(1e-9)(window), false)), rules(move |window| (aging(0.3)(window), true)), rules(|_| (None, true)),]
}

fn any_kind() -> impl Strategy<Value = Rules> {
    prop_oneof![
        sliced(),
        rules(|window| (Some(Spec::Cuckoo { window, plan: CuckooPlan::new(window, 16, 1e-9) }), false)),
        rules(|_| (Some(Spec::Stable { plan: StablePlan::new(4_000, 0.01) }), false)),
    ]
}

/// A memory, its journal, and its log so far.
struct Live {
    dedup: Dedup,
    journal: Journal,
    /// By topic: where reading stands, and what is committed.
    position: [Offset; 2],
    committed: [Offset; 2],
    log: Vec<(i64, Vec<u8>)>,
}

const ORIGIN: Origin = Origin { keys: 1, window: 2 };

impl Live {
    fn new(rules: Rules) -> Self {
        Self { dedup: Dedup::new(rules), journal: Journal::default(), position: [0; 2], committed: [0; 2], log: Vec::new() }
    }

    fn take(&mut self, arrivals: &[Arrival], clock: &mut i64) -> Vec<Verdict> {
        let mut verdicts = Vec::new();
        for arrival in arrivals {
            *clock += arrival.clock;
            verdicts.push(judge(&mut self.dedup, arrival, *clock));
            self.journal.note(&self.dedup, arrival.topic, self.position[arrival.topic], key(arrival.number));
            self.position[arrival.topic] += 1;
            if let Some(whole) = arrival.commit {
                let half = |topic: usize| i64::midpoint(self.committed[topic], self.position[topic]);
                self.commit(if whole { self.position } else { [half(0), half(1)] });
            }
        }
        self.commit(self.position);
        verdicts
    }

    fn commit(&mut self, ends: [Offset; 2]) {
        let spans: Vec<_> = (0..2)
            .filter(|&topic| ends[topic] > self.committed[topic])
            .map(|topic| Span { topic: TOPICS[topic], start: self.committed[topic], end: ends[topic] })
            .collect();
        let by_number: Vec<_> = ends.into_iter().enumerate().collect();
        self.log.extend(self.journal.records(&self.dedup, ORIGIN, &spans, &by_number, ends == self.position));
        self.journal.committed(&by_number);
        self.committed = ends;
    }
}

fn judge(dedup: &mut Dedup, arrival: &Arrival, clock: i64) -> Verdict {
    let time = arrival.timed.then_some(clock);
    if arrival.unsee { dedup.unsee(key(arrival.number), time, i64::MAX) } else { dedup.judge(key(arrival.number), time, i64::MAX) }.unwrap()
}

/// Makes a memory from a log.
fn follow(rules: Rules, log: &[(i64, Vec<u8>)]) -> (Follower, Dedup) {
    let (mut follower, mut dedup) = (Follower::new(BTreeMap::new(), ORIGIN, BTreeMap::new(), 0), Dedup::new(rules));
    for (mark, bytes) in log {
        assert_eq!(follower.follow(&mut dedup, &Record::decode(bytes).unwrap(), *mark).unwrap(), Step::Taken);
    }
    (follower, dedup)
}

/// A memory's outline, pages, and fingerprints by slice.
type State = (String, Vec<(PageId, Vec<u8>)>, Vec<(i64, Fingerprint)>);

/// All that a memory is, but for the numbers of its exact generations.
fn state(dedup: &mut Dedup) -> State {
    dedup.mark_stale();
    let mut snapshot = dedup.snapshot();
    let slices: BTreeMap<_, _> = snapshot.generations().collect();
    for (number, generation) in (0..).zip(snapshot.exact.iter_mut().flat_map(|outline| &mut outline.generations)) {
        generation.id = number;
    }
    snapshot.exact.iter_mut().for_each(|outline| outline.next_id = 0);
    // It has no part in a verdict, and counts what no log says.
    snapshot.sample = None;
    let page = |id| {
        let mut bytes = Vec::new();
        dedup.filter().unwrap().write_page(id, &mut bytes);
        (id, bytes)
    };
    let pages = dedup.filter().map_or_else(Vec::new, |filter| filter.dirty_pages().into_iter().map(page).collect());
    let mut keys: Vec<_> =
        dedup.exact().into_iter().flat_map(Exact::changes).map(|(id, fingerprint, _)| (slices[&id], fingerprint)).collect();
    keys.sort_unstable_by_key(|&(slice, fingerprint)| (slice, fingerprint.0));
    (serde_json::to_string(&snapshot).unwrap(), pages, keys)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    #[test]
    fn a_whole_log_makes_the_same_state(rules in any_kind(), arrivals in prop::collection::vec(arrival(), 1..150)) {
        // A commit of half of what is decided lets the two topics change places in the log, and what is taken
        // back may then come before it is put in; only one topic here.
        let arrivals: Vec<_> = arrivals.into_iter().map(|arrival| Arrival { topic: 0, ..arrival }).collect();
        let mut live = Live::new(rules);
        live.take(&arrivals, &mut 0);
        let (followed, mut made) = follow(rules, &live.log);
        prop_assert_eq!(&followed.offsets, &BTreeMap::from([("a".to_owned(), live.committed[0])]));
        let (followed_state, live_state) = (state(&mut made), state(&mut live.dedup));
        prop_assert_eq!(&followed_state.0, &live_state.0);
        prop_assert!(followed_state == live_state);
    }

    #[test]
    fn what_has_expired_may_be_trimmed(
        rules in sliced(),
        arrivals in prop::collection::vec(arrival(), 1..150),
        more in prop::collection::vec(arrival(), 1..80),
    ) {
        let whole = |arrivals: Vec<Arrival>| -> Vec<_> {
            arrivals.into_iter().map(|arrival| Arrival { commit: arrival.commit.map(|_| true), timed: true, ..arrival }).collect()
        };
        let (arrivals, more) = (whole(arrivals), whole(more));
        let (mut live, mut clock) = (Live::new(rules), 10_000);
        live.take(&arrivals, &mut clock);
        let oldest = live.dedup.oldest_mark();
        let first = live.log.iter().position(|(mark, _)| *mark >= oldest).unwrap_or(0);
        let (_, mut made) = follow(rules, &live.log[first..]);
        let (followed_state, live_state) = (state(&mut made), state(&mut live.dedup));
        prop_assert_eq!(&followed_state.0, &live_state.0);
        prop_assert!(followed_state == live_state);
        let mut again = clock;
        let expected = live.take(&more, &mut clock);
        for (arrival, expected) in more.iter().zip(expected) {
            again += arrival.clock;
            prop_assert_eq!(judge(&mut made, arrival, again), expected);
        }
    }

    #[test]
    fn any_bytes_are_a_record_or_an_error(bytes in prop::collection::vec(any::<u8>(), 0..200), version in any::<bool>()) {
        let mut bytes = bytes;
        if let (Some(first), true) = (bytes.first_mut(), version) {
            *first = 1;
        }
        let _ = Record::decode(&bytes);
    }
}

fn window() -> Rules {
    let window = Window::time(1_000, 4);
    Rules { window, filter: None, exact: true, refresh: false, late: Late::Emit }
}

fn put(from: u64, count: i64, start: Offset) -> Vec<u8> {
    let span = Span { topic: "a", start, end: start + count };
    let mut bytes = record::head(ORIGIN, [Some(5), Some(5)], None, &[span]);
    record::push_run(
        &mut bytes,
        crate::dedup::Mutation::Insert,
        (from..from + count.unsigned_abs()).map(key).collect::<Vec<_>>().into_iter(),
    );
    bytes
}

#[test]
fn a_record_is_read_as_it_was_written() {
    let bytes = put(7, 3, 10);
    let record = Record::decode(&bytes).unwrap();
    assert_eq!((record.origin, record.time, record.hint), (ORIGIN, Some(5), None));
    assert_eq!(record.spans, [Span { topic: "a", start: 10, end: 13 }]);
    assert_eq!(record.runs[0].fingerprints().collect::<Vec<_>>(), [key(7), key(8), key(9)]);
    for length in 0..bytes.len() {
        let cut = Record::decode(&bytes[..length]);
        assert!(cut.as_ref().is_err() || cut.is_ok_and(|cut| cut.runs.is_empty()), "cut off at {length}");
    }
}

#[test]
fn nothing_is_taken_from_beyond_what_is_committed() {
    let bounds = BTreeMap::from([("a".to_owned(), 4)]);
    let mut follower = Follower::new(BTreeMap::new(), ORIGIN, bounds, 0);
    let mut dedup = Dedup::new(window());
    let mut step = |bytes: &[u8]| follower.follow(&mut dedup, &Record::decode(bytes).unwrap(), 0).unwrap();
    assert_eq!(step(&put(0, 4, 0)), Step::Taken);
    assert_eq!(step(&put(4, 4, 4)), Step::Passed);
    assert_eq!(dedup.judge(key(3), Some(5), 9).unwrap(), Verdict::Duplicate);
    assert_eq!(dedup.judge(key(4), Some(5), 9).unwrap(), Verdict::Unseen);
}

#[test]
fn a_group_that_was_set_back_is_noticed() {
    let mut follower = Follower::new(BTreeMap::from([("a".to_owned(), 6)]), ORIGIN, BTreeMap::new(), 0);
    let mut dedup = Dedup::new(window());
    let mut step = |bytes: &[u8]| follower.follow(&mut dedup, &Record::decode(bytes).unwrap(), 0).unwrap();
    assert_eq!(step(&put(0, 6, 0)), Step::Passed, "the checkpoint has it");
    assert_eq!(step(&put(6, 4, 6)), Step::Taken);
    assert_eq!(step(&put(6, 4, 6)), Step::Taken, "another part of the same commit");
    assert_eq!(step(&put(20, 4, 8)), Step::SetBack);
}

#[test]
fn a_log_that_begins_later_does_not_go_on_from_a_checkpoint() {
    let mut follower = Follower::new(BTreeMap::from([("a".to_owned(), 6)]), ORIGIN, BTreeMap::new(), 0);
    let record = put(0, 6, 7);
    assert_eq!(follower.follow(&mut Dedup::new(window()), &Record::decode(&record).unwrap(), 0).unwrap(), Step::Gap);
}

#[test]
fn fingerprints_of_other_keys_mean_nothing() {
    let other = Origin { keys: 9, ..ORIGIN };
    let mut follower = Follower::new(BTreeMap::new(), other, BTreeMap::new(), 0);
    assert_eq!(follower.follow(&mut Dedup::new(window()), &Record::decode(&put(0, 4, 0)).unwrap(), 0).unwrap(), Step::Passed);
    assert_eq!(follower.fingerprints, 0);
}
