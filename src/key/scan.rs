//! Reads a few fields of the usual JSON, several times as fast as a parser for all of it.
//!
//! Owns a shortcut: it either finds what [`super::json::Pointers::find`] would find the long way, or gives up, whether
//! the text is wrong or merely unusual. Must never decide that a record is invalid, nor take one that is not JSON for
//! JSON: the whole text is checked for syntax.

use super::json::{Node, Scalar, scalar};

/// Containers within each other before it gives up.
const DEPTH_MAX: usize = 64;

/// Finds the values of `root`'s pointers; `None` if it gives up.
pub(super) fn find<'a>(root: &Node, json: &'a [u8], found: &mut [Option<Scalar<'a>>]) -> Option<()> {
    let mut scan = Scan { json, at: 0 };
    scan.space();
    scan.walk(root, found, 0)?;
    scan.space();
    (scan.at == json.len()).then_some(())
}

struct Scan<'a> {
    json: &'a [u8],
    at: usize,
}

impl<'a> Scan<'a> {
    fn peek(&self) -> Option<u8> {
        self.json.get(self.at).copied()
    }

    #[inline]
    fn space(&mut self) {
        while let Some(b' ' | b'\n' | b'\t' | b'\r') = self.peek() {
            self.at += 1;
        }
    }

    fn expect(&mut self, byte: u8) -> Option<()> {
        if self.peek()? != byte {
            return None;
        }
        self.at += 1;
        Some(())
    }

    /// Reads a value that pointers end at or lead through.
    fn walk(&mut self, node: &Node, found: &mut [Option<Scalar<'a>>], depth: usize) -> Option<()> {
        if node.slots.is_empty() {
            return match self.peek()? {
                b'{' => self.walk_object(node, found, depth),
                b'n' | b't' | b'f' => self.skip(depth),
                // Lists, and what a parser would look at more closely.
                _ => None,
            };
        }
        if !node.children.is_empty() {
            return None;
        }
        let start = self.at;
        let is_simple = if self.peek()? == b'"' { self.string()? } else { self.skip(depth).map(|()| false)? };
        let text = str::from_utf8(&self.json[start..self.at]).ok()?;
        let value = if is_simple { Scalar::String(text[1..text.len() - 1].into()) } else { scalar(text).ok()? };
        let (last, others) = node.slots.split_last()?;
        for &slot in others {
            found[slot] = Some(value.clone());
        }
        found[*last] = Some(value);
        Some(())
    }

    fn walk_object(&mut self, node: &Node, found: &mut [Option<Scalar<'a>>], depth: usize) -> Option<()> {
        self.at += 1;
        self.space();
        if self.peek()? == b'}' {
            self.at += 1;
            return Some(());
        }
        loop {
            let name = self.name()?;
            match node.children.iter().find(|(step, _)| step.as_bytes() == name) {
                None => self.skip(depth + 1)?,
                Some((_, child)) => {
                    child.forget(found);
                    self.walk(child, found, depth + 1)?;
                }
            }
            if self.is_last(b'}')? {
                return Some(());
            }
        }
    }

    /// Reads a field's name, which is to be simple, and what separates it from its value.
    fn name(&mut self) -> Option<&'a [u8]> {
        let start = self.at + 1;
        let is_simple = self.string()?;
        let name = &self.json[start..self.at - 1];
        if !is_simple || !(name.is_ascii() || str::from_utf8(name).is_ok()) {
            return None;
        }
        self.colon()?;
        Some(name)
    }

    fn colon(&mut self) -> Option<()> {
        self.space();
        self.expect(b':')?;
        self.space();
        Some(())
    }

    /// Reads what follows an element: a comma, or the end of its container.
    #[inline]
    fn is_last(&mut self, end: u8) -> Option<bool> {
        self.space();
        let byte = self.peek()?;
        self.at += 1;
        if byte == end {
            return Some(true);
        }
        self.space();
        (byte == b',').then_some(false)
    }

    /// Passes over a value.
    fn skip(&mut self, depth: usize) -> Option<()> {
        match self.peek()? {
            b'"' => self.string().map(drop),
            b'{' => self.skip_container(b'}', depth),
            b'[' => self.skip_container(b']', depth),
            b't' => self.literal(b"true"),
            b'f' => self.literal(b"false"),
            b'n' => self.literal(b"null"),
            _ => self.number(),
        }
    }

    fn skip_container(&mut self, end: u8, depth: usize) -> Option<()> {
        if depth == DEPTH_MAX {
            return None;
        }
        self.at += 1;
        self.space();
        if self.peek()? == end {
            self.at += 1;
            return Some(());
        }
        loop {
            if end == b'}' {
                self.string()?;
                self.colon()?;
            }
            self.skip(depth + 1)?;
            if self.is_last(end)? {
                return Some(());
            }
        }
    }

    fn literal(&mut self, word: &[u8]) -> Option<()> {
        let end = self.at + word.len();
        if self.json.get(self.at..end)? != word {
            return None;
        }
        self.at = end;
        Some(())
    }

    fn number(&mut self) -> Option<()> {
        if self.peek()? == b'-' {
            self.at += 1;
        }
        let starts_with_zero = self.peek()? == b'0';
        let digits = self.digits()?;
        if starts_with_zero && digits > 1 {
            return None;
        }
        if self.peek() == Some(b'.') {
            self.at += 1;
            self.digits()?;
        }
        if let Some(b'e' | b'E') = self.peek() {
            self.at += 1;
            if let Some(b'+' | b'-') = self.peek() {
                self.at += 1;
            }
            self.digits()?;
        }
        Some(())
    }

    /// Passes over digits, of which there must be one, and counts them.
    fn digits(&mut self) -> Option<usize> {
        let count = self.json[self.at..].iter().take_while(|byte| byte.is_ascii_digit()).count();
        self.at += count;
        (count > 0).then_some(count)
    }

    /// Passes over a string. Returns whether it is as it is written: without escapes.
    fn string(&mut self) -> Option<bool> {
        self.expect(b'"')?;
        let mut is_simple = true;
        loop {
            self.plain();
            match self.peek()? {
                b'"' => {
                    self.at += 1;
                    return Some(is_simple);
                }
                b'\\' => {
                    is_simple = false;
                    self.at += 1;
                    self.escape()?;
                }
                // Control characters are to be escaped.
                ..b' ' => return None,
                _ => self.at += 1,
            }
        }
    }

    fn escape(&mut self) -> Option<()> {
        let kind = self.peek()?;
        self.at += 1;
        match kind {
            b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't' => Some(()),
            b'u' => {
                let digits = self.json.get(self.at..self.at + 4)?;
                self.at += 4;
                digits.iter().all(u8::is_ascii_hexdigit).then_some(())
            }
            _ => None,
        }
    }

    /// Passes over bytes that mean nothing in a string, eight at a time, to where fewer than eight are left at least.
    #[inline(always)]
    fn plain(&mut self) {
        const ONES: u64 = u64::MAX / 255;
        const HIGH: u64 = ONES << 7;
        // The lowest bit that is set belongs to the first such byte; those above may be wrong.
        let below = |word: u64, byte: u8| word.wrapping_sub(ONES * u64::from(byte)) & !word;
        let is = |word: u64, byte: u8| below(word ^ (ONES * u64::from(byte)), 1);
        while let Some(bytes) = self.json[self.at..].first_chunk() {
            let word = u64::from_le_bytes(*bytes);
            let special = (is(word, b'"') | is(word, b'\\') | below(word, b' ')) & HIGH;
            if special != 0 {
                self.at += special.trailing_zeros() as usize / 8;
                return;
            }
            self.at += 8;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::json::Pointers;
    use super::*;
    use proptest::prelude::*;

    /// JSON as it comes, pieces of it odd, and now and then wrong.
    fn text() -> impl Strategy<Value = Vec<u8>> {
        let scalar = prop_oneof![
            prop::sample::select(vec![
                "null",
                "true",
                "false",
                "nul",
                "0",
                "-0",
                "-",
                "01",
                "1.",
                "1.5e-3",
                "1e999",
                ".5",
                "1E+",
                "\"\"",
                "\"a",
                "\"\t\"",
                "\"\\ud800\"",
                "\"\\u00e9\"",
                "\"\\u00\"",
                "\"\\x\"",
                "\"a\\\"b\"",
                "\"\u{e9}\"",
                "",
                "1 2",
            ])
            .prop_map(str::to_owned),
            "[a-z\"\\\\]{0,40}".prop_map(|text| format!("\"{text}\"")),
            any::<i64>().prop_map(|number| number.to_string()),
        ];
        let space = prop::sample::select(vec!["", "", "", " ", "\n\t", "\u{a0}"]);
        let name = prop::sample::select(vec!["a", "a", "b", "b", "c", "\\u0061", "\u{e9}", "a/b"]);
        let tree = scalar.prop_recursive(4, 40, 4, move |inner| {
            let element = (space.clone(), inner.clone()).prop_map(|(space, inner)| format!("{space}{inner}{space}"));
            let field = (name.clone(), space.clone(), inner)
                .prop_map(|(name, space, inner)| format!("{space}\"{name}\"{space}:{space}{inner}{space}"));
            prop_oneof![
                prop::collection::vec(element, 0..4).prop_map(|all| format!("[{}]", all.join(","))),
                prop::collection::vec(field, 0..4).prop_map(|all| format!("{{{}}}", all.join(","))),
            ]
        });
        let change = prop::option::weighted(0.3, (any::<prop::sample::Index>(), any::<u8>()));
        (tree, change).prop_map(|(text, change)| {
            let mut bytes = text.into_bytes();
            if let Some((at, byte)) = change.filter(|_| !bytes.is_empty()) {
                let at = at.index(bytes.len());
                bytes[at] = byte;
            }
            bytes
        })
    }

    fn pointers(all: &[&str]) -> Pointers {
        let mut pointers = Pointers::default();
        for pointer in all {
            pointers.add(pointer).unwrap();
        }
        pointers
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(4096))]
        #[test]
        fn what_it_finds_is_what_a_parser_finds(json in text()) {
            for all in [&["/a", "/b"][..], &["/a/b", "/c", "/c"], &["/a/0", "/b/a/a"], &["/a", "/a/b"], &[""]] {
                let pointers = pointers(all);
                let (mut short, mut long) = (vec![None; all.len()], vec![None; all.len()]);
                if find(pointers.root(), &json, &mut short).is_some() {
                    prop_assert!(pointers.parse(&json, &mut long).is_ok(), "{:?}", String::from_utf8_lossy(&json));
                    prop_assert_eq!(short, long);
                }
            }
        }
    }

    #[test]
    fn it_does_not_give_up_on_the_usual() {
        let pointers = pointers(&["/user/id", "/news"]);
        let mut found = vec![None; 2];
        let json = r#" {"user": {"name": "\u00e9\n", "id": 17}, "tags": ["a", {"b": [-1.5e3, true, null]}], "t": {}, "news": "n-1" } "#;
        find(pointers.root(), json.as_bytes(), &mut found).unwrap();
        assert_eq!(found, [Some(Scalar::Number("17")), Some(Scalar::String("n-1".into()))]);
    }
}
