//! Encodings of whole values, such as gzip. A value is decoded before it is read.
//!
//! Limits the size of a decoded value. At most two decoded values are in memory at a time: the input and the output of a decoding step.

use data_encoding::{BASE64_NOPAD, Encoding as Alphabet};
use flate2::bufread::MultiGzDecoder;
use serde::{Deserialize, Serialize};
use std::io::Read as _;
use std::sync::OnceLock;

/// Maximum size of a value in bytes after each decoding step. Without this limit, a small gzip stream could use all memory, because it can
/// expand to a thousand times its size.
pub const DECODED_MAX: usize = 32 << 20;

/// Maximum size in bytes of a buffer that is kept for reuse. Larger buffers are shrunk to this size before they are reused.
const KEPT: usize = 1 << 20;

/// An encoding of whole record values.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Encoding {
    /// One or more gzip members (RFC 1952).
    Gzip,
    /// Base64 (RFC 4648). Accepts the standard and the URL-safe alphabet, padding or none, white space, and double quotes around the text.
    Base64,
}

/// The buffers of decoded values, reused between values.
#[derive(Debug, Default)]
pub(crate) struct Decoded {
    bytes: Vec<u8>,
    input: Vec<u8>,
    /// Total size of the results of all decoding steps so far, in bytes.
    pub(crate) total: u64,
}

impl Decoded {
    /// Decodes a value, starting with the outermost encoding.
    ///
    /// # Errors
    /// Returns an error message if the value does not have these encodings or is larger than [`DECODED_MAX`]. The caller puts `the record
    /// value` before the message.
    pub(crate) fn decode(&mut self, encodings: &[Encoding], value: &[u8]) -> Result<&[u8], String> {
        let Self { bytes, input, total } = self;
        for (number, encoding) in encodings.iter().enumerate() {
            std::mem::swap(bytes, input);
            bytes.clear();
            bytes.shrink_to(KEPT);
            let encoded = if number == 0 { value } else { &*input };
            let decoded = match encoding {
                Encoding::Gzip => gunzip(encoded, bytes),
                Encoding::Base64 => from_base64(encoded, bytes),
            };
            decoded?;
            *total += bytes.len() as u64;
        }
        Ok(bytes)
    }
}

fn gunzip(encoded: &[u8], bytes: &mut Vec<u8>) -> Result<(), String> {
    if encoded.is_empty() {
        return Err("is not gzip: it is empty".to_owned());
    }
    let (mut decoder, mut length) = (MultiGzDecoder::new(encoded), 0);
    loop {
        if length == bytes.len() {
            if length > DECODED_MAX {
                return Err(too_large("gzip"));
            }
            // The buffer grows to at most one byte above the limit, because one extra byte shows that a value is too large.
            let room = (2 * length).max(4 * encoded.len()).clamp(1 << 12, DECODED_MAX + 1);
            bytes.reserve_exact(room - length);
            bytes.resize(room, 0);
        }
        match decoder.read(&mut bytes[length..]) {
            Ok(0) => break,
            Ok(read) => length += read,
            Err(error) => {
                return Err(match encoded {
                    [0x1f, 0x8b, ..] => format!("is broken gzip: {error}"),
                    _ => "is not gzip: it does not begin with 0x1f 0x8b".to_owned(),
                });
            }
        }
    }
    bytes.truncate(length);
    Ok(())
}

fn from_base64(encoded: &[u8], bytes: &mut Vec<u8>) -> Result<(), String> {
    /// A decoder for both the standard alphabet and the URL-safe alphabet.
    static BASE64: OnceLock<Alphabet> = OnceLock::new();
    let base64 = BASE64.get_or_init(|| {
        let mut base64 = BASE64_NOPAD.specification();
        base64.translate.from.push_str("-_");
        base64.translate.to.push_str("+/");
        base64.ignore.push_str(" \t\r\n");
        base64.encoding().expect("the alphabets do not overlap")
    });
    let text = encoded.trim_ascii();
    let text = text.strip_prefix(b"\"").and_then(|text| text.strip_suffix(b"\"")).unwrap_or(text);
    let end = text.iter().rposition(|&byte| byte != b'=' && !byte.is_ascii_whitespace()).map_or(0, |last| last + 1);
    let text = &text[..end];
    let length = base64.decode_len(text.len()).map_err(|error| not_base64(&error))?;
    if length > DECODED_MAX {
        return Err(too_large("base64"));
    }
    bytes.reserve_exact(length);
    bytes.resize(length, 0);
    let length = base64.decode_mut(text, bytes).map_err(|partial| not_base64(&partial.error))?;
    bytes.truncate(length);
    Ok(())
}

fn not_base64(error: &data_encoding::DecodeError) -> String {
    format!("is not base64: {error}")
}

fn too_large(encoding: &str) -> String {
    format!("is larger than {} MiB after decoding {encoding}", DECODED_MAX >> 20)
}

#[cfg(test)]
pub(crate) fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut gzip = Vec::new();
    flate2::read::GzEncoder::new(bytes, flate2::Compression::fast()).read_to_end(&mut gzip).expect("memory can be read");
    gzip
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decoded(encodings: &[Encoding], value: &[u8]) -> Result<Vec<u8>, String> {
        Decoded::default().decode(encodings, value).map(<[u8]>::to_vec)
    }

    #[test]
    fn the_outermost_encoding_is_decoded_first() {
        let (gzip_only, text) = (gzip(b"{\"id\":1}"), b"{\"id\":1}".to_vec());
        assert_eq!(decoded(&[Encoding::Gzip], &gzip_only), Ok(text.clone()));
        let base64 = data_encoding::BASE64.encode(&gzip_only);
        assert_eq!(decoded(&[Encoding::Base64, Encoding::Gzip], base64.as_bytes()), Ok(text.clone()));
        assert_eq!(decoded(&[Encoding::Gzip, Encoding::Base64], &gzip(base64.as_bytes())), Ok(gzip_only.clone()));
        assert_eq!(decoded(&[Encoding::Gzip, Encoding::Base64, Encoding::Gzip], &gzip(base64.as_bytes())), Ok(text));
        assert_eq!(decoded(&[], b"x"), Ok(Vec::new()), "without an encoding, nothing is decoded");
        assert_eq!(decoded(&[Encoding::Gzip], &[gzip(b"a"), gzip(b""), gzip(b"b")].concat()), Ok(b"ab".to_vec()));
    }

    #[test]
    fn base64_is_decoded_in_all_common_forms() {
        let bytes = [0xfb, 0xff, 0xbf, 0x00, 0x3e];
        for text in ["+/+/AD4=", "-_-_AD4=", "+/+/AD4", "\"+/+/AD4=\"", "  +/+/\r\nAD4=\n", "\"-_-_AD4\"\n"] {
            assert_eq!(decoded(&[Encoding::Base64], text.as_bytes()), Ok(bytes.to_vec()), "{text}");
        }
        assert_eq!(decoded(&[Encoding::Base64], b""), Ok(Vec::new()));
        for text in ["{}", "+/+/A", "+/=/AD4=", "\"+/+/AD4="] {
            let error = decoded(&[Encoding::Base64], text.as_bytes()).unwrap_err();
            assert!(error.starts_with("is not base64: "), "{text}: {error}");
        }
    }

    #[test]
    fn truncated_and_invalid_streams_are_rejected() {
        let whole = gzip(b"{\"id\":1}");
        for end in 2..whole.len() {
            assert!(decoded(&[Encoding::Gzip], &whole[..end]).unwrap_err().starts_with("is broken gzip: "), "{end} bytes");
        }
        let mut wrong = whole.clone();
        *wrong.last_mut().unwrap() ^= 1;
        assert!(decoded(&[Encoding::Gzip], &wrong).is_err(), "the length is wrong");
        assert!(decoded(&[Encoding::Gzip], &[&whole[..], b"{}"].concat()).is_err(), "there are bytes after the stream");
        assert_eq!(decoded(&[Encoding::Gzip], b""), Err("is not gzip: it is empty".to_owned()));
        assert_eq!(decoded(&[Encoding::Gzip], b"{}"), Err("is not gzip: it does not begin with 0x1f 0x8b".to_owned()));
    }

    #[test]
    fn a_gzip_bomb_is_decoded_only_up_to_the_limit() {
        let most = gzip(&vec![b' '; DECODED_MAX]);
        let mut room = Decoded::default();
        assert_eq!(room.decode(&[Encoding::Gzip], &most).map(<[u8]>::len), Ok(DECODED_MAX));
        // Ten gzip members are small enough for a record and expand to ten times the limit.
        let bomb = most.repeat(10);
        assert_eq!(room.decode(&[Encoding::Gzip], &bomb), Err("is larger than 32 MiB after decoding gzip".to_owned()));
        assert!(room.bytes.capacity() <= DECODED_MAX + 1, "{}", room.bytes.capacity());
        assert_eq!(room.decode(&[Encoding::Gzip], &gzip(b"a")), Ok(&b"a"[..]));
        room.decode(&[Encoding::Gzip], &gzip(b"a")).unwrap();
        assert!(room.bytes.capacity().max(room.input.capacity()) <= KEPT);
    }
}
