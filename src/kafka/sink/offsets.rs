//! Offsets to be committed in a transaction.

use super::SinkError;
use crate::record::{Offset, TopicPartition};
use rdkafka::topic_partition_list::{Offset as Position, TopicPartitionList};

/// Offsets, each with its note, as librdkafka takes them.
pub(super) fn list(offsets: &[(TopicPartition, Offset, String)]) -> Result<TopicPartitionList, SinkError> {
    let mut list = TopicPartitionList::new();
    for (partition, offset, note) in offsets {
        let mut element = list.add_partition(&partition.topic, partition.partition);
        element
            .set_offset(Position::Offset(*offset))
            .map_err(|error| SinkError::Exit(format!("{partition} has an impossible offset: {error}")))?;
        element.set_metadata(note);
    }
    Ok(list)
}
