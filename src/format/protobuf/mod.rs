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
mod walk;
mod wire;

pub(super) use schema::Once;

use super::{Malformed, Message, Schema, SchemaError};
use crate::key::{Node, Scalar};
use plan::Plan;
use wire::Reader;

/// Most repeated fields that the places of a key lead through: each has a count of its own during a walk.
const REPEATED_MAX: usize = 64;

/// A schema and the places to find in its records.
#[derive(Clone, Debug)]
pub struct Walk {
    plan: Plan,
    /// Places that no record can have, by their slots.
    lacking: Box<[usize]>,
}

impl Walk {
    pub(super) fn compile(schema: &Schema, message: Message<'_>, places: &Node) -> Result<Self, SchemaError> {
        let (plan, lacking) = compile::compile(&schema::message(schema, message)?, places)?;
        Ok(Self { plan, lacking })
    }

    /// Whether no record of this message can have the place: a step of it names no field.
    pub(super) fn lacks(&self, slot: usize) -> bool {
        self.lacking.contains(&slot)
    }

    pub(super) fn find<'a>(&'a self, record: &'a [u8], found: &mut [Option<Scalar<'a>>]) -> Result<(), Malformed> {
        walk::Finder::new(&self.plan, found).message(Plan::ROOT, None, &mut Reader::new(record))
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
