//! What remembers a topic's keys: kind, size, and what may become of them.

use super::error::{Diagnostics, integer};
use super::kind::Kind;
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

    /// What is wrong with `max_memory` for a topic of so many partitions, if anything: a bound that filters do not even keep at
    /// capacity is a slip. Each partition has an equal part of the memory, and whole blocks; and a window by count in full.
    #[must_use]
    pub fn memory_problem(&self, window: Window, partitions: u32) -> Option<String> {
        let most = self.growth.max_bytes?;
        let needed = self.spec(window, partitions)?.bytes(window).saturating_mul(partitions.max(1).into());
        if needed <= most {
            return None;
        }
        let subject = match (window, partitions) {
            (_, 0 | 1) => "the filter takes".to_owned(),
            (Window::Time { .. }, _) => format!("the filters of {partitions} partitions take"),
            (Window::Keys { .. }, _) => {
                return Some(format!(
                    "the {partitions} partitions each keep a window by count, which takes {needed} bytes in all, got {most}; raise it, or lower the window's keys"
                ));
            }
        };
        Some(format!(
            "{subject} {needed} bytes at capacity, got {most}; raise it, or lower capacity, or allow a higher false_positive_rate"
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
        let Self { kind, capacity: _, false_positive_rate: _, memory, confirm: _, growth: Growth { adapt: _, max_bytes: _, at_max: _ } } =
            self;
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
    if raw.confirm.0 && raw.kind == Kind::Exact {
        diagnostics.add(&at("confirm"), "not for kind \"exact\", which is never wrong");
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
