//! What remembers a topic's keys: kind, size, and what may become of them.

use super::error::{Diagnostics, integer};
use super::kind::{Kind, RateIs};
use super::raw;
use super::units::{KEYS, Length};
use crate::filter::{AgingSizing, AtMaxMemory, CuckooSizing, Growth, Spec, StableSizing, Window};
use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Mutex, PoisonError};

/// The smallest rate that sizing keeps its promise for.
pub(super) const RATE_MIN: f64 = 1e-9;

/// A smaller one would remember next to nothing.
const MEMORY_MIN: u64 = 1024;

/// What remembers a topic's keys.
#[derive(Clone, Debug, PartialEq)]
pub struct Filter {
    /// Which kind it is.
    pub kind: Kind,
    /// Distinct keys that the whole topic shows in a window; `None` for windows by count, where it is the
    /// count, and for kinds without capacity.
    pub capacity: Option<u64>,
    /// Share of unseen records that may be dropped wrongly, at capacity.
    pub false_positive_rate: f64,
    /// When: at the peak, or on average.
    pub rate_is: RateIs,
    /// Memory of the whole topic in bytes, for the kind that is sized by it.
    pub memory: Option<u64>,
    /// Whether what it calls seen is looked up exactly before a record is dropped.
    pub confirm: bool,
    /// How its memory follows the stream; sizes are of the whole topic.
    pub growth: Growth,
}

/// Sizes a stable filter. That takes tens of milliseconds, and every worker asks for the same sizes, so they are kept.
fn stable(memory: u64, rate: f64) -> StableSizing {
    static SIZED: Mutex<BTreeMap<(u64, u64), StableSizing>> = Mutex::new(BTreeMap::new());
    let mut sized = SIZED.lock().unwrap_or_else(PoisonError::into_inner);
    *sized.entry((memory, rate.to_bits())).or_insert_with(|| StableSizing::new(memory, rate))
}

impl Filter {
    /// The filter of one of `partitions` partitions, if it has one in memory: the topic's capacity is
    /// shared out over them. A window by count is kept in full by each, or its promise would not hold.
    #[must_use]
    pub fn spec(&self, window: Window, partitions: u32) -> Option<Spec> {
        let Share { keys, growth } = self.share(window, partitions);
        let peak = self.peak_rate(window, partitions);
        match self.kind {
            Kind::Aging => Some(Spec::Aging(AgingSizing::new(window, keys, peak).with_growth(growth))),
            Kind::Cuckoo => Some(Spec::Cuckoo(CuckooSizing::new(window, keys, peak))),
            Kind::Stable => {
                let memory = self.memory.unwrap_or_default() / u64::from(partitions.max(1));
                Some(Spec::Stable(stable(memory, peak)))
            }
            Kind::Exact => None,
        }
    }

    /// The rate that the filter of one of `partitions` partitions is sized for, and never passes: the configured one, or a
    /// higher one with that mean. It differs with the number of partitions, for a filter is made of whole blocks or bits.
    #[must_use]
    pub fn peak_rate(&self, window: Window, partitions: u32) -> f64 {
        match self.rate_is {
            RateIs::Peak => self.false_positive_rate,
            RateIs::Mean => {
                let Share { keys, growth } = self.share(window, partitions);
                peak_of(Mean { rate: self.false_positive_rate, kind: self.kind, window, keys, growth })
            }
        }
    }

    /// What one of `partitions` partitions has of the topic.
    fn share(&self, window: Window, partitions: u32) -> Share {
        let partitions = u64::from(partitions.max(1));
        let keys = match (self.capacity, window) {
            (Some(capacity), Window::Time { .. }) => capacity.div_ceil(partitions),
            (_, Window::Keys { slice_keys, slices }) => slice_keys.saturating_mul(slices.into()),
            (None, Window::Time { .. }) => 1,
        };
        Share { keys, growth: Growth { max_bytes: self.growth.max_bytes.map(|bytes| bytes / partitions), ..self.growth } }
    }

    /// What is wrong with `max_memory` for a topic of so many partitions, if anything: a bound that filters do not even keep at
    /// capacity is a slip. Each partition has an equal part of the memory, and whole blocks; and a window by count in full.
    #[must_use]
    pub fn memory_problem(&self, window: Window, partitions: u32) -> Option<String> {
        let most = self.growth.max_bytes?;
        let takes = |filter: &Self| Some(filter.spec(window, partitions)?.bytes(window).saturating_mul(partitions.max(1).into()));
        let needed = takes(self).filter(|&needed| needed > most)?;
        let subject = match (window, partitions) {
            (_, 0 | 1) => "the filter takes".to_owned(),
            (Window::Time { .. }, _) => format!("the filters of {partitions} partitions take"),
            (Window::Keys { .. }, _) => {
                return Some(format!(
                    "the {partitions} partitions each keep a window by count, which takes {needed} bytes in all, got {most}; raise it, or lower the window's keys"
                ));
            }
        };
        // What is planned for a mean is less than that, for it is of slices that may become larger.
        let unbounded = Self { growth: Growth { max_bytes: None, ..self.growth }, ..self.clone() };
        let reason = if self.rate_is == RateIs::Mean && takes(&unbounded)? <= most {
            ": with rate_is = \"mean\", slices that size themselves need an eighth more than is planned"
        } else {
            ""
        };
        Some(format!(
            "{subject} {needed} bytes at capacity, got {most}{reason}; raise it, or lower capacity, or allow a higher false_positive_rate"
        ))
    }

    /// Whether fingerprints are kept as they are, on disk.
    #[must_use]
    pub fn is_exact(&self) -> bool {
        self.confirm || self.kind == Kind::Exact
    }

    /// Whether a key can be retracted.
    #[must_use]
    pub fn can_retract(&self) -> bool {
        self.is_exact()
            || match self.kind {
                Kind::Cuckoo | Kind::Exact => true,
                Kind::Aging | Kind::Stable => false,
            }
    }
}

impl fmt::Display for Filter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Stored state depends on what is shown. A new option does not compile until somebody has said whether it does.
        let Self {
            kind,
            capacity: _,
            false_positive_rate: _,
            rate_is: _, // A size, as the rate is; of the kind whose size counts there is one only.
            memory,
            confirm: _,
            growth: Growth { adapt: _, max_bytes: _, at_max: _ },
        } = self;
        f.write_str(kind.name())?;
        if let Some(memory) = memory {
            // Its cells cannot be laid out anew, so stored ones are of use to the same size only.
            write!(f, " of {memory} bytes at {:e}", self.false_positive_rate)?;
        }
        if self.confirm { f.write_str(", confirmed") } else { Ok(()) }
    }
}

/// What one partition's filter is sized by.
struct Share {
    keys: u64,
    growth: Growth,
}

/// A rate on average, and all else that its peak depends on.
#[derive(Clone, Copy, PartialEq)]
struct Mean {
    rate: f64,
    kind: Kind,
    window: Window,
    keys: u64,
    growth: Growth,
}

/// Most peaks that are kept. A process has few topics, and each has one number of partitions.
const PEAKS_MAX: usize = 256;

/// Peaks that were found. To find one takes tens of milliseconds, and a follower asks for each of its partitions.
static PEAKS: Mutex<Vec<(Mean, f64)>> = Mutex::new(Vec::new());

/// The peak of a filter with that mean; of kinds that have no other peak, the mean.
fn peak_of(mean: Mean) -> f64 {
    // Who else wants it meanwhile waits for it.
    let mut peaks = PEAKS.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(&(_, peak)) = peaks.iter().find(|(known, _)| *known == mean) {
        return peak;
    }
    let Mean { rate, kind, window, keys, growth } = mean;
    let peak = match kind {
        Kind::Aging => AgingSizing::peak_of_mean(window, keys, rate, growth),
        Kind::Cuckoo => CuckooSizing::peak_of_mean(window, keys, rate),
        Kind::Stable | Kind::Exact => rate,
    };
    if peaks.len() >= PEAKS_MAX {
        peaks.clear();
    }
    peaks.push((mean, peak));
    peak
}

pub(super) fn resolve(
    raw: &raw::Filter,
    length: Option<Length>,
    window: Option<Window>,
    path: &str,
    diagnostics: &mut Diagnostics,
) -> Filter {
    let at = |name: &str| format!("{path}.{name}");
    capacity(raw, length, &at("capacity"), diagnostics);
    if raw.false_positive_rate.0 < RATE_MIN {
        diagnostics
            .add(&at("false_positive_rate"), format!("expected a rate of at least {RATE_MIN:e}, got {:e}", raw.false_positive_rate.0));
    }
    rate_is(raw, &at("rate_is"), diagnostics);
    if raw.confirm.0 && raw.kind == Kind::Exact {
        diagnostics.add(&at("confirm"), "not for kind \"exact\", which is never wrong");
    }
    memory(raw, &at("memory"), diagnostics);
    let filter = Filter {
        memory: raw.memory.map(|bytes| bytes.0),
        kind: raw.kind,
        capacity: raw.capacity.map(|count| count.0),
        false_positive_rate: raw.false_positive_rate.0,
        rate_is: raw.rate_is,
        confirm: raw.confirm.0,
        growth: Growth { adapt: raw.adapt.0, max_bytes: raw.max_memory.map(|bytes| bytes.0), at_max: raw.at_max_memory },
    };
    max_memory(&filter, window, path, diagnostics);
    filter
}

/// A mean is another rate only where the rate rises and falls.
fn rate_is(raw: &raw::Filter, path: &str, diagnostics: &mut Diagnostics) {
    match (raw.rate_is, raw.kind) {
        (RateIs::Mean, Kind::Stable) => {
            diagnostics.add(path, "\"mean\" is not for kind \"stable\", whose rate rises to its peak once and stays there");
        }
        (RateIs::Mean, Kind::Exact) => diagnostics.add(path, "\"mean\" is not for kind \"exact\", which is never wrong"),
        (RateIs::Peak, _) | (RateIs::Mean, Kind::Aging | Kind::Cuckoo) => {}
    }
}

fn capacity(raw: &raw::Filter, length: Option<Length>, path: &str, diagnostics: &mut Diagnostics) {
    match (length, raw.capacity) {
        (_, Some(_)) if !raw.kind.has_capacity() => diagnostics.add(path, format!("not for kind {:?}", raw.kind.name())),
        (Some(Length::Time(_)), None) if raw.kind.has_capacity() && !diagnostics.knows(path) => {
            diagnostics.add(path, "required: the number of distinct keys in a window, such as \"10M\"");
        }
        (Some(Length::Keys(_)), Some(_)) => diagnostics.add(path, "not for a window by count, whose count is the capacity"),
        (_, Some(keys)) => integer(keys.0, &KEYS, path, diagnostics),
        _ => {}
    }
}

/// The kind without capacity is sized by its memory, and no other is.
fn memory(raw: &raw::Filter, path: &str, diagnostics: &mut Diagnostics) {
    match (raw.kind, raw.memory) {
        (Kind::Stable, None) if !diagnostics.knows(path) => {
            diagnostics.add(path, "required for kind \"stable\": its memory, such as \"64MiB\"");
        }
        (Kind::Stable, Some(bytes)) if bytes.0 < MEMORY_MIN => {
            diagnostics.add(path, format!("expected at least {MEMORY_MIN} bytes, got {}", bytes.0));
        }
        // Each kind by name: a new one does not compile until somebody has said how it is sized.
        (Kind::Aging | Kind::Cuckoo | Kind::Exact, Some(_)) => {
            diagnostics.add(path, format!("not for kind {:?}, which is sized by its capacity; max_memory bounds that", raw.kind.name()));
        }
        (Kind::Aging | Kind::Cuckoo | Kind::Exact, None) | (Kind::Stable, _) => {}
    }
}

fn max_memory(filter: &Filter, window: Option<Window>, path: &str, diagnostics: &mut Diagnostics) {
    let at = |name: &str| format!("{path}.{name}");
    if filter.growth.max_bytes.is_none() {
        if filter.growth.at_max != AtMaxMemory::default() {
            diagnostics.add(&at("at_max_memory"), "means nothing without max_memory");
        }
        return;
    }
    if !filter.kind.grows() {
        diagnostics.add(&at("max_memory"), format!("not for kind {:?}", filter.kind.name()));
    } else if filter.capacity.is_none_or(|keys| KEYS.contains(&keys))
        && filter.false_positive_rate >= RATE_MIN
        // How many partitions there are is known once brokers have answered.
        && let Some(problem) = window.and_then(|window| filter.memory_problem(window, 1))
    {
        diagnostics.add(&at("max_memory"), problem);
    }
}
