//! The scalable Bloom filter: when a filter is full, another one with twice its size and half its rate is chained to it. Almeida,
//! Baquero, Preguica, Hutchison: "Scalable Bloom Filters", 2007.
//!
//! It starts with a fifteenth of the keys, so that four filters (1 + 2 + 4 + 8) are exactly full at capacity: its best case. With
//! one more key, the fifth filter doubles its memory.

use crate::Kind;
use crate::bloom::Bloom;
use unseen::key::Fingerprint;

const TIGHTENING: f64 = 0.5;
const FIRST_SHARE: usize = 15;

pub struct Scalable {
    first_keys: usize,
    rate: f64,
    /// Layers, oldest first.
    layers: Vec<Bloom>,
    /// Remaining capacity of the newest layer.
    room: usize,
}

impl Scalable {
    pub fn new(keys: usize, rate: f64) -> Self {
        Self { first_keys: keys.div_ceil(FIRST_SHARE), rate: rate * (1.0 - TIGHTENING), layers: Vec::new(), room: 0 }
    }
}

impl Kind for Scalable {
    fn insert(&mut self, key: Fingerprint) {
        if self.room == 0 {
            let depth = self.layers.len();
            self.room = self.first_keys << depth;
            self.layers.push(Bloom::new(self.room, self.rate * TIGHTENING.powi(depth as i32)));
        }
        self.room -= 1;
        self.layers.last_mut().expect("a layer with room").insert(key);
    }

    fn contains(&self, key: Fingerprint) -> bool {
        self.layers.iter().rev().any(|layer| layer.contains(key))
    }

    fn clear(&mut self) {
        self.layers.clear();
        self.room = 0;
    }

    fn bytes(&self) -> usize {
        self.layers.iter().map(Kind::bytes).sum()
    }
}
