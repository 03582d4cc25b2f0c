//! Two aging filters into one.

use super::{Aging, Bloom, Generation, Layer};
use crate::filter::{MergeError, Slice};

impl Aging {
    /// Of generations of the same slice, a bit counts that either has set. Merged layers hold the keys of both, so
    /// they may be fuller than they were meant to be.
    pub(super) fn merge(&mut self, other: &Self) -> Result<(), MergeError> {
        if self.window != other.window {
            return Err(MergeError::Window);
        }
        if self.window.length_ms().is_none() {
            return Err(MergeError::Counted);
        }
        if [&*self, other].iter().any(|filter| filter.slice.is_none() && !filter.generations.is_empty()) {
            return Err(MergeError::Untimed);
        }
        for (own, theirs) in self.generations.iter().filter_map(|own| Some((own, other.of_slice(own.slice)?))) {
            if own.layers.iter().zip(&theirs.layers).any(|(a, b)| a.bloom.layout() != b.bloom.layout()) {
                return Err(MergeError::Size);
            }
        }
        let newest = self.slice.max(other.slice);
        let oldest = newest.unwrap_or_default().before(self.window.slices());
        let theirs: Vec<_> = other.generations.iter().filter(|theirs| theirs.slice >= oldest).collect();
        // What can fail comes first: a merge that fails has changed nothing.
        let mut new = Vec::new();
        for theirs in &theirs {
            let known = self.of_slice(theirs.slice).map_or(0, |own| own.layers.len());
            let layers = theirs.layers.iter().skip(known).map(Layer::copied).collect::<Option<Vec<_>>>().ok_or(MergeError::Memory)?;
            new.push(Generation { slice: theirs.slice, layers });
        }
        if let Some(newest) = newest.filter(|&newest| self.slice.is_none_or(|own| newest > own)) {
            self.rotate(newest);
        }
        for (theirs, new) in theirs.into_iter().zip(new) {
            if let Some(own) = self.generations.iter_mut().find(|own| own.slice == new.slice) {
                own.layers.iter_mut().zip(&theirs.layers).for_each(|(own, theirs)| own.add(theirs));
                own.layers.extend(new.layers);
            } else {
                self.generations.push(new);
            }
        }
        self.generations.sort_by_key(|generation| generation.slice);
        Ok(())
    }

    fn of_slice(&self, slice: Slice) -> Option<&Generation> {
        self.generations.iter().find(|generation| generation.slice == slice)
    }
}

impl Layer {
    /// The same bits once more, none of them stored.
    fn copied(&self) -> Option<Self> {
        let mut layer = Self { bloom: Bloom::new(self.bloom.layout())?, capacity: self.capacity, keys: 0 };
        layer.add(self);
        Some(layer)
    }

    /// Sets the bits that a layer of the same layout has set.
    fn add(&mut self, other: &Self) {
        self.bloom.buffer.add(&other.bloom.buffer);
        self.keys = self.keys.saturating_add(other.keys);
    }
}
