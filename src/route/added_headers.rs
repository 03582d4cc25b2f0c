//! Headers that are added to a record on its way.
//!
//! Owns one buffer for their values, which is used again: a record costs no memory of its own. Must never hold a header of
//! the record itself.

use std::ffi::CStr;
use std::fmt::{Display, Write};

/// Headers that are added to those of a record.
#[derive(Debug, Default)]
pub struct AddedHeaders {
    /// Their names, each with the place in `values` where its value ends.
    names: Vec<(&'static CStr, usize)>,
    values: String,
    /// See [`AddedHeaders::replace`].
    replaced: &'static [&'static CStr],
}

impl AddedHeaders {
    /// Begins anew.
    pub fn clear(&mut self) {
        self.names.clear();
        self.values.clear();
        self.replaced = &[];
    }

    /// Adds one whose value is a text.
    pub fn push_text(&mut self, name: &'static CStr, value: &str) {
        self.values.push_str(value);
        self.names.push((name, self.values.len()));
    }

    /// Adds one whose value is a number. Much faster than by [`Display`], and each duplicate that is written has some.
    pub fn push_number(&mut self, name: &'static CStr, value: i64) {
        self.push_text(name, itoa::Buffer::new().format(value));
    }

    /// Adds one.
    pub fn push(&mut self, name: &'static CStr, value: impl Display) {
        // A text takes whatever is written to it.
        let _ = write!(self.values, "{value}");
        self.names.push((name, self.values.len()));
    }

    /// Headers of these names are taken from the record, whoever wrote them: no reader takes another's for one of these.
    pub const fn replace(&mut self, names: &'static [&'static CStr]) {
        self.replaced = names;
    }

    /// Whether there are none.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.names.is_empty()
    }

    /// How many there are.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.names.len()
    }

    /// The names that are taken from the record.
    #[must_use]
    pub const fn replaced(&self) -> &'static [&'static CStr] {
        self.replaced
    }

    /// Names and values, in the order in which they were added.
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
    fn each_has_its_own_value_and_nothing_is_left_of_the_record_before() {
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
