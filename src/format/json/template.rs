//! Recognizes texts that differ from an earlier text only in their scalars, such as the records of one producer.
//!
//! If scalars in a JSON text are replaced by scalars of the same types, the text is still JSON, and its fields are in the same order. So
//! this module reads only the scalars and compares all other bytes with the earlier text. The template is tried before [`super::scan`]. No
//! template is learned from a text in which a requested field is missing or occurs twice.
//!
//! "Mison: a fast JSON parser for data analytics" (Li et al., VLDB 2017) also speculates that fields are at the same positions. Unlike
//! Mison, this module validates the whole text.

use super::scan::{Scan, behind};
use crate::format::scalar::Scalar;

/// Number of bytes that are compared at once.
const PIECE: usize = 16;
/// Maximum number of pieces of a template. Longer templates are not stored.
const PIECES_MAX: usize = 512;
/// Maximum number of templates, one per set of requested fields. If there are more, all templates are discarded.
const TEMPLATES_MAX: usize = 64;
/// Number of texts that the scan reads before a template is learned. For a reader of only a few texts, a template would not pay off.
const FIRST_REST: u32 = 16;
/// Number of texts that the scan reads before the next attempt to learn a template, after a template is discarded or could not be learned.
const REST: u32 = 4096;
/// Number of misses, which are texts that do not match, before a template is discarded. Each matching text offsets [`HIT`] misses, because
/// a match saves about as much time as [`HIT`] misses cost.
const MISSES_MAX: u32 = 64;
const HIT: u32 = 3;

#[derive(Debug, Default)]
pub(super) struct Templates {
    all: Vec<Template>,
    /// Index of the template that was requested last.
    last: usize,
}

/// The common parts of similar texts: the bytes between their scalars, and the types of the scalars.
#[derive(Debug)]
pub(super) struct Template {
    /// The id of the requested `Places`.
    of: u128,
    /// Empty while no template is known.
    pieces: Vec<Piece>,
    misses: u32,
    rest: u32,
}

/// Bytes that all matching texts share, and the type of the scalar that follows. Before a string, the bytes include its opening quote.
#[derive(Clone, Copy, Debug)]
struct Piece {
    bytes: [u8; PIECE],
    length: usize,
    mask: u128,
    then: Option<ScalarKind>,
    /// Slot of the scalar, if it is the value of a requested field.
    slot: Option<usize>,
}

#[derive(Clone, Copy, Debug)]
enum ScalarKind {
    String,
    Number,
    /// `true`, `false`, or `null`.
    Word,
}

impl Templates {
    /// Returns the template for the `Places` with this id. A new template is empty.
    pub(super) fn of(&mut self, of: u128) -> &mut Template {
        if self.all.get(self.last).is_none_or(|last| last.of != of) {
            self.last = self.number(of);
        }
        &mut self.all[self.last]
    }

    #[inline(never)]
    fn number(&mut self, of: u128) -> usize {
        let known = self.all.iter().position(|template| template.of == of);
        known.unwrap_or_else(|| {
            if self.all.len() == TEMPLATES_MAX {
                self.all.clear();
            }
            self.all.push(Template { of, pieces: Vec::new(), misses: 0, rest: FIRST_REST });
            self.all.len() - 1
        })
    }
}

impl Template {
    pub(super) fn find<'a>(&mut self, scan: &Scan<'a, '_>, found: &mut [Option<Scalar<'a>>]) -> Option<()> {
        if self.pieces.is_empty() {
            return None;
        }
        let all = self.values(scan, found);
        if all.is_some() {
            self.misses = self.misses.saturating_sub(HIT);
        } else {
            self.misses += 1;
            if self.misses == MISSES_MAX {
                self.pieces.clear();
                (self.misses, self.rest) = (0, REST);
            }
        }
        all
    }

    fn values<'a>(&self, scan: &Scan<'a, '_>, found: &mut [Option<Scalar<'a>>]) -> Option<()> {
        let mut at = 0;
        for piece in &self.pieces {
            if !piece.begins(scan.json.get(at..)?) {
                return None;
            }
            at = at.wrapping_add(piece.length);
            let (start, (end, is_simple)) = match piece.then {
                None => continue,
                Some(ScalarKind::String) => (at.wrapping_sub(1), scan.rest_of_string(at)?),
                Some(ScalarKind::Number) => (at, (scan.number(at)?, false)),
                Some(ScalarKind::Word) => (at, (scan.word(at)?, false)),
            };
            if let Some(slot) = piece.slot {
                found[slot] = Some(scan.value(start, end, is_simple)?);
            }
            at = end;
        }
        (at == scan.json.len()).then_some(())
    }

    /// Counts a text. After enough texts, learns the template of the current text. `found` has the values of the requested fields.
    pub(super) fn learn<'a>(&mut self, scan: &Scan<'a, '_>, found: &[Option<Scalar<'a>>]) {
        if self.pieces.is_empty() {
            self.rest -= 1;
            if self.rest == 0 {
                self.pieces = pieces(scan, found).unwrap_or_default();
                self.rest = REST;
            }
        }
    }
}

/// Returns the pieces of a text. Returns `None` in three cases: the text has too many pieces, a field is requested twice, or a requested
/// value is missing, null, a container, or a string with escapes.
fn pieces<'a>(scan: &Scan<'a, '_>, found: &[Option<Scalar<'a>>]) -> Option<Vec<Piece>> {
    let place = |part: &[u8]| part.as_ptr().addr() - scan.json.as_ptr().addr();
    let places = found.iter().map(|value| match value {
        Some(Scalar::String(text)) => Some(place(text) - 1),
        Some(Scalar::Number(text) | Scalar::Bool(text)) => Some(place(text)),
        _ => None,
    });
    let places: Vec<_> = places.collect::<Option<_>>()?;
    let (mut pieces, mut at, mut from) = (Vec::new(), 0, 0);
    while let Some(byte) = scan.byte(at) {
        let (end, then) = match byte {
            b'"' => (scan.string(at)?.0, ScalarKind::String),
            b'-' | b'0'..=b'9' => (scan.number(at)?, ScalarKind::Number),
            b't' | b'f' | b'n' => (scan.word(at)?, ScalarKind::Word),
            _ => {
                at = behind(at);
                continue;
            }
        };
        // A string before a colon is the name of a field and part of the template.
        if scan.byte(scan.space(end)) != Some(b':') {
            let start = if let ScalarKind::String = then { behind(at) } else { at };
            push(&mut pieces, &scan.json[from..start], Some(then), places.iter().position(|&place| place == at))?;
            from = end;
        }
        at = end;
    }
    push(&mut pieces, &scan.json[from..], None, None)?;
    let slots = pieces.iter().filter(|piece| piece.slot.is_some()).count();
    // If a field is requested twice, its piece has only one of the two slots, so no template is learned.
    (slots == found.len()).then_some(pieces)
}

fn push(pieces: &mut Vec<Piece>, bytes: &[u8], then: Option<ScalarKind>, slot: Option<usize>) -> Option<()> {
    if pieces.len() + bytes.len() / PIECE >= PIECES_MAX {
        return None;
    }
    let piece = |part: &[u8]| {
        let mut bytes = [0; PIECE];
        bytes[..part.len()].copy_from_slice(part);
        let mask = std::array::from_fn(|at| if at < part.len() { u8::MAX } else { 0 });
        Piece { bytes, length: part.len(), mask: u128::from_le_bytes(mask), then: None, slot: None }
    };
    pieces.extend(bytes.chunks(PIECE).map(piece));
    if bytes.is_empty() {
        pieces.push(piece(&[]));
    }
    let last = pieces.last_mut()?;
    (last.then, last.slot) = (then, slot);
    Some(())
}

impl Piece {
    #[inline]
    fn begins(&self, text: &[u8]) -> bool {
        match text.first_chunk() {
            Some(first) => (u128::from_le_bytes(*first) ^ u128::from_le_bytes(self.bytes)) & self.mask == 0,
            None => text.starts_with(&self.bytes[..self.length]),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Buffers, Extract, JsonExtractor};
    use super::*;
    use crate::format::Places;
    use proptest::prelude::*;

    fn extractor(all: &[&str]) -> JsonExtractor {
        JsonExtractor::new(Places::new(all).unwrap())
    }

    /// Returns the values that are found with the templates of earlier texts, and the values that the parser finds.
    fn both<'a>(extractor: &'a JsonExtractor, buffers: &mut Buffers, count: usize, text: &'a [u8]) -> [Option<Vec<Option<Scalar<'a>>>>; 2] {
        let (mut quick, mut slow) = (vec![None; count], vec![None; count]);
        let quick = extractor.find(text, buffers, &mut quick).map(|()| quick);
        [quick.ok(), extractor.parse(text, &mut slow).ok().map(|()| slow)]
    }

    fn scalar() -> impl Strategy<Value = String> {
        let odd = [
            "null",
            "true",
            "false",
            "-0.5e7",
            "1e999",
            "01",
            "-",
            "nul",
            "\"\"",
            "\"a\\\"b\"",
            "\"\\ud800\"",
            "\"\u{e9}\"",
            "\"\t\"",
            "\"~\"",
            "\"",
            "[]",
            "{}",
        ];
        prop_oneof![
            2 => any::<u16>().prop_map(|number| number.to_string()),
            2 => "[a-z\\\\,:{}]{0,70}".prop_map(|text| format!("\"{text}\"")),
            1 => prop::sample::select(odd.to_vec()).prop_map(str::to_owned),
        ]
    }

    /// Generates a text with a `_` for each scalar. Some of the scalars are requested.
    fn frame() -> impl Strategy<Value = &'static str> {
        prop::sample::select(vec![
            r#"{"a":_,"a long name, longer than a piece":_,"b":{"a":_,"c":[_,_]},"d":_}"#,
            r#" { "b" : { "a" : _ } , "b" : { "a" : _, "x" : { } } , "a":_ } "#,
            r#"{"a":_,"b":_,"b":{"a":_}}"#,
            r#"{"b":{"a":_},"\u0061":_,"a":_}"#,
            r#"[_,{"a":_}]"#,
            "_",
        ])
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(1024))]
        #[test]
        fn a_template_finds_the_same_values_as_a_parser(
            frames in [frame(), frame()],
            texts in prop::collection::vec((prop::bool::weighted(0.9), prop::collection::vec(scalar(), 8), 0_u8..20, any::<prop::sample::Index>(), any::<u8>()), 40..120),
        ) {
            let all: [&[&str]; 4] = [&["/a"], &["/b/a", "/a"], &["/a", "/a"], &[""]];
            let all = all.map(|names| (extractor(names), names.len()));
            let mut buffers = Buffers::default();
            for (is_first, scalars, change, at, byte) in texts {
                let parts: Vec<_> = frames[usize::from(!is_first)].split('_').collect();
                let mut text: Vec<u8> = parts[0].bytes().collect();
                for (part, scalar) in parts[1..].iter().zip(&scalars) {
                    text.extend(scalar.bytes().chain(part.bytes()));
                }
                // Replace `~` by a byte that is not valid in UTF-8.
                text.iter_mut().filter(|byte| **byte == b'~').for_each(|byte| *byte = 0xff);
                match change {
                    0 => text.get_mut(at.index(parts.concat().len() + 1)).into_iter().for_each(|at| *at = byte),
                    1 => text.truncate(at.index(text.len() + 1)),
                    _ => {}
                }
                for (extractor, count) in &all {
                    let [quick, slow] = both(extractor, &mut buffers, *count, &text);
                    prop_assert_eq!(quick, slow, "{}", String::from_utf8_lossy(&text));
                }
            }
        }
    }

    fn is_known(buffers: &mut Buffers, extractor: &JsonExtractor, text: &str) -> bool {
        let (scan, template) = buffers.scan_and_template(text.as_bytes(), &extractor.places);
        template.values(&scan, &mut [None]).is_some() && !template.pieces.is_empty()
    }

    #[test]
    fn a_template_is_learned_reused_and_discarded() {
        let (extractor, mut buffers) = (extractor(&["/id"]), Buffers::default());
        let find = |buffers: &mut Buffers, text: &str| {
            let mut found = [None];
            extractor.find(text.as_bytes(), buffers, &mut found).unwrap();
        };
        let (one, other) = (r#"{"a long name" : [ {"id" :"a"} , 1 ] ,"id":"a"}"#, r#"{"id":["a"]}"#);
        for _ in 1..FIRST_REST {
            find(&mut buffers, one);
            assert!(!is_known(&mut buffers, &extractor, one));
        }
        find(&mut buffers, one);
        for scalars in [["a", "1", "a"], ["", "-2.5e3", "\\u0061\\n"]] {
            let text = format!(r#"{{"a long name" : [ {{"id" :"{}"}} , {} ] ,"id":"{}"}}"#, scalars[0], scalars[1], scalars[2]);
            assert!(is_known(&mut buffers, &extractor, &text), "{text}");
        }
        for text in [other, &one.replace('1', "null"), &one.replace('1', "01"), &format!("{one} "), &one[..one.len() - 1], ""] {
            assert!(!is_known(&mut buffers, &extractor, text), "{text}");
        }
        for at in (0..one.len()).filter(|&at| !["a\"", "1"].iter().any(|scalar| one[at..].starts_with(scalar))) {
            let text: String = one.bytes().enumerate().map(|(place, byte)| char::from(if place == at { byte ^ 1 } else { byte })).collect();
            assert!(!is_known(&mut buffers, &extractor, &text), "{text}");
        }
        // One match per three misses is enough to keep the template.
        for _ in 0..MISSES_MAX {
            (0..HIT).for_each(|_| find(&mut buffers, other));
            find(&mut buffers, one);
        }
        assert!(is_known(&mut buffers, &extractor, one));
        (0..MISSES_MAX).for_each(|_| find(&mut buffers, other));
        assert!(!is_known(&mut buffers, &extractor, one), "useless");
        (0..REST).for_each(|_| find(&mut buffers, one));
        assert!(is_known(&mut buffers, &extractor, one));
    }

    #[test]
    fn a_text_with_duplicate_fields_is_not_a_template() {
        let extractor = extractor(&["/b/a"]);
        for text in [r#"{"b":{"a":_},"b":{"a":1}}"#, r#"{"b":{"a":_,"a":1}}"#] {
            let mut buffers = Buffers::default();
            let usual = text.replace('_', "\"\"");
            (0..2 * FIRST_REST).for_each(|_| extractor.find(usual.as_bytes(), &mut buffers, &mut [None]).unwrap());
            assert!(!is_known(&mut buffers, &extractor, &usual));
            // Only the last of the equal fields counts, but the string in the first one must be valid, too.
            let broken = text.replace('_', r#""\ud800""#);
            assert!(extractor.find(broken.as_bytes(), &mut buffers, &mut [None]).is_err(), "{broken}");
        }
    }

    #[test]
    fn a_long_text_is_not_a_template() {
        let (extractor, spaces) = (extractor(&["/id"]), " ".repeat(PIECE * PIECES_MAX));
        for text in [format!(r#"{{"id":1,"all":[{}0]}}"#, "0,".repeat(PIECES_MAX)), format!(r#"{{"id":{spaces}1}}"#)] {
            let mut buffers = Buffers::default();
            for _ in 0..2 * FIRST_REST {
                let mut found = [None];
                extractor.find(text.as_bytes(), &mut buffers, &mut found).unwrap();
                assert_eq!(found, [Some(Scalar::Number(&text.as_bytes()[text.find('1').unwrap()..][..1]))]);
            }
            assert!(!is_known(&mut buffers, &extractor, &text));
        }
    }

    #[test]
    fn each_set_of_fields_has_its_own_template() {
        let (mut buffers, text) = (Buffers::default(), br#"{"a":"x","b":"y"}"#);
        for _ in 0..2 * FIRST_REST {
            for (name, expected) in [("/a", b"x"), ("/b", b"y")] {
                let extractor = extractor(&[name]);
                let mut found = [None];
                extractor.find(text, &mut buffers, &mut found).unwrap();
                assert_eq!(found, [Some(Scalar::String(expected))]);
            }
        }
    }
}
