//! JSON texts.
//!
//! Three methods find fields, and all of them find the same values. They are tried in this order, until one of them succeeds: a template of
//! an earlier text (`template`), a scan of typical JSON (`scan`), and a parser (`serde_json`). `visit` visits a whole text, and `hint`
//! explains why a field is missing.
//!
//! The syntax of the whole text is validated, so truncated records are rejected. Invalid UTF-8 is rejected in values that are requested or
//! visited and in the names of fields in objects that a pointer leads through. All other strings are not checked for valid UTF-8.

mod hint;
mod scan;
mod structural;
mod template;
mod visit;

pub(crate) use hint::missing_field;

use super::places::{Node, Places};
use super::scalar::Scalar;
use super::{Extract, Unreadable, Visit};
use scan::Scan;
use serde::de::{DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::value::RawValue;
use std::fmt;
use structural::StructuralBitmap;
use template::{Template, Templates};

/// Finds the values at places in JSON texts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct JsonExtractor {
    places: Places,
}

/// Working memory of extractors, reused between records.
#[derive(Debug, Default)]
pub struct Buffers {
    bitmap: StructuralBitmap,
    templates: Templates,
}

impl Buffers {
    fn scan<'a, 'r>(&'r mut self, json: &'a [u8]) -> Scan<'a, 'r> {
        self.bitmap.index(json);
        Scan { json, bitmap: &self.bitmap }
    }

    fn scan_and_template<'a, 'r>(&'r mut self, json: &'a [u8], places: &Places) -> (Scan<'a, 'r>, &'r mut Template) {
        self.bitmap.index(json);
        (Scan { json, bitmap: &self.bitmap }, self.templates.of(places.id()))
    }
}

impl JsonExtractor {
    /// Creates an extractor for these places.
    #[must_use]
    pub const fn new(places: Places) -> Self {
        Self { places }
    }

    /// Returns the places whose values the extractor finds.
    #[must_use]
    #[inline]
    pub const fn places(&self) -> &Places {
        &self.places
    }

    fn parse<'a>(&self, json: &'a [u8], found: &mut [Option<Scalar<'a>>]) -> Result<(), serde_json::Error> {
        let mut deserializer = serde_json::Deserializer::from_slice(json);
        FieldSeed { node: self.places.root(), found }.deserialize(&mut deserializer).and_then(|()| deserializer.end())
    }
}

impl Extract for JsonExtractor {
    // This method is not inline, because every caller would get a copy of the code that runs per record.
    fn find<'a>(&'a self, text: &'a [u8], buffers: &mut Buffers, found: &mut [Option<Scalar<'a>>]) -> Result<(), Box<Unreadable>> {
        let (scan, template) = buffers.scan_and_template(text, &self.places);
        if template.find(&scan, found).is_some() {
            return Ok(());
        }
        found.fill(None);
        if scan.find(self.places.root(), found).is_some() {
            template.learn(&scan, found);
            return Ok(());
        }
        found.fill(None);
        self.parse(text, found).map_err(|error| Box::new(error.into()))
    }

    fn visit(&self, text: &[u8], buffers: &mut Buffers, visitor: &mut impl Visit) -> Result<(), Box<Unreadable>> {
        visit::visit(&buffers.scan(text), visitor).ok_or_else(|| Box::new(visit::refused(text)))
    }
}

/// Deserializes a value and descends only along the pointers.
struct FieldSeed<'w, 'a> {
    node: &'w Node,
    found: &'w mut [Option<Scalar<'a>>],
}

impl<'a> DeserializeSeed<'a> for FieldSeed<'_, 'a> {
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
            // A longer pointer leads through this value, so parse the value again.
            let mut inner = serde_json::Deserializer::from_str(raw.get());
            let beyond = FieldSeed { node: self.node, found: &mut *self.found };
            inner.deserialize_any(beyond).map_err(serde::de::Error::custom)?;
        }
        Ok(())
    }
}

impl<'a> Visitor<'a> for FieldSeed<'_, 'a> {
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
                    map.next_value_seed(FieldSeed { node, found: &mut *self.found })?;
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
                Some((_, node)) => seq.next_element_seed(FieldSeed { node, found: &mut *self.found })?.is_some(),
            };
            if !more {
                break;
            }
        }
        Ok(())
    }

    // A pointer finds nothing if it leads through a scalar.
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

/// Deserializes the name of a field. Returns the index of the child node with this name, or `None` if there is no such node.
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

/// Converts the text of a valid JSON value to a scalar. Fails if a string has invalid escapes.
fn scalar(text: &[u8]) -> Result<Scalar<'_>, serde_json::Error> {
    Ok(match text.first() {
        Some(b'"') if text.contains(&b'\\') => unescape(text).map(|_| Scalar::Escaped(text))?,
        Some(b'"') => Scalar::String(serde_json::from_slice::<&str>(text)?.as_bytes()),
        Some(b'n') => Scalar::Null,
        Some(b't' | b'f') => Scalar::Bool(text),
        Some(b'{' | b'[') => Scalar::Container(text),
        _ => Scalar::Number(text),
    })
}

pub(crate) fn unescape(quoted: &[u8]) -> Result<String, serde_json::Error> {
    serde_json::from_slice(quoted)
}
