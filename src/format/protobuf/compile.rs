//! Compiles a message descriptor and the requested places to the tables of a walk.
//!
//! Decides which places can be part of a key. Never reads a record.

use super::REPEATED_MAX;
use super::plan::{Below, Constant, Entry, Field, Kind, Map, Plan, Shape, Symbols, Table, Value};
use super::wire::Wire;
use crate::format::{DEPTH_MAX, Node, SchemaError};
use prost_reflect::{EnumDescriptor, FieldDescriptor, Kind as Type, MessageDescriptor, Value as Constants};
use std::collections::BTreeMap;
use std::ops::Range;

/// Returns the tables of a walk, and the slots of the places that no record can have.
pub(super) fn compile(message: &MessageDescriptor, places: &Node) -> Result<(Plan, Box<[usize]>), SchemaError> {
    let mut compiler = Compiler::default();
    if !places.slots.is_empty() {
        return Err(compiler.not_a_scalar(message));
    }
    compiler.message(message, &[places])?;
    Ok((compiler.plan, compiler.lacking.into()))
}

/// Child nodes, grouped by the target of their steps: a field, the index of an element, or the key of a map. Each group has the target, one
/// of the steps, and the child nodes.
type Steps<'n, T> = Vec<(T, String, Vec<&'n Node>)>;

#[derive(Default)]
struct Compiler {
    plan: Plan,
    /// The full names of the enums in [`Plan::enums`], in the same order.
    enums: Vec<String>,
    counters: usize,
    lacking: Vec<usize>,
    /// The steps of the pointer from the root to the current position.
    trail: Vec<String>,
}

impl Compiler {
    /// Compiles the table of a message and returns its index. Called only for messages that pointers lead through.
    fn message(&mut self, message: &MessageDescriptor, nodes: &[&Node]) -> Result<usize, SchemaError> {
        if self.trail.len() > DEPTH_MAX {
            return Err(SchemaError(format!("`{}` has more than {DEPTH_MAX} steps: use a shallower field", self.pointer())));
        }
        let table = self.plan.messages.len();
        self.plan.messages.push(Table::default());
        let by_name = |step: &str| message.get_field_by_name(step).or_else(|| message.get_field_by_json_name(step));
        let (mut fields, mut defaults) = (BTreeMap::new(), Vec::new());
        // The requested members of oneofs, each with the name of the oneof, the number of the field, and the places.
        let mut members: Vec<(String, u32, Below)> = Vec::new();
        for (field, step, nodes) in self.steps(nodes, by_name) {
            self.trail.push(step);
            let first = self.counters;
            if let Some(shape) = self.field(&field, &nodes)? {
                let oneof = field.containing_oneof();
                if let Some(oneof) = &oneof {
                    members.push((oneof.name().to_owned(), field.number(), below(&nodes, first..self.counters)));
                }
                if let Shape::Single(Value::Scalar { ref slots, .. }) = shape
                    && oneof.is_none()
                    && (!field.supports_presence() || field.field_descriptor_proto().default_value.is_some())
                    && let Some(default) = self.absent(&field)
                {
                    defaults.push((default, slots.clone()));
                }
                fields.insert(field.number(), Field { wire: wire(&field), shape, voids: Box::default() });
            }
            self.trail.pop();
        }
        for oneof in message.oneofs() {
            for field in oneof.fields() {
                let others = members.iter().filter(|(name, number, _)| name == oneof.name() && *number != field.number());
                let voids: Box<_> = others.map(|(_, _, below)| below.clone()).collect();
                if !voids.is_empty() {
                    let sibling = || Field { wire: wire(&field), shape: Shape::Sibling, voids: Box::default() };
                    fields.entry(field.number()).or_insert_with(sibling).voids = voids;
                }
            }
        }
        self.plan.messages[table] = Table::new(fields.into_iter().collect(), defaults);
        Ok(table)
    }

    /// Compiles a requested field. Returns `None` if no record can have any of the requested places.
    fn field(&mut self, field: &FieldDescriptor, nodes: &[&Node]) -> Result<Option<Shape>, SchemaError> {
        let is_end = nodes.iter().any(|node| !node.slots.is_empty());
        if field.is_map() {
            if is_end {
                let pointer = self.pointer();
                return Err(SchemaError(format!(
                    "`{pointer}` is a map, not a single value: append a key of the map, as in `{pointer}/KEY`"
                )));
            }
            return Ok(self.map(field, nodes)?.map(|map| Shape::Map(Box::new(map))));
        }
        if !field.is_list() {
            return Ok(self.value(field, nodes)?.map(Shape::Single));
        }
        if is_end {
            let pointer = self.pointer();
            return Err(SchemaError(format!(
                "`{pointer}` is repeated, not a single value: append the index of an element, as in `{pointer}/0`"
            )));
        }
        let counter = self.counters;
        if counter == REPEATED_MAX {
            return Err(SchemaError(format!("the pointers lead through more than {REPEATED_MAX} repeated fields: use fewer fields")));
        }
        self.counters += 1;
        let index = |step: &str| step.parse::<u32>().ok().filter(|index| index.to_string() == *step);
        let mut elements = Vec::new();
        for (index, step, nodes) in self.steps(nodes, index) {
            self.trail.push(step);
            if let Some(value) = self.value(field, &nodes)? {
                elements.push((index, value));
            }
            self.trail.pop();
        }
        Ok((!elements.is_empty()).then(|| Shape::Repeated { counter, elements: elements.into() }))
    }

    fn map(&mut self, field: &FieldDescriptor, nodes: &[&Node]) -> Result<Option<Map>, SchemaError> {
        let Type::Message(entry) = field.kind() else { return Ok(None) };
        // A tool other than `protoc` can create an invalid descriptor.
        let (Some(key_field), Some(value_field)) = (entry.get_field(1), entry.get_field(2)) else {
            return Err(SchemaError(format!("the descriptor is invalid: the map `{}` has no key or no value", self.pointer())));
        };
        let (Some(key), Some(key_default)) = (self.kind(&key_field.kind()), self.absent(&key_field)) else {
            return Err(SchemaError(format!(
                "the descriptor is invalid: the keys of the map `{}` do not have a scalar type",
                self.pointer()
            )));
        };
        let key_of = |step: &str| match key_field.kind() {
            Type::String => Some(Constant::Text(step.as_bytes().into())),
            Type::Bool => step.parse().ok().map(Constant::Bool),
            _ => step.parse::<i128>().ok().filter(|number| number.to_string() == *step).map(Constant::Integer),
        };
        let mut entries = Vec::new();
        for (key, step, nodes) in self.steps(nodes, key_of) {
            self.trail.push(step);
            let first = self.counters;
            if let Some(value) = self.value(&value_field, &nodes)? {
                entries.push(Entry { key, value, below: below(&nodes, first..self.counters) });
            }
            self.trail.pop();
        }
        let (key_wire, value_wire, value_default) = (wire(&key_field), wire(&value_field), self.absent(&value_field));
        let map = Map { key, key_wire, key_default, value_wire, value_default, entries: entries.into() };
        Ok((!map.entries.is_empty()).then_some(map))
    }

    /// Compiles a single value of a field. Returns `None` if no record can have any of the requested places.
    fn value(&mut self, field: &FieldDescriptor, nodes: &[&Node]) -> Result<Option<Value>, SchemaError> {
        let slots: Box<[usize]> = nodes.iter().flat_map(|node| node.slots.iter().copied()).collect();
        if let Type::Message(message) = field.kind() {
            if !slots.is_empty() {
                return Err(self.not_a_scalar(&message));
            }
            let table = self.message(&message, nodes)?;
            return Ok(Some(if field.is_group() { Value::Group(table) } else { Value::Message(table) }));
        }
        // A scalar has no fields, so no record can have the places below it.
        for (_, child) in nodes.iter().flat_map(|node| &node.children) {
            self.lack(child);
        }
        if slots.is_empty() {
            return Ok(None);
        }
        match self.kind(&field.kind()) {
            Some(kind) => Ok(Some(Value::Scalar { kind, slots })),
            None => Err(SchemaError(format!(
                "`{}` is a {:?}, which is rounded and therefore not supported: use a string or an integer",
                self.pointer(),
                field.kind()
            ))),
        }
    }

    /// Returns the kind of a scalar, or `None` if its type cannot be part of a key.
    fn kind(&mut self, kind: &Type) -> Option<Kind> {
        Some(match kind {
            Type::Double | Type::Float | Type::Message(_) => return None,
            Type::Bool => Kind::Bool,
            Type::Int32 => Kind::Int32,
            Type::Int64 => Kind::Int64,
            Type::Uint32 => Kind::Uint32,
            Type::Uint64 => Kind::Uint64,
            Type::Sint32 => Kind::Sint32,
            Type::Sint64 => Kind::Sint64,
            Type::Fixed32 => Kind::Fixed32,
            Type::Fixed64 => Kind::Fixed64,
            Type::Sfixed32 => Kind::Sfixed32,
            Type::Sfixed64 => Kind::Sfixed64,
            Type::String => Kind::String,
            Type::Bytes => Kind::Bytes,
            Type::Enum(symbols) => Kind::Enum(self.symbols(symbols)),
        })
    }

    /// Returns the index of an enum in the plan. Adds the enum if the plan does not have it yet.
    fn symbols(&mut self, symbols: &EnumDescriptor) -> usize {
        let known = self.enums.iter().position(|name| name == symbols.full_name());
        known.unwrap_or_else(|| {
            let declared = symbols.enum_descriptor_proto().value.iter().map(|value| (value.number(), value.name().into()));
            self.plan.enums.push(Symbols::new(declared.collect()));
            self.enums.push(symbols.full_name().to_owned());
            self.enums.len() - 1
        })
    }

    /// Returns the default value of a scalar field, or `None` if its type cannot be part of a key.
    fn absent(&mut self, field: &FieldDescriptor) -> Option<Constant> {
        Some(match (field.default_value(), field.kind()) {
            (Constants::Bool(value), _) => Constant::Bool(value),
            (Constants::I32(number), _) => Constant::Integer(number.into()),
            (Constants::I64(number), _) => Constant::Integer(number.into()),
            (Constants::U32(number), _) => Constant::Integer(number.into()),
            (Constants::U64(number), _) => Constant::Integer(number.into()),
            (Constants::String(text), _) => Constant::Text(text.into_bytes().into()),
            (Constants::Bytes(bytes), _) => Constant::Text(bytes.as_ref().into()),
            (Constants::EnumNumber(number), Type::Enum(symbols)) => {
                let symbols = self.symbols(&symbols);
                self.plan.enums[symbols].constant(number)
            }
            _ => return None,
        })
    }

    /// Groups the children of nodes by the `target` of their steps. If a step has no target, no record can have the places at or below the
    /// child, so they are added to `lacking`.
    fn steps<'n, T: PartialEq>(&mut self, nodes: &[&'n Node], target: impl Fn(&str) -> Option<T>) -> Steps<'n, T> {
        let mut steps: Steps<'n, T> = Vec::new();
        for (step, child) in nodes.iter().flat_map(|node| &node.children) {
            let Some(target) = target(step) else {
                self.lack(child);
                continue;
            };
            match steps.iter_mut().find(|(known, ..)| *known == target) {
                Some((_, _, nodes)) => nodes.push(child),
                None => steps.push((target, step.clone(), vec![child])),
            }
        }
        steps
    }

    fn lack(&mut self, node: &Node) {
        self.lacking.extend(&below(&[node], 0..0).slots);
    }

    fn not_a_scalar(&self, message: &MessageDescriptor) -> SchemaError {
        let (pointer, name) = (self.pointer(), message.full_name());
        let first = message.fields().next().map_or_else(|| "FIELD".to_owned(), |field| field.name().to_owned());
        SchemaError(format!(
            "`{pointer}` is a message, `{name}`, not a single value: append a field of the message, as in `{pointer}/{first}`"
        ))
    }

    fn pointer(&self) -> String {
        self.trail.iter().fold(String::new(), |pointer, step| pointer + "/" + &step.replace('~', "~0").replace('/', "~1"))
    }
}

fn below(nodes: &[&Node], counters: Range<usize>) -> Below {
    fn collect(node: &Node, slots: &mut Vec<usize>) {
        slots.extend(&node.slots);
        for (_, child) in &node.children {
            collect(child, slots);
        }
    }
    let mut slots = Vec::new();
    for node in nodes {
        collect(node, &mut slots);
    }
    Below { slots: slots.into(), counters }
}

fn wire(field: &FieldDescriptor) -> Wire {
    match field.kind() {
        Type::Double | Type::Fixed64 | Type::Sfixed64 => Wire::Fixed64,
        Type::Float | Type::Fixed32 | Type::Sfixed32 => Wire::Fixed32,
        Type::Message(_) if field.is_group() => Wire::GroupStart,
        Type::String | Type::Bytes | Type::Message(_) => Wire::Bytes,
        Type::Int32 | Type::Int64 | Type::Uint32 | Type::Uint64 | Type::Sint32 | Type::Sint64 | Type::Bool | Type::Enum(_) => Wire::Varint,
    }
}
