//! Recognizes the texts that differ in their scalars alone from one that was read before, as records of one producer do.
//!
//! Owns a shortcut before [`super::scan`]: where an earlier text was JSON, so is one with other strings, numbers and words
//! in their places, and its fields lie where the earlier text had them. All else is compared with that as it is written.
//! Must never know a text's template but from one in which all that is looked for was found, and by [`Scan`]: once, then.
//!
//! That fields lie where they did is also what "Mison: a fast JSON parser for data analytics" (Li et al., VLDB 2017) bets
//! on; here the rest of the text is checked as well.

use super::Scalar;
use super::scan::{Scan, behind};

/// Bytes that are compared together.
const PIECE: usize = 16;
/// Pieces of a text beyond which its template is not kept.
const PIECES_MAX: usize = 512;
/// What is looked for in so many ways at most, in one memory.
const TEMPLATES_MAX: usize = 64;
/// Texts that are read before a template is learned: whoever reads a few has no use for it.
const FIRST_REST: u32 = 16;
/// Texts that are read before another template is learned when one was of no use.
const REST: u32 = 4096;
/// A template is of no use when so many texts have another. Each that has it makes up for [`HIT`] of them, for that is what
/// it saves.
const MISSES_MAX: u32 = 64;
const HIT: u32 = 3;

/// The templates of texts, by what is looked for in them.
#[derive(Debug, Default)]
pub(super) struct Templates {
    all: Vec<Template>,
    /// The number of the one that was asked for last.
    last: usize,
}

/// What texts have in common.
#[derive(Debug)]
pub(super) struct Template {
    /// What is looked for.
    of: u128,
    /// Empty while no template is known.
    pieces: Vec<Piece>,
    misses: u32,
    rest: u32,
}

/// Some bytes that all texts have, and the scalar behind them. A string's first quote is one of the bytes.
#[derive(Clone, Copy, Debug)]
struct Piece {
    bytes: [u8; PIECE],
    length: usize,
    /// The bits of as many bytes.
    mask: u128,
    then: Option<ScalarKind>,
    /// Whose value that is.
    slot: Option<usize>,
}

#[derive(Clone, Copy, Debug)]
enum ScalarKind {
    String,
    Number,
    /// `true`, `false` or `null`.
    Word,
}

impl Templates {
    /// The template of texts in which that is looked for.
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
    /// Finds the values in a text of this template; `None` if it has another.
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

    /// Learns from a text in which this was found.
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

/// The pieces of a text; `None` if one of the values is not there, or not a scalar as it is written.
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
        // The name of a field is no scalar.
        if scan.byte(scan.space(end)) != Some(b':') {
            let start = if let ScalarKind::String = then { behind(at) } else { at };
            push(&mut pieces, &scan.json[from..start], Some(then), places.iter().position(|&place| place == at))?;
            from = end;
        }
        at = end;
    }
    push(&mut pieces, &scan.json[from..], None, None)?;
    let slots = pieces.iter().filter(|piece| piece.slot.is_some()).count();
    // A field may be looked for twice.
    (slots == found.len()).then_some(pieces)
}

/// Adds bytes, and what follows them; `None` if they are too many.
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
    /// Whether a text begins with it.
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
    use super::super::invalid::Side;
    use super::super::json::{Buffers, Pointers};
    use super::*;
    use proptest::prelude::*;

    fn pointers(all: &[&str]) -> Pointers {
        let mut pointers = Pointers::default();
        for pointer in all {
            pointers.add(pointer).unwrap();
        }
        pointers
    }

    /// What is found in a text in each of two ways: with what earlier texts have left, and by a parser.
    fn both<'a>(pointers: &Pointers, buffers: &mut Buffers, count: usize, text: &'a [u8]) -> [Option<Vec<Option<Scalar<'a>>>>; 2] {
        let (mut quick, mut slow) = (vec![None; count], vec![None; count]);
        let quick = pointers.find(Side::Value, text, buffers, &mut quick).map(|()| quick);
        [quick.ok(), pointers.parse(text, &mut slow).ok().map(|()| slow)]
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

    /// A text with scalars in it, some of which may be the fields that are looked for.
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
        fn what_a_shape_tells_is_what_a_parser_finds(
            frames in [frame(), frame()],
            texts in prop::collection::vec((prop::bool::weighted(0.9), prop::collection::vec(scalar(), 8), 0_u8..20, any::<prop::sample::Index>(), any::<u8>()), 40..120),
        ) {
            let all: [&[&str]; 4] = [&["/a"], &["/b/a", "/a"], &["/a", "/a"], &[""]];
            let all = all.map(|names| (pointers(names), names.len()));
            let mut buffers = Buffers::default();
            for (is_first, scalars, change, at, byte) in texts {
                let parts: Vec<_> = frames[usize::from(!is_first)].split('_').collect();
                let mut text: Vec<u8> = parts[0].bytes().collect();
                for (part, scalar) in parts[1..].iter().zip(&scalars) {
                    text.extend(scalar.bytes().chain(part.bytes()));
                }
                // No UTF-8.
                text.iter_mut().filter(|byte| **byte == b'~').for_each(|byte| *byte = 0xff);
                match change {
                    0 => text.get_mut(at.index(parts.concat().len() + 1)).into_iter().for_each(|at| *at = byte),
                    1 => text.truncate(at.index(text.len() + 1)),
                    _ => {}
                }
                for (pointers, count) in &all {
                    let [quick, slow] = both(pointers, &mut buffers, *count, &text);
                    prop_assert_eq!(quick, slow, "{}", String::from_utf8_lossy(&text));
                }
            }
        }
    }

    fn is_known(buffers: &mut Buffers, pointers: &Pointers, text: &str) -> bool {
        let (scan, template) = buffers.parts(text.as_bytes(), pointers);
        template.values(&scan, &mut [None]).is_some() && !template.pieces.is_empty()
    }

    #[test]
    fn a_shape_is_learned_kept_and_forgotten() {
        let (pointers, mut buffers) = (pointers(&["/id"]), Buffers::default());
        let find = |buffers: &mut Buffers, text: &str| {
            let mut found = [None];
            pointers.find(Side::Value, text.as_bytes(), buffers, &mut found).unwrap();
        };
        let (one, other) = (r#"{"a long name" : [ {"id" :"a"} , 1 ] ,"id":"a"}"#, r#"{"id":["a"]}"#);
        for _ in 1..FIRST_REST {
            find(&mut buffers, one);
            assert!(!is_known(&mut buffers, &pointers, one));
        }
        find(&mut buffers, one);
        for scalars in [["a", "1", "a"], ["", "-2.5e3", "\\u0061\\n"]] {
            let text = format!(r#"{{"a long name" : [ {{"id" :"{}"}} , {} ] ,"id":"{}"}}"#, scalars[0], scalars[1], scalars[2]);
            assert!(is_known(&mut buffers, &pointers, &text), "{text}");
        }
        for text in [other, &one.replace('1', "null"), &one.replace('1', "01"), &format!("{one} "), &one[..one.len() - 1], ""] {
            assert!(!is_known(&mut buffers, &pointers, text), "{text}");
        }
        for at in (0..one.len()).filter(|&at| !["a\"", "1"].iter().any(|scalar| one[at..].starts_with(scalar))) {
            let text: String = one.bytes().enumerate().map(|(place, byte)| char::from(if place == at { byte ^ 1 } else { byte })).collect();
            assert!(!is_known(&mut buffers, &pointers, &text), "{text}");
        }
        // One in four that have it is enough.
        for _ in 0..MISSES_MAX {
            (0..HIT).for_each(|_| find(&mut buffers, other));
            find(&mut buffers, one);
        }
        assert!(is_known(&mut buffers, &pointers, one));
        (0..MISSES_MAX).for_each(|_| find(&mut buffers, other));
        assert!(!is_known(&mut buffers, &pointers, one), "of no use");
        (0..REST).for_each(|_| find(&mut buffers, one));
        assert!(is_known(&mut buffers, &pointers, one));
    }

    #[test]
    fn no_shape_is_kept_where_a_field_comes_twice() {
        let pointers = pointers(&["/b/a"]);
        for text in [r#"{"b":{"a":_},"b":{"a":1}}"#, r#"{"b":{"a":_,"a":1}}"#] {
            let mut buffers = Buffers::default();
            let usual = text.replace('_', "\"\"");
            (0..2 * FIRST_REST).for_each(|_| pointers.find(Side::Value, usual.as_bytes(), &mut buffers, &mut [None]).unwrap());
            assert!(!is_known(&mut buffers, &pointers, &usual));
            // The first does not count, and yet must be a value.
            let broken = text.replace('_', r#""\ud800""#);
            assert!(pointers.find(Side::Value, broken.as_bytes(), &mut buffers, &mut [None]).is_err(), "{broken}");
        }
    }

    #[test]
    fn no_shape_is_kept_of_much() {
        let (pointers, spaces) = (pointers(&["/id"]), " ".repeat(PIECE * PIECES_MAX));
        for text in [format!(r#"{{"id":1,"all":[{}0]}}"#, "0,".repeat(PIECES_MAX)), format!(r#"{{"id":{spaces}1}}"#)] {
            let mut buffers = Buffers::default();
            for _ in 0..2 * FIRST_REST {
                let mut found = [None];
                pointers.find(Side::Value, text.as_bytes(), &mut buffers, &mut found).unwrap();
                assert_eq!(found, [Some(Scalar::Number(&text.as_bytes()[text.find('1').unwrap()..][..1]))]);
            }
            assert!(!is_known(&mut buffers, &pointers, &text));
        }
    }

    #[test]
    fn what_is_looked_for_has_a_shape_of_its_own() {
        let (mut buffers, text) = (Buffers::default(), br#"{"a":"x","b":"y"}"#);
        for _ in 0..2 * FIRST_REST {
            for (name, expected) in [("/a", b"x"), ("/b", b"y")] {
                let mut found = [None];
                pointers(&[name]).find(Side::Value, text, &mut buffers, &mut found).unwrap();
                assert_eq!(found, [Some(Scalar::String(expected))]);
            }
        }
    }
}
