//! Compiles a schema and the requested places to a program.
//!
//! Decides which places the records of a schema can have and which types can be part of a key. A record type can contain itself, so the
//! compiler queues each record type instead of compiling it within another one. It compiles each record type once per node of the pointer
//! tree that leads to the type, and once without a node if values of the type are skipped. The number of compiled record types is therefore
//! limited, even if a type contains itself.

use super::{AvroExtractor, Entry, Kind, Op, parse};
use crate::format::{Node, Scalar, SchemaError};
use apache_avro::schema::{DecimalSchema, InnerDecimalSchema, RecordSchema, Schema, UuidSchema};
use std::collections::{BTreeMap, HashMap};
use std::ptr;

/// Compiles a schema for all `places`. The last field of `wrapper` has the schema, and the other fields have its references, as
/// [`parse::parse`] returns them.
pub(super) fn compile(wrapper: &RecordSchema, places: &Node) -> Result<AvroExtractor, SchemaError> {
    let (root, _) = wrapper.fields.split_last().ok_or_else(|| SchemaError("the schema is empty".to_owned()))?;
    let mut compiler = Compiler::default();
    for field in &wrapper.fields {
        compiler.define(&field.schema)?;
    }
    let root = compiler.op(&root.schema, Some(places))?;
    let mut records = Vec::new();
    while let Some(&(record, node)) = compiler.records.get(records.len()) {
        records.push(compiler.fields(record, node)?);
    }
    let mut lacking = Vec::new();
    check(places, &mut String::new(), &compiler.ends, &mut lacking)?;
    Ok(AvroExtractor { root, records, lacking, whole: None })
}

/// Shows whether the types that the schema allows at a slot's place can be part of a key. A place can have several types, for example the
/// branches of a union. The type null changes neither field.
#[derive(Clone, Copy, Default)]
struct End {
    /// True if at least one type can be part of a key.
    is_usable: bool,
    /// The error messages for a type that cannot be part of a key, if the place has such a type.
    refused: Option<Refused>,
}

/// The error messages for a type that is not supported at a requested place.
#[derive(Clone, Copy)]
pub(super) struct Refused {
    /// The end of the error message for a schema. It follows the name of the field.
    is: &'static str,
    /// The error message for a record.
    has: &'static str,
}

const FLOAT: Refused = Refused {
    is: "is a floating-point number, which has several text forms and is not supported; use another field",
    has: "a requested field is a floating-point number, which has several text forms",
};
const BIG_DECIMAL: Refused = Refused {
    is: "is a big-decimal, whose scale varies between records, and is not supported; use another field",
    has: "a requested field is a big-decimal, whose scale varies between records",
};
const SCALE: Refused = Refused {
    is: "is a decimal with a scale above 38 and is not supported; use another field",
    has: "a requested field is a decimal with a scale above 38",
};
const RECORD: Refused = Refused { is: "is a record; use one of its fields", has: "a requested field is a record, not a single value" };
const ARRAY: Refused = Refused { is: "is an array; use one of its elements", has: "a requested field is an array, not a single value" };
const MAP: Refused = Refused { is: "is a map; use one of its keys", has: "a requested field is a map, not a single value" };

/// Checks the places at and below a node. Collects the slots of the places that no record can have.
fn check(node: &Node, pointer: &mut String, ends: &BTreeMap<usize, End>, lacking: &mut Vec<usize>) -> Result<(), SchemaError> {
    for slot in &node.slots {
        match ends.get(slot) {
            None => lacking.push(*slot),
            Some(End { is_usable: false, refused: Some(Refused { is, .. }) }) => {
                let place = if pointer.is_empty() { "the whole record".to_owned() } else { format!("field `{pointer}`") };
                return Err(SchemaError(format!("{place} {is}")));
            }
            Some(_) => {}
        }
    }
    for (step, child) in &node.children {
        let length = pointer.len();
        pointer.push('/');
        pointer.push_str(&step.replace('~', "~0").replace('/', "~1"));
        check(child, pointer, ends, lacking)?;
        pointer.truncate(length);
    }
    Ok(())
}

#[derive(Default)]
struct Compiler<'s> {
    /// The named types by their full names and aliases.
    names: HashMap<String, &'s Schema>,
    /// The record types to compile, each with the node of the pointer tree that leads to the type.
    records: Vec<(&'s RecordSchema, Option<&'s Node>)>,
    /// The index of each pair in `records`.
    numbers: HashMap<(*const RecordSchema, Option<*const Node>), usize>,
    ends: BTreeMap<usize, End>,
}

impl<'s> Compiler<'s> {
    /// Adds the named types in a schema to `names`.
    fn define(&mut self, schema: &'s Schema) -> Result<(), SchemaError> {
        if let Some(name) = schema.name()
            && !matches!(schema, Schema::Ref { .. })
            && self.names.insert(name.fullname(None), schema).is_some_and(|other| defines(other, name.as_ref()))
        {
            return Err(SchemaError(format!("the schema defines `{name}` twice")));
        }
        for alias in schema.aliases().into_iter().flatten() {
            self.names.entry(alias.fullname(None)).or_insert(schema);
        }
        match schema {
            Schema::Record(record) => record.fields.iter().try_for_each(|field| self.define(&field.schema)),
            Schema::Array(array) => self.define(&array.items),
            Schema::Map(map) => self.define(&map.types),
            Schema::Union(union) => union.variants().iter().try_for_each(|branch| self.define(branch)),
            _ => Ok(()),
        }
    }

    fn op(&mut self, schema: &'s Schema, node: Option<&'s Node>) -> Result<Op, SchemaError> {
        if let Some(node) = node.filter(|node| !node.slots.is_empty())
            && !matches!(schema, Schema::Ref { .. } | Schema::Union(_))
        {
            return Ok(self.take(schema, node));
        }
        Ok(match schema {
            Schema::Ref { name } => {
                let named = self.names.get(name.as_ref()).copied();
                self.op(named.ok_or_else(|| SchemaError(format!("neither the schema nor its references define the type `{name}`")))?, node)?
            }
            Schema::Union(union) => Op::Union(union.variants().iter().map(|branch| self.op(branch, node)).collect::<Result<_, _>>()?),
            Schema::Record(record) => Op::Record(self.number(record, node)),
            Schema::Array(array) => self.array(&array.items, node)?,
            Schema::Map(map) => self.map(&map.types, node)?,
            Schema::Null => Op::Fixed(0),
            Schema::Boolean => Op::Boolean,
            Schema::Int | Schema::Date | Schema::TimeMillis => Op::Int,
            Schema::Long
            | Schema::TimeMicros
            | Schema::TimestampMillis
            | Schema::TimestampMicros
            | Schema::TimestampNanos
            | Schema::LocalTimestampMillis
            | Schema::LocalTimestampMicros
            | Schema::LocalTimestampNanos => Op::Long,
            Schema::Float => Op::Fixed(size_of::<f32>()),
            Schema::Double => Op::Fixed(size_of::<f64>()),
            Schema::Fixed(fixed)
            | Schema::Duration(fixed)
            | Schema::Uuid(UuidSchema::Fixed(fixed))
            | Schema::Decimal(DecimalSchema { inner: InnerDecimalSchema::Fixed(fixed), .. }) => Op::Fixed(fixed.size),
            Schema::Enum(symbols) => Op::Index(symbols.symbols.len()),
            Schema::Bytes
            | Schema::String
            | Schema::BigDecimal
            | Schema::Uuid(_)
            | Schema::Decimal(DecimalSchema { inner: InnerDecimalSchema::Bytes, .. }) => Op::Sized,
        })
    }

    fn array(&mut self, items: &'s Schema, node: Option<&'s Node>) -> Result<Op, SchemaError> {
        let mut wanted = Vec::new();
        for (step, child) in steps(node) {
            // As in JSON Pointer (RFC 6901), an index must not have a sign or leading zeros.
            if let Some(index) = step.parse::<usize>().ok().filter(|index| index.to_string() == *step) {
                wanted.push((index, self.op(items, Some(child))?));
            }
        }
        Ok(Op::Array { items: Box::new(self.op(items, None)?), wanted })
    }

    fn map(&mut self, values: &'s Schema, node: Option<&'s Node>) -> Result<Op, SchemaError> {
        let mut wanted = Vec::new();
        for (key, child) in steps(node) {
            wanted.push(Entry { key: key.clone(), node: child.clone(), op: self.op(values, Some(child))? });
        }
        Ok(Op::Map { values: Box::new(self.op(values, None)?), wanted })
    }

    /// Returns the index in `records` of a record type with a node. Adds the pair if it is new: [`compile`] compiles it later.
    fn number(&mut self, record: &'s RecordSchema, node: Option<&'s Node>) -> usize {
        *self.numbers.entry((ptr::from_ref(record), node.map(ptr::from_ref))).or_insert_with(|| {
            self.records.push((record, node));
            self.records.len() - 1
        })
    }

    fn fields(&mut self, record: &'s RecordSchema, node: Option<&'s Node>) -> Result<Vec<Op>, SchemaError> {
        let mut places = vec![Vec::new(); record.fields.len()];
        for (step, child) in steps(node) {
            let named = record.fields.iter().position(|field| field.name == *step);
            let renamed = || record.fields.iter().position(|field| parse::is_alias(field, step));
            if let Some(field) = named.or_else(renamed) {
                places[field].push(child);
            }
        }
        let mut ops = Vec::new();
        for (field, nodes) in record.fields.iter().zip(places) {
            let mut op = self.op(&field.schema, nodes.first().copied())?;
            for &node in nodes.iter().skip(1) {
                op = Op::Twice(Box::new([op, self.op(&field.schema, Some(node))?]));
            }
            push(&mut ops, op);
        }
        Ok(ops)
    }

    /// Compiles the operation for the pointers that end at a node. The operation stores the value. If a value of this type cannot be part
    /// of a key, the operation rejects the record instead.
    fn take(&mut self, schema: &'s Schema, node: &'s Node) -> Op {
        let kind = kind(schema);
        for &slot in &node.slots {
            let end = self.ends.entry(slot).or_default();
            match kind {
                Ok(Kind::Null) => {}
                Ok(_) => end.is_usable = true,
                Err(refused) => end.refused = Some(refused),
            }
        }
        match kind {
            Ok(kind) => Op::Take { kind, slots: node.slots.clone() },
            Err(refused) => Op::Refuse(refused.has),
        }
    }
}

fn steps(node: Option<&Node>) -> &[(String, Node)] {
    node.map_or(&[], |node| &node.children)
}

fn defines(schema: &Schema, name: &str) -> bool {
    schema.name().is_some_and(|own| own.as_ref() == name)
}

/// Adds an operation unless it skips no bytes. If it and the previous operation skip fixed numbers of bytes, they become one operation.
fn push(ops: &mut Vec<Op>, op: Op) {
    match (ops.last_mut(), &op) {
        (_, Op::Fixed(0)) => {}
        (Some(Op::Fixed(last)), Op::Fixed(size)) if last.checked_add(*size).is_some() => *last += size,
        _ => ops.push(op),
    }
}

pub(super) fn kind(schema: &Schema) -> Result<Kind, Refused> {
    Ok(match schema {
        Schema::Null => Kind::Null,
        Schema::Boolean => Kind::Boolean,
        Schema::Int | Schema::Date | Schema::TimeMillis => Kind::Int,
        Schema::String | Schema::Uuid(UuidSchema::String) => Kind::Text,
        // The specification allows a UUID only as a string or as 16 fixed bytes. A UUID of type `bytes` is therefore read as plain bytes.
        Schema::Bytes | Schema::Uuid(UuidSchema::Bytes) => Kind::Bytes,
        Schema::Fixed(fixed) | Schema::Duration(fixed) => Kind::Fixed(fixed.size),
        Schema::Uuid(UuidSchema::Fixed(_)) => Kind::Uuid,
        Schema::Enum(symbols) => Kind::Enum(symbols.symbols.clone()),
        Schema::Decimal(DecimalSchema { scale, inner, .. }) => {
            let scale = u32::try_from(*scale).ok().filter(|&scale| scale <= Scalar::SCALE_MAX).ok_or(SCALE)?;
            let size = if let InnerDecimalSchema::Fixed(fixed) = inner { Some(fixed.size) } else { None };
            Kind::Decimal { size, scale }
        }
        Schema::Float | Schema::Double => return Err(FLOAT),
        Schema::BigDecimal => return Err(BIG_DECIMAL),
        // Callers resolve references and unions, so only records occur here.
        Schema::Record(_) | Schema::Ref { .. } | Schema::Union(_) => return Err(RECORD),
        Schema::Array(_) => return Err(ARRAY),
        Schema::Map(_) => return Err(MAP),
        Schema::Long
        | Schema::TimeMicros
        | Schema::TimestampMillis
        | Schema::TimestampMicros
        | Schema::TimestampNanos
        | Schema::LocalTimestampMillis
        | Schema::LocalTimestampMicros
        | Schema::LocalTimestampNanos => Kind::Long,
    })
}
