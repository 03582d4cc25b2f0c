//! The origin of a written record.
//!
//! Encodes origins as numbers. Different origins always have different numbers.

/// The source of a written record. librdkafka stores it with the record, encoded as a number (the tag).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WrittenFrom {
    /// An input record, with the value of [`Outgoing::origin`](super::Outgoing::origin).
    Read(usize),
    Changelog,
}

impl WrittenFrom {
    pub(super) const fn tag(self) -> usize {
        match self {
            Self::Changelog => 0,
            Self::Read(number) => number + 1,
        }
    }

    pub(super) const fn of(tag: usize) -> Self {
        match tag.checked_sub(1) {
            None => Self::Changelog,
            Some(number) => Self::Read(number),
        }
    }
}
