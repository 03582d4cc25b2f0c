//! The frame around a record that names its schema: the wire format of Confluent's serializers.
//!
//! Owns where the schema's name is and where the record begins. Must never take an unframed record for a framed one:
//! what does not begin as a frame does is invalid.
//!
//! ```text
//! 0x00 | id, 4 bytes, big endian | record        the first form
//! 0x01 | GUID, 16 bytes          | record        the newer form, which also comes in a header, without the record
//! ```
//!
//! Before a Protobuf record, the frame also has the place of its message in the schema: how many numbers follow, and these
//! numbers, each as a zigzag varint. A single byte 0 is short for one number, 0.

use super::Format;
use std::fmt;

/// Most numbers that say which message of a schema a record is: messages are rarely within more than two others.
const INDEXES_MAX: usize = 16;

/// The header that has the frame of a record's value, where the value has none.
pub const VALUE_HEADER: &str = "__value_schema_id";
/// The same for its key.
pub const KEY_HEADER: &str = "__key_schema_id";

/// How a registry calls a schema.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum SchemaId {
    /// By a number that is its own within the registry.
    Number(u32),
    /// By one that is its own everywhere.
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

/// A frame, and what it is around.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Frame<'a> {
    /// The frame's bytes: equal ones name the same message of the same schema.
    pub head: &'a [u8],
    /// The record itself.
    pub body: &'a [u8],
}

/// What a frame names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Head {
    /// The schema.
    pub schema: SchemaId,
    /// Which message of it, for Protobuf.
    pub indexes: Vec<usize>,
}

impl<'a> Frame<'a> {
    /// Parts a record from its frame, which is in the `header` if there is one.
    ///
    /// # Errors
    /// A sentence, without its subject, that says what is wrong.
    pub fn split(format: Format, record: &'a [u8], header: Option<&'a [u8]>) -> Result<Self, &'static str> {
        match header {
            None => {
                let (head, body) = record.split_at(length(format, record)?);
                Ok(Self { head, body })
            }
            Some(head) if head.first() == Some(&1) && length(format, head)? == head.len() => Ok(Self { head, body: record }),
            Some(_) => Err("has a header for the id of its schema that is not 0x01 and a GUID"),
        }
    }
}

/// Whether a record may be a framed one.
pub(crate) fn is_likely(record: &[u8]) -> bool {
    matches!((record.first(), record.len()), (Some(0), 5..) | (Some(1), 17..))
}

impl Head {
    /// Reads a frame that [`Frame::split`] has found.
    #[must_use]
    pub fn of(format: Format, head: &[u8]) -> Option<Self> {
        let (schema, mut rest) = match *head.first()? {
            0 => head[1..].split_first_chunk().map(|(id, rest)| (SchemaId::Number(u32::from_be_bytes(*id)), rest))?,
            _ => head[1..].split_first_chunk().map(|(guid, rest)| (SchemaId::Guid(*guid), rest))?,
        };
        let mut indexes = Vec::new();
        if format == Format::Protobuf {
            let count = zigzag(&mut rest).ok()?;
            indexes = (0..count).map(|_| zigzag(&mut rest).ok()).collect::<Option<_>>()?;
            if indexes.is_empty() {
                indexes.push(0);
            }
        }
        Some(Self { schema, indexes })
    }
}

/// The length of the frame that some bytes begin with.
#[inline]
fn length(format: Format, bytes: &[u8]) -> Result<usize, &'static str> {
    let id = match bytes.first() {
        Some(0) => 5,
        Some(1) => 17,
        Some(_) => {
            return Err(
                "does not begin with the frame of a schema registry, 0x00 or 0x01; for records without a frame, set its format to \"json\", or to { kind = \"…\", schema = \"file\" }",
            );
        }
        None => return Err("is empty, where the frame of a schema registry should be"),
    };
    let Some(mut rest) = bytes.get(id..) else { return Err("ends within the frame of a schema registry") };
    if format == Format::Protobuf {
        let count = zigzag(&mut rest)?;
        if count > INDEXES_MAX {
            return Err("names a message within more than 15 others");
        }
        for _ in 0..count {
            zigzag(&mut rest)?;
        }
    }
    Ok(bytes.len() - rest.len())
}

/// Takes a number of which no large one makes sense.
fn zigzag(rest: &mut &[u8]) -> Result<usize, &'static str> {
    const BROKEN: &str = "has a frame whose message indexes are broken";
    let mut number = 0_usize;
    for shift in (0..21).step_by(7) {
        let (&byte, after) = rest.split_first().ok_or("ends within the frame of a schema registry")?;
        *rest = after;
        number |= usize::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            // Nobody writes a number longer than it is. So a message has one frame, or two if it is the first.
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
        let head = Head::of(format, frame.head).expect("what was split can be read");
        Ok((head.schema, head.indexes, frame.body))
    }

    #[test]
    fn a_frame_names_a_schema() {
        assert_eq!(head(Format::Avro, &[0, 0, 0, 1, 2, 7, 8]), Ok((SchemaId::Number(258), vec![], &[7, 8][..])));
        let guid: Vec<u8> = std::iter::once(1).chain(0..16).chain([9]).collect();
        let (schema, indexes, body) = head(Format::JsonSchema, &guid).unwrap();
        assert_eq!((schema.to_string(), indexes, body), ("00010203-0405-0607-0809-0a0b0c0d0e0f".to_owned(), vec![], &[9][..]));
    }

    #[test]
    fn a_frame_names_a_message() {
        for (bytes, indexes) in
            [(&[0][..], vec![0]), (&[2, 0], vec![0]), (&[2, 4], vec![2]), (&[4, 2, 6], vec![1, 3]), (&[2, 0x80, 2], vec![128])]
        {
            let record = [&[0, 0, 0, 0, 1], bytes, &[5]].concat();
            assert_eq!(head(Format::Protobuf, &record), Ok((SchemaId::Number(1), indexes, &[5][..])), "{bytes:?}");
        }
    }

    #[test]
    fn what_is_no_frame_is_refused() {
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
    fn a_header_has_the_frame_where_it_is_there() {
        let guid: Vec<u8> = std::iter::once(1).chain(0..16).collect();
        let split = |format, header: &'static [u8]| Frame::split(format, b"x", Some(header));
        assert_eq!(Frame::split(Format::Avro, b"x", Some(&guid)), Ok(Frame { head: &guid, body: b"x" }));
        assert_eq!(Frame::split(Format::Protobuf, b"x", Some(&[&guid[..], &[0]].concat())).map(|frame| frame.body), Ok(&b"x"[..]));
        for wrong in [&b""[..], b"x", &[0, 0, 0, 0, 1], &[1, 2]] {
            assert!(split(Format::Avro, wrong.to_vec().leak()).is_err(), "{wrong:?}");
        }
        assert!(Frame::split(Format::Avro, b"x", Some(&[&guid[..], &[7]].concat())).is_err(), "a byte too many");
    }
}
