//! How a key space that is followed stands.
//!
//! Must never count as ready what cannot be asked.

use super::partition::Partition;
use super::query::Unavailable;
use super::routing::Routing;
use super::space::Space;
use crate::record::Timestamp;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// How a space stands.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct SpaceReport {
    /// Partitions of its changelog that are followed.
    pub partitions: usize,
    /// Of these, those that are ready to be asked.
    pub ready: usize,
    /// Why it cannot be asked, if it cannot.
    pub unavailable: Option<Unavailable>,
    /// Since what time there may be commits that are not known, in milliseconds since the epoch.
    pub as_of: Option<Timestamp>,
    /// The latest stream time of its partitions.
    pub stream_time: Option<Timestamp>,
    /// Keys remembered.
    pub keys: u64,
    /// Keys that the filters are made for.
    pub capacity: u64,
    /// Memory of the filters, in bytes.
    pub bytes: u64,
    /// Share of unseen keys that are called seen, by formula, over all partitions that a key is asked for in.
    pub rate: f64,
    /// Keys that were applied from the changelog since the start.
    pub applied: u64,
    /// Times that a partition was begun anew.
    pub restarts: u64,
    /// Answers that a key was seen, that it was not, and that this is not known.
    pub answers: [u64; 3],
}

impl Space {
    /// How it stands now.
    #[must_use]
    pub fn report(&self) -> SpaceReport {
        let all = self.lock();
        let mut report = SpaceReport {
            unavailable: self.unavailable(&all),
            restarts: self.restarts.load(Ordering::Relaxed),
            answers: [&self.seen, &self.unseen, &self.unknown].map(|count| count.load(Ordering::Relaxed)),
            ..SpaceReport::default()
        };
        // It takes milliseconds, and is the same for all.
        let capacity = self.rules(u32::try_from(all.len()).unwrap_or(u32::MAX)).capacity().unwrap_or(0);
        let mut rates = Vec::new();
        for (number, partition) in all.iter().enumerate() {
            let Some(partition) = partition else {
                if self.wants(i32::try_from(number).unwrap_or(i32::MAX)) {
                    report.partitions += 1;
                    report.unavailable = Some(self.missing(number));
                }
                continue;
            };
            report.partitions += 1;
            match partition.check() {
                Ok(()) => report.ready += 1,
                Err(reason) => report.unavailable = Some(reason),
            }
            let (usage, stream_time, rate) = partition.usage();
            report.keys += usage.keys;
            report.bytes += usage.bytes;
            report.capacity += capacity;
            report.stream_time = report.stream_time.max(stream_time);
            report.applied += partition.applied.load(Ordering::Relaxed);
            rates.push(rate);
        }
        report.rate = match self.routing {
            Routing::Repartitioned | Routing::ByRecordKey(_) if !self.has_grown.load(Ordering::Relaxed) => {
                rates.iter().copied().fold(0.0, f64::max)
            }
            _ => 1.0 - rates.iter().map(|rate| 1.0 - rate).product::<f64>(),
        };
        report.as_of = self.as_of_all(&all);
        report
    }

    /// Since what time there may be commits that are not known, in milliseconds since the epoch; none until that is
    /// known of all partitions.
    #[must_use]
    pub fn as_of(&self) -> Option<Timestamp> {
        self.as_of_all(&self.lock())
    }

    fn as_of_all(&self, all: &[Option<Arc<Partition>>]) -> Option<Timestamp> {
        let mut least = None;
        for (number, partition) in all.iter().enumerate() {
            match partition {
                Some(partition) => least = Some(partition.as_of()?).filter(|&time| least.is_none_or(|least| time < least)).or(least),
                None if self.wants(i32::try_from(number).unwrap_or(i32::MAX)) => return None,
                None => {}
            }
        }
        least
    }
}
