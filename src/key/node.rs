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
        let malformed = |advice| SpecError::Pointer { pointer: pointer.to_owned(), advice };
        if let Some(advice) = spelling_advice(pointer) {
            return Err(malformed(advice));
        }
        // As deep as the shortcut goes, and half as deep as the parser: both find the same.
        if pointer.split('/').count() > DEPTH_MAX {
            return Err(SpecError::Deep(DEPTH_MAX - 1));
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

/// Returns what to write instead of a path that is spelled as in `JSONPath`, jq, or a programming language.
fn spelling_advice(path: &str) -> Option<String> {
    let is_pointer = path.is_empty() || path.starts_with('/');
    if path.split(['/', '.']).any(|step| step == "*" || step.ends_with("[*]") || step.ends_with("[]")) {
        return Some(format!("it has no wildcards; name one element, such as `{}`", respelled(path)));
    }
    let is_bracketed = |step: &str| step.ends_with(']') && step.split_once('[').is_some_and(|(_, inner)| is_index(inner));
    (!is_pointer || path.split('/').any(is_bracketed)).then(|| format!("write `{}`", respelled(path)))
}

/// True if the text behind the first opening bracket is a number or a name in quotes, perhaps with more brackets behind it.
fn is_index(inner: &str) -> bool {
    let mut indexes = inner.trim_end_matches(']').split("][");
    indexes.all(|index| index.starts_with(['\'', '"']) || !index.is_empty() && index.bytes().all(|byte| byte.is_ascii_digit()))
}

/// Returns the JSON pointer to the place that a path in another notation most likely means.
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
    fn paths_in_another_notation_are_refused_with_the_pointer_to_write() {
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
            let message = format!("`{path}` is not a JSON pointer: it has no wildcards; name one element, such as `/data/0/id`");
            assert_eq!(refused(path), Some(message));
        }
        for path in ["", "/", "/a.b", "/a b", "/$ref", "/a[b]", "/[", "/]", "/a*", "/a~1[x]"] {
            assert_eq!(refused(path), None, "{path}");
        }
        assert_eq!(refused("/a~b").as_deref(), Some("`/a~b` is not a JSON pointer: `~` must be followed by 0 or 1"));
    }
}
