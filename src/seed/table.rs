//! Reads keys from CSV. The first line contains the column names.

use super::error::{Error, Fault};
use crate::key::{KeySpec, Part};
use csv::{ByteRecord, Reader, ReaderBuilder};
use std::cell::Cell;
use std::io::{self, Read};
use std::rc::Rc;

/// Maximum number of bytes read for one row. Bytes that were read ahead with the previous row do not count.
const ROW_BYTES_MAX: u64 = 1 << 20;

pub(super) struct Table<R> {
    reader: Reader<Bounded<R>>,
    left: Rc<Cell<u64>>,
    row: ByteRecord,
    pub(super) columns: Columns,
}

#[derive(Debug, PartialEq, Eq)]
pub(super) struct Columns {
    parts: Vec<usize>,
    pub(super) time: Option<usize>,
    pub(super) record_key: Option<usize>,
}

/// Limits the bytes read for one row, because a row with an unclosed quote extends to the end of the file.
struct Bounded<R> {
    input: R,
    left: Rc<Cell<u64>>,
}

impl<R: Read> Read for Bounded<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.left.get() == 0 {
            return Err(io::Error::other(format!(
                "expected at most {ROW_BYTES_MAX} bytes in a row, got more; check for an unclosed quote"
            )));
        }
        let read = self.input.read(buffer)?;
        self.left.set(self.left.get().saturating_sub(read as u64));
        Ok(read)
    }
}

impl<R: Read> Table<R> {
    /// Opens a table and finds the columns of the key's parts in its first line. `time` and `record_key` are the names of additional
    /// columns.
    pub(super) fn new(input: R, key: &KeySpec, time: Option<&str>, record_key: Option<&str>) -> Result<Self, Error> {
        let left = Rc::new(Cell::new(ROW_BYTES_MAX));
        let mut reader = ReaderBuilder::new().from_reader(Bounded { input, left: Rc::clone(&left) });
        let header = reader.byte_headers().map_err(|error| Error::Line { line: 1, fault: fault(&error) })?;
        let columns = Columns::new(header, key, time, record_key)?;
        Ok(Self { reader, left, row: ByteRecord::new(), columns })
    }

    /// Reads the next row. Returns the number of its first line, or `None` at the end of the table.
    pub(super) fn next_row(&mut self) -> Result<Option<u64>, Error> {
        self.left.set(ROW_BYTES_MAX);
        let line = self.reader.position().line();
        match self.reader.read_byte_record(&mut self.row) {
            Ok(true) => Ok(Some(self.row.position().map_or(line, csv::Position::line))),
            Ok(false) => Ok(None),
            Err(error) => Err(Error::Line { line: error.position().map_or(line, csv::Position::line), fault: fault(&error) }),
        }
    }

    pub(super) const fn row(&self) -> &ByteRecord {
        &self.row
    }
}

fn fault(error: &csv::Error) -> Fault {
    Fault::Table(match error.kind() {
        csv::ErrorKind::UnequalLengths { expected_len, len, .. } => {
            format!("expected {expected_len} columns, as in the first line, got {len}")
        }
        csv::ErrorKind::Io(error) => error.to_string(),
        _ => error.to_string(),
    })
}

impl Columns {
    fn new(header: &ByteRecord, key: &KeySpec, time: Option<&str>, record_key: Option<&str>) -> Result<Self, Error> {
        let find = |name: &str| header.iter().position(|column| column == name.as_bytes());
        let there = || header.iter().map(|column| format!("{:?}", String::from_utf8_lossy(column))).collect::<Vec<_>>().join(", ");
        let named = |option: &str, name: &str| {
            find(name).ok_or_else(|| Error::Options(format!("{option}: the table has no column {name:?}; its columns are {}", there())))
        };
        let part = |part: &Part| {
            let name = name(part);
            let found = find(name).or_else(|| find(name.strip_prefix('/')?));
            found.ok_or_else(|| {
                let name = name.strip_prefix('/').unwrap_or(name);
                Error::Options(format!("the first line has no column {name:?} for {part}; its columns are {}", there()))
            })
        };
        let parts = key.parts().iter().map(part).collect::<Result<Vec<_>, _>>()?;
        let of_key = || key.parts().iter().position(|part| *part == Part::RecordKey).map(|at| parts[at]);
        Ok(Self {
            time: time.map_or(Ok(find("time")), |name| named("--time", name).map(Some))?,
            record_key: record_key.map_or_else(|| Ok(of_key()), |name| named("--record-key", name).map(Some))?,
            parts,
        })
    }

    pub(super) fn texts<'r>(&'r self, row: &'r ByteRecord) -> impl ExactSizeIterator<Item = &'r [u8]> + Clone {
        self.parts.iter().map(|&at| row.get(at).unwrap_or_default())
    }
}

/// Returns the name of a part's column. The name in the table can omit the slash at the start of a JSON pointer. A part with alternatives
/// has one column, named after the first alternative.
fn name(part: &Part) -> &str {
    match part {
        Part::RecordKey => "key",
        Part::RecordValue => "value",
        Part::Content { .. } => "content",
        Part::Header(name) | Part::HeaderInAnyCase(name) | Part::CloudEvent(name) | Part::Field(name) | Part::KeyField(name) => name,
        Part::Optional(part) | Part::Normalized(part, _) => name(part),
        Part::Embedded(_, field) => field.pointer(),
        Part::FirstOf(parts) => parts.first().map_or("", name),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key() -> KeySpec {
        KeySpec::new(vec![Part::RecordKey, Part::Field("/user/id".to_owned()), Part::Header("tenant".to_owned())]).unwrap()
    }

    fn table(text: &str) -> Result<Vec<(u64, Vec<String>)>, String> {
        let mut table = Table::new(text.as_bytes(), &key(), None, None).map_err(|error| error.to_string())?;
        let mut rows = Vec::new();
        while let Some(line) = table.next_row().map_err(|error| error.to_string())? {
            let texts = table.columns.texts(table.row()).map(|text| String::from_utf8_lossy(text).into_owned()).collect();
            rows.push((line, texts));
        }
        Ok(rows)
    }

    #[test]
    fn columns_are_found_by_their_names() {
        let rows = table("tenant,time,user/id,key\nt,1,u,\"a,\"\"b\"\"\nc\"\r\nt2,2,u2,k2\n").unwrap();
        assert_eq!(
            rows,
            [
                (2, vec!["a,\"b\"\nc".to_owned(), "u".to_owned(), "t".to_owned()]),
                (3, vec!["k2".to_owned(), "u2".to_owned(), "t2".to_owned()])
            ]
        );
        assert_eq!(
            table("tenant,key\n").unwrap_err(),
            "the first line has no column \"user/id\" for field `/user/id`; its columns are \"tenant\", \"key\""
        );
        let wrong = Table::new(&b"tenant,key,/user/id\n"[..], &key(), Some("when"), None).err().unwrap().to_string();
        assert_eq!(wrong, "--time: the table has no column \"when\"; its columns are \"tenant\", \"key\", \"/user/id\"");
    }

    #[test]
    fn invalid_rows_are_reported_with_their_line() {
        assert_eq!(table("tenant,/user/id,key\na,b,c\na,b\n").unwrap_err(), "line 3: expected 3 columns, as in the first line, got 2");
        let open = format!("tenant,/user/id,key\na,b,\"{}", "x".repeat(3_000_000));
        assert_eq!(table(&open).unwrap_err(), "line 2: expected at most 1048576 bytes in a row, got more; check for an unclosed quote");
    }
}
