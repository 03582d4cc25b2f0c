//! Offset commits, split into requests that the group coordinator can store.
//!
//! Limits the size of these requests. The coordinator writes all offsets of a request as one record batch and rejects the request if the
//! batch exceeds `max.message.bytes` of `__consumer_offsets` (1 MiB by default). This module never creates an empty request.

use super::error::next;
use super::{CALL_TIMEOUT, Sink, SinkError};
use crate::broker::{Broker, ErrorCode, MembershipOf, ProducerClient as _};
use crate::fault;
use crate::record::{Offset, TopicPartition};

pub(super) type OffsetToCommit = (TopicPartition, Offset, String);

/// The initial limit for the estimated size of a request in bytes: a quarter of the default `max.message.bytes` of `__consumer_offsets`.
pub(super) const REQUEST_BYTES_MAX: usize = 256 << 10;

/// The estimated size in bytes of a stored offset, without its group, topic, and metadata.
const OFFSET_BYTES: usize = 80;

/// The divisor of the maximum request size after the coordinator has rejected a request as too large.
const SHRINK: usize = 8;

/// Runs the fault point that follows the last write of a commit. Tests can make it fail.
pub(super) fn flushed() -> Result<(), String> {
    fault::step("commit.flushed")
}

/// Returns the next smaller limit, or `None` if requests with this limit already contain a single offset.
const fn smaller(limit: usize) -> Option<usize> {
    if limit <= OFFSET_BYTES { None } else { Some(limit / SHRINK) }
}

impl<B: Broker> Sink<B> {
    pub(super) fn offset_requests<'o>(&self, offsets: &'o [OffsetToCommit]) -> Vec<&'o [OffsetToCommit]> {
        split(offsets, self.group.len(), self.offset_request_bytes.get())
    }

    /// Adds the offsets to the open transaction, one call per request. librdkafka accepts any number of calls per transaction.
    pub(super) fn send_offsets(&self, requests: &[&[OffsetToCommit]], group: &MembershipOf<B>) -> Result<(), SinkError> {
        requests.iter().try_for_each(|request| {
            self.attempt(|| self.producer.send_offsets(request, group, CALL_TIMEOUT)).map_err(|error| match error.code {
                ErrorCode::OffsetsTooLarge => self.shrink_offset_requests(),
                // Kafka 4 rejects a request that is too large with `UNKNOWN_SERVER_ERROR`.
                ErrorCode::Unknown if request.len() > 1 => self.shrink_offset_requests(),
                _ => next(&error),
            })
        })
    }

    /// Lowers the limit for the next attempt, because the group coordinator rejected a request that may be too large. Returns the reaction.
    pub(super) fn shrink_offset_requests(&self) -> SinkError {
        let limit = self.offset_request_bytes.get();
        let Some(smaller) = smaller(limit) else {
            return SinkError::Exit(
                "the group coordinator rejected the offset commit of a single partition as too large; raise max.message.bytes of __consumer_offsets".to_owned(),
            );
        };
        self.offset_request_bytes.set(smaller);
        SinkError::Abort(format!(
            "the group coordinator rejected an offset commit, probably because it is too large; splitting it into requests of about {smaller} bytes"
        ))
    }
}

/// Splits offsets into requests of at most `limit` estimated bytes each. An offset that exceeds the limit gets its own request.
fn split(offsets: &[OffsetToCommit], group_bytes: usize, limit: usize) -> Vec<&[OffsetToCommit]> {
    let (mut requests, mut start, mut bytes) = (Vec::new(), 0, 0);
    for (at, (partition, _, metadata)) in offsets.iter().enumerate() {
        let more = OFFSET_BYTES + group_bytes + partition.topic.len() + metadata.len();
        if at > start && bytes + more > limit {
            requests.push(&offsets[start..at]);
            (start, bytes) = (at, 0);
        }
        bytes += more;
    }
    if start < offsets.len() {
        requests.push(&offsets[start..]);
    }
    requests
}

#[cfg(test)]
mod tests {
    use super::*;

    fn offsets(count: i32, topic_bytes: usize, metadata_bytes: usize) -> Vec<OffsetToCommit> {
        let of = |partition| (TopicPartition { topic: "t".repeat(topic_bytes), partition }, 7, "m".repeat(metadata_bytes));
        (0..count).map(of).collect()
    }

    #[test]
    fn every_offset_is_in_exactly_one_request_in_order() {
        for (count, limit) in [(0, 1000), (1, 1000), (1, 1), (9, 1000), (10, 1000), (11, 1000), (1000, 1), (10_000, REQUEST_BYTES_MAX)] {
            let all = offsets(count, 9, 10);
            let requests = split(&all, 1, limit);
            assert!(requests.iter().all(|request| !request.is_empty()), "{count} by {limit}");
            assert_eq!(requests.concat(), all, "{count} by {limit}");
        }
    }

    #[test]
    fn requests_stay_within_the_limit_for_any_names_and_metadata() {
        for (topic, metadata, group) in [(1, 0, 1), (249, 110, 249), (249, 4096, 249)] {
            let all = offsets(10_000, topic, metadata);
            let requests = split(&all, group, REQUEST_BYTES_MAX);
            let each = OFFSET_BYTES + group + topic + metadata;
            assert!(requests.iter().all(|request| request.len() * each <= REQUEST_BYTES_MAX), "{topic} {metadata} {group}");
            assert_eq!(requests.len(), all.len().div_ceil(REQUEST_BYTES_MAX / each), "no more requests than needed");
        }
    }

    #[test]
    fn an_offset_larger_than_the_limit_is_sent_alone() {
        let mut all = offsets(3, 1, 10);
        all[1].2 = "m".repeat(2000);
        assert_eq!(split(&all, 1, 1000).iter().map(|request| request.len()).collect::<Vec<_>>(), [1, 1, 1]);
    }

    #[test]
    fn limits_shrink_to_one_offset_per_request_and_then_end() {
        let limits: Vec<_> = std::iter::successors(Some(REQUEST_BYTES_MAX), |&limit| smaller(limit)).collect();
        let last = limits[limits.len() - 1];
        assert!(limits.len() < 8, "{limits:?}");
        assert_eq!(split(&offsets(5, 1, 0), 1, last).len(), 5);
    }
}
