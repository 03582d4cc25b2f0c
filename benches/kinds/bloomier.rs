//! The Bloomier filter: maps each of its keys to a value, here the number of the key's slice. For most other keys, a lookup finds no valid
//! value. Chazelle, Kilian, Rubinfeld, Tal: "The Bloomier Filter", 2004. The filter is built by peeling three-part hypergraphs, as in Graf,
//! Lemire: "Xor Filters", 2020.
//!
//! Keys cannot be added to an existing filter. When a slice closes, the filter is rebuilt from the keys of the window, so 64 bits of each
//! key must be kept. Keys must be distinct.

use crate::cells::{Cells, scale};
use crate::{Buffer, Kind, SLICES, buffer_bytes};
use std::collections::VecDeque;
use unseen::key::Fingerprint;

/// Bits of a slice number. Slices are numbered modulo 8.
const VALUE_BITS: usize = 3;

pub struct Bloomier {
    cells: Cells,
    seed: u64,
    check_bits: usize,
    slice: u64,
    /// Hashes of the closed slices, newest first.
    closed: VecDeque<Vec<u64>>,
    open: Buffer,
    slice_keys: usize,
}

impl Bloomier {
    pub fn new(keys: usize, rate: f64) -> Self {
        // An absent key has a random value. It is a false positive only if this value is the number of one of the four closed slices, out
        // of eight numbers. This saves one check bit.
        let check_bits = (-rate.log2() - 1.0).ceil() as usize;
        let (slice_keys, cells) = (keys / SLICES, Cells::new(3, VALUE_BITS + check_bits));
        Self { cells, seed: 0, check_bits, slice: 0, closed: VecDeque::new(), open: Buffer::default(), slice_keys }
    }

    /// Returns the indices of a key's three cells, one in each third of the cells, and a mask. The XOR of the mask and the values of the
    /// three cells is the slice number of a present key, and random for an absent key.
    fn places(&self, hash: u64) -> ([usize; 3], u64) {
        let mixed = (hash ^ self.seed).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let mixed = (mixed ^ mixed >> 32).wrapping_mul(0xd6e8_feb8_6659_fd93);
        let third = self.cells.len / 3;
        let place = |part: u32| scale(mixed.rotate_left(21 * part), third) + part as usize * third;
        let mask = mixed.wrapping_mul(0xa076_1d64_78bd_642f) >> (64 - VALUE_BITS - self.check_bits);
        ([place(0), place(1), place(2)], mask)
    }

    fn cell_of(&self, places: [usize; 3]) -> u64 {
        places.iter().fold(0, |value, &place| value ^ self.cells.get(place))
    }

    fn build(&mut self) {
        let slices = self.closed.iter().zip(0..).flat_map(|(hashes, age)| hashes.iter().map(move |&hash| (hash, age)));
        let keys: Vec<(u64, u64)> = slices.map(|(hash, age)| (hash, self.slice.wrapping_sub(age) % 8)).collect();
        let third = (keys.len() as f64 * 1.23 / 3.0) as usize + 11;
        self.cells = Cells::new(third * 3, VALUE_BITS + self.check_bits);
        let order = loop {
            self.seed = self.seed.wrapping_mul(0xd120_2ef8_7ac4_2ad5).wrapping_add(0x8cb9_2ba7_2f3d_8dd7);
            let order = self.peel(&keys);
            if order.len() == keys.len() {
                break order;
            }
        };
        for (number, place) in order.into_iter().rev() {
            let (hash, value) = keys[number];
            let (places, mask) = self.places(hash);
            let others = self.cell_of(places) ^ self.cells.get(place);
            self.cells.set(place, mask ^ value ^ others);
        }
    }

    /// Repeatedly removes a key that is the only key in one of its cells. Returns the index of each removed key and the index of that cell,
    /// in the order of the removals. Removes fewer than all keys if the seed is unsuitable.
    fn peel(&self, keys: &[(u64, u64)]) -> Vec<(usize, usize)> {
        // For each cell, the number of its keys, and the XOR of their indices.
        let mut cells = vec![(0_u32, 0_u32); self.cells.len];
        let turn = |cells: &mut Vec<(u32, u32)>, number: usize, change: u32| {
            self.places(keys[number].0).0.map(|place| {
                let cell = &mut cells[place];
                *cell = (cell.0.wrapping_add(change), cell.1 ^ number as u32);
                place
            })
        };
        for number in 0..keys.len() {
            turn(&mut cells, number, 1);
        }
        let mut single: Vec<usize> = (0..cells.len()).filter(|&cell| cells[cell].0 == 1).collect();
        let mut order = Vec::with_capacity(keys.len());
        while let Some(place) = single.pop() {
            let (1, number) = cells[place] else { continue };
            order.push((number as usize, place));
            let places = turn(&mut cells, number as usize, u32::MAX);
            single.extend(places.into_iter().filter(|&place| cells[place].0 == 1));
        }
        order
    }
}

impl Kind for Bloomier {
    fn insert(&mut self, key: Fingerprint) {
        self.open.insert(key.low());
    }

    fn contains(&self, key: Fingerprint) -> bool {
        let (places, mask) = self.places(key.low());
        let value = self.cell_of(places) ^ mask;
        let there = value < 1 << VALUE_BITS && self.slice.wrapping_sub(value) % 8 < self.closed.len() as u64;
        there || self.open.contains(&key.low())
    }

    fn bytes(&self) -> usize {
        self.cells.bytes() + buffer_bytes(self.slice_keys) + self.closed.iter().map(|hashes| hashes.len() * 8).sum::<usize>()
    }

    fn rotate(&mut self) {
        self.slice = self.slice.wrapping_add(1);
        self.closed.truncate(SLICES - 1);
        self.closed.push_front(self.open.drain().collect());
        self.build();
    }
}
