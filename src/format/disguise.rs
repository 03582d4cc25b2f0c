//! Recognizes records that are compressed or begin with a byte-order mark.

use super::Side;

/// Magic bytes of compressed data and the name of the compression.
const COMPRESSIONS: [(&[u8], &str); 5] = [
    (b"\x1f\x8b", "gzip"),
    (b"\x28\xb5\x2f\xfd", "zstd"),
    (b"\x04\x22\x4d\x18", "lz4"),
    (b"\xff\x06\x00\x00sNaPpY", "snappy"),
    (b"\x82SNAPPY\x00", "snappy"),
];

/// Byte-order marks, which JSON does not allow, and an error message for each.
const ENCODINGS: [(&[u8], &str); 3] = [
    (b"\xef\xbb\xbf", "it begins with a byte-order mark; make the producer write UTF-8 without one"),
    (b"\xff\xfe", "it begins with the byte-order mark of UTF-16; make the producer write UTF-8"),
    (b"\xfe\xff", "it begins with the byte-order mark of UTF-16; make the producer write UTF-8"),
];

pub(crate) fn compression(bytes: &[u8]) -> Option<&'static str> {
    COMPRESSIONS.iter().find(|(magic, _)| bytes.starts_with(magic)).map(|&(_, name)| name)
}

pub(crate) fn disguise(side: Side, text: &[u8]) -> Option<String> {
    if let Some(name) = compression(text) {
        let decode = if name == "gzip" && side == Side::Value { "set value_encoding = \"gzip\", or " } else { "" };
        return Some(format!(
            "it is compressed with {name}; {decode}send it uncompressed and set compression.type = {name} on the producer"
        ));
    }
    ENCODINGS.iter().find(|(magic, _)| text.starts_with(magic)).map(|&(_, words)| words.to_owned())
}
