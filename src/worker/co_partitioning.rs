//! Detection of keys that occur in more than one partition. Duplicates across partitions are emitted, because each partition has its own
//! state.
//!
//! Keeps a sample of the keys that were unseen in this process, with their partitions. The sample takes one key in 1,024 by fingerprint, so
//! all workers sample the same keys. Never changes a verdict.

use super::topics::InputTopic;
use crate::dedup::Emit;
use crate::key::Fingerprint;
use crate::record::SpaceId;
use crate::stats::Stats;
use std::collections::{HashMap, VecDeque};
use std::sync::atomic::Ordering;
use std::sync::{Mutex, PoisonError};

const SAMPLE: u128 = 1024;
/// The maximum number of sampled keys. They use a few megabytes. If the sample is full, a new key replaces the oldest key.
const KEYS_MAX: usize = 1 << 16;

#[derive(Debug, Default)]
pub struct CrossPartitionKeys(Mutex<Seen>);

#[derive(Debug, Default)]
struct Seen {
    partitions: HashMap<(SpaceId, Fingerprint), i32>,
    order: VecDeque<(SpaceId, Fingerprint)>,
}

impl CrossPartitionKeys {
    /// Stores the partition of an unseen key, if the key is in the sample. If the key was last unseen in a different partition, returns
    /// that partition.
    #[inline]
    pub(super) fn seen(&self, space: SpaceId, fingerprint: Fingerprint, emit: Emit, partition: i32) -> Option<i32> {
        // The low bits of a fingerprint come from the key, even if the high half is a hash of the content. So the content does not affect
        // the sample.
        if !fingerprint.0.is_multiple_of(SAMPLE) {
            return None;
        }
        let mut seen = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let key = (space, emit.key_of(fingerprint));
        if let Some(before) = seen.partitions.insert(key, partition) {
            return Some(before).filter(|&before| before != partition);
        }
        seen.order.push_back(key);
        if seen.order.len() > KEYS_MAX
            && let Some(oldest) = seen.order.pop_front()
        {
            seen.partitions.remove(&oldest);
        }
        None
    }
}

/// Counts a sampled key that was last unseen in another partition. Logs the first such key of a space.
#[inline]
pub(super) fn watch(keys: &CrossPartitionKeys, stats: &Stats, topic: &InputTopic, fingerprint: Fingerprint, partition: i32) {
    let Some(other) = keys.seen(topic.space, fingerprint, topic.config.emit(), partition) else { return };
    if stats.spaces[topic.space.0].cross_partition_keys.fetch_add(1, Ordering::Relaxed) == 0 {
        tracing::warn!(
            space = topic.config.space,
            partition,
            other_partition = other,
            "the same key arrived in two partitions; duplicates in different partitions are not detected. If partitions were added to the topic, keys have moved. Otherwise, make the producers partition by the key, or set repartition = true (logged once per space)"
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_in_two_partitions_is_detected_and_the_sample_is_bounded() {
        let cross_partition_keys = CrossPartitionKeys::default();
        let key = |number: usize| Fingerprint(number as u128 * SAMPLE);
        assert_eq!(cross_partition_keys.seen(SpaceId(0), key(1), Emit::First, 3), None);
        assert_eq!(cross_partition_keys.seen(SpaceId(0), key(1), Emit::First, 3), None, "emitted again after its window");
        assert_eq!(cross_partition_keys.seen(SpaceId(1), key(1), Emit::First, 2), None, "another space");
        assert_eq!(cross_partition_keys.seen(SpaceId(0), key(1), Emit::First, 2), Some(3));
        assert_eq!(cross_partition_keys.seen(SpaceId(0), Fingerprint(1), Emit::First, 0), None);
        assert_eq!(cross_partition_keys.seen(SpaceId(0), Fingerprint(1), Emit::First, 1), None, "not sampled");
        let contents = [1, 2].map(|content| Fingerprint(content << 64 | key(7).0));
        assert_eq!(cross_partition_keys.seen(SpaceId(0), contents[0], Emit::OnChange, 0), None);
        assert_eq!(cross_partition_keys.seen(SpaceId(0), contents[1], Emit::OnChange, 1), Some(0), "the key counts, and not its content");
        for number in 0..=KEYS_MAX {
            cross_partition_keys.seen(SpaceId(2), key(number), Emit::First, 0);
        }
        let seen = cross_partition_keys.0.lock().unwrap();
        assert!(seen.order.len() == KEYS_MAX && seen.partitions.len() == KEYS_MAX);
    }
}
