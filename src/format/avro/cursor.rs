//! Where a walk is in a record.
//!
//! Owns how numbers, lengths and blocks are written. Must never move past the record's end.

use crate::format::Malformed;

/// Bytes of the longest number: 64 bits, seven in a byte.
const NUMBER_MAX: usize = 10;

pub(super) struct Cursor<'a> {
    record: &'a [u8],
    at: usize,
}

/// A run of an array's elements, or of a map's entries.
#[derive(Clone, Copy)]
pub(super) struct Block {
    pub count: usize,
    /// Where it ends, if it states its size. That is within the record.
    pub end: Option<usize>,
}

impl<'a> Cursor<'a> {
    pub fn new(record: &'a [u8]) -> Self {
        Self { record, at: 0 }
    }

    pub fn at(&self) -> usize {
        self.at
    }

    /// Goes back to where it was before.
    pub fn rewind(&mut self, at: usize) {
        self.at = self.at.min(at);
    }

    pub fn malformed(&self, what: &'static str) -> Malformed {
        Malformed { offset: self.at, what }
    }

    /// The next `length` bytes, if the record has them; else `what` is wrong.
    pub fn take(&mut self, length: usize, what: &'static str) -> Result<&'a [u8], Malformed> {
        let bytes = self.record[self.at..].get(..length).ok_or_else(|| self.malformed(what))?;
        self.at += length;
        Ok(bytes)
    }

    /// The bytes behind their length.
    pub fn sized(&mut self, what: &'static str) -> Result<&'a [u8], Malformed> {
        let start = self.at;
        let length = self.long()?;
        let length = usize::try_from(length).map_err(|_| Malformed { offset: start, what: "a length is negative" })?;
        self.take(length, what)
    }

    /// A number of 64 bits: seven in a byte, the lowest first, in zigzag.
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

    /// A number that is below `count`; else `what` is wrong.
    pub fn index(&mut self, count: usize, what: &'static str) -> Result<usize, Malformed> {
        let offset = self.at;
        let index = usize::try_from(self.int()?).ok().filter(|&index| index < count);
        index.ok_or(Malformed { offset, what })
    }

    /// The head of an array's or a map's next block; none at its end.
    pub fn block(&mut self) -> Result<Option<Block>, Malformed> {
        let offset = self.at;
        let count = self.long()?;
        if count == 0 {
            return Ok(None);
        }
        let end = if count < 0 {
            let size = usize::try_from(self.long()?).ok().filter(|&size| size <= self.record.len() - self.at);
            Some(self.at + size.ok_or(Malformed { offset, what: "a block ends behind the record" })?)
        } else {
            None
        };
        let count = usize::try_from(count.unsigned_abs()).map_err(|_| Malformed { offset, what: "a block has too many elements" })?;
        Ok(Some(Block { count, end }))
    }

    /// Goes to the end of a block that states its size; false if it states none.
    pub fn skip(&mut self, block: Block) -> Result<bool, Malformed> {
        match block.end {
            None => Ok(false),
            Some(end) if end < self.at => Err(self.malformed("a block has not the size that it states")),
            Some(end) => {
                self.at = end;
                Ok(true)
            }
        }
    }

    /// Checks that a block, all of which was read, has the size that it states.
    pub fn end_block(&self, block: Block) -> Result<(), Malformed> {
        if block.end.is_some_and(|end| end != self.at) {
            return Err(self.malformed("a block has not the size that it states"));
        }
        Ok(())
    }

    /// Checks that nothing is left.
    pub fn end(&self) -> Result<(), Malformed> {
        if self.at < self.record.len() {
            return Err(self.malformed("bytes are left behind the record"));
        }
        Ok(())
    }
}
