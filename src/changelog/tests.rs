//! Promise: a state rebuilt from its changelog equals the state that was logged.

use super::*;
use crate::dedup::{Emit, Late, Rules};
use crate::filter::{AgingSizing, Demand, Exact, Growth, Kind, PageId, Spec, Window};
use crate::key::Fingerprint;
use crate::key::numbered::key;
use crate::record::{TopicId, Verdict};
use proptest::prelude::*;

const TOPICS: [&str; 2] = ["a", "b"];

#[derive(Clone, Copy, Debug)]
struct Arrival {
    topic: usize,
    number: u64,
    clock: i64,
    timed: bool,
    retract: bool,
    /// True if the transaction ends after this record.
    commit: bool,
}

fn arrival() -> impl Strategy<Value = Arrival> {
    let clock = prop_oneof![8 => 0..20_i64, 2 => 60..700_i64];
    let (timed, retract, commit) = (prop::bool::weighted(0.95), prop::bool::weighted(0.1), prop::bool::weighted(0.25));
    (0..2_usize, 0..60_u64, clock, timed, retract, commit).prop_map(|(topic, number, clock, timed, retract, commit)| Arrival {
        topic,
        number,
        clock,
        timed,
        retract,
        commit,
    })
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
        Rules { window, filter, exact, refresh, late: Late::Emit, emit: Emit::First }
    })
}

/// Rules with slices. Their state does not depend on expired keys.
fn sliced() -> impl Strategy<Value = Rules> {
    // The capacity is so small that slices overflow into chained layers, and that later slices are sized from earlier ones.
    let aging = |rate: f64| {
        move |window| {
            let growth = Growth { adapt: true, ..Growth::default() };
            Some(Spec::Aging(AgingSizing::new(window, 12, rate).with_growth(growth)))
        }
    };
    prop_oneof![rules(move |window| (aging(1e-9)(window), false)), rules(move |window| (aging(0.3)(window), true)), rules(|_| (None, true)),]
}

/// Returns a filter of this kind. If the kind forgets at random, the filter forgets all keys several times in a test.
fn of_kind(kind: Kind, window: Window, keys: u64) -> Option<Spec> {
    let rate = if kind.properties().keeps_window { 1e-9 } else { 0.01 };
    kind.spec(window, &Demand { bytes: 4_000, ..Demand::new(keys, rate) })
}

fn any_kind() -> impl Strategy<Value = Rules> {
    let kinds = prop::sample::select(Kind::ALL);
    prop_oneof![sliced(), kinds.prop_flat_map(|kind| rules(move |window| (of_kind(kind, window, 16), kind.is_on_disk())))]
}

/// A state with its pending changes and its changelog.
struct Live {
    dedup: Dedup,
    pending: PendingChanges,
    /// The position and the committed offset of each topic.
    position: [Offset; 2],
    committed: [Offset; 2],
    log: Vec<Vec<u8>>,
    /// The part of the changelog that is needed.
    progress: Progress,
}

const ORIGIN: Origin = Origin { owner: 1, keys: 2, clock: 3, kind: 4 };

impl Live {
    fn new(rules: Rules) -> Self {
        let (dedup, pending, progress) = (Dedup::new(rules), PendingChanges::default(), Progress::default());
        Self { dedup, pending, position: [0; 2], committed: [0; 2], log: Vec::new(), progress }
    }

    fn take(&mut self, arrivals: &[Arrival], clock: &mut i64) -> Vec<Verdict> {
        let mut verdicts = Vec::new();
        for arrival in arrivals {
            *clock += arrival.clock;
            verdicts.push(judge(&mut self.dedup, arrival, *clock));
            self.pending.note(&self.dedup, TopicId(arrival.topic), self.position[arrival.topic], key(arrival.number));
            self.position[arrival.topic] += 1;
            if arrival.commit {
                self.commit();
            }
        }
        self.commit();
        verdicts
    }

    fn commit(&mut self) {
        let ends = self.position;
        let spans: Vec<_> = (0..2)
            .filter(|&topic| ends[topic] > self.committed[topic])
            .map(|topic| Span { topic: TOPICS[topic], start: self.committed[topic], end: ends[topic] })
            .collect();
        let by_number: Vec<_> = (0..).map(TopicId).zip(ends).collect();
        for (slice, record) in self.pending.records(&self.dedup, ORIGIN, 1, &spans, &by_number, self.dedup.stream_time()) {
            self.progress.logged(slice, Offset::try_from(self.log.len()).unwrap());
            self.log.push(record);
        }
        self.pending.committed(&by_number);
        assert!(self.pending.is_empty());
        self.committed = ends;
    }
}

/// Judges records with the batch calls that a worker uses. Returns `None` if a batch is not possible.
fn judge_in_batch(live: &mut Live, topic: usize, records: &[(u64, i64)]) -> Option<Vec<Verdict>> {
    let newest = records.iter().map(|&(_, time)| time).max()?;
    if live.dedup.batch_horizon().is_none_or(|latest| newest > latest) || !live.pending.can_append(&live.dedup) {
        return None;
    }
    let (fingerprints, times): (Vec<_>, Vec<_>) = records.iter().map(|&(number, time)| (key(number), time)).unzip();
    let (before, mut seen) = (live.dedup.stream_time(), vec![true; 3]);
    live.dedup.prefetch(&fingerprints);
    live.dedup.judge_batch(&fingerprints, &times, &mut seen).unwrap();
    live.pending.note_batch(TopicId(topic), live.position[topic], &fingerprints, before, &times, &seen);
    live.position[topic] += Offset::try_from(records.len()).unwrap();
    Some(seen.into_iter().map(|seen| if seen { Verdict::Duplicate } else { Verdict::Unseen }).collect())
}

proptest! {
    /// Covers all kinds of filters, all positions at which slices end or chain, and retractions and commits in between.
    #[test]
    fn a_batch_has_the_same_effect_as_single_records(
        rules in any_kind(),
        batches in prop::collection::vec((0..2_usize, prop::collection::vec((0..90_u64, 0..12_i64), 1..70), 0..40_i64, any::<[bool; 2]>()), 1..30),
    ) {
        let (mut one, mut many, mut clock, mut together) = (Live::new(rules), Live::new(rules), 0, 0);
        for (topic, records, passed, [commits, retracts]) in batches {
            clock += passed;
            // Timestamps are out of order.
            let records: Vec<_> = records.into_iter().map(|(number, ahead)| (number, clock + ahead)).collect();
            let arrivals: Vec<_> = records.iter().map(|&(number, time)| (Arrival { topic, number, clock: 0, timed: true, retract: false, commit: false }, time)).collect();
            let one_by_one = |live: &mut Live| -> Vec<Verdict> {
                arrivals.iter().map(|(arrival, time)| {
                    let verdict = judge(&mut live.dedup, arrival, *time);
                    live.pending.note(&live.dedup, TopicId(topic), live.position[topic], key(arrival.number));
                    live.position[topic] += 1;
                    verdict
                }).collect()
            };
            let expected = one_by_one(&mut one);
            let taken = judge_in_batch(&mut many, topic, &records);
            together += usize::from(taken.is_some());
            prop_assert_eq!(taken.unwrap_or_else(|| one_by_one(&mut many)), expected);
            prop_assert_eq!((many.dedup.mutation(), many.dedup.stream_time(), many.dedup.observed()), (one.dedup.mutation(), one.dedup.stream_time(), one.dedup.observed()));
            for live in [&mut one, &mut many] {
                if retracts {
                    judge(&mut live.dedup, &Arrival { retract: true, ..arrivals[0].0 }, clock);
                    live.pending.note(&live.dedup, TopicId(topic), live.position[topic], key(arrivals[0].0.number));
                    live.position[topic] += 1;
                }
                if commits {
                    live.commit();
                }
            }
        }
        for live in [&mut one, &mut many] {
            live.commit();
        }
        prop_assert_eq!(&many.log, &one.log);
        prop_assert_eq!(many.dedup.metadata(), one.dedup.metadata());
        prop_assert_eq!(state(&mut many.dedup), state(&mut one.dedup));
        let may = rules.filter.is_some() && !rules.exact && !rules.refresh && rules.is_sliced() && rules.window.length_ms().is_some();
        prop_assert!(may || together == 0);
    }
}

fn judge(dedup: &mut Dedup, arrival: &Arrival, clock: i64) -> Verdict {
    let time = arrival.timed.then_some(clock);
    if arrival.retract { dedup.retract(key(arrival.number), time, i64::MAX) } else { dedup.judge(key(arrival.number), time, i64::MAX) }
        .unwrap()
}

/// Rebuilds a state from a changelog.
fn follow(rules: Rules, log: &[Vec<u8>]) -> (Applier, Dedup) {
    follow_as(ORIGIN, rules, log)
}

/// Rebuilds a state from a changelog whose records have one key per offset. Returns the offset after the last applied record. Panics
/// unless the state has exactly the keys of all offsets before that.
fn rebuild(log: &[Vec<u8>], bound: Option<Offset>) -> Offset {
    let mut cuts = Vec::new();
    'again: loop {
        let bounds = bound.map(|bound| ("a".to_owned(), bound)).into_iter().collect();
        let (mut applier, mut dedup) = (applier_from(BTreeMap::new(), ORIGIN, bounds), Dedup::new(window()));
        for (at, bytes) in (0..).zip(log) {
            let record = ChangelogRecord::decode(bytes).unwrap();
            if !cuts.iter().any(|cut: &Cut| cut.voids(at, &record)) && applier.follow(&mut dedup, &record).unwrap() == Outcome::SetBack {
                applier.cut(at, &record).unwrap().add_to(&mut cuts);
                continue 'again;
            }
        }
        let end = applier.offsets.get("a").copied().unwrap_or(0);
        let is_seen = |offset: &u64| dedup.judge(key(*offset), Some(5), 9).unwrap() == Verdict::Duplicate;
        assert_eq!((0..200).filter(is_seen).collect::<Vec<_>>(), (0..end.unsigned_abs()).collect::<Vec<_>>());
        return end;
    }
}

/// Rebuilds a state with the settings in `origin` and `rules`, which may differ from those of the changelog.
fn follow_as(origin: Origin, rules: Rules, log: &[Vec<u8>]) -> (Applier, Dedup) {
    let (mut applier, mut dedup) = (applier_of(origin), Dedup::new(rules));
    for bytes in log {
        assert_eq!(applier.follow(&mut dedup, &ChangelogRecord::decode(bytes).unwrap()).unwrap(), Outcome::Taken);
    }
    (applier, dedup)
}

fn applier_of(origin: Origin) -> Applier {
    applier_from(BTreeMap::new(), origin, BTreeMap::new())
}

fn applier_from(offsets: BTreeMap<String, Offset>, origin: Origin, bounds: BTreeMap<String, Offset>) -> Applier {
    Applier::new(offsets, origin, bounds, None, 0)
}

/// A state's metadata, pages, and fingerprints by slice.
type State = (String, Vec<(PageId, Vec<u8>)>, Vec<(Slice, Fingerprint)>);

/// Returns the whole state except for the ids of its exact generations.
fn state(dedup: &mut Dedup) -> State {
    dedup.mark_stale();
    let mut metadata = dedup.metadata();
    let slices: BTreeMap<_, _> = metadata.generations().collect();
    for (number, generation) in (0..).zip(metadata.exact.iter_mut().flat_map(|metadata| &mut metadata.generations)) {
        generation.id = number;
    }
    metadata.exact.iter_mut().for_each(|metadata| metadata.next_id = 0);
    // The watched keys have no effect on verdicts, and also count records that are in no changelog.
    metadata.watched = None;
    let page = |id| {
        let mut bytes = Vec::new();
        dedup.filter().unwrap().write_page(id, &mut bytes);
        (id, bytes)
    };
    let pages = dedup.filter().map_or_else(Vec::new, |filter| filter.dirty_pages().into_iter().map(page).collect());
    let mut keys: Vec<_> =
        dedup.exact().into_iter().flat_map(Exact::changes).map(|(id, fingerprint, _)| (slices[&id], fingerprint)).collect();
    keys.sort_unstable_by_key(|&(slice, fingerprint)| (slice, fingerprint.0));
    (serde_json::to_string(&metadata).unwrap(), pages, keys)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    #[test]
    fn a_complete_changelog_rebuilds_the_same_state(rules in any_kind(), arrivals in prop::collection::vec(arrival(), 1..150)) {
        let mut live = Live::new(rules);
        live.take(&arrivals, &mut 0);
        let (followed, mut made) = follow(rules, &live.log);
        let applied: BTreeMap<_, _> = TOPICS.map(str::to_owned).into_iter().zip(live.committed).filter(|&(_, end)| end > 0).collect();
        prop_assert_eq!(&followed.offsets, &applied);
        let (followed_state, live_state) = (state(&mut made), state(&mut live.dedup));
        prop_assert_eq!(&followed_state.0, &live_state.0);
        prop_assert!(followed_state == live_state);
    }

    /// A commit with an unknown outcome is logged again. Any number of parts of the first attempt may have been written.
    #[test]
    fn a_commit_that_is_logged_twice_is_applied_once(
        rules in any_kind(),
        commits in prop::collection::vec((prop::collection::vec(arrival(), 1..20), 0..5_usize), 1..20),
    ) {
        let (mut live, mut clock, mut log) = (Live::new(rules), 0, Vec::new());
        for (arrivals, written) in commits {
            let arrivals: Vec<_> = arrivals.into_iter().map(|arrival| Arrival { commit: false, ..arrival }).collect();
            let logged = live.log.len();
            live.take(&arrivals, &mut clock);
            let parts = &live.log[logged..];
            log.extend_from_slice(&parts[..written.min(parts.len())]);
            log.extend_from_slice(parts);
        }
        let (mut applier, mut made) = (applier_of(ORIGIN), Dedup::new(rules));
        for bytes in &log {
            let outcome = applier.follow(&mut made, &ChangelogRecord::decode(bytes).unwrap()).unwrap();
            prop_assert!(matches!(outcome, Outcome::Taken | Outcome::Passed), "{:?}", outcome);
        }
        let (followed_state, live_state) = (state(&mut made), state(&mut live.dedup));
        prop_assert_eq!(&followed_state.0, &live_state.0);
        prop_assert!(followed_state == live_state);
    }

    /// The worker restores the state up to the offset that the group was reset to, and logs from there. Every later reader gets the same
    /// state.
    #[test]
    fn a_log_of_a_group_whose_offsets_were_reset_makes_the_same_state(
        steps in prop::collection::vec((1..12_i64, prop::option::of(0..40_i64)), 1..12),
    ) {
        let (mut log, mut end) = (Vec::new(), 0);
        for (epoch, (count, back)) in (1..).zip(steps) {
            let committed = back.map_or(end, |back| (end - back).max(0));
            let start = if back.is_some() { rebuild(&log, Some(committed)) } else { end };
            end = committed + count;
            log.push(put_by(ORIGIN, epoch, start.unsigned_abs(), end - start, start));
            prop_assert_eq!(rebuild(&log, None), end);
            prop_assert_eq!(rebuild(&log, Some(end)), end);
        }
    }

    #[test]
    fn records_of_expired_slices_can_be_trimmed(
        rules in sliced(),
        arrivals in prop::collection::vec(arrival(), 1..150),
        more in prop::collection::vec(arrival(), 1..80),
    ) {
        let (mut live, mut clock) = (Live::new(rules), 10_000);
        live.take(&arrivals, &mut clock);
        let first = live.dedup.oldest().and_then(|oldest| live.progress.needed_from(oldest)).unwrap_or(0);
        let first = usize::try_from(first).unwrap();
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
    fn any_bytes_decode_to_a_record_or_an_error(bytes in prop::collection::vec(any::<u8>(), 0..200), version in any::<bool>()) {
        let mut bytes = bytes;
        if let (Some(first), true) = (bytes.first_mut(), version) {
            *first = record::VERSION;
        }
        let _ = ChangelogRecord::decode(&bytes);
    }
}

fn window() -> Rules {
    let window = Window::time(1_000, 4);
    Rules { window, filter: None, exact: true, refresh: false, late: Late::Emit, emit: Emit::First }
}

fn put(from: u64, count: i64, start: Offset) -> Vec<u8> {
    put_by(ORIGIN, 0, from, count, start)
}

fn put_by(origin: Origin, epoch: i64, from: u64, count: i64, start: Offset) -> Vec<u8> {
    put_part(origin, epoch, 0, from, count, start)
}

fn put_part(origin: Origin, epoch: i64, part: u32, from: u64, count: i64, start: Offset) -> Vec<u8> {
    let spans = vec![Span { topic: "a", start, end: start + count }];
    let mut bytes = Vec::new();
    let (time, end_time) = (Some(5), Some(5));
    record::push_head(
        &mut bytes,
        &ChangelogRecord {
            origin,
            epoch,
            part: Some(part),
            slice: Some(Slice::FIRST),
            time,
            end_time,
            replay_info: None,
            spans,
            warms_up: false,
            runs: Vec::new(),
        },
    );
    record::push_run(
        &mut bytes,
        crate::dedup::Mutation::Insert,
        (from..from + count.unsigned_abs()).map(key).collect::<Vec<_>>().into_iter(),
    );
    bytes
}

#[test]
fn a_record_is_decoded_as_it_was_encoded() {
    let bytes = put(7, 3, 10);
    let record = ChangelogRecord::decode(&bytes).unwrap();
    assert_eq!(
        (record.origin, record.epoch, record.part, record.slice, record.time, record.replay_info),
        (ORIGIN, 0, Some(0), Some(Slice::FIRST), Some(5), None)
    );
    assert_eq!(record.spans, [Span { topic: "a", start: 10, end: 13 }]);
    assert_eq!(record.runs[0].fingerprints().collect::<Vec<_>>(), [key(7), key(8), key(9)]);
    for length in 0..bytes.len() {
        let cut = ChangelogRecord::decode(&bytes[..length]);
        assert!(cut.as_ref().is_err() || cut.is_ok_and(|cut| cut.runs.is_empty()), "truncated at {length}");
    }
}

/// Versions that do not know the mark read it as a topic without a name. So nothing else in the record may differ.
#[test]
fn a_record_of_a_warm_up_differs_only_by_its_mark() {
    let (dedup, pending, span) = (Dedup::new(window()), PendingChanges::default(), Span { topic: "a", start: 3, end: 7 });
    let logged = |spans: &[Span<'_>]| pending.records(&dedup, ORIGIN, 1, spans, &[(TopicId(0), 7)], Some(5)).remove(0).1;
    let [plain, marked] = [logged(&[span]), logged(&[span, Span::WARM_UP])];
    assert_eq!(marked.len(), plain.len() + 2 + 8 + 8);
    let [plain, marked] = [&plain, &marked].map(|bytes| ChangelogRecord::decode(bytes).unwrap());
    assert!(!plain.warms_up && marked.warms_up);
    assert_eq!(ChangelogRecord { warms_up: false, ..marked }, plain);
}

#[test]
fn a_record_of_another_version_is_an_error_with_a_message() {
    for version in [0, 1, record::VERSION + 1] {
        let mut bytes = put(0, 3, 0);
        bytes[0] = version;
        assert_eq!(
            ChangelogRecord::decode(&bytes).unwrap_err().to_string(),
            "this version of unseen cannot read the changelog record: unknown format version"
        );
    }
}

/// In format version 2, no part number follows the epoch, and all records with the same spans are parts of one commit.
#[test]
fn a_record_without_a_part_number_is_decoded() {
    let bytes = put(7, 3, 10);
    let part = 1 + 4 * 8 + 8..1 + 4 * 8 + 8 + 4;
    let older = [&[2], &bytes[1..part.start], &bytes[part.end..]].concat();
    let (record, older) = (ChangelogRecord::decode(&bytes).unwrap(), ChangelogRecord::decode(&older).unwrap());
    assert_eq!(older, ChangelogRecord { part: None, ..record });
    let (mut applier, mut dedup) = (applier_of(ORIGIN), Dedup::new(window()));
    assert_eq!([(); 2].map(|()| applier.follow(&mut dedup, &older).unwrap()), [Outcome::Taken, Outcome::Taken]);
}

#[test]
fn records_past_the_committed_offset_are_skipped() {
    let bounds = BTreeMap::from([("a".to_owned(), 4)]);
    let mut applier = applier_from(BTreeMap::new(), ORIGIN, bounds);
    let mut dedup = Dedup::new(window());
    let mut step = |bytes: &[u8]| applier.follow(&mut dedup, &ChangelogRecord::decode(bytes).unwrap()).unwrap();
    assert_eq!(step(&put(0, 4, 0)), Outcome::Taken);
    assert_eq!(step(&put(4, 4, 4)), Outcome::Passed);
    assert_eq!(dedup.judge(key(3), Some(5), 9).unwrap(), Verdict::Duplicate);
    assert_eq!(dedup.judge(key(4), Some(5), 9).unwrap(), Verdict::Unseen);
}

#[test]
fn a_reset_of_the_groups_offsets_is_detected() {
    let mut applier = applier_from(BTreeMap::from([("a".to_owned(), 6)]), ORIGIN, BTreeMap::new());
    let mut dedup = Dedup::new(window());
    let mut step = |bytes: &[u8]| applier.follow(&mut dedup, &ChangelogRecord::decode(bytes).unwrap()).unwrap();
    assert_eq!(step(&put(0, 6, 0)), Outcome::Passed, "already in the checkpoint");
    assert_eq!(step(&put(6, 4, 6)), Outcome::Taken);
    assert_eq!(step(&put(6, 4, 6)), Outcome::Passed, "the same part");
    assert_eq!(step(&put_part(ORIGIN, 0, 1, 6, 4, 6)), Outcome::Taken, "another part of the same commit");
    assert_eq!(step(&put(20, 4, 8)), Outcome::SetBack);
}

/// Another owner had an older checkpoint when the changelog was recreated, and logs the records that its checkpoint lacks.
#[test]
fn a_warm_up_is_not_a_reset() {
    let mut dedup = Dedup::new(window());
    let mut follow = |applier: &mut Applier, (start, end), warms_up| {
        let bytes = put(1, end - start, start);
        let record = ChangelogRecord { warms_up, ..ChangelogRecord::decode(&bytes).unwrap() };
        applier.follow(&mut dedup, &record).unwrap()
    };
    let from_checkpoint = || applier_from(BTreeMap::from([("a".to_owned(), 6)]), ORIGIN, BTreeMap::new());
    assert_eq!(follow(&mut from_checkpoint(), (1, 9), true), Outcome::Gap);
    assert_eq!(follow(&mut from_checkpoint(), (1, 9), false), Outcome::SetBack);
    let mut applier = from_checkpoint();
    assert_eq!(follow(&mut applier, (6, 9), false), Outcome::Taken);
    assert_eq!(follow(&mut applier, (1, 9), true), Outcome::Passed);
    assert_eq!(follow(&mut applier, (1, 12), true), Outcome::Gap, "the last part of a warm-up may contain new records");
    assert_eq!(follow(&mut applier, (1, 9), false), Outcome::SetBack);
    let mut applier = applier_from(BTreeMap::new(), ORIGIN, BTreeMap::new());
    assert_eq!(follow(&mut applier, (6, 9), false), Outcome::Taken);
    assert_eq!(follow(&mut applier, (1, 12), true), Outcome::SetBack, "without a checkpoint, the warm-up has all keys that are left");
}

#[test]
fn a_changelog_that_starts_after_the_checkpoint_is_a_gap() {
    let mut applier = applier_from(BTreeMap::from([("a".to_owned(), 6)]), ORIGIN, BTreeMap::new());
    let record = put(0, 6, 7);
    assert_eq!(applier.follow(&mut Dedup::new(window()), &ChangelogRecord::decode(&record).unwrap()).unwrap(), Outcome::Gap);
}

#[test]
fn fingerprints_of_other_key_settings_are_skipped() {
    let other = Origin { keys: 9, ..ORIGIN };
    let mut applier = applier_of(other);
    assert_eq!(applier.follow(&mut Dedup::new(window()), &ChangelogRecord::decode(&put(0, 4, 0)).unwrap()).unwrap(), Outcome::Passed);
    assert_eq!(applier.fingerprints, 0);
}

#[test]
fn a_changelog_of_another_owner_is_foreign() {
    let mut applier = applier_of(Origin { owner: 9, ..ORIGIN });
    assert_eq!(applier.follow(&mut Dedup::new(window()), &ChangelogRecord::decode(&put(0, 4, 0)).unwrap()).unwrap(), Outcome::Foreign);
}

#[test]
fn records_of_the_previous_owner_after_a_takeover_are_void() {
    let (mut applier, mut dedup) = (applier_of(ORIGIN), Dedup::new(window()));
    let mut step = |bytes: &[u8]| applier.follow(&mut dedup, &ChangelogRecord::decode(bytes).unwrap()).unwrap();
    assert_eq!(step(&put_by(ORIGIN, 5, 0, 4, 0)), Outcome::Taken);
    assert_eq!(step(&put_by(ORIGIN, 6, 4, 4, 4)), Outcome::Taken, "by the new owner");
    assert_eq!(step(&put_by(ORIGIN, 5, 90, 4, 4)), Outcome::Passed, "by the previous owner, which was suspended");
    assert_eq!(step(&put_by(ORIGIN, 6, 8, 4, 8)), Outcome::Taken);
    for (number, verdict) in [(7, Verdict::Duplicate), (11, Verdict::Duplicate), (90, Verdict::Unseen)] {
        assert_eq!(dedup.judge(key(number), Some(5), 9).unwrap(), verdict, "{number}");
    }
}

#[test]
fn keys_logged_by_one_kind_are_remembered_by_another() {
    let window = Window::time(1_000, 4);
    let rules = |filter, exact| Rules { window, filter, exact, refresh: false, late: Late::Emit, emit: Emit::First };
    let alone = Kind::ALL.iter().map(|&kind| rules(of_kind(kind, window, 50), kind.is_on_disk()));
    let kinds: Vec<_> = alone.chain([rules(of_kind(Kind::default(), window, 50), true)]).collect();
    let clock = |rules: &Rules| if rules.is_sliced() { 1 } else { 2 };
    for (number, logged) in kinds.iter().enumerate() {
        let origin = Origin { clock: clock(logged), kind: number as u64, ..ORIGIN };
        let (mut live, mut pending, mut log) = (Dedup::new(*logged), PendingChanges::default(), Vec::new());
        for offset in 0..4_000_i64 {
            // The window contains a few hundred keys at the end. A stable filter has replaced all of its keys several times.
            let _ = live.judge(key(offset.cast_unsigned()), Some(1_700_000_000_000 + offset), i64::MAX).unwrap();
            pending.note(&live, TopicId(0), offset, key(offset.cast_unsigned()));
            if offset % 100 == 99 {
                let span = Span { topic: "a", start: offset - 99, end: offset + 1 };
                log.extend(
                    pending
                        .records(&live, origin, 1, &[span], &[(TopicId(0), offset + 1)], live.stream_time())
                        .into_iter()
                        .map(|(_, record)| record),
                );
                pending.committed(&[(TopicId(0), offset + 1)]);
            }
        }
        for (other, now) in kinds.iter().enumerate().filter(|(_, rules)| rules.is_sliced()) {
            let (_, mut made) = follow_as(Origin { clock: clock(now), kind: other as u64, ..ORIGIN }, *now, &log);
            let bytes = made.usage().bytes;
            assert!(bytes < 1 << 20, "{number} as {other}: {bytes} bytes for a few thousand keys");
            // A stable filter reports a few new keys as seen. These keys are not logged.
            let forgotten =
                (3_100..4_000_u64).filter(|&number| made.judge(key(number), Some(1_700_000_003_999), i64::MAX).unwrap() == Verdict::Unseen);
            let forgotten = forgotten.count();
            assert!(forgotten < if logged.is_sliced() { 1 } else { 45 }, "{number} as {other}: forgot {forgotten} keys of the window");
        }
    }
}

/// Keys of records without a timestamp, or from the future, belong to the slice of the first valid timestamp.
#[test]
fn keys_from_before_the_first_timestamp_are_kept_for_a_window() {
    let (mut live, mut clock) = (Live::new(window()), 1_700_000_000_000);
    let arrival = Arrival { topic: 0, number: 0, clock: 0, timed: false, retract: false, commit: true };
    let untimed: Vec<_> = (0..10).map(|number| Arrival { number, ..arrival }).collect();
    live.take(&untimed, &mut clock);
    live.take(&[Arrival { number: 10, timed: true, ..arrival }, Arrival { number: 11, clock: 900, timed: true, ..arrival }], &mut clock);
    let needed = live.progress.needed_from(live.dedup.oldest().unwrap());
    assert_eq!(needed.unwrap_or(0), 0, "these keys are not trimmed");
    let mut applier = Applier::new(BTreeMap::new(), ORIGIN, BTreeMap::new(), live.dedup.oldest(), 0);
    let mut made = Dedup::new(window());
    for bytes in &live.log {
        applier.follow(&mut made, &ChangelogRecord::decode(bytes).unwrap()).unwrap();
    }
    for number in 0..12 {
        let arrival = Arrival { number, timed: true, ..arrival };
        assert_eq!(judge(&mut made, &arrival, clock), Verdict::Duplicate, "{number}");
    }
}

#[test]
fn ordinary_records_are_judged_in_batches() {
    let window = Window::time(1_000, 4);
    let sliced = Kind::ALL.iter().filter(|kind| kind.properties().keeps_window);
    for filter in sliced.filter_map(|&kind| of_kind(kind, window, 100)) {
        let mut live = Live::new(Rules { window, filter: Some(filter), exact: false, refresh: false, late: Late::Emit, emit: Emit::First });
        assert_eq!(judge_in_batch(&mut live, 0, &[(1, 5)]), None, "no timestamp yet");
        let arrival = Arrival { topic: 0, number: 1, clock: 5, timed: true, retract: false, commit: false };
        judge(&mut live.dedup, &arrival, 5);
        assert_eq!(judge_in_batch(&mut live, 0, &[(1, 5)]), None, "no pending changes yet");
        live.pending.note(&live.dedup, TopicId(0), 0, key(1));
        assert_eq!(
            judge_in_batch(&mut live, 0, &[(1, 5), (2, 9), (2, 3)]),
            Some(vec![Verdict::Duplicate, Verdict::Unseen, Verdict::Duplicate])
        );
        assert_eq!(judge_in_batch(&mut live, 0, &[(3, 5), (4, 300)]), None, "past the end of the slice");
    }
}

/// After an offset reset, a group may commit exactly the same records again.
#[test]
fn the_same_records_of_another_epoch_are_a_different_commit() {
    let rules = Rules { window: Window::keys(100, 1), filter: None, exact: true, refresh: false, late: Late::Emit, emit: Emit::First };
    let logged = |epoch| {
        let mut live = Live::new(rules);
        let arrivals = [Arrival { topic: 0, number: 1, clock: 1, timed: true, retract: false, commit: false }];
        live.dedup.judge(key(1), Some(1), i64::MAX).unwrap();
        live.pending.note(&live.dedup, TopicId(0), 0, key(1));
        let span = Span { topic: TOPICS[0], start: 0, end: Offset::try_from(arrivals.len()).unwrap() };
        live.pending.records(&live.dedup, ORIGIN, epoch, &[span], &[(TopicId(0), 1)], Some(1)).remove(0).1
    };
    let (mut applier, mut dedup) = (applier_of(ORIGIN), Dedup::new(rules));
    let outcomes =
        [logged(1), logged(1), logged(2)].map(|bytes| applier.follow(&mut dedup, &ChangelogRecord::decode(&bytes).unwrap()).unwrap());
    assert_eq!(outcomes, [Outcome::Taken, Outcome::Passed, Outcome::SetBack]);
}
