//! How far a changelog is in a state, and how much of it is still needed.
//!
//! Owns the positions that a changelog is read on from and trimmed by. They are stored with the state, so that a
//! worker that starts trims as the previous one did. Must never be found by the times of records: those are for Kafka.

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
    /// The id of the topic that the offsets are of. A recreated changelog has another. `None` if it is not known, as with
    /// brokers that have no topic ids, or in checkpoints of earlier builds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub topic_id: Option<String>,
    /// The offset after the last record that is in the state.
    pub end: Option<Offset>,
    /// The epoch of the last writer.
    pub epoch: i64,
    /// For slices, the offset from which on the changelog has all that was logged in that slice or later.
    starts: BTreeMap<Slice, Offset>,
}

impl Progress {
    /// Takes the id of the topic that is the changelog now, if it is known. Returns false if the offsets are of another topic:
    /// they are forgotten then.
    pub fn adopt(&mut self, topic_id: Option<&str>) -> bool {
        let Some(now) = topic_id else { return true };
        let is_same = self.topic_id.as_deref().is_none_or(|known| known == now);
        if !is_same {
            self.forget();
        }
        self.topic_id = Some(now.to_owned());
        is_same
    }

    /// The changelog is in the state up to the record at `last`, at which the state's clock was `clock`. Returns false if
    /// the record shows that the changelog was recreated: its offsets begin again.
    pub fn logged(&mut self, clock: Option<Slice>, last: Offset) -> bool {
        let is_same = self.end.is_none_or(|end| last >= end);
        if !is_same {
            self.topic_id = None;
            self.forget();
        }
        let first = self.end.replace(last + 1).unwrap_or(0);
        let untimed = if clock.is_some() { self.starts.remove(&UNTIMED) } else { None };
        // Keys that came before any time was known belong to the first slice that is.
        self.starts.entry(clock.unwrap_or(UNTIMED)).or_insert(untimed.unwrap_or(first));
        is_same
    }

    /// Forgets the offsets, because the state has nothing of the changelog any more, or they are of another topic.
    pub fn forget(&mut self) {
        self.end = None;
        self.starts.clear();
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

    /// Logs ten records in each of slices 0 to 3.
    fn four_slices() -> Progress {
        let mut progress = Progress::default();
        progress.adopt(Some("one"));
        for (last, clock) in (0..40).zip((0..4).flat_map(|slice| [slice; 10])) {
            assert!(progress.logged(Some(Slice(clock)), last));
        }
        progress
    }

    #[test]
    fn offsets_of_another_topic_are_forgotten() {
        let mut progress = four_slices();
        assert!(progress.adopt(Some("one")) && progress.adopt(None), "the same topic, or an unknown one");
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

    /// Without topic ids, a changelog that is recreated under a worker shows itself with the first commit.
    #[test]
    fn offsets_that_begin_again_are_of_another_topic() {
        let mut progress = four_slices();
        assert!(!progress.logged(Some(Slice(3)), 0));
        assert_eq!(progress.topic_id, None);
        for last in 1..80 {
            assert!(progress.logged(Some(Slice(3 + last / 20)), last));
        }
        assert_eq!((progress.needed_from(Slice(3)), progress.needed_from(Slice(4))), (Some(0), Some(20)));
    }
}
