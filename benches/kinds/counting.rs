//! The counting Bloom filter: cells of four bits, incremented by an insertion and decremented by a deletion. Fan, Cao, Almeida,
//! Broder: "Summary Cache", 1998.
//!
//! A window must know which key to delete, so there is a queue with 64 bits of each key. A cell that reaches 15 keeps that value.

use crate::Kind;
use crate::bits::{Cells, bloom_size, place};
use std::collections::VecDeque;
use unseen::key::Fingerprint;

pub struct Counting {
    cells: Cells,
    k: usize,
    queue: VecDeque<u64>,
    keys: usize,
}

impl Counting {
    pub fn new(keys: usize, rate: f64) -> Self {
        let (cells, k) = bloom_size(keys, rate);
        Self { cells: Cells::new(cells, 4), k, queue: VecDeque::with_capacity(keys), keys }
    }

    fn count(&mut self, hash: u64, change: impl Fn(u64) -> u64) {
        for number in 0..self.k {
            let cell = place(hash, number, self.cells.len);
            let count = self.cells.get(cell);
            if count < 15 {
                self.cells.set(cell, change(count));
            }
        }
    }
}

impl Kind for Counting {
    fn insert(&mut self, key: Fingerprint) {
        if self.queue.len() == self.keys
            && let Some(oldest) = self.queue.pop_front()
        {
            self.count(oldest, |count| count - 1);
        }
        self.queue.push_back(key.low());
        self.count(key.low(), |count| count + 1);
    }

    fn contains(&self, key: Fingerprint) -> bool {
        (0..self.k).all(|number| self.cells.get(place(key.low(), number, self.cells.len)) > 0)
    }

    fn bytes(&self) -> usize {
        self.cells.bytes() + self.keys * 8
    }
}
