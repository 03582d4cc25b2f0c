//! A digest of a whole JSON value but for some fields: the same for two texts that differ only in white space, in the
//! order of members, in how a string is escaped, or in those fields.
//!
//! Owns the encoding of that digest, which is part of a key's, and so of the state format. A value's digest is the hash
//! of a tag and its bytes. That of an object is over its members' names and digests, sorted by name; an array's takes
//! one element after the other. Must never read a text that is not one JSON value.

use super::invalid::{Side, unread};
use super::node::{DEPTH_MAX, Node};
use super::scalar::unescape;
use super::scan::{Scan, behind};
use super::{Hashing, SpecError};
use crate::record::{Invalid, Reason};

/// Members that room is kept for between records.
const MEMBERS_KEPT: usize = 1 << 12;

/// What a value is, before its bytes. The discriminants are part of the encoding.
#[derive(Clone, Copy)]
enum Tag {
    Null = 0,
    /// A string, after its escapes are decoded.
    String = 1,
    /// A number as it is written.
    Number = 2,
    Bool = 3,
    Object = 4,
    Array = 5,
}

/// A member of an object that is being read.
#[derive(Debug)]
struct Member {
    name: u128,
    /// Of two equal names the last counts.
    number: usize,
    value: u128,
}

/// Working memory of [`Content::digest`].
#[derive(Debug, Default)]
pub(super) struct Room {
    members: Vec<Member>,
    bytes: Vec<u8>,
}

/// Which fields of a value do not count.
#[derive(Clone, Debug, Default)]
pub(super) struct Content {
    except: Node,
}

impl Content {
    /// Compiles RFC 6901 pointers.
    ///
    /// # Errors
    /// [`SpecError`] when one is malformed, or leads to the whole value.
    pub(super) fn new(except: &[String]) -> Result<Self, SpecError> {
        let mut content = Self::default();
        for (slot, pointer) in except.iter().enumerate() {
            if pointer.is_empty() {
                return Err(SpecError::Everything);
            }
            content.except.add(pointer, slot)?;
        }
        Ok(content)
    }

    /// The digest of a text; `None` for null.
    ///
    /// # Errors
    /// [`Invalid`] when the text is not one JSON value, or has more than [`DEPTH_MAX`] containers within each other.
    pub(super) fn digest(&self, scan: Scan<'_, '_>, hashing: &Hashing, room: &mut Room) -> Result<Option<u128>, Box<Invalid>> {
        let json = scan.json;
        room.members.clear();
        let mut walk = Walk { scan, hashing, room };
        let start = walk.scan.space(0);
        let digest = walk.value(start, Some(&self.except), 0).filter(|&(end, _)| walk.scan.space(end) == json.len());
        room_for_few(walk.room);
        let (_, digest) = digest.ok_or_else(|| Box::new(refused(json)))?;
        Ok((json.get(start) != Some(&b'n')).then_some(digest))
    }
}

fn room_for_few(room: &mut Room) {
    room.members.clear();
    room.members.shrink_to(MEMBERS_KEPT);
}

/// Why a text has no digest. Slow, and in other words than the walk that failed.
fn refused(json: &[u8]) -> Invalid {
    match serde_json::from_slice::<serde_json::Value>(json) {
        Err(error) => unread(Side::Value, json, &error),
        Ok(_) => Invalid {
            reason: Reason::Malformed,
            message: format!("the record value has more than {DEPTH_MAX} JSON containers within each other"),
        },
    }
}

/// Reads one text. Each step takes the place where something begins, and returns the one behind it.
struct Walk<'a, 's, 'w> {
    scan: Scan<'a, 's>,
    hashing: &'w Hashing,
    room: &'s mut Room,
}

impl Walk<'_, '_, '_> {
    /// The digest of a value, but for what `except` leads to.
    fn value(&mut self, at: usize, except: Option<&Node>, depth: usize) -> Option<(usize, u128)> {
        match self.scan.byte(at)? {
            b'"' => self.string(at, Tag::String),
            b'{' if depth < DEPTH_MAX => self.object(at, except, depth),
            b'[' if depth < DEPTH_MAX => self.array(at, except, depth),
            b'{' | b'[' => None,
            b'n' => Some((self.scan.word(at)?, self.hash(Tag::Null, &[]))),
            b't' | b'f' => {
                let end = self.scan.word(at)?;
                Some((end, self.hash(Tag::Bool, &self.scan.json[at..end])))
            }
            _ => {
                let end = self.scan.number(at)?;
                Some((end, self.hash(Tag::Number, &self.scan.json[at..end])))
            }
        }
    }

    fn string(&mut self, at: usize, tag: Tag) -> Option<(usize, u128)> {
        let (end, is_simple) = self.scan.string(at)?;
        let text = &self.scan.json[at..end];
        if !self.scan.is_utf8(text) {
            return None;
        }
        let digest = if is_simple { self.hash(tag, &text[1..text.len() - 1]) } else { self.hash(tag, unescape(text).ok()?.as_bytes()) };
        Some((end, digest))
    }

    fn object(&mut self, at: usize, except: Option<&Node>, depth: usize) -> Option<(usize, u128)> {
        let first = self.room.members.len();
        let mut at = self.scan.space(behind(at));
        let mut is_end = self.scan.byte(at)? == b'}';
        if is_end {
            at = behind(at);
        }
        while !is_end {
            let begin = at;
            let (end, name) = self.string(at, Tag::String)?;
            let child = match except {
                Some(node) if !node.children.is_empty() => node.child(&self.scan.json[begin..end]),
                _ => None,
            };
            let (end, value) = self.value(self.scan.colon(end)?, child, depth + 1)?;
            if child.is_none_or(|child| child.slots.is_empty()) {
                let number = self.room.members.len();
                self.room.members.push(Member { name, number, value });
            }
            (at, is_end) = self.scan.comma(end, b'}')?;
        }
        let Room { members, bytes } = &mut *self.room;
        members[first..].sort_unstable_by_key(|member| (member.name, member.number));
        bytes.clear();
        bytes.push(Tag::Object as u8);
        for last in members[first..].chunk_by(|one, next| one.name == next.name).filter_map(<[_]>::last) {
            bytes.extend_from_slice(&last.name.to_le_bytes());
            bytes.extend_from_slice(&last.value.to_le_bytes());
        }
        members.truncate(first);
        Some((at, self.hashing.fingerprint(bytes).0))
    }

    fn array(&mut self, at: usize, except: Option<&Node>, depth: usize) -> Option<(usize, u128)> {
        let mut digest = self.hash(Tag::Array, &[]);
        let mut at = self.scan.space(behind(at));
        if self.scan.byte(at)? == b']' {
            return Some((behind(at), digest));
        }
        for index in 0_usize.. {
            let child = except.and_then(|node| node.element(index));
            let (end, element) = self.value(at, child, depth + 1)?;
            // An element that does not count keeps its place.
            let element = if child.is_some_and(|child| !child.slots.is_empty()) { 0 } else { element };
            digest = self.hash(Tag::Array, bytemuck::bytes_of(&[digest.to_le(), element.to_le()]));
            let (next, is_end) = self.scan.comma(end, b']')?;
            if is_end {
                return Some((next, digest));
            }
            at = next;
        }
        None
    }

    fn hash(&mut self, tag: Tag, bytes: &[u8]) -> u128 {
        let encoded = &mut self.room.bytes;
        encoded.clear();
        encoded.push(tag as u8);
        encoded.extend_from_slice(bytes);
        self.hashing.fingerprint(encoded).0
    }
}

#[cfg(test)]
mod tests {
    use super::super::structural::StructuralBitmap;
    use super::*;
    use proptest::prelude::*;
    use serde_json::{Map, Value, json};
    use std::fmt::Write as _;

    fn digest(except: &[&str], json: &str) -> Result<Option<u128>, String> {
        let except: Vec<_> = except.iter().map(|pointer| (*pointer).to_owned()).collect();
        let content = Content::new(&except).map_err(|error| error.to_string())?;
        let mut bitmap = StructuralBitmap::default();
        bitmap.index(json.as_bytes());
        let scan = Scan { json: json.as_bytes(), bitmap: &bitmap };
        content.digest(scan, &Hashing::Xxh3, &mut Room::default()).map_err(|invalid| invalid.message)
    }

    fn same(except: &[&str], one: &str, other: &str) -> bool {
        digest(except, one).unwrap() == digest(except, other).unwrap()
    }

    #[test]
    fn white_space_order_and_escapes_do_not_count() {
        assert!(same(
            &[],
            r#"{"a":1,"b":[true,{"c":null,"d":"x"}]}"#,
            " {\"b\" : [ true,\n{\"d\":\"\\u0078\",\"c\":null} ], \"\\u0061\":1 }\t"
        ));
        assert!(same(&[], r#"{"a":1,"a":2}"#, r#"{"a":2}"#), "of two equal names the last counts");
    }

    #[test]
    fn everything_else_counts() {
        let texts = [
            "1",
            "1.0",
            "\"1\"",
            "true",
            "false",
            "[]",
            "{}",
            "[1]",
            "[[1]]",
            "[1,1]",
            "[1,2]",
            "[2,1]",
            r#"{"a":1}"#,
            r#"{"b":1}"#,
            r#"{"a":{"b":1}}"#,
            r#"{"a":null}"#,
            r#"[{"a":1}]"#,
            r#"["a",1]"#,
            r#"{"a":1,"b":1}"#,
            r#"{"a":"b"}"#,
            r#"{"b":"a"}"#,
            "\"\"",
            "\"null\"",
        ];
        let digests: std::collections::HashSet<_> = texts.iter().map(|text| digest(&[], text).unwrap().unwrap()).collect();
        assert_eq!(digests.len(), texts.len());
        assert_eq!(digest(&[], " null "), Ok(None));
    }

    #[test]
    fn a_field_that_is_excepted_may_be_anything_or_missing() {
        let except = &["/ts", "/meta/trace", "/items/1", "/a~1b"];
        let text = r#"{"id":7,"ts":1,"meta":{"trace":"x","kind":2},"items":[1,2,3],"a/b":{}}"#;
        assert!(same(except, text, r#"{"id":7,"meta":{"kind":2,"trace":[1,{"a":2}]},"items":[1,"two",3]}"#));
        for other in [
            r#"{"id":8,"ts":1,"meta":{"trace":"x","kind":2},"items":[1,2,3]}"#,
            r#"{"id":7,"ts":1,"meta":{"trace":"x","kind":3},"items":[1,2,3]}"#,
            r#"{"id":7,"ts":1,"meta":{"trace":"x","kind":2},"items":[1,3]}"#,
            r#"{"id":7,"ts":1,"meta":{"trace":"x","kind":2},"items":[2,2,3]}"#,
            r#"{"id":7,"meta":"trace","items":[1,2,3]}"#,
        ] {
            assert!(!same(except, text, other), "{other}");
        }
    }

    #[test]
    fn what_is_not_json_has_no_digest() {
        for text in ["", "{", "[1,]", "{\"a\":1,}", "{\"a\" 1}", "1 2", "nul", "01", "\"\t\"", "\"\\ud800\"", "{\"ts\":}", "{\"a\":1"] {
            assert!(digest(&["/ts"], text).is_err_and(|message| message.starts_with("the record value is not JSON: ")), "{text}");
        }
        let deep = |depth: usize| format!("{}{}", "[".repeat(depth), "]".repeat(depth));
        assert!(digest(&[], &deep(DEPTH_MAX)).is_ok());
        assert_eq!(
            digest(&[], &deep(DEPTH_MAX + 1)),
            Err("the record value has more than 64 JSON containers within each other".to_owned())
        );
        assert_eq!(digest(&[""], "1"), Err("a content key that leaves out the whole value has nothing left".to_owned()));
    }

    /// Stored filters depend on it. Whoever changes it changes the format of the state.
    #[test]
    fn the_digest_does_not_change() {
        let text = r#"{"id":7,"tags":["a",{"b":null}],"on":true,"x":-1.5e3}"#;
        assert_eq!(format!("{:032x}", digest(&["/x"], text).unwrap().unwrap()), "3045ab2794ca15c9fea41d708875d1fd");
    }

    fn value() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<i32>().prop_map(Value::from),
            "[a-c\"\\\\é]{0,3}".prop_map(Value::from),
        ];
        leaf.prop_recursive(4, 32, 4, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
                prop::collection::vec(("[a-d]{1,2}", inner), 0..4)
                    .prop_map(|members| Value::from(members.into_iter().collect::<Map<_, _>>())),
            ]
        })
    }

    /// The same value in other words: members in another order, white space, and escapes.
    fn reworded(value: &Value, out: &mut String) {
        match value {
            Value::Object(members) => {
                out.push_str("{ ");
                for (number, (name, value)) in members.iter().rev().enumerate() {
                    out.push_str(if number > 0 { " ,\n" } else { "" });
                    reworded(&json!(name), out);
                    out.push_str("\t: ");
                    reworded(value, out);
                }
                out.push('}');
            }
            Value::Array(elements) => {
                out.push('[');
                for (number, element) in elements.iter().enumerate() {
                    out.push_str(if number > 0 { " , " } else { " " });
                    reworded(element, out);
                }
                out.push(']');
            }
            Value::String(text) => {
                out.push('"');
                text.encode_utf16().for_each(|unit| write!(out, "\\u{unit:04x}").unwrap());
                out.push('"');
            }
            other => out.push_str(&other.to_string()),
        }
    }

    proptest! {
        #[test]
        fn values_share_a_digest_if_they_are_equal(one in value(), other in value()) {
            let mut again = String::new();
            reworded(&one, &mut again);
            let digests = [one.to_string(), again, other.to_string()].map(|text| digest(&[], &text).unwrap());
            prop_assert_eq!(digests[0], digests[1]);
            prop_assert_eq!(digests[0] == digests[2], one == other);
        }

        #[test]
        fn what_is_excepted_does_not_count(one in value(), ts in value(), other in value()) {
            let with = |ts: Value| json!({ "ts": ts, "body": one.clone() }).to_string();
            prop_assert_eq!(digest(&["/ts"], &with(ts)).unwrap(), digest(&["/ts"], &with(other)).unwrap());
        }

        #[test]
        fn whatever_a_parser_takes_has_a_digest(bytes in "[\\[\\]{}\",:a0. \\\\u]{0,12}") {
            let parsed = serde_json::from_str::<Value>(&bytes);
            prop_assert_eq!(digest(&[], &bytes).is_ok(), parsed.is_ok(), "{}", bytes);
        }
    }
}
