//! Runs a compiled program on a record.
//!
//! Never allocates. For a given program, the running time is at most proportional to the size of the record plus [`IDLE_MAX`].

use super::cursor::{Block, Cursor};
use super::{Entry, Kind, Op};
use crate::format::{DEPTH_MAX, Malformed, Scalar};

/// Maximum number of values without bytes in a record, such as nulls in an array. Without this limit, a few bytes could declare any number
/// of such values.
pub(super) const IDLE_MAX: usize = 1 << 16;

const UUID_SIZE: usize = 16;

const NEGATIVE: u8 = 0x80;

pub(super) fn walk<'a>(root: &'a Op, records: &'a [Vec<Op>], record: &'a [u8], found: &mut [Option<Scalar<'a>>]) -> Result<(), Malformed> {
    let mut walker = Walker { records, cursor: Cursor::new(record), idle: IDLE_MAX, found };
    walker.walk(root, 0)?;
    walker.cursor.end()
}

struct Walker<'a, 'f> {
    records: &'a [Vec<Op>],
    cursor: Cursor<'a>,
    /// Number of values without bytes that may still follow before the record is rejected.
    idle: usize,
    found: &'f mut [Option<Scalar<'a>>],
}

impl<'a> Walker<'a, '_> {
    fn walk(&mut self, op: &'a Op, depth: usize) -> Result<(), Malformed> {
        match op {
            Op::Fixed(size) => self.fixed(*size).map(|_| ())?,
            Op::Boolean => self.cursor.boolean().map(|_| ())?,
            Op::Int => self.cursor.int().map(|_| ())?,
            Op::Long => self.cursor.long().map(|_| ())?,
            Op::Sized => self.cursor.sized("the record ends within a string or bytes").map(|_| ())?,
            Op::Index(symbols) => self.cursor.index(*symbols, "an enum has no symbol with this index").map(|_| ())?,
            Op::Union(branches) => {
                let branch = self.cursor.index(branches.len(), "a union has no branch with this index")?;
                self.walk(&branches[branch], depth)?;
            }
            Op::Record(number) => {
                let (start, depth) = (self.cursor.at(), self.deeper(depth)?);
                for field in &self.records[*number] {
                    self.walk(field, depth)?;
                }
                self.busy(start)?;
            }
            Op::Array { items, wanted } => {
                let depth = self.deeper(depth)?;
                self.array(items, wanted, depth)?;
            }
            Op::Map { values, wanted } => {
                let depth = self.deeper(depth)?;
                self.map(values, wanted, depth)?;
            }
            Op::Take { kind, slots } => {
                let value = self.value(kind)?;
                for &slot in slots {
                    self.found[slot] = Some(value);
                }
            }
            Op::Twice(both) => {
                let start = self.cursor.at();
                self.walk(&both[0], depth)?;
                self.cursor.rewind(start);
                self.walk(&both[1], depth)?;
            }
            Op::Refuse(what) => return Err(self.cursor.malformed(what)),
        }
        Ok(())
    }

    fn deeper(&self, depth: usize) -> Result<usize, Malformed> {
        if depth == DEPTH_MAX {
            return Err(self.cursor.malformed("more than 64 containers are nested"));
        }
        Ok(depth + 1)
    }

    /// Counts the value between `start` and the current position if it has no bytes.
    fn busy(&mut self, start: usize) -> Result<(), Malformed> {
        if self.cursor.at() == start { self.idle(1) } else { Ok(()) }
    }

    fn element(&mut self, op: &'a Op, depth: usize) -> Result<(), Malformed> {
        let start = self.cursor.at();
        self.walk(op, depth)?;
        self.busy(start)
    }

    fn idle(&mut self, count: usize) -> Result<(), Malformed> {
        let left = self.idle.checked_sub(count);
        self.idle = left.ok_or_else(|| self.cursor.malformed("more than 65536 values have no bytes"))?;
        Ok(())
    }

    fn array(&mut self, items: &'a Op, wanted: &'a [(usize, Op)], depth: usize) -> Result<(), Malformed> {
        let mut first = 0_usize;
        while let Some(block) = self.cursor.block()? {
            let too_many = || self.cursor.malformed("an array has too many elements");
            let next = first.checked_add(block.count).ok_or_else(too_many)?;
            if wanted.iter().any(|(index, _)| (first..next).contains(index)) {
                for index in first..next {
                    let op = wanted.iter().find(|(at, _)| *at == index).map_or(items, |(_, op)| op);
                    self.element(op, depth)?;
                }
                self.cursor.end_block(block)?;
            } else {
                self.skip(items, block, depth)?;
            }
            first = next;
        }
        Ok(())
    }

    /// Skips the elements of a block, if possible without reading each of them.
    fn skip(&mut self, items: &'a Op, block: Block, depth: usize) -> Result<(), Malformed> {
        if self.cursor.skip(block)? {
            return Ok(());
        }
        match items {
            Op::Fixed(0) => self.idle(block.count),
            Op::Fixed(size) => {
                // A size that overflows is larger than the record.
                let size = size.saturating_mul(block.count);
                self.cursor.take(size, "the record ends within an array").map(|_| ())
            }
            _ => (0..block.count).try_for_each(|_| self.element(items, depth)),
        }
    }

    fn map(&mut self, values: &'a Op, wanted: &'a [Entry], depth: usize) -> Result<(), Malformed> {
        while let Some(block) = self.cursor.block()? {
            if wanted.is_empty() && self.cursor.skip(block)? {
                continue;
            }
            for _ in 0..block.count {
                let key = self.cursor.sized("the record ends within the key of a map")?;
                match wanted.iter().find(|entry| entry.key.as_bytes() == key) {
                    Some(entry) => {
                        entry.node.forget(self.found);
                        self.walk(&entry.op, depth)?;
                    }
                    None => self.walk(values, depth)?,
                }
            }
            self.cursor.end_block(block)?;
        }
        Ok(())
    }

    fn value(&mut self, kind: &'a Kind) -> Result<Scalar<'a>, Malformed> {
        match kind {
            Kind::Enum(symbols) => {
                let index = self.cursor.index(symbols.len(), "an enum has no symbol with this index")?;
                Ok(Scalar::String(symbols[index].as_bytes()))
            }
            kind => scalar(&mut self.cursor, kind),
        }
    }

    fn fixed(&mut self, size: usize) -> Result<&'a [u8], Malformed> {
        fixed(&mut self.cursor, size)
    }
}

/// Reads a value that is not an enum.
#[inline]
pub(super) fn scalar<'a>(cursor: &mut Cursor<'a>, kind: &Kind) -> Result<Scalar<'a>, Malformed> {
    Ok(match kind {
        Kind::Null => Scalar::Null,
        Kind::Boolean => Scalar::bool(cursor.boolean()?),
        Kind::Int => Scalar::Integer(cursor.int()?.into()),
        Kind::Long => Scalar::Integer(cursor.long()?.into()),
        Kind::Text => {
            let offset = cursor.at();
            let text = cursor.sized("the record ends within a string")?;
            str::from_utf8(text).map_err(|_| Malformed { offset, what: "a string is not UTF-8" })?;
            Scalar::String(text)
        }
        Kind::Bytes => Scalar::String(cursor.sized("the record ends within bytes")?),
        Kind::Fixed(size) => Scalar::String(fixed(cursor, *size)?),
        Kind::Uuid => {
            let mut id = [0; UUID_SIZE];
            id.copy_from_slice(fixed(cursor, UUID_SIZE)?);
            Scalar::Uuid(id)
        }
        // Callers handle enums, because symbols are borrowed from the schema.
        Kind::Enum(_) => return Err(cursor.malformed("an enum is not expected here")),
        Kind::Decimal { size, scale } => {
            let offset = cursor.at();
            let digits = match size {
                Some(size) => fixed(cursor, *size)?,
                None => cursor.sized("the record ends within a decimal")?,
            };
            let what = "a decimal has more than 128 bits";
            Scalar::Decimal { unscaled: number(digits).ok_or(Malformed { offset, what })?, scale: *scale }
        }
    })
}

fn fixed<'a>(cursor: &mut Cursor<'a>, size: usize) -> Result<&'a [u8], Malformed> {
    cursor.take(size, "the record ends within a value of a fixed size")
}

/// Decodes a big-endian number in two's complement. No bytes mean 0. Returns `None` if the number needs more than 128 bits.
fn number(bytes: &[u8]) -> Option<i128> {
    let is_negative = bytes.first().is_some_and(|byte| byte & NEGATIVE != 0);
    let extension = if is_negative { 0xff } else { 0 };
    let (extra, digits) = bytes.split_at(bytes.len().saturating_sub(size_of::<i128>()));
    let mut number = [extension; size_of::<i128>()];
    number[size_of::<i128>() - digits.len()..].copy_from_slice(digits);
    let is_extended = extra.iter().all(|&byte| byte == extension);
    let number = i128::from_be_bytes(number);
    (is_extended && (number < 0) == is_negative).then_some(number)
}
