//! Work done ahead for a batch of keys. Must never change an answer.

use crate::filter::bloom::{Mask, Shape};
use crate::key::Fingerprint;

/// Most masks made ahead; with the lines of five generations they still fit into the first cache.
const BATCH_MAX: usize = 64;

/// The masks of the keys that are asked for next. Making one takes longer than a look-up that finds its lines
/// in the cache, and nothing where it is done while they are on their way. Says nothing about any key: with it
/// or without, all answers are the same.
#[derive(Debug, Default)]
pub(super) struct Batch {
    /// Of `keys`, in their order; the rest is left over from earlier batches.
    pub(super) masks: Vec<Mask>,
    pub(super) keys: Vec<Fingerprint>,
    /// Where the key last asked for is.
    at: usize,
}

impl Batch {
    /// Takes in the first [`BATCH_MAX`] of these keys, without their bits.
    pub(super) fn aim(&mut self, fingerprints: &[Fingerprint], shape: Shape) {
        self.keys.clear();
        self.keys.extend(fingerprints.iter().take(BATCH_MAX));
        if self.masks.len() < self.keys.len() {
            self.masks.resize(self.keys.len(), Mask::NONE);
        }
        self.masks.iter_mut().zip(&self.keys).for_each(|(mask, &key)| mask.aim(key, shape));
        self.at = 0;
    }

    pub(super) fn draw(&mut self) {
        self.masks.iter_mut().zip(&self.keys).for_each(|(mask, &key)| mask.draw(key));
    }

    /// The mask of a key: the one last asked for, or one that comes after it, or else a batch of its own.
    #[inline]
    pub(super) fn mask(&mut self, fingerprint: Fingerprint, shape: Shape) -> &Mask {
        // Nearly always it is one of these two: what was asked for is put in, or the next one is asked for.
        if self.keys.get(self.at) != Some(&fingerprint) {
            self.at += 1;
            if self.keys.get(self.at) != Some(&fingerprint) {
                self.search(fingerprint, shape);
            }
        }
        &self.masks[self.at]
    }

    #[inline(never)]
    fn search(&mut self, fingerprint: Fingerprint, shape: Shape) {
        if let Some(ahead) = self.keys.iter().skip(self.at).position(|&key| key == fingerprint) {
            self.at += ahead;
        } else {
            self.aim(&[fingerprint], shape);
            self.draw();
        }
    }
}
