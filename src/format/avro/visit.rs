//! Visits everything in a record.
//!
//! Lengths and counts in a record are never trusted, and the recursion in a type that contains itself is limited.

use super::compile::kind;
use super::cursor::Cursor;
use super::walk::{IDLE_MAX, scalar};
use crate::format::{Container, DEPTH_MAX, Malformed, Scalar, Visit};
use apache_avro::schema::{DecimalSchema, InnerDecimalSchema, RecordSchema, Schema};
use std::collections::HashMap;
use std::fmt::Write as _;

#[derive(Clone, Debug)]
pub(super) struct Whole {
    root: Schema,
    names: HashMap<String, Schema>,
}

impl Whole {
    /// Uses the schema in the last field of `wrapper` and its references in the other fields, as [`super::parse::parse`] returns them.
    pub(super) fn new(mut wrapper: RecordSchema) -> Self {
        let mut names = HashMap::new();
        wrapper.fields.iter().for_each(|field| define(&field.schema, &mut names));
        let root = wrapper.fields.pop().map_or(Schema::Null, |field| field.schema);
        Self { root, names }
    }

    pub(super) fn visit(&self, record: &[u8], visitor: &mut impl Visit) -> Result<(), Malformed> {
        let mut walker = Walker { names: &self.names, cursor: Cursor::new(record), idle: IDLE_MAX, text: String::new(), visitor };
        walker.value(&self.root, 0)?;
        walker.cursor.end()
    }
}

fn define(schema: &Schema, names: &mut HashMap<String, Schema>) {
    if let Some(name) = schema.name()
        && !matches!(schema, Schema::Ref { .. })
    {
        names.entry(name.fullname(None)).or_insert_with(|| schema.clone());
        for alias in schema.aliases().into_iter().flatten() {
            names.entry(alias.fullname(None)).or_insert_with(|| schema.clone());
        }
    }
    match schema {
        Schema::Record(record) => record.fields.iter().for_each(|field| define(&field.schema, names)),
        Schema::Array(array) => define(&array.items, names),
        Schema::Map(map) => define(&map.types, names),
        Schema::Union(union) => union.variants().iter().for_each(|branch| define(branch, names)),
        _ => {}
    }
}

struct Walker<'a, 'v, V> {
    names: &'a HashMap<String, Schema>,
    cursor: Cursor<'a>,
    /// Number of values without bytes that may still follow before the record is rejected.
    idle: usize,
    text: String,
    visitor: &'v mut V,
}

impl<'a, V: Visit> Walker<'a, '_, V> {
    fn value(&mut self, schema: &'a Schema, depth: usize) -> Result<(), Malformed> {
        let start = self.cursor.at();
        match schema {
            Schema::Ref { name } => {
                let named = self.names.get(name.as_ref());
                return self.value(named.ok_or_else(|| self.cursor.malformed("the schema does not define the type of a value"))?, depth);
            }
            Schema::Union(union) => {
                let branch = self.cursor.index(union.variants().len(), "a union has no branch with this index")?;
                return self.value(&union.variants()[branch], depth);
            }
            Schema::Record(_) | Schema::Array(_) | Schema::Map(_) if depth == DEPTH_MAX => {
                return Err(self.cursor.malformed("more than 64 containers are nested"));
            }
            Schema::Record(record) => {
                self.visitor.open(Container::Object);
                for field in &record.fields {
                    self.visitor.name(field.name.as_bytes());
                    self.value(&field.schema, depth + 1)?;
                }
                self.visitor.close();
            }
            Schema::Array(array) => {
                self.visitor.open(Container::Array);
                self.blocks(|walker| walker.value(&array.items, depth + 1))?;
                self.visitor.close();
            }
            Schema::Map(map) => {
                self.visitor.open(Container::Object);
                self.blocks(|walker| {
                    let key = walker.cursor.sized("the record ends within the key of a map")?;
                    walker.visitor.name(key);
                    walker.value(&map.types, depth + 1)
                })?;
                self.visitor.close();
            }
            Schema::Enum(symbols) => {
                let index = self.cursor.index(symbols.symbols.len(), "an enum has no symbol with this index")?;
                self.visitor.scalar(Scalar::String(symbols.symbols[index].as_bytes()));
            }
            Schema::Float => {
                let number = self.array().map(f32::from_le_bytes)?;
                self.number(number);
            }
            Schema::Double => {
                let number = self.array().map(f64::from_le_bytes)?;
                self.number(number);
            }
            schema => {
                let value = match kind(schema) {
                    Ok(kind) => scalar(&mut self.cursor, &kind)?,
                    // `Scalar` cannot represent a decimal whose scale varies or is above 38, so visit its bytes.
                    Err(_) => Scalar::String(match schema {
                        Schema::Decimal(DecimalSchema { inner: InnerDecimalSchema::Fixed(fixed), .. }) => {
                            self.cursor.take(fixed.size, "the record ends within a decimal")?
                        }
                        _ => self.cursor.sized("the record ends within a decimal")?,
                    }),
                };
                self.visitor.scalar(value);
            }
        }
        // A few bytes can declare any number of values without bytes, such as an array of nulls, so the number is limited.
        if self.cursor.at() == start {
            self.idle = self.idle.checked_sub(1).ok_or_else(|| self.cursor.malformed("more than 65536 values have no bytes"))?;
        }
        Ok(())
    }

    fn blocks(&mut self, mut each: impl FnMut(&mut Self) -> Result<(), Malformed>) -> Result<(), Malformed> {
        while let Some(block) = self.cursor.block()? {
            (0..block.count).try_for_each(|_| each(self))?;
            self.cursor.end_block(block)?;
        }
        Ok(())
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], Malformed> {
        let mut bytes = [0; N];
        bytes.copy_from_slice(self.cursor.take(N, "the record ends within a number")?);
        Ok(bytes)
    }

    /// Visits a floating-point number as the shortest text that identifies the number.
    fn number(&mut self, number: impl std::fmt::Debug) {
        self.text.clear();
        let _ = write!(self.text, "{number:?}");
        self.visitor.scalar(Scalar::Number(self.text.as_bytes()));
    }
}
