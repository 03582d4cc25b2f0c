//! One partition of one key space: from a fingerprint and its time to a verdict.
//!
//! Owns stream time and the rules of the window. Its state is a pure function of what it was
//! shown, in order: it must never look at a clock, and time comes in with each record.

use crate::filter::{Filter, Full, Manifest, Mismatch, PageId, Spec, Window};
use crate::key::Fingerprint;
use crate::record::{Timestamp, Verdict};
use serde::{Deserialize, Serialize};

/// What becomes of a record that is older than the window and was not seen within it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Late {
    /// It goes out like any unseen record: when unsure, never lose.
    #[default]
    Emit,
    /// It is dropped.
    Drop,
    /// It goes to the topic's dead letters.
    DeadLetter,
}

/// The rules of one key space.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rules {
    /// How long a key stays seen.
    pub window: Window,
    /// Kind and size of a partition's filter.
    pub filter: Spec,
    /// Whether a duplicate renews the window of its key. If so, a key that repeats for ever is never emitted again.
    pub refresh: bool,
    /// What becomes of late records.
    pub late: Late,
}

/// The memory of one partition.
#[derive(Debug)]
pub struct Dedup {
    rules: Rules,
    filter: Box<dyn Filter>,
    stream_time: Option<Timestamp>,
}

impl Dedup {
    /// A partition that has seen nothing.
    #[must_use]
    pub fn new(rules: Rules) -> Self {
        Self { rules, filter: rules.filter.build(), stream_time: None }
    }

    /// Decides one record, and remembers its key if it is to be emitted.
    ///
    /// `time` is the record's own time in milliseconds, if it has one. A time beyond `horizon`, the
    /// latest that is believed, is judged but does not advance stream time: a broken producer clock
    /// must not make the filter forget everything.
    ///
    /// # Errors
    /// [`Full`] when the key cannot be remembered; it is then not decided.
    pub fn judge(&mut self, fingerprint: Fingerprint, time: Option<Timestamp>, horizon: Timestamp) -> Result<Verdict, Full> {
        if let Some(time) = time.filter(|&time| time <= horizon)
            && self.stream_time.is_none_or(|stream_time| time > stream_time)
        {
            self.stream_time = Some(time);
            self.filter.advance(time);
        }
        if self.filter.contains(fingerprint) {
            if self.rules.refresh {
                self.filter.refresh(fingerprint)?;
            }
            return Ok(Verdict::Duplicate);
        }
        if self.rules.late != Late::Emit && self.is_late(time) {
            return Ok(Verdict::Late);
        }
        self.filter.insert(fingerprint)?;
        Ok(Verdict::Unseen)
    }

    /// Whether a record of that time is older than the window.
    #[must_use]
    pub fn is_late(&self, time: Option<Timestamp>) -> bool {
        match (self.rules.window.length_ms(), self.stream_time, time) {
            (Some(length), Some(stream_time), Some(time)) => stream_time.saturating_sub(time) > length,
            _ => false,
        }
    }

    /// The largest believed record time that was shown.
    #[must_use]
    pub const fn stream_time(&self) -> Option<Timestamp> {
        self.stream_time
    }

    /// The filter, for what is to be shown of it.
    #[must_use]
    pub fn filter(&self) -> &dyn Filter {
        &*self.filter
    }

    /// Everything but the filter's bits.
    #[must_use]
    pub fn snapshot(&self) -> Snapshot {
        Snapshot { stream_time: self.stream_time, filter: self.filter.manifest() }
    }

    /// All pages are stored.
    pub fn mark_clean(&mut self) {
        self.filter.mark_clean();
    }

    /// Nothing is stored any more.
    pub fn mark_stale(&mut self) {
        self.filter.mark_stale();
    }

    /// The partition that a snapshot describes; its pages are still to be read in.
    ///
    /// # Errors
    /// [`Mismatch`] when the snapshot is not one of these rules.
    pub fn from_snapshot(rules: Rules, snapshot: &Snapshot) -> Result<Self, Mismatch> {
        let filter = rules.filter.restore(&snapshot.filter)?;
        if rules.window.length_ms().is_some() && snapshot.stream_time.and_then(|time| rules.window.slice_at(time)) != filter.slice() {
            return Err(Mismatch::StreamTime);
        }
        Ok(Self { rules, filter, stream_time: snapshot.stream_time })
    }

    /// Takes the bits of a page in.
    ///
    /// # Errors
    /// [`Mismatch`] when there is no such page.
    pub fn read_page(&mut self, id: PageId, bytes: &[u8]) -> Result<(), Mismatch> {
        self.filter.read_page(id, bytes)
    }
}

/// A partition's memory without the filter's bits. Its JSON is part of the state format.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Snapshot {
    /// The largest believed record time that was shown, in milliseconds.
    pub stream_time: Option<Timestamp>,
    /// The filter's outline.
    pub filter: Manifest,
}

#[cfg(test)]
mod tests;
