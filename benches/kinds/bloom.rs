//! The Bloom filter and its relatives. In this file, k is the number of cells (bits, counters, or slice numbers) of each key.
//! docs/contributing/rejected.md lists the papers.

use crate::cells::{Cells, bloom_size, place};
use crate::{Kind, SLICES};
use std::collections::VecDeque;
use unseen::key::Fingerprint;

pub trait Generation: Kind {
    fn clear(&mut self);
}

/// Generations of a kind that cannot forget single keys, newest first. The oldest generation is cleared as a whole.
pub struct Ring<G>(VecDeque<G>);

impl<G: Generation> Ring<G> {
    pub fn new(rate: f64, make: impl Fn(f64) -> G) -> Self {
        let rate = unseen::filter::rate_per_generation(rate, SLICES as u32 + 1);
        Self((0..=SLICES).map(|_| make(rate)).collect())
    }
}

impl<G: Generation> Kind for Ring<G> {
    fn insert(&mut self, key: Fingerprint) {
        self.0[0].insert(key);
    }

    fn contains(&self, key: Fingerprint) -> bool {
        self.0.iter().any(|generation| generation.contains(key))
    }

    fn bytes(&self) -> usize {
        self.0.iter().map(Kind::bytes).sum()
    }

    fn rotate(&mut self) {
        self.0.rotate_right(1);
        self.0[0].clear();
    }
}

/// The plain Bloom filter: each key sets k bits anywhere among m bits. If partitioned, the filter has k parts, and each key sets one bit in
/// each part.
pub struct Bloom {
    bits: Cells,
    k: usize,
    partitioned: bool,
}

impl Bloom {
    pub fn new(keys: usize, rate: f64, partitioned: bool) -> Self {
        let (bits, k) = bloom_size(keys, rate);
        Self { bits: Cells::new(bits.next_multiple_of(k), 1), k, partitioned }
    }

    fn places(&self, key: Fingerprint) -> impl Iterator<Item = usize> + use<> {
        let (len, step) = if self.partitioned { (self.bits.len / self.k, self.bits.len / self.k) } else { (self.bits.len, 0) };
        (0..self.k).map(move |number| number * step + place(key.low(), number, len))
    }
}

impl Kind for Bloom {
    fn insert(&mut self, key: Fingerprint) {
        self.places(key).for_each(|place| self.bits.set(place, 1));
    }

    fn contains(&self, key: Fingerprint) -> bool {
        self.places(key).all(|place| self.bits.get(place) == 1)
    }

    fn bytes(&self) -> usize {
        self.bits.bytes()
    }
}

impl Generation for Bloom {
    fn clear(&mut self) {
        self.bits.clear();
    }
}

/// The scalable Bloom filter: when a filter is full, another filter with twice its capacity and half its rate is added. The first filter is
/// sized for a fifteenth of `keys`, so four filters (1 + 2 + 4 + 8) are exactly full after `keys` insertions. The benchmark therefore
/// measures the best case: one more key would add a fifth filter and double the memory.
pub struct Scalable {
    first_keys: usize,
    rate: f64,
    layers: Vec<Bloom>,
    /// Number of keys that can still be inserted into the newest layer.
    room: usize,
}

impl Scalable {
    pub fn new(keys: usize, rate: f64) -> Self {
        Self { first_keys: keys.div_ceil(15), rate: rate * 0.5, layers: Vec::new(), room: 0 }
    }
}

impl Kind for Scalable {
    fn insert(&mut self, key: Fingerprint) {
        if self.room == 0 {
            let depth = self.layers.len();
            self.room = self.first_keys << depth;
            self.layers.push(Bloom::new(self.room, self.rate * 0.5_f64.powi(depth as i32), false));
        }
        self.room -= 1;
        self.layers.last_mut().expect("a layer with room").insert(key);
    }

    fn contains(&self, key: Fingerprint) -> bool {
        self.layers.iter().rev().any(|layer| layer.contains(key))
    }

    fn bytes(&self) -> usize {
        self.layers.iter().map(Kind::bytes).sum()
    }
}

impl Generation for Scalable {
    fn clear(&mut self) {
        self.layers.clear();
        self.room = 0;
    }
}

/// The counting Bloom filter: cells of four bits, which an insertion increments and a deletion decrements. Only known keys can be deleted,
/// so a queue stores 64 bits of each key of the window. A cell that reaches 15 keeps that value.
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
        for cell in self.cells.places(hash, self.k) {
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
        self.cells.places(key.low(), self.k).all(|cell| self.cells.get(cell) > 0)
    }

    fn bytes(&self) -> usize {
        self.cells.bytes() + self.keys * 8
    }
}

/// Number of different slice numbers that an [`Approximator`] stores in its cells.
const NUMBERS: u64 = 7;

/// The compact approximator. Each cell stores the largest value of its keys, so the smallest value in a key's k cells is an upper bound of
/// the key's value. Here, a key's value is the number of the slice of its last insertion. A key is reported as seen if all of its k cells
/// have the number of the open slice or of one of the four slices before it. Numbers cycle from 1 to 7, and 0 marks an empty cell. Before a
/// number is reused, the cells that still have it are cleared, two numbers at a time.
pub struct Approximator {
    cells: Cells,
    k: usize,
    slice: u64,
}

impl Approximator {
    pub fn new(keys: usize, rate: f64) -> Self {
        let (cells, k) = bloom_size(keys / SLICES * (SLICES + 1), rate);
        Self { cells: Cells::new(cells, 3), k, slice: 0 }
    }

    /// True if a cell has the number of the open slice or of one of the four slices before it.
    fn is_live(&self, cell: usize) -> bool {
        let value = self.cells.get(cell);
        value > 0 && (self.slice + NUMBERS - (value - 1)) % NUMBERS <= SLICES as u64
    }
}

impl Kind for Approximator {
    fn insert(&mut self, key: Fingerprint) {
        // No slice is newer than the open slice, so its number replaces the numbers in the cells. Comparing the numbers would not work,
        // because they wrap around.
        self.cells.places(key.low(), self.k).for_each(|cell| self.cells.set(cell, self.slice % NUMBERS + 1));
    }

    fn contains(&self, key: Fingerprint) -> bool {
        self.cells.places(key.low(), self.k).all(|cell| self.is_live(cell))
    }

    fn bytes(&self) -> usize {
        self.cells.bytes()
    }

    fn rotate(&mut self) {
        // The open slice and the four slices before it use five of the seven numbers. Every second rotation clears the cells with the other
        // two numbers, so the number of the next slice is always free.
        if self.slice.is_multiple_of(2) {
            (0..self.cells.len).for_each(|cell| {
                if !self.is_live(cell) {
                    self.cells.set(cell, 0);
                }
            });
        }
        self.slice += 1;
    }
}

/// The age-partitioned Bloom filter. It has k + l parts, and a key sets one bit in each of the k youngest parts. After every
/// `generation_keys` keys, the oldest part is dropped, and a new one is added. A key is present if k consecutive parts have its bits.
pub struct AgePartitioned {
    /// Parts, youngest first, each with the number of its hash function.
    parts: VecDeque<(usize, Cells)>,
    k: usize,
    pub generation_keys: usize,
}

impl AgePartitioned {
    /// Selects the k and l that meet the rate with the least memory.
    pub fn new(keys: usize, rate: f64) -> Self {
        let cost = |k: usize, l: usize| k as f64 * (k + l) as f64 / l as f64;
        let shapes = (1..40).filter_map(|k| Some((k, (1..200).rev().find(|&l| false_positives(k, l) <= rate)?)));
        let (k, l) = shapes.min_by(|one, two| cost(one.0, one.1).total_cmp(&cost(two.0, two.1))).expect("a shape");
        let generation_keys = keys.div_ceil(l);
        // The size of a part at which half of its bits are set once the part contains k generations of keys.
        let bits = ((k * generation_keys) as f64 / std::f64::consts::LN_2).ceil() as usize;
        Self { parts: (0..k + l).map(|number| (number, Cells::new(bits, 1))).collect(), k, generation_keys }
    }

    fn has(&self, part: usize, key: Fingerprint) -> bool {
        let (number, bits) = &self.parts[part];
        bits.get(place(key.low(), *number, bits.len)) == 1
    }
}

impl Kind for AgePartitioned {
    fn insert(&mut self, key: Fingerprint) {
        self.parts.iter_mut().take(self.k).for_each(|(number, bits)| bits.set(place(key.low(), *number, bits.len), 1));
    }

    /// Looks for k consecutive parts that have the key's bit, starting with the k oldest parts. If part p lacks the bit, no run of k parts
    /// with the bit contains p, so the search continues with parts p - k to p - 1, which are younger. Parts that are already known to have
    /// the bit are not checked again.
    fn contains(&self, key: Fingerprint) -> bool {
        let (mut part, mut found, mut behind) = (self.parts.len() - self.k, 0, 0);
        loop {
            if self.has(part, key) {
                found += 1;
                part += 1;
                if found + behind == self.k {
                    return true;
                }
            } else {
                let Some(next) = part.checked_sub(self.k) else { return false };
                (part, behind, found) = (next, found, 0);
            }
        }
    }

    fn bytes(&self) -> usize {
        self.parts.iter().map(|(_, bits)| bits.bytes()).sum()
    }

    fn rotate(&mut self) {
        self.parts.rotate_right(1);
        self.parts[0].1.clear();
    }
}

/// Returns the false-positive rate just before a rotation, when every part is as full as it gets. Counting from 0 at the youngest part,
/// part i contains the keys of i + 1 generations, but at most k.
fn false_positives(k: usize, l: usize) -> f64 {
    // `runs[n]` is the probability that the n most recently visited parts have the key's bit, that the part visited before them lacks it,
    // and that no k consecutive parts have been found.
    let mut runs = vec![0.0; k];
    runs[0] = 1.0;
    let mut hit = 0.0;
    for part in 0..k + l {
        let set = 1.0 - 0.5_f64.powf((part + 1).min(k) as f64 / k as f64);
        let next = runs.iter().sum::<f64>() * (1.0 - set);
        hit += runs[k - 1] * set;
        for run in (1..k).rev() {
            runs[run] = runs[run - 1] * set;
        }
        runs[0] = next;
    }
    hit
}
