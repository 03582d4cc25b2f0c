//! Normalizes ids: texts that are written differently but mean the same id become equal.
//!
//! Never makes a record invalid: a step that does not apply to a value leaves the value unchanged. A second normalization must not change a
//! value, because a lookup normalizes its texts. These texts can be printed parts of a key, which are already normalized.

mod timestamp;
mod url;

pub(crate) use timestamp::instant_ms;

use super::encoding::Tag;
use icu_normalizer::ComposingNormalizerBorrowed;
use std::borrow::Cow;
use std::fmt;

/// A step of normalization. The steps of a part are applied in the order of these variants, regardless of the configured order.
/// [`Self::Trim`] and [`Self::Unquote`] alternate until neither changes the text.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Normalizer {
    /// Numbers and booleans become text as written: `17` and `"17"` are equal, but `17` and `17.0` are not.
    ToString,
    /// White space, as defined by Unicode, is removed from both ends.
    Trim,
    /// Quotes around the text are removed: `"a"`, `'a'`, and `a` are equal.
    Unquote,
    /// Uppercase and lowercase letters are equal, in any script. `ß` and `SS` are equal, and so are `ı` and `i`.
    Lowercase,
    /// Composed and decomposed characters are equal (Unicode's form NFC).
    Nfc,
    /// RFC 3339 timestamps of the same instant are equal, regardless of their zone and of trailing zeros in the fraction.
    Timestamp,
    /// URLs are equal if they differ only in the fragment, in the case of the scheme, or in the order of query parameters with different
    /// names. For schemes such as `http` and `https`, the case of the host and a default port do not matter either.
    Url {
        /// The names of query parameters that do not count. A `*` at the end of a name matches any text.
        drop_query: Vec<String>,
    },
}

impl Normalizer {
    /// Returns the step with this name and without parameters, or `None` if the name is unknown.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        Some(match name {
            "to_string" => Self::ToString,
            "trim" => Self::Trim,
            "unquote" => Self::Unquote,
            "lowercase" => Self::Lowercase,
            "nfc" => Self::Nfc,
            "timestamp" => Self::Timestamp,
            "url" => Self::Url { drop_query: Vec::new() },
            _ => return None,
        })
    }
}

impl fmt::Display for Normalizer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::ToString => "to_string",
            Self::Trim => "trim",
            Self::Unquote => "unquote",
            Self::Lowercase => "lowercase",
            Self::Nfc => "nfc",
            Self::Timestamp => "timestamp",
            Self::Url { drop_query } if drop_query.is_empty() => "url",
            Self::Url { drop_query } => return write!(f, "url without `{}`", drop_query.join("`, `")),
        })
    }
}

/// The normalization steps of a part.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Normalizers(Vec<Normalizer>);

impl Normalizers {
    /// Sorts the steps and removes duplicates. All [`Normalizer::Url`] steps become one step with the `drop_query` names of all of them.
    #[must_use]
    pub fn new(mut steps: Vec<Normalizer>) -> Self {
        let mut dropped: Vec<String> = Vec::new();
        for step in &mut steps {
            if let Normalizer::Url { drop_query } = step {
                dropped.append(drop_query);
            }
        }
        dropped.sort_unstable();
        dropped.dedup();
        steps.sort_unstable();
        steps.dedup();
        if let Some(Normalizer::Url { drop_query }) = steps.last_mut() {
            *drop_query = dropped;
        }
        Self(steps)
    }

    /// Normalizes the encoded value of a part. Null, containers, digests, and bytes that are not UTF-8 stay unchanged. So do numbers and
    /// booleans without [`Normalizer::ToString`].
    pub(super) fn apply<'v>(&self, (tag, bytes): (Tag, Cow<'v, [u8]>)) -> (Tag, Cow<'v, [u8]>) {
        let is_text = match tag {
            Tag::Bytes => true,
            Tag::Number | Tag::Bool => self.0.contains(&Normalizer::ToString),
            Tag::Null | Tag::Container | Tag::Content => false,
        };
        if !is_text {
            return (tag, bytes);
        }
        match bytes {
            Cow::Borrowed(bytes) => match str::from_utf8(bytes) {
                Ok(text) => (Tag::Bytes, bytes_of(self.text(Cow::Borrowed(text)))),
                Err(_) => (Tag::Bytes, Cow::Borrowed(bytes)),
            },
            Cow::Owned(bytes) => match String::from_utf8(bytes) {
                Ok(text) => (Tag::Bytes, bytes_of(self.text(Cow::Owned(text)))),
                Err(error) => (Tag::Bytes, Cow::Owned(error.into_bytes())),
            },
        }
    }

    fn text<'v>(&self, mut text: Cow<'v, str>) -> Cow<'v, str> {
        let has = |step| self.0.contains(&step);
        let (trims, unquotes) = (has(Normalizer::Trim), has(Normalizer::Unquote));
        if trims || unquotes {
            text = part_of(text, |text| stripped(text, trims, unquotes));
        }
        for step in &self.0 {
            let changed = match step {
                Normalizer::ToString | Normalizer::Trim | Normalizer::Unquote => None,
                Normalizer::Lowercase => Some(folded(&text)),
                Normalizer::Nfc => match ComposingNormalizerBorrowed::new_nfc().normalize(&text) {
                    Cow::Owned(text) => Some(text),
                    Cow::Borrowed(_) => None,
                },
                Normalizer::Timestamp => timestamp::utc(&text),
                Normalizer::Url { drop_query } => url::canonical(&text, drop_query).map(|mut url| {
                    // The URL parser percent-encodes bytes with uppercase hexadecimal digits, which a second normalization would convert to
                    // lowercase.
                    if has(Normalizer::Lowercase) {
                        url.make_ascii_lowercase();
                    }
                    url
                }),
            };
            if let Some(changed) = changed {
                text = Cow::Owned(changed);
            }
        }
        text
    }
}

/// Removes differences in case. `ẞ` becomes `ß` first, because only `ß` has the uppercase form `SS`.
fn folded(text: &str) -> String {
    text.chars().flat_map(char::to_lowercase).flat_map(char::to_uppercase).flat_map(char::to_lowercase).collect()
}

impl fmt::Display for Normalizers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.iter().map(ToString::to_string).collect::<Vec<_>>().join(", "))
    }
}

fn bytes_of(text: Cow<'_, str>) -> Cow<'_, [u8]> {
    match text {
        Cow::Borrowed(text) => Cow::Borrowed(text.as_bytes()),
        Cow::Owned(text) => Cow::Owned(text.into_bytes()),
    }
}

fn part_of(text: Cow<'_, str>, part: impl Fn(&str) -> &str) -> Cow<'_, str> {
    match text {
        Cow::Borrowed(text) => Cow::Borrowed(part(text)),
        Cow::Owned(text) => Cow::Owned(part(&text).to_owned()),
    }
}

/// Removes white space, quotes, or both from the ends until the text no longer changes.
fn stripped(mut text: &str, trims: bool, unquotes: bool) -> &str {
    loop {
        let before = text.len();
        if trims {
            text = text.trim();
        }
        if unquotes {
            let inner = |quote: char| text.strip_prefix(quote)?.strip_suffix(quote);
            text = inner('"').or_else(|| inner('\'')).unwrap_or(text);
        }
        if text.len() == before {
            return text;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn letters_are_equal_in_any_case() {
        for letter in '\0'..=char::MAX {
            let folded = folded(&letter.to_string());
            let same = [folded.clone(), letter.to_lowercase().to_string(), letter.to_uppercase().to_string()];
            assert!(same.iter().all(|same| super::folded(same) == folded), "{letter:?}");
        }
    }

    fn normalizers(names: &[&str]) -> Normalizers {
        Normalizers::new(names.iter().map(|name| Normalizer::named(name).unwrap()).collect())
    }

    fn text(names: &[&str], text: &str) -> String {
        normalizers(names).text(Cow::Borrowed(text)).into_owned()
    }

    /// Checks that texts of a group become equal, and that texts of different groups stay different.
    fn check(names: &[&str], groups: &[&[&str]]) {
        let normal: Vec<Vec<_>> = groups.iter().map(|group| group.iter().map(|one| text(names, one)).collect()).collect();
        for (at, group) in normal.iter().enumerate() {
            for (one, original) in group.iter().zip(groups[at]) {
                assert_eq!(one, &group[0], "{names:?}: {original:?} and {:?}", groups[at][0]);
                assert!(!normal[..at].iter().flatten().any(|other| other == one), "{names:?}: {original:?} equals another id");
            }
        }
    }

    #[test]
    fn texts_that_mean_the_same_become_equal_and_others_stay_different() {
        check(&["trim"], &[&["a b", " a b", "a b\t\n", "\u{a0}a b\u{2003}"], &["a  b"], &["A b"], &[""]]);
        check(&["unquote"], &[&["a", "\"a\"", "'a'", "\"'a'\""], &["\"a"], &["'a\""], &["\"", "\"\"\""], &[" \"a\""]]);
        check(&["trim", "unquote"], &[&["a", " \" a \" ", "' a'"], &["a'"]]);
        check(
            &["lowercase"],
            &[&["straße", "STRASSE", "Strasse"], &["σας", "ΣΑΣ", "σασ"], &["i", "I", "ı"], &[" i"], &["\u{e9}", "\u{c9}"]],
        );
        check(&["nfc"], &[&["\u{e9}", "e\u{301}"], &["e"], &["\u{c9}"], &["\u{fb01}"], &["fi"]]);
        check(&["lowercase", "url"], &[&["http://a.org/\u{e4}", "http://A.org/\u{c4}", "http://a.org/%C3%A4"], &["http://a.org/a"]]);
        check(&["lowercase", "nfc"], &[&["\u{e9}", "E\u{301}", "\u{c9}"], &["\u{e8}"]]);
        assert_eq!(text(&["trim", "lowercase"], " A.User@Example.org"), "a.user@example.org");
    }

    #[test]
    fn the_order_of_the_list_does_not_matter() {
        assert_eq!(normalizers(&["url", "trim", "lowercase", "trim"]), normalizers(&["lowercase", "trim", "url"]));
        let drop = |names: &[&str]| Normalizer::Url { drop_query: names.iter().map(|&name| name.to_owned()).collect() };
        let both = Normalizers::new(vec![drop(&["b", "a"]), Normalizer::Trim, Normalizer::named("url").unwrap(), drop(&["a"])]);
        assert_eq!(both.to_string(), "trim, url without `a`, `b`");
        assert_eq!(normalizers(&["nfc", "to_string", "timestamp", "url"]).to_string(), "to_string, nfc, timestamp, url");
    }

    #[test]
    fn only_texts_are_normalized_and_numbers_if_they_are_texts() {
        let apply = |names: &[&str], tag, bytes: &'static [u8]| {
            let (tag, bytes) = normalizers(names).apply((tag, Cow::Borrowed(bytes)));
            (tag, bytes.into_owned())
        };
        assert_eq!(apply(&["to_string"], Tag::Number, b"17"), (Tag::Bytes, b"17".to_vec()));
        assert_eq!(apply(&["to_string"], Tag::Bool, b"true"), (Tag::Bytes, b"true".to_vec()));
        assert_eq!(apply(&["trim", "lowercase"], Tag::Number, b"1E5"), (Tag::Number, b"1E5".to_vec()));
        assert_eq!(apply(&["to_string"], Tag::Null, b""), (Tag::Null, Vec::new()));
        assert_eq!(apply(&["trim"], Tag::Container, b"[ 1 ]"), (Tag::Container, b"[ 1 ]".to_vec()));
        assert_eq!(apply(&["trim"], Tag::Bytes, b" \xff "), (Tag::Bytes, b" \xff ".to_vec()), "not UTF-8");
    }

    proptest! {
        #[test]
        fn a_normalized_text_stays_as_it_is(
            one in "[ \"'A-Ca-cßΣσςİıﬁ\u{301}\u{327}\u{a0}:/?#&=.0-9TZ+-]{0,12}",
            steps in prop::sample::subsequence(vec!["to_string", "trim", "unquote", "lowercase", "nfc", "timestamp", "url"], 0..=7),
        ) {
            for one in [one.clone(), format!("http://Ex.org/{one}?b={one}&a#{one}"), "2026-01-01T00:00:00.10+01:00".to_owned()] {
                let once = text(&steps, &one);
                prop_assert_eq!(text(&steps, &once), once, "{:?} of {:?}", steps, one);
            }
        }
    }
}
