//! Promise: for all settings and streams, the verdicts are those of a window that is implemented as a simple list.
//!
//! The model follows the documentation, and shares no code with the implementation. Streams are drawn from a seed.
//! `UNSEEN_MODEL_STREAMS=80000 cargo test --release --test model` runs more streams than the normal tests.

use std::collections::HashMap;
use unseen::dedup::{Dedup, Emit, Late, Rules};
use unseen::filter::{AgingSizing, AtMaxMemory, Demand, Growth, Kind, Slice, Spec, Window};
use unseen::key::Fingerprint;
use unseen::record::Verdict;
use xxhash_rust::xxh3::xxh3_128;

/// A seeded random number generator (Steele et al., "Fast Splittable Pseudorandom Number Generators", 2014).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }

    fn one_in(&mut self, bound: u64) -> bool {
        self.below(bound) == 0
    }

    fn pick<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[usize::try_from(self.below(choices.len() as u64)).expect("an index")]
    }
}

fn key(number: u64) -> Fingerprint {
    Fingerprint(xxh3_128(&number.to_le_bytes()))
}

/// The documented window: each key with the slice of its last insertion.
struct Model {
    window: Window,
    refresh: bool,
    late: Late,
    stream_time: Option<i64>,
    /// The number of keys in the current slice of a window by count, and the number of that slice.
    counted: (u64, i64),
    /// The slice of the last insertion of each key, or `None` for keys that were inserted before any time was known.
    keys: HashMap<u64, Option<i64>>,
    /// The content of each key, if changes are emitted.
    contents: HashMap<u64, u64>,
}

impl Model {
    fn new(rules: &Rules) -> Self {
        Self {
            window: rules.window,
            refresh: rules.refresh,
            late: rules.late,
            stream_time: None,
            counted: (0, 0),
            keys: HashMap::new(),
            contents: HashMap::new(),
        }
    }

    fn slice(&self) -> Option<i64> {
        match self.window {
            Window::Time { slice_ms, .. } => self.stream_time.map(|time| time.div_euclid(slice_ms)),
            Window::Keys { .. } => Some(self.counted.1),
        }
    }

    fn pass(&mut self, time: Option<i64>, max_timestamp: i64) {
        if let Some(time) = time.filter(|&time| time <= max_timestamp && self.stream_time.is_none_or(|now| time > now)) {
            self.stream_time = Some(time);
            let first = self.slice();
            // Keys from before any time belong to the first slice.
            self.keys.values_mut().filter(|slice| slice.is_none()).for_each(|slice| *slice = first);
        }
    }

    fn remembers(&self, number: u64) -> bool {
        self.keys.get(&number).is_some_and(|at| match (self.slice(), at) {
            (Some(now), Some(at)) => now - at <= i64::from(self.window.slices()),
            _ => true,
        })
    }

    fn put(&mut self, number: u64) {
        if let Window::Keys { slice_keys, .. } = self.window {
            if self.counted.0 >= slice_keys {
                self.counted = (0, self.counted.1 + 1);
            }
            self.counted.0 += 1;
        }
        self.keys.insert(number, self.slice());
    }

    /// `content` is the content of the record if changes are emitted, otherwise 0.
    fn judge(&mut self, number: u64, content: u64, time: Option<i64>, max_timestamp: i64) -> Verdict {
        self.pass(time, max_timestamp);
        if self.remembers(number) && self.contents[&number] == content {
            if self.refresh && self.keys[&number] != self.slice() {
                self.put(number);
            }
            return Verdict::Duplicate;
        }
        let is_late = match (self.window, self.stream_time, time) {
            (Window::Time { slice_ms, slices }, Some(now), Some(time)) => now - time > slice_ms * i64::from(slices),
            _ => false,
        };
        if is_late && self.late != Late::Emit {
            return Verdict::Late;
        }
        self.contents.insert(number, content);
        self.put(number);
        Verdict::Unseen
    }

    fn retract(&mut self, number: u64, time: Option<i64>, max_timestamp: i64) {
        self.pass(time, max_timestamp);
        self.keys.remove(&number);
    }
}

fn rules(random: &mut Random) -> Rules {
    let slices = random.pick(&[1, 4]);
    let window = if random.one_in(2) {
        Window::time(random.pick(&[100, 1_000, 10_000]), slices)
    } else {
        Window::keys(random.pick(&[8, 60, 400]), slices)
    };
    // The capacity is so small that filters chain layers. Either the error rate is so low that no stream has a false positive, or an exact
    // store confirms the filter's answers.
    let capacity = random.pick(&[8, 100, 1_000]);
    let growth = Growth { adapt: random.one_in(2), ..Growth::default() };
    let kinds: Vec<_> = Kind::ALL.iter().copied().filter(|kind| kind.properties().keeps_window).collect();
    let (kind, rate) = (random.pick(&kinds), random.pick(&[0.3, 1e-2, 1e-9]));
    let exact = kind.is_on_disk() || random.one_in(2);
    let filter = kind.spec(window, &Demand { growth, ..Demand::new(capacity, if exact { rate } else { 1e-9 }) });
    Rules {
        window,
        filter,
        exact,
        refresh: random.one_in(2),
        late: random.pick(&[Late::Emit, Late::Drop, Late::DeadLetter]),
        emit: if filter.is_none() && random.one_in(2) { Emit::OnChange } else { Emit::First },
    }
}

/// A record time: normal, late, from the future, at the Unix epoch, before it, or none.
fn time(random: &mut Random, clock: &mut i64) -> Option<i64> {
    *clock += random.pick(&[0, 1, 5, 40, 300_i64]);
    match random.below(40) {
        0 => None,
        1 => Some(*clock - 20_000),
        2 => Some(*clock + 1_000_000),
        3 => Some(0),
        4 => Some(-5),
        _ => Some(*clock),
    }
}

fn stream(seed: u64) {
    let mut random = Random(seed);
    let rules = rules(&mut random);
    // A filter alone may remove the entry of another key. With an exact store, or with error rates as low as here, it does not.
    let retracts = (rules.exact || rules.retracts_by_filter()) && random.one_in(2);
    let (mut dedup, mut model) = (Dedup::new(rules), Model::new(&rules));
    let keys = random.pick(&[10, 100, 1_500]);
    let mut clock = random.pick(&[0_i64, 1_700_000_000_000]);
    for step in 0..random.pick(&[200, 1_000, 4_000]) {
        let (number, time, max_timestamp) = (random.below(keys), time(&mut random, &mut clock), clock + 1_000);
        if retracts && random.one_in(12) {
            let _ = dedup.retract(key(number), time, max_timestamp).expect("there is room");
            model.retract(number, time, max_timestamp);
            continue;
        }
        let content = if rules.emit == Emit::OnChange { random.below(3) } else { 0 };
        let fingerprint = if rules.emit == Emit::OnChange { key(number).with_content(key(content)) } else { key(number) };
        let verdict = dedup.judge(fingerprint, time, max_timestamp).expect("there is room");
        let expected = model.judge(number, content, time, max_timestamp);
        assert_eq!(verdict, expected, "seed {seed}, step {step}, key {number} at {time:?}: {rules:?}");
    }
    // Before the first insertion, a filter has not opened a slice, so the slices differ.
    if !rules.exact && model.slice().map(Slice) == dedup.slice() {
        assert_eq!(dedup.stream_time(), model.stream_time, "seed {seed}");
    }
}

#[test]
fn verdicts_match_a_simple_list() {
    let streams = std::env::var("UNSEEN_MODEL_STREAMS").map_or(1_500, |streams| streams.parse().expect("a number"));
    (0..streams).for_each(stream);
}

/// Checks an aging filter with a memory limit: it stays within the limit, and evicts no more old keys than necessary.
fn bounded(seed: u64) {
    let mut random = Random(seed);
    let slices = random.pick(&[1, 4]);
    let window = Window::time(1_000, slices);
    let plan = AgingSizing::new(window, random.pick(&[200, 2_000]), 1e-3);
    let most = plan.bytes(window) * random.pick(&[10, 12, 30]) / 10;
    let at_max = random.pick(&[AtMaxMemory::Saturate, AtMaxMemory::EvictOldest]);
    let growth = Growth { adapt: random.one_in(2), max_bytes: Some(most), at_max };
    let filter = Some(Spec::Aging(plan.with_growth(growth)));
    let rules = Rules { window, filter, exact: false, refresh: false, late: Late::Emit, emit: Emit::First };
    let (mut dedup, mut emitted, mut number) = (Dedup::new(rules), HashMap::new(), 0);
    for slice in 0..30_i64 {
        let keys = random.pick(&[0, 5, 50, 400, 4_000]);
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
        assert!(forgotten <= evicted, "seed {seed}: {forgotten} keys are forgotten, and {evicted} made way: {rules:?}");
        assert!(evicted == 0 || at_max == AtMaxMemory::EvictOldest, "seed {seed}");
    }
}

#[test]
fn memory_limit_is_respected() {
    (0..400).for_each(bounded);
}
