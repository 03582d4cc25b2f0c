//! How far a changelog is in a state, and how much of it is still needed.
//!
//! Owns the positions that a changelog is read on from and trimmed by. They are stored with the state, so that a
//! worker that starts trims as the one before did. Must never be found by the times of records: those are for Kafka.

use crate::filter::Slice;
use crate::record::Offset;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Stands for the keys that were judged before any time was known.
const UNTIMED: Slice = Slice(i64::MIN);

/// How far a changelog is in a state.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Progress {
    /// The offset behind the last record that is in it.
    pub end: Option<Offset>,
    /// The epoch of whoever wrote last.
    pub epoch: i64,
    /// For slices, the offset from which on the changelog has all that was logged in that slice or later.
    starts: BTreeMap<Slice, Offset>,
}

impl Progress {
    /// The changelog is in the state up to the record at `last`, which the state's clock had come to `clock` with.
    pub fn logged(&mut self, clock: Option<Slice>, last: Offset) {
        let first = self.end.replace(last + 1).unwrap_or(0);
        let untimed = if clock.is_some() { self.starts.remove(&UNTIMED) } else { None };
        // Keys that came before any time was known belong to the first slice that is.
        self.starts.entry(clock.unwrap_or(UNTIMED)).or_insert(untimed.unwrap_or(first));
    }

    /// The offset below which nothing was logged in slice `oldest` or later; `None` while that is not known.
    pub fn needed_from(&mut self, oldest: Slice) -> Option<Offset> {
        if self.starts.first_key_value().is_none_or(|(&first, _)| first > oldest || first == UNTIMED) {
            return None;
        }
        // At most as many are left as a window has slices.
        self.starts = self.starts.split_off(&oldest);
        self.starts.first_key_value().map(|(_, &from)| from)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_slice_or_a_later_one_has_is_kept() {
        let mut progress = Progress::default();
        for (clock, last) in [(0, 4), (0, 9), (2, 14), (3, 19)] {
            progress.logged(Some(Slice(clock)), last);
        }
        assert_eq!(progress.needed_from(Slice(-1)), None, "nothing has expired");
        assert_eq!(progress.needed_from(Slice(0)), Some(0));
        // The commit that ended in slice 2 may hold keys of slice 1.
        assert_eq!(progress.needed_from(Slice(1)), Some(10));
        let mut stored: Progress = serde_json::from_str(&serde_json::to_string(&progress).unwrap()).unwrap();
        assert_eq!(stored, progress);
        assert_eq!(stored.needed_from(Slice(3)), Some(15));
        assert_eq!(stored.end, Some(20));
    }

    #[test]
    fn keys_without_time_belong_to_the_first_slice() {
        let mut progress = Progress::default();
        progress.logged(None, 4);
        progress.logged(None, 9);
        assert_eq!(progress.needed_from(Slice(7)), None);
        progress.logged(Some(Slice(7)), 14);
        progress.logged(Some(Slice(8)), 19);
        assert_eq!(progress.needed_from(Slice(7)), Some(0));
        assert_eq!(progress.needed_from(Slice(8)), Some(15));
    }
}
