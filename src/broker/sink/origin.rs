//! What a written record was made of.
//!
//! Owns how that becomes a number, and back. Must never give two origins one number.

/// What a written record was made of. librdkafka keeps it as a number, its tag.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WrittenFrom {
    /// A record that was read, by the worker's number for it.
    Read(usize),
    /// The changes of a state.
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
