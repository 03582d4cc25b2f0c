//! The rules of a key space. The bits of a stored state depend on the window, the kind of filter, the size of a `stable` filter, `exact`,
//! and `emit`. If one of these rules changes, a stored state cannot be used. `late` and `refresh` can change.

use super::Emit;
use crate::filter::{Exact, Filter, Slice, Spec, Window};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The action for a record that is older than the window and was not seen within it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Late {
    /// Emit the record like an unseen record, so that no data is lost.
    #[default]
    Emit,
    /// Drop the record.
    Drop,
    /// Write the record to the topic's dead-letter topic.
    DeadLetter,
}

/// The rules of one key space.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rules {
    /// The lifetime of a seen key: a time or a number of keys.
    pub window: Window,
    /// The kind and size of a partition's filter, or `None` if there is only an exact store.
    pub filter: Option<Spec>,
    /// True if there is an exact store, which either decides alone or confirms keys that the filter reports as seen.
    pub exact: bool,
    /// True if a duplicate renews the window of its key. A key that occurs at least once per window is then never emitted again.
    pub refresh: bool,
    /// The action for a late record: a record that is older than the window and has an unseen key.
    pub late: Late,
    /// The records of a key that are emitted. [`Emit::OnChange`] requires an exact store without a filter.
    pub emit: Emit,
}

impl Rules {
    /// True if keys expire slice by slice. If false, the filter forgets keys at random.
    #[must_use]
    pub fn is_sliced(&self) -> bool {
        self.exact || self.filter.is_some_and(|spec| spec.kind().properties().keeps_window)
    }

    /// True if retractions delete keys from the filter, because there is no exact store. The filter may then delete a copy of a different
    /// key.
    #[must_use]
    pub fn retracts_by_filter(&self) -> bool {
        !self.exact && self.filter.is_some_and(|spec| spec.kind().properties().can_retract)
    }

    /// Returns the number of keys that a partition's filter is planned to remember at a time. `None` if there is only an exact store.
    #[must_use]
    pub fn capacity(&self) -> Option<u64> {
        self.filter.map(|spec| spec.capacity(self.window))
    }

    /// Returns the filter's window. If there is an exact store, it counts the keys of a slice for the filter in a window by count, so the
    /// filter's own slices have no limit.
    pub(super) const fn filter_window(&self) -> Window {
        match self.window {
            Window::Keys { slices, .. } if self.exact => Window::Keys { slice_keys: u64::MAX, slices },
            window => window,
        }
    }

    pub(super) fn exact_store(&self) -> Exact {
        let exact = Exact::new(self.window);
        if self.emit == Emit::OnChange { exact.with_contents() } else { exact }
    }

    /// Returns the expiry clock of a filter without an exact store. `None` in a window by time until the first time is known, except for a
    /// `stable` filter.
    pub(super) fn expiry_clock(&self, filter: &dyn Filter) -> Option<Slice> {
        if self.is_sliced() { filter.slice() } else { Some(filter.expiry_clock()) }
    }
}
