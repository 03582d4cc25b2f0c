//! The places that are looked for in a record's key or value, as a tree.
//!
//! Owns what a pointer means. Must never look for anything itself.

use super::SpecError;
use super::scalar::{Scalar, unescape};

/// Most steps of a place, and most containers within each other that a text is read through by a shortcut.
pub(super) const DEPTH_MAX: usize = 64;

/// A place that a pointer ends at, or leads through.
#[derive(Clone, Debug, Default)]
pub struct Node {
    /// Which of the found values are this node's: the pointer that ends here, as often as it is named.
    pub slots: Vec<usize>,
    /// The next step of the pointers that go on: the name of a field, the key of a map, or the number of an element.
    pub children: Vec<(String, Node)>,
}

impl Node {
    /// Adds the place of an RFC 6901 pointer, whose value is number `slot` of those that are found.
    pub(super) fn add(&mut self, pointer: &str, slot: usize) -> Result<(), SpecError> {
        let malformed = || SpecError::Pointer(pointer.to_owned());
        // As deep as the shortcut goes, and half as deep as the parser: both find the same.
        if pointer.split('/').count() > DEPTH_MAX {
            return Err(SpecError::Deep(DEPTH_MAX - 1));
        }
        let mut node = self;
        if !pointer.is_empty() {
            for token in pointer.strip_prefix('/').ok_or_else(malformed)?.split('/') {
                if token.split('~').skip(1).any(|rest| !rest.starts_with(['0', '1'])) {
                    return Err(malformed());
                }
                let step = token.replace("~1", "/").replace("~0", "~");
                let at = node.children.iter().position(|(name, _)| *name == step).unwrap_or_else(|| {
                    node.children.push((step, Self::default()));
                    node.children.len() - 1
                });
                node = &mut node.children[at].1;
            }
        }
        node.slots.push(slot);
        Ok(())
    }

    /// The child of a name as it is written in a JSON text, with its quotes; it must be a string that can be decoded.
    pub(super) fn child(&self, quoted: &[u8]) -> Option<&Self> {
        let decoded = if quoted.contains(&b'\\') { Some(unescape(quoted).ok()?) } else { None };
        let name = decoded.as_deref().map_or(&quoted[1..quoted.len() - 1], str::as_bytes);
        self.children.iter().find(|(step, _)| step.as_bytes() == name).map(|(_, child)| child)
    }

    /// The child of an array's element.
    pub(super) fn element(&self, index: usize) -> Option<&Self> {
        if self.children.is_empty() {
            return None;
        }
        let name = index.to_string();
        self.children.iter().find(|(step, _)| *step == name).map(|(_, child)| child)
    }

    /// What was found below this node is void: an equal field comes later, and the last counts.
    pub(crate) fn forget(&self, found: &mut [Option<Scalar<'_>>]) {
        for &slot in &self.slots {
            found[slot] = None;
        }
        for (_, child) in &self.children {
            child.forget(found);
        }
    }

    /// Whether anything was found below this node.
    pub(super) fn is_found(&self, found: &[Option<Scalar<'_>>]) -> bool {
        self.slots.iter().any(|&slot| found[slot].is_some()) || self.children.iter().any(|(_, child)| child.is_found(found))
    }
}
