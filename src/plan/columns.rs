//! The fields of a recorded stream, as columns. Each field is a candidate for a key.
//!
//! The table has a row per record, columns for up to [`COLUMNS_MAX`] fields of the first records, and one column for all other fields. The
//! cells are hashes. The memory of the table is limited. If the stream is longer than the limit allows, the table has only the start of the
//! stream.

use crate::content::{self, CompareContent};
use crate::format::{Encoding, NoSchemas, RecordFormat, Scalar, compression};
use crate::key::{Field, ValueReader};
use crate::record::Timestamp;
use crate::replay::{Error as ReplayError, Format, Lines, Recorded, parse_rfc3339};
use std::collections::HashMap;
use std::io::BufRead;
use xxhash_rust::xxh3::xxh3_64_with_seed;

/// Maximum number of records in a table. A table of this size with all columns and times takes 70 MB.
const RECORDS_MAX: usize = 200_000;
/// Number of records at the start of the stream whose fields get columns.
const RECORDS_OF_COLUMNS: usize = 1_000;
const COLUMNS_MAX: usize = 32;
/// Maximum number of fields that are tried as the record time.
const TIMES_MAX: usize = 4;
/// Range of numbers that count as times, in milliseconds since the epoch: the years 2000 to 2100.
const TIMES: std::ops::Range<i64> = 946_684_800_000..4_102_444_800_000;
/// The hash of a field that is missing or null.
pub(super) const MISSING: u64 = 0;

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Place {
    RecordKey,
    Header(String),
    Field(String),
    /// All fields without a column of their own and values that are not JSON objects.
    Rest,
}

/// The values of one field in all records, as hashes.
#[derive(Debug)]
pub(super) struct Column {
    pub(super) place: Place,
    pub(super) hashes: Vec<u64>,
    /// Number of records with a time in this field, or 0 if [`TIMES_MAX`] other fields had times earlier.
    times: usize,
}

impl Column {
    pub(super) fn present(&self) -> usize {
        self.hashes.iter().filter(|&&hash| hash != MISSING).count()
    }

    pub(super) fn is_constant(&self) -> bool {
        self.hashes.windows(2).all(|pair| pair[0] == pair[1])
    }

    /// True if the field is a time in at least nine of ten records that have it.
    pub(super) fn is_time(&self) -> bool {
        self.times > 0 && self.times * 10 >= self.present() * 9
    }
}

#[derive(Debug)]
pub(super) struct Columns {
    pub(super) fields: Vec<Column>,
    /// The column for all fields without a column of their own. When all records are read, [`Columns::read`] moves this column to the end
    /// of `fields` and leaves an empty column here.
    rest: Column,
    /// For each record, the stream time of its partition when the record was read.
    pub(super) times: Vec<Option<Timestamp>>,
    partitions: Vec<i32>,
    pub(super) records: usize,
    /// True if the stream has more records than this table.
    pub(super) is_cut: bool,
    /// The field that was chosen as the record time. `None` if the format or the caller determines the time, or if no field is suitable.
    pub(super) time: Option<String>,
    /// The format of the values: JSON, gzip-compressed if the first value is gzip-compressed.
    pub(super) format: Option<RecordFormat>,
}

impl Columns {
    /// Reads the start of `input`. `time` is the field with a record's time, for formats whose lines have no timestamp. Fields that
    /// `compare` leaves out are not part of [`Place::Rest`].
    pub(super) fn read(input: impl BufRead, format: Format, time: Option<&Field>, compare: &CompareContent) -> Result<Self, ReplayError> {
        let mut lines = Lines::new(input);
        let rest = Column { place: Place::Rest, hashes: Vec::new(), times: 0 };
        let mut table = Self {
            fields: Vec::new(),
            rest,
            times: Vec::new(),
            partitions: Vec::new(),
            records: 0,
            is_cut: false,
            time: None,
            format: None,
        };
        let mut found: HashMap<Place, usize> = HashMap::new();
        // The times of each column that has times, by the number of the column.
        let mut read: HashMap<usize, Vec<Option<Timestamp>>> = HashMap::new();
        let mut reader = ValueReader::default();
        loop {
            let fault = match lines.next_line() {
                Ok(None) => break,
                Ok(Some(_)) if table.records == RECORDS_MAX => {
                    table.is_cut = true;
                    break;
                }
                Ok(Some(line)) => match Recorded::parse(format, line, time) {
                    Ok(recorded) => {
                        let (fields, rest) = fields(&recorded, &mut table.format, &mut reader);
                        table.partitions.push(recorded.partition);
                        table.add(recorded.time, fields, rest, compare, &mut found, &mut read);
                        continue;
                    }
                    Err(fault) => fault,
                },
                Err(fault) => fault,
            };
            return Err(ReplayError::Line { line: lines.number(), offset: lines.offset(), fault });
        }
        if format == Format::Ndjson && time.is_none() {
            table.find_time(&read);
        }
        let rest = Column { place: Place::Rest, hashes: Vec::new(), times: 0 };
        table.fields.push(std::mem::replace(&mut table.rest, rest));
        // Compute stream time for each partition, because a sample of a topic can contain its partitions one after another.
        let mut latest: HashMap<i32, Option<Timestamp>> = HashMap::new();
        for (time, partition) in table.times.iter_mut().zip(&table.partitions) {
            let latest = latest.entry(*partition).or_default();
            *latest = (*latest).max(*time);
            *time = *latest;
        }
        Ok(table)
    }

    /// Adds a record with these fields. `rest` is the hash of a value that is not a JSON object, and otherwise [`MISSING`].
    fn add(
        &mut self,
        time: Option<Timestamp>,
        fields: Vec<FieldOfRow>,
        mut rest: u64,
        compare: &CompareContent,
        found: &mut HashMap<Place, usize>,
        read: &mut HashMap<usize, Vec<Option<Timestamp>>>,
    ) {
        let row = self.records;
        self.records += 1;
        self.times.push(time);
        for (place, hash, time) in fields {
            let known = found.get(&place).copied();
            let number = known.or_else(|| {
                let is_new = row < RECORDS_OF_COLUMNS && self.fields.len() < COLUMNS_MAX;
                is_new.then(|| {
                    found.insert(place.clone(), self.fields.len());
                    self.fields.push(Column { place: place.clone(), hashes: vec![MISSING; row], times: 0 });
                    self.fields.len() - 1
                })
            });
            let Some(number) = number else {
                // Add the hashes, because a sum does not depend on the order of the fields.
                if let Place::Field(pointer) = &place
                    && hash != MISSING
                    && !compare.leaves_out(pointer)
                {
                    rest = rest.wrapping_add(xxh3_64_with_seed(pointer.as_bytes(), hash));
                }
                continue;
            };
            let column = &mut self.fields[number];
            column.hashes.resize(row, MISSING);
            column.hashes.push(hash);
            if time.is_some() && (read.len() < TIMES_MAX || read.contains_key(&number)) {
                column.times += 1;
                let times = read.entry(number).or_default();
                times.resize(row, None);
                times.push(time);
            }
        }
        self.rest.hashes.push(rest);
        for column in &mut self.fields {
            column.hashes.resize(row + 1, MISSING);
        }
    }

    /// Chooses the record time: the first field that is nearly always a time and rarely goes back.
    fn find_time(&mut self, read: &HashMap<usize, Vec<Option<Timestamp>>>) {
        let mostly_ascends = |times: &[Option<Timestamp>]| {
            let known: Vec<_> = times.iter().flatten().collect();
            known.windows(2).filter(|pair| pair[0] <= pair[1]).count() * 10 >= known.len().saturating_sub(1) * 9
        };
        let is_suitable =
            |&(number, column): &(usize, &Column)| column.is_time() && read.get(&number).is_some_and(|times| mostly_ascends(times));
        let Some((number, column)) = self.fields.iter().enumerate().find(is_suitable) else { return };
        let Place::Field(pointer) = &column.place else { return };
        self.time = Some(pointer.clone());
        self.times.clone_from(&read[&number]);
        self.times.resize(self.records, None);
    }
}

/// Returns a hash that is never [`MISSING`].
fn hash(kind: u64, bytes: &[u8]) -> u64 {
    xxh3_64_with_seed(bytes, kind).max(1)
}

/// A field of one record: its location, the hash of its value, and the time if the value is a time.
type FieldOfRow = (Place, u64, Option<Timestamp>);

/// Returns the fields of a record. If the value is not a JSON object, also returns the hash of the value.
fn fields(recorded: &Recorded<'_>, format: &mut Option<RecordFormat>, reader: &mut ValueReader) -> (Vec<FieldOfRow>, u64) {
    let mut fields = Vec::new();
    if let Some(key) = recorded.key.as_deref() {
        fields.push((Place::RecordKey, hash(0, key), None));
    }
    for (name, value) in recorded.headers() {
        let value = value.map_or(MISSING, |value| hash(0, value));
        fields.push((Place::Header(name.to_owned()), value, None));
    }
    let Some(value) = recorded.value.as_deref() else { return (fields, MISSING) };
    let mut leaves = Vec::new();
    let format = format.get_or_insert_with(|| {
        let is_gzip = compression(value) == Some("gzip");
        RecordFormat { encodings: is_gzip.then_some(Encoding::Gzip).into_iter().collect(), ..RecordFormat::default() }
    });
    let opened = reader.open(format, Some(value), std::iter::empty(), &NoSchemas);
    let is_object = opened.is_some_and(|mut value| {
        value.leaves(content::DEPTH_MAX, |leaf| {
            let value = leaf.digest.map_or(MISSING, |digest| hash(1, &digest.to_le_bytes()));
            leaves.push((leaf.pointer.to_owned(), value, leaf.scalar.and_then(time)));
        })
    });
    if !is_object {
        return (fields, hash(2, value));
    }
    // If an object has the same name twice, the last value counts.
    leaves.reverse();
    leaves.sort_by(|(one, ..), (other, ..)| one.cmp(other));
    leaves.dedup_by(|(one, ..), (other, ..)| one == other);
    fields.extend(leaves.into_iter().map(|(pointer, value, time)| (Place::Field(pointer), value, time)));
    (fields, MISSING)
}

fn time(value: Scalar<'_>) -> Option<Timestamp> {
    match value {
        Scalar::String(text) if text.len() >= "2000-01-01T00:00:00".len() => parse_rfc3339(str::from_utf8(text).ok()?),
        Scalar::Number(text) => str::from_utf8(text).ok()?.parse().ok().filter(|time| TIMES.contains(time)),
        _ => None,
    }
}
