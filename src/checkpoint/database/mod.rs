//! The key-value database of a store: RocksDB or, in simulations, an in-memory map with the same behavior.

#[cfg(feature = "faults")]
mod memory;

#[cfg(feature = "faults")]
pub(super) use memory::Change;
#[cfg(feature = "faults")]
pub use memory::MemoryDisk;

use super::decode::content;
use super::draft::Draft;
use super::options::options;
use rocksdb::{DB, Direction, ErrorKind, IteratorMode, ReadOptions};
use std::path::Path;

#[derive(Debug)]
pub(super) struct DatabaseError {
    pub(super) message: String,
    pub(super) is_corruption: bool,
}

impl From<rocksdb::Error> for DatabaseError {
    fn from(error: rocksdb::Error) -> Self {
        Self { message: error.to_string(), is_corruption: error.kind() == ErrorKind::Corruption }
    }
}

type Entry = (Box<[u8]>, Box<[u8]>);

#[derive(Debug)]
pub(super) enum Database {
    RocksDb(DB),
    #[cfg(feature = "faults")]
    Memory(memory::Handle),
}

impl Database {
    pub(super) fn open(dir: &Path) -> Result<Self, DatabaseError> {
        Ok(Self::RocksDb(DB::open(&options(), dir)?))
    }

    pub(super) fn open_for_read_only(dir: &Path) -> Result<Self, DatabaseError> {
        Ok(Self::RocksDb(DB::open_for_read_only(&options(), dir, false)?))
    }

    pub(super) fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, DatabaseError> {
        match self {
            Self::RocksDb(db) => Ok(db.get(key)?),
            #[cfg(feature = "faults")]
            Self::Memory(memory) => memory.get(key),
        }
    }

    /// Returns the content of a stored fingerprint, 0 if contents are not stored, or `None` if the fingerprint is not stored.
    pub(super) fn content(&self, key: &[u8]) -> Result<Option<u64>, DatabaseError> {
        let invalid = || DatabaseError { message: "Corruption: a fingerprint has invalid content".to_owned(), is_corruption: true };
        match self {
            Self::RocksDb(db) => db.get_pinned(key)?.map(|value| content(&value).ok_or_else(invalid)).transpose(),
            #[cfg(feature = "faults")]
            Self::Memory(memory) => memory.get(key)?.map(|value| content(&value).ok_or_else(invalid)).transpose(),
        }
    }

    pub(super) fn put(&self, key: &[u8], value: &[u8]) -> Result<(), DatabaseError> {
        match self {
            Self::RocksDb(db) => Ok(db.put(key, value)?),
            #[cfg(feature = "faults")]
            Self::Memory(memory) => memory.put(key, value),
        }
    }

    /// Iterates over the entries from `from` (inclusive) to `to` (exclusive), in order.
    pub(super) fn range<'d>(&'d self, from: &[u8], to: Option<Vec<u8>>) -> Box<dyn Iterator<Item = Result<Entry, DatabaseError>> + 'd> {
        match self {
            Self::RocksDb(db) => {
                let mut options = ReadOptions::default();
                if let Some(to) = to {
                    options.set_iterate_upper_bound(to);
                }
                let entries = db.iterator_opt(IteratorMode::From(from, Direction::Forward), options);
                Box::new(entries.map(|entry| entry.map_err(DatabaseError::from)))
            }
            #[cfg(feature = "faults")]
            Self::Memory(memory) => Box::new(memory.range(from, to.as_deref()).into_iter()),
        }
    }

    /// Writes a draft atomically. Returns the number of bytes written.
    pub(super) fn write(&self, draft: Draft) -> Result<u64, DatabaseError> {
        match (self, draft) {
            (Self::RocksDb(db), draft) => Ok(draft.write(db)?),
            #[cfg(feature = "faults")]
            (Self::Memory(memory), Draft::Memory(changes)) => memory.write(changes),
            #[cfg(feature = "faults")]
            (Self::Memory(_), _) => unreachable!("an in-memory database only gets in-memory drafts"),
        }
    }

    /// Deletes the files that lie completely within these ranges. Syncs earlier writes first, because a power failure must not undo the
    /// write that made these files obsolete.
    pub(super) fn drop_files(&self, ranges: &[&(Vec<u8>, Vec<u8>)]) -> Result<(), DatabaseError> {
        match self {
            Self::RocksDb(_) if ranges.is_empty() => Ok(()),
            Self::RocksDb(db) => {
                db.flush_wal(true)?;
                Ok(ranges.iter().try_for_each(|(from, to)| db.delete_file_in_range(from, to))?)
            }
            #[cfg(feature = "faults")]
            Self::Memory(_) => Ok(()),
        }
    }
}
