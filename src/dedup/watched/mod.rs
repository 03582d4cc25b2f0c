//! Measures the error rate of a filter.
//!
//! Keeps the watched keys: a sample of the keys that were emitted and have not expired yet, remembered exactly. Fingerprints determine
//! which keys are in the sample, so every group member, restart, and replay watches the same keys. If a key of the sample is dropped
//! although it is not among the watched keys, the drop is a false positive. This module never changes a verdict.

use crate::filter::Slice;
use crate::key::Fingerprint;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, HashMap};

/// The lower bound of the planned sample size. If a filter remembers at most this number of keys at capacity, all of its keys are watched.
const KEYS_MIN: u64 = 1 << 10;
/// The upper bound of the planned sample size. A watched key uses 33 bytes of a hash table that may be half empty.
const KEYS_MAX: u64 = 1 << 14;
/// One in `SHARE` keys is watched, if the resulting number of keys is between `KEYS_MIN` and `KEYS_MAX`.
const SHARE: u64 = 64;
/// The number of watched keys may reach this multiple of the planned number. If an overfull filter makes the number exceed that limit, the
/// sampled share is halved.
const OVERFULL: u64 = 4;
/// If fewer than 1/`SPARSE` of the maximum number of keys are watched, a halved share is doubled again.
const SPARSE: u64 = 8;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct WatchedKey {
    /// The filter's expiry clock when the key was last emitted or renewed, or first dropped wrongly. `None` before any time was known.
    clock: Option<Slice>,
    /// True if the key was dropped without having been emitted. Such a key is stored to count it only once.
    wrong: bool,
}

/// The measured errors of a filter, among the keys of the sample.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Observed {
    /// The number of unseen keys of the sample that were looked up.
    pub checked: u64,
    /// The number of these keys that the filter wrongly reported as seen. Their records were dropped.
    pub wrong: u64,
}

impl Observed {
    /// Adds the counts of other lookups.
    pub const fn add(&mut self, other: Self) {
        self.checked = self.checked.saturating_add(other.checked);
        self.wrong = self.wrong.saturating_add(other.wrong);
    }

    /// Returns the share of unseen keys that were dropped, or `None` if no unseen key of the sample was looked up.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "a ratio")]
    pub fn rate(self) -> Option<f64> {
        (self.checked > 0).then(|| self.wrong as f64 / self.checked as f64)
    }

    /// Returns the lower and upper bounds of the 95 % confidence interval of the true rate (Wilson: "Probable Inference, the Law of
    /// Succession, and Statistical Inference", 1927). If no unseen key of the sample was looked up, the interval is 0 to 1.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "a ratio")]
    pub fn interval(self) -> (f64, f64) {
        let (Some(rate), z2) = (self.rate(), 1.96 * 1.96) else { return (0.0, 1.0) };
        let n = self.checked as f64;
        let middle = rate + z2 / (2.0 * n);
        let half = (z2 * (rate * (1.0 - rate) + z2 / (4.0 * n)) / n).sqrt();
        // If nothing was wrong, the formula's lower bound is only rounding error.
        let low = if self.wrong == 0 { 0.0 } else { ((middle - half) / (1.0 + z2 / n)).max(0.0) };
        (low, ((middle + half) / (1.0 + z2 / n)).min(1.0))
    }
}

/// The watched keys of one state. Its JSON is part of the state format.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "StoredWatchedKeys", into = "StoredWatchedKeys")]
pub struct WatchedKeys {
    /// One key in 2^`halvings` counts toward the measured rate.
    halvings: u32,
    /// The planned `halvings`. After a burst, `halvings` returns to this value.
    least: u32,
    /// Set while the share is being doubled: the clock when the sample started to watch twice the share. The additional keys count only
    /// after all keys that were emitted before that clock have expired, because the sample lacks some of the earlier keys.
    doubled: Option<Slice>,
    keys_max: u64,
    /// The lifetime of a watched key, in ticks of the expiry clock.
    lifetime: u32,
    clock: Option<Slice>,
    keys: HashMap<u64, WatchedKey>,
    observed: BTreeMap<Slice, Observed>,
}

impl WatchedKeys {
    /// Creates an empty sample for a filter that remembers `keys` keys at a time. A watched key expires when more than `lifetime` ticks of
    /// the expiry clock have passed since it was last emitted or renewed.
    pub(super) fn new(keys: u64, lifetime: u32) -> Self {
        let keys_max = (keys / SHARE).clamp(KEYS_MIN, KEYS_MAX);
        let halvings = (0..63).find(|&halvings| keys >> halvings <= keys_max).unwrap_or(63);
        let (keys_max, keys, observed) = (keys_max * OVERFULL, HashMap::new(), BTreeMap::new());
        Self { halvings, least: halvings, doubled: None, keys_max, lifetime, clock: None, keys, observed }
    }

    /// Returns the name of a key, which is a hash of its fingerprint, or `None` if the key is not in the sample. A key is in the sample if
    /// its name has enough leading zeros. So if the share is halved, the new sample is a subset of the old sample. The name mixes the bits
    /// of the fingerprint, so the selection does not depend on the bits that a filter uses.
    fn name(&self, fingerprint: Fingerprint) -> Option<u64> {
        let name = (fingerprint.low() ^ fingerprint.high().rotate_left(32)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        (name.leading_zeros() >= self.halvings - u32::from(self.doubled.is_some())).then_some(name)
    }

    /// True if a key of the sample also counts toward the measured rate. While the share is being doubled, half of the sample does not
    /// count.
    const fn counts(&self, name: u64) -> bool {
        name.leading_zeros() >= self.halvings
    }

    /// Advances the clock. Forgets expired keys and their observations. If few keys are left after a burst, starts to double the share, and
    /// ends the doubling when all keys from before its start have expired.
    fn advance(&mut self, clock: Option<Slice>) {
        let Some(now) = clock.filter(|_| self.clock != clock) else { return };
        if self.clock.is_none() {
            // Keys that were inserted before any time was known expire as if they were inserted at the first known time.
            self.keys.values_mut().for_each(|watched| watched.clock = clock);
            self.observed = self.observed.iter().map(|(_, &observed)| (now, observed)).collect();
        }
        self.clock = clock;
        let oldest = now.before(self.lifetime);
        self.keys.retain(|_, watched| watched.clock.is_some_and(|clock| clock >= oldest));
        self.observed.retain(|&clock, _| clock >= oldest);
        if self.doubled.is_some_and(|since| since < oldest) {
            (self.halvings, self.doubled) = (self.halvings - 1, None);
        }
        if self.doubled.is_none() && self.halvings > self.least && (self.keys.len() as u64) < self.keys_max / SPARSE {
            self.doubled = Some(now);
        }
    }

    // `dropped`, `emitted`, `judged`, and `inserted_again` take the clock as a function, because only keys of the sample need the clock,
    // and a large filter has few of them.

    pub(super) fn dropped(&mut self, fingerprint: Fingerprint, clock: impl FnOnce() -> Option<Slice>) {
        let Some(name) = self.name(fingerprint) else { return };
        self.advance(clock());
        if self.counts(name) && !self.keys.contains_key(&name) {
            self.watch(name, WatchedKey { clock: self.clock, wrong: true });
            self.count(1);
        }
    }

    pub(super) fn emitted(&mut self, fingerprint: Fingerprint, clock: impl FnOnce() -> Option<Slice>) {
        let Some(name) = self.name(fingerprint) else { return };
        self.advance(clock());
        // If the sample already has the key as emitted, the filter forgot the key too early. The key was not unseen, so it does not count.
        if self.counts(name) && self.keys.get(&name).is_none_or(|watched| watched.wrong) {
            self.count(0);
        }
        self.watch(name, WatchedKey { clock: self.clock, wrong: false });
    }

    pub(super) fn judged(&mut self, fingerprints: &[Fingerprint], seen: &[bool], clock: &dyn Fn() -> Option<Slice>) {
        for (&fingerprint, seen) in fingerprints.iter().zip(seen) {
            if self.name(fingerprint).is_some() {
                if *seen { self.dropped(fingerprint, clock) } else { self.emitted(fingerprint, clock) }
            }
        }
    }

    /// Watches a key that a changelog inserts or a duplicate renews. Ignores the renewal of a key that was dropped wrongly. Also watches a
    /// renewed key that the sample lacks, for example because the key was emitted before the start of a trimmed changelog.
    pub(super) fn inserted_again(&mut self, fingerprint: Fingerprint, renew: bool, clock: impl FnOnce() -> Option<Slice>) {
        let Some(name) = self.name(fingerprint) else { return };
        self.advance(clock());
        let is_wrong = self.keys.get(&name).is_some_and(|watched| watched.wrong);
        if !is_wrong || !renew {
            self.watch(name, WatchedKey { clock: self.clock, wrong: false });
        }
    }

    pub(super) fn remove(&mut self, fingerprint: Fingerprint) {
        if let Some(name) = self.name(fingerprint) {
            self.keys.remove(&name);
        }
    }

    /// Watches a key. If there are then too many keys, halves the sampled share and forgets the keys that are no longer in the sample.
    fn watch(&mut self, name: u64, watched: WatchedKey) {
        self.keys.insert(name, watched);
        if self.keys.len() as u64 > self.keys_max {
            let halvings = self.halvings + u32::from(self.doubled.is_none());
            (self.halvings, self.doubled) = (halvings, None);
            self.keys.retain(|name, _| name.leading_zeros() >= halvings);
        }
    }

    fn count(&mut self, wrong: u64) {
        self.observed.entry(self.clock.unwrap_or_default()).or_default().add(Observed { checked: 1, wrong });
    }

    /// Returns the observations of the last `lifetime` ticks. `clock` is the current clock. If it is `None`, returns all observations.
    #[must_use]
    pub fn observed(&self, clock: Option<Slice>) -> Observed {
        let mut all = Observed::default();
        let oldest = clock.map_or(Slice(i64::MIN), |clock| clock.before(self.lifetime));
        self.observed.range(oldest..).for_each(|(_, &observed)| all.add(observed));
        all
    }

    pub(super) const fn lifetime(&self) -> u32 {
        self.lifetime
    }
}

/// The stored form of watched keys. Each clock has one text with the names of its keys, 16 hexadecimal digits per name.
#[derive(Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct StoredWatchedKeys {
    halvings: u32,
    least: u32,
    doubled: Option<Slice>,
    keys_max: u64,
    lifetime: u32,
    clock: Option<Slice>,
    emitted: Vec<(Option<Slice>, String)>,
    wrong: Vec<(Option<Slice>, String)>,
    observed: Vec<(Slice, Observed)>,
}

impl From<WatchedKeys> for StoredWatchedKeys {
    fn from(all: WatchedKeys) -> Self {
        let names = |wrong: bool| {
            let mut by_clock = BTreeMap::<_, Vec<u64>>::new();
            for (&name, watched) in all.keys.iter().filter(|(_, watched)| watched.wrong == wrong) {
                by_clock.entry(watched.clock).or_default().push(name);
            }
            let text = |mut names: Vec<u64>| {
                names.sort_unstable();
                names.iter().fold(String::with_capacity(16 * names.len()), |text, name| text + &format!("{name:016x}"))
            };
            by_clock.into_iter().map(|(clock, names)| (clock, text(names))).collect()
        };
        Self {
            halvings: all.halvings,
            least: all.least,
            doubled: all.doubled,
            keys_max: all.keys_max,
            lifetime: all.lifetime,
            clock: all.clock,
            emitted: names(false),
            wrong: names(true),
            observed: all.observed.into_iter().collect(),
        }
    }
}

impl TryFrom<StoredWatchedKeys> for WatchedKeys {
    type Error = &'static str;

    fn try_from(stored: StoredWatchedKeys) -> Result<Self, Self::Error> {
        let mut keys = HashMap::new();
        for (list, wrong) in [(&stored.emitted, false), (&stored.wrong, true)] {
            for (clock, text) in list {
                for digits in text.as_bytes().chunks(16) {
                    let name = std::str::from_utf8(digits).ok().and_then(|digits| u64::from_str_radix(digits, 16).ok());
                    keys.insert(name.ok_or("a watched key must be 16 hexadecimal digits")?, WatchedKey { clock: *clock, wrong });
                }
            }
        }
        let StoredWatchedKeys { halvings, least, doubled, keys_max, lifetime, clock, observed, .. } = stored;
        if doubled.is_some() && halvings == 0 {
            return Err("`doubled` is set, but the sample already contains all keys");
        }
        Ok(Self { halvings, least, doubled, keys_max, lifetime, clock, keys, observed: observed.into_iter().collect() })
    }
}

#[cfg(test)]
mod tests;
