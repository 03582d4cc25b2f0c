//! A cuckoo table: fingerprints in buckets, each with a generation tag.
//!
//! The table uses partial-key cuckoo hashing (Fan, Andersen, Kaminsky, Mitzenmacher: "Cuckoo Filter: Practically Better Than Bloom", 2014),
//! extended to any number of buckets. The numbers of a key's two buckets add up to a hash of its fingerprint, modulo the number of buckets,
//! so each bucket follows from the other bucket and the fingerprint. Slots are packed without gaps. The table never loses a fingerprint
//! unless it is removed or has expired: a failed insertion leaves the table unchanged.

use crate::filter::hash::{SplitMix, mix, scale};
use crate::filter::paged_buffer::PagedBuffer;
use crate::key::Fingerprint;

/// Maximum number of fingerprints that an insertion moves before it fails. The cuckoo filter paper uses the same limit.
const KICKS: usize = 500;
/// Maximum bits per slot. A slot can start at any bit of a byte and must end within the 64 bits from the start of that byte.
pub(super) const SLOT_BITS_MAX: u32 = 57;
/// Unused bytes after the last slot, because every slot is read as part of an eight-byte word.
const PAD_BYTES: u64 = 8;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TableLayout<const B: usize> {
    /// Number of buckets, at least 1.
    pub(super) buckets: u64,
    /// Bits per fingerprint, f. A slot has a fingerprint and a tag.
    pub(super) fingerprint_bits: u32,
    /// Number of different tags: one for each generation that can exist at the same time.
    pub(super) tags: u64,
}

impl<const B: usize> TableLayout<B> {
    /// The smallest layout whose capacity is at least `keys`.
    pub(super) fn holding(keys: u64, fingerprint_bits: u32, tags: u64) -> Self {
        let slots = (u128::from(keys.max(1)) * 20).div_ceil(19);
        let buckets = u64::try_from(slots.div_ceil(B as u128)).unwrap_or(u64::MAX);
        Self { buckets, fingerprint_bits, tags }
    }

    pub(super) const fn slots(self) -> u64 {
        self.buckets.saturating_mul(B as u64)
    }

    /// Planned number of keys: 95 % of the slots, rounded down.
    pub(super) const fn capacity(self) -> u64 {
        self.slots() - self.slots().div_ceil(20)
    }

    pub(super) const fn tag_bits(self) -> u32 {
        u64::BITS - self.tags.saturating_sub(1).leading_zeros()
    }

    pub(super) const fn slot_bits(self) -> u32 {
        self.fingerprint_bits.saturating_add(self.tag_bits())
    }

    pub(super) fn bytes(self) -> u64 {
        let bytes = (u128::from(self.slots()) * u128::from(self.slot_bits())).div_ceil(8) + u128::from(PAD_BYTES);
        u64::try_from(bytes).unwrap_or(u64::MAX)
    }

    /// Probability that an absent key's fingerprint is in one of its buckets when `keys` slots are filled. Each of 2 B slots is filled with
    /// probability `keys / slots` and contains one of 2^f - 1 fingerprints.
    #[expect(clippy::cast_precision_loss, reason = "a rate")]
    pub(super) fn rate(self, keys: f64) -> f64 {
        let asked = 2.0 * B as f64 * keys / self.slots() as f64;
        let each = 1.0 / (2.0_f64.powi(self.fingerprint_bits.cast_signed()) - 1.0).max(1.0);
        // 1 - (1 - each)^asked, without loss of precision at small rates.
        -((-each).ln_1p() * asked).exp_m1()
    }
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Place {
    fingerprint: u64,
    buckets: [u64; 2],
}

impl Place {
    /// Number of slots that can hold the key. The key's two buckets can be the same bucket.
    pub(super) const fn slots<const B: usize>(self) -> usize {
        if self.buckets[0] == self.buckets[1] { B } else { 2 * B }
    }
}

/// A table with `B` slots per bucket. A slot has a tag in its low bits and a nonzero fingerprint above the tag. An empty slot is all zeros.
/// A slot with an invalid tag, which can only come from a forged or damaged page, counts as empty.
#[derive(Debug)]
pub(super) struct Table<const B: usize> {
    layout: TableLayout<B>,
    slot_bits: u32,
    tag_bits: u32,
    used: u64,
    pub(super) buffer: PagedBuffer,
}

impl<const B: usize> Table<B> {
    pub(super) fn new(layout: TableLayout<B>) -> Option<Self> {
        let buffer = PagedBuffer::new(layout.bytes())?;
        Some(Self { layout, slot_bits: layout.slot_bits(), tag_bits: layout.tag_bits(), used: 0, buffer })
    }

    /// Creates a table whose slots are empty until its pages are read. The pages have `used` filled slots.
    pub(super) fn restored(layout: TableLayout<B>, used: u64) -> Option<Self> {
        Some(Self { used, ..Self::new(layout)? })
    }

    pub(super) const fn layout(&self) -> TableLayout<B> {
        self.layout
    }

    pub(super) const fn used(&self) -> u64 {
        self.used
    }

    pub(super) fn place(&self, fingerprint: Fingerprint) -> Place {
        // A fingerprint is at least 1, because zero marks an empty slot.
        let own = 1 + scale(fingerprint.high(), (1 << self.layout.fingerprint_bits) - 1);
        let bucket = scale(fingerprint.low(), self.layout.buckets);
        Place { fingerprint: own, buckets: [bucket, self.other(bucket, own)] }
    }

    /// Returns the other bucket of a fingerprint. If called with the result, returns `bucket` again.
    fn other(&self, bucket: u64, fingerprint: u64) -> u64 {
        let sum = scale(mix(fingerprint), self.layout.buckets);
        if sum >= bucket { sum - bucket } else { sum + (self.layout.buckets - bucket) }
    }

    /// Returns the first byte of a slot, and the number of bits in that byte before the slot.
    fn at(&self, slot: u64) -> (usize, u32) {
        let bit = slot * u64::from(self.slot_bits);
        ((bit / 8) as usize, (bit % 8) as u32)
    }

    fn word(&self, byte: usize) -> u64 {
        let mut word = [0; 8];
        word.copy_from_slice(&self.buffer.bytes()[byte..byte + 8]);
        u64::from_le_bytes(word)
    }

    pub(super) fn get(&self, slot: u64) -> u64 {
        let (byte, shift) = self.at(slot);
        self.word(byte) >> shift & ((1 << self.slot_bits) - 1)
    }

    fn set(&mut self, slot: u64, value: u64) {
        let (byte, shift) = self.at(slot);
        let word = self.word(byte) & !(((1 << self.slot_bits) - 1) << shift) | value << shift;
        self.buffer.bytes_mut()[byte..byte + 8].copy_from_slice(&word.to_le_bytes());
        self.buffer.touch(byte);
        self.buffer.touch(byte + (shift + self.slot_bits - 1) as usize / 8);
    }

    fn read(&self, slot: u64) -> Option<(u64, u64)> {
        let value = self.get(slot);
        let (fingerprint, tag) = (value >> self.tag_bits, value & ((1 << self.tag_bits) - 1));
        (fingerprint != 0 && tag < self.layout.tags).then_some((fingerprint, tag))
    }

    const fn slots_of(bucket: u64) -> std::ops::Range<u64> {
        bucket * B as u64..(bucket + 1) * B as u64
    }

    fn vacant(&self, bucket: u64) -> Option<u64> {
        Self::slots_of(bucket).find(|&slot| self.read(slot).is_none())
    }

    /// The slots that contain a key's fingerprint, and their tags.
    pub(super) fn copies(&self, place: Place) -> impl Iterator<Item = (u64, u64)> {
        let buckets = if place.buckets[0] == place.buckets[1] { &[0][..] } else { &[0, 1] };
        let slots = buckets.iter().flat_map(move |&which| Self::slots_of(place.buckets[which]));
        slots.filter_map(move |slot| {
            let (fingerprint, tag) = self.read(slot)?;
            (fingerprint == place.fingerprint).then_some((slot, tag))
        })
    }

    pub(super) fn contains(&self, place: Place) -> bool {
        let holds = |bucket: u64| Self::slots_of(bucket).any(|slot| self.read(slot).is_some_and(|(own, _)| own == place.fingerprint));
        holds(place.buckets[0]) || holds(place.buckets[1])
    }

    /// Loads the cache lines that a lookup reads, by reading the first byte of the first and of the last slot of each bucket. The last slot
    /// may extend into another cache line. That line is not loaded. Returns the XOR of the bytes to keep the compiler from removing the
    /// reads.
    pub(super) fn glance(&self, place: Place) -> u8 {
        let bytes = self.buffer.bytes();
        let ends = |bucket| bytes[self.at(bucket * B as u64).0] ^ bytes[self.at((bucket + 1) * B as u64 - 1).0];
        ends(place.buckets[0]) ^ ends(place.buckets[1])
    }

    pub(super) fn tag(&mut self, slot: u64, tag: u64) {
        let value = self.get(slot) >> self.tag_bits << self.tag_bits;
        self.set(slot, value | tag);
    }

    pub(super) fn clear(&mut self, slot: u64) {
        self.set(slot, 0);
        self.used = self.used.saturating_sub(1);
    }

    /// Inserts a key. Returns false if no slot becomes free within [`KICKS`] moves. The table is then unchanged.
    pub(super) fn insert(&mut self, place: Place, tag: u64) -> bool {
        let mut carried = place.fingerprint << self.tag_bits | tag;
        if let Some(slot) = place.buckets.iter().find_map(|&bucket| self.vacant(bucket)) {
            return self.fill(slot, carried);
        }
        // The generator that chooses the fingerprints to move is seeded with the key, so the same stream always produces the same table.
        let mut numbers = SplitMix(place.fingerprint ^ place.buckets[0]);
        let mut bucket = place.buckets[usize::from(numbers.next() >> 63 == 1)];
        let mut way = Vec::with_capacity(KICKS);
        while way.len() < KICKS {
            let victim = bucket * B as u64 + scale(numbers.next(), B as u64);
            carried = self.swap(victim, carried);
            way.push(victim);
            bucket = self.other(bucket, carried >> self.tag_bits);
            if let Some(slot) = self.vacant(bucket) {
                return self.fill(slot, carried);
            }
        }
        for slot in way.into_iter().rev() {
            carried = self.swap(slot, carried);
        }
        false
    }

    fn fill(&mut self, slot: u64, value: u64) -> bool {
        self.set(slot, value);
        self.used = self.used.saturating_add(1).min(self.layout.slots());
        true
    }

    fn swap(&mut self, slot: u64, value: u64) -> u64 {
        let before = self.get(slot);
        self.set(slot, value);
        before
    }

    /// Advances by `passed` generations from the tag `now`: one pass over all slots removes the keys whose tags will be reused. Writes only
    /// to slots that it empties, so pages without such slots stay clean.
    pub(super) fn expire(&mut self, now: u64, passed: u64) {
        self.used = 0;
        for slot in 0..self.layout.slots() {
            match self.read(slot) {
                Some((_, tag)) if age(tag, now, self.layout.tags).saturating_add(passed) < self.layout.tags => self.used += 1,
                _ if self.get(slot) != 0 => self.set(slot, 0),
                _ => {}
            }
        }
    }
}

/// Returns the age of a tag, in generations. `now` is the current tag.
pub(super) const fn age(tag: u64, now: u64, tags: u64) -> u64 {
    if tag <= now { now - tag } else { now + (tags - tag) }
}

#[cfg(test)]
mod tests;
