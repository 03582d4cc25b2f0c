//! Protocol Buffers' binary encoding.

use super::{Malformed, Message, Schema, SchemaError};
use crate::key::{Node, Scalar};

/// A schema and the places to find in its records.
#[derive(Clone, Debug)]
pub struct Walk {}

impl Walk {
    pub(super) fn compile(_schema: &Schema, _message: Message<'_>, _places: &Node) -> Result<Self, SchemaError> {
        Err(SchemaError("not there yet".to_owned()))
    }

    pub(super) fn find<'a>(&'a self, _record: &'a [u8], _found: &mut [Option<Scalar<'a>>]) -> Result<(), Malformed> {
        Ok(())
    }

    pub(super) fn lacks(&self, _slot: usize) -> bool {
        false
    }
}
