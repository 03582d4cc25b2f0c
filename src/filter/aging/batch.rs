//! Precomputes lookups for a batch of keys. The precomputed results never change the answer to a lookup.

#![expect(clippy::inline_always, reason = "SIMD code must be inlined into the function with the target feature")]

use crate::filter::bloom::{Bloom, BloomLayout, Mask};
use crate::key::Fingerprint;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// Maximum number of keys per batch. The results of more keys, and the cache lines that they need next, would not fit into the L1 cache.
pub(super) const BATCH_MAX: usize = 64;

/// Keys that the caller will look up soon, with precomputed results. Checking all keys against one layer and then all keys against the next
/// layer is much faster than checking key by key. The caller may look up the keys in any order, but batch order is the fastest.
#[derive(Debug, Default)]
pub(super) struct Batch {
    entries: Vec<Entry>,
    /// Version of the layers when [`work`] computed the results.
    version: u64,
    /// Index of the entry after the one that was found last. A lookup tries this entry first. The index is only a hint, because concurrent
    /// readers can change it.
    next: AtomicUsize,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Entry {
    key: Fingerprint,
    /// True if a layer other than the open layer reports the key as seen. See [`work`] for the open layer.
    pub(super) seen: bool,
    /// The key's bits in the open layer.
    pub(super) mask: Mask,
}

impl Entry {
    /// Resets the entry for another key, except the mask, which [`work`] replaces.
    pub(super) const fn begin(&mut self, key: Fingerprint) {
        (self.key, self.seen) = (key, false);
    }

    pub(super) const fn new(key: Fingerprint) -> Self {
        Self { key, seen: false, mask: Mask::NONE }
    }
}

impl Batch {
    /// Starts a batch with these keys, or with the first [`BATCH_MAX`] keys if there are more. Returns the entries of the keys, which
    /// [`work`] must then compute. The entries are valid as long as the layers have this `version`.
    pub(super) fn begin(&mut self, fingerprints: &[Fingerprint], version: u64) -> &mut [Entry] {
        self.entries.resize(fingerprints.len().min(BATCH_MAX), Entry::new(Fingerprint(0)));
        self.entries.iter_mut().zip(fingerprints).for_each(|(entry, &key)| entry.begin(key));
        (self.version, self.next) = (version, AtomicUsize::new(0));
        &mut self.entries
    }

    /// Returns the precomputed entry of a key, if it is in the batch and still valid.
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

    /// Returns the precomputed entries of these keys, if the keys come next in the batch, in this order, and the entries are still valid.
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

    /// Finds a key that is not next in the batch. Starts with the entry that was found last, because a lookup of a key is often followed
    /// by its insertion.
    #[inline(never)]
    fn search(&self, fingerprint: Fingerprint, at: usize) -> Option<&Entry> {
        let (before, after) = self.entries.split_at_checked(at.saturating_sub(1))?;
        let is_it = |entry: &Entry| entry.key == fingerprint;
        let number = after.iter().position(is_it).map(|number| before.len() + number).or_else(|| before.iter().position(is_it))?;
        self.next.store(number + 1, Relaxed);
        self.entries.get(number)
    }
}

/// Looks up all keys in all layers except the open layer and computes their masks for the open layer. The open layer is the newest layer of
/// the current slice, and keys are inserted only into it. If `is_open` is true, the open layer is the last of `layers`. The results are
/// valid for the current version of the layers.
///
/// While one layer is checked, the cache loads the lines of the next layer. The CPU then waits for memory only if memory bandwidth is
/// exhausted.
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
