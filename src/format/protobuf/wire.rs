//! Reads and skips the fields of an encoded message.
//!
//! Checks the encoding. Never reads past the end of a message and never depends on a schema.

use crate::format::{DEPTH_MAX, Malformed};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wire {
    Varint,
    Fixed64,
    /// Length-prefixed bytes.
    Bytes,
    GroupStart,
    GroupEnd,
    Fixed32,
}

/// Number of bytes before the last byte of the longest varint.
const LONG: usize = 9;

/// Decodes a varint of one or two bytes. Returns the number and the position after the varint, or `None` if the varint is longer or
/// truncated.
#[inline]
fn short(bytes: &[u8], at: usize) -> Option<(u32, usize)> {
    let first = *bytes.get(at)?;
    if first < 0x80 {
        return Some((first.into(), at + 1));
    }
    let second = *bytes.get(at + 1)?;
    (second < 0x80).then(|| (u32::from(first & 0x7f) | u32::from(second) << 7, at + 2))
}

/// A position in a record and the end of the current message.
#[derive(Clone, Copy, Debug)]
pub(super) struct Reader<'a> {
    /// The record up to the end of the message. Offsets count from the start of the record.
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Reader<'a> {
    pub(super) const fn new(record: &'a [u8]) -> Self {
        Self { bytes: record, at: 0 }
    }

    #[inline]
    pub(super) const fn is_at_end(&self) -> bool {
        self.at >= self.bytes.len()
    }

    /// Returns an error for the offset that is `back` bytes before the current position.
    #[cold]
    pub(super) const fn malformed(&self, back: usize, what: &'static str) -> Malformed {
        Malformed { offset: self.at.saturating_sub(back), what }
    }

    #[inline]
    pub(super) fn varint(&mut self) -> Result<u64, Malformed> {
        match self.bytes.get(self.at) {
            Some(&byte) if byte < 0x80 => {
                self.at += 1;
                Ok(byte.into())
            }
            _ => self.long_varint(),
        }
    }

    fn long_varint(&mut self) -> Result<u64, Malformed> {
        /// Maximum number of bytes of a varint. The tenth byte has only the last of 64 bits.
        const BYTES_MAX: usize = 10;
        let mut value = 0;
        for (index, &byte) in self.bytes[self.at..].iter().take(BYTES_MAX).enumerate() {
            value |= u64::from(byte & 0x7f) << (7 * index);
            if byte < 0x80 {
                if index + 1 == BYTES_MAX && byte > 1 {
                    return Err(self.malformed(0, "a varint has more than 64 bits"));
                }
                self.at += index + 1;
                return Ok(value);
            }
        }
        let is_torn = self.bytes.len() - self.at < BYTES_MAX;
        Err(self.malformed(0, if is_torn { "the message ends within a varint" } else { "a varint has more than ten bytes" }))
    }

    #[inline]
    pub(super) fn tag(&mut self) -> Result<(u32, Wire), Malformed> {
        let start = self.at;
        let wrong = |what| Malformed { offset: start, what };
        let tag = u32::try_from(self.varint()?).map_err(|_| wrong("a field number has more than 29 bits"))?;
        let wire = match tag & 7 {
            0 => Wire::Varint,
            1 => Wire::Fixed64,
            2 => Wire::Bytes,
            3 => Wire::GroupStart,
            4 => Wire::GroupEnd,
            5 => Wire::Fixed32,
            _ => return Err(wrong("a wire type is unknown")),
        };
        if tag >> 3 == 0 { Err(wrong("a field number is 0")) } else { Ok((tag >> 3, wire)) }
    }

    #[inline]
    pub(super) fn array<const N: usize>(&mut self) -> Result<[u8; N], Malformed> {
        let bytes = self.bytes[self.at..].first_chunk().ok_or_else(|| self.malformed(0, "the message ends within a number"))?;
        self.at += N;
        Ok(*bytes)
    }

    /// Takes length-prefixed bytes and returns a reader for them.
    #[inline]
    pub(super) fn nested(&mut self) -> Result<Self, Malformed> {
        let start = self.at;
        let length = self.varint()?;
        match usize::try_from(length) {
            Ok(length) if length <= self.bytes.len() - self.at => {
                let nested = Self { bytes: &self.bytes[..self.at + length], at: self.at };
                self.at += length;
                Ok(nested)
            }
            _ => Err(Malformed { offset: start, what: "a length extends past the end of the message" }),
        }
    }

    #[inline]
    pub(super) fn bytes(&mut self) -> Result<&'a [u8], Malformed> {
        let nested = self.nested()?;
        Ok(&nested.bytes[nested.at..])
    }

    /// Takes a length-prefixed string. Returns an error if the string is not UTF-8.
    #[inline]
    pub(super) fn text(&mut self) -> Result<&'a [u8], Malformed> {
        let text = self.bytes()?;
        str::from_utf8(text).map_err(|error| self.malformed(text.len() - error.valid_up_to(), "a string is not UTF-8"))?;
        Ok(text)
    }

    /// Fast path that skips fields for which `matters` returns false. It handles only simple fields: no groups, a tag and a length of at
    /// most two bytes each, and varint values of at most nine bytes. Stops at the end of the message or at the first field that `matters`,
    /// is not simple, or is malformed. The caller handles that field.
    #[inline]
    pub(super) fn pass_over(&mut self, matters: impl Fn(u32) -> bool) {
        let bytes = self.bytes;
        while let Some((tag, value)) = short(bytes, self.at) {
            if tag >> 3 == 0 || matters(tag >> 3) {
                return;
            }
            let next = match tag & 7 {
                0 => {
                    let more = bytes[value..].iter().take(LONG).take_while(|&&byte| byte >= 0x80).count();
                    // A varint of ten bytes can have more than 64 bits, which only `varint` checks.
                    if more == LONG {
                        return;
                    }
                    value + more + 1
                }
                1 => value + 8,
                2 => match short(bytes, value) {
                    Some((length, start)) => start + length as usize,
                    None => return,
                },
                5 => value + 4,
                _ => return,
            };
            if next > bytes.len() {
                return;
            }
            self.at = next;
        }
    }

    #[inline]
    pub(super) fn skip(&mut self, number: u32, wire: Wire) -> Result<(), Malformed> {
        match wire {
            Wire::Varint => self.varint().map(drop),
            Wire::Fixed64 => self.array::<8>().map(drop),
            Wire::Bytes => self.nested().map(drop),
            Wire::Fixed32 => self.array::<4>().map(drop),
            Wire::GroupStart => self.skip_group(number),
            Wire::GroupEnd => Err(self.malformed(1, "a group ends without a start")),
        }
    }

    /// Skips the rest of a group, including nested groups.
    fn skip_group(&mut self, number: u32) -> Result<(), Malformed> {
        let (mut open, mut depth) = ([number; DEPTH_MAX], 1);
        while depth > 0 {
            if self.is_at_end() {
                return Err(self.malformed(0, "the message ends within a group"));
            }
            let start = self.at;
            let wrong = |what| Malformed { offset: start, what };
            match self.tag()? {
                (number, Wire::GroupStart) => {
                    *open.get_mut(depth).ok_or_else(|| wrong("too many groups are nested"))? = number;
                    depth += 1;
                }
                (number, Wire::GroupEnd) => {
                    depth -= 1;
                    if open[depth] != number {
                        return Err(wrong("the end of a group does not match its start"));
                    }
                }
                (number, wire) => self.skip(number, wire)?,
            }
        }
        Ok(())
    }
}
