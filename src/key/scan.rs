//! Reads a few fields of the usual JSON, several times as fast as a parser for all of it.
//!
//! Owns a shortcut: it either finds what [`super::json::Pointers::find`] would find the long way, or gives up, whether
//! the text is wrong or merely unusual. Must never decide that a record is invalid, nor take one that is not JSON for
//! JSON: the whole text is checked for syntax.

#![expect(clippy::inline_always, reason = "small steps of one loop, each in several places of it")]

use super::json::{Node, Scalar, scalar};
use wide::u8x16;

/// Containers within each other before it gives up.
const DEPTH_MAX: usize = 64;
/// So many bytes are looked at together.
const BLOCK: usize = 64;

/// Finds the values of `root`'s pointers; `None` if it gives up.
pub(super) fn find<'a>(root: &Node, json: &'a [u8], found: &mut [Option<Scalar<'a>>]) -> Option<()> {
    let mut scan = Scan { json, at: 0, stops: 0, end: 0, is_ascii: true };
    scan.space();
    scan.walk(root, found, 0)?;
    scan.space();
    (scan.at == json.len()).then_some(())
}

struct Scan<'a> {
    json: &'a [u8],
    at: usize,
    /// Which of the bytes before `end` mean something in a string: the block's that it is the end of.
    stops: u64,
    end: usize,
    /// Whether all bytes before `end` are ASCII.
    is_ascii: bool,
}

impl<'a> Scan<'a> {
    #[inline(always)]
    fn peek(&self) -> Option<u8> {
        self.json.get(self.at).copied()
    }

    #[inline(always)]
    fn space(&mut self) {
        if self.peek().is_some_and(|byte| byte <= b' ') {
            self.spaces();
        }
    }

    fn spaces(&mut self) {
        while let Some(b' ' | b'\n' | b'\t' | b'\r') = self.peek() {
            self.at += 1;
        }
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
        let text = &self.json[start..self.at];
        if !self.is_utf8(text) {
            return None;
        }
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
    #[inline(always)]
    fn name(&mut self) -> Option<&'a [u8]> {
        let start = self.at + 1;
        let is_simple = self.string()?;
        let name = &self.json[start..self.at - 1];
        if !is_simple || !self.is_utf8(name) {
            return None;
        }
        self.colon()?;
        Some(name)
    }

    #[inline(always)]
    fn colon(&mut self) -> Option<()> {
        self.space();
        if self.peek()? != b':' {
            return None;
        }
        self.at += 1;
        self.space();
        Some(())
    }

    /// Reads what follows an element: a comma, or the end of its container.
    #[inline(always)]
    fn is_last(&mut self, end: u8) -> Option<bool> {
        self.space();
        let byte = self.peek()?;
        self.at += 1;
        if byte == b',' {
            self.space();
            return Some(false);
        }
        (byte == end).then_some(true)
    }

    /// Passes over a value.
    #[inline(always)]
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

    #[inline(never)]
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

    #[inline(always)]
    fn literal<const N: usize>(&mut self, word: &[u8; N]) -> Option<()> {
        if self.json[self.at..].first_chunk()? != word {
            return None;
        }
        self.at += N;
        Some(())
    }

    #[inline(always)]
    fn number(&mut self) -> Option<()> {
        if self.peek()? == b'-' {
            self.at += 1;
        }
        let start = self.at;
        let digits = self.digits()?;
        if digits > 1 && self.json[start] == b'0' {
            return None;
        }
        match self.peek() {
            Some(b'.' | b'e' | b'E') => self.fraction(),
            _ => Some(()),
        }
    }

    #[inline(never)]
    fn fraction(&mut self) -> Option<()> {
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
    #[inline(always)]
    fn digits(&mut self) -> Option<usize> {
        let start = self.at;
        while self.peek().is_some_and(|byte| byte.is_ascii_digit()) {
            self.at += 1;
        }
        (self.at > start).then_some(self.at - start)
    }

    /// Passes over a string. Returns whether it is as it is written: without escapes.
    #[inline(always)]
    fn string(&mut self) -> Option<bool> {
        if self.peek()? != b'"' {
            return None;
        }
        self.at += 1;
        self.stop()?;
        if self.peek() == Some(b'"') {
            self.at += 1;
            return Some(true);
        }
        self.string_with_escapes()?;
        Some(false)
    }

    /// Passes over the rest of a string, from its first escape on.
    #[inline(never)]
    fn string_with_escapes(&mut self) -> Option<()> {
        loop {
            let byte = self.json[self.at];
            self.at += 1;
            match byte {
                b'"' => return Some(()),
                b'\\' => self.escape()?,
                // Control characters are to be escaped.
                _ => return None,
            }
            self.stop()?;
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

    /// Goes to the next byte that means something in a string.
    #[inline(always)]
    fn stop(&mut self) -> Option<()> {
        if self.at < self.end {
            let left = self.stops >> (self.at % BLOCK);
            if left != 0 {
                self.at += left.trailing_zeros() as usize;
                return Some(());
            }
            self.at = self.end;
        }
        self.stop_behind()
    }

    /// The same, where the block at hand has no more of them.
    #[inline(never)]
    fn stop_behind(&mut self) -> Option<()> {
        loop {
            // What is not in a string was passed over without a look at its blocks; all of it that is right is ASCII.
            let start = self.at - self.at % BLOCK;
            let (stops, is_ascii) = marks_from(self.json, start)?;
            (self.stops, self.end) = (stops, start + BLOCK);
            self.is_ascii &= is_ascii;
            let left = self.stops >> (self.at % BLOCK);
            if left != 0 {
                self.at += left.trailing_zeros() as usize;
                return Some(());
            }
            self.at = self.end;
        }
    }

    /// Whether a part of what was looked at is UTF-8.
    #[inline(always)]
    fn is_utf8(&self, text: &[u8]) -> bool {
        self.is_ascii || str::from_utf8(text).is_ok()
    }
}

/// Which of the bytes from `start` on mean something in a string, the lowest bit for the first, and whether all are ASCII;
/// `None` behind the end.
fn marks_from(json: &[u8], start: usize) -> Option<(u64, bool)> {
    let left = json.get(start..).filter(|left| !left.is_empty())?;
    if let Some(block) = left.first_chunk() {
        return Some(marks(block));
    }
    // The last bytes are looked at together with those before them.
    if let Some(block) = json.last_chunk() {
        let (stops, is_ascii) = marks(block);
        return Some((stops >> (BLOCK - left.len()), is_ascii));
    }
    let mut block = [b'x'; BLOCK];
    block[..left.len()].copy_from_slice(left);
    Some(marks(&block))
}

/// Which bytes end a string, begin an escape, or are control characters; and whether all are ASCII.
#[inline(always)]
fn marks(block: &[u8; BLOCK]) -> (u64, bool) {
    let (chunks, _) = block.as_chunks();
    let (mut stops, mut any) = (0, u8x16::ZERO);
    for &chunk in chunks.iter().rev() {
        let bytes = u8x16::new(chunk);
        let is = |byte| bytes.cmp_eq(u8x16::splat(byte));
        let is_control = bytes.min(u8x16::splat(b' ' - 1)).cmp_eq(bytes);
        stops = stops << 16 | u64::from((is(b'"') | is(b'\\') | is_control).move_mask().cast_unsigned());
        any |= bytes;
    }
    (stops, any.move_mask() == 0)
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

    proptest! {
        #[test]
        fn what_means_something_in_a_string_is_found(block in prop::array::uniform32(any::<u16>())) {
            let block: [u8; BLOCK] = bytemuck::cast(block);
            let expected = block.iter().rev().fold(0, |bits, &byte| bits << 1 | u64::from(byte < b' ' || byte == b'"' || byte == b'\\'));
            prop_assert_eq!(marks(&block), (expected, block.is_ascii()));
        }
    }

    #[test]
    fn it_does_not_give_up_on_the_usual() {
        let pointers = pointers(&["/user/id", "/news"]);
        let mut found = vec![None; 2];
        let json = r#" {"user": {"name": "\u00e9\n", "id": 17}, "tags": ["a", {"b": [-1.5e3, true, null]}], "t": {}, "news": "n-1" } "#;
        find(pointers.root(), json.as_bytes(), &mut found).unwrap();
        assert_eq!(found, [Some(Scalar::Number(b"17")), Some(Scalar::String(b"n-1".into()))]);
    }
}
