//! One partition of a key space, as it is shared by who applies its changelog and who asks it.
//!
//! Owns its state, and whether that may be asked. Must never be asked before all of its changelog was applied.

use super::Unavailable;
use crate::dedup::{Dedup, Rules};
use crate::filter::Usage;
use crate::key::Fingerprint;
use crate::record::Timestamp;
use std::sync::atomic::{AtomicI64, AtomicU32, AtomicU64, Ordering};
use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

/// Per mille of a changelog.
const ALL: u32 = 1000;
/// The worker's configuration is another one.
const OTHER_KEYS: u32 = ALL + 1;
/// All of it was applied.
const READY: u32 = ALL + 2;

/// Keys that are asked for while nothing may be applied.
const KEYS: usize = 1024;

/// A partition that is followed.
#[derive(Debug)]
pub(super) struct Held {
    pub(super) number: i32,
    state: RwLock<Dedup>,
    /// Per mille that was applied, or one of the constants above.
    progress: AtomicU32,
    /// The brokers' latest word that nothing else was committed, in milliseconds since the epoch; 0 before the first.
    as_of: AtomicI64,
    /// Keys that were applied since the start, also again.
    pub(super) applied: AtomicU64,
}

impl Held {
    pub(super) fn new(number: i32, rules: Rules) -> Self {
        Self {
            number,
            state: RwLock::new(Dedup::new(rules)),
            progress: AtomicU32::new(0),
            as_of: AtomicI64::new(0),
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
        *self.write() = Dedup::new(rules);
    }

    /// So much of its changelog was applied.
    pub(super) fn come_to(&self, part: i64, whole: i64) {
        let permille = part.saturating_mul(i64::from(ALL)) / whole.max(1);
        self.progress.store(u32::try_from(permille).unwrap_or(0).min(ALL - 1), Ordering::Release);
    }

    /// All of its changelog was applied; the worker `is_alike` if it makes keys as this follower does.
    pub(super) fn ready(&self, is_alike: bool) {
        self.progress.store(if is_alike { READY } else { OTHER_KEYS }, Ordering::Release);
    }

    pub(super) fn is_ready(&self) -> bool {
        self.progress.load(Ordering::Acquire) == READY
    }

    /// Nothing else was committed by that time.
    pub(super) fn is_as_of(&self, time: Timestamp) {
        self.as_of.fetch_max(time, Ordering::Relaxed);
    }

    /// See [`Held::is_as_of`]; none before it is ready.
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
            OTHER_KEYS => Err(Unavailable::OtherKeys),
            permille => Err(Unavailable::Loading { partition: self.number, percent: permille * 100 / ALL }),
        }
    }

    pub(super) fn usage(&self) -> (Usage, Option<Timestamp>, f64) {
        let state = self.read();
        (state.usage(), state.stream_time(), state.filter().map_or(0.0, |filter| filter.metadata().estimate()))
    }
}
