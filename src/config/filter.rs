//! What remembers a topic's keys: kind, size, and what may become of them.

use super::error::{Diagnostics, integer};
use super::kind::{Kind, RateIs};
use super::raw;
use super::units::{KEYS, Length};
use crate::filter::{AgingSizing, AtMaxMemory, CuckooSizing, Growth, Spec, StableSizing, Window};
use std::fmt;

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
    /// The rate that it is sized for, and never passes: the configured one, or a higher one with that mean.
    pub peak_rate: f64,
    /// Memory of the whole topic in bytes, for the kind that is sized by it.
    pub memory: Option<u64>,
    /// Whether what it calls seen is looked up exactly before a record is dropped.
    pub confirm: bool,
    /// How its memory follows the stream; sizes are of the whole topic.
    pub growth: Growth,
}

impl Filter {
    /// The filter of one of `partitions` partitions, if it has one in memory: the topic's capacity is
    /// shared out over them. A window by count is kept in full by each, or its promise would not hold.
    #[must_use]
    pub fn spec(&self, window: Window, partitions: u32) -> Option<Spec> {
        let partitions = u64::from(partitions.max(1));
        let keys = match (self.capacity, window) {
            (Some(capacity), Window::Time { .. }) => capacity.div_ceil(partitions),
            (_, Window::Keys { slice_keys, slices }) => slice_keys * u64::from(slices),
            (None, Window::Time { .. }) => 1,
        };
        let growth = Growth { max_bytes: self.growth.max_bytes.map(|bytes| bytes / partitions), ..self.growth };
        match self.kind {
            Kind::Aging => Some(Spec::Aging(AgingSizing::new(window, keys, self.peak_rate).with_growth(growth))),
            Kind::Cuckoo => Some(Spec::Cuckoo(CuckooSizing::new(window, keys, self.peak_rate))),
            Kind::Stable => {
                let memory = self.memory.unwrap_or_default() / partitions;
                Some(Spec::Stable(StableSizing::new(memory, self.peak_rate)))
            }
            Kind::Exact => None,
        }
    }

    /// The peak of a filter with that mean; of kinds that have no other peak, the mean.
    fn peak_of_mean(&self, window: Window) -> f64 {
        let mean = self.false_positive_rate;
        let keys = match window {
            Window::Time { .. } => self.capacity.unwrap_or(1),
            Window::Keys { slice_keys, slices } => slice_keys.saturating_mul(slices.into()),
        };
        match self.kind {
            Kind::Aging => AgingSizing::peak_of_mean(window, keys, mean, self.growth),
            Kind::Cuckoo => CuckooSizing::peak_of_mean(window, keys, mean),
            Kind::Stable | Kind::Exact => mean,
        }
    }

    /// What is wrong with `max_memory` for a topic of so many partitions, if anything: each has a window by count in full,
    /// and an equal part of the memory.
    #[must_use]
    pub fn memory_problem(&self, window: Window, partitions: u32) -> Option<String> {
        let most = self.growth.max_bytes.filter(|_| window.length_ms().is_none())?;
        let needed = self.spec(window, partitions)?.bytes(window).saturating_mul(u64::from(partitions));
        (needed > most).then(|| {
            format!("the {partitions} partitions each keep a window by count, which takes {needed} bytes in all, got {most}; raise it, or lower the window's keys")
        })
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
            rate_is: _,   // A size, as the rate is; of the kind whose size counts there is one only.
            peak_rate: _, // It follows from the others.
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
    let mut filter = Filter {
        memory: raw.memory.map(|bytes| bytes.0),
        kind: raw.kind,
        capacity: raw.capacity.map(|count| count.0),
        false_positive_rate: raw.false_positive_rate.0,
        rate_is: raw.rate_is,
        peak_rate: raw.false_positive_rate.0,
        confirm: raw.confirm.0,
        growth: Growth { adapt: raw.adapt.0, max_bytes: raw.max_memory.map(|bytes| bytes.0), at_max: raw.at_max_memory },
    };
    let is_sound = filter.capacity.is_none_or(|keys| KEYS.contains(&keys)) && filter.false_positive_rate >= RATE_MIN;
    if let Some(window) = window.filter(|_| filter.rate_is == RateIs::Mean && is_sound) {
        filter.peak_rate = filter.peak_of_mean(window);
    }
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

/// A bound that the filter does not even keep at capacity is a slip.
fn max_memory(filter: &Filter, window: Option<Window>, path: &str, diagnostics: &mut Diagnostics) {
    let at = |name: &str| format!("{path}.{name}");
    let Some(most) = filter.growth.max_bytes else {
        if filter.growth.at_max != AtMaxMemory::default() {
            diagnostics.add(&at("at_max_memory"), "means nothing without max_memory");
        }
        return;
    };
    if !filter.kind.grows() {
        diagnostics.add(&at("max_memory"), format!("not for kind {:?}", filter.kind.name()));
    } else if filter.capacity.is_none_or(|keys| KEYS.contains(&keys))
        && filter.false_positive_rate >= RATE_MIN
        && let Some(needed) = window.and_then(|window| Some(filter.spec(window, 1)?.bytes(window))).filter(|&needed| needed > most)
    {
        let message = format!(
            "the filter takes {needed} bytes at capacity, got {most}; raise it, or lower capacity, or allow a higher false_positive_rate"
        );
        diagnostics.add(&at("max_memory"), message);
    }
}
