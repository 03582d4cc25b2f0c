//! The kinds of filter that a plan compares: one function each, listed in [`KINDS`].
//!
//! Owns what each kind costs and promises. Those that a topic can have say so themselves, by the plans that
//! they are made from; the others are there to compare. A new kind is an entry here and nowhere else.

use super::Ask;
use super::text::{count, whole_size};
use crate::filter::{self, CuckooPlan, Prediction, StablePlan, Window, plain_bits, plain_rate};

/// One kind, sized for one partition.
pub(super) struct Kind {
    /// What is expected at a load: 1 is as many keys in a window as were planned for.
    pub(super) predict: Box<dyn Fn(f64) -> Prediction>,
    /// Disk at load 1, in bytes; grows with the load.
    pub(super) disk: f64,
    /// Bits, cells, slots or places on disk that are looked at for a key that is not there.
    pub(super) probes: u32,
    /// What a look-up reads.
    pub(super) reads: String,
    /// Share of repeats, a whole window after their key was put in, that are called unseen; `None` for kinds that
    /// promise never to.
    pub(super) forgets: Option<f64>,
    /// Whether a key can be taken back.
    pub(super) takes_back: bool,
    /// What happens above the planned load.
    pub(super) overfull: &'static str,
    /// Whether any memory will do for any rate: it pays by forgetting.
    pub(super) elastic: bool,
    /// The line that configures it, if a topic can have it.
    pub(super) configuration: Option<String>,
}

impl Kind {
    /// One that remembers, takes nothing back, and is in memory only.
    fn new(predict: impl Fn(f64) -> Prediction + 'static, probes: u32, reads: String, overfull: &'static str) -> Self {
        Self {
            predict: Box::new(predict),
            disk: 0.0,
            probes,
            reads,
            forgets: None,
            takes_back: false,
            overfull,
            elastic: false,
            configuration: None,
        }
    }
}

/// Sizes a kind to meet a rate at load 1.
pub(super) type Make = fn(&Ask, f64) -> Kind;

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
fn aging(ask: &Ask, rate: f64, slices: u32) -> Kind {
    let (window, plan) = (window(slices), filter::Plan::new(window(slices), keys(ask), rate));
    let (probes, reads) = generations(&plan, window);
    let overfull = "chains more filters: the error holds, memory grows";
    Kind {
        configuration: Some(configured("aging", ask, rate, slices)),
        ..Kind::new(move |load| plan.predict(window, load), probes, reads, overfull)
    }
}

/// The same without chaining.
fn unchained(ask: &Ask, rate: f64) -> Kind {
    let (window, plan) = (window(ask.slices), filter::Plan::new(window(ask.slices), keys(ask), rate));
    let (probes, reads) = generations(&plan, window);
    Kind::new(move |load| plan.rate_unchained(window, load), probes, reads, "the error rises (aging that does not chain)")
}

/// What a look-up reads in all generations: bits, and the same in words.
fn generations(plan: &filter::Plan, window: Window) -> (u32, String) {
    let lines = plan.shape.lines * (window.slices() + 1);
    let bits = plan.shape.probes * lines;
    (bits, format!("{lines} lines, {bits} bits"))
}

/// A plain Bloom filter, which never forgets: what all others are measured by (Bloom, 1970).
fn bloom(ask: &Ask, rate: f64) -> Kind {
    let (keys, bits) = (float(keys(ask)), plain_bits(rate));
    let probes = narrow((bits * std::f64::consts::LN_2).round().max(1.0));
    let predict = move |load| Prediction { rate: plain_rate(bits / load, probes), bytes: whole(keys * bits / 8.0) };
    Kind::new(predict, probes, format!("up to {}", many(probes, "line")), "the error rises; never forgets (to compare)")
}

/// A stable Bloom filter: it forgets at random, so that it never fills.
fn stable(ask: &Ask, rate: f64) -> Kind {
    // Any memory will do; unless it is said, as much as a filter that forgets nothing takes.
    let like_aging = || filter::Plan::new(window(ask.slices), keys(ask), rate).bytes(window(ask.slices)).saturating_mul(partitions(ask));
    // Planned is what the line says, to the byte.
    let (bytes, memory) = whole_size(ask.memory_bytes.unwrap_or_else(like_aging).max(STABLE_MIN));
    let plan = StablePlan::new(bytes / partitions(ask), rate);
    let (probes, bits) = (plan.shape.probes, plan.shape.cell_bits);
    let reads = if bits == 1 { many(probes, "bit") } else { format!("{} of {bits} bits", many(probes, "cell")) };
    let windows = float(keys(ask)) / plan.lifetime();
    Kind {
        forgets: Some(plan.unseen_after(keys(ask))),
        elastic: true,
        configuration: Some(format!("filter = {{ kind = \"stable\", memory = \"{memory}\", false_positive_rate = {rate:e} }}")),
        // Its own measure of load is how many keys came while one is remembered.
        ..Kind::new(move |load| plan.predict(load * windows), probes, reads, "forgets sooner: the error holds")
    }
}

/// A cuckoo filter whose slots say the generation of their key.
fn cuckoo(ask: &Ask, rate: f64) -> Kind {
    let (window, plan) = (window(ask.slices), CuckooPlan::new(window(ask.slices), keys(ask), rate));
    // Its capacity is that of a window and the open slice, so a load is the same for both.
    let predict = move |load| plan.predict(window, load);
    let overfull = "chains more tables: the error holds, memory grows";
    Kind {
        takes_back: true,
        configuration: Some(configured("cuckoo", ask, rate, ask.slices)),
        ..Kind::new(predict, CUCKOO_SLOTS, format!("2 lines, {CUCKOO_SLOTS} slots"), overfull)
    }
}

/// All fingerprints on disk. What is wrong is the hash's: one pair of keys in 2^128.
fn exact(ask: &Ask, _rate: f64) -> Kind {
    let generations = ask.slices + 1;
    let reads = format!("disk, {generations} times");
    Kind {
        disk: float(keys(ask)) * (1.0 + 1.0 / f64::from(ask.slices)) * EXACT_BYTES,
        takes_back: true,
        configuration: Some(format!("filter = {{ kind = \"exact\", slices = {} }}", ask.slices)),
        ..Kind::new(|_| Prediction::default(), generations, reads, "disk grows; memory only for caches")
    }
}

/// The line that configures a kind with a capacity.
fn configured(kind: &str, ask: &Ask, rate: f64, slices: u32) -> String {
    let capacity = count(ask.keys);
    format!("filter = {{ kind = \"{kind}\", capacity = \"{capacity}\", false_positive_rate = {rate:e}, slices = {slices} }}")
}

fn many(number: u32, what: &str) -> String {
    format!("{number} {what}{}", if number == 1 { "" } else { "s" })
}

#[expect(clippy::cast_precision_loss, reason = "sizes far below 2^52")]
fn float(number: u64) -> f64 {
    number as f64
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "sizes, far below 2^63 and never negative")]
pub(super) fn whole(number: f64) -> u64 {
    number.ceil() as u64
}

fn narrow(number: f64) -> u32 {
    u32::try_from(whole(number)).unwrap_or(u32::MAX)
}
