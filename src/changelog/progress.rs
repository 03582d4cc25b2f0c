//! The part of a changelog that a state contains, and the part that is still needed.
//!
//! Keeps the offsets for reading and trimming a changelog. Checkpoints contain these offsets, so the next owner continues trimming. Never
//! derives offsets from record timestamps, because Kafka can change the timestamps.

use crate::filter::Slice;
use crate::record::Offset;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The unknown slice of keys that were judged before the first timestamp.
const UNTIMED: Slice = Slice(i64::MIN);

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Progress {
    /// The id of the topic that the offsets belong to. A recreated changelog has a different id. `None` if the id is not known yet, or if
    /// the brokers have no topic ids.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub topic_id: Option<String>,
    /// The offset after the last changelog record whose effect is in the state.
    pub end: Option<Offset>,
    /// The highest epoch of the changelog records below `end`.
    pub epoch: i64,
    /// The start of each slice in the changelog: all records that were logged in the slice or later are at or after this offset.
    starts: BTreeMap<Slice, Offset>,
}

impl Progress {
    /// Sets the current id of the changelog topic, if known. If the offsets belong to a different topic, forgets them and returns false.
    pub fn adopt(&mut self, topic_id: Option<&str>) -> bool {
        let Some(now) = topic_id else { return true };
        let is_same = self.topic_id.as_deref().is_none_or(|known| known == now);
        if !is_same {
            self.forget();
        }
        self.topic_id = Some(now.to_owned());
        is_same
    }

    /// Moves `end` past the changelog record at offset `last`, because the state contains the effect of this record. `clock` is the state's
    /// [clock](crate::dedup::Dedup::clock) at that record. If `last` is below `end`, the changelog was recreated: forgets the earlier
    /// offsets and returns false.
    pub fn logged(&mut self, clock: Option<Slice>, last: Offset) -> bool {
        let is_same = self.end.is_none_or(|end| last >= end);
        if !is_same {
            self.topic_id = None;
            self.forget();
        }
        let first = self.end.replace(last + 1).unwrap_or(0);
        let untimed = if clock.is_some() { self.starts.remove(&UNTIMED) } else { None };
        // Keys from before the first timestamp belong to the slice of that timestamp.
        self.starts.entry(clock.unwrap_or(UNTIMED)).or_insert(untimed.unwrap_or(first));
        is_same
    }

    /// Forgets the offsets, because the state no longer contains any of the changelog, or because they belong to a different topic.
    pub fn forget(&mut self) {
        self.end = None;
        self.starts.clear();
    }

    #[must_use]
    pub fn begins_before(&self, slice: Slice) -> bool {
        self.starts.first_key_value().is_some_and(|(&first, _)| first != UNTIMED && first < slice)
    }

    /// Returns the first changelog offset that is needed for slices from `oldest` on. Returns `None` if the known slices are all later or
    /// all earlier than `oldest`, or if the slice of the first keys is unknown.
    pub fn needed_from(&mut self, oldest: Slice) -> Option<Offset> {
        if self.starts.first_key_value().is_none_or(|(&first, _)| first > oldest || first == UNTIMED) {
            return None;
        }
        // Drops entries of expired slices to keep at most one entry per slice of the window.
        self.starts = self.starts.split_off(&oldest);
        self.starts.first_key_value().map(|(_, &from)| from)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_of_a_slice_and_of_later_slices_are_kept() {
        let mut progress = Progress::default();
        for (clock, last) in [(0, 4), (0, 9), (2, 14), (3, 19)] {
            progress.logged(Some(Slice(clock)), last);
        }
        assert_eq!(progress.needed_from(Slice(-1)), None, "nothing has expired");
        assert_eq!(progress.needed_from(Slice(0)), Some(0));
        // The commit that ended in slice 2 may contain keys of slice 1.
        assert_eq!(progress.needed_from(Slice(1)), Some(10));
        let mut stored: Progress = serde_json::from_str(&serde_json::to_string(&progress).unwrap()).unwrap();
        assert_eq!(stored, progress);
        assert_eq!(stored.needed_from(Slice(3)), Some(15));
        assert_eq!(stored.end, Some(20));
    }

    #[test]
    fn keys_without_a_timestamp_belong_to_the_first_slice() {
        let mut progress = Progress::default();
        progress.logged(None, 4);
        progress.logged(None, 9);
        assert_eq!(progress.needed_from(Slice(7)), None);
        progress.logged(Some(Slice(7)), 14);
        progress.logged(Some(Slice(8)), 19);
        assert_eq!(progress.needed_from(Slice(7)), Some(0));
        assert_eq!(progress.needed_from(Slice(8)), Some(15));
    }

    fn four_slices() -> Progress {
        let mut progress = Progress::default();
        progress.adopt(Some("one"));
        for (last, clock) in (0..40).zip((0..4).flat_map(|slice| [slice; 10])) {
            assert!(progress.logged(Some(Slice(clock)), last));
        }
        progress
    }

    #[test]
    fn offsets_of_a_different_topic_are_forgotten() {
        let mut progress = four_slices();
        assert!(progress.adopt(Some("one")) && progress.adopt(None), "same topic, or unknown topic");
        assert_eq!(progress, four_slices());
        assert!(!progress.adopt(Some("two")));
        assert_eq!((progress.end, progress.needed_from(Slice(3))), (None, None));
        progress.logged(Some(Slice(3)), 30);
        progress.logged(Some(Slice(4)), 60);
        assert_eq!((progress.needed_from(Slice(3)), progress.needed_from(Slice(4))), (Some(0), Some(31)));
    }

    #[test]
    fn a_checkpoint_without_a_topic_id_keeps_its_offsets() {
        let stored = r#"{"end":40,"epoch":7,"starts":{"3":30}}"#;
        let mut progress: Progress = serde_json::from_str(stored).unwrap();
        assert_eq!(serde_json::to_string(&progress).unwrap(), stored);
        assert!(progress.adopt(Some("one")));
        assert_eq!((progress.end, progress.needed_from(Slice(3))), (Some(40), Some(30)));
    }

    /// Without topic ids, a recreated changelog is detected at the first commit.
    #[test]
    fn offsets_that_restart_show_a_recreated_topic() {
        let mut progress = four_slices();
        assert!(!progress.logged(Some(Slice(3)), 0));
        assert_eq!(progress.topic_id, None);
        for last in 1..80 {
            assert!(progress.logged(Some(Slice(3 + last / 20)), last));
        }
        assert_eq!((progress.needed_from(Slice(3)), progress.needed_from(Slice(4))), (Some(0), Some(20)));
    }
}
