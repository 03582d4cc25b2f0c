//! What the open transaction has written.
//!
//! Owns the way back from a record that was refused to the one it was made of. Must never hold more than a few bytes a
//! record: there may be millions.

use crate::record::{Offset, Timestamp};

/// Of so many records, the time of one is kept.
const TIMED: usize = 64;

/// The records that the open transaction has written, by number.
#[derive(Default)]
pub(super) struct InFlight {
    offsets: Vec<Offset>,
    /// Number of the first, topic and partition of those that were written one after the other from one partition.
    runs: Vec<(usize, usize, i32)>,
    times: Vec<Timestamp>,
}

impl InFlight {
    /// Adds a record by where it came from, and returns its number.
    #[inline]
    pub(super) fn push(&mut self, topic: usize, partition: i32, offset: Offset, time: Option<Timestamp>) -> usize {
        let number = self.offsets.len();
        if self.runs.last().is_none_or(|&(_, of, from)| (of, from) != (topic, partition)) {
            self.runs.push((number, topic, partition));
        }
        if number.is_multiple_of(TIMED) {
            self.times.extend(time);
        }
        self.offsets.push(offset);
        number
    }

    /// Where a record came from: topic, partition and offset.
    pub(super) fn origin(&self, number: usize) -> Option<(usize, i32, Offset)> {
        let offset = *self.offsets.get(number)?;
        let run = self.runs.partition_point(|&(first, ..)| first <= number).checked_sub(1)?;
        let (_, topic, partition) = self.runs[run];
        Some((topic, partition, offset))
    }

    /// Number of records.
    pub(super) const fn len(&self) -> usize {
        self.offsets.len()
    }

    /// Times of a few of them, to tell how long they took.
    pub(super) fn times(&self) -> &[Timestamp] {
        &self.times
    }

    pub(super) fn clear(&mut self) {
        self.offsets.clear();
        self.runs.clear();
        self.times.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_is_led_back_to_where_it_came_from() {
        let mut written = InFlight::default();
        let origins = [(0, 1, 7), (0, 1, 9), (0, 2, 3), (1, 2, 4), (0, 1, 12)];
        for (number, &(topic, partition, offset)) in origins.iter().enumerate() {
            assert_eq!(written.push(topic, partition, offset, Some(5)), number);
        }
        for (number, &origin) in origins.iter().enumerate() {
            assert_eq!(written.origin(number), Some(origin));
        }
        assert_eq!((written.origin(origins.len()), written.len(), written.times()), (None, origins.len(), &[5][..]));
        written.clear();
        assert_eq!((written.origin(0), written.len()), (None, 0));
    }
}
