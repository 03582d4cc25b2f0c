//! Protocol Buffers' binary encoding.
//!
//! Owns what a place in a message means: a field by its name in the file, else by its JSON name; the key of a map; the
//! number of an element. Must never touch the file system, and never look into a message that no place leads through: its
//! length says where it ends.
//!
//! A field that is not on the wire has its default where readers cannot tell the two apart: a scalar of proto3 without
//! `optional`, and a field of proto2 with a default of its own. Everything else that is absent is not found. A member of
//! a oneof is never there by default: which member is there is what a oneof says.
//!
//! Unlike some parsers, a number of an enum of proto2 that has no symbol is a value like any other.

mod builtin;
mod compile;
mod plan;
mod schema;
mod visit;
mod walk;
mod wire;

pub(super) use schema::Once;

use super::{Buffers, Extract, Malformed, Message, Places, Scalar, Schema, SchemaError, Unreadable, Visit};
use plan::Plan;
use prost_reflect::MessageDescriptor;
use wire::Reader;

/// Most repeated fields that the places of a key lead through: each has a count of its own during a walk.
const REPEATED_MAX: usize = 64;

/// A schema and the places to find in its records.
#[derive(Clone, Debug)]
pub struct ProtobufExtractor {
    plan: Plan,
    /// Places that no record can have, by their slots.
    lacking: Box<[usize]>,
    /// Set if records are visited.
    whole: Option<MessageDescriptor>,
}

impl ProtobufExtractor {
    pub(super) fn compile(schema: &Schema, message: Message<'_>, places: &Places) -> Result<Self, SchemaError> {
        let message = schema::message(schema, message)?;
        let (plan, lacking) = compile::compile(&message, places.root())?;
        Ok(Self { plan, lacking, whole: places.reads_everything().then_some(message) })
    }

    /// True if no record of this message can have the place, because a step of it names no field.
    pub(super) fn lacks(&self, slot: usize) -> bool {
        self.lacking.contains(&slot)
    }

    fn walk<'a>(&'a self, record: &'a [u8], found: &mut [Option<Scalar<'a>>]) -> Result<(), Malformed> {
        walk::Finder::new(&self.plan, found).message(Plan::ROOT, None, &mut Reader::new(record))
    }
}

impl Extract for ProtobufExtractor {
    fn find<'a>(&'a self, text: &'a [u8], _: &mut Buffers, found: &mut [Option<Scalar<'a>>]) -> Result<(), Box<Unreadable>> {
        self.walk(text, found).map_err(|malformed| Box::new(malformed.into()))
    }

    fn visit(&self, text: &[u8], _: &mut Buffers, visitor: &mut impl Visit) -> Result<(), Box<Unreadable>> {
        let message = self.whole.as_ref().expect("it was compiled for places that include everything");
        visit::visit(message, text, visitor).map_err(|malformed| Box::new(malformed.into()))
    }
}

#[cfg(test)]
mod model_tests;
#[cfg(test)]
#[expect(unreachable_pub, reason = "the fuzz target has it as a module of its own")]
mod oracle_tests;
#[cfg(test)]
mod schema_tests;
#[cfg(test)]
mod tests;
