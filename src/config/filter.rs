//! The filter of a topic: its kind, its size, and how it grows.

use super::error::{Diagnostics, integer};
use super::kind::Kind;
use super::raw;
use super::units::{KEYS, Length};
use crate::filter::{AgingSizing, AtMaxMemory, CuckooSizing, Growth, Spec, StableSizing, Window};
use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Mutex, PoisonError};

/// The lowest false-positive rate for which filters are sized correctly.
pub(super) const RATE_MIN: f64 = 1e-9;

/// Minimum memory of a `stable` filter. A smaller filter would forget nearly every key at once.
const MEMORY_MIN: u64 = 1024;

/// The filter of a topic, in which its seen keys are stored.
#[derive(Clone, Debug, PartialEq)]
pub struct Filter {
    /// The kind of filter.
    pub kind: Kind,
    /// Number of distinct keys of the whole topic in a window. `None` for windows by count, whose count is the capacity, and for
    /// kinds without a capacity.
    pub capacity: Option<u64>,
    /// Maximum share of unseen records that may be dropped wrongly, at capacity.
    pub false_positive_rate: f64,
    /// Memory for the whole topic in bytes, for kind `stable`.
    pub memory: Option<u64>,
    /// True if a key that the filter reports as seen is looked up in an exact store before the record is dropped.
    pub confirm: bool,
    /// The growth of the memory. Sizes apply to the whole topic.
    pub growth: Growth,
}

/// Sizes a stable filter. The result is cached, because it takes tens of milliseconds, and every worker needs the same sizes.
fn stable(memory: u64, rate: f64) -> StableSizing {
    static SIZED: Mutex<BTreeMap<(u64, u64), StableSizing>> = Mutex::new(BTreeMap::new());
    let mut sized = SIZED.lock().unwrap_or_else(PoisonError::into_inner);
    *sized.entry((memory, rate.to_bits())).or_insert_with(|| StableSizing::new(memory, rate))
}

impl Filter {
    /// Returns the filter of one of `partitions` partitions, if the kind has a filter in memory. The topic's capacity is divided among
    /// the partitions. But each partition keeps a window by count in full. Otherwise, it could forget keys within the window.
    #[must_use]
    pub fn spec(&self, window: Window, partitions: u32) -> Option<Spec> {
        let partitions = u64::from(partitions.max(1));
        let keys = match (self.capacity, window) {
            (Some(capacity), Window::Time { .. }) => capacity.div_ceil(partitions),
            (_, Window::Keys { slice_keys, slices }) => slice_keys.saturating_mul(slices.into()),
            (None, Window::Time { .. }) => 1,
        };
        let rate = self.false_positive_rate;
        match self.kind {
            Kind::Aging => {
                let growth = Growth { max_bytes: self.growth.max_bytes.map(|bytes| bytes / partitions), ..self.growth };
                Some(Spec::Aging(AgingSizing::new(window, keys, rate).with_growth(growth)))
            }
            Kind::Cuckoo => Some(Spec::Cuckoo(CuckooSizing::new(window, keys, rate))),
            Kind::Stable => Some(Spec::Stable(stable(self.memory.unwrap_or_default() / partitions, rate))),
            Kind::Exact => None,
        }
    }

    /// Returns an error message if `max_memory` is less than the filters of this number of partitions need at capacity. Each partition
    /// gets an equal share of the memory, in whole blocks, and keeps a window by count in full.
    #[must_use]
    pub fn memory_problem(&self, window: Window, partitions: u32) -> Option<String> {
        let most = self.growth.max_bytes?;
        let needed = self.spec(window, partitions)?.bytes(window).saturating_mul(partitions.max(1).into());
        if needed <= most {
            return None;
        }
        let subject = match (window, partitions) {
            (_, 0 | 1) => "the filter needs".to_owned(),
            (Window::Time { .. }, _) => format!("the filters of {partitions} partitions need"),
            (Window::Keys { .. }, _) => {
                return Some(format!(
                    "each of the {partitions} partitions keeps a whole window by count, and together they need {needed} bytes, got {most}; raise max_memory, or lower the window's keys"
                ));
            }
        };
        Some(format!(
            "{subject} {needed} bytes at capacity, got {most}; raise max_memory, lower capacity, or allow a higher false_positive_rate"
        ))
    }

    /// True if fingerprints are stored on disk.
    #[must_use]
    pub fn is_exact(&self) -> bool {
        self.confirm || self.kind == Kind::Exact
    }

    /// True if a key can be retracted.
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
        // Stored state is only reused if this text is the same. The pattern lists all options, so that a new option does not compile
        // until this function handles it.
        let Self { kind, capacity: _, false_positive_rate: _, memory, confirm: _, growth: Growth { adapt: _, max_bytes: _, at_max: _ } } =
            self;
        f.write_str(kind.name())?;
        if let Some(memory) = memory {
            // Stored cells cannot be resized, so they are valid only for the same size.
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
    if raw.confirm.0 && raw.kind == Kind::Exact {
        diagnostics.add(&at("confirm"), "remove it: kind \"exact\" has no false positives to confirm");
    }
    memory(raw, &at("memory"), diagnostics);
    let filter = Filter {
        memory: raw.memory.map(|bytes| bytes.0),
        kind: raw.kind,
        capacity: raw.capacity.map(|count| count.0),
        false_positive_rate: raw.false_positive_rate.0,
        confirm: raw.confirm.0,
        growth: Growth { adapt: raw.adapt.0, max_bytes: raw.max_memory.map(|bytes| bytes.0), at_max: raw.at_max_memory },
    };
    max_memory(&filter, window, path, diagnostics);
    filter
}

fn capacity(raw: &raw::Filter, length: Option<Length>, path: &str, diagnostics: &mut Diagnostics) {
    match (length, raw.capacity) {
        (_, Some(_)) if !raw.kind.has_capacity() => diagnostics.add(path, format!("remove it: kind {:?} has no capacity", raw.kind.name())),
        (Some(Length::Time(_)), None) if raw.kind.has_capacity() && !diagnostics.knows(path) => {
            diagnostics.add(path, "required: the number of distinct keys in a window, such as \"10M\"");
        }
        (Some(Length::Keys(_)), Some(_)) => diagnostics.add(path, "remove it: the capacity of a window by count is its number of keys"),
        (_, Some(keys)) => integer(keys.0, &KEYS, path, diagnostics),
        _ => {}
    }
}

/// Checks that kind `stable` has a memory size, and that no other kind has one.
fn memory(raw: &raw::Filter, path: &str, diagnostics: &mut Diagnostics) {
    match (raw.kind, raw.memory) {
        (Kind::Stable, None) if !diagnostics.knows(path) => {
            diagnostics.add(path, "required for kind \"stable\": the memory for the whole topic, such as \"64MiB\"");
        }
        (Kind::Stable, Some(bytes)) if bytes.0 < MEMORY_MIN => {
            diagnostics.add(path, format!("expected at least {MEMORY_MIN} bytes, got {}", bytes.0));
        }
        // Lists all kinds, so that a new kind does not compile until this match handles it.
        (Kind::Aging | Kind::Cuckoo | Kind::Exact, Some(_)) => {
            diagnostics.add(path, format!("remove it: only kind \"stable\" has a fixed memory size, got kind {:?}", raw.kind.name()));
        }
        (Kind::Aging | Kind::Cuckoo | Kind::Exact, None) | (Kind::Stable, _) => {}
    }
}

fn max_memory(filter: &Filter, window: Option<Window>, path: &str, diagnostics: &mut Diagnostics) {
    let at = |name: &str| format!("{path}.{name}");
    if filter.growth.max_bytes.is_none() {
        if filter.growth.at_max != AtMaxMemory::default() {
            diagnostics.add(&at("at_max_memory"), "has no effect without max_memory: remove it, or set max_memory");
        }
        return;
    }
    if !filter.kind.grows() {
        diagnostics.add(&at("max_memory"), format!("only kind \"aging\" has this option, got kind {:?}", filter.kind.name()));
    } else if filter.capacity.is_none_or(|keys| KEYS.contains(&keys))
        && filter.false_positive_rate >= RATE_MIN
        // The number of partitions is not known before the worker has connected to the brokers, so check for one partition.
        && let Some(problem) = window.and_then(|window| filter.memory_problem(window, 1))
    {
        diagnostics.add(&at("max_memory"), problem);
    }
}
