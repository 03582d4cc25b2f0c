//! Contents of records, shared by several workers: a sample for counting key conflicts, and counts of the contents that were read to detect
//! changes.
//!
//! A worker must not hold the lock while it reads a record.

use crate::content::{self, CompareContent, Conflicts, ContentSample, PartitionKey};
use crate::key::{ContentCounts, OpenValue};
use crate::record::Verdict;
use crate::runtime;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

/// Number of contents that must be read before the worker warns that no record has any part of the compared content.
const EMPTY_MAX: u64 = 1000;

/// Counts of the contents that were read for `emit = "on_change"`. If the content is in the value, tombstones are not counted.
#[derive(Debug, Default)]
pub struct ComparedContents {
    read: AtomicU64,
    with_parts: AtomicU64,
}

impl ComparedContents {
    /// Adds the counts of more records. If the warning applies, only the call that reaches `EMPTY_MAX` contents returns it.
    pub fn add(&self, ContentCounts { read, with_parts }: ContentCounts) -> Option<String> {
        // `with_parts` is added first. Otherwise, another thread could see records that were read, but none with parts, and warn for no
        // reason.
        self.with_parts.fetch_add(with_parts, Ordering::SeqCst);
        let before = self.read.fetch_add(read, Ordering::SeqCst);
        self.warning().filter(|_| before < EMPTY_MAX)
    }

    /// Returns a warning if at least `EMPTY_MAX` contents were read and each of them lacks all of its parts.
    #[must_use]
    pub fn warning(&self) -> Option<String> {
        let is_empty = self.read.load(Ordering::SeqCst) >= EMPTY_MAX && self.with_parts.load(Ordering::SeqCst) == 0;
        is_empty.then(|| {
            format!(
                "none of the first {EMPTY_MAX} records has any part of the content that `emit` compares, so changes are dropped as duplicates; correct the names in on_change"
            )
        })
    }
}

/// The content of a sample of keys, shared by several workers. A worker can check without a lock whether a key is in the sample.
#[derive(Debug)]
pub struct SharedContents {
    compare: CompareContent,
    halvings: AtomicU32,
    sample: Mutex<TimedSample>,
}

#[derive(Debug)]
struct TimedSample {
    sample: ContentSample,
    minute: Instant,
}

impl SharedContents {
    /// Creates the sample of a topic. `keys` is the topic's number of keys per window, if known.
    pub(super) fn new(keys: Option<u64>, compare: CompareContent) -> Self {
        let sample = TimedSample { sample: ContentSample::new(keys), minute: runtime::now() };
        Self { compare, halvings: AtomicU32::new(0), sample: Mutex::new(sample) }
    }

    /// Adds a record, as [`ContentSample::take`] does. Opens the value only if the key is in the sample. If the record conflicts with its
    /// original, returns the fields that differ and the number of the conflict, starting at 1.
    #[inline]
    pub fn take<'v>(
        &self,
        key: PartitionKey,
        verdict: Verdict,
        open: impl FnOnce() -> Option<OpenValue<'v>>,
    ) -> Option<(Vec<String>, u64)> {
        if verdict == Verdict::Retracted {
            self.forget(key);
        }
        if !self.is_of(key) || !content::is_compared(verdict) {
            return None;
        }
        let mut value = open()?;
        // Computing the content is slow, so it happens without the lock.
        let content = self.compare.content(&mut value);
        let bytes = value.text.map_or(0, <[u8]>::len);
        let (difference, number) = self.with(|sample| Some((sample.look(key, verdict, bytes, content)?, sample.conflicts())))?;
        let fields = difference.fields(&mut value);
        self.with(|sample| sample.count(&fields));
        Some((fields, number))
    }

    #[inline]
    pub fn forget(&self, key: PartitionKey) {
        if self.is_of(key) {
            self.with(|sample| sample.forget(key));
        }
    }

    pub fn forget_partition(&self, partition: i32) {
        self.with(|sample| sample.forget_partition(partition));
    }

    fn is_of(&self, key: PartitionKey) -> bool {
        content::is_of(key.fingerprint, self.halvings.load(Ordering::Relaxed))
    }

    fn with<T>(&self, action: impl FnOnce(&mut ContentSample) -> T) -> T {
        let mut timed = self.sample.lock().unwrap_or_else(PoisonError::into_inner);
        let minutes = runtime::since(timed.minute).as_secs() / 60;
        if minutes > 0 {
            timed.sample.pass_minutes(minutes);
            timed.minute = runtime::now();
        }
        let result = action(&mut timed.sample);
        self.halvings.store(timed.sample.halvings(), Ordering::Relaxed);
        result
    }

    #[must_use]
    pub fn read(&self) -> Conflicts {
        self.with(|sample| sample.read())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::{NoSchemas, RecordFormat};
    use crate::key::{Fingerprint, ValueReader};

    #[test]
    fn a_topic_without_any_content_warns_once_until_a_record_has_some() {
        let (counts, contents) = (ComparedContents::default(), |read, with_parts| ContentCounts { read, with_parts });
        assert_eq!(counts.add(contents(EMPTY_MAX - 1, 0)), None);
        assert_eq!(counts.warning(), None);
        assert!(counts.add(contents(1, 0)).is_some());
        assert_eq!(counts.add(contents(1, 0)), None, "already returned");
        assert!(counts.warning().is_some());
        counts.add(contents(1, 1));
        assert_eq!(counts.warning(), None);
    }

    #[test]
    fn conflicts_are_numbered_and_outdated_content_is_forgotten() {
        let contents = SharedContents::new(Some(1_000), CompareContent::default());
        let key = |partition| PartitionKey { partition, fingerprint: Fingerprint(7) };
        let take = |partition, verdict, value: &str| {
            let mut reader = ValueReader::default();
            let format = RecordFormat::default();
            contents.take(key(partition), verdict, || reader.open(&format, Some(value.as_bytes()), std::iter::empty(), &NoSchemas))
        };
        let differs = |number| Some((vec!["the value".to_owned()], number));
        assert_eq!(take(0, Verdict::Unseen, "a"), None);
        assert_eq!((take(0, Verdict::Duplicate, "b"), take(0, Verdict::Duplicate, "c")), (differs(1), differs(2)));
        assert_eq!(take(1, Verdict::Duplicate, "b"), None, "another partition");
        contents.forget(key(0));
        assert_eq!((take(0, Verdict::Duplicate, "b"), take(0, Verdict::Duplicate, "a")), (None, differs(3)));
        contents.forget_partition(0);
        assert_eq!((take(0, Verdict::Duplicate, "c"), take(1, Verdict::Duplicate, "c")), (None, differs(4)));
        assert_eq!(take(1, Verdict::Retracted, "x"), None);
        assert_eq!(take(1, Verdict::Duplicate, "d"), None);
        let Conflicts { compared, conflicts, .. } = contents.read();
        assert_eq!((compared, conflicts), (4, 4));
    }
}
