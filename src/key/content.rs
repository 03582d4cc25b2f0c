//! A digest of everything in a value, except for some fields. Two values have the same digest if they differ only in those fields, in
//! the order of members, in white space, or in the escapes of strings.
//!
//! The digest is part of a key's encoding, so its computation must not change within a version of the state format. The digest of a scalar
//! is the hash of its type and its bytes. An object becomes a list of its members, sorted by the hashes of their names. Each entry has the
//! hash of the name and the digest of the value, and the digest of the object is the hash of this list. For an array, each step hashes the
//! digest so far and the digest of the next element. The digest is computed from the visited values, so this module has no code for JSON or
//! any other value format.

use super::{Hashing, SpecError};
use crate::format::{Container, Node, Places, Scalar, Visit};

/// Maximum capacity, in members, of a buffer that is kept between records.
const MEMBERS_KEPT: usize = 1 << 12;

/// The type of a value. The discriminants are part of the encoding.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Tag {
    #[default]
    Null = 0,
    /// A string, after its escapes are decoded.
    String = 1,
    Number = 2,
    Bool = 3,
    Object = 4,
    Array = 5,
}

/// A member of an object that is being read: the hash of its name and the digest of its value.
#[derive(Debug)]
struct Member {
    name: u128,
    /// The position of the member in [`Room::members`], to order members with the same name. The last member with a name counts.
    number: usize,
    value: u128,
}

/// A container that is being read.
#[derive(Clone, Copy, Debug, Default)]
struct Frame {
    /// The type of the container. [`Tag::Null`] outside of all containers.
    tag: Tag,
    /// For an object, the position of its first member in [`Room::members`]. For an array, the index of the next element.
    at: usize,
    /// For an array, the digest of the elements so far.
    digest: u128,
    /// For an object, the hash of the next member's name.
    name: u128,
    /// Position of the container in [`Content::except`], if the container or something in it is left out.
    except: Option<usize>,
    /// Position of the next member in [`Content::except`], if the member or something in it is left out.
    except_member: Option<usize>,
}

/// Working memory of [`Digest`], reused between values.
#[derive(Debug, Default)]
pub(super) struct Room {
    members: Vec<Member>,
    frames: Vec<Frame>,
    bytes: Vec<u8>,
}

/// The fields of a value that are left out of the digest.
#[derive(Clone, Debug, Default)]
pub(super) struct Content {
    /// The tree of the fields, flattened. The first element is the root of the tree: the whole value. Empty if nothing is left out.
    except: Vec<Excepted>,
}

/// A place that is left out of the digest, or that contains such a place.
#[derive(Clone, Debug)]
struct Excepted {
    is_left_out: bool,
    /// The member names or element indexes of the next level, and their positions in [`Content::except`].
    children: Vec<(String, usize)>,
}

impl Content {
    /// Fails if a pointer is malformed, is too deep, or leads to the whole value.
    pub(super) fn new(except: &[String]) -> Result<Self, SpecError> {
        fn flatten(node: &Node, all: &mut Vec<Excepted>) -> usize {
            let at = all.len();
            all.push(Excepted { is_left_out: !node.slots.is_empty(), children: Vec::new() });
            let children = node.children.iter().map(|(step, child)| (step.clone(), flatten(child, all))).collect();
            all[at].children = children;
            at
        }
        if except.iter().any(String::is_empty) {
            return Err(SpecError::Everything);
        }
        let mut content = Self::default();
        if !except.is_empty() {
            flatten(Places::new(except)?.root(), &mut content.except);
        }
        Ok(content)
    }

    pub(super) fn digest<'d>(&'d self, hashing: &'d Hashing, room: &'d mut Room) -> Digest<'d> {
        room.members.clear();
        room.members.shrink_to(MEMBERS_KEPT);
        room.frames.clear();
        let except = (!self.except.is_empty()).then_some(0);
        Digest { content: self, hashing, room, top: Frame { except_member: except, ..Frame::default() }, result: None }
    }
}

pub(super) struct Digest<'d> {
    content: &'d Content,
    hashing: &'d Hashing,
    room: &'d mut Room,
    /// The innermost open container.
    top: Frame,
    /// Digest of the whole value, once the value has ended. Stays `None` if the value is null.
    result: Option<u128>,
}

impl Digest<'_> {
    pub(super) fn finish(self) -> Option<u128> {
        self.result
    }

    /// Returns the digest of the last value and begins the digest of the next value.
    pub(super) fn next(&mut self) -> Option<u128> {
        self.result.take()
    }

    fn hash(&mut self, tag: Tag, bytes: &[u8]) -> u128 {
        let encoded = &mut self.room.bytes;
        encoded.clear();
        encoded.push(tag as u8);
        encoded.extend_from_slice(bytes);
        self.hashing.fingerprint(encoded).0
    }

    /// Returns the position of the next value in [`Content::except`], if the value or something in it is left out.
    fn except(&self) -> Option<usize> {
        match self.top.tag {
            Tag::Array => {
                let children = &self.content.except[self.top.except?].children;
                if children.is_empty() {
                    return None;
                }
                let index = self.top.at.to_string();
                children.iter().find(|(step, _)| *step == index).map(|&(_, child)| child)
            }
            _ => self.top.except_member,
        }
    }

    /// Adds the digest of a value to the innermost open container. If no container is open, the digest is the result.
    fn add(&mut self, value: u128, except: Option<usize>) {
        let is_left_out = except.is_some_and(|at| self.content.except[at].is_left_out);
        match self.top.tag {
            Tag::Array => {
                // An omitted element is hashed as 0. Arrays of different lengths therefore keep different digests.
                let element = if is_left_out { 0 } else { value };
                self.top.digest = self.hash(Tag::Array, bytemuck::bytes_of(&[self.top.digest.to_le(), element.to_le()]));
                self.top.at += 1;
            }
            Tag::Object if is_left_out => {}
            Tag::Object => {
                let number = self.room.members.len();
                self.room.members.push(Member { name: self.top.name, number, value });
            }
            _ => self.result = Some(value),
        }
    }

    fn digest_object(&mut self, first: usize) -> u128 {
        let Room { members, bytes, .. } = &mut *self.room;
        members[first..].sort_unstable_by_key(|member| (member.name, member.number));
        bytes.clear();
        bytes.push(Tag::Object as u8);
        for last in members[first..].chunk_by(|one, next| one.name == next.name).filter_map(<[_]>::last) {
            bytes.extend_from_slice(&last.name.to_le_bytes());
            bytes.extend_from_slice(&last.value.to_le_bytes());
        }
        members.truncate(first);
        self.hashing.fingerprint(bytes).0
    }
}

impl Visit for Digest<'_> {
    fn scalar(&mut self, value: Scalar<'_>) {
        let digest = match value {
            // If the whole value is null, it has no digest. Within a container, null counts like any other value.
            Scalar::Null if self.top.tag == Tag::Null => return,
            Scalar::Null => self.hash(Tag::Null, &[]),
            Scalar::Bool(text) => self.hash(Tag::Bool, text),
            Scalar::Number(text) => self.hash(Tag::Number, text),
            Scalar::Integer(_) | Scalar::Decimal { .. } => self.hash(Tag::Number, value.written().bytes()),
            Scalar::Uuid(_) => self.hash(Tag::String, value.written().bytes()),
            // `Escaped` and `Container` do not occur here: a visitor gets strings without escapes, and containers element by element.
            Scalar::String(text) | Scalar::Escaped(text) | Scalar::Container(text) => self.hash(Tag::String, text),
        };
        self.add(digest, self.except());
    }

    fn open(&mut self, container: Container) {
        let except = self.except();
        let (tag, at, digest) = match container {
            Container::Object => (Tag::Object, self.room.members.len(), 0),
            Container::Array => (Tag::Array, 0, self.hash(Tag::Array, &[])),
        };
        self.room.frames.push(self.top);
        self.top = Frame { tag, at, digest, name: 0, except, except_member: None };
    }

    fn name(&mut self, name: &[u8]) {
        self.top.name = self.hash(Tag::String, name);
        if let Some(at) = self.top.except {
            let children = &self.content.except[at].children;
            self.top.except_member = children.iter().find(|(step, _)| step.as_bytes() == name).map(|&(_, child)| child);
        }
    }

    fn close(&mut self) {
        let digest = if self.top.tag == Tag::Object { self.digest_object(self.top.at) } else { self.top.digest };
        self.top = self.room.frames.pop().unwrap_or_default();
        self.add(digest, self.except());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::{Buffers, DEPTH_MAX, Extract as _, JsonExtractor};
    use proptest::prelude::*;
    use serde_json::{Map, Value, json};
    use std::fmt::Write as _;

    fn digest(except: &[&str], json: &str) -> Result<Option<u128>, String> {
        let except: Vec<_> = except.iter().map(|pointer| (*pointer).to_owned()).collect();
        let content = Content::new(&except).map_err(|error| error.to_string())?;
        let (mut room, hashing) = (Room::default(), Hashing::Xxh3);
        let mut digest = content.digest(&hashing, &mut room);
        let visited = JsonExtractor::default().visit(json.as_bytes(), &mut Buffers::default(), &mut digest);
        visited.map(|()| digest.finish()).map_err(|error| error.to_string())
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
    fn invalid_json_has_no_digest() {
        for text in ["", "{", "[1,]", "{\"a\":1,}", "{\"a\" 1}", "1 2", "nul", "01", "\"\t\"", "\"\\ud800\"", "{\"ts\":}", "{\"a\":1"] {
            assert!(digest(&["/ts"], text).is_err_and(|message| message.starts_with("is not JSON: ")), "{text}");
        }
        let deep = |depth: usize| format!("{}{}", "[".repeat(depth), "]".repeat(depth));
        assert!(digest(&[], &deep(DEPTH_MAX)).is_ok());
        assert_eq!(digest(&[], &deep(DEPTH_MAX + 1)), Err("has more than 64 levels of nested JSON objects and arrays".to_owned()));
        assert_eq!(
            digest(&[""], "1"),
            Err("`except` excludes the whole value, so nothing is left to compare: exclude single fields instead".to_owned())
        );
    }

    /// Stored filters depend on the digest, so a change of the digest is a change of the state format.
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

    /// Writes the same value with its members in another order, and with additional white space and escapes.
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
        fn excepted_fields_do_not_count(one in value(), ts in value(), other in value()) {
            let with = |ts: Value| json!({ "ts": ts, "body": one.clone() }).to_string();
            prop_assert_eq!(digest(&["/ts"], &with(ts)).unwrap(), digest(&["/ts"], &with(other)).unwrap());
        }

        #[test]
        fn a_text_has_a_digest_exactly_if_it_is_json(bytes in "[\\[\\]{}\",:a0. \\\\u]{0,12}") {
            let parsed = serde_json::from_str::<Value>(&bytes);
            prop_assert_eq!(digest(&[], &bytes).is_ok(), parsed.is_ok(), "{}", bytes);
        }
    }
}
