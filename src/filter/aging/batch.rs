//! Work done ahead for a batch of keys. Must never change an answer.

#![expect(clippy::inline_always, reason = "what runs in wide registers must be compiled for them, and so with its caller")]

use crate::filter::bloom::{Bloom, BloomLayout, Mask};
use crate::key::Fingerprint;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// Most keys worked on ahead: what is found out of them, and the lines that they need next, stay in the first cache.
pub(super) const BATCH_MAX: usize = 64;

/// The keys that are asked for soon. One layer asked for all keys takes a fraction of what all layers asked for one
/// key do. Keys may be asked for in any order; those that come in the order of the batch are found fastest.
#[derive(Debug, Default)]
pub(super) struct Batch {
    entries: Vec<Entry>,
    /// As of which version of the layers they were asked; see [`work`].
    version: u64,
    /// Where the search for a key begins: behind the one that was found last. A hint, that whoever asks at the same
    /// time may change.
    next: AtomicUsize,
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
    /// Makes it another key, of which nothing was found out yet.
    pub(super) const fn begin(&mut self, key: Fingerprint) {
        (self.key, self.seen) = (key, false);
    }

    /// A key of which nothing was found out yet.
    pub(super) const fn new(key: Fingerprint) -> Self {
        Self { key, seen: false, mask: Mask::NONE }
    }
}

impl Batch {
    /// Begins a batch of the first [`BATCH_MAX`] of these keys, to be worked on as of a `version` of the layers.
    pub(super) fn begin(&mut self, fingerprints: &[Fingerprint], version: u64) -> &mut [Entry] {
        self.entries.resize(fingerprints.len().min(BATCH_MAX), Entry::new(Fingerprint(0)));
        self.entries.iter_mut().zip(fingerprints).for_each(|(entry, &key)| entry.begin(key));
        (self.version, self.next) = (version, AtomicUsize::new(0));
        &mut self.entries
    }

    /// What was found out of a key, if it is of the batch and that holds still.
    #[inline]
    pub(super) fn find(&self, fingerprint: Fingerprint, version: u64) -> Option<&Entry> {
        let at = self.next.load(Relaxed);
        match self.entries.get(at) {
            _ if self.version != version => None,
            Some(entry) if entry.key == fingerprint => {
                self.next.store(at + 1, Relaxed);
                Some(entry)
            }
            _ => self.search(fingerprint, at),
        }
    }

    /// What was found out of keys that come next in the batch, one after the other, if that holds still.
    #[inline]
    pub(super) fn next(&self, fingerprints: &[Fingerprint], version: u64) -> Option<&[Entry]> {
        let at = self.next.load(Relaxed);
        let entries = self.entries.get(at..)?.get(..fingerprints.len()).filter(|_| self.version == version)?;
        let are_these = entries.iter().zip(fingerprints).all(|(entry, &fingerprint)| entry.key == fingerprint);
        are_these.then(|| {
            self.next.store(at + entries.len(), Relaxed);
            entries
        })
    }

    /// The same of a key that does not come next: that was found last, or stands anywhere else.
    #[inline(never)]
    fn search(&self, fingerprint: Fingerprint, at: usize) -> Option<&Entry> {
        let (before, after) = self.entries.split_at_checked(at.saturating_sub(1))?;
        let is_it = |entry: &Entry| entry.key == fingerprint;
        let number = after.iter().position(is_it).map(|number| before.len() + number).or_else(|| before.iter().position(is_it))?;
        self.next.store(number + 1, Relaxed);
        self.entries.get(number)
    }
}

/// Asks the layers that do not change any more for all keys, and computes the mask for the one that does: the last,
/// if it `is_open`. That holds until there is another layer, or one less.
///
/// While one layer is asked, the cache loads what the next will be asked for, so that nothing waits for memory
/// unless memory itself is at its limit.
#[inline(always)]
pub(super) fn work<'a>(entries: &mut [Entry], layers: impl Iterator<Item = &'a Bloom>, is_open: bool) {
    let mut computed: Option<BloomLayout> = None;
    let mut layers = layers.peekable();
    if let Some(first) = layers.peek() {
        first.prefetch(entries.iter().map(|entry| entry.key));
    }
    while let Some(layer) = layers.next() {
        let layout = layer.layout();
        if !computed.is_some_and(|computed| computed.has_same_mask(layout)) {
            for entry in &mut *entries {
                entry.mask.compute(entry.key, layout);
            }
            computed = Some(layout);
        }
        let next = layers.peek();
        if next.is_some() || !is_open {
            let next = next.unwrap_or(&layer);
            layer.contains_each(next, entries.iter_mut().map(|entry| (entry.key, &entry.mask, &mut entry.seen)));
        }
    }
}
