//! Generations for kinds that cannot forget: the oldest of `SLICES + 1` is dropped as a whole.
//!
//! `Ring` is for kinds that accept keys one by one. `Sealed` is for kinds that are built from all keys at once. Their keys wait
//! in a hash table until their slice is full.

use crate::{Kind, SLICES};
use std::collections::{HashSet, VecDeque};
use std::hash::{BuildHasherDefault, Hasher};
use unseen::key::Fingerprint;

pub struct Ring<G> {
    /// Generations, newest first.
    generations: VecDeque<G>,
    /// Number of keys in the newest generation, and its maximum.
    keys: usize,
    slice_keys: usize,
}

impl<G: Kind> Ring<G> {
    /// Creates a ring whose window holds `keys`, with generations made for a number of keys and a rate.
    pub fn new(keys: usize, rate: f64, make: impl Fn(usize, f64) -> G) -> Self {
        let rate = unseen::filter::rate_per_generation(rate, SLICES as u32 + 1);
        let slice_keys = keys / SLICES;
        Self { generations: (0..=SLICES).map(|_| make(slice_keys, rate)).collect(), keys: 0, slice_keys }
    }
}

impl<G: Kind> Kind for Ring<G> {
    fn insert(&mut self, key: Fingerprint) {
        if self.keys == self.slice_keys {
            self.generations.rotate_right(1);
            self.generations[0].clear();
            self.keys = 0;
        }
        self.keys += 1;
        self.generations[0].insert(key);
    }

    fn contains(&self, key: Fingerprint) -> bool {
        self.generations.iter().any(|generation| generation.contains(key))
    }

    fn bytes(&self) -> usize {
        self.generations.iter().map(Kind::bytes).sum()
    }
}

/// A kind that is built at once, from 64 bits of each key.
pub trait Static {
    fn contains(&self, hash: u64) -> bool;
    fn bytes(&self) -> usize;
}

pub struct Sealed<S> {
    /// Slices, newest first.
    slices: VecDeque<S>,
    open: Buffer,
    slice_keys: usize,
    build: Box<dyn Fn(Vec<u64>) -> S>,
}

impl<S: Static> Sealed<S> {
    pub fn new(keys: usize, rate: f64, build: impl Fn(Vec<u64>, f64) -> S + 'static) -> Self {
        // The open slice is exact, so it does not contribute to the rate.
        let rate = unseen::filter::rate_per_generation(rate, SLICES as u32);
        let slice_keys = keys / SLICES;
        Self { slices: VecDeque::new(), open: Buffer::default(), slice_keys, build: Box::new(move |keys| build(keys, rate)) }
    }
}

impl<S: Static> Kind for Sealed<S> {
    fn insert(&mut self, key: Fingerprint) {
        if self.open.len() == self.slice_keys {
            self.slices.truncate(SLICES - 1);
            self.slices.push_front((self.build)(self.open.drain().collect()));
        }
        self.open.insert(key.low());
    }

    fn contains(&self, key: Fingerprint) -> bool {
        self.open.contains(&key.low()) || self.slices.iter().any(|sealed| sealed.contains(key.low()))
    }

    fn bytes(&self) -> usize {
        buffer_bytes(self.slice_keys) + self.slices.iter().map(Static::bytes).sum::<usize>()
    }
}

/// 64-bit hashes of the open slice, which need no further hashing.
pub type Buffer = HashSet<u64, BuildHasherDefault<Identity>>;

#[derive(Default)]
pub struct Identity(u64);

impl Hasher for Identity {
    fn write(&mut self, _: &[u8]) {
        unreachable!("only u64 values are hashed");
    }

    fn write_u64(&mut self, value: u64) {
        self.0 = value;
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

/// Memory of a buffer with this number of 64-bit hashes: a hash table filled to four fifths. (The hash table of the standard
/// library doubles, so it takes up to twice as much.)
pub fn buffer_bytes(keys: usize) -> usize {
    keys * 10
}
