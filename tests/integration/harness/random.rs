//! Random numbers from a seed.

/// A seeded random number generator (Steele, Lea, Flood: "Fast Splittable Pseudorandom Number Generators", 2014).
pub struct SplitMix(pub u64);

impl SplitMix {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ mixed >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    }

    pub fn below(&mut self, end: usize) -> usize {
        usize::try_from(self.next() % end as u64).expect("less than `end`")
    }

    pub fn one_in(&mut self, count: u64) -> bool {
        self.next().is_multiple_of(count)
    }
}

pub fn pick<T: Copy>(random: &mut SplitMix, choices: &[T]) -> T {
    choices[random.below(choices.len())]
}
