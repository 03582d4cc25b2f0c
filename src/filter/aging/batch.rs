//! Work done ahead for a batch of keys. Must never change an answer.

use crate::filter::bloom::{Bloom, Mask, Shape};
use crate::key::Fingerprint;

/// Most masks made ahead; with the lines of five generations they still fit into the first cache.
const BATCH_MAX: usize = 64;

/// The masks of the keys that are asked for next, and what the layers that do not change any more say of them. One
/// layer asked for all keys takes a fraction of what all layers asked for one key do.
#[derive(Debug, Default)]
pub(super) struct Batch {
    /// Of `keys`, in their order; the rest is left over from earlier batches.
    pub(super) masks: Vec<Mask>,
    pub(super) keys: Vec<Fingerprint>,
    /// Whether any of the layers that were asked has the key.
    seen: Vec<bool>,
    /// As of when they were asked; see [`Batch::ask`].
    turn: Option<u64>,
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
        (self.at, self.turn) = (0, None);
    }

    pub(super) fn draw(&mut self) {
        self.masks.iter_mut().zip(&self.keys).for_each(|(mask, &key)| mask.draw(key));
    }

    /// Asks layers for all keys. What they say holds as long as `turn` does: until there is another layer, or one
    /// less.
    pub(super) fn ask<'a>(&mut self, layers: impl Iterator<Item = &'a Bloom>, turn: u64) {
        self.seen.clear();
        self.seen.resize(self.keys.len(), false);
        for layer in layers {
            layer.ask(&self.keys, &self.masks[..self.keys.len()], &mut self.seen);
        }
        self.turn = Some(turn);
    }

    /// What the layers said of the key whose mask was last asked for, if that still holds.
    #[inline]
    pub(super) fn answer(&self, turn: u64) -> Option<bool> {
        if self.turn == Some(turn) { self.seen.get(self.at).copied() } else { None }
    }

    /// The mask of the key last asked for.
    #[inline]
    pub(super) fn current(&self) -> &Mask {
        &self.masks[self.at]
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
