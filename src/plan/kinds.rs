//! The kinds of filter that a plan compares: one function each, listed in [`KINDS`].
//!
//! Owns what each kind costs and promises. Those that a topic can have say so themselves, by the plans that
//! they are made from; the others are there to compare. CONTRIBUTING.md says what else a new kind of filter needs.

use super::Ask;
use super::text::{count, whole_size};
use crate::filter::{self, CuckooSizing, Growth, Prediction, StableSizing, Window, plain_bits, plain_rate};

/// One kind, sized for one partition.
pub(super) struct Candidate {
    /// What is expected at a load: 1 is as many keys in a window as were planned for.
    pub(super) predict: Box<dyn Fn(f64) -> Prediction>,
    /// Memory at load 1 once slices have sized themselves, in bytes; `None` where they do not.
    pub(super) steady_bytes: Option<u64>,
    /// Disk at load 1, in bytes; grows with the load.
    pub(super) disk: f64,
    /// Bits, cells, slots or places on disk that are looked at for a key that is not there.
    pub(super) k: u32,
    /// What a look-up reads.
    pub(super) reads: String,
    /// Share of repeats, a whole window after their key was inserted, that are called unseen; `None` for kinds that
    /// promise never to.
    pub(super) forgets: Option<f64>,
    /// Whether a key can be retracted.
    pub(super) can_retract: bool,
    /// What happens above the planned load.
    pub(super) overfull: &'static str,
    /// Whether any memory will do for any rate: it pays by forgetting.
    pub(super) elastic: bool,
    /// The line that configures it, if a topic can have it.
    pub(super) configuration: Option<String>,
    /// Share of unseen keys called seen on average over a window that shows the planned keys, if a topic can have it.
    pub(super) mean: Option<f64>,
    /// The peak with which a rate is that mean, of kinds that can be sized by it.
    pub(super) peak_of_mean: Option<PeakOfMean>,
}

/// The peak that belongs to a mean.
type PeakOfMean = Box<dyn Fn(f64) -> f64>;

impl Candidate {
    /// One that remembers, retracts nothing, and is in memory only.
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
            peak_of_mean: None,
        }
    }
}

/// Sizes a kind to meet a rate at load 1.
pub(super) type Make = fn(&Ask, f64) -> Candidate;

/// Name and maker of every kind, in the order of a table.
pub(super) const KINDS: [(&str, Make); 7] = [
    ("aging", |ask, rate| aging(ask, rate, ask.slices)),
    (UNCHAINED, unchained),
    ("pair", |ask, rate| aging(ask, rate, 1)),
    ("stable", stable),
    ("cuckoo", cuckoo),
    ("exact", exact),
    ("bloom", bloom),
];

/// The kind that comes along with `aging`, to show what chaining is for.
pub(super) const UNCHAINED: &str = "unchained";

/// A fingerprint and what a store adds to it, in bytes.
const EXACT_BYTES: f64 = 16.0 + 12.0;
/// Slots that a look-up in a cuckoo filter reads: two buckets of four.
const CUCKOO_SLOTS: u32 = 2 * 4;
/// Least memory that a topic's stable filter can be configured with, in bytes.
const STABLE_MIN: u64 = 1024;

/// Keys that one partition shows in a window.
fn keys(ask: &Ask) -> u64 {
    ask.keys.div_ceil(partitions(ask)).max(1)
}

fn partitions(ask: &Ask) -> u64 {
    u64::from(ask.partitions.max(1))
}

/// How long it is makes no difference to the size of a filter.
fn window(slices: u32) -> Window {
    Window::time(24 * 60 * 60 * 1000, slices)
}

/// A queue of generations of blocked Bloom filters that chain when overfull.
fn aging(ask: &Ask, rate: f64, slices: u32) -> Candidate {
    // By default, slices size themselves.
    let growth = Growth { adapt: true, ..Growth::default() };
    let (keys, window) = (keys(ask), window(slices));
    let sizing = filter::AgingSizing::new(window, keys, rate).with_growth(growth);
    let (k, reads) = generations(&sizing, window);
    let overfull = "chains more filters: the error holds, memory grows";
    Candidate {
        steady_bytes: Some(sizing.steady_bytes(window)),
        configuration: Some(configured("aging", ask, rate, slices)),
        mean: Some(sizing.mean_rate(window)),
        peak_of_mean: Some(Box::new(move |mean| filter::AgingSizing::peak_of_mean(window, keys, mean, growth))),
        ..Candidate::new(move |load| sizing.predict(window, load), k, reads, overfull)
    }
}

/// The same without chaining.
fn unchained(ask: &Ask, rate: f64) -> Candidate {
    let (window, sizing) = (window(ask.slices), filter::AgingSizing::new(window(ask.slices), keys(ask), rate));
    let (k, reads) = generations(&sizing, window);
    Candidate::new(move |load| sizing.rate_unchained(window, load), k, reads, "the error rises (aging that does not chain)")
}

/// What a look-up reads in all generations: bits, and the same in words.
fn generations(sizing: &filter::AgingSizing, window: Window) -> (u32, String) {
    let blocks = sizing.layout.blocks_per_key * (window.slices() + 1);
    let bits = sizing.layout.k * blocks;
    (bits, format!("{blocks} blocks, {bits} bits"))
}

/// A plain Bloom filter, which never forgets: what all others are measured by (Bloom, 1970).
fn bloom(ask: &Ask, rate: f64) -> Candidate {
    let (keys, bits) = (float(keys(ask)), plain_bits(rate));
    let k = narrow((bits * std::f64::consts::LN_2).round().max(1.0));
    let predict = move |load| Prediction { rate: plain_rate(bits / load, k), bytes: whole(keys * bits / 8.0) };
    Candidate::new(predict, k, format!("up to {}", many(k.into(), "line")), "the error rises; never forgets (to compare)")
}

/// A stable Bloom filter: it forgets at random, so that it never fills.
fn stable(ask: &Ask, rate: f64) -> Candidate {
    // Any memory will do; unless it is said, as much as a filter that forgets nothing takes.
    let like_aging =
        || filter::AgingSizing::new(window(ask.slices), keys(ask), rate).bytes(window(ask.slices)).saturating_mul(partitions(ask));
    // Planned is what the line says, to the byte.
    let (bytes, memory) = whole_size(ask.memory_bytes.unwrap_or_else(like_aging).max(STABLE_MIN));
    let sizing = StableSizing::new(bytes / partitions(ask), rate);
    let (k, bits) = (sizing.layout.k, sizing.layout.cell_bits);
    let reads = if bits == 1 { many(k.into(), "bit") } else { format!("{} of {bits} bits", many(k.into(), "cell")) };
    let windows = float(keys(ask)) / sizing.lifetime();
    Candidate {
        forgets: Some(sizing.unseen_after(keys(ask))),
        elastic: true,
        // Its rate rises to its peak once, and stays there.
        mean: Some(sizing.predict(f64::INFINITY).rate),
        configuration: Some(format!("filter = {{ kind = \"stable\", memory = \"{memory}\", false_positive_rate = {rate:e} }}")),
        // Its own measure of load is how many keys came while one is remembered.
        ..Candidate::new(move |load| sizing.predict(load * windows), k, reads, "forgets sooner: the error holds")
    }
}

/// A cuckoo filter whose slots say the generation of their key.
fn cuckoo(ask: &Ask, rate: f64) -> Candidate {
    let (keys, window) = (keys(ask), window(ask.slices));
    let sizing = CuckooSizing::new(window, keys, rate);
    // Its capacity is that of a window and the open slice, so a load is the same for both.
    let predict = move |load| sizing.predict(window, load);
    let overfull = "chains more tables: the error holds, memory grows";
    Candidate {
        can_retract: true,
        configuration: Some(configured("cuckoo", ask, rate, ask.slices)),
        mean: Some(sizing.mean_rate(window)),
        peak_of_mean: Some(Box::new(move |mean| CuckooSizing::peak_of_mean(window, keys, mean))),
        ..Candidate::new(predict, CUCKOO_SLOTS, format!("2 buckets, {CUCKOO_SLOTS} slots"), overfull)
    }
}

/// All fingerprints on disk. What is wrong is the hash's: one pair of keys in 2^128.
fn exact(ask: &Ask, _rate: f64) -> Candidate {
    let generations = ask.slices + 1;
    let reads = format!("disk, {generations} times");
    Candidate {
        disk: float(keys(ask)) * (1.0 + 1.0 / f64::from(ask.slices)) * EXACT_BYTES,
        can_retract: true,
        mean: Some(0.0),
        configuration: Some(format!("filter = {{ kind = \"exact\", slices = {} }}", ask.slices)),
        ..Candidate::new(|_| Prediction::default(), generations, reads, "disk grows; memory only for caches")
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
