//! Reads a few fields of a JSON text in one pass, without building a tree of the others: by a shortcut where the text is
//! as usual, else by a parser.
//!
//! The whole text is checked for syntax, so that a torn record is not taken for a whole one.
//! Bytes of strings that nobody asked for are not checked to be UTF-8.

use super::SpecError;
use super::content::Room;
use super::invalid::{Side, unread};
use super::node::Node;
use super::scalar::{Scalar, scalar};
use super::scan::Scan;
use super::structural::StructuralBitmap;
use super::template::{Template, Templates};
use crate::record::Invalid;
use serde::de::{DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::value::RawValue;
use std::fmt;
use xxhash_rust::xxh3::xxh3_128;

/// The places to read, as a tree: every pointer is a path to a node with a `slot`.
#[derive(Clone, Debug, Default)]
pub(super) struct Pointers {
    root: Node,
    count: usize,
    /// A hash of them, to know them by.
    id: u128,
}

/// Working memory of [`Pointers::find`].
#[derive(Debug, Default)]
pub(super) struct Buffers {
    bitmap: StructuralBitmap,
    templates: Templates,
    room: Room,
}

impl Buffers {
    /// What a whole text is read with.
    pub(super) fn whole<'a, 'r>(&'r mut self, json: &'a [u8]) -> (Scan<'a, 'r>, &'r mut Room) {
        self.bitmap.index(json);
        (Scan { json, bitmap: &self.bitmap }, &mut self.room)
    }

    /// What a text is read with.
    pub(super) fn parts<'a, 'r>(&'r mut self, json: &'a [u8], pointers: &Pointers) -> (Scan<'a, 'r>, &'r mut Template) {
        self.bitmap.index(json);
        (Scan { json, bitmap: &self.bitmap }, self.templates.of(pointers.id))
    }
}

impl Pointers {
    /// Adds an RFC 6901 pointer; its value will be found in the order of adding.
    pub(super) fn add(&mut self, pointer: &str) -> Result<(), SpecError> {
        self.root.add(pointer, self.count)?;
        self.count += 1;
        self.id = xxh3_128(&[&self.id.to_le_bytes(), pointer.as_bytes()].concat());
        Ok(())
    }

    /// The places, and how many they are.
    pub(super) const fn places(&self) -> (&Node, usize) {
        (&self.root, self.count)
    }

    /// The values at the pointers, if there are any; none of them where there is no text.
    #[inline]
    pub(super) fn read<'f, 'a>(
        &self,
        side: Side,
        json: Option<&'a [u8]>,
        buffers: &mut Buffers,
        found: &'f mut [Option<Scalar<'a>>],
    ) -> Result<&'f [Option<Scalar<'a>>], Box<Invalid>> {
        match json {
            Some(json) if !found.is_empty() => self.find(side, json, buffers, found)?,
            _ => {}
        }
        Ok(found)
    }

    /// Finds the values at the pointers, in the order in which they were added; `None` where there is none.
    pub(super) fn find<'a>(
        &self,
        side: Side,
        json: &'a [u8],
        buffers: &mut Buffers,
        found: &mut [Option<Scalar<'a>>],
    ) -> Result<(), Box<Invalid>> {
        let (scan, template) = buffers.parts(json, self);
        if template.find(&scan, found).is_some() {
            return Ok(());
        }
        found.fill(None);
        if scan.find(&self.root, found).is_some() {
            template.learn(&scan, found);
            return Ok(());
        }
        found.fill(None);
        self.parse(json, found).map_err(|error| Box::new(unread(side, json, &error)))
    }

    #[cfg(test)]
    pub(super) const fn root(&self) -> &Node {
        &self.root
    }

    /// The same for any text, and the words for what is wrong with it.
    pub(super) fn parse<'a>(&self, json: &'a [u8], found: &mut [Option<Scalar<'a>>]) -> Result<(), serde_json::Error> {
        let mut deserializer = serde_json::Deserializer::from_slice(json);
        Walk { node: &self.root, found }.deserialize(&mut deserializer).and_then(|()| deserializer.end())
    }
}

/// Deserializes one value, descending only where a pointer leads.
struct Walk<'w, 'a> {
    node: &'w Node,
    found: &'w mut [Option<Scalar<'a>>],
}

impl<'a> DeserializeSeed<'a> for Walk<'_, 'a> {
    type Value = ();

    fn deserialize<D: Deserializer<'a>>(self, deserializer: D) -> Result<(), D::Error> {
        if self.node.slots.is_empty() {
            return deserializer.deserialize_any(self);
        }
        let raw: &'a RawValue = serde::Deserialize::deserialize(deserializer)?;
        let scalar = scalar(raw.get().as_bytes()).map_err(serde::de::Error::custom)?;
        for &slot in &self.node.slots {
            self.found[slot] = Some(scalar);
        }
        if !self.node.children.is_empty() && matches!(scalar, Scalar::Container(_)) {
            // One pointer is the beginning of another: read this value a second time, for the longer one.
            let mut inner = serde_json::Deserializer::from_str(raw.get());
            let beyond = Walk { node: self.node, found: &mut *self.found };
            inner.deserialize_any(beyond).map_err(serde::de::Error::custom)?;
        }
        Ok(())
    }
}

impl<'a> Visitor<'a> for Walk<'_, 'a> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("any JSON value")
    }

    fn visit_map<A: MapAccess<'a>>(self, mut map: A) -> Result<(), A::Error> {
        while let Some(at) = map.next_key_seed(Segment { node: self.node })? {
            match at {
                None => drop(map.next_value::<IgnoredAny>()?),
                Some(at) => {
                    let node = &self.node.children[at].1;
                    node.forget(self.found);
                    map.next_value_seed(Walk { node, found: &mut *self.found })?;
                }
            }
        }
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'a>>(self, mut seq: A) -> Result<(), A::Error> {
        for index in 0_usize.. {
            let name = index.to_string();
            let step = self.node.children.iter().find(|(step, _)| *step == name);
            let more = match step {
                None => seq.next_element::<IgnoredAny>()?.is_some(),
                Some((_, node)) => seq.next_element_seed(Walk { node, found: &mut *self.found })?.is_some(),
            };
            if !more {
                break;
            }
        }
        Ok(())
    }

    // A pointer leads through a scalar: there is nothing at its end.
    fn visit_bool<E>(self, _: bool) -> Result<(), E> {
        Ok(())
    }
    fn visit_i64<E>(self, _: i64) -> Result<(), E> {
        Ok(())
    }
    fn visit_u64<E>(self, _: u64) -> Result<(), E> {
        Ok(())
    }
    fn visit_f64<E>(self, _: f64) -> Result<(), E> {
        Ok(())
    }
    fn visit_str<E>(self, _: &str) -> Result<(), E> {
        Ok(())
    }
    fn visit_unit<E>(self) -> Result<(), E> {
        Ok(())
    }
}

/// Reads a field's name: which child of the node it is, if any.
struct Segment<'w> {
    node: &'w Node,
}

impl<'a> DeserializeSeed<'a> for Segment<'_> {
    type Value = Option<usize>;

    fn deserialize<D: Deserializer<'a>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_str(self)
    }
}

impl Visitor<'_> for Segment<'_> {
    type Value = Option<usize>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the name of a field")
    }

    fn visit_str<E>(self, name: &str) -> Result<Self::Value, E> {
        Ok(self.node.children.iter().position(|(step, _)| step == name))
    }
}
