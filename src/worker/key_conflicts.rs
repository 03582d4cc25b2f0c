//! Duplicates whose content is not that of the record that they repeat: their key may lack a part.
//!
//! Owns what is said of them. [`crate::content`] compares. Must never change a verdict, nor say what is in a record.

use super::Shared;
use super::topics::InputTopic;
use crate::kafka::Message;
use crate::key::Fingerprint;
use crate::record::Verdict;

/// Compares a record with what it repeats, if its key is of the sample.
#[inline]
pub(super) fn watch(shared: &Shared, topic: &InputTopic, fingerprint: Fingerprint, verdict: Verdict, message: &Message<'_>) {
    let Some(contents) = &shared.stats.topics[topic.counted.0].contents else { return };
    let Some((fields, number)) = contents.take(fingerprint, verdict, message.value()) else { return };
    // An example each time that there are twice as many.
    if number.is_power_of_two() {
        tracing::warn!(
            topic = message.topic(),
            partition = message.partition(),
            offset = message.offset(),
            fields = fields.join(", "),
            conflicts = number,
            "a duplicate differs from the record that it repeats: is the key short of a part? `unseen explain` names the record that it repeats; key_conflicts.except names what may differ"
        );
    }
}
