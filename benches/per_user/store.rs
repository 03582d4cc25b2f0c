//! The two ways to remember what users have seen, and variants of them.

use fastbloom::BloomFilter;
use std::collections::HashMap;
use std::ops::Range;
use unseen::filter::{Aging, AgingSizing, CuckooSizing, Filter, Growth, Spec, Window};
use unseen::key::Fingerprint;

/// Number of ids that a user's filter is sized for.
pub const CAPACITY: u64 = 4_000;
/// Number of a user's ids from which such a filter is rebuilt.
pub const LATEST: u64 = 100;
/// Slices per window.
pub const SLICES: u64 = 4;
/// Length of a slice in milliseconds. The window is one day.
const SLICE_MS: i64 = 6 * 60 * 60 * 1000;
/// Number of keys that the worker looks up together.
const BATCH: usize = 64;

/// The ids that the users have seen. The ids of a user are numbered.
pub trait Store {
    /// Records that a user has seen ids.
    fn see(&mut self, user: u64, ids: Range<u64>);
    /// Returns how many of the ids are reported as seen by a user.
    fn ask(&mut self, user: u64, ids: Range<u64>) -> u64;
    /// Starts a slice of the window.
    fn advance(&mut self, slice: u64);
}

#[derive(Clone, Copy)]
pub enum Kind {
    /// The recipe: a filter per user, rebuilt at half of its capacity.
    EachHalf,
    /// A filter per user, rebuilt at its full capacity.
    EachFull,
    Aging,
    Cuckoo,
}

impl Kind {
    const ALL: [Self; 4] = [Self::EachHalf, Self::EachFull, Self::Aging, Self::Cuckoo];

    /// Name in an argument.
    pub fn name(self) -> &'static str {
        match self {
            Self::EachHalf => "each-half",
            Self::EachFull => "each-full",
            Self::Aging => "aging",
            Self::Cuckoo => "cuckoo",
        }
    }

    pub fn named(name: &str) -> Self {
        Self::ALL.into_iter().find(|kind| kind.name() == name).expect("a kind")
    }

    /// True if ids seen before the window matter.
    pub fn has_history(self) -> bool {
        matches!(self, Self::EachHalf | Self::EachFull)
    }

    /// Builds a store for a number of ids in a window, over all users. Shared stores have room for an additional eighth, like a
    /// filter that adapts.
    pub fn build(self, ids: u64, rate: f64) -> Box<dyn Store> {
        let (window, roomy) = (window(), ids * 9 / 8);
        let each = |rebuild_at| Box::new(Each { users: HashMap::new(), rate, rebuild_at });
        let shared = |spec: Spec| Box::new(Shared { filter: spec.build(window), waiting: Vec::new(), seen: Vec::new() });
        match self {
            Self::EachHalf => each(CAPACITY / 2),
            Self::EachFull => each(CAPACITY),
            Self::Aging => shared(Spec::Aging(AgingSizing::new(window, roomy, rate))),
            Self::Cuckoo => shared(Spec::Cuckoo(CuckooSizing::new(window, roomy, rate))),
        }
    }
}

fn window() -> Window {
    Window::time(SLICE_MS * SLICES as i64, SLICES as u32)
}

/// A filter per user.
struct Each {
    users: HashMap<u64, User>,
    rate: f64,
    rebuild_at: u64,
}

struct User {
    filter: BloomFilter,
    held: u64,
}

impl Store for Each {
    fn see(&mut self, user: u64, ids: Range<u64>) {
        let fresh = || User { filter: BloomFilter::with_false_pos(self.rate).seed(&1).expected_items(CAPACITY as usize), held: 0 };
        let User { filter, held } = self.users.entry(user).or_insert_with(fresh);
        for id in ids {
            if *held == self.rebuild_at {
                filter.clear();
                // Read from a history of what the user saw. The history itself is not counted here.
                (id - LATEST..id).for_each(|id| _ = filter.insert_hash(key(user, id).low()));
                *held = LATEST;
            }
            filter.insert_hash(key(user, id).low());
            *held += 1;
        }
    }

    fn ask(&mut self, user: u64, ids: Range<u64>) -> u64 {
        let filter = self.users.get(&user).map(|user| &user.filter);
        filter.map_or(0, |filter| ids.filter(|&id| filter.contains_hash(key(user, id).low())).count() as u64)
    }

    fn advance(&mut self, _slice: u64) {}
}

/// One filter for the keys [user, id], as in unseen.
struct Shared {
    filter: Box<dyn Filter>,
    waiting: Vec<Fingerprint>,
    seen: Vec<bool>,
}

impl Shared {
    fn insert_waiting(&mut self) {
        self.filter.prefetch(&self.waiting);
        for key in self.waiting.drain(..) {
            self.filter.check_and_insert(key).expect("enough memory");
        }
    }
}

impl Store for Shared {
    fn see(&mut self, user: u64, ids: Range<u64>) {
        for id in ids {
            self.waiting.push(key(user, id));
            if self.waiting.len() == BATCH {
                self.insert_waiting();
            }
        }
    }

    fn ask(&mut self, user: u64, ids: Range<u64>) -> u64 {
        self.insert_waiting();
        if ids.end - ids.start == 1 {
            return u64::from(self.filter.contains(key(user, ids.start)));
        }
        let keys: Vec<_> = ids.map(|id| key(user, id)).collect();
        self.seen.clear();
        self.seen.resize(keys.len(), false);
        self.filter.contains_each(&keys, &mut self.seen);
        self.seen.iter().filter(|seen| **seen).count() as u64
    }

    fn advance(&mut self, slice: u64) {
        self.insert_waiting();
        self.filter.advance(slice as i64 * SLICE_MS);
    }
}

/// Bytes per id of an aging filter that has room for exactly the ids of the window.
pub fn least(rate: f64) -> f64 {
    const IDS: u64 = 10_000_000;
    AgingSizing::new(window(), IDS, rate).bytes(window()) as f64 / IDS as f64
}

/// Maximum bytes per id of an aging filter that adapts to days on which one quarter has 40 % of the ids.
pub fn uneven_days(rate: f64) -> f64 {
    const IDS: u64 = 1_000_000;
    let sizing = AgingSizing::new(window(), IDS, rate).with_growth(Growth { adapt: true, ..Growth::default() });
    let mut filter = Aging::new(window(), sizing);
    let mut bytes = 0;
    for (slice, tenths) in [1, 2, 4, 3].into_iter().cycle().take(16).enumerate() {
        filter.advance(slice as i64 * SLICE_MS);
        for id in 0..IDS / 10 * tenths {
            filter.check_and_insert(key(slice as u64, id)).expect("enough memory");
        }
        // The memory is constant from the third day on.
        if slice >= 8 {
            bytes = bytes.max(filter.usage().bytes);
        }
    }
    bytes as f64 / IDS as f64
}

/// Scatters a number over all 64-bit numbers (the finalizer of `SplitMix64`).
pub fn scatter(number: u64) -> u64 {
    let mixed = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

/// The key of a user and one of their ids.
fn key(user: u64, id: u64) -> Fingerprint {
    let low = scatter(user << 32 | id);
    Fingerprint(u128::from(scatter(low)) << 64 | u128::from(low))
}
