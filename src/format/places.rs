//! The locations of fields in a record key or value.
//!
//! Defines the syntax of JSON pointers. Never reads a record.

use super::DEPTH_MAX;
use super::scalar::Scalar;
use xxhash_rust::xxh3::xxh3_128;

/// The error for an invalid JSON pointer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PointerError {
    /// The pointer is invalid according to RFC 6901 or is most likely in another notation, such as `JSONPath`.
    #[error("`{pointer}` is not a JSON pointer: {advice}")]
    Malformed {
        /// The pointer as it is configured.
        pointer: String,
        /// The remedy, such as ``write `/id` ``.
        advice: String,
    },
    /// The pointer has more steps than this maximum.
    #[error("a JSON pointer can have at most {0} steps")]
    Deep(usize),
}

/// Locations of fields in a record key or value. An extractor stores the values in the order of these places.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Places {
    root: Node,
    count: usize,
    /// A hash that identifies the list of pointers.
    id: u128,
    reads_everything: bool,
}

impl Places {
    /// Compiles RFC 6901 pointers.
    ///
    /// # Errors
    /// Returns [`PointerError`] if a pointer is malformed or too deep.
    pub fn new<P: AsRef<str>>(pointers: impl IntoIterator<Item = P>) -> Result<Self, PointerError> {
        let mut places = Self::default();
        pointers.into_iter().try_for_each(|pointer| places.add(pointer.as_ref()))?;
        Ok(places)
    }

    /// Adds the place of an RFC 6901 pointer.
    ///
    /// # Errors
    /// Returns [`PointerError`] if the pointer is malformed or too deep.
    pub fn add(&mut self, pointer: &str) -> Result<(), PointerError> {
        self.root.add(pointer, self.count)?;
        self.count += 1;
        self.id = xxh3_128(&[&self.id.to_le_bytes(), pointer.as_bytes()].concat());
        Ok(())
    }

    /// Lets extractors for these places also visit whole texts. JSON extractors can always do this.
    #[must_use]
    pub fn and_everything(self) -> Self {
        Self { reads_everything: true, ..self }
    }

    /// Returns the number of places. A pointer that was added twice counts twice.
    #[must_use]
    #[inline]
    pub const fn len(&self) -> usize {
        self.count
    }

    /// True if there are no places, even if [`Self::and_everything`] was called.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// True if these places never require reading a text.
    pub(crate) const fn reads_nothing(&self) -> bool {
        self.is_empty() && !self.reads_everything
    }

    #[cfg_attr(not(feature = "formats"), expect(dead_code, reason = "JSON can always be visited"))]
    pub(super) const fn reads_everything(&self) -> bool {
        self.reads_everything
    }

    /// Returns the places as a tree: each pointer is a path to a node with a slot.
    pub(crate) const fn root(&self) -> &Node {
        &self.root
    }

    pub(super) const fn id(&self) -> u128 {
        self.id
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Node {
    /// The indexes of the pointers that end here. A pointer can be in the list twice, so there can be several indexes.
    pub(crate) slots: Vec<usize>,
    /// The next steps of longer pointers: the name of a field, the key of a map, or the index of an element.
    pub(crate) children: Vec<(String, Node)>,
}

impl Node {
    fn add(&mut self, pointer: &str, slot: usize) -> Result<(), PointerError> {
        let malformed = |advice| PointerError::Malformed { pointer: pointer.to_owned(), advice };
        if let Some(advice) = spelling_advice(pointer) {
            return Err(malformed(advice));
        }
        // The JSON scan and the parser must find the same values, and both can follow pointers up to this depth.
        if pointer.split('/').count() > DEPTH_MAX {
            return Err(PointerError::Deep(DEPTH_MAX - 1));
        }
        let mut node = self;
        if !pointer.is_empty() {
            for token in pointer.split('/').skip(1) {
                if token.split('~').skip(1).any(|rest| !rest.starts_with(['0', '1'])) {
                    return Err(malformed("`~` must be followed by 0 or 1".to_owned()));
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

    /// Discards the values at and below this node. Callers use it when the same field occurs again, because the last occurrence counts.
    pub(super) fn forget(&self, found: &mut [Option<Scalar<'_>>]) {
        for &slot in &self.slots {
            found[slot] = None;
        }
        for (_, child) in &self.children {
            child.forget(found);
        }
    }

    /// True if a value was found at or below this node.
    pub(super) fn is_found(&self, found: &[Option<Scalar<'_>>]) -> bool {
        self.slots.iter().any(|&slot| found[slot].is_some()) || self.children.iter().any(|(_, child)| child.is_found(found))
    }
}

/// Returns advice for a path in the notation of `JSONPath`, jq, or a programming language, or `None` if the path looks like a JSON pointer.
fn spelling_advice(path: &str) -> Option<String> {
    let is_pointer = path.is_empty() || path.starts_with('/');
    if path.split(['/', '.']).any(|step| step == "*" || step.ends_with("[*]") || step.ends_with("[]")) {
        return Some(format!("wildcards are not supported; name one element, such as `{}`", respelled(path)));
    }
    let is_bracketed = |step: &str| step.ends_with(']') && step.split_once('[').is_some_and(|(_, inner)| is_index(inner));
    (!is_pointer || path.split('/').any(is_bracketed)).then(|| format!("write `{}`", respelled(path)))
}

/// True if the text after the first opening bracket is a number or a quoted name, optionally followed by more brackets.
fn is_index(inner: &str) -> bool {
    let mut indexes = inner.trim_end_matches(']').split("][");
    indexes.all(|index| index.starts_with(['\'', '"']) || !index.is_empty() && index.bytes().all(|byte| byte.is_ascii_digit()))
}

/// Converts a path in another notation to the most likely JSON pointer.
fn respelled(path: &str) -> String {
    let is_pointer = path.starts_with('/') || path.starts_with("#/");
    let mut rest = path.strip_prefix(['$', '#']).unwrap_or(path).chars();
    let (mut steps, mut step) = (Vec::new(), String::new());
    while let Some(letter) = rest.next() {
        match letter {
            '/' => steps.push(std::mem::take(&mut step)),
            '.' if !is_pointer => steps.push(std::mem::take(&mut step)),
            '[' => {
                steps.push(std::mem::take(&mut step));
                let index: String = rest.by_ref().take_while(|&letter| letter != ']').collect();
                steps.push(if index.is_empty() { "0".to_owned() } else { index.trim_matches(['\'', '"']).to_owned() });
            }
            letter => step.push(letter),
        }
    }
    steps.push(step);
    let escaped = |step: &String| if is_pointer { step.clone() } else { step.replace('~', "~0").replace('/', "~1") };
    let steps = steps.iter().filter(|step| !step.is_empty()).map(|step| if step == "*" { "0".to_owned() } else { escaped(step) });
    steps.fold(String::new(), |pointer, step| pointer + "/" + &step)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(path: &str) -> Option<String> {
        Node::default().add(path, 0).err().map(|error| error.to_string())
    }

    #[test]
    fn paths_in_other_notations_are_rejected_with_the_correct_pointer() {
        for (path, pointer) in [
            ("id", "/id"),
            (".id", "/id"),
            ("event.id", "/event/id"),
            ("event/id", "/event/id"),
            ("$.event.id", "/event/id"),
            ("$['event']['i.d']", "/event/i.d"),
            ("#/event/id", "/event/id"),
            ("data[0].id", "/data/0/id"),
            ("/data[0]/id", "/data/0/id"),
            ("/data[0][\"id\"]", "/data/0/id"),
            ("/data/[12]", "/data/12"),
            ("a~b", "/a~0b"),
        ] {
            assert_eq!(refused(path), Some(format!("`{path}` is not a JSON pointer: write `{pointer}`")));
        }
        for path in ["/data/*/id", "/data[*]/id", "/data[]/id", "$.data[*].id"] {
            let message = format!("`{path}` is not a JSON pointer: wildcards are not supported; name one element, such as `/data/0/id`");
            assert_eq!(refused(path), Some(message));
        }
        for path in ["", "/", "/a.b", "/a b", "/$ref", "/a[b]", "/[", "/]", "/a*", "/a~1[x]"] {
            assert_eq!(refused(path), None, "{path}");
        }
        assert_eq!(refused("/a~b").as_deref(), Some("`/a~b` is not a JSON pointer: `~` must be followed by 0 or 1"));
    }
}
