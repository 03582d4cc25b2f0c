//! The partition of a key, if it can be computed.
//!
//! Implements the hashes that producers use to choose a partition. This module never guesses, because a lookup in the wrong partition would
//! report a seen key as unseen.

use crate::config::{KeySpace, Partitioner, Topic};
use crate::key::{Fingerprint, Part};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Routing {
    /// The key may be in any partition.
    Any,
    /// unseen chose the partition by the fingerprint (`repartition = true`).
    Repartitioned,
    /// The producer chose the partition by the record key, which is a part of the key.
    ByRecordKey(Partitioner),
}

impl Routing {
    pub(super) fn new(space: &KeySpace<'_>, partitioner: Option<Partitioner>) -> Self {
        // Producers hash the record key as they send it, with the frame of a schema registry. A query has the record key without its frame,
        // so the partition of a framed key cannot be computed.
        let has_bare_record_key = |topic: &&Topic| topic.key.parts().contains(&Part::RecordKey) && !topic.formats.key().is_framed();
        match partitioner {
            _ if space.topics.iter().all(|topic| topic.repartition) => Self::Repartitioned,
            Some(partitioner) if space.topics.iter().all(has_bare_record_key) => Self::ByRecordKey(partitioner),
            _ => Self::Any,
        }
    }

    /// Returns the partition of a key, or `None` if it cannot be computed. `record_key` is the record key, if the key contains it.
    pub(super) fn partition(self, fingerprint: Fingerprint, record_key: Option<&[u8]>, partitions: u32) -> Option<u32> {
        match (self, record_key) {
            (Self::Repartitioned, _) => Some(crate::key::partition(fingerprint, partitions)),
            (Self::ByRecordKey(partitioner), Some(key)) => partition_of(partitioner, key, partitions),
            _ => None,
        }
    }
}

/// Returns the partition that a producer with this partitioner chooses for a record key, or `None` if the choice is random.
pub(crate) fn partition_of(partitioner: Partitioner, key: &[u8], partitions: u32) -> Option<u32> {
    let partitions = partitions.max(1);
    match partitioner {
        Partitioner::Murmur2 => Some((murmur2(key) & 0x7fff_ffff) % partitions),
        // librdkafka sends a record with an empty key to a random partition.
        Partitioner::Crc32 if key.is_empty() => None,
        Partitioner::Crc32 => Some(crc32(key) % partitions),
    }
}

/// `MurmurHash2` (Appleby, 2008), with the seed of the Java client.
fn murmur2(data: &[u8]) -> u32 {
    const M: u32 = 0x5bd1_e995;
    const SEED: u32 = 0x9747_b28c;
    let (words, rest) = data.as_chunks::<4>();
    // The hash includes the length as a 32-bit number, as in the C original.
    let mut hash = SEED ^ u32::try_from(data.len() & 0xffff_ffff).unwrap_or_default();
    for word in words {
        let mut k = u32::from_le_bytes(*word).wrapping_mul(M);
        k ^= k >> 24;
        hash = hash.wrapping_mul(M) ^ k.wrapping_mul(M);
    }
    if !rest.is_empty() {
        hash ^= rest.iter().rev().fold(0, |word, &byte| word << 8 | u32::from(byte));
        hash = hash.wrapping_mul(M);
    }
    hash ^= hash >> 13;
    hash = hash.wrapping_mul(M);
    hash ^ hash >> 15
}

/// CRC-32 as in zlib (ISO 3309), which librdkafka uses.
fn crc32(data: &[u8]) -> u32 {
    !data
        .iter()
        .fold(!0, |crc, &byte| (0..8).fold(crc ^ u32::from(byte), |crc, _| if crc & 1 == 1 { crc >> 1 ^ 0xedb8_8320 } else { crc >> 1 }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;

    fn routing(topics: &[&str]) -> Routing {
        let topic = |(number, lines): (usize, &&str)| {
            format!(
                "[[topics]]\ninput = \"in-{number}\"\noutput = \"out\"\nspace = \"s\"\nwindow = \"1h\"\nfilter = {{ capacity = 1000 }}\n{lines}\n"
            )
        };
        let topics: String = topics.iter().enumerate().map(topic).collect();
        let config = Config::of_text(&format!("[kafka]\nbootstrap_servers = \"localhost:1\"\n{topics}"));
        Routing::new(&config.spaces()[0], Some(Partitioner::Murmur2))
    }

    #[test]
    fn framed_record_keys_are_looked_up_in_all_partitions() {
        let bare = "key = { record = \"key\" }";
        let framed = "key = { record = \"key\" }\nkey_format = \"json_schema\"";
        assert_eq!(routing(&[bare]), Routing::ByRecordKey(Partitioner::Murmur2));
        assert_eq!(routing(&[framed]), Routing::Any);
        assert_eq!(routing(&[bare, framed]), Routing::Any, "one topic of the space is enough");
        assert_eq!(routing(&[&format!("{framed}\nrepartition = true")]), Routing::Repartitioned, "unseen hashes the fingerprint");
        let framed_value = "key = { record = \"key\" }\nvalue_format = \"json_schema\"";
        assert_eq!(routing(&[framed_value]), Routing::ByRecordKey(Partitioner::Murmur2));
    }

    /// Test vectors from librdkafka (`rdmurmur2.c`) and the Java client (`UtilsTest`).
    #[test]
    fn murmur2_matches_the_java_client() {
        for (text, hash) in [
            ("kafka", 0xd067_cf64),
            ("giberish123456789", 0x8f55_2b0c),
            ("1234", 0x9fc9_7b14),
            ("234", 0xe7c0_09ca),
            ("34", 0x8739_30da),
            ("4", 0x5a4b_5ca1),
            ("", 0x106e_08d9),
        ] {
            assert_eq!(murmur2(text.as_bytes()), hash, "{text}");
        }
        assert_eq!(murmur2(b"21"), (-973_932_308_i32).cast_unsigned());
        assert_eq!(murmur2(b"foobar"), (-790_332_482_i32).cast_unsigned());
        assert_eq!(murmur2(b"a-little-bit-long-string"), (-985_981_536_i32).cast_unsigned());
        assert_eq!(murmur2(b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8"), (-58_897_971_i32).cast_unsigned());
    }

    #[test]
    fn crc32_matches_zlib() {
        assert_eq!(crc32(b"123456789"), 0xcbf4_3926);
        assert_eq!(crc32(b""), 0);
    }
}
