//! Extractors for places in record keys or values, with one extractor per schema.
//!
//! Never guesses: a key or value that cannot be read without its schema is not read until the schema arrives.

use super::super::Source;
use super::NoKey;
use crate::format::{Extractor, Format, Frame, Head, Lookup, Message, Places, RecordFormat, Schema, Schemas, Side, disguise};
use crate::record::{Invalid, Reason, Record};
use std::collections::HashMap;

/// Maximum number of cached extractors for one set of places. A full cache is cleared, and extractors are compiled again when needed.
pub(super) const EXTRACTORS_MAX: usize = 1024;

/// A cache of compiled extractors. The frame of a record, which contains the id of the schema, selects the extractor.
#[derive(Debug, Default)]
pub(super) struct Extractors {
    /// Index of the extractor that was used last. The next record usually needs the same extractor.
    last: usize,
    pub(super) known: Vec<Known>,
    pub(super) numbers: HashMap<Box<[u8]>, usize>,
    /// An extractor without places, for keys and values that need not be read.
    pub(super) none: Extractor,
}

#[derive(Debug)]
pub(super) struct Known {
    head: Box<[u8]>,
    /// The extractor, or an error message that starts with a verb, such as `has schema 7, which cannot be used`. [`invalid`] prepends
    /// `the record key` or `the record value`.
    extractor: Result<Extractor, String>,
}

/// A record key or value and the index of its extractor.
#[derive(Clone, Copy)]
pub(super) struct Opened<'a> {
    /// The key or value, or `None` if it is null. [`Extractors::open`] removes the frame. A key or value that was not opened keeps its
    /// frame.
    pub(super) text: Option<&'a [u8]>,
    /// The index of the extractor, or `None` if the key or value need not be parsed.
    pub(super) number: Option<usize>,
}

impl<'a> Opened<'a> {
    pub(super) const fn bare(text: Option<&'a [u8]>) -> Self {
        Self { text, number: None }
    }
}

impl Extractors {
    /// Removes the frame from a key or value if the topic's keys or values have frames. If there are places to read, also finds or compiles
    /// the extractor for the schema.
    pub(super) fn open<'a>(
        &mut self,
        side: Side,
        format: &RecordFormat,
        places: &Places,
        text: &'a [u8],
        header: Option<&'a [u8]>,
        schemas: &dyn Schemas,
    ) -> Result<Opened<'a>, NoKey> {
        let mut frame = Frame { head: &[], body: text };
        if format.is_framed() {
            frame = Frame::split(format.format, text, header).map_err(|what| unframed(side, text, what))?;
        }
        if places.reads_nothing() {
            return Ok(Opened::bare(Some(frame.body)));
        }
        // If records can be read without their schema, all schemas share one extractor.
        let head = if format.format.needs_schema() { frame.head } else { &[] };
        if self.known.get(self.last).is_none_or(|known| *known.head != *head) {
            self.last = match self.numbers.get(head) {
                Some(&number) => number,
                None => self.compile(side, format, places, head, schemas)?,
            };
        }
        Ok(Opened { text: Some(frame.body), number: Some(self.last) })
    }

    /// Returns the extractor with this index, or an extractor without places if the index is `None`.
    pub(super) fn extractor(&self, number: Option<usize>) -> Result<&Extractor, &String> {
        match number.and_then(|number| self.known.get(number)) {
            Some(known) => known.extractor.as_ref(),
            None => Ok(&self.none),
        }
    }

    pub(super) fn source(&self, side: Side, format: &RecordFormat, opened: Opened<'_>) -> Result<Source<'_, Extractor>, NoKey> {
        let extractor = self.extractor(opened.number).map_err(|error| invalid(side, Reason::UnknownSchema, error))?;
        Ok(Source { extractor, is_json: format.format.is_json(), is_framed: format.is_framed() })
    }

    /// Compiles the extractor for a frame, adds it to the cache, and returns its index.
    fn compile(&mut self, side: Side, format: &RecordFormat, places: &Places, head: &[u8], schemas: &dyn Schemas) -> Result<usize, NoKey> {
        let extractor = if let Some(extractor) = Extractor::without_schema(format.format, places) {
            Ok(extractor)
        } else if let Some(local) = &format.schema {
            compiled(&local.schema, local.message(), places).map_err(|error| format!("has a schema that cannot be used: {error}"))
        } else {
            named(side, format.format, places, head, schemas)?
        };
        if self.known.len() == EXTRACTORS_MAX {
            self.known.clear();
            self.numbers.clear();
        }
        self.known.push(Known { head: head.into(), extractor });
        self.numbers.insert(head.into(), self.known.len() - 1);
        Ok(self.known.len() - 1)
    }
}

fn compiled(schema: &Schema, message: Message<'_>, places: &Places) -> Result<Extractor, String> {
    Extractor::compile(schema, message, places).map_err(|error| error.to_string())
}

/// Compiles an extractor for the schema of a frame. Callers cache the inner error, because the schema does not change. They do not cache
/// the outer error: either the frame is broken, or the registry may have the schema later.
fn named(side: Side, format: Format, places: &Places, head: &[u8], schemas: &dyn Schemas) -> Result<Result<Extractor, String>, NoKey> {
    let broken = || invalid(side, Reason::Malformed, "has a frame that cannot be read");
    let Head { schema: id, indexes } = Head::of(format, head).ok_or_else(broken)?;
    let schema = match schemas.get(id) {
        Lookup::Known(schema) => schema,
        Lookup::Unknown(why) => return Err(invalid(side, Reason::UnknownSchema, &format!("has schema {id}, but {why}"))),
        Lookup::Awaited => return Err(NoKey::Awaits(id)),
    };
    let extractor = if schema.format == format {
        compiled(&schema, Message::Indexes(&indexes), places)
    } else {
        Err(format!("it is a schema for {}, not for {format}; set {side}_format to the format of the schema", schema.format))
    };
    Ok(extractor.map_err(|error| format!("has schema {id}, which cannot be used: {error}")))
}

fn unframed(side: Side, text: &[u8], what: &str) -> NoKey {
    match disguise(side, text) {
        Some(disguise) => invalid(side, Reason::Malformed, &format!("does not begin with the frame of a schema registry: {disguise}")),
        None => invalid(side, Reason::Malformed, what),
    }
}

pub(super) fn invalid(side: Side, reason: Reason, what: &str) -> NoKey {
    NoKey::Invalid(Box::new(Invalid { reason, message: format!("the record {side} {what}") }))
}

pub(super) fn header<'a>(record: &Record<'a>, name: &str) -> Option<&'a [u8]> {
    record.headers.iter().rev().find(|(header, _)| *header == name).and_then(|(_, value)| *value)
}
