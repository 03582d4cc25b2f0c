//! Texts in disguise: compressed, or in another encoding than UTF-8.

use super::Side;

/// The first bytes of compressed data, and what compressed it.
const COMPRESSIONS: [(&[u8], &str); 5] = [
    (b"\x1f\x8b", "gzip"),
    (b"\x28\xb5\x2f\xfd", "zstd"),
    (b"\x04\x22\x4d\x18", "lz4"),
    (b"\xff\x06\x00\x00sNaPpY", "snappy"),
    (b"\x82SNAPPY\x00", "snappy"),
];

/// The first bytes of text in another encoding than JSON allows, and what to do.
const ENCODINGS: [(&[u8], &str); 3] = [
    (b"\xef\xbb\xbf", "it begins with a byte-order mark; make the producer write UTF-8 without one"),
    (b"\xff\xfe", "it is in UTF-16; make the producer write UTF-8"),
    (b"\xfe\xff", "it is in UTF-16; make the producer write UTF-8"),
];

/// Returns what compressed some bytes, if their first bytes tell.
pub(crate) fn compression(bytes: &[u8]) -> Option<&'static str> {
    COMPRESSIONS.iter().find(|(magic, _)| bytes.starts_with(magic)).map(|&(_, name)| name)
}

/// Returns what a text is by its first bytes, and what to do, if it is compressed or in another encoding than UTF-8.
pub(crate) fn disguise(side: Side, text: &[u8]) -> Option<String> {
    if let Some(name) = compression(text) {
        let decode = if name == "gzip" && side == Side::Value { "set value_encoding = \"gzip\", or " } else { "" };
        return Some(format!(
            "it is compressed with {name}; {decode}send it as it is, and let the producer compress (compression.type = {name})"
        ));
    }
    ENCODINGS.iter().find(|(magic, _)| text.starts_with(magic)).map(|&(_, words)| words.to_owned())
}
