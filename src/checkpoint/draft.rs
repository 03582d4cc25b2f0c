//! Writes a checkpoint, either completely or not at all.
//!
//! Limits the memory that a write needs. A small checkpoint is one write batch. A large checkpoint is assembled in files next to the store.
//! RocksDB then ingests the files in one step, without copying them to memory or to its log. A partial checkpoint never becomes visible.

#[cfg(feature = "faults")]
use super::database::Change;
use crate::fault;
use rocksdb::{BlockBasedOptions, DB, DBCompressionType, Error, IngestExternalFileOptions, Options, SstFileWriter, WriteBatch};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

/// Options without a block cache, because a file writer reads nothing.
static OPTIONS: LazyLock<Options> = LazyLock::new(|| {
    let mut options = Options::default();
    let mut tables = tables();
    tables.disable_cache();
    options.set_block_based_table_factory(&tables);
    options.set_compression_type(DBCompressionType::Lz4);
    options.set_bytes_per_sync(1 << 20);
    options
});

/// The entries of one checkpoint before they are written. Keys must be added in order.
pub(super) enum Draft {
    Batch(WriteBatch),
    Files(Files),
    #[cfg(feature = "faults")]
    Memory(Vec<Change>),
}

/// The files of a checkpoint. All keys in a file are of the same kind (the first byte of a key). The key range of a file with several kinds
/// would include keys of other partitions, so `Database::drop_files` could never delete the file. Files that RocksDB has not ingested are
/// deleted when this value is dropped.
pub(super) struct Files {
    dir: PathBuf,
    finished: Vec<PathBuf>,
    /// The file that is being written, and the kind of its keys.
    open: Option<(u8, SstFileWriter<'static>)>,
    bytes: u64,
}

impl Draft {
    pub(super) fn in_memory() -> Self {
        Self::Batch(WriteBatch::default())
    }

    /// Creates a draft in files. `dir` must be empty. Dropping the draft deletes `dir`.
    pub(super) fn in_files(dir: PathBuf) -> Self {
        Self::Files(Files { dir, finished: Vec::new(), open: None, bytes: 0 })
    }

    pub(super) fn put(&mut self, key: &[u8], value: &[u8]) -> Result<(), Error> {
        match self {
            Self::Batch(batch) => batch.put(key, value),
            #[cfg(feature = "faults")]
            Self::Memory(changes) => changes.push(Change::Put(key.to_vec(), value.to_vec())),
            Self::Files(files) => files.of_kind_of(key)?.put(key, value)?,
        }
        Ok(())
    }

    pub(super) fn delete(&mut self, key: &[u8]) -> Result<(), Error> {
        match self {
            Self::Batch(batch) => batch.delete(key),
            #[cfg(feature = "faults")]
            Self::Memory(changes) => changes.push(Change::Delete(key.to_vec())),
            Self::Files(files) => files.of_kind_of(key)?.delete(key)?,
        }
        Ok(())
    }

    /// Deletes the stored entries of a range. Must be called before any entry of the same kind is added. Entries added later are kept.
    pub(super) fn delete_range(&mut self, (from, to): &(Vec<u8>, Vec<u8>)) -> Result<(), Error> {
        match self {
            Self::Batch(batch) => batch.delete_range(from, to),
            #[cfg(feature = "faults")]
            Self::Memory(changes) => changes.push(Change::DeleteRange(from.clone(), to.clone())),
            Self::Files(files) => files.of_kind_of(from)?.delete_range(from, to)?,
        }
        Ok(())
    }

    /// Finishes the last file. Must be called after the last entry, before [`Self::write`].
    pub(super) fn finish(&mut self) -> Result<(), Error> {
        match self {
            Self::Files(files) => files.finish(),
            Self::Batch(_) => Ok(()),
            #[cfg(feature = "faults")]
            Self::Memory(_) => Ok(()),
        }
    }

    pub(super) fn write(self, db: &DB) -> Result<u64, Error> {
        match self {
            Self::Batch(batch) => {
                let bytes = batch.size_in_bytes() as u64;
                db.write(batch).map(|()| bytes)
            }
            Self::Files(files) => {
                let mut how = IngestExternalFileOptions::default();
                how.set_move_files(true);
                db.ingest_external_file_opts(&how, files.finished.clone()).map(|()| files.bytes)
            }
            #[cfg(feature = "faults")]
            Self::Memory(_) => unreachable!("RocksDB only gets batches and files"),
        }
    }
}

impl Files {
    /// Returns the open file if it is for keys of the same kind as `key`. Otherwise, finishes the open file and opens the next one.
    fn of_kind_of(&mut self, key: &[u8]) -> Result<&mut SstFileWriter<'static>, Error> {
        let kind = key.first().copied().unwrap_or_default();
        if self.open.as_ref().is_none_or(|(open, _)| *open != kind) {
            self.finish()?;
            let writer = SstFileWriter::create(&OPTIONS);
            writer.open(self.dir.join(format!("{}.sst", self.finished.len())))?;
            self.open = Some((kind, writer));
        }
        self.open.as_mut().map(|(_, writer)| writer).ok_or_else(|| unreachable!("a file is open"))
    }

    fn finish(&mut self) -> Result<(), Error> {
        if let Some((_, mut writer)) = self.open.take() {
            writer.finish()?;
            self.bytes += writer.file_size();
            self.finished.push(self.dir.join(format!("{}.sst", self.finished.len())));
            fault::point("checkpoint.file");
        }
        Ok(())
    }
}

impl Drop for Files {
    fn drop(&mut self) {
        self.open = None;
        if let Err(error) = fs::remove_dir_all(&self.dir) {
            tracing::debug!(dir = %self.dir.display(), error = %error, "cannot delete the files of a checkpoint; the next start deletes them");
        }
    }
}

/// Deletes the drafts that an earlier process left behind. Does nothing if `dir` does not exist.
pub(super) fn clean(dir: &Path) -> std::io::Result<()> {
    match fs::remove_dir_all(dir) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

pub(super) fn tables() -> BlockBasedOptions {
    let mut tables = BlockBasedOptions::default();
    // Most looked-up fingerprints are in at most one generation. The Bloom filter avoids reading the other generations.
    tables.set_bloom_filter(10.0, false);
    tables
}
