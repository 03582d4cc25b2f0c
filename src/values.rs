//! Counts records and duplicates by a value in the records, for example a tenant name.
//!
//! The number of values with their own counts is limited, because each of these values is a metrics series until the process ends. For the
//! same reason, a count never decreases, and a value keeps its own counts once it has them.
//!
//! A value is named if significantly more than one in [`SHARE`] records have it. Only named values have their own counts. The Misra-Gries
//! algorithm ("Finding repeated elements", Science of Computer Programming 2, 1982) estimates how often a value occurs. With `n` counters,
//! an estimate is never too high, and it is too low by at most the number of records divided by `n`. When only a few of the [`NAMED_MAX`]
//! names are left, a value must be more frequent to be named.

use crate::format::{RecordFormat, Schemas};
use crate::key::{Field, ValueReader};
use std::borrow::Cow;
use std::collections::HashMap;

pub const NAMED_MAX: usize = 64;
pub const SHARE: u64 = 256;
/// If few names are left, a value is named only if more than one in `SHARE_OF_LAST` × (remaining names) records have the value.
const SHARE_OF_LAST: u64 = 16;
/// The minimum number of records with a value before the value is named. With fewer records, some values would be named by chance.
const LEAST: u64 = 16;
/// The maximum number of Misra-Gries counters, each for a value that is not named yet.
const CANDIDATES_MAX: usize = 1024;
/// Longer values are truncated to this number of bytes.
const BYTES_MAX: usize = 64;

/// The location of the counted value in a record.
#[derive(Clone, Debug)]
pub enum CountBy {
    /// The last header with this name.
    Header(String),
    /// A field in the record value.
    Field(Field),
}

impl CountBy {
    /// Returns the counted value of a record. Returns `None` if the record has no text or number at this location, or if the record cannot
    /// be decoded, for example because its schema is not known yet.
    #[must_use]
    pub fn text<'a>(
        &self,
        format: &RecordFormat,
        value: Option<&'a [u8]>,
        headers: impl Iterator<Item = (&'a str, Option<&'a [u8]>)>,
        reader: &'a mut ValueReader,
        schemas: &dyn Schemas,
    ) -> Option<Cow<'a, str>> {
        match self {
            Self::Header(name) => {
                let (_, value) = headers.filter(|(header, _)| header == name).last()?;
                str::from_utf8(value?).ok().map(Cow::Borrowed)
            }
            Self::Field(field) => reader.text(field, format, value?, headers, schemas),
        }
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counted {
    pub records: u64,
    pub duplicates: u64,
}

impl Counted {
    fn add(&mut self, is_duplicate: bool) {
        self.records += 1;
        self.duplicates += u64::from(is_duplicate);
    }
}

#[derive(Clone, Debug, Default)]
pub struct ValueCounts {
    /// The named values, oldest first. A value's counts start when the value is named.
    named: Vec<(String, Counted)>,
    places: HashMap<String, usize>,
    /// Records without a value and records with a value that was not named at the time.
    rest: Counted,
    records: u64,
    candidates: HashMap<String, u64>,
}

impl ValueCounts {
    pub fn add(&mut self, value: Option<&str>, is_duplicate: bool) {
        self.records += 1;
        let value = value.map_or("", |value| cut(value, BYTES_MAX));
        if let Some(&place) = self.places.get(value) {
            return self.named[place].1.add(is_duplicate);
        }
        self.rest.add(is_duplicate);
        if value.is_empty() || self.named.len() == NAMED_MAX {
            return;
        }
        let share = SHARE.min(SHARE_OF_LAST * (NAMED_MAX - self.named.len()) as u64);
        let expected = self.records / share;
        if let Some(count) = self.candidates.get_mut(value) {
            *count += 1;
            // The count must be two standard deviations above the expected count of a value with exactly this share.
            if *count >= LEAST && count.saturating_sub(expected).pow(2) >= 4 * expected {
                self.name(value);
            }
        } else if self.candidates.len() < CANDIDATES_MAX {
            self.candidates.insert(value.to_owned(), 1);
        } else {
            // If no counter is free for the value, the algorithm decrements all counters. Each decrement undoes an earlier increment, so
            // the average cost per record is low.
            self.candidates.retain(|_, count| {
                *count -= 1;
                *count > 0
            });
        }
    }

    fn name(&mut self, value: &str) {
        self.candidates.remove(value);
        self.places.insert(value.to_owned(), self.named.len());
        self.named.push((value.to_owned(), Counted::default()));
        if self.named.len() == NAMED_MAX {
            self.candidates = HashMap::new();
        }
    }

    /// Returns the named values with their counts since they were named, the value with the most records first. The last entry is `None`,
    /// with the counts of all other records.
    #[must_use]
    pub fn read(&self) -> Vec<(Option<String>, Counted)> {
        let mut all: Vec<_> = self.named.iter().map(|(value, counted)| (Some(value.clone()), *counted)).collect();
        all.sort_by_key(|(_, counted)| std::cmp::Reverse(counted.records));
        all.push((None, self.rest));
        all
    }
}

/// Adds up two results of [`ValueCounts::read`]. The value with the most records comes first, and `None` comes last.
#[must_use]
pub fn sum(mut all: Vec<(Option<String>, Counted)>, others: Vec<(Option<String>, Counted)>) -> Vec<(Option<String>, Counted)> {
    for (value, Counted { records, duplicates }) in others {
        match all.iter_mut().find(|(known, _)| *known == value) {
            Some((_, sum)) => *sum = Counted { records: sum.records + records, duplicates: sum.duplicates + duplicates },
            None => all.push((value, Counted { records, duplicates })),
        }
    }
    all.sort_by_key(|(value, counted)| (value.is_none(), std::cmp::Reverse(counted.records)));
    all
}

/// Truncates a text to at most `most` bytes, at a character boundary.
pub(crate) fn cut(value: &str, most: usize) -> &str {
    let end = (0..=most.min(value.len())).rev().find(|&end| value.is_char_boundary(end));
    &value[..end.unwrap_or_default()]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::NoSchemas;

    #[test]
    fn frequent_values_are_named_and_the_rest_is_counted_together() {
        let mut counts = ValueCounts::default();
        let mut strangers = 0;
        for number in 0..100_000_u64 {
            match number % 100 {
                0..60 => counts.add(Some("often"), number % 2 == 0),
                60 => counts.add(Some("seldom"), true),
                61 => counts.add(None, false),
                _ => {
                    strangers += 1;
                    counts.add(Some(&format!("stranger {number}")), false);
                }
            }
        }
        let all = counts.read();
        assert_eq!(all.iter().map(|(value, _)| value.as_deref()).collect::<Vec<_>>(), [Some("often"), Some("seldom"), None]);
        let [often, seldom, rest] = [0, 1, 2].map(|place: usize| all[place].1);
        assert_eq!(often, Counted { records: 60_000 - LEAST, duplicates: 30_000 - LEAST / 2 });
        // The records before "seldom" was named are in `rest`. There are only a few of them.
        assert!(seldom.records == seldom.duplicates && seldom.records > 970, "{seldom:?}");
        assert_eq!(often.records + seldom.records + rest.records, 100_000);
        assert!(rest.records > strangers && counts.candidates.len() <= CANDIDATES_MAX);
    }

    #[test]
    fn names_are_few_and_stay() {
        let mut counts = ValueCounts::default();
        for number in 0..200_000_u64 {
            counts.add(Some(&format!("{}", number / 2_000)), false);
        }
        let names: Vec<_> = counts.named.iter().map(|(value, _)| value.clone()).collect();
        assert!(names.len() <= NAMED_MAX && counts.places.len() == names.len() && counts.candidates.len() <= CANDIDATES_MAX);
        assert_eq!(names[..20], (0..20).map(|value| value.to_string()).collect::<Vec<_>>());
    }

    /// Values that qualify only by chance, or only barely, must not take the last free names.
    #[test]
    fn a_frequent_value_gets_a_name_no_matter_how_late_it_appears() {
        for strangers in [200, 257, 300, 1_000, 5_000] {
            let mut counts = ValueCounts::default();
            // The hash makes the order of the values effectively random.
            let stranger = |number: u64| format!("stranger {}", xxhash_rust::xxh3::xxh3_64(&number.to_le_bytes()) % strangers);
            (0..100_000).for_each(|number| counts.add(Some(&stranger(number)), false));
            let by_chance = counts.named.len();
            assert!(by_chance < NAMED_MAX && (strangers < 1_000 || by_chance == 0), "{by_chance} of {strangers}");
            (0..100_000).for_each(|number| counts.add(Some(if number % 2 == 0 { "late" } else { "other" }), false));
            assert!(counts.read()[..2].iter().all(|(value, _)| matches!(value.as_deref(), Some("late" | "other"))), "{strangers}");
        }
    }

    #[test]
    fn long_values_are_cut_between_characters() {
        let mut counts = ValueCounts::default();
        let long = format!("{}é and more", "a".repeat(BYTES_MAX - 1));
        (0..20).for_each(|_| counts.add(Some(&long), true));
        assert_eq!(counts.read()[0], (Some("a".repeat(BYTES_MAX - 1)), Counted { records: 4, duplicates: 4 }));
    }

    #[test]
    fn the_value_is_in_a_header_or_in_a_field() {
        let headers = [("tenant", Some(&b"a"[..])), ("tenant", Some(b"b")), ("other", None)];
        let text = |by: &CountBy, value: &'static [u8]| {
            let mut reader = ValueReader::default();
            by.text(&RecordFormat::default(), Some(value), headers.into_iter(), &mut reader, &NoSchemas).map(Cow::into_owned)
        };
        assert_eq!(text(&CountBy::Header("tenant".to_owned()), b"").as_deref(), Some("b"), "the last counts");
        assert_eq!(text(&CountBy::Header("other".to_owned()), b""), None);
        assert_eq!(text(&CountBy::Header("none".to_owned()), b""), None);
        let field = CountBy::Field(Field::new("/a/b").unwrap());
        for (value, expected) in [(&br#"{"a":{"b":"x"}}"#[..], Some("x")), (br#"{"a":{"b":7}}"#, Some("7")), (b"{}", None), (b"{", None)] {
            assert_eq!(text(&field, value).as_deref(), expected);
        }
    }
}
