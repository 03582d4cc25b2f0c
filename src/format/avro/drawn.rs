//! Generates schemas, values, and encodings for tests from a sequence of bytes.

use super::oracle_tests::SCALE;
use apache_avro::schema::{NamesRef, Schema};
use apache_avro::types::Value;
use apache_avro::writer::datum::GenericDatumWriter;
use apache_avro::{Days, Decimal, Duration, Millis, Months, Uuid};
use serde_json::{Value as Json, json};
use std::collections::BTreeSet;

/// Keys of maps. Some of them must be escaped in a pointer.
const KEYS: [&str; 4] = ["a", "~1/", "", "ключ"];
const TEXTS: [&str; 4] = ["", "a", "Käse", "a text of more than sixty-four bytes, whose length is a number of two bytes"];
/// Maximum depth of values. Deeper arrays and maps are empty, and deeper unions have their first branch. Without this limit, some values
/// would have more than 64 nested containers, and a walk would reject them.
const NESTED: usize = 8;

/// Makes choices that depend on a sequence of bytes. After the last byte, it always makes the first choice.
pub struct Draw<'a> {
    bytes: &'a [u8],
    names: usize,
    records: Vec<String>,
}

impl<'a> Draw<'a> {
    pub const fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, names: 0, records: Vec::new() }
    }

    pub fn below(&mut self, choices: usize) -> usize {
        let [first, rest @ ..] = self.bytes else { return 0 };
        self.bytes = rest;
        usize::from(*first) % choices
    }

    fn bytes(&mut self, length: usize) -> Vec<u8> {
        (0..length).map(|_| u8::try_from(self.below(256)).unwrap()).collect()
    }

    fn name(&mut self, of: &str) -> String {
        self.names += 1;
        format!("{of}{}", self.names)
    }

    /// Generates a schema as JSON. Each field of a record has an alias with the prefix `old_`.
    pub fn schema(&mut self, depth: usize) -> Json {
        match self.below(if depth > 3 { 15 } else { 24 }) {
            0..=10 => self.primitive(),
            11 => json!({"type": "enum", "name": self.name("e"), "symbols": ["A", "B", "C"]}),
            12 => json!({"type": "fixed", "name": self.name("f"), "size": self.below(4)}),
            13 => json!({"type": "fixed", "name": self.name("f"), "size": 16, "logicalType": "uuid"}),
            14 => {
                let name = self.name("f");
                json!({"type": "fixed", "name": name, "size": 9, "logicalType": "decimal", "precision": 20, "scale": SCALE})
            }
            15 => json!({"type": "array", "items": self.schema(depth + 1)}),
            16 => json!({"type": "map", "values": self.schema(depth + 1)}),
            17 => self.recursion(),
            18 | 19 => self.union(depth),
            _ => {
                let name = self.name("r");
                self.records.push(name.clone());
                let field =
                    |number| json!({"name": format!("f{number}"), "aliases": [format!("old_f{number}")], "type": self.schema(depth + 1)});
                json!({"type": "record", "name": name, "fields": (0..4).map(field).collect::<Vec<_>>()})
            }
        }
    }

    fn primitive(&mut self) -> Json {
        match self.below(14) {
            0 => json!("null"),
            1 => json!("boolean"),
            2 => json!("int"),
            3 => json!("long"),
            4 => json!("float"),
            5 => json!("double"),
            6 => json!("bytes"),
            7 => json!({"type": "int", "logicalType": "date"}),
            8 => json!({"type": "long", "logicalType": "timestamp-micros"}),
            9 => json!({"type": "string", "logicalType": "uuid"}),
            10 => json!({"type": "bytes", "logicalType": "decimal", "precision": 40, "scale": SCALE}),
            11 => json!({"type": "fixed", "name": self.name("f"), "size": 12, "logicalType": "duration"}),
            _ => json!("string"),
        }
    }

    /// Generates a type that contains an earlier record type. It can be null or empty, because records must be finite.
    fn recursion(&mut self) -> Json {
        let Some(last) = self.records.len().checked_sub(1) else { return json!("int") };
        let index = last - self.below(last + 1);
        let record = self.records[index].clone();
        match self.below(3) {
            0 => json!(["null", record]),
            1 => json!({"type": "array", "items": record}),
            _ => json!({"type": "map", "values": record}),
        }
    }

    fn union(&mut self, depth: usize) -> Json {
        let null = json!("null");
        let mut kinds = BTreeSet::from([null.to_string()]);
        let mut branches = vec![null];
        for _ in 0..=self.below(4) {
            let known = self.records.len();
            let branch = self.schema(depth + 1);
            let kind = branch.get("name").or(branch.get("type")).unwrap_or(&branch);
            if !branch.is_array() && kinds.insert(kind.to_string()) {
                branches.push(branch);
            } else {
                self.records.truncate(known);
            }
        }
        json!(branches)
    }

    pub fn value(&mut self, schema: &Schema, names: &NamesRef<'_>, depth: usize) -> Value {
        let count = if depth > NESTED { 0 } else { 4 };
        match schema {
            Schema::Ref { name } => self.value(names[name], names, depth),
            Schema::Null => Value::Null,
            Schema::Boolean => Value::Boolean(self.below(2) == 1),
            Schema::Int => Value::Int(self.int()),
            Schema::Date => Value::Date(self.int()),
            Schema::Long => Value::Long(self.long()),
            Schema::TimestampMicros => Value::TimestampMicros(self.long()),
            Schema::Float => Value::Float(1.5),
            Schema::Double => Value::Double(2.5),
            Schema::String => Value::String(TEXTS[self.below(4)].to_owned()),
            Schema::Bytes => {
                let length = self.below(4);
                Value::Bytes(self.bytes(length))
            }
            Schema::Uuid(_) => Value::Uuid(Uuid::from_slice(&self.bytes(16)).unwrap()),
            Schema::Decimal(_) => {
                let length = 1 + self.below(8);
                Value::Decimal(Decimal::from(self.bytes(length)))
            }
            Schema::Duration(_) => {
                let mut number = || u32::try_from(self.below(200)).unwrap();
                Value::Duration(Duration::new(Months::new(number()), Days::new(number()), Millis::new(number())))
            }
            Schema::Fixed(fixed) => Value::Fixed(fixed.size, self.bytes(fixed.size)),
            Schema::Enum(symbols) => {
                let index = self.below(symbols.symbols.len());
                Value::Enum(u32::try_from(index).unwrap(), symbols.symbols[index].clone())
            }
            Schema::Array(array) => {
                let count = self.below(count + 1);
                Value::Array((0..count).map(|_| self.value(&array.items, names, depth + 1)).collect())
            }
            Schema::Map(map) => {
                let count = self.below(count + 1);
                Value::Map(KEYS[..count].iter().map(|&key| (key.to_owned(), self.value(&map.types, names, depth + 1))).collect())
            }
            Schema::Record(record) => {
                let fields = record.fields.iter();
                Value::Record(fields.map(|field| (field.name.clone(), self.value(&field.schema, names, depth + 1))).collect())
            }
            Schema::Union(union) => {
                let branch = if depth > NESTED { 0 } else { self.below(union.variants().len()) };
                Value::Union(u32::try_from(branch).unwrap(), Box::new(self.value(&union.variants()[branch], names, depth)))
            }
            other => panic!("{other:?} is not generated"),
        }
    }

    fn int(&mut self) -> i32 {
        [0, 1, -1, 64, -65, i32::MAX, i32::MIN, 1_000_000][self.below(8)]
    }

    fn long(&mut self) -> i64 {
        [0, 1, -1, 64, -65, i64::MAX, i64::MIN, 1_000_000][self.below(8)]
    }

    /// Encodes a value like the encoder of `apache-avro`, but splits arrays and maps into blocks of any length. Some blocks declare their
    /// size.
    pub fn encode(&mut self, value: &Value, schema: &Schema, names: &NamesRef<'_>, out: &mut Vec<u8>) {
        match (value, schema) {
            (_, Schema::Ref { name }) => self.encode(value, names[name], names, out),
            (Value::Union(branch, value), Schema::Union(union)) => {
                number(i64::from(*branch), out);
                self.encode(value, &union.variants()[*branch as usize], names, out);
            }
            (Value::Record(fields), Schema::Record(record)) => {
                for ((_, value), field) in fields.iter().zip(&record.fields) {
                    self.encode(value, &field.schema, names, out);
                }
            }
            (Value::Array(elements), Schema::Array(array)) => {
                let elements = elements.iter().map(|element| {
                    let mut written = Vec::new();
                    self.encode(element, &array.items, names, &mut written);
                    written
                });
                let elements = elements.collect::<Vec<_>>();
                self.blocks(&elements, out);
            }
            (Value::Map(entries), Schema::Map(map)) => {
                let entries = entries.iter().map(|(key, value)| {
                    let mut written = Vec::new();
                    number(i64::try_from(key.len()).unwrap(), &mut written);
                    written.extend_from_slice(key.as_bytes());
                    self.encode(value, &map.types, names, &mut written);
                    written
                });
                let entries = entries.collect::<Vec<_>>();
                self.blocks(&entries, out);
            }
            _ => out.extend(GenericDatumWriter::builder(schema).build().unwrap().write_value_to_vec(value.clone()).unwrap()),
        }
    }

    fn blocks(&mut self, mut elements: &[Vec<u8>], out: &mut Vec<u8>) {
        while !elements.is_empty() {
            let (block, rest) = elements.split_at(elements.len() - self.below(elements.len()));
            elements = rest;
            let (count, bytes) = (i64::try_from(block.len()).unwrap(), block.concat());
            if self.below(2) == 0 {
                number(count, out);
            } else {
                number(-count, out);
                number(i64::try_from(bytes.len()).unwrap(), out);
            }
            out.extend(bytes);
        }
        out.push(0);
    }
}

pub fn number(number: i64, out: &mut Vec<u8>) {
    let mut zigzag = (number << 1 ^ number >> 63).cast_unsigned();
    while zigzag > 0x7f {
        out.push(u8::try_from(zigzag & 0x7f).unwrap() | 0x80);
        zigzag >>= 7;
    }
    out.push(u8::try_from(zigzag).unwrap());
}
