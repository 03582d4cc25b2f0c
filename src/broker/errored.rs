//! Partitions whose last fetch failed.
//!
//! Decides when the worker seeks these partitions back to their positions. Records that arrive before the seek may follow a gap, so this
//! module never forgets a partition by itself.

use crate::record::TopicPartition;
use std::time::{Duration, Instant};

/// The delay before a partition with an error is fetched again.
const BACKOFF: Duration = Duration::from_millis(500);

/// Partitions with a fetch error, each with the time of its next seek. librdkafka skips corrupt batches, and its position moves past an
/// error as if the error were a record. The next records may therefore follow a gap, so the client drops all records of a partition from
/// the error until the seek.
#[derive(Default)]
pub(crate) struct Errored(Vec<(TopicPartition, Instant)>);

impl Errored {
    pub(crate) const fn any(&self) -> bool {
        !self.0.is_empty()
    }

    pub(crate) fn contains(&self, topic: &str, partition: i32) -> bool {
        self.0.iter().any(|(errored, _)| errored.partition == partition && errored.topic == topic)
    }

    pub(crate) fn add(&mut self, partition: TopicPartition, now: Instant) {
        self.0.push((partition, now + BACKOFF));
    }

    /// Returns the partitions whose backoff is over. Starts another backoff for them, in case the seek fails.
    pub(crate) fn due(&mut self, now: Instant) -> Vec<TopicPartition> {
        let due = self.0.iter_mut().filter(|(_, due)| *due <= now);
        due.map(|(partition, due)| {
            *due = now + BACKOFF;
            partition.clone()
        })
        .collect()
    }

    /// Removes the partitions that `of` selects. Call this method after a seek, an assignment, or a revocation.
    pub(crate) fn forget(&mut self, of: impl Fn(&TopicPartition) -> bool) {
        self.0.retain(|(partition, _)| !of(partition));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errored_partitions_are_due_after_the_backoff_until_they_are_forgotten() {
        let of = |partition| TopicPartition { topic: "in".to_owned(), partition };
        let (mut errored, start) = (Errored::default(), Instant::now());
        errored.add(of(1), start);
        errored.add(of(2), start + BACKOFF / 2);
        assert!(errored.contains("in", 1) && !errored.contains("in", 3) && !errored.contains("other", 1));
        assert_eq!(errored.due(start), []);
        assert_eq!(errored.due(start + BACKOFF), [of(1)]);
        assert_eq!(errored.due(start + 2 * BACKOFF), [of(1), of(2)], "a failed seek is due again");
        errored.forget(|partition| *partition == of(1));
        assert!(!errored.contains("in", 1) && errored.contains("in", 2) && errored.any());
    }
}
