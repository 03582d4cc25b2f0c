//! Keys and checksums of the stored entries. Entries are read in the order of their keys. Ranges of keys include their start but not their
//! end. The values of metadata and pages end with a checksum.

use super::PartitionId;
use crate::filter::{GenerationId, PageId, Part, Slice};
use crate::key::Fingerprint;
use xxhash_rust::xxh3::Xxh3;

const CHECKSUM_BYTES: usize = 8;

#[must_use]
pub fn metadata_key(id: &PartitionId) -> Vec<u8> {
    key(b'h', id)
}

/// Encodes numbers as big-endian and flips the sign bit of the slice, so that keys sort by slice, layer, and page.
#[must_use]
pub fn page_key(id: &PartitionId, page: PageId) -> Vec<u8> {
    let mut key = key(b'p', id);
    key.extend_from_slice(&(page.slice.0.cast_unsigned() ^ (1 << 63)).to_be_bytes());
    key.extend_from_slice(&(page.layer as u64).to_be_bytes());
    key.extend_from_slice(&(page.page as u64).to_be_bytes());
    key
}

#[must_use]
pub fn all_pages(id: &PartitionId) -> (Vec<u8>, Vec<u8>) {
    let from = key(b'p', id);
    let mut to = from.clone();
    to.extend_from_slice(&[0xff; 25]);
    (from, to)
}

#[must_use]
pub fn pages_of(id: &PartitionId, part: Part) -> (Vec<u8>, Vec<u8>) {
    let from = page_key(id, PageId { slice: part.slice, layer: part.layer, page: 0 });
    let mut to = from.clone();
    to.truncate(to.len() - 8);
    to.extend_from_slice(&[0xff; 9]);
    (from, to)
}

#[must_use]
pub fn fingerprint_key(id: &PartitionId, generation: GenerationId, fingerprint: Fingerprint) -> Vec<u8> {
    let mut key = key(b'x', id);
    key.extend_from_slice(&generation.to_be_bytes());
    key.extend_from_slice(&fingerprint.0.to_be_bytes());
    key
}

#[must_use]
pub fn fingerprints_of(id: &PartitionId, generation: GenerationId) -> (Vec<u8>, Vec<u8>) {
    let mut from = key(b'x', id);
    from.extend_from_slice(&generation.to_be_bytes());
    let mut to = from.clone();
    to.extend_from_slice(&[0xff; 17]);
    (from, to)
}

#[must_use]
pub fn all_fingerprints(id: &PartitionId) -> (Vec<u8>, Vec<u8>) {
    let from = key(b'x', id);
    let mut to = from.clone();
    to.extend_from_slice(&[0xff; 25]);
    (from, to)
}

/// The inverse of [`metadata_key`]. Returns `None` for any other key.
#[must_use]
pub fn partition_of(key_bytes: &[u8]) -> Option<PartitionId> {
    let (length, rest) = key_bytes.strip_prefix(b"h")?.split_first_chunk::<8>()?;
    let (space, partition) = rest.split_at_checked(usize::try_from(u64::from_be_bytes(*length)).ok()?)?;
    let partition = i32::from_be_bytes(partition.try_into().ok()?);
    Some(PartitionId { space: String::from_utf8(space.to_vec()).ok()?, partition })
}

/// The inverse of [`page_key`]. Returns `None` for any other key.
#[must_use]
pub fn page_id(id: &PartitionId, key_bytes: &[u8]) -> Option<PageId> {
    let (numbers, []) = key_bytes.strip_prefix(&key(b'p', id)[..])?.as_chunks::<8>() else { return None };
    let [slice, layer, page] = numbers else { return None };
    Some(PageId {
        slice: Slice((u64::from_be_bytes(*slice) ^ (1 << 63)).cast_signed()),
        layer: usize::try_from(u64::from_be_bytes(*layer)).ok()?,
        page: usize::try_from(u64::from_be_bytes(*page)).ok()?,
    })
}

fn key(kind: u8, id: &PartitionId) -> Vec<u8> {
    let mut key = vec![kind];
    // The length of the name comes first to separate the keys of a space `a` from the keys of a space `ab`.
    key.extend_from_slice(&(id.space.len() as u64).to_be_bytes());
    key.extend_from_slice(id.space.as_bytes());
    key.extend_from_slice(&id.partition.to_be_bytes());
    key
}

/// Appends a checksum to a value. The checksum covers the key, too, to detect a value that was stored under another key.
pub fn append_checksum(key: &[u8], value: &mut Vec<u8>) {
    let sum = checksum(key, value);
    value.extend_from_slice(&sum.to_le_bytes());
}

/// Returns the value without its checksum, or `None` if the checksum does not match.
#[must_use]
pub fn checked<'a>(key: &[u8], stored: &'a [u8]) -> Option<&'a [u8]> {
    let (value, sum) = stored.split_at_checked(stored.len().checked_sub(CHECKSUM_BYTES)?)?;
    (sum == checksum(key, value).to_le_bytes()).then_some(value)
}

fn checksum(key: &[u8], value: &[u8]) -> u64 {
    let mut hash = Xxh3::new();
    hash.update(&(key.len() as u64).to_le_bytes());
    hash.update(key);
    hash.update(value);
    hash.digest()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(space: &str, partition: i32) -> PartitionId {
        PartitionId { space: space.to_owned(), partition }
    }

    proptest::proptest! {
        #[test]
        fn page_keys_are_decoded_and_sort_by_page(a in (i64::MIN..i64::MAX, 0_usize..9, 0_usize..99), b in (i64::MIN..i64::MAX, 0_usize..9, 0_usize..99)) {
            let space = id("space", 3);
            let [a, b] = [a, b].map(|(slice, layer, page)| PageId { slice: Slice(slice), layer, page });
            proptest::prop_assert_eq!(page_id(&space, &page_key(&space, a)), Some(a));
            proptest::prop_assert_eq!(page_key(&space, a).cmp(&page_key(&space, b)), a.cmp(&b));
            let (from, to) = pages_of(&space, Part { slice: a.slice, layer: a.layer, pages: 0 });
            proptest::prop_assert_eq!((from..to).contains(&page_key(&space, b)), (a.slice, a.layer) == (b.slice, b.layer));
            let (from, to) = all_pages(&space);
            proptest::prop_assert!((from..to).contains(&page_key(&space, a)));
        }

        #[test]
        fn damage_is_detected(value in proptest::collection::vec(0_u8.., 0..200), at in 0_usize..200, bit in 0_u8..8) {
            let mut stored = value.clone();
            append_checksum(b"key", &mut stored);
            proptest::prop_assert_eq!(checked(b"key", &stored), Some(&value[..]));
            proptest::prop_assert_eq!(checked(b"kez", &stored), None);
            proptest::prop_assert_eq!(checked(b"key", &stored[..at.min(stored.len() - 1)]), None);
            let at = at % stored.len();
            stored[at] ^= 1 << bit;
            proptest::prop_assert_eq!(checked(b"key", &stored), None);
        }
    }

    #[test]
    fn key_ranges_of_partitions_do_not_overlap() {
        let (from, to) = all_pages(&id("a", 1));
        for other in [id("a", 0), id("a", 2), id("a", -1), id("aa", 1), id("b", 1), id("", 1)] {
            assert!(!(from.clone()..to.clone()).contains(&page_key(&other, PageId { slice: Slice::FIRST, layer: 0, page: 0 })), "{other}");
        }
    }
}
