//! Detection of duplicates whose content differs from an earlier record with the same key. Such a duplicate suggests that the configured
//! key lacks a field.
//!
//! Reports such duplicates. [`crate::content`] does the comparison. Never changes a verdict or logs the content of a record.

use super::Shared;
use super::topics::{InputTopic, Topics};
use crate::broker::{Broker, Record};
use crate::content::PartitionKey;
use crate::key::{Fingerprint, ValueReader};
use crate::record::{TopicPartition, Verdict};

/// Stores the content of an unseen record, or of a duplicate if no content of an earlier record with its key is stored. Otherwise, compares
/// the content of a duplicate with the stored content. Forgets the content of a retracted key. Ignores keys that are not in the sample.
#[inline]
pub(super) fn watch<B: Broker>(
    shared: &Shared<B>,
    topic: &InputTopic,
    fingerprint: Fingerprint,
    verdict: Verdict,
    message: &impl Record,
    values: &mut ValueReader,
) {
    let key = PartitionKey { partition: message.partition(), fingerprint };
    if matches!(verdict, Verdict::Unseen | Verdict::Retracted) {
        // This record is now the latest record with its key. The other topics of the space forget the content of their earlier records,
        // because a later duplicate must not be compared with outdated content.
        for others in topic.compared_with.iter().filter_map(|others| shared.stats.topics[others.0].contents.as_ref()) {
            others.forget(key);
        }
    }
    let Some(contents) = &shared.stats.topics[topic.counted.0].contents else { return };
    let format = topic.config.formats.value();
    let differs = contents.take(key, verdict, || values.open(format, message.value(), message.headers(), &*shared.schemas));
    let Some((fields, number)) = differs else { return };
    // Log an example only when the count has doubled, to keep conflicts from filling the log.
    if number.is_power_of_two() {
        tracing::warn!(
            topic = message.topic(),
            partition = message.partition(),
            offset = message.offset(),
            fields = fields.join(", "),
            conflicts = number,
            "a duplicate has different content than an earlier record with its key; the key may lack a field. Run `unseen explain` to find the earlier record. If each change must be emitted, set emit = \"on_change\". If the fields may differ, add them to key_conflicts.except"
        );
    }
}

/// Forgets the content of records in partitions that are assigned or revoked, because another owner can emit later records with the same
/// keys.
pub(super) fn forget<B: Broker>(shared: &Shared<B>, topics: &Topics, partitions: &[TopicPartition]) {
    for partition in partitions {
        let rules = topics.find(&partition.topic).into_iter().flat_map(|topic| &topics[topic].of_input).map(|&rule| &topics[rule]);
        for topic in rules.filter(|topic| topic.forward.is_none()) {
            let contents = shared.stats.topics[topic.counted.0].contents.as_ref();
            if let Some(contents) = contents {
                contents.forget_partition(partition.partition);
            }
        }
    }
}
