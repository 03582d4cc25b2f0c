//! Fields that are read for a purpose other than the key, such as event times.

use super::content::{Content, Digest};
use super::{Hashing, Scratch};
use crate::format::{Buffers, Container, Extract, JsonExtractor, Places, PointerError, Scalar, Unreadable, Visit, unescape};
use std::borrow::Cow;

/// A field of a record key or value that is read for a purpose other than the key, such as the event time.
#[derive(Clone, Debug)]
pub struct Field(JsonExtractor);

impl Field {
    /// Compiles an RFC 6901 pointer.
    ///
    /// # Errors
    /// Returns [`PointerError`] if the pointer is malformed or too deep.
    pub fn new(pointer: &str) -> Result<Self, PointerError> {
        Ok(Self(JsonExtractor::new(Places::new([pointer])?)))
    }

    /// Returns the string, number, or boolean at this field of a JSON text. Numbers are as written, and strings are without quotes and
    /// escapes. Returns `None` if the field has another type or is missing, or if the text is not JSON.
    #[must_use]
    pub fn text<'a>(&'a self, json: &'a [u8]) -> Option<Cow<'a, str>> {
        text(&self.0, json, &mut Buffers::default()).ok()?
    }

    pub(super) const fn places(&self) -> &Places {
        self.0.places()
    }
}

pub(super) fn text<'a>(
    extractor: &'a impl Extract,
    text: &'a [u8],
    buffers: &mut Buffers,
) -> Result<Option<Cow<'a, str>>, Box<Unreadable>> {
    Ok(find(extractor, text, buffers)?.and_then(text_of))
}

/// Returns the value at the place of an extractor, which must have exactly one place.
pub(super) fn find<'a>(extractor: &'a impl Extract, text: &'a [u8], buffers: &mut Buffers) -> Result<Option<Scalar<'a>>, Box<Unreadable>> {
    let mut found = [None];
    extractor.find(text, buffers, &mut found)?;
    let [found] = found;
    Ok(found)
}

/// Returns the text of a string, number, boolean, or UUID. Returns `None` for null, objects, arrays, and invalid UTF-8.
pub(super) fn text_of(found: Scalar<'_>) -> Option<Cow<'_, str>> {
    match found {
        Scalar::String(text) | Scalar::Number(text) | Scalar::Bool(text) => str::from_utf8(text).ok().map(Cow::Borrowed),
        Scalar::Escaped(quoted) => unescape(quoted).ok().map(Cow::Owned),
        number @ (Scalar::Integer(_) | Scalar::Decimal { .. } | Scalar::Uuid(_)) => {
            str::from_utf8(number.written().bytes()).ok().map(|text| Cow::Owned(text.to_owned()))
        }
        Scalar::Null | Scalar::Container(_) => None,
    }
}

/// A field that [`OpenValue::leaves`](super::OpenValue::leaves) visits: a scalar, an array with all its elements, or an object at the
/// maximum depth.
#[derive(Clone, Copy, Debug)]
pub struct Leaf<'l> {
    /// The RFC 6901 pointer to the field.
    pub pointer: &'l str,
    /// Digest of the value, independent of white space, the order of members, and escapes. `None` for null.
    pub digest: Option<u128>,
    /// The value, or `None` for an array or object.
    pub scalar: Option<Scalar<'l>>,
}

/// Visits the fields of a record key or value. An object at depth `depth_max` is visited as a single field. Returns true if the key or
/// value is an object.
///
/// # Errors
/// Returns [`Unreadable`] if the text is not in the extractor's format. The caller must then discard the visited fields.
pub(super) fn leaves(
    extractor: &impl Extract,
    text: &[u8],
    depth_max: usize,
    scratch: &mut Scratch,
    visit: impl FnMut(Leaf<'_>),
) -> Result<bool, Box<Unreadable>> {
    let content = Content::default();
    let digest = content.digest(&Hashing::Xxh3, &mut scratch.room);
    let mut leaves = Leaves { digest, nested: 0, depth_max, lengths: Vec::new(), pointer: String::new(), is_object: false, visit };
    extractor.visit(text, &mut scratch.buffers, &mut leaves)?;
    Ok(leaves.is_object)
}

struct Leaves<'d, F> {
    digest: Digest<'d>,
    /// Number of open containers in the current field, including the field itself. Zero between fields.
    nested: usize,
    depth_max: usize,
    /// Lengths of the prefixes of `pointer` that lead to the open objects, outermost first.
    lengths: Vec<usize>,
    pointer: String,
    is_object: bool,
    visit: F,
}

impl<F: FnMut(Leaf<'_>)> Visit for Leaves<'_, F> {
    fn scalar(&mut self, value: Scalar<'_>) {
        self.digest.scalar(value);
        if self.nested == 0 {
            let digest = self.digest.next();
            (self.visit)(Leaf { pointer: &self.pointer, digest, scalar: Some(value) });
        }
    }

    fn open(&mut self, container: Container) {
        if self.nested == 0 && container == Container::Object && self.lengths.len() < self.depth_max {
            self.is_object |= self.lengths.is_empty();
            self.lengths.push(self.pointer.len());
        } else {
            self.nested += 1;
            self.digest.open(container);
        }
    }

    fn name(&mut self, name: &[u8]) {
        if self.nested > 0 {
            return self.digest.name(name);
        }
        self.pointer.truncate(self.lengths.last().copied().unwrap_or_default());
        self.pointer.push('/');
        self.pointer.push_str(&String::from_utf8_lossy(name).replace('~', "~0").replace('/', "~1"));
    }

    fn close(&mut self) {
        if self.nested == 0 {
            self.pointer.truncate(self.lengths.pop().unwrap_or_default());
            return;
        }
        self.digest.close();
        self.nested -= 1;
        if self.nested == 0 {
            let digest = self.digest.next();
            (self.visit)(Leaf { pointer: &self.pointer, digest, scalar: None });
        }
    }
}
