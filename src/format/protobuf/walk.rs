//! Walks a record once and finds the values of fields.
//!
//! Fields can occur several times: the last value counts, parts of a message are merged, and a member of a oneof clears the other members.
//! The walk never allocates.

use super::REPEATED_MAX;
use super::plan::{Below, Constant, Field, Kind, Map, Plan, Shape, Value};
use super::wire::{Reader, Wire};
use crate::format::{Malformed, Scalar};

pub(super) struct Finder<'f, 'a> {
    plan: &'a Plan,
    found: &'f mut [Option<Scalar<'a>>],
    /// The index of the next element, per repeated field that pointers lead through.
    counts: [u32; REPEATED_MAX],
}

impl<'f, 'a> Finder<'f, 'a> {
    pub(super) fn new(plan: &'a Plan, found: &'f mut [Option<Scalar<'a>>]) -> Self {
        Self { plan, found, counts: [0; REPEATED_MAX] }
    }

    /// Walks a message up to the end of the reader, or a group up to its end tag. A message field that occurs several times is one message
    /// in several parts, and each part is walked separately.
    pub(super) fn message(&mut self, table: usize, group: Option<u32>, reader: &mut Reader<'a>) -> Result<(), Malformed> {
        self.enter(table);
        let plan = self.plan;
        let table = &plan.messages[table];
        loop {
            reader.pass_over(|number| table.matters(number));
            if reader.is_at_end() {
                break;
            }
            let (number, wire) = reader.tag()?;
            match table.field(number) {
                _ if wire == Wire::GroupEnd && group == Some(number) => return Ok(()),
                Some(field) => self.field(field, number, wire, reader)?,
                None => reader.skip(number, wire)?,
            }
        }
        if group.is_some() { Err(reader.malformed(0, "the message ends within a group")) } else { Ok(()) }
    }

    /// Sets the default values of a message. If an earlier part of the message has set values, they stay.
    fn enter(&mut self, table: usize) {
        for (default, slots) in &self.plan.messages[table].defaults {
            for &slot in slots {
                self.found[slot].get_or_insert(default.scalar());
            }
        }
    }

    fn field(&mut self, field: &'a Field, number: u32, wire: Wire, reader: &mut Reader<'a>) -> Result<(), Malformed> {
        match field.shape {
            // A value with another wire type was written with another schema. It is skipped like an unknown field.
            Shape::Sibling | Shape::Single(_) | Shape::Map(_) if wire != field.wire => reader.skip(number, wire),
            Shape::Sibling => {
                self.forget(&field.voids);
                reader.skip(number, wire)
            }
            Shape::Single(ref value) => {
                self.forget(&field.voids);
                self.value(value, number, reader)
            }
            Shape::Map(ref map) => self.entry(map, reader.nested()?),
            Shape::Repeated { counter, ref elements } if wire == field.wire => self.element(counter, elements, number, wire, reader),
            // A producer can pack repeated numbers or not, regardless of the schema.
            Shape::Repeated { counter, ref elements } if wire == Wire::Bytes && field.wire != Wire::GroupStart => {
                let mut packed = reader.nested()?;
                while !packed.is_at_end() {
                    self.element(counter, elements, number, field.wire, &mut packed)?;
                }
                Ok(())
            }
            Shape::Repeated { .. } => reader.skip(number, wire),
        }
    }

    fn element(
        &mut self,
        counter: usize,
        elements: &'a [(u32, Value)],
        number: u32,
        wire: Wire,
        reader: &mut Reader<'a>,
    ) -> Result<(), Malformed> {
        let index = self.counts[counter];
        self.counts[counter] = index.saturating_add(1);
        match elements.iter().find(|(wanted, _)| *wanted == index) {
            Some((_, value)) => self.value(value, number, reader),
            None => reader.skip(number, wire),
        }
    }

    /// Walks an entry of a map: a message with a key and a value. They can be in any order, and each can be missing.
    fn entry(&mut self, map: &'a Map, entry: Reader<'a>) -> Result<(), Malformed> {
        const KEY: u32 = 1;
        const VALUE: u32 = 2;
        let (mut key, mut reader) = (map.key_default.scalar(), entry);
        while !reader.is_at_end() {
            match reader.tag()? {
                (KEY, wire) if wire == map.key_wire => key = self.scalar(map.key, &mut reader)?,
                (number, wire) => reader.skip(number, wire)?,
            }
        }
        let Some(wanted) = map.entries.iter().find(|wanted| wanted.key.scalar() == key) else { return Ok(()) };
        self.forget_below(&wanted.below);
        match wanted.value {
            Value::Scalar { ref slots, .. } => self.put(slots, map.value_default.as_ref().map(Constant::scalar)),
            Value::Message(table) | Value::Group(table) => self.enter(table),
        }
        let mut reader = entry;
        while !reader.is_at_end() {
            match reader.tag()? {
                (VALUE, wire) if wire == map.value_wire => self.value(&wanted.value, VALUE, &mut reader)?,
                (number, wire) => reader.skip(number, wire)?,
            }
        }
        Ok(())
    }

    /// Reads a value of a field, or walks the value if it is a message. The caller has checked that the wire type matches the schema.
    fn value(&mut self, value: &'a Value, number: u32, reader: &mut Reader<'a>) -> Result<(), Malformed> {
        match *value {
            Value::Scalar { kind, ref slots } => {
                let scalar = self.scalar(kind, reader)?;
                self.put(slots, Some(scalar));
                Ok(())
            }
            Value::Message(table) => self.message(table, None, &mut reader.nested()?),
            Value::Group(table) => self.message(table, Some(number), reader),
        }
    }

    #[expect(clippy::cast_possible_truncation, clippy::cast_possible_wrap, reason = "readers of a smaller type truncate larger numbers")]
    fn scalar(&self, kind: Kind, reader: &mut Reader<'a>) -> Result<Scalar<'a>, Malformed> {
        const fn zigzag(number: u64) -> i64 {
            (number >> 1) as i64 ^ -((number & 1) as i64)
        }
        let integer = match kind {
            Kind::Bool => return Ok(Scalar::bool(reader.varint()? != 0)),
            Kind::String => return reader.text().map(Scalar::String),
            Kind::Bytes => return reader.bytes().map(Scalar::String),
            Kind::Enum(symbols) => return Ok(self.plan.enums[symbols].scalar(reader.varint()? as i32)),
            Kind::Int32 => (reader.varint()? as i32).into(),
            Kind::Int64 => (reader.varint()? as i64).into(),
            Kind::Uint32 => (reader.varint()? as u32).into(),
            Kind::Uint64 => reader.varint()?.into(),
            Kind::Sint32 => zigzag((reader.varint()? as u32).into()).into(),
            Kind::Sint64 => zigzag(reader.varint()?).into(),
            Kind::Fixed32 => u32::from_le_bytes(reader.array()?).into(),
            Kind::Fixed64 => u64::from_le_bytes(reader.array()?).into(),
            Kind::Sfixed32 => i32::from_le_bytes(reader.array()?).into(),
            Kind::Sfixed64 => i64::from_le_bytes(reader.array()?).into(),
        };
        Ok(Scalar::Integer(integer))
    }

    fn put(&mut self, slots: &[usize], value: Option<Scalar<'a>>) {
        for &slot in slots {
            self.found[slot] = value;
        }
    }

    fn forget(&mut self, voids: &[Below]) {
        for below in voids {
            self.forget_below(below);
        }
    }

    fn forget_below(&mut self, below: &Below) {
        self.put(&below.slots, None);
        self.counts[below.counters.clone()].fill(0);
    }
}
