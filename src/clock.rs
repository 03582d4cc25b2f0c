//! This machine's clock.
//!
//! Must never decide a verdict: it only says which record times lie in the future, and when something happened.

use crate::record::Timestamp;
use std::time::{SystemTime, UNIX_EPOCH};

/// Milliseconds since the epoch, now.
#[must_use]
pub fn now() -> Timestamp {
    millis(SystemTime::now())
}

/// Milliseconds from the epoch to a time; 0 for one before it.
#[must_use]
pub fn millis(time: SystemTime) -> Timestamp {
    i64::try_from(time.duration_since(UNIX_EPOCH).unwrap_or_default().as_millis()).unwrap_or(i64::MAX)
}
