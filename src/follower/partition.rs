//! A partition of a key space, shared by the applier and the queries.
//!
//! Holds the dedup state and its readiness. A partition never answers before the whole changelog is applied.

use super::Unavailable;
use crate::dedup::{Dedup, Rules};
use crate::filter::{Slice, Usage};
use crate::key::Fingerprint;
use crate::record::Timestamp;
use crate::runtime;
use std::sync::atomic::{AtomicI64, AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::{Duration, Instant};

/// A loading progress of 100 %, in per mille. While a partition is loading, `Partition::progress` is less than this value. Otherwise, it is
/// `BROKEN`, `UNOWNED`, `OTHER_KEYS`, `WARMING_UP`, or `READY`.
const ALL: u32 = 1000;
const BROKEN: u32 = ALL + 1;
/// The lowest progress value of a completely applied changelog. The [`Standing`] is added to this value.
const APPLIED: u32 = ALL + 2;
const UNOWNED: u32 = APPLIED + Standing::Unowned as u32;
const OTHER_KEYS: u32 = APPLIED + Standing::OtherKeys as u32;
const WARMING_UP: u32 = APPLIED + Standing::WarmingUp as u32;
const READY: u32 = APPLIED + Standing::Complete as u32;

/// The status of a partition, according to the last record of its changelog.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Standing {
    /// The changelog has no record. The keys that the group has emitted are unknown.
    Unowned,
    /// The worker's key or window settings differ from this configuration.
    OtherKeys,
    /// The worker is warming up, and the changelog still lacks keys.
    WarmingUp,
    /// The changelog contains all keys of the window.
    Complete,
}

/// Maximum number of keys to look up before the read lock is released. Without this limit, a large query would block the applier.
const KEYS: usize = 1024;
/// The shortest time between two estimates of the filter's false-positive rate. Each estimate takes milliseconds.
const ESTIMATE_INTERVAL: Duration = Duration::from_secs(1);

#[derive(Debug)]
struct Estimate {
    at: Instant,
    keys: u64,
    slice: Option<Slice>,
    rate: f64,
}

#[derive(Debug)]
pub(super) struct Partition {
    pub(super) number: i32,
    state: RwLock<Dedup>,
    /// The loading progress in per mille, or, if the partition is not loading, a constant such as `READY`.
    progress: AtomicU32,
    /// A time in milliseconds since the epoch. The state contains all commits before this time. 0 until the state first reaches an end
    /// offset that the brokers reported.
    as_of: AtomicI64,
    /// The error message. Outdated unless `progress` is `BROKEN`.
    broken: Mutex<String>,
    estimate: Mutex<Option<Estimate>>,
    /// The number of insertions, renewals, and deletions applied since the start. If the changelog is loaded again, its changes count
    /// again.
    pub(super) applied: AtomicU64,
}

impl Partition {
    pub(super) fn new(number: i32, rules: Rules) -> Self {
        Self {
            number,
            state: RwLock::new(Dedup::new(rules)),
            progress: AtomicU32::new(0),
            as_of: AtomicI64::new(0),
            broken: Mutex::default(),
            estimate: Mutex::default(),
            applied: AtomicU64::new(0),
        }
    }

    pub(super) fn write(&self) -> RwLockWriteGuard<'_, Dedup> {
        self.state.write().unwrap_or_else(PoisonError::into_inner)
    }

    fn read(&self) -> RwLockReadGuard<'_, Dedup> {
        self.state.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Replaces the state with an empty one. The partition does not answer until it is loaded.
    pub(super) fn begin(&self, rules: Rules) {
        self.progress.store(0, Ordering::Release);
        let new = Dedup::new(rules);
        let old = std::mem::replace(&mut *self.write(), new);
        // Dropping a large state takes time, so the lock is released first.
        drop(old);
    }

    pub(super) fn set_broken(&self, message: String) {
        *self.broken.lock().unwrap_or_else(PoisonError::into_inner) = message;
        self.progress.store(BROKEN, Ordering::Release);
    }

    /// Sets the loading progress to `part` out of `whole` offsets.
    pub(super) fn set_progress(&self, part: i64, whole: i64) {
        let permille = part.saturating_mul(i64::from(ALL)) / whole.max(1);
        self.progress.store(u32::try_from(permille).unwrap_or(0).min(ALL - 1), Ordering::Release);
    }

    /// Marks the changelog as completely applied. The partition can answer only if `standing` is [`Standing::Complete`].
    pub(super) fn set_applied(&self, standing: Standing) {
        self.progress.store(APPLIED + standing as u32, Ordering::Release);
    }

    pub(super) fn is_loading(&self) -> bool {
        self.progress.load(Ordering::Acquire) < ALL
    }

    pub(super) fn is_ready(&self) -> bool {
        self.progress.load(Ordering::Acquire) == READY
    }

    pub(super) fn set_as_of(&self, time: Timestamp) {
        // An earlier time is accepted, because the clock may have been set back.
        self.as_of.store(time, Ordering::Relaxed);
    }

    /// Returns a time, in milliseconds since the epoch. The state contains all commits before this time. Returns `None` while the partition
    /// is not ready.
    pub(super) fn as_of(&self) -> Option<Timestamp> {
        Some(self.as_of.load(Ordering::Relaxed)).filter(|&time| time > 0 && self.is_ready())
    }

    pub(super) fn ask(&self, fingerprints: &[Fingerprint], seen: &mut [bool]) -> Result<(), Unavailable> {
        for (fingerprints, seen) in fingerprints.chunks(KEYS).zip(seen.chunks_mut(KEYS)) {
            self.ask_some(fingerprints, seen)?;
        }
        Ok(())
    }

    pub(super) fn check(&self) -> Result<(), Unavailable> {
        self.ask_some(&[], &mut [])
    }

    fn ask_some(&self, fingerprints: &[Fingerprint], seen: &mut [bool]) -> Result<(), Unavailable> {
        // The lock must be taken before the progress is read. Otherwise, `begin` could replace the state in between, and the empty state
        // would answer.
        let state = self.read();
        match self.progress.load(Ordering::Acquire) {
            READY => state.contains_each(fingerprints, seen).map_err(|error| Unavailable::Broken(error.to_string())),
            UNOWNED => Err(Unavailable::Unowned { partition: self.number }),
            OTHER_KEYS => Err(Unavailable::OtherKeys),
            WARMING_UP => Err(Unavailable::WarmingUp { partition: self.number }),
            BROKEN => Err(Unavailable::Broken(self.broken.lock().unwrap_or_else(PoisonError::into_inner).clone())),
            permille => Err(Unavailable::Loading { partition: self.number, percent: permille * 100 / ALL }),
        }
    }

    /// Returns the filter's usage and capacity, and the stream time.
    pub(super) fn usage(&self) -> (Usage, u64, Option<Timestamp>) {
        let state = self.read();
        (state.usage(), state.rules().capacity().unwrap_or(0), state.stream_time())
    }

    /// Returns the estimated false-positive rate of the filter. The estimate is up to a second old. It can be older if no slice has started
    /// since and the number of keys has hardly changed.
    pub(super) fn rate(&self) -> f64 {
        let mut estimate = self.estimate.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(last) = &*estimate
            && runtime::since(last.at) < ESTIMATE_INTERVAL
        {
            return last.rate;
        }
        let state = self.read();
        let (keys, slice) = (state.usage().keys, state.slice());
        let rate = match &*estimate {
            Some(last) if last.slice == slice && last.keys.abs_diff(keys) <= last.keys / 256 => return last.rate,
            _ => state.filter().map_or(0.0, |filter| filter.metadata().estimate()),
        };
        *estimate = Some(Estimate { at: runtime::now(), keys, slice, rate });
        rate
    }
}
