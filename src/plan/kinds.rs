//! The kinds of filters that a plan compares: one function each, listed in [`KINDS`].
//!
//! Owns the cost and the guarantees of each kind. Kinds that a topic can use get their numbers from their own sizing. The others
//! are included for comparison. CONTRIBUTING.md lists the other steps to add a kind.

use super::Ask;
use super::text::{count, whole_size};
use crate::filter::{self, CuckooSizing, Growth, Prediction, StableSizing, Window, plain_bits, plain_rate};

/// One kind, sized for one partition.
pub(super) struct Candidate {
    /// Predicts the rate and memory at a load. A load of 1 is the planned number of keys in a window.
    pub(super) predict: Box<dyn Fn(f64) -> Prediction>,
    /// Memory at load 1 once slices have adapted, in bytes, or `None` if slices do not adapt.
    pub(super) steady_bytes: Option<u64>,
    /// Disk space at load 1, in bytes. Grows with the load.
    pub(super) disk: f64,
    /// Number of bits, cells, slots, or disk locations that are checked for an absent key.
    pub(super) k: u32,
    /// Description of what a lookup reads.
    pub(super) reads: String,
    /// Share of duplicates, one whole window after their key was inserted, that are reported as unseen, or `None` for kinds that
    /// guarantee to report none.
    pub(super) forgets: Option<f64>,
    /// True if a key can be retracted.
    pub(super) can_retract: bool,
    /// Behavior above the planned load.
    pub(super) overfull: &'static str,
    /// True if the kind supports any rate with any memory, because it compensates by forgetting.
    pub(super) elastic: bool,
    /// The line that configures the kind, if a topic can use it.
    pub(super) configuration: Option<String>,
    /// Average share of unseen keys reported as seen over a window that has the planned keys, if a topic can use the kind.
    pub(super) mean: Option<f64>,
}

impl Candidate {
    /// Creates a candidate that remembers keys, cannot retract, and is in memory only.
    fn new(predict: impl Fn(f64) -> Prediction + 'static, k: u32, reads: String, overfull: &'static str) -> Self {
        Self {
            predict: Box::new(predict),
            steady_bytes: None,
            disk: 0.0,
            k,
            reads,
            forgets: None,
            can_retract: false,
            overfull,
            elastic: false,
            configuration: None,
            mean: None,
        }
    }
}

/// Sizes a kind to meet a rate at load 1.
pub(super) type Make = fn(&Ask, f64) -> Candidate;

/// Name and constructor of every kind, in table order.
pub(super) const KINDS: [(&str, Make); 7] = [
    ("aging", |ask, rate| aging(ask, rate, ask.slices)),
    (UNCHAINED, unchained),
    ("pair", |ask, rate| aging(ask, rate, 1)),
    ("stable", stable),
    ("cuckoo", cuckoo),
    ("exact", exact),
    ("bloom", bloom),
];

/// The kind that is added with `aging`, to show the effect of chaining.
pub(super) const UNCHAINED: &str = "unchained";

/// Size of a fingerprint and its overhead in a store, in bytes.
const EXACT_BYTES: f64 = 16.0 + 12.0;
/// Slots that a lookup in a cuckoo filter reads: two buckets of four.
const CUCKOO_SLOTS: u32 = 2 * 4;
/// Minimum memory of a topic's stable filter, in bytes.
const STABLE_MIN: u64 = 1024;

/// Number of keys of one partition in a window.
fn keys(ask: &Ask) -> u64 {
    ask.keys.div_ceil(partitions(ask)).max(1)
}

fn partitions(ask: &Ask) -> u64 {
    u64::from(ask.partitions.max(1))
}

/// Creates a window of arbitrary length. The length does not affect the size of a filter.
fn window(slices: u32) -> Window {
    Window::time(24 * 60 * 60 * 1000, slices)
}

/// A queue of generations of blocked Bloom filters that chain when overfull.
fn aging(ask: &Ask, rate: f64, slices: u32) -> Candidate {
    // By default, slices adapt to the stream.
    let growth = Growth { adapt: true, ..Growth::default() };
    let window = window(slices);
    let sizing = filter::AgingSizing::new(window, keys(ask), rate).with_growth(growth);
    let (k, reads) = generations(&sizing, window);
    let overfull = "chains more filters: same rate, more memory";
    Candidate {
        steady_bytes: Some(sizing.steady_bytes(window)),
        configuration: Some(configured("aging", ask, rate, slices)),
        mean: Some(sizing.mean_rate(window)),
        ..Candidate::new(move |load| sizing.predict(window, load), k, reads, overfull)
    }
}

/// The `aging` filter without chaining.
fn unchained(ask: &Ask, rate: f64) -> Candidate {
    let (window, sizing) = (window(ask.slices), filter::AgingSizing::new(window(ask.slices), keys(ask), rate));
    let (k, reads) = generations(&sizing, window);
    Candidate::new(move |load| sizing.rate_unchained(window, load), k, reads, "rate rises (aging without chaining)")
}

/// Returns the number of bits that a lookup reads in all generations, and a description.
fn generations(sizing: &filter::AgingSizing, window: Window) -> (u32, String) {
    let blocks = sizing.layout.blocks_per_key * (window.slices() + 1);
    let bits = sizing.layout.k * blocks;
    (bits, format!("{blocks} blocks, {bits} bits"))
}

/// A plain Bloom filter, which never forgets: the reference for all other kinds (Bloom, 1970).
fn bloom(ask: &Ask, rate: f64) -> Candidate {
    let (keys, bits) = (float(keys(ask)), plain_bits(rate));
    let k = narrow((bits * std::f64::consts::LN_2).round().max(1.0));
    let predict = move |load| Prediction { rate: plain_rate(bits / load, k), bytes: whole(keys * bits / 8.0) };
    Candidate::new(predict, k, format!("up to {}", many(k.into(), "line")), "rate rises; never forgets (for comparison)")
}

/// A stable Bloom filter, which forgets at random, so that it never fills up.
fn stable(ask: &Ask, rate: f64) -> Candidate {
    // Any memory works. By default, use the same memory as a filter that forgets nothing.
    let like_aging =
        || filter::AgingSizing::new(window(ask.slices), keys(ask), rate).bytes(window(ask.slices)).saturating_mul(partitions(ask));
    // The plan uses the exact number of bytes in the configuration line.
    let (bytes, memory) = whole_size(ask.memory_bytes.unwrap_or_else(like_aging).max(STABLE_MIN));
    let sizing = StableSizing::new(bytes / partitions(ask), rate);
    let (k, bits) = (sizing.layout.k, sizing.layout.cell_bits);
    let reads = if bits == 1 { many(k.into(), "bit") } else { format!("{} of {bits} bits", many(k.into(), "cell")) };
    let windows = float(keys(ask)) / sizing.lifetime();
    Candidate {
        forgets: Some(sizing.unseen_after(keys(ask))),
        elastic: true,
        // The rate rises to its peak, and then stays constant.
        mean: Some(sizing.predict(f64::INFINITY).rate),
        configuration: Some(format!("filter = {{ kind = \"stable\", memory = \"{memory}\", false_positive_rate = {rate:e} }}")),
        // The filter's own load is the number of keys inserted, relative to its key lifetime.
        ..Candidate::new(move |load| sizing.predict(load * windows), k, reads, "forgets sooner: same rate")
    }
}

/// A cuckoo filter whose slots store the generation of their key.
fn cuckoo(ask: &Ask, rate: f64) -> Candidate {
    let window = window(ask.slices);
    let sizing = CuckooSizing::new(window, keys(ask), rate);
    // The filter's capacity includes the open slice, so the load is the same for both.
    let predict = move |load| sizing.predict(window, load);
    let overfull = "chains more tables: same rate, more memory";
    Candidate {
        can_retract: true,
        configuration: Some(configured("cuckoo", ask, rate, ask.slices)),
        mean: Some(sizing.mean_rate(window)),
        ..Candidate::new(predict, CUCKOO_SLOTS, format!("2 buckets, {CUCKOO_SLOTS} slots"), overfull)
    }
}

/// All fingerprints on disk. Errors are hash collisions: one pair of keys in 2^128.
fn exact(ask: &Ask, _rate: f64) -> Candidate {
    let generations = ask.slices + 1;
    let reads = format!("disk, {generations} times");
    Candidate {
        disk: float(keys(ask)) * (1.0 + 1.0 / f64::from(ask.slices)) * EXACT_BYTES,
        can_retract: true,
        mean: Some(0.0),
        configuration: Some(format!("filter = {{ kind = \"exact\", slices = {} }}", ask.slices)),
        ..Candidate::new(|_| Prediction::default(), generations, reads, "more disk; memory only for caches")
    }
}

/// The line that configures a kind with a capacity.
fn configured(kind: &str, ask: &Ask, rate: f64, slices: u32) -> String {
    let capacity = count(ask.keys);
    format!("filter = {{ kind = \"{kind}\", capacity = \"{capacity}\", false_positive_rate = {rate:e}, slices = {slices} }}")
}

pub(super) fn many(number: u64, what: &str) -> String {
    format!("{number} {what}{}", if number == 1 { "" } else { "s" })
}

#[expect(clippy::cast_precision_loss, reason = "sizes far below 2^52")]
pub(super) const fn float(number: u64) -> f64 {
    number as f64
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "sizes, far below 2^63 and never negative")]
pub(super) fn whole(number: f64) -> u64 {
    number.ceil() as u64
}

fn narrow(number: f64) -> u32 {
    u32::try_from(whole(number)).unwrap_or(u32::MAX)
}
