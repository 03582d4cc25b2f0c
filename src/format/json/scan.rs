//! Reads a few fields of typical JSON, several times as fast as a full parser.
//!
//! The scan either finds the same values as the parser in [`super::JsonExtractor`] or gives up because the text is malformed or unusual. It
//! never decides that a record is invalid. It never accepts a text that is not JSON, because it validates the syntax of the whole text.
//!
//! The marks of [`StructuralBitmap`] let the scan skip strings without reading their bytes. Each step passes the position in the text to
//! the next step instead of storing it, which keeps the position in a register.

#![expect(clippy::inline_always, reason = "small steps of one loop")]

use super::scalar;
use super::structural::StructuralBitmap;
use crate::format::DEPTH_MAX;
use crate::format::places::Node;
use crate::format::scalar::Scalar;

pub(super) struct Scan<'a, 's> {
    pub(super) json: &'a [u8],
    pub(super) bitmap: &'s StructuralBitmap,
}

/// Returns the position after a byte of the text. This cannot overflow, because no text is long enough.
#[inline(always)]
pub(super) const fn behind(at: usize) -> usize {
    at.wrapping_add(1)
}

/// Returns the number of digits at the start of eight bytes. XOR with 0x30 turns digits, and only digits, into the numbers 0 to 9.
/// Adding 118 then sets the highest bit of every larger byte, unless the bit is already set.
#[inline(always)]
const fn digits_first(eight: u64) -> usize {
    const EACH: u64 = u64::from_le_bytes([1; 8]);
    let numbers = eight ^ (EACH * 0x30);
    let others = (((numbers & (EACH * 0x7f)) + EACH * 0x76) | numbers) & (EACH * 0x80);
    others.trailing_zeros() as usize / 8
}

/// The steps of the scan. A step takes a position and returns the position after the bytes that it read or skipped, or `None` if the scan
/// gives up.
impl<'a> Scan<'a, '_> {
    pub(super) fn find(&self, root: &Node, found: &mut [Option<Scalar<'a>>]) -> Option<()> {
        let end = self.walk(self.space(0), root, found, 0)?;
        (self.space(end) == self.json.len()).then_some(())
    }

    #[inline(always)]
    pub(super) fn byte(&self, at: usize) -> Option<u8> {
        self.json.get(at).copied()
    }

    #[inline(always)]
    pub(super) fn space(&self, at: usize) -> usize {
        if self.byte(at).is_some_and(|byte| byte <= b' ') { self.spaces(at) } else { at }
    }

    #[inline(never)]
    fn spaces(&self, mut at: usize) -> usize {
        while let Some(b' ' | b'\n' | b'\t' | b'\r') = self.byte(at) {
            at = behind(at);
        }
        at
    }

    /// Reads a value that a pointer leads through or ends at.
    fn walk(&self, at: usize, node: &Node, found: &mut [Option<Scalar<'a>>], depth: usize) -> Option<usize> {
        if node.slots.is_empty() {
            // If a value was already found below this field, the field occurs again, and the scan gives up. Only the last occurrence
            // counts, but the earlier value must also be valid, and only the parser validates it fully. The root cannot occur again.
            if depth > 0 && node.is_found(found) {
                return None;
            }
            return match self.byte(at)? {
                b'{' => self.walk_object(at, node, found, depth),
                b'n' | b't' | b'f' => self.skip(at, depth),
                // The scan gives up, because only the parser follows pointers into arrays. The parser also validates strings and numbers at
                // this place more strictly.
                _ => None,
            };
        }
        if !node.children.is_empty() {
            return None;
        }
        let (end, is_simple) = if self.byte(at)? == b'"' { self.string(at)? } else { (self.skip(at, depth)?, false) };
        let value = self.value(at, end, is_simple)?;
        for &slot in &node.slots {
            if found[slot].replace(value).is_some() {
                return None;
            }
        }
        Some(end)
    }

    /// Returns the value between two positions. `is_simple` is true for a string without escapes.
    #[inline(always)]
    pub(super) fn value(&self, at: usize, end: usize, is_simple: bool) -> Option<Scalar<'a>> {
        let text = &self.json[at..end];
        if !self.is_utf8(text) {
            return None;
        }
        if is_simple { Some(Scalar::String(&text[1..text.len() - 1])) } else { scalar(text).ok() }
    }

    fn walk_object(&self, at: usize, node: &Node, found: &mut [Option<Scalar<'a>>], depth: usize) -> Option<usize> {
        let mut at = self.space(behind(at));
        if self.byte(at)? == b'}' {
            return Some(behind(at));
        }
        loop {
            let (end, is_simple) = self.string(at)?;
            let name = &self.json[behind(at)..end - 1];
            if !is_simple || !self.is_utf8(name) {
                return None;
            }
            let value = self.colon(end)?;
            let end = match node.children.iter().find(|(step, _)| step.as_bytes() == name) {
                None => self.skip(value, depth + 1)?,
                Some((_, child)) => self.walk(value, child, found, depth + 1)?,
            };
            match self.comma(end, b'}')? {
                (next, false) => at = next,
                (next, true) => return Some(next),
            }
        }
    }

    #[inline(always)]
    pub(super) fn colon(&self, at: usize) -> Option<usize> {
        let at = self.space(at);
        (self.byte(at)? == b':').then(|| self.space(behind(at)))
    }

    /// Skips the comma after an element, or the end of the container. Returns the next position, and true at the end of the container.
    #[inline(always)]
    pub(super) fn comma(&self, at: usize, end: u8) -> Option<(usize, bool)> {
        let at = self.space(at);
        let byte = self.byte(at)?;
        if byte == b',' {
            return Some((self.space(behind(at)), false));
        }
        (byte == end).then_some((behind(at), true))
    }

    #[inline(always)]
    fn skip(&self, at: usize, depth: usize) -> Option<usize> {
        match self.byte(at)? {
            b'"' => Some(self.string(at)?.0),
            b'{' => self.skip_container(at, b'}', depth),
            b'[' => self.skip_container(at, b']', depth),
            b't' | b'f' | b'n' => self.word(at),
            _ => self.number(at),
        }
    }

    /// Skips `true`, `false`, or `null`.
    #[inline(always)]
    pub(super) fn word(&self, at: usize) -> Option<usize> {
        match self.byte(at)? {
            b't' => self.literal(at, b"true"),
            b'f' => self.literal(at, b"false"),
            _ => self.literal(at, b"null"),
        }
    }

    #[inline(never)]
    fn skip_container(&self, at: usize, end: u8, depth: usize) -> Option<usize> {
        if depth == DEPTH_MAX {
            return None;
        }
        let mut at = self.space(behind(at));
        if self.byte(at)? == end {
            return Some(behind(at));
        }
        loop {
            if end == b'}' {
                at = self.colon(self.string(at)?.0)?;
            }
            match self.comma(self.skip(at, depth + 1)?, end)? {
                (next, false) => at = next,
                (next, true) => return Some(next),
            }
        }
    }

    #[inline(always)]
    fn literal<const N: usize>(&self, at: usize, word: &[u8; N]) -> Option<usize> {
        (self.json.get(at..)?.first_chunk()? == word).then(|| at.wrapping_add(N))
    }

    #[inline(always)]
    pub(super) fn number(&self, at: usize) -> Option<usize> {
        let start = if self.byte(at)? == b'-' { behind(at) } else { at };
        let end = self.digits(start)?;
        if end > behind(start) && self.json[start] == b'0' {
            return None;
        }
        match self.byte(end) {
            Some(b'.' | b'e' | b'E') => self.fraction(end),
            _ => Some(end),
        }
    }

    #[inline(never)]
    fn fraction(&self, mut at: usize) -> Option<usize> {
        if self.byte(at) == Some(b'.') {
            at = self.digits(behind(at))?;
        }
        if let Some(b'e' | b'E') = self.byte(at) {
            at = behind(at);
            if let Some(b'+' | b'-') = self.byte(at) {
                at = behind(at);
            }
            at = self.digits(at)?;
        }
        Some(at)
    }

    /// Skips one or more digits. Gives up if the next byte is not a digit.
    #[inline(always)]
    fn digits(&self, start: usize) -> Option<usize> {
        let mut at = start;
        while let Some(eight) = self.json.get(at..)?.first_chunk() {
            let digits = digits_first(u64::from_le_bytes(*eight));
            at = at.wrapping_add(digits);
            if digits < 8 {
                return (at > start).then_some(at);
            }
        }
        while self.byte(at).is_some_and(|byte| byte.is_ascii_digit()) {
            at = behind(at);
        }
        (at > start).then_some(at)
    }

    /// Skips a string. Also returns true if the string has no escapes.
    #[inline(always)]
    pub(super) fn string(&self, at: usize) -> Option<(usize, bool)> {
        if self.byte(at)? != b'"' {
            return None;
        }
        self.rest_of_string(behind(at))
    }

    /// Skips the rest of a string, starting directly after its opening quote.
    #[inline(always)]
    pub(super) fn rest_of_string(&self, at: usize) -> Option<(usize, bool)> {
        let stop = self.bitmap.next(at)?;
        if self.byte(stop)? == b'"' {
            return Some((behind(stop), true));
        }
        Some((self.string_with_escapes(stop)?, false))
    }

    /// Skips the rest of a string, starting at its first escape or control character.
    #[inline(never)]
    fn string_with_escapes(&self, mut at: usize) -> Option<usize> {
        loop {
            match self.byte(at)? {
                b'"' => return Some(behind(at)),
                b'\\' => at = self.bitmap.next(self.escape(behind(at))?)?,
                // JSON does not allow control characters in strings.
                _ => return None,
            }
        }
    }

    fn escape(&self, at: usize) -> Option<usize> {
        match self.byte(at)? {
            b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't' => Some(behind(at)),
            b'u' => {
                let digits = self.json.get(behind(at)..)?.first_chunk::<4>()?;
                digits.iter().all(u8::is_ascii_hexdigit).then(|| at.wrapping_add(5))
            }
            _ => None,
        }
    }

    #[inline(always)]
    pub(super) fn is_utf8(&self, text: &[u8]) -> bool {
        self.bitmap.is_ascii || str::from_utf8(text).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::super::JsonExtractor;
    use super::*;
    use crate::format::Places;
    use proptest::prelude::*;

    /// Generates typical JSON with unusual values, sometimes with an error.
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

    fn extractor(all: &[&str]) -> JsonExtractor {
        JsonExtractor::new(Places::new(all).unwrap())
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(4096))]
        #[test]
        fn the_scan_finds_the_same_values_as_a_parser(json in text()) {
            for all in [&["/a", "/b"][..], &["/a/b", "/c", "/c"], &["/a/0", "/b/a/a"], &["/a", "/a/b"], &[""]] {
                let extractor = extractor(all);
                let (mut short, mut long) = (vec![None; all.len()], vec![None; all.len()]);
                let mut bitmap = StructuralBitmap::default();
                bitmap.index(&json);
                if (Scan { json: &json, bitmap: &bitmap }).find(extractor.places.root(), &mut short).is_some() {
                    prop_assert!(extractor.parse(&json, &mut long).is_ok(), "{:?}", String::from_utf8_lossy(&json));
                    prop_assert_eq!(short, long);
                }
            }
        }
    }

    /// Returns the values that the scan finds in a text, unless the scan gives up, and the values that the parser finds.
    fn both<'a>(pointer: &str, json: &'a [u8]) -> [Option<[Option<Scalar<'a>>; 1]>; 2] {
        let extractor = extractor(&[pointer]);
        let (mut short, mut long) = ([None], [None]);
        let mut bitmap = StructuralBitmap::default();
        bitmap.index(json);
        let is_short = Scan { json, bitmap: &bitmap }.find(extractor.places.root(), &mut short).is_some();
        let is_long = extractor.parse(json, &mut long).is_ok();
        [is_short.then_some(short), is_long.then_some(long)]
    }

    #[test]
    fn the_deepest_pointer_finds_the_same_value_as_a_parser() {
        for depth in [1, 2, 62, 63] {
            let json = format!("{}1{}", r#"{"a":"#.repeat(depth), "}".repeat(depth));
            let found = Some([Some(Scalar::Number(b"1"))]);
            assert_eq!(both(&"/a".repeat(depth), json.as_bytes()), [found; 2], "{depth}");
        }
        assert!(Places::default().add(&"/a".repeat(64)).is_err());
    }

    #[test]
    fn a_number_that_exceeds_any_float_is_a_number_to_both() {
        for json in [r#"{"x":1e999,"a":{"y":1e999,"b":1,"z":-1e999},"w":[1e999]}"#, r#"{"a":{"b":1e999}}"#] {
            let [short, long] = both("/a/b", json.as_bytes());
            assert!(short.is_some_and(|[found]| found.is_some()), "{json}");
            assert_eq!(short, long, "{json}");
        }
        // A pointer leads through the number, so the scan leaves the decision to the parser.
        assert_eq!(both("/a/b", br#"{"a":1e999}"#)[0], None);
    }

    #[test]
    fn the_scan_does_not_give_up_on_typical_texts() {
        let extractor = extractor(&["/user/id", "/news"]);
        let mut found = vec![None; 2];
        let json = r#" {"user": {"name": "\u00e9\n", "id": 17}, "tags": ["a", {"b": [-1.5e3, true, null]}], "t": {}, "news": "n-1" } "#;
        let mut bitmap = StructuralBitmap::default();
        bitmap.index(json.as_bytes());
        Scan { json: json.as_bytes(), bitmap: &bitmap }.find(extractor.places.root(), &mut found).unwrap();
        assert_eq!(found, [Some(Scalar::Number(b"17")), Some(Scalar::String(b"n-1"))]);
    }
}
