//! Key names of Redis commands: a key space and parts of the key.
//!
//! `seen-news` is a space whose keys have one part. `seen-news:{42}` with the item `n7` is the key `[42, n7]`. `seen:{42}:{de}` with `n7`
//! is `[42, de, n7]`. Two different names never mean the same space and parts.

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Name<'n> {
    pub(super) space: &'n str,
    /// The text between the outermost braces, or `None` without braces.
    inner: Option<&'n [u8]>,
    /// The number of key parts in `inner`.
    count: usize,
}

impl<'n> Name<'n> {
    pub(super) const fn of(space: &'n str) -> Self {
        Self { space, inner: None, count: 0 }
    }

    /// Parses a name. Returns `None` if the space is not UTF-8, or if the text after the colon is not in braces.
    pub(super) fn parse(name: &'n [u8]) -> Option<Self> {
        let (space, rest) = match name.iter().position(|&byte| byte == b':') {
            Some(colon) => (&name[..colon], Some(&name[colon + 1..])),
            None => (name, None),
        };
        let inner = match rest {
            Some(rest) => Some(rest.strip_prefix(b"{")?.strip_suffix(b"}")?),
            None => None,
        };
        Some(Self { space: str::from_utf8(space).ok()?, inner, count: Parts(inner).count() })
    }

    /// Returns the key parts of the name, in order. Each part except the last ends at `}:{`.
    pub(super) fn parts(&self) -> Parts<'n> {
        Parts(self.inner)
    }
}

#[derive(Clone, Debug)]
pub(super) struct Parts<'n>(Option<&'n [u8]>);

impl<'n> Iterator for Parts<'n> {
    type Item = &'n [u8];

    fn next(&mut self) -> Option<&'n [u8]> {
        let rest = self.0?;
        let end = rest.windows(3).position(|window| window == b"}:{");
        let (part, rest) = end.map_or((rest, None), |end| (&rest[..end], Some(&rest[end + 3..])));
        self.0 = rest;
        Some(part)
    }
}

/// The texts of all parts of a key: the parts in the name, followed by the item.
#[derive(Clone, Debug)]
pub(super) struct Texts<'n> {
    parts: Parts<'n>,
    item: Option<&'n [u8]>,
    left: usize,
}

impl<'n> Texts<'n> {
    pub(super) fn new(name: &Name<'n>, item: &'n [u8]) -> Self {
        Self { parts: name.parts(), item: Some(item), left: name.count + 1 }
    }
}

impl<'n> Iterator for Texts<'n> {
    type Item = &'n [u8];

    fn next(&mut self) -> Option<&'n [u8]> {
        let text = self.parts.next().or_else(|| self.item.take())?;
        self.left -= 1;
        Some(text)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.left, Some(self.left))
    }
}

impl ExactSizeIterator for Texts<'_> {}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(name: &str, item: &str) -> Option<(String, Vec<String>)> {
        let name = Name::parse(name.as_bytes())?;
        let texts = Texts::new(&name, item.as_bytes());
        assert_eq!(texts.len(), texts.clone().count());
        Some((name.space.to_owned(), texts.map(|text| String::from_utf8_lossy(text).into_owned()).collect()))
    }

    #[test]
    fn parts_before_the_last_come_from_the_name() {
        let of = |space: &str, parts: &[&str]| Some((space.to_owned(), parts.iter().map(|part| (*part).to_owned()).collect()));
        assert_eq!(texts("seen-news", "n7"), of("seen-news", &["n7"]));
        assert_eq!(texts("seen-news:{42}", "n7"), of("seen-news", &["42", "n7"]));
        assert_eq!(texts("seen:{42}:{de}", "n7"), of("seen", &["42", "de", "n7"]));
        assert_eq!(texts("seen:{}", ""), of("seen", &["", ""]));
        assert_eq!(texts("seen:{a:b}c}", "x"), of("seen", &["a:b}c", "x"]));
        for name in ["seen:42", "seen:", "seen:{42", "seen:{42}x", "seen:x{42}"] {
            assert_eq!(texts(name, "n7"), None, "{name}");
        }
        assert!(Name::parse(b"\xff").is_none());
    }
}
