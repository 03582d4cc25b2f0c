//! Work done ahead for a batch of keys. Must never change an answer.

#![expect(clippy::inline_always, reason = "what runs in wide registers must be compiled for them, and so with its caller")]

use crate::filter::bloom::{Bloom, Layout, Mask};
use crate::key::Fingerprint;

/// Most keys worked on ahead: what is found out of them, and the lines that they need next, stay in the first cache.
const BATCH_MAX: usize = 64;

/// The keys that are asked for next. One layer asked for all keys takes a fraction of what all layers asked for one
/// key do.
#[derive(Debug, Default)]
pub(super) struct Batch {
    entries: Vec<Entry>,
    /// What their bits are computed for.
    computed: Option<Layout>,
    /// As of when layers were asked; see [`Batch::work`].
    turn: Option<u64>,
    /// Where the key is that is likely to be asked for next.
    next: usize,
}

/// A key, and what was found out ahead.
#[derive(Clone, Copy, Debug)]
pub(super) struct Entry {
    key: Fingerprint,
    /// Whether a layer that does not change any more has it.
    pub(super) seen: bool,
    /// Its bits in the layer that does change.
    pub(super) mask: Mask,
}

impl Entry {
    const NONE: Self = Self { key: Fingerprint(0), seen: false, mask: Mask::NONE };
}

impl Batch {
    /// Takes in the first [`BATCH_MAX`] of these keys.
    pub(super) fn take(&mut self, fingerprints: &[Fingerprint]) {
        self.entries.resize(fingerprints.len().min(BATCH_MAX), Entry::NONE);
        self.entries.iter_mut().zip(fingerprints).for_each(|(entry, &key)| (entry.key, entry.seen) = (key, false));
        (self.computed, self.turn, self.next) = (None, None, 0);
    }

    /// Asks the layers that do not change any more for all keys, and draws their bits for the one that does: the last,
    /// if it `is_open`. That holds as long as `turn` does: until there is another layer, or one less.
    ///
    /// While one layer is asked, the cache loads what the next will be asked for, so that nothing waits for memory
    /// unless memory itself is at its limit.
    #[inline(always)]
    pub(super) fn work<'a>(&mut self, layers: impl Iterator<Item = &'a Bloom>, is_open: bool, turn: u64) {
        let mut layers = layers.peekable();
        if let Some(first) = layers.peek() {
            first.prefetch(self.entries.iter().map(|entry| entry.key));
        }
        while let Some(layer) = layers.next() {
            self.compute(layer.layout());
            let next = layers.peek();
            if next.is_some() || !is_open {
                let next = next.unwrap_or(&layer);
                layer.contains_each(next, self.entries.iter_mut().map(|entry| (entry.key, &entry.mask, &mut entry.seen)));
            }
        }
        self.turn = Some(turn);
    }

    #[inline(always)]
    fn compute(&mut self, layout: Layout) {
        if !self.computed.is_some_and(|computed| computed.has_same_mask(layout)) {
            for entry in &mut self.entries {
                entry.mask.compute(entry.key, layout);
            }
            self.computed = Some(layout);
        }
    }

    /// Whether this key comes next, and what was found out of it holds.
    #[inline]
    pub(super) fn expects(&self, fingerprint: Fingerprint, turn: u64) -> bool {
        self.entries.get(self.next).is_some_and(|entry| entry.key == fingerprint) && self.turn == Some(turn)
    }

    /// The same of a key that is still to come, which then comes next.
    #[inline(never)]
    pub(super) fn skip_to(&mut self, fingerprint: Fingerprint, turn: u64) -> bool {
        let ahead = self.entries.iter().skip(self.next).position(|entry| entry.key == fingerprint);
        self.next += ahead.unwrap_or(0);
        ahead.is_some() && self.turn == Some(turn)
    }

    /// What was found out of the key that comes next; there must be one.
    #[inline]
    pub(super) fn next(&mut self) -> &Entry {
        self.next += 1;
        &self.entries[self.next - 1]
    }

    /// The bits of the key last asked for, if it is this one.
    #[inline]
    pub(super) fn last(&self, fingerprint: Fingerprint, turn: u64) -> Option<&Mask> {
        let entry = self.entries.get(self.next.wrapping_sub(1))?;
        (entry.key == fingerprint && self.turn == Some(turn)).then_some(&entry.mask)
    }
}
