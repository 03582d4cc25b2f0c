//! Promise: a stored state is restored exactly, the same records give the same state, and the rules of the window hold at their limits.

use super::*;
use crate::filter::{AgingSizing, Archive, ArchiveError, Change, GenerationId, MetadataError, PageId, Spec, Window};
use crate::key::numbered::key;
use proptest::prelude::*;
use std::collections::HashMap;

/// An error rate that is too low for a false positive in these tests.
const RATE: f64 = 1e-10;

fn rules(window: Window, capacity: u64) -> Rules {
    Rules { window, filter: Some(aging(window, capacity, RATE)), exact: false, refresh: false, late: Late::Emit, emit: Emit::First }
}

fn aging(window: Window, capacity: u64, rate: f64) -> Spec {
    Spec::Aging(AgingSizing::new(window, capacity, rate))
}

/// An archive in memory, with the entries that a checkpoint would contain.
#[derive(Clone, Debug, Default)]
struct Shelf(HashMap<(GenerationId, Fingerprint), u64>);

impl Archive for Shelf {
    fn content(&self, generation: GenerationId, entry: Fingerprint) -> Result<Option<u64>, ArchiveError> {
        Ok(self.0.get(&(generation, entry)).copied())
    }
}

impl Shelf {
    fn take(&mut self, dedup: &mut Dedup) {
        for (generation, entry, change) in dedup.exact().into_iter().flat_map(Exact::changes) {
            match change {
                Change::Put(content) => self.0.insert((generation, entry), content),
                Change::Delete => self.0.remove(&(generation, entry)),
            };
        }
    }
}

/// Compares verdicts with a map of the last contents, while checkpoints store and restore the state.
#[test]
fn last_contents_survive_checkpoints() {
    for seed in 0..200_u64 {
        let mut state = seed;
        let mut below = |end: u64| {
            state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
            xxhash_rust::xxh3::xxh3_64(&state.to_le_bytes()) % end
        };
        let window = Window::time(100, [1, 4][usize::try_from(below(2)).unwrap()]);
        let rules = Rules { filter: None, exact: true, refresh: below(2) == 0, emit: Emit::OnChange, ..rules(window, 1) };
        let (mut dedup, mut shelf, mut last) = (Dedup::new(rules), Shelf::default(), HashMap::<u64, (u64, Slice)>::new());
        let mut time = 0;
        for _ in 0..400 {
            time += [0, 1, 20][usize::try_from(below(3)).unwrap()];
            let (number, content) = (below(8), below(3));
            let now = window.slice_at(time).unwrap();
            let known = last.get(&number).filter(|(_, slice)| now.0 - slice.0 <= i64::from(window.slices()));
            if below(20) == 0 {
                assert_eq!(dedup.retract(key(number), Some(time), i64::MAX), Ok(Verdict::Retracted));
                last.remove(&number);
            } else {
                let is_same = known.is_some_and(|(last, _)| *last == content);
                let verdict = dedup.judge(key(number).with_content(key(content)), Some(time), i64::MAX);
                assert_eq!(verdict, Ok(if is_same { Verdict::Duplicate } else { Verdict::Unseen }), "seed {seed}, key {number} at {time}");
                if !is_same || rules.refresh {
                    last.insert(number, (content, now));
                }
            }
            match below(10) {
                0 => {
                    shelf.take(&mut dedup);
                    dedup.mark_clean();
                    dedup.attach(Box::new(shelf.clone()));
                }
                1 => {
                    shelf.take(&mut dedup);
                    dedup = Dedup::from_metadata(rules, &dedup.metadata()).unwrap();
                    dedup.attach(Box::new(shelf.clone()));
                }
                _ => {}
            }
        }
    }
}

/// With [`Late::Drop`], unseen late records are not inserted, so late records do not count toward the filter's error rate.
#[test]
fn late_records_do_not_bias_the_observed_rate() {
    let window = Window::time(1_000, 4);
    let rules = Rules { late: Late::Drop, filter: Some(aging(window, 2_000, 0.03)), ..rules(window, 2_000) };
    let mut dedup = Dedup::new(rules);
    for number in 0..6_000_u64 {
        let now = 1_000_000 + (number / 2).cast_signed();
        let late = number % 2 == 1;
        let _ = dedup.judge(key(number), Some(if late { now - 5_000 } else { now }), i64::MAX).unwrap();
    }
    let (low, high) = dedup.observed().unwrap().interval();
    assert!(low < 0.03 && high < 0.06, "{low} to {high}");
}

/// A trimmed changelog can contain the renewal of a key but not its insertion.
#[test]
fn keys_renewed_before_a_rebuild_are_not_counted_as_wrong_after_it() {
    let window = Window::time(1_000, 4);
    let mut dedup = Dedup::new(Rules { refresh: true, ..rules(window, 2_000) });
    dedup.resume(Some(1_000_000), Some(Slice(4_000)), None);
    (0..500).for_each(|number| dedup.apply(Mutation::Refresh, key(number)).unwrap());
    for number in 0..500 {
        assert_eq!(dedup.judge(key(number), Some(1_000_001), i64::MAX).unwrap(), Verdict::Duplicate);
    }
    assert_eq!(dedup.observed().unwrap().wrong, 0);
}

fn hours(slices: u32) -> Dedup {
    Dedup::new(rules(Window::time(1_000, slices), 100))
}

/// A record with key `number`. The true clock first advances by `clock`. `time` is the record time relative to the true clock.
#[derive(Clone, Copy, Debug)]
struct Step {
    number: u64,
    time: Option<i64>,
    clock: i64,
    /// True if the record retracts its key. Ignored if there is no exact store.
    retract: bool,
}

/// The maximum time in milliseconds that a record may be ahead of the clock.
const MAX_FUTURE: i64 = 50;

fn step() -> impl Strategy<Value = Step> {
    let time = prop_oneof![
        6 => Just(Some(0)),
        2 => (-30..=30_i64).prop_map(Some),
        1 => (-3_000..0_i64).prop_map(Some),       // out of order, and late
        1 => (MAX_FUTURE + 1..9_000).prop_map(Some), // a broken clock
        1 => Just(None),
    ];
    let clock = prop_oneof![8 => 0..60_i64, 2 => 60..700_i64, 1 => 700..5_000_i64];
    (0..40_u64, time, clock, prop::bool::weighted(0.1)).prop_map(|(number, time, clock, retract)| Step { number, time, clock, retract })
}

fn window() -> impl Strategy<Value = Window> {
    let slices = 1..=8_u32;
    prop_oneof![
        (slices.clone(), 8..1_000_i64).prop_map(|(slices, length)| Window::time(length, slices)),
        (slices, 1..60_u64).prop_map(|(slices, keys)| Window::keys(keys, slices)),
    ]
}

fn any_rules() -> impl Strategy<Value = Rules> {
    let late = prop_oneof![Just(Late::Emit), Just(Late::Drop), Just(Late::DeadLetter)];
    // Capacities that are far too small, about right, and ample.
    let capacity = prop_oneof![Just(1_u64), Just(40), Just(400)];
    (window(), capacity, any::<bool>(), late, 0..3_u8).prop_map(|(window, capacity, refresh, late, state)| {
        let rules = Rules { refresh, late, ..rules(window, capacity) };
        match state {
            0 => rules,
            1 => Rules { filter: None, exact: true, ..rules },
            // A filter that is often wrong, and an exact store that confirms its answers.
            _ => Rules { filter: Some(aging(window, capacity, 0.3)), exact: true, ..rules },
        }
    })
}

fn run(rules: Rules, start: i64, steps: &[Step], restore_at: Option<usize>) -> (Vec<Verdict>, Dedup) {
    let (mut dedup, mut clock) = (Dedup::new(rules), start);
    let (mut verdicts, mut shelf) = (Vec::new(), Shelf::default());
    for (index, step) in steps.iter().enumerate() {
        if restore_at.is_some_and(|at| index % (at + 1) == at) {
            shelf.take(&mut dedup);
            dedup = restored(&mut dedup);
            dedup.attach(Box::new(shelf.clone()));
        }
        clock += step.clock;
        let (key, time, max_timestamp) = (key(step.number), step.time.map(|time| clock + time), clock + MAX_FUTURE);
        let verdict =
            if step.retract && rules.exact { dedup.retract(key, time, max_timestamp) } else { dedup.judge(key, time, max_timestamp) };
        verdicts.push(verdict.unwrap());
    }
    (verdicts, dedup)
}

fn pages(dedup: &mut Dedup) -> Vec<(PageId, Vec<u8>)> {
    dedup.mark_stale();
    let Some(filter) = dedup.filter() else { return Vec::new() };
    let page = |id| {
        let mut bytes = Vec::new();
        filter.write_page(id, &mut bytes);
        (id, bytes)
    };
    filter.dirty_pages().into_iter().map(page).collect()
}

fn restored(dedup: &mut Dedup) -> Dedup {
    let metadata = serde_json::from_str(&serde_json::to_string(&dedup.metadata()).unwrap()).unwrap();
    let mut other = Dedup::from_metadata(dedup.rules, &metadata).unwrap();
    for (id, bytes) in pages(dedup) {
        other.read_page(id, &bytes).unwrap();
    }
    assert_eq!(other.metadata(), dedup.metadata());
    other
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn restored_state_equals_stored_state(rules in any_rules(), steps in prop::collection::vec(step(), 2..150), at in any::<prop::sample::Index>()) {
        let (verdicts, mut dedup) = run(rules, 0, &steps, None);
        let (again, mut other) = run(rules, 0, &steps, Some(at.index(steps.len())));
        prop_assert_eq!(verdicts, again);
        prop_assert_eq!(dedup.metadata(), other.metadata());
        prop_assert!(pages(&mut dedup) == pages(&mut other));
    }

    #[test]
    fn the_same_input_gives_the_same_state(rules in any_rules(), steps in prop::collection::vec(step(), 1..100)) {
        let (verdicts, mut dedup) = run(rules, 0, &steps, None);
        let (again, mut other) = run(rules, 0, &steps, None);
        prop_assert_eq!(verdicts, again);
        prop_assert_eq!(dedup.metadata(), other.metadata());
        prop_assert!(pages(&mut dedup) == pages(&mut other));
    }
}

#[test]
fn a_key_is_emitted_once_per_window() {
    let mut dedup = hours(4);
    assert_eq!(dedup.judge(key(1), Some(0), i64::MAX).unwrap(), Verdict::Unseen);
    assert_eq!(dedup.judge(key(1), Some(1_000), i64::MAX).unwrap(), Verdict::Duplicate);
    assert_eq!(dedup.judge(key(1), Some(1_250), i64::MAX).unwrap(), Verdict::Unseen);
}

#[test]
fn a_duplicate_renews_its_key_only_with_refresh() {
    for refresh in [false, true] {
        let mut dedup = Dedup::new(Rules { refresh, ..rules(Window::time(1_000, 4), 100) });
        for time in [0, 700, 1_400] {
            let expected = if time == 0 || (time == 1_400 && !refresh) { Verdict::Unseen } else { Verdict::Duplicate };
            assert_eq!(dedup.judge(key(1), Some(time), i64::MAX).unwrap(), expected, "refresh {refresh}, at {time}");
        }
    }
}

#[test]
fn late_records_follow_the_policy() {
    for (late, expected) in [(Late::Emit, Verdict::Unseen), (Late::Drop, Verdict::Late), (Late::DeadLetter, Verdict::Late)] {
        let mut dedup = Dedup::new(Rules { late, ..rules(Window::time(1_000, 4), 100) });
        dedup.judge(key(1), Some(10_000), i64::MAX).unwrap();
        assert_eq!(dedup.judge(key(2), Some(9_000), i64::MAX).unwrap(), Verdict::Unseen, "a record at the edge of the window is not late");
        assert_eq!(dedup.judge(key(1), Some(8_999), i64::MAX).unwrap(), Verdict::Duplicate, "late, but seen");
        assert_eq!(dedup.judge(key(3), Some(8_999), i64::MAX).unwrap(), expected);
        assert_eq!(
            dedup.judge(key(3), Some(10_000), i64::MAX).unwrap() == Verdict::Unseen,
            late != Late::Emit,
            "remembered only if emitted"
        );
    }
}

#[test]
fn a_broken_clock_does_not_expire_anything() {
    let mut dedup = hours(4);
    dedup.judge(key(1), Some(100), 200).unwrap();
    assert_eq!(dedup.judge(key(2), Some(i64::MAX), 200).unwrap(), Verdict::Unseen);
    assert_eq!(dedup.stream_time(), Some(100));
    assert_eq!(dedup.judge(key(1), Some(110), 200).unwrap(), Verdict::Duplicate);
    assert_eq!(dedup.judge(key(2), Some(120), 200).unwrap(), Verdict::Duplicate, "the key was still judged and inserted");
    dedup.judge(key(3), Some(200), 200).unwrap();
    assert_eq!(dedup.stream_time(), Some(200), "a record at the maximum timestamp advances stream time");
}

#[test]
fn records_without_a_timestamp_are_judged_at_stream_time() {
    let mut dedup = hours(1);
    assert_eq!(dedup.judge(key(1), None, 0).unwrap(), Verdict::Unseen);
    assert_eq!(dedup.judge(key(1), None, 0).unwrap(), Verdict::Duplicate);
    dedup.judge(key(2), Some(50_000), i64::MAX).unwrap();
    assert_eq!(dedup.judge(key(1), None, 0).unwrap(), Verdict::Duplicate, "the key belongs to the first known time");
    dedup.judge(key(2), Some(52_000), i64::MAX).unwrap();
    assert_eq!(dedup.judge(key(1), None, 0).unwrap(), Verdict::Unseen);
}

#[test]
fn timestamps_before_the_epoch_are_valid() {
    let mut dedup = hours(4);
    assert_eq!(dedup.judge(key(1), Some(-10_000), 0).unwrap(), Verdict::Unseen);
    assert_eq!(dedup.judge(key(1), Some(-9_000), 0).unwrap(), Verdict::Duplicate);
    assert_eq!(dedup.judge(key(1), Some(-8_750), 0).unwrap(), Verdict::Unseen);
    assert_eq!(dedup.judge(key(1), Some(0), 0).unwrap(), Verdict::Unseen);
    for time in [i64::MIN, i64::MAX] {
        dedup.judge(key(1), Some(time), i64::MAX).unwrap();
    }
}

#[test]
fn metadata_of_other_rules_is_rejected() {
    let mut dedup = hours(4);
    dedup.judge(key(1), Some(123_456), i64::MAX).unwrap();
    let refused = |slice_ms| Dedup::from_metadata(rules(Window::Time { slice_ms, slices: 4 }, 100), &dedup.metadata()).err();
    assert_eq!(refused(250), None);
    assert_eq!(refused(251), Some(MetadataError::StreamTime));
    let unknown = serde_json::from_str::<DedupMetadata>(r#"{"stream_time":null,"filter":{"slice":null,"generations":[]},"more":1}"#);
    assert!(unknown.is_err());
}

/// A later record of the batch inserts the key again, with different content.
#[test]
fn a_batch_reports_the_slice_that_each_duplicate_repeats() {
    let window = Window::time(1_000, 4);
    let mut dedup = Dedup::new(Rules { window, filter: None, exact: true, refresh: false, late: Late::Emit, emit: Emit::OnChange });
    let with = |content| key(1).with_content(key(content));
    dedup.judge(with(2), Some(10_000), i64::MAX).unwrap();
    dedup.judge(key(9).with_content(key(2)), Some(10_300), i64::MAX).unwrap();
    let (mut seen, mut since) = (Vec::new(), Vec::new());
    dedup.judge_batch(&[with(2), with(3), with(3)], &[10_300; 3], &mut seen, Some(&mut since)).unwrap();
    assert_eq!(seen, [true, false, true]);
    assert_eq!(since, [Some(10_000), None, Some(10_250)]);
}
