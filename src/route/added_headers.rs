//! Headers that are added to a record before it is written.
//!
//! Stores the values in one reusable buffer to avoid an allocation per record. This module never stores the record's own headers.

use std::ffi::CStr;
use std::fmt::{Display, Write};

#[derive(Debug, Default)]
pub struct AddedHeaders {
    /// Names, each with the end offset of its value in `values`.
    names: Vec<(&'static CStr, usize)>,
    values: String,
    /// See [`AddedHeaders::replace`].
    replaced: &'static [&'static CStr],
}

impl AddedHeaders {
    #[inline]
    pub fn clear(&mut self) {
        self.names.clear();
        self.values.clear();
        self.replaced = &[];
    }

    pub fn push_text(&mut self, name: &'static CStr, value: &str) {
        self.values.push_str(value);
        self.names.push((name, self.values.len()));
    }

    /// Formats the number much faster than [`Display`] does. The speed matters, because every written record of a topic can get such
    /// headers.
    pub fn push_number(&mut self, name: &'static CStr, value: i64) {
        self.push_text(name, itoa::Buffer::new().format(value));
    }

    pub fn push(&mut self, name: &'static CStr, value: impl Display) {
        // Writing to a `String` cannot fail.
        let _ = write!(self.values, "{value}");
        self.names.push((name, self.values.len()));
    }

    /// Marks all headers with these names for removal from the record, even if another program wrote them. Otherwise, readers would mistake
    /// them for headers of unseen.
    pub const fn replace(&mut self, names: &'static [&'static CStr]) {
        self.replaced = names;
    }

    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.names.is_empty()
    }

    #[must_use]
    pub const fn len(&self) -> usize {
        self.names.len()
    }

    #[must_use]
    pub const fn replaced(&self) -> &'static [&'static CStr] {
        self.replaced
    }

    pub fn iter(&self) -> impl Iterator<Item = (&'static CStr, &str)> {
        let mut start = 0;
        self.names.iter().map(move |&(name, end)| {
            let value = &self.values[start..end];
            start = end;
            (name, value)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_keep_their_values_and_clear_removes_them() {
        let mut headers = AddedHeaders::default();
        for _ in 0..2 {
            headers.clear();
            assert!(headers.is_empty() && headers.replaced().is_empty());
            headers.push_text(c"a", "one");
            headers.push(c"b", "");
            headers.push_number(c"c", -3);
            headers.replace(&[c"a", c"d"]);
            assert_eq!(headers.iter().collect::<Vec<_>>(), [(c"a", "one"), (c"b", ""), (c"c", "-3")]);
            assert_eq!((headers.len(), headers.replaced()), (3, &[c"a", c"d"][..]));
        }
    }
}
