//! Evaluates predicates.
//!
//! Extracts only the places that a predicate tests.

use super::super::Scratch;
use super::super::field;
use super::super::invalid::unreadable;
use super::super::predicate::{Place, Predicate, Test};
use super::NoKey;
use super::extractors::{Extractors, header, invalid};
use crate::format::{Formats, KEY_HEADER, Scalar, Schemas, Side, VALUE_HEADER};
use crate::record::{Reason, Record};

impl Predicate {
    /// `extractors` caches the extractors for the predicate's field. Fails if the predicate tests a field of a key or value that cannot be
    /// read, or if the schema has not arrived yet.
    pub(super) fn holds(
        &self,
        extractors: &mut Extractors,
        formats: &Formats,
        record: &Record<'_>,
        scratch: &mut Scratch,
        schemas: &dyn Schemas,
    ) -> Result<bool, NoKey> {
        let is_met = match &self.place {
            Place::Header(name) => {
                let last = record.headers.iter().rev().find(|(header, _)| header == name);
                last.is_some_and(|(_, value)| self.test.accepts(*value))
            }
            Place::RecordKey => record.key.is_some() && self.test.accepts(record.key),
            Place::Field(side, place, _) => {
                let (text, format, frame) = match side {
                    Side::Key => (record.key, formats.key(), KEY_HEADER),
                    Side::Value => (record.value, formats.value(), VALUE_HEADER),
                };
                match text {
                    None => false,
                    Some(text) => {
                        let opened = extractors.open(*side, format, place.places(), text, header(record, frame), schemas)?;
                        let extractor = extractors.extractor(opened.number);
                        let extractor = extractor.map_err(|error| invalid(*side, Reason::UnknownSchema, error))?;
                        let text = opened.text.unwrap_or_default();
                        let found = field::find(extractor, text, &mut scratch.buffers);
                        let found = found.map_err(|error| Box::new(unreadable(*side, format.is_framed(), text, &error)))?;
                        self.test.accepts_scalar(found)
                    }
                }
            }
        };
        Ok(is_met != self.is_negated)
    }
}

impl Test {
    /// `None` is a header whose value is null.
    fn accepts(&self, value: Option<&[u8]>) -> bool {
        match self {
            Self::Exists => true,
            Self::OneOf(values) => value.is_some_and(|value| values.iter().any(|one| one.as_bytes() == value)),
        }
    }

    /// `None` is a missing field.
    fn accepts_scalar(&self, found: Option<Scalar<'_>>) -> bool {
        match self {
            Self::Exists => !matches!(found, None | Some(Scalar::Null)),
            Self::OneOf(values) => found.and_then(field::text_of).is_some_and(|text| values.iter().any(|one| *one == text)),
        }
    }
}
