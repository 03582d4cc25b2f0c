//! The kinds of filter that a plan compares: one function each, listed in [`KINDS`].
//!
//! Owns what each kind costs and promises, by its published formulas. A kind that comes to be, or
//! learns to predict itself, is an entry here and nowhere else.

use super::Ask;
use super::text::{count, whole_size};
use crate::filter::{self, Prediction, Shape, Window, blocked_rate, shape_for};
use std::cell::OnceCell;

/// One kind, sized for one partition.
pub(super) struct Kind {
    /// What is expected at a load: 1 is as many keys in a window as were planned for.
    pub(super) predict: Box<dyn Fn(f64) -> Prediction>,
    /// Disk at load 1, in bytes; grows with the load.
    pub(super) disk: f64,
    /// Bits, cells or slots that are looked at for a key that is not there.
    pub(super) probes: u32,
    /// What a look-up reads.
    pub(super) reads: String,
    /// Share of repeats, a whole window after their key was put in, that are called unseen.
    pub(super) forgets: f64,
    /// Whether a key can be taken back.
    pub(super) takes_back: bool,
    /// The load at which it is full, if there is one.
    pub(super) load_max: Option<f64>,
    /// What happens above the planned load.
    pub(super) overfull: &'static str,
    /// Whether it meets its rate in any memory, and pays by forgetting.
    pub(super) elastic: bool,
    /// The line that configures it, if a topic can have it.
    pub(super) configuration: Option<String>,
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
/// Slots in a bucket of a cuckoo filter, and how full its table can be planned and can get (Fan et al.:
/// "Cuckoo Filter: Practically Better Than Bloom", 2014).
const BUCKET: f64 = 4.0;
const CUCKOO_LOAD: f64 = 0.95;
const CUCKOO_FULL: f64 = 0.98;

/// Keys that one partition shows in a window.
fn keys(ask: &Ask) -> u64 {
    ask.keys.div_ceil(u64::from(ask.partitions.max(1))).max(1)
}

/// Memory that one partition may take, if that is bounded.
fn bytes(ask: &Ask) -> Option<u64> {
    ask.memory_bytes.map(|bytes| bytes / u64::from(ask.partitions.max(1)))
}

fn window(slices: u32) -> Window {
    Window::time(24 * 60 * 60 * 1000, slices)
}

/// A queue of generations of blocked Bloom filters that chain when overfull.
fn aging(ask: &Ask, rate: f64, slices: u32) -> Kind {
    let plan = filter::Plan::new(window(slices), keys(ask), rate);
    let layers: [OnceCell<(f64, Shape)>; 16] = std::array::from_fn(|_| OnceCell::new());
    let predict = move |load: f64| {
        let mut left = float(plan.capacity) * load;
        let (mut right, mut bytes) = (1.0, 0);
        for (depth, layer) in layers.iter().enumerate() {
            let &(capacity, shape) = layer.get_or_init(|| self::layer(&plan, u32::try_from(depth).unwrap_or(0)));
            right *= 1.0 - shape_rate(shape, left.min(capacity));
            bytes += shape.bytes();
            left -= capacity;
            if left <= 0.0 {
                break;
            }
        }
        generations(slices, 1.0 - right, bytes)
    };
    Kind {
        predict: Box::new(predict),
        overfull: "chains more filters: the error holds, memory grows",
        configuration: Some(configured("aging", ask, rate, Some(slices))),
        ..generational(&plan, slices)
    }
}

/// The same without chaining.
fn unchained(ask: &Ask, rate: f64) -> Kind {
    let (slices, plan) = (ask.slices, filter::Plan::new(window(ask.slices), keys(ask), rate));
    let predict = move |load: f64| generations(slices, shape_rate(plan.shape, float(plan.capacity) * load), plan.shape.bytes());
    Kind { predict: Box::new(predict), overfull: "the error rises (aging that does not chain)", ..generational(&plan, slices) }
}

/// What every queue of generations has in common.
fn generational(plan: &filter::Plan, slices: u32) -> Kind {
    Kind {
        predict: Box::new(|_| Prediction::default()),
        disk: 0.0,
        probes: plan.shape.probes * (slices + 1),
        reads: format!("{} lines, {} bits", slices + 1, plan.shape.probes * (slices + 1)),
        forgets: 0.0,
        takes_back: false,
        load_max: None,
        overfull: "",
        elastic: false,
        configuration: None,
    }
}

/// Keys and shape of the filter that a generation chains at `depth`; 0 is its first.
fn layer(plan: &filter::Plan, depth: u32) -> (f64, Shape) {
    if depth == 0 {
        return (float(plan.capacity), plan.shape);
    }
    let capacity = plan.capacity.div_ceil(2).saturating_mul(1 << (depth - 1));
    (float(capacity), shape_for(capacity, plan.rate * filter::CHAIN_SHARE * 0.5_f64.powi(depth.cast_signed())))
}

/// All generations of a window, each with as many keys: as it is when a slice ends.
fn generations(slices: u32, rate: f64, bytes: u64) -> Prediction {
    let generations = slices + 1;
    // 1 - (1 - rate)^generations, without cancellation.
    Prediction { rate: -((-rate).ln_1p() * f64::from(generations)).exp_m1(), bytes: bytes * u64::from(generations) }
}

/// The rate of a blocked filter that holds `keys`.
fn shape_rate(shape: Shape, keys: f64) -> f64 {
    let bits = float(shape.bytes()) * 8.0;
    match bits / keys {
        _ if keys <= 0.0 => 0.0,
        // So full that blocks do not differ any more; the mixture's weights would underflow.
        few if few < 2.0 => plain_rate(few, f64::from(shape.probes)),
        bits_per_key => blocked_rate(bits_per_key, shape.probes),
    }
}

/// The rate of a plain Bloom filter: (1 - e^(-k/c))^k.
fn plain_rate(bits_per_key: f64, probes: f64) -> f64 {
    (-(-probes / bits_per_key).exp_m1()).powf(probes)
}

/// A plain Bloom filter, which never forgets: what all others are measured by (Bloom, 1970).
fn bloom(ask: &Ask, rate: f64) -> Kind {
    let keys = float(keys(ask));
    let bits = -rate.ln() / std::f64::consts::LN_2.powi(2);
    let probes = (bits * std::f64::consts::LN_2).round().max(1.0);
    Kind {
        predict: Box::new(move |load| Prediction { rate: plain_rate(bits / load, probes), bytes: whole(keys * bits / 8.0) }),
        disk: 0.0,
        probes: narrow(probes),
        reads: format!("up to {probes} lines"),
        forgets: 0.0,
        takes_back: false,
        load_max: None,
        overfull: "the error rises; never forgets (to compare)",
        elastic: false,
        configuration: None,
    }
}

/// A stable Bloom filter: it forgets at random, so that it never fills (Deng, Rafiei: "Approximately Detecting
/// Duplicates for Streaming Data using Stable Bloom Filters", 2006).
#[derive(Clone, Copy)]
struct Stable {
    cells: f64,
    /// What a cell is set to.
    top: i32,
    /// Cells that a key sets, and that it counts down.
    sets: f64,
    steps: f64,
}

impl Stable {
    fn new(bytes: f64, bits: u32, sets: u32, rate: f64) -> Self {
        let (cells, sets, top) = ((bytes * 8.0 / f64::from(bits)).max(64.0).floor(), f64::from(sets), (1 << bits) - 1);
        let zeros = 1.0 - rate.powf(1.0 / sets);
        let steps = 1.0 / ((zeros.powf(-1.0 / f64::from(top)) - 1.0) * (1.0 / sets - 1.0 / cells));
        // Rounded up: with less the rate would be missed.
        Self { cells, top, sets, steps: steps.ceil().clamp(1.0, cells) }
    }

    /// Probability that a cell last known to be zero, or else at its top, is zero after `keys` more. It is
    /// counted down and set at random times; it is zero if it was counted down `top` times since it was set.
    fn zero(&self, keys: f64, was_zero: bool) -> f64 {
        let time = keys / self.cells;
        let stable = (self.steps / (self.steps + self.sets)).powi(self.top);
        let settled = stable * self.reached((self.steps + self.sets) * time);
        if was_zero { settled + (-self.sets * time).exp() * (1.0 - self.reached(self.steps * time)) } else { settled }
    }

    /// Probability that a Poisson variable of this mean reaches `top`.
    fn reached(&self, mean: f64) -> f64 {
        let (mut term, mut below) = ((-mean).exp(), 0.0);
        for steps in 1..=self.top {
            below += term;
            term *= mean / f64::from(steps);
        }
        1.0 - below
    }

    fn rate(&self, keys: f64) -> f64 {
        (1.0 - self.zero(keys, true)).powf(self.sets)
    }

    fn forgets(&self, keys: f64) -> f64 {
        1.0 - (1.0 - self.zero(keys, false)).powf(self.sets)
    }
}

fn stable(ask: &Ask, rate: f64) -> Kind {
    let keys = float(keys(ask));
    // Any memory will do; unless it is said, as much as a filter that forgets nothing takes.
    let bytes = bytes(ask).unwrap_or_else(|| filter::Plan::new(window(ask.slices), self::keys(ask), rate).bytes(window(ask.slices)));
    let shapes = (1..=3).flat_map(|bits| (1..=16).map(move |sets| Stable::new(float(bytes), bits, sets, rate)));
    let best = shapes.min_by(|a, b| a.forgets(keys).total_cmp(&b.forgets(keys))).unwrap_or_else(|| Stable::new(float(bytes), 1, 1, rate));
    let memory = whole_size(bytes.saturating_mul(u64::from(ask.partitions)));
    Kind {
        // Once stable, its rate is the one asked for, however many keys come.
        predict: Box::new(move |load| Prediction { rate: best.rate(keys * load), bytes }),
        disk: 0.0,
        probes: narrow(best.sets),
        reads: match best.top {
            1 => format!("{} bits", best.sets),
            top => format!("{} cells of {} bits", best.sets, (top + 1).ilog2()),
        },
        forgets: best.forgets(keys),
        takes_back: false,
        load_max: None,
        overfull: "forgets sooner: the error holds",
        elastic: true,
        configuration: Some(format!("filter = {{ kind = \"stable\", memory = \"{memory}\", false_positive_rate = {rate:e} }}")),
    }
}

/// A cuckoo filter whose slots say the generation of their key.
fn cuckoo(ask: &Ask, rate: f64) -> Kind {
    let tag = f64::from((ask.slices + 1).next_power_of_two().ilog2());
    let bits = (2.0 * BUCKET * CUCKOO_LOAD / rate).log2().ceil().max(1.0);
    let slots = float(keys(ask)) * (1.0 + 1.0 / f64::from(ask.slices)) / CUCKOO_LOAD;
    let bytes = whole(slots * (bits + tag) / 8.0);
    Kind {
        // Each of two buckets' slots that are taken may hold the same bits by chance.
        predict: Box::new(move |load| Prediction {
            rate: -((-(-bits).exp2()).ln_1p() * 2.0 * BUCKET * CUCKOO_LOAD * load).exp_m1(),
            bytes,
        }),
        disk: 0.0,
        probes: narrow(2.0 * BUCKET),
        reads: "2 lines, 8 slots".to_owned(),
        forgets: 0.0,
        takes_back: true,
        load_max: Some(CUCKOO_FULL / CUCKOO_LOAD),
        overfull: "full at 1.03x: a key finds no room",
        elastic: false,
        configuration: Some(configured("cuckoo", ask, rate, Some(ask.slices))),
    }
}

/// All fingerprints on disk. What is wrong is the hash's: one pair of keys in 2^128.
fn exact(ask: &Ask, _rate: f64) -> Kind {
    Kind {
        predict: Box::new(|_| Prediction { rate: 0.0, bytes: 0 }),
        disk: float(keys(ask)) * (1.0 + 1.0 / f64::from(ask.slices)) * EXACT_BYTES,
        probes: 1,
        reads: "disk or cache".to_owned(),
        forgets: 0.0,
        takes_back: true,
        load_max: None,
        overfull: "disk grows; memory only for caches",
        elastic: false,
        configuration: Some(format!("filter = {{ kind = \"exact\", slices = {} }}", ask.slices)),
    }
}

/// The line that configures a kind with a capacity.
fn configured(kind: &str, ask: &Ask, rate: f64, slices: Option<u32>) -> String {
    let slices = slices.map_or_else(String::new, |slices| format!(", slices = {slices}"));
    format!("filter = {{ kind = \"{kind}\", capacity = \"{}\", false_positive_rate = {rate:e}{slices} }}", count(ask.keys))
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

#[cfg(test)]
mod tests {
    use super::*;

    /// A stable filter as its authors describe it, in all simplicity.
    #[test]
    fn the_formulas_of_the_stable_filter_agree_with_one() {
        let (bits, sets, rate) = (2, 4, 0.05);
        let stable = Stable::new(2_500.0, bits, sets, rate);
        let mut cells = vec![0_i32; 10_000];
        let mut state = 1_u64;
        let mut place = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            usize::try_from((state >> 33) % 10_000).unwrap()
        };
        let nonzero = |cells: &[i32]| {
            let share = f64::from(u32::try_from(cells.iter().filter(|&&cell| cell > 0).count()).unwrap()) / 10_000.0;
            share.powi(4)
        };
        let mut keys: Vec<[usize; 4]> = Vec::new();
        let (mut forgotten, mut asked) = (0.0, 0.0);
        for key in 0..20_000 {
            for _ in 0..whole(stable.steps) {
                let cell = place();
                cells[cell] = (cells[cell] - 1).max(0);
            }
            keys.push([place(), place(), place(), place()]);
            keys[key].iter().for_each(|&cell| cells[cell] = stable.top);
            if key == 500 {
                assert!((nonzero(&cells) / stable.rate(500.0) - 1.0).abs() < 0.2, "{} {}", nonzero(&cells), stable.rate(500.0));
            }
            if let Some(old) = key.checked_sub(1_000).filter(|_| key > 5_000) {
                asked += 1.0;
                forgotten += f64::from(u8::from(keys[old].iter().any(|&cell| cells[cell] == 0)));
            }
        }
        assert!((nonzero(&cells) / stable.rate(1e9) - 1.0).abs() < 0.15, "{} {}", nonzero(&cells), stable.rate(1e9));
        assert!(stable.rate(1e9) <= rate && stable.rate(1e9) > rate * 0.8, "{}", stable.rate(1e9));
        assert!((forgotten / asked / stable.forgets(1_000.0) - 1.0).abs() < 0.1, "{} {}", forgotten / asked, stable.forgets(1_000.0));
    }
}
