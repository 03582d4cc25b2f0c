//! Merges two cuckoo filters.

use super::{Cuckoo, Layer, SLOTS};
use crate::filter::cuckoo::table::{Table, age};
use crate::filter::{CapacityError, MergeError};

impl Cuckoo {
    /// Inserts each fingerprint of another filter into a table with the same layout, into the same buckets. If the table already contains
    /// the fingerprint, adds no copy, and the copy there gets the later of the two expiries. If there is not enough memory, some of the
    /// keys may already have been inserted.
    pub(super) fn merge(&mut self, other: &Self) -> Result<(), MergeError> {
        if self.window != other.window {
            return Err(MergeError::Window);
        }
        if self.window.length_ms().is_none() {
            return Err(MergeError::Counted);
        }
        let differ = |own: &Layer, theirs: &Layer| own.depth == theirs.depth && own.table.layout() != theirs.table.layout();
        if self.layers.iter().any(|own| other.layers.iter().any(|theirs| differ(own, theirs))) {
            return Err(MergeError::Size);
        }
        match (self.slice, other.slice) {
            (_, None) if other.layers.is_empty() => return Ok(()),
            (None, Some(slice)) if self.layers.is_empty() => self.rotate(slice),
            (Some(own), Some(slice)) if slice > own => self.rotate(slice),
            (Some(_), Some(_)) => {}
            _ => return Err(MergeError::Untimed),
        }
        let passed = self.slice.zip(other.slice).map_or(0, |(own, others)| own.abs_diff(others));
        for layer in &other.layers {
            self.merge_layer(layer, other.tag, passed).map_err(|_| MergeError::Memory)?;
        }
        Ok(())
    }

    fn merge_layer(&mut self, layer: &Layer, now: u64, passed: u64) -> Result<(), CapacityError> {
        let tags = self.tags();
        for (place, tag) in layer.table.keys() {
            let age = age(tag, now, tags).saturating_add(passed);
            if age >= tags {
                continue;
            }
            let tag = (self.tag + (tags - age)) % tags;
            let mut fitting = self.layers.iter_mut().filter(|own| own.table.layout() == layer.table.layout());
            if !fitting.any(|own| own.table.merge(place, tag, self.tag)) {
                let mut table = Table::<SLOTS>::new(layer.table.layout()).ok_or(CapacityError::Memory)?;
                table.merge(place, tag, self.tag);
                self.layers.push(Layer {
                    name: self.names,
                    depth: layer.depth,
                    retired: layer.retired,
                    limit: table.layout().capacity(),
                    table,
                });
                self.names += 1;
            }
        }
        Ok(())
    }
}
