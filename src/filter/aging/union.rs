//! Merges two aging filters.

use super::{Aging, Bloom, Generation, Layer};
use crate::filter::{MergeError, Slice};

impl Aging {
    /// Merges generations of the same slice by OR-ing their bits. Merged layers hold the keys of both filters, so they may be fuller than
    /// planned.
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
        // Run all steps that can fail first, so that a failed merge changes nothing.
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
    /// Returns a copy of the layer, with no page marked as stored.
    fn copied(&self) -> Option<Self> {
        let mut layer = Self { bloom: Bloom::new(self.bloom.layout())?, capacity: self.capacity, keys: 0 };
        layer.add(self);
        Some(layer)
    }

    fn add(&mut self, other: &Self) {
        self.bloom.buffer.add(&other.bloom.buffer);
        self.keys = self.keys.saturating_add(other.keys);
    }
}
