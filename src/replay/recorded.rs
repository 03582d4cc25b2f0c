//! A record of a recorded stream.
//!
//! The type is the same for all formats of lines. `input` and `envelope` parse the formats.

use crate::record::{Offset, Timestamp};
use std::borrow::Cow;

pub(super) type Header<'a> = (Cow<'a, [u8]>, Option<Cow<'a, [u8]>>);

#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Recorded<'a> {
    pub(crate) topic: Option<Cow<'a, str>>,
    pub(crate) partition: i32,
    pub(crate) offset: Option<Offset>,
    /// Time of the record. As in a worker, a time before the epoch counts as missing.
    pub(crate) time: Option<Timestamp>,
    pub(crate) key: Option<Cow<'a, [u8]>>,
    pub(crate) value: Option<Cow<'a, [u8]>>,
    pub(super) headers: Vec<Header<'a>>,
}

impl Recorded<'_> {
    /// Returns the headers whose names are UTF-8. As in a worker, other headers cannot be looked up.
    pub(crate) fn headers(&self) -> Vec<(&str, Option<&[u8]>)> {
        self.headers.iter().filter_map(|(name, value)| Some((std::str::from_utf8(name).ok()?, value.as_deref()))).collect()
    }
}
