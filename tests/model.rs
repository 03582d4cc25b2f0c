//! Promise: for all settings and streams, the verdicts match a window that is implemented as a simple list.
//!
//! Streams are drawn from a seed.
//! `UNSEEN_MODEL_STREAMS=80000 cargo test --release --test model` runs more streams than the normal tests.

#[path = "integration/harness/random.rs"]
mod random;
#[path = "model/window.rs"]
mod window;

use random::{SplitMix, pick};
use std::collections::HashMap;
use unseen::dedup::{Dedup, Emit, Late, Rules};
use unseen::filter::{AgingSizing, AtMaxMemory, Demand, Growth, Kind, Slice, Spec, Window};
use unseen::key::Fingerprint;
use unseen::record::Verdict;
use window::Model;
use xxhash_rust::xxh3::xxh3_128;

fn key(number: u64) -> Fingerprint {
    Fingerprint(xxh3_128(&number.to_le_bytes()))
}

fn rules(random: &mut SplitMix) -> Rules {
    let slices = pick(random, &[1, 3, 4, 8]);
    let window = if random.one_in(2) {
        Window::time(pick(random, &[7, 100, 1_000, 9_999]), slices)
    } else {
        Window::keys(pick(random, &[1, 8, 59, 400]), slices)
    };
    // The capacity is so small that filters chain layers. Either the error rate is so low that no stream has a false positive, or an exact
    // store confirms the filter's answers.
    let capacity = pick(random, &[8, 100, 1_000]);
    let growth = Growth { adapt: random.one_in(2), ..Growth::default() };
    let kinds: Vec<_> = Kind::ALL.iter().copied().filter(|kind| kind.properties().keeps_window).collect();
    let (kind, rate) = (pick(random, &kinds), pick(random, &[0.3, 1e-2, 1e-9]));
    let exact = kind.is_on_disk() || random.one_in(2);
    let filter = kind.spec(window, &Demand { growth, ..Demand::new(capacity, if exact { rate } else { 1e-9 }) });
    Rules {
        window,
        filter,
        exact,
        refresh: random.one_in(2),
        late: pick(random, &[Late::Emit, Late::Drop, Late::DeadLetter]),
        emit: if filter.is_none() && random.one_in(2) { Emit::OnChange } else { Emit::First },
    }
}

/// A record time: normal, out of order, late, from the future, at the Unix epoch, before it, or none.
fn time(random: &mut SplitMix, clock: &mut i64) -> Option<i64> {
    *clock += pick(random, &[0, 1, 5, 40, 300]) + if random.one_in(50) { 5_000 } else { 0 };
    match random.below(40) {
        0 => None,
        1 => Some(*clock - 20_000),
        2 => Some(*clock + 1_000_000),
        3 => Some(0),
        4 => Some(-5),
        5..=9 => Some(*clock + pick(random, &[-3_000, -300, -30, -1, 1, 30, 1_000, 1_001])),
        _ => Some(*clock),
    }
}

fn stream(seed: u64) {
    let mut random = SplitMix(seed);
    let rules = rules(&mut random);
    // Without an exact store, retracting a key can remove the filter's entry of another key. At error rates as low as here, this does not
    // happen.
    let retracts = (rules.exact || rules.retracts_by_filter()) && random.one_in(2);
    let (mut dedup, mut model) = (Dedup::new(rules), Model::new(&rules));
    let keys = pick(&mut random, &[10, 100, 1_500]);
    let mut clock = pick(&mut random, &[-5_000, 0, 1_700_000_000_000]);
    for step in 0..pick(&mut random, &[200, 1_000, 4_000]) {
        let (number, time, max_timestamp) = (random.next() % keys, time(&mut random, &mut clock), clock + 1_000);
        if retracts && random.one_in(12) {
            let verdict = dedup.retract(key(number), time, max_timestamp).expect("there is room");
            assert_eq!(verdict, model.retract(number, time, max_timestamp));
            continue;
        }
        let content = if rules.emit == Emit::OnChange { random.next() % 3 } else { 0 };
        let fingerprint = if rules.emit == Emit::OnChange { key(number).with_content(key(content)) } else { key(number) };
        let verdict = dedup.judge(fingerprint, time, max_timestamp).expect("there is room");
        let expected = model.judge(number, content, time, max_timestamp);
        assert_eq!(verdict, expected, "seed {seed}, step {step}, key {number} at {time:?}: {rules:?}");
    }
    // Until the first insertion, a filter has no open slice, so its slice differs from the model's. Stream times are compared only if the
    // slices are equal, and only without an exact store.
    if !rules.exact && model.slice().map(Slice) == dedup.slice() {
        assert_eq!(dedup.stream_time(), model.stream_time, "seed {seed}");
    }
}

#[test]
fn verdicts_match_a_simple_list() {
    let streams = std::env::var("UNSEEN_MODEL_STREAMS").map_or(1_500, |streams| streams.parse().expect("a number"));
    (0..streams).for_each(stream);
}

/// Checks an aging filter with a memory limit: it stays within the limit, evicts keys only with [`AtMaxMemory::EvictOldest`], and forgets
/// no more keys of the window than it reports as evicted.
fn bounded(seed: u64) {
    let mut random = SplitMix(seed);
    let slices = pick(&mut random, &[1, 4]);
    let window = Window::time(1_000, slices);
    let plan = AgingSizing::new(window, pick(&mut random, &[200, 2_000]), 1e-3);
    let most = plan.bytes(window) * pick(&mut random, &[10, 12, 30]) / 10;
    let at_max = pick(&mut random, &[AtMaxMemory::Saturate, AtMaxMemory::EvictOldest]);
    let growth = Growth { adapt: random.one_in(2), max_bytes: Some(most), at_max };
    let filter = Some(Spec::Aging(plan.with_growth(growth)));
    let rules = Rules { window, filter, exact: false, refresh: false, late: Late::Emit, emit: Emit::First };
    let (mut dedup, mut emitted, mut number) = (Dedup::new(rules), HashMap::new(), 0);
    for slice in 0..30_i64 {
        let keys = pick(&mut random, &[0, 5, 50, 400, 4_000]);
        for _ in 0..keys {
            let time = slice * 1_000 / i64::from(slices);
            if dedup.judge(key(number), Some(time), i64::MAX).expect("it may not stop") == Verdict::Unseen {
                emitted.insert(number, slice);
            }
            number += 1;
            let bytes = dedup.usage().bytes;
            assert!(bytes <= most, "seed {seed}: {bytes} of {most} bytes: {rules:?}");
        }
        let evicted = dedup.usage().evicted;
        let within = emitted.iter().filter(|(_, at)| slice - **at <= i64::from(slices));
        let forgotten = within.filter(|(number, _)| dedup.would_drop(key(**number)).expect("it can be asked").is_none()).count() as u64;
        assert!(forgotten <= evicted, "seed {seed}: {forgotten} keys are forgotten, but only {evicted} were evicted: {rules:?}");
        assert!(evicted == 0 || at_max == AtMaxMemory::EvictOldest, "seed {seed}");
    }
}

#[test]
fn memory_limit_is_respected() {
    (0..400).for_each(bounded);
}
