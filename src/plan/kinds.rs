//! The kinds of filters that a plan compares: all kinds that a topic can use ([`Kind::ALL`]), and a few others for comparison only.
//!
//! Computes the cost and the guarantees of each kind. This module never builds a filter.

use super::Ask;
use super::text::{count, whole_size};
use crate::filter::{AgingSizing, Demand, Growth, Kind, Prediction, Size, Spec, Window, plain_bits, plain_rate};

/// One kind, sized for one partition.
pub(super) struct Candidate {
    /// Predicts the rate and memory at a load. A load of 1 is the planned number of keys in a window.
    pub(super) predict: Box<dyn Fn(f64) -> Prediction>,
    pub(super) steady_bytes: Option<u64>,
    /// Disk space at load 1, in bytes. Proportional to the load.
    pub(super) disk: f64,
    pub(super) k: u32,
    pub(super) reads: String,
    /// Share of duplicates that are reported as unseen if they arrive one whole window after their key was inserted. `None` for kinds that
    /// remember every key for a whole window.
    pub(super) forgets: Option<f64>,
    pub(super) can_retract: bool,
    pub(super) overfull: &'static str,
    /// True if the kind has a fixed amount of memory. With less memory, it forgets keys sooner. Its rate rises only if the memory is very
    /// small.
    pub(super) elastic: bool,
    pub(super) configuration: Option<String>,
    pub(super) mean: Option<f64>,
}

impl Candidate {
    /// Creates a candidate for a kind that never forgets a key within the window, cannot retract, and uses no disk.
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
pub(super) type Make = Box<dyn Fn(&Ask, f64) -> Candidate>;

/// Returns the name and constructor of every kind, in the order of the tables that a plan shows. The default kind is followed by two
/// variants of it, which show the effects of chaining and of slices. A plain Bloom filter comes last, for comparison.
pub(super) fn kinds() -> Vec<(&'static str, Make)> {
    let mut kinds: Vec<(_, Make)> = Vec::new();
    for &kind in Kind::ALL {
        kinds.push((kind.name(), Box::new(move |ask, rate| offered(kind, ask, rate, ask.slices))));
        if kind == Kind::default() {
            kinds.push((UNCHAINED, Box::new(unchained)));
            kinds.push(("pair", Box::new(move |ask, rate| offered(kind, ask, rate, 1))));
        }
    }
    kinds.push(("bloom", Box::new(bloom)));
    kinds
}

/// The name of the default kind without chaining.
pub(super) const UNCHAINED: &str = "unchained";

/// Estimated disk space per fingerprint: 16 bytes, plus 12 bytes of overhead.
const EXACT_BYTES: f64 = 16.0 + 12.0;

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

fn offered(kind: Kind, ask: &Ask, rate: f64, slices: u32) -> Candidate {
    let (window, keys, properties) = (window(slices), keys(ask), kind.properties());
    // Plan for a filter that adapts to the stream, which is the default.
    let growth = Growth { adapt: true, ..Growth::default() };
    let demand = Demand { growth, ..Demand::new(keys, rate) };
    let (options, bytes) = match properties.size {
        Size::Capacity => (format!("capacity = \"{}\", false_positive_rate = {rate:e}, slices = {slices}", count(ask.keys)), 0),
        Size::Memory { least } => {
            // Any amount of memory works. Without a requested amount, use the memory that the default kind needs to forget nothing.
            let like_default =
                || Kind::default().spec(window, &demand).map_or(0, |spec| spec.bytes(window)).saturating_mul(partitions(ask));
            // Round the memory first, so the plan uses exactly the memory in the configuration line.
            let (bytes, memory) = whole_size(ask.memory_bytes.unwrap_or_else(like_default).max(least));
            (format!("memory = \"{memory}\", false_positive_rate = {rate:e}"), bytes / partitions(ask))
        }
        Size::Disk => (format!("slices = {slices}"), 0),
    };
    let candidate = match kind.spec(window, &Demand { bytes, ..demand }) {
        None => on_disk(ask, properties.overfull),
        Some(spec) => {
            let (k, reads) = spec.sizing().reads(window);
            Candidate {
                steady_bytes: Some(spec.sizing().steady_bytes(window)),
                forgets: spec.sizing().forgets(keys),
                mean: Some(spec.sizing().mean_rate(window)),
                ..Candidate::new(move |load| spec.sizing().predicted(window, keys, load), k, reads, properties.overfull)
            }
        }
    };
    Candidate {
        can_retract: properties.can_retract,
        elastic: matches!(properties.size, Size::Memory { .. }),
        configuration: Some(format!("filter = {{ kind = \"{}\", {options} }}", kind.name())),
        ..candidate
    }
}

/// The candidate for a kind that has all fingerprints on disk. Its only errors are hash collisions: two keys collide with a probability of
/// 2^-128.
fn on_disk(ask: &Ask, overfull: &'static str) -> Candidate {
    let generations = ask.slices + 1;
    Candidate {
        disk: float(keys(ask)) * (1.0 + 1.0 / f64::from(ask.slices)) * EXACT_BYTES,
        mean: Some(0.0),
        ..Candidate::new(|_| Prediction::default(), generations, format!("disk, {generations} times"), overfull)
    }
}

fn unchained(ask: &Ask, rate: f64) -> Candidate {
    let (window, sizing) = (window(ask.slices), AgingSizing::new(window(ask.slices), keys(ask), rate));
    let (k, reads) = Spec::Aging(sizing).sizing().reads(window);
    Candidate::new(move |load| sizing.rate_unchained(window, load), k, reads, "rate rises (aging without chaining)")
}

/// A plain Bloom filter, which never forgets: the reference for all other kinds (Bloom, 1970).
fn bloom(ask: &Ask, rate: f64) -> Candidate {
    let (keys, bits) = (float(keys(ask)), plain_bits(rate));
    let k = narrow((bits * std::f64::consts::LN_2).round().max(1.0));
    let predict = move |load| Prediction { rate: plain_rate(bits / load, k), bytes: whole(keys * bits / 8.0) };
    Candidate::new(predict, k, format!("up to {k} line{}", if k == 1 { "" } else { "s" }), "rate rises; never forgets (for comparison)")
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
