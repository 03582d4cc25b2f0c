//! The filter of a topic: its kind, its size, and how it grows.

use super::error::{Diagnostics, integer};
use super::raw;
use super::units::{KEYS, Length};
use crate::filter::{AtMaxMemory, Demand, Growth, Kind, Size, Spec, Window};
use std::fmt;
use std::sync::{Mutex, PoisonError};

/// The lowest supported false-positive rate. Filters would not be sized correctly for lower rates.
pub(super) const RATE_MIN: f64 = 1e-9;

/// The filter that stores the seen keys of a topic.
#[derive(Clone, Debug, PartialEq)]
pub struct Filter {
    /// The kind of filter, such as `aging`.
    pub kind: Kind,
    /// Number of distinct keys of the whole topic in a window. `None` for a window by count, because its number of keys is the capacity,
    /// and for kinds without a capacity.
    pub capacity: Option<u64>,
    /// Maximum share of unseen keys that the filter reports as seen by mistake while the number of keys does not exceed the capacity. Kinds
    /// that are sized by memory keep this share with any number of keys.
    pub false_positive_rate: f64,
    /// Memory for the whole topic in bytes. `None` for kinds that are not sized by memory.
    pub memory: Option<u64>,
    /// True if a key that the filter reports as seen is looked up in an exact store before the record counts as a duplicate.
    pub confirm: bool,
    /// The settings for the growth of the filter's memory. `max_bytes` is the limit for the whole topic.
    pub growth: Growth,
}

/// Sizes a filter by its memory and caches the result, because the computation takes tens of milliseconds, and all worker threads need the
/// same result.
fn sized_by_memory(kind: Kind, window: Window, demand: &Demand) -> Option<Spec> {
    static SIZED: Mutex<Vec<(Kind, u64, u64, Spec)>> = Mutex::new(Vec::new());
    let mut sized = SIZED.lock().unwrap_or_else(PoisonError::into_inner);
    let (bytes, rate) = (demand.bytes, demand.rate.to_bits());
    if let Some(known) = sized.iter().find(|known| (known.0, known.1, known.2) == (kind, bytes, rate)) {
        return Some(known.3);
    }
    let spec = kind.spec(window, demand)?;
    sized.push((kind, bytes, rate, spec));
    Some(spec)
}

impl Filter {
    /// Returns the filter of one partition, or `None` if this kind of filter has no part in memory. With a window by time, each of the
    /// `partitions` partitions gets an equal share of the topic's capacity. With a window by count, each partition gets the full capacity,
    /// because each partition has its own window with this number of keys.
    #[must_use]
    pub fn spec(&self, window: Window, partitions: u32) -> Option<Spec> {
        let partitions = u64::from(partitions.max(1));
        let keys = match (self.capacity, window) {
            (Some(capacity), Window::Time { .. }) => capacity.div_ceil(partitions),
            (_, Window::Keys { slice_keys, slices }) => slice_keys.saturating_mul(slices.into()),
            (None, Window::Time { .. }) => 1,
        };
        let share = |bytes: u64| bytes / partitions;
        let demand = Demand {
            keys,
            rate: self.false_positive_rate,
            bytes: share(self.memory.unwrap_or_default()),
            growth: Growth { max_bytes: self.growth.max_bytes.map(share), ..self.growth },
        };
        match self.kind.properties().size {
            Size::Capacity => self.kind.spec(window, &demand),
            Size::Memory { .. } => sized_by_memory(self.kind, window, &demand),
            Size::Disk => None,
        }
    }

    /// Returns an error message if the filters of all `partitions` partitions together need more than `max_memory` at capacity. The total
    /// depends on `partitions`, because the size of each filter is rounded up to whole blocks. With a window by count, each partition also
    /// needs the full capacity.
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
                    "each of the {partitions} partitions keeps a whole window by count, and together they need {needed} bytes, but max_memory is {most} bytes; raise max_memory, or lower the window's keys"
                ));
            }
        };
        Some(format!(
            "{subject} {needed} bytes at capacity, but max_memory is {most} bytes; raise max_memory, lower capacity (or the window's keys), or allow a higher false_positive_rate"
        ))
    }

    /// True if an exact store on disk confirms the filter's answers or replaces the filter.
    #[must_use]
    pub fn is_exact(&self) -> bool {
        self.confirm || self.kind.is_on_disk()
    }

    /// True if the topic can have retractions, because its exact store or its kind of filter can delete a key.
    #[must_use]
    pub fn can_retract(&self) -> bool {
        self.is_exact() || self.kind.properties().can_retract
    }
}

impl fmt::Display for Filter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // This text is stored with the state, and a worker reuses the state only if the text is still the same. The `let` names all fields,
        // so the compiler reports each new field until this function handles it.
        let Self { kind, capacity: _, false_positive_rate: _, memory, confirm: _, growth: Growth { adapt: _, max_bytes: _, at_max: _ } } =
            self;
        f.write_str(kind.name())?;
        if let Some(memory) = memory {
            // The layout of a filter that is sized by memory depends on the memory and the rate and cannot be changed later, so its state
            // is valid only for the same memory and rate.
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
    if raw.confirm.0 && raw.kind.is_on_disk() {
        diagnostics.add(&at("confirm"), format!("remove it: kind {:?} has no false positives to confirm", raw.kind.name()));
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
    let has_capacity = raw.kind.properties().size == Size::Capacity;
    match (length, raw.capacity) {
        (_, Some(_)) if !has_capacity => diagnostics.add(path, format!("remove it: kind {:?} has no capacity", raw.kind.name())),
        (Some(Length::Time(_)), None) if has_capacity && !diagnostics.knows(path) => {
            diagnostics.add(path, "required: the number of distinct keys in a window, such as \"10M\"");
        }
        (Some(Length::Keys(_)), Some(_)) => diagnostics.add(path, "remove it: the capacity of a window by count is its number of keys"),
        (_, Some(keys)) => integer(keys.0, &KEYS, path, diagnostics),
        _ => {}
    }
}

fn memory(raw: &raw::Filter, path: &str, diagnostics: &mut Diagnostics) {
    let name = raw.kind.name();
    match (raw.kind.properties().size, raw.memory) {
        (Size::Memory { .. }, None) if !diagnostics.knows(path) => {
            diagnostics.add(path, format!("required for kind {name:?}: the memory for the whole topic, such as \"64MiB\""));
        }
        (Size::Memory { least }, Some(bytes)) if bytes.0 < least => {
            diagnostics.add(path, format!("expected at least {least} bytes, got {}", bytes.0));
        }
        (Size::Capacity | Size::Disk, Some(_)) => {
            let fixed = Kind::list('"', |kind| matches!(kind.size, Size::Memory { .. }));
            diagnostics.add(path, format!("remove it: only kind {fixed} has a fixed memory size, got kind {name:?}"));
        }
        _ => {}
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
    if !filter.kind.properties().grows {
        let growing = Kind::list('"', |kind| kind.grows);
        diagnostics.add(&at("max_memory"), format!("only kind {growing} has this option, got kind {:?}", filter.kind.name()));
    } else if filter.capacity.is_none_or(|keys| KEYS.contains(&keys))
        && filter.false_positive_rate >= RATE_MIN
        // The number of partitions is not known before the worker has connected to the brokers, so check for one partition.
        && let Some(problem) = window.and_then(|window| filter.memory_problem(window, 1))
    {
        diagnostics.add(&at("max_memory"), problem);
    }
}
