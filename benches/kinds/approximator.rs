//! The compact approximator: like a Bloom filter, but each cell holds a value, the largest of its keys' values. A key's value is
//! at most the smallest of its k cells. Boldi, Vigna: "Compact Approximation of Lattice Functions with Applications to
//! Large-Alphabet Text Search", 2003; "Mutable Strings in Java", 2005.
//!
//! The value is the number of the newest slice. A key was seen within the window if all of its k cells were. Numbers cycle from 1
//! to 7, and 0 means never. Numbers that have left the window are wiped out before they are reused, two at a time.

use crate::bits::{Cells, bloom_size, place};
use crate::{Kind, SLICES};
use unseen::key::Fingerprint;

const NUMBERS: u64 = 7;

pub struct Approximator {
    cells: Cells,
    k: usize,
    slice: u64,
    keys: usize,
    slice_keys: usize,
}

impl Approximator {
    pub fn new(keys: usize, rate: f64) -> Self {
        let (cells, k) = bloom_size(keys / SLICES * (SLICES + 1), rate);
        Self { cells: Cells::new(cells, 3), k, slice: 0, keys: 0, slice_keys: keys / SLICES }
    }

    /// Returns how many slices ago a cell was last touched, if that is within the window.
    fn is_live(&self, cell: u64) -> bool {
        cell > 0 && (self.slice + NUMBERS - (cell - 1)) % NUMBERS <= SLICES as u64
    }

    fn wipe(&mut self) {
        for cell in 0..self.cells.len {
            if !self.is_live(self.cells.get(cell)) {
                self.cells.set(cell, 0);
            }
        }
    }
}

impl Kind for Approximator {
    fn insert(&mut self, key: Fingerprint) {
        if self.keys == self.slice_keys {
            // Two numbers are free: the next one was wiped out now or the last time.
            if self.slice.is_multiple_of(2) {
                self.wipe();
            }
            self.slice += 1;
            self.keys = 0;
        }
        self.keys += 1;
        // Slice numbers only rise, so the largest is the newest.
        (0..self.k).for_each(|number| self.cells.set(place(key.low(), number, self.cells.len), self.slice % NUMBERS + 1));
    }

    fn contains(&self, key: Fingerprint) -> bool {
        (0..self.k).all(|number| self.is_live(self.cells.get(place(key.low(), number, self.cells.len))))
    }

    fn bytes(&self) -> usize {
        self.cells.bytes()
    }
}
