//! The records written in the open transaction.
//!
//! Keeps the origin of each record, which identifies the record if a broker rejects it. This module never holds more than a few bytes per
//! record, because a transaction can have millions of records.

use super::ids::InputId;
use crate::record::{Offset, Timestamp};

/// The sampling interval for latency: one in `TIMED` written records is measured.
const TIMED: usize = 64;

#[derive(Default)]
pub(super) struct InFlight {
    offsets: Vec<Offset>,
    /// The input of each run of records, with the number of the run's first record.
    runs: Vec<(usize, InputId)>,
    times: Vec<Timestamp>,
}

impl InFlight {
    /// Adds a record and returns its number in the transaction, from 0.
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

    pub(super) fn origin(&self, number: usize) -> Option<(InputId, Offset)> {
        let offset = *self.offsets.get(number)?;
        let run = self.runs.partition_point(|&(first, _)| first <= number).checked_sub(1)?;
        Some((self.runs[run].1, offset))
    }

    pub(super) const fn len(&self) -> usize {
        self.offsets.len()
    }

    /// Returns the timestamps of the sampled records, to measure latency.
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
    fn origin_returns_the_input_and_offset_of_a_record() {
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
