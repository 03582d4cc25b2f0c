//! Which partition a key is of.
//!
//! Must never guess: a key in another partition than its records would be remembered in vain.

use super::Options;
use super::error::Fault;
use crate::config::Partitioner;
use crate::follower::routing::partition_of;
use crate::key::{self, Fingerprint};

/// How partitions are found.
#[derive(Debug)]
pub(super) struct Placement {
    partitions: u32,
    is_repartitioned: bool,
    partitioner: Option<Partitioner>,
    is_everywhere: bool,
}

/// What a line says of where its record was, or would have been.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Place<'l> {
    /// The partition of the input that it was read from.
    pub(super) partition: Option<i32>,
    pub(super) record_key: Option<&'l [u8]>,
}

impl Placement {
    pub(super) fn new(options: &Options, is_repartitioned: bool, partitions: u32) -> Self {
        Self { partitions, is_repartitioned, partitioner: options.partitioner, is_everywhere: options.every_partition }
    }

    /// The partition of a key; none if it is to be in all of them.
    pub(super) fn of(&self, fingerprint: Fingerprint, place: Place<'_>) -> Result<Option<u32>, Fault> {
        if self.is_repartitioned {
            return Ok(Some(key::partition(fingerprint, self.partitions)));
        }
        if let Some(partition) = place.partition {
            let known = u32::try_from(partition).ok().filter(|&number| number < self.partitions);
            return known.map(Some).ok_or(Fault::Partition { partition, partitions: self.partitions });
        }
        if self.partitions == 1 {
            return Ok(Some(0));
        }
        let by_key = || partition_of(self.partitioner?, place.record_key?, self.partitions);
        match by_key() {
            Some(partition) => Ok(Some(partition)),
            None if self.is_everywhere => Ok(None),
            None => Err(Fault::NoPartition),
        }
    }
}
