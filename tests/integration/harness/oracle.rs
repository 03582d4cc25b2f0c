//! The expected output of a stream, computed with a simple model of the window.

use super::TestRecord;
use super::record::index;
use std::collections::{HashMap, HashSet};
use std::time::Duration;

/// The header of a record that retracts its key.
pub const RETRACT: &str = "retract";

/// A time window with `refresh = false`. Each partition of a key space has its own window.
#[derive(Clone, Copy, Debug)]
pub struct Oracle {
    slice_ms: i64,
    slices: i64,
}

impl Oracle {
    pub fn new(window: Duration, slices: u32) -> Self {
        let window = i64::try_from(window.as_millis()).expect("a window of less than an eternity");
        let slices = i64::from(slices);
        Self { slice_ms: (window + slices - 1) / slices, slices }
    }

    /// The records that must be emitted, by partition and in order. Records are deduplicated by their record key.
    pub fn expected(&self, records: &[TestRecord], partitions: usize) -> Vec<Vec<TestRecord>> {
        let mut states = vec![Remembered::default(); partitions];
        let mut expected = vec![Vec::new(); partitions];
        for record in records {
            let partition = index(record.partition);
            if states[partition].is_unseen(self, record) {
                expected[partition].push(record.clone());
            }
        }
        expected
    }
}

impl Oracle {
    pub fn seen(&self, records: &[TestRecord], partitions: usize) -> HashSet<Vec<u8>> {
        let mut states = vec![Remembered::default(); partitions];
        for record in records {
            states[index(record.partition)].is_unseen(self, record);
        }
        let seen = states.iter().flat_map(|state| {
            let slice = state.stream_time.unwrap_or_default().div_euclid(self.slice_ms);
            state.emitted.iter().filter(move |&(_, emitted)| slice - emitted <= self.slices).filter_map(|(key, _)| key.map(<[u8]>::to_vec))
        });
        seen.collect()
    }
}

/// The emitted keys of a partition, each with the slice in which it was last emitted.
#[derive(Clone, Default)]
struct Remembered<'a> {
    stream_time: Option<i64>,
    emitted: HashMap<Option<&'a [u8]>, i64>,
}

impl<'a> Remembered<'a> {
    fn is_unseen(&mut self, oracle: &Oracle, record: &'a TestRecord) -> bool {
        let stream_time = self.stream_time.max(Some(record.timestamp));
        self.stream_time = stream_time;
        let slice = stream_time.unwrap_or_default().div_euclid(oracle.slice_ms);
        let key = record.key.as_deref();
        if record.headers.iter().any(|(name, _)| name == RETRACT) {
            self.emitted.remove(&key);
            return false;
        }
        // The window keeps `slices + 1` generations: the current slice and `slices` earlier ones.
        if self.emitted.get(&key).is_some_and(|emitted| slice - emitted <= oracle.slices) {
            return false;
        }
        self.emitted.insert(key, slice);
        true
    }
}
