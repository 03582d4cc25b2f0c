//! The output topics of an input.
//!
//! Chooses the output partition. Never chooses the output topic, because [`crate::route`] has already chosen the topic by the verdict.

use crate::broker::{Cluster, Record, Target};
use crate::config::Topic;
use crate::key::{self, Fingerprint};
use crate::route::Destination;

#[derive(Debug)]
struct Output {
    topic: String,
    /// True if records keep their partition number, because the output does not have fewer partitions than the input.
    same_partition: bool,
}

#[derive(Debug)]
pub(super) struct Outputs {
    output: Option<Output>,
    duplicates: Option<Output>,
    dead_letters: Option<Output>,
}

impl Outputs {
    pub(super) fn new(topic: &Topic, cluster: &Cluster) -> Self {
        let count = |name: &str| cluster.partitions.get(name).copied().unwrap_or(0);
        let output = |destination: Destination| {
            let name = destination.name(topic)?;
            Some(Output { topic: name.to_owned(), same_partition: count(name) >= count(&topic.input) })
        };
        Self {
            output: output(Destination::Output),
            duplicates: output(Destination::Duplicates),
            dead_letters: output(Destination::DeadLetters),
        }
    }

    /// Returns the topic and partition for a record with this destination, or `None` if the destination is not configured.
    #[inline]
    pub(super) fn target(&self, destination: Destination, message: &impl Record) -> Option<Target<'_>> {
        let output = match destination {
            Destination::Output => &self.output,
            Destination::Duplicates => &self.duplicates,
            Destination::DeadLetters => &self.dead_letters,
        };
        let Output { topic, same_partition } = output.as_ref()?;
        Some(Target { topic, partition: same_partition.then(|| message.partition()) })
    }
}

/// A repartition topic, which is partitioned by the extracted key.
pub(super) struct Forward {
    pub(super) topic: String,
    pub(super) partitions: u32,
}

impl Forward {
    #[inline]
    pub(super) fn target(&self, fingerprint: Fingerprint) -> Target<'_> {
        Target { topic: &self.topic, partition: Some(key::partition(fingerprint, self.partitions).cast_signed()) }
    }
}
