//! What the open transaction has written.
//!
//! Owns the way back from a record that was refused to the one it was made of. Must never hold more than a few bytes a
//! record: there may be millions.

use super::ids::InputId;
use crate::record::{Offset, Timestamp};

/// Of so many records, the time of one is kept.
const TIMED: usize = 64;

/// The records that the open transaction has written, by number.
#[derive(Default)]
pub(super) struct InFlight {
    offsets: Vec<Offset>,
    /// Number of the first of those that were written one after the other from one partition, and which that is.
    runs: Vec<(usize, InputId)>,
    times: Vec<Timestamp>,
}

impl InFlight {
    /// Adds a record by where it came from, and returns its number.
    #[inline]
    pub(super) fn push(&mut self, of: InputId, offset: Offset, time: Option<Timestamp>) -> usize {
        let number = self.offsets.len();
        if self.runs.last().is_none_or(|&(_, last)| last != of) {
            self.runs.push((number, of));
        }
        if number.is_multiple_of(TIMED) {
            self.times.extend(time);
        }
        self.offsets.push(offset);
        number
    }

    /// Where a record came from.
    pub(super) fn origin(&self, number: usize) -> Option<(InputId, Offset)> {
        let offset = *self.offsets.get(number)?;
        let run = self.runs.partition_point(|&(first, _)| first <= number).checked_sub(1)?;
        Some((self.runs[run].1, offset))
    }

    /// Number of records.
    pub(super) const fn len(&self) -> usize {
        self.offsets.len()
    }

    /// Times of a few of them, to measure how long they took.
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
    use crate::record::TopicId;

    #[test]
    fn a_record_is_led_back_to_where_it_came_from() {
        let mut in_flight = InFlight::default();
        let of = |topic, partition| InputId { topic: TopicId(topic), partition };
        let origins = [(of(0, 1), 7), (of(0, 1), 9), (of(0, 2), 3), (of(1, 2), 4), (of(0, 1), 12)];
        for (number, &(input, offset)) in origins.iter().enumerate() {
            assert_eq!(in_flight.push(input, offset, Some(5)), number);
        }
        for (number, &origin) in origins.iter().enumerate() {
            assert_eq!(in_flight.origin(number), Some(origin));
        }
        assert_eq!((in_flight.origin(origins.len()), in_flight.len(), in_flight.times()), (None, origins.len(), &[5][..]));
        in_flight.clear();
        assert_eq!((in_flight.origin(0), in_flight.len()), (None, 0));
    }
}
