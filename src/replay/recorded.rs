//! A record as it was recorded, whatever the format.
//!
//! Owns its parts. Must never know how a line is written: `input` and `envelope` do.

use crate::record::{Offset, Timestamp};
use std::borrow::Cow;

/// Name and value of a header.
pub(super) type Header<'a> = (Cow<'a, [u8]>, Option<Cow<'a, [u8]>>);

/// A record as a line has it.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Recorded<'a> {
    /// The topic that it was read from, and its offset there, where the line says that.
    pub(crate) topic: Option<Cow<'a, str>>,
    pub(crate) partition: i32,
    pub(crate) offset: Option<Offset>,
    /// As in a worker, what lies before the epoch is no time.
    pub(crate) time: Option<Timestamp>,
    pub(crate) key: Option<Cow<'a, [u8]>>,
    pub(crate) value: Option<Cow<'a, [u8]>>,
    pub(super) headers: Vec<Header<'a>>,
}

impl Recorded<'_> {
    /// The headers that can be asked for, as in a worker: those whose names are text.
    pub(crate) fn headers(&self) -> Vec<(&str, Option<&[u8]>)> {
        self.headers.iter().filter_map(|(name, value)| Some((std::str::from_utf8(name).ok()?, value.as_deref()))).collect()
    }
}
