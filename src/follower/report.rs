//! The status of a followed key space.
//!
//! A partition counts as ready only if it can answer.

use super::partition::Partition;
use super::query::Unavailable;
use super::routing::Routing;
use super::space::Space;
use crate::record::Timestamp;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// The status of a key space.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct SpaceReport {
    /// The number of changelog partitions that this process follows.
    pub partitions: usize,
    /// The number of followed partitions that can answer.
    pub ready: usize,
    /// The reason for unknown answers, if any.
    pub unavailable: Option<Unavailable>,
    /// A time in milliseconds since the epoch. The states of all followed partitions contain all commits before this time. `None` while a
    /// followed partition is not ready.
    pub as_of: Option<Timestamp>,
    /// The latest stream time of the partitions, in milliseconds since the epoch.
    pub stream_time: Option<Timestamp>,
    /// The number of remembered keys. A key that is in two partitions counts twice.
    pub keys: u64,
    /// The number of keys that the filters of all followed partitions are sized for.
    pub capacity: u64,
    /// The memory of the filters, in bytes.
    pub bytes: u64,
    /// The estimated false-positive rate of a lookup. If a lookup asks only one partition, the rate of the worst partition. If a lookup
    /// asks all partitions, their combined rate.
    pub rate: f64,
    /// The number of insertions, renewals, and deletions of keys applied from the changelog since the start.
    pub applied: u64,
    /// The number of times that a partition was loaded again, for example because its changelog was recreated.
    pub restarts: u64,
    /// The numbers of answers since the start: seen, unseen, and unknown.
    pub answers: [u64; 3],
}

impl Space {
    /// Returns the reason for unknown answers, if any.
    #[must_use]
    pub fn why_unavailable(&self) -> Option<Unavailable> {
        let all = self.lock();
        self.unavailable(&all).or_else(|| {
            if !(0..all.len()).any(|number| self.follows(number_of(number))) {
                return Some(Unavailable::NonePresent { changelog: self.changelog_name().to_owned(), partitions: all.len() });
            }
            let check = |(number, partition): (usize, &Option<Arc<Partition>>)| match partition {
                Some(partition) => partition.check().err(),
                None => self.follows(number_of(number)).then(|| self.missing(number)),
            };
            all.iter().enumerate().find_map(check)
        })
    }

    /// Returns the current status of the key space. At most once per second, estimates the false-positive rate of each partition, which
    /// takes milliseconds if the filter is large.
    #[must_use]
    pub fn report(&self) -> SpaceReport {
        let mut report = SpaceReport {
            unavailable: self.why_unavailable(),
            restarts: self.restarts.load(Ordering::Relaxed),
            answers: [&self.seen, &self.unseen, &self.unknown].map(|count| count.load(Ordering::Relaxed)),
            ..SpaceReport::default()
        };
        let (all, mut rates) = (self.lock(), Vec::new());
        for (number, partition) in all.iter().enumerate() {
            let Some(partition) = partition else {
                report.partitions += usize::from(self.follows(number_of(number)));
                continue;
            };
            report.partitions += 1;
            report.ready += usize::from(partition.is_ready());
            let (usage, capacity, stream_time) = partition.usage();
            report.keys += usage.keys;
            report.bytes += usage.bytes;
            report.capacity += capacity;
            report.stream_time = report.stream_time.max(stream_time);
            report.applied += partition.applied.load(Ordering::Relaxed);
            rates.push(partition.rate());
        }
        report.rate = match self.routing {
            Routing::Repartitioned | Routing::ByRecordKey(_) if !self.was_resized.load(Ordering::Relaxed) => {
                rates.iter().copied().fold(0.0, f64::max)
            }
            _ => 1.0 - rates.iter().map(|rate| 1.0 - rate).product::<f64>(),
        };
        report.as_of = self.as_of_all(&all);
        report
    }

    /// Returns a time, in milliseconds since the epoch. The states of all followed partitions contain all commits before this time. Returns
    /// `None` while a followed partition is not ready.
    #[must_use]
    pub fn as_of(&self) -> Option<Timestamp> {
        self.as_of_all(&self.lock())
    }

    fn as_of_all(&self, all: &[Option<Arc<Partition>>]) -> Option<Timestamp> {
        let mut least = None;
        for (number, partition) in all.iter().enumerate() {
            match partition {
                Some(partition) => least = Some(partition.as_of()?).filter(|&time| least.is_none_or(|least| time < least)).or(least),
                None if self.follows(number_of(number)) => return None,
                None => {}
            }
        }
        least
    }
}

fn number_of(place: usize) -> i32 {
    i32::try_from(place).unwrap_or(i32::MAX)
}
