//! The two ways to remember what users have seen, and variants of them.

use fastbloom::BloomFilter;
use std::collections::HashMap;
use std::ops::Range;
use unseen::filter::{Aging, AgingSizing, CuckooSizing, Filter, Growth, Spec, Window};
use unseen::key::Fingerprint;

/// Ids that the filter of a user is made for.
pub const CAPACITY: u64 = 4_000;
/// Ids of a user that such a filter is rebuilt from.
pub const LATEST: u64 = 100;
/// Slices of a window.
pub const SLICES: u64 = 4;
/// A slice, in milliseconds: the window is a day.
const SLICE_MS: i64 = 6 * 60 * 60 * 1000;
/// Keys that the worker looks up together.
const BATCH: usize = 64;

/// What the users have seen. Ids of a user are numbered.
pub trait Store {
    /// A user sees more ids.
    fn see(&mut self, user: u64, ids: Range<u64>);
    /// How many of these a user is said to have seen.
    fn ask(&mut self, user: u64, ids: Range<u64>) -> u64;
    /// A slice of the window begins.
    fn advance(&mut self, slice: u64);
}

#[derive(Clone, Copy)]
pub enum Kind {
    /// The recipe, a filter a user, rebuilt when it holds half of what it is made for.
    EachHalf,
    /// The same, rebuilt when it holds all of that.
    EachFull,
    Aging,
    Cuckoo,
}

impl Kind {
    const ALL: [Self; 4] = [Self::EachHalf, Self::EachFull, Self::Aging, Self::Cuckoo];

    /// As it is written in an argument.
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

    /// Whether what was seen before the window matters.
    pub fn has_history(self) -> bool {
        matches!(self, Self::EachHalf | Self::EachFull)
    }

    /// For so many ids in a window, of all users; what is shared has room for an eighth more, as a filter that adapts does.
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

/// A filter a user.
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
                // As read from a history of what the user saw, which is not counted here.
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

/// One filter for the keys [user, id], as unseen keeps it.
struct Shared {
    filter: Box<dyn Filter>,
    waiting: Vec<Fingerprint>,
    seen: Vec<bool>,
}

impl Shared {
    fn insert_waiting(&mut self) {
        self.filter.prefetch(&self.waiting);
        for key in self.waiting.drain(..) {
            self.filter.check_and_insert(key).expect("there is memory");
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

/// Bytes an id of an aging filter that has room for the ids of the window, and no more.
pub fn least(rate: f64) -> f64 {
    const IDS: u64 = 10_000_000;
    AgingSizing::new(window(), IDS, rate).bytes(window()) as f64 / IDS as f64
}

/// Bytes an id of the window, at most, of an aging filter that adapts to days of which a quarter has four tenths of the ids.
pub fn uneven_days(rate: f64) -> f64 {
    const IDS: u64 = 1_000_000;
    let sizing = AgingSizing::new(window(), IDS, rate).with_growth(Growth { adapt: true, ..Growth::default() });
    let mut filter = Aging::new(window(), sizing);
    let mut bytes = 0;
    for (slice, tenths) in [1, 2, 4, 3].into_iter().cycle().take(16).enumerate() {
        filter.advance(slice as i64 * SLICE_MS);
        for id in 0..IDS / 10 * tenths {
            filter.check_and_insert(key(slice as u64, id)).expect("there is memory");
        }
        // From the third day on it is what it stays.
        if slice >= 8 {
            bytes = bytes.max(filter.usage().bytes);
        }
    }
    bytes as f64 / IDS as f64
}

/// A number scattered over all 64-bit ones (the finalizer of `SplitMix64`).
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
