//! The partition of a seeded key.
//!
//! This module never guesses a partition, because a key that is seeded into the wrong partition is emitted again.

use super::Options;
use super::error::Fault;
use crate::config::{Partitioner, Topic};
use crate::follower::routing::partition_of;
use crate::key::{self, Fingerprint};

#[derive(Debug)]
pub(super) struct Placement {
    partitions: u32,
    is_repartitioned: bool,
    /// True if producers put the frame of a schema registry before the record key.
    is_framed: bool,
    partitioner: Option<Partitioner>,
    is_everywhere: bool,
}

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Place<'l> {
    /// The partition of the input that the record was read from.
    pub(super) partition: Option<i32>,
    pub(super) record_key: Option<&'l [u8]>,
}

impl Placement {
    pub(super) fn new(options: &Options, topic: &Topic, partitions: u32) -> Self {
        let is_framed = topic.formats.key().is_framed();
        Self {
            partitions,
            is_repartitioned: topic.repartition,
            is_framed,
            // Producers hash the record key with its frame. The file may have the key without the frame, so the partition cannot be
            // computed from the file.
            partitioner: options.partitioner.filter(|_| !is_framed),
            is_everywhere: options.every_partition,
        }
    }

    /// Returns the partition of a key, or `None` if the key goes into every partition.
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
            None if self.is_framed => Err(Fault::FramedKey),
            None => Err(Fault::NoPartition),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;

    /// Returns the partition of a key for a line with a record key, and for a line with a record key and a partition.
    fn placed(topic: &str, partitioner: Option<Partitioner>, every_partition: bool) -> [Result<Option<u32>, String>; 2] {
        let head = "[kafka]\nbootstrap_servers = \"localhost:1\"\n[[topics]]\ninput = \"in\"\noutput = \"out\"\nwindow = \"1h\"\n\
                    filter = { capacity = 1000 }\nkey = { record = \"key\" }";
        let config = Config::of_text(&format!("{head}\n{topic}"));
        let options = Options {
            format: crate::seed::Format::Csv,
            time: None,
            at: None,
            latest: 0,
            record_key: None,
            partitioner,
            every_partition,
            skip_invalid: false,
            max_keys: 1,
        };
        let placement = Placement::new(&options, &config.topics[0], 4);
        let places = [Place { partition: None, record_key: Some(b"kafka") }, Place { partition: Some(3), record_key: Some(b"kafka") }];
        places.map(|place| placement.of(Fingerprint(5), place).map_err(|fault| fault.to_string()))
    }

    #[test]
    fn partitioner_is_not_used_for_framed_record_keys() {
        let (murmur2, framed) = (Some(Partitioner::Murmur2), "key_format = \"json_schema\"");
        assert_eq!(placed("", murmur2, false), [Ok(Some((0xd067_cf64 & 0x7fff_ffff) % 4)), Ok(Some(3))]);
        for every_partition in [false, true] {
            let [by_key, by_partition] = placed(framed, murmur2, every_partition);
            assert_eq!(by_partition, Ok(Some(3)), "a capture of the input has the partition");
            match by_key {
                Ok(placed) => assert!(every_partition && placed.is_none(), "{placed:?}"),
                Err(fault) => assert!(!every_partition && fault.contains("--every-partition"), "{fault}"),
            }
        }
        assert_eq!(placed(&format!("{framed}\nrepartition = true"), murmur2, false)[0], Ok(Some(1)), "unseen hashes the fingerprint");
    }
}
