//! The encoding of a key's parts.
//!
//! Defines the encoding, which must not change within a version of the state format: stored fingerprints are hashes of encodings. Values of
//! different formats are the same key if their encodings are equal.

use crate::format::{Scalar, unescape};

/// Number of bytes before the value in a part's encoding: one for the tag and eight for the length.
pub(super) const HEAD: usize = 9;

/// The type of a part's value. The discriminants are part of the encoding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Tag {
    Null = 0,
    /// The bytes of a record key, record value, header, or CloudEvents attribute. Also a field that is bytes, a UUID, or a string after its
    /// escapes are decoded, and a number or boolean that is normalized with `to_string`.
    Bytes = 1,
    /// A number in JSON notation. JSON numbers stay as written, because rounding to a float could make different numbers equal.
    Number = 2,
    Bool = 3,
    /// A JSON object or array as written, with its white space.
    Container = 4,
    /// The digest of a value's content, from `content.rs`.
    Content = 5,
}

#[inline(always)]
#[expect(clippy::inline_always, reason = "it is in the middle of what is done for each record")]
pub(super) fn encode(encoded: &mut Vec<u8>, tag: Tag, bytes: &[u8]) {
    encoded.extend_from_slice(&head(tag, bytes));
    encoded.extend_from_slice(bytes);
}

#[inline]
pub(super) fn head(tag: Tag, bytes: &[u8]) -> [u8; HEAD] {
    let mut head = [tag as u8; HEAD];
    head[1..].copy_from_slice(&(bytes.len() as u64).to_le_bytes());
    head
}

/// `bytes` is a record key, a record value, or a header. `None` is null.
pub(super) fn raw(bytes: Option<&[u8]>) -> (Tag, &[u8]) {
    bytes.map_or((Tag::Null, &[][..]), |bytes| (Tag::Bytes, bytes))
}

#[inline]
pub(super) fn encode_scalar(scalar: &Scalar<'_>, mut encode: impl FnMut((Tag, &[u8]))) -> Result<(), serde_json::Error> {
    let (text, written);
    // Call `encode` in a single place, because the compiler then inlines it.
    encode(match *scalar {
        Scalar::Null => (Tag::Null, &[]),
        Scalar::String(text) => (Tag::Bytes, text),
        Scalar::Escaped(quoted) => {
            text = unescape(quoted)?;
            (Tag::Bytes, text.as_bytes())
        }
        Scalar::Number(text) => (Tag::Number, text),
        Scalar::Bool(text) => (Tag::Bool, text),
        Scalar::Container(text) => (Tag::Container, text),
        Scalar::Integer(_) | Scalar::Decimal { .. } => {
            written = scalar.written();
            (Tag::Number, written.bytes())
        }
        Scalar::Uuid(_) => {
            written = scalar.written();
            (Tag::Bytes, written.bytes())
        }
    });
    Ok(())
}
