//! A cursor that reads an encoded record.
//!
//! Decodes numbers, lengths, and blocks. Never reads past the end of the record.

use crate::format::Malformed;

/// Maximum length of a varint in bytes: 64 bits at 7 bits per byte.
const NUMBER_MAX: usize = 10;

pub(super) struct Cursor<'a> {
    record: &'a [u8],
    at: usize,
}

#[derive(Clone, Copy)]
pub(super) struct Block {
    pub count: usize,
    /// The end of the block, if its size is declared. Never past the end of the record.
    pub end: Option<usize>,
}

impl<'a> Cursor<'a> {
    pub fn new(record: &'a [u8]) -> Self {
        Self { record, at: 0 }
    }

    pub fn at(&self) -> usize {
        self.at
    }

    pub fn rewind(&mut self, at: usize) {
        self.at = self.at.min(at);
    }

    pub fn malformed(&self, what: &'static str) -> Malformed {
        Malformed { offset: self.at, what }
    }

    /// Takes the next `length` bytes. If the record has fewer bytes, returns an error with the message `what`.
    pub fn take(&mut self, length: usize, what: &'static str) -> Result<&'a [u8], Malformed> {
        let bytes = self.record[self.at..].get(..length).ok_or_else(|| self.malformed(what))?;
        self.at += length;
        Ok(bytes)
    }

    /// Takes length-prefixed bytes. The result does not contain their length.
    pub fn sized(&mut self, what: &'static str) -> Result<&'a [u8], Malformed> {
        let start = self.at;
        let length = self.long()?;
        let length = usize::try_from(length).map_err(|_| Malformed { offset: start, what: "a length is negative" })?;
        self.take(length, what)
    }

    /// Takes a zigzag varint of at most 64 bits.
    #[inline]
    pub fn long(&mut self) -> Result<i64, Malformed> {
        let mut number = 0_u64;
        for (place, &byte) in self.record[self.at..].iter().take(NUMBER_MAX).enumerate() {
            if place == NUMBER_MAX - 1 && byte > 1 {
                break;
            }
            number |= u64::from(byte & 0x7f) << (7 * place);
            if byte & 0x80 == 0 {
                self.at += place + 1;
                return Ok((number >> 1).cast_signed() ^ -(number & 1).cast_signed());
            }
        }
        let is_torn = self.record.len() - self.at < NUMBER_MAX;
        Err(self.malformed(if is_torn { "the record ends within a number" } else { "a number has more than 64 bits" }))
    }

    pub fn int(&mut self) -> Result<i32, Malformed> {
        let offset = self.at;
        self.long()?.try_into().map_err(|_| Malformed { offset, what: "an int has more than 32 bits" })
    }

    pub fn boolean(&mut self) -> Result<bool, Malformed> {
        match self.record.get(self.at) {
            Some(&byte @ (0 | 1)) => {
                self.at += 1;
                Ok(byte == 1)
            }
            Some(_) => Err(self.malformed("a boolean is neither 0 nor 1")),
            None => Err(self.malformed("the record ends before a boolean")),
        }
    }

    /// Takes an index below `count`. If the index is too large, returns an error with the message `what`.
    pub fn index(&mut self, count: usize, what: &'static str) -> Result<usize, Malformed> {
        let offset = self.at;
        let index = usize::try_from(self.int()?).ok().filter(|&index| index < count);
        index.ok_or(Malformed { offset, what })
    }

    /// Takes the head of the next block of an array or a map. Returns `None` after the last block.
    pub fn block(&mut self) -> Result<Option<Block>, Malformed> {
        let offset = self.at;
        let count = self.long()?;
        if count == 0 {
            return Ok(None);
        }
        let end = if count < 0 {
            let size = usize::try_from(self.long()?).ok().filter(|&size| size <= self.record.len() - self.at);
            Some(self.at + size.ok_or(Malformed { offset, what: "a block extends past the end of the record" })?)
        } else {
            None
        };
        let count = usize::try_from(count.unsigned_abs()).map_err(|_| Malformed { offset, what: "a block has too many elements" })?;
        Ok(Some(Block { count, end }))
    }

    /// If the size of a block is declared, moves to the end of the block and returns true. Otherwise, returns false.
    pub fn skip(&mut self, block: Block) -> Result<bool, Malformed> {
        match block.end {
            None => Ok(false),
            Some(end) if end < self.at => Err(self.malformed("a block does not have its declared size")),
            Some(end) => {
                self.at = end;
                Ok(true)
            }
        }
    }

    /// Checks that a block ends at the current position, if its size is declared.
    pub fn end_block(&self, block: Block) -> Result<(), Malformed> {
        if block.end.is_some_and(|end| end != self.at) {
            return Err(self.malformed("a block does not have its declared size"));
        }
        Ok(())
    }

    pub fn end(&self) -> Result<(), Malformed> {
        if self.at < self.record.len() {
            return Err(self.malformed("there are extra bytes after the record"));
        }
        Ok(())
    }
}
