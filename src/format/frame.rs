//! The frame with the schema id of a record, in the wire format of Confluent's serializers.
//!
//! A record is accepted only if it begins with a frame, or if one of its headers contains the frame.
//!
//! ```text
//! 0x00 | id, 4 bytes, big endian | record        the original format
//! 0x01 | GUID, 16 bytes          | record        the newer format, which can also be in a header, without the record
//! ```
//!
//! For Protobuf, the frame also contains the message indexes, which are the path to the message type in the schema: the number of
//! indexes and the indexes, each as a zigzag varint. A single byte 0 is short for the index list `[0]`.

use super::Format;
use std::fmt;

/// Maximum number of message indexes. Message types are rarely nested more than three levels deep.
const INDEXES_MAX: usize = 16;

/// The header with the frame of the record value, if the value itself has no frame.
pub const VALUE_HEADER: &str = "__value_schema_id";
/// The header with the frame of the record key, if the key itself has no frame.
pub const KEY_HEADER: &str = "__key_schema_id";

/// The id of a schema.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum SchemaId {
    /// A number that is unique within the registry.
    Number(u32),
    /// A GUID that is unique across registries.
    Guid([u8; 16]),
}

impl fmt::Display for SchemaId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Number(id) => write!(f, "{id}"),
            Self::Guid(guid) => {
                for (at, byte) in guid.iter().enumerate() {
                    let hyphen = if matches!(at, 4 | 6 | 8 | 10) { "-" } else { "" };
                    write!(f, "{hyphen}{byte:02x}")?;
                }
                Ok(())
            }
        }
    }
}

/// A record that is split into its frame and its body. If the frame is in a header, the whole record is the body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Frame<'a> {
    /// The bytes of the frame. Equal bytes identify the same message type of the same schema.
    pub head: &'a [u8],
    /// The record without its frame.
    pub body: &'a [u8],
}

/// A parsed frame: the id of the schema and, for Protobuf, the message type.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Head {
    /// The id of the record's schema.
    pub schema: SchemaId,
    /// The path to the message type in the schema, for Protobuf. Empty for other formats.
    pub indexes: Vec<usize>,
}

impl<'a> Frame<'a> {
    /// Splits a record key or value into its frame and its body. If there is a `header`, the frame is in the header, and `record` is
    /// the body.
    ///
    /// # Errors
    /// Returns an error message if the frame is invalid. The caller puts `the record key` or `the record value` before the message.
    pub fn split(format: Format, record: &'a [u8], header: Option<&'a [u8]>) -> Result<Self, &'static str> {
        match header {
            None => {
                let (head, body) = record.split_at(length(format, record)?);
                Ok(Self { head, body })
            }
            Some(head) if head.first() == Some(&1) && length(format, head)? == head.len() => Ok(Self { head, body: record }),
            Some(_) => Err("has a header for its schema id, but the header is not 0x01 followed by a GUID"),
        }
    }
}

/// True if a record probably has a frame: it begins with 0x00 or 0x01 and is long enough to contain a schema id.
pub(crate) fn is_likely(record: &[u8]) -> bool {
    matches!((record.first(), record.len()), (Some(0), 5..) | (Some(1), 17..))
}

impl Head {
    /// Parses the bytes of a frame. [`Frame::split`] must have returned these bytes for the same format. Otherwise, the result can be
    /// `None`.
    #[must_use]
    pub fn of(format: Format, head: &[u8]) -> Option<Self> {
        let (schema, mut rest) = match *head.first()? {
            0 => head[1..].split_first_chunk().map(|(id, rest)| (SchemaId::Number(u32::from_be_bytes(*id)), rest))?,
            _ => head[1..].split_first_chunk().map(|(guid, rest)| (SchemaId::Guid(*guid), rest))?,
        };
        let mut indexes = Vec::new();
        if format.has_messages() {
            let count = zigzag(&mut rest).ok()?;
            indexes = (0..count).map(|_| zigzag(&mut rest).ok()).collect::<Option<_>>()?;
            if indexes.is_empty() {
                indexes.push(0);
            }
        }
        Some(Self { schema, indexes })
    }
}

#[inline]
fn length(format: Format, bytes: &[u8]) -> Result<usize, &'static str> {
    let id = match bytes.first() {
        Some(0) => 5,
        Some(1) => 17,
        Some(_) => {
            return Err(
                "does not begin with the frame of a schema registry (0x00 or 0x01); for records without a frame, set the format to \"json\" or { kind = \"…\", schema = \"file\" }",
            );
        }
        None => return Err("is empty but must begin with the frame of a schema registry"),
    };
    let Some(mut rest) = bytes.get(id..) else { return Err("ends within the frame of a schema registry") };
    if format.has_messages() {
        let count = zigzag(&mut rest)?;
        if count > INDEXES_MAX {
            return Err("has a frame with more than 16 message indexes");
        }
        for _ in 0..count {
            zigzag(&mut rest)?;
        }
    }
    Ok(bytes.len() - rest.len())
}

/// Parses a message index, or the number of message indexes.
fn zigzag(rest: &mut &[u8]) -> Result<usize, &'static str> {
    const BROKEN: &str = "has a frame with invalid message indexes";
    let mut number = 0_usize;
    for shift in (0..21).step_by(7) {
        let (&byte, after) = rest.split_first().ok_or("ends within the frame of a schema registry")?;
        *rest = after;
        number |= usize::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            // Longer forms are rejected, because serializers always use the shortest form. Each list of indexes then has only one encoding,
            // except for the list `[0]`, which also has a short form.
            let is_shortest = byte != 0 || shift == 0;
            return if is_shortest && number & 1 == 0 { Ok(number / 2) } else { Err(BROKEN) };
        }
    }
    Err(BROKEN)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn head(format: Format, record: &[u8]) -> Result<(SchemaId, Vec<usize>, &[u8]), &'static str> {
        let frame = Frame::split(format, record, None)?;
        let head = Head::of(format, frame.head).expect("a valid frame");
        Ok((head.schema, head.indexes, frame.body))
    }

    #[test]
    fn a_frame_has_a_schema_id() {
        assert_eq!(head(Format::Avro, &[0, 0, 0, 1, 2, 7, 8]), Ok((SchemaId::Number(258), vec![], &[7, 8][..])));
        let guid: Vec<u8> = std::iter::once(1).chain(0..16).chain([9]).collect();
        let (schema, indexes, body) = head(Format::JsonSchema, &guid).unwrap();
        assert_eq!((schema.to_string(), indexes, body), ("00010203-0405-0607-0809-0a0b0c0d0e0f".to_owned(), vec![], &[9][..]));
    }

    #[test]
    fn a_protobuf_frame_has_message_indexes() {
        for (bytes, indexes) in
            [(&[0][..], vec![0]), (&[2, 0], vec![0]), (&[2, 4], vec![2]), (&[4, 2, 6], vec![1, 3]), (&[2, 0x80, 2], vec![128])]
        {
            let record = [&[0, 0, 0, 0, 1], bytes, &[5]].concat();
            assert_eq!(head(Format::Protobuf, &record), Ok((SchemaId::Number(1), indexes, &[5][..])), "{bytes:?}");
        }
    }

    #[test]
    fn invalid_frames_are_rejected() {
        for format in [Format::Avro, Format::Protobuf, Format::JsonSchema] {
            for bytes in [&b""[..], b"{}", &[0], &[0, 0, 0, 0], &[1; 16], &[2, 0, 0, 0, 1, 0]] {
                assert!(head(format, bytes).is_err(), "{format:?} {bytes:?}");
            }
        }
        for indexes in [&[][..], &[0x80], &[1], &[2], &[2, 1], &[0x80, 0x80, 0x80, 0], &[0x80, 0], &[2, 0x80, 0], &[0xff, 0xff, 3], &[60]] {
            assert!(head(Format::Protobuf, &[&[0, 0, 0, 0, 1], indexes].concat()).is_err(), "{indexes:?}");
        }
    }

    #[test]
    fn a_frame_can_be_in_a_header() {
        let guid: Vec<u8> = std::iter::once(1).chain(0..16).collect();
        let split = |format, header: &'static [u8]| Frame::split(format, b"x", Some(header));
        assert_eq!(Frame::split(Format::Avro, b"x", Some(&guid)), Ok(Frame { head: &guid, body: b"x" }));
        assert_eq!(Frame::split(Format::Protobuf, b"x", Some(&[&guid[..], &[0]].concat())).map(|frame| frame.body), Ok(&b"x"[..]));
        for wrong in [&b""[..], b"x", &[0, 0, 0, 0, 1], &[1, 2]] {
            assert!(split(Format::Avro, wrong.to_vec().leak()).is_err(), "{wrong:?}");
        }
        assert!(Frame::split(Format::Avro, b"x", Some(&[&guid[..], &[7]].concat())).is_err(), "an extra byte");
    }
}
