//! One partition of a key space, as it is shared by who applies its changelog and who asks it.
//!
//! Owns its state, and whether that may be asked. Must never be asked before all of its changelog was applied.

use super::Unavailable;
use crate::dedup::{Dedup, Rules};
use crate::filter::{Slice, Usage};
use crate::key::Fingerprint;
use crate::record::Timestamp;
use crate::runtime;
use std::sync::atomic::{AtomicI64, AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::{Duration, Instant};

/// Per mille of a changelog.
const ALL: u32 = 1000;
/// The partition cannot be followed.
const BROKEN: u32 = ALL + 1;
/// All of the changelog was applied. Its last record says whether the state may be asked: the constant plus a [`Standing`].
const APPLIED: u32 = ALL + 2;
const UNOWNED: u32 = APPLIED + Standing::Unowned as u32;
const OTHER_KEYS: u32 = APPLIED + Standing::OtherKeys as u32;
const WARMING_UP: u32 = APPLIED + Standing::WarmingUp as u32;
const READY: u32 = APPLIED + Standing::Complete as u32;

/// What the last record of a changelog says about the state that it makes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Standing {
    /// There is no record: nobody knows what the group has emitted.
    Unowned,
    /// The worker makes keys, or counts its window, in another way than this follower.
    OtherKeys,
    /// The worker is warming up, and the changelog still lacks keys.
    WarmingUp,
    /// The changelog has all that the worker knows.
    Complete,
}

/// Keys that are asked for while nothing may be applied.
const KEYS: usize = 1024;
/// Least time between two estimates of the filter's rate, which take milliseconds each.
const ESTIMATE_INTERVAL: Duration = Duration::from_secs(1);

/// The filter's rate, and the state that it was computed from.
#[derive(Debug)]
struct Estimate {
    at: Instant,
    keys: u64,
    slice: Option<Slice>,
    rate: f64,
}

/// A partition that is followed.
#[derive(Debug)]
pub(super) struct Partition {
    pub(super) number: i32,
    state: RwLock<Dedup>,
    /// Per mille that was applied, or one of the constants above.
    progress: AtomicU32,
    /// The brokers' latest word that nothing else was committed, in milliseconds since the epoch; 0 before the first.
    as_of: AtomicI64,
    /// Why it cannot be followed, if it cannot.
    broken: Mutex<String>,
    estimate: Mutex<Option<Estimate>>,
    /// Keys that were applied since the start, also again.
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

    /// The state, to be changed.
    pub(super) fn write(&self) -> RwLockWriteGuard<'_, Dedup> {
        self.state.write().unwrap_or_else(PoisonError::into_inner)
    }

    fn read(&self) -> RwLockReadGuard<'_, Dedup> {
        self.state.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins anew, with a state that has seen nothing. Not to be asked until it is ready.
    pub(super) fn begin(&self, rules: Rules) {
        self.progress.store(0, Ordering::Release);
        let new = Dedup::new(rules);
        let old = std::mem::replace(&mut *self.write(), new);
        // It is large, and nobody need wait until it is gone.
        drop(old);
    }

    /// It cannot be followed, for this reason.
    pub(super) fn broken(&self, sentence: String) {
        *self.broken.lock().unwrap_or_else(PoisonError::into_inner) = sentence;
        self.progress.store(BROKEN, Ordering::Release);
    }

    /// So much of its changelog was applied.
    pub(super) fn come_to(&self, part: i64, whole: i64) {
        let permille = part.saturating_mul(i64::from(ALL)) / whole.max(1);
        self.progress.store(u32::try_from(permille).unwrap_or(0).min(ALL - 1), Ordering::Release);
    }

    /// All of its changelog was applied.
    pub(super) fn arrived(&self, standing: Standing) {
        self.progress.store(APPLIED + standing as u32, Ordering::Release);
    }

    pub(super) fn is_ready(&self) -> bool {
        self.progress.load(Ordering::Acquire) == READY
    }

    /// Nothing else was committed by that time.
    pub(super) fn is_as_of(&self, time: Timestamp) {
        // Not the latest: the clock may have been set back.
        self.as_of.store(time, Ordering::Relaxed);
    }

    /// See [`Partition::is_as_of`]; none before it is ready.
    pub(super) fn as_of(&self) -> Option<Timestamp> {
        Some(self.as_of.load(Ordering::Relaxed)).filter(|&time| time > 0 && self.is_ready())
    }

    /// Sets to true what stands in `seen` beside keys that were seen.
    pub(super) fn ask(&self, fingerprints: &[Fingerprint], seen: &mut [bool]) -> Result<(), Unavailable> {
        for (fingerprints, seen) in fingerprints.chunks(KEYS).zip(seen.chunks_mut(KEYS)) {
            self.ask_some(fingerprints, seen)?;
        }
        Ok(())
    }

    /// Whether it may be asked.
    pub(super) fn check(&self) -> Result<(), Unavailable> {
        self.ask_some(&[], &mut [])
    }

    fn ask_some(&self, fingerprints: &[Fingerprint], seen: &mut [bool]) -> Result<(), Unavailable> {
        // The lock first: who begins anew says so before the state is another.
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

    /// Returns the filter's rate by formula, as of the last time that it was computed.
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
