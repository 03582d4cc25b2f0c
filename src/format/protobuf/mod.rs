//! Protocol Buffers' binary encoding.
//!
//! A step of a pointer is the name of a field in the `.proto` file or its JSON name, the key of a map, or the index of an element. This
//! module never accesses the file system. It reads a nested message only if a pointer leads through the message, or if the whole record is
//! visited. It skips all other nested messages by their length.
//!
//! If a message is on the wire without one of its fields, the field has its default value in two cases. The first case is a proto3 scalar
//! without `optional`, because readers cannot distinguish its default from an absent field. The second case is a proto2 field with an
//! explicit default. All other absent fields are missing. A member of a oneof never has a default, because its presence is information.
//!
//! Unlike in some parsers, a number without a name in a proto2 enum is a value like any other.

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

/// Maximum number of repeated fields that pointers can lead through. A walk has a counter for the elements of each of these fields.
const REPEATED_MAX: usize = 64;

/// A schema and the places to find in its records.
#[derive(Clone, Debug)]
pub struct ProtobufExtractor {
    plan: Plan,
    /// The slots of places that no record can have.
    lacking: Box<[usize]>,
    /// The message type for visiting whole records. `None` unless [`Places::and_everything`] was called.
    whole: Option<MessageDescriptor>,
}

impl ProtobufExtractor {
    pub(super) fn compile(schema: &Schema, message: Message<'_>, places: &Places) -> Result<Self, SchemaError> {
        let message = schema::message(schema, message)?;
        let (plan, lacking) = compile::compile(&message, places.root())?;
        Ok(Self { plan, lacking, whole: places.reads_everything().then_some(message) })
    }

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
        let message = self.whole.as_ref().expect("the extractor was compiled for visits");
        visit::visit(message, text, visitor).map_err(|malformed| Box::new(malformed.into()))
    }
}

#[cfg(test)]
mod model_tests;
#[cfg(test)]
#[expect(unreachable_pub, reason = "the fuzz target includes this module")]
mod oracle_tests;
#[cfg(test)]
mod schema_tests;
#[cfg(test)]
mod tests;
