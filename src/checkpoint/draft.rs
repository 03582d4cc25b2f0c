//! What one checkpoint writes: all of it, or nothing.
//!
//! Owns how much of that is in memory at a time. A small checkpoint is one write batch. A large one is put together in
//! files beside the store, which the store then takes in at once: they are never copied to memory, nor to its log.
//! Must never let a part of a checkpoint be seen.

#[cfg(feature = "faults")]
use super::database::Change;
use crate::fault;
use rocksdb::{BlockBasedOptions, DB, DBCompressionType, Error, IngestExternalFileOptions, Options, SstFileWriter, WriteBatch};
use std::fs;
use std::path::{Path, PathBuf};

/// The bytes of one checkpoint, until they are written. Keys come in their order.
pub(super) enum Draft<'o> {
    Batch(WriteBatch),
    Files(Files<'o>),
    /// For a database in memory.
    #[cfg(feature = "faults")]
    Memory(Vec<Change>),
}

/// Files of a checkpoint, one for each kind of key, so that none spans what it has nothing of. Those that the store
/// has not taken in are deleted.
pub(super) struct Files<'o> {
    dir: PathBuf,
    options: &'o Options,
    finished: Vec<PathBuf>,
    /// The kind of its keys, and the file that is being written.
    open: Option<(u8, SstFileWriter<'o>)>,
    bytes: u64,
}

impl<'o> Draft<'o> {
    /// A draft in memory.
    pub(super) fn in_memory() -> Self {
        Self::Batch(WriteBatch::default())
    }

    /// A draft in files of a directory, which is there and empty, and goes when this does.
    pub(super) fn in_files(dir: PathBuf, options: &'o Options) -> Self {
        Self::Files(Files { dir, options, finished: Vec::new(), open: None, bytes: 0 })
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

    /// Deletes what is stored of a range. It comes before what is put of the same kind of key, which it leaves alone.
    pub(super) fn delete_range(&mut self, (from, to): &(Vec<u8>, Vec<u8>)) -> Result<(), Error> {
        match self {
            Self::Batch(batch) => batch.delete_range(from, to),
            #[cfg(feature = "faults")]
            Self::Memory(changes) => changes.push(Change::DeleteRange(from.clone(), to.clone())),
            Self::Files(files) => files.of_kind_of(from)?.delete_range(from, to)?,
        }
        Ok(())
    }

    /// Nothing comes any more.
    pub(super) fn finish(&mut self) -> Result<(), Error> {
        match self {
            Self::Files(files) => files.finish(),
            Self::Batch(_) => Ok(()),
            #[cfg(feature = "faults")]
            Self::Memory(_) => Ok(()),
        }
    }

    /// Writes all of it. Returns the number of bytes.
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
            Self::Memory(_) => unreachable!("RocksDB takes batches and files"),
        }
    }
}

impl<'o> Files<'o> {
    /// The file that has the keys of the same kind as this one.
    fn of_kind_of(&mut self, key: &[u8]) -> Result<&mut SstFileWriter<'o>, Error> {
        let kind = key.first().copied().unwrap_or_default();
        if self.open.as_ref().is_none_or(|(open, _)| *open != kind) {
            self.finish()?;
            let writer = SstFileWriter::create(self.options);
            writer.open(self.dir.join(format!("{}.sst", self.finished.len())))?;
            self.open = Some((kind, writer));
        }
        // It was made above.
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

impl Drop for Files<'_> {
    fn drop(&mut self) {
        self.open = None;
        if let Err(error) = fs::remove_dir_all(&self.dir) {
            tracing::debug!(dir = %self.dir.display(), error = %error, "files of a checkpoint are left behind until the next start");
        }
    }
}

/// Deletes the drafts that a process left which is no more.
pub(super) fn clean(dir: &Path) -> std::io::Result<()> {
    match fs::remove_dir_all(dir) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// How files of the store are laid out, whether it writes them or takes them in.
pub(super) fn tables() -> BlockBasedOptions {
    let mut tables = BlockBasedOptions::default();
    // Most fingerprints that are looked up are in one generation at most: the others are not to be read for it.
    tables.set_bloom_filter(10.0, false);
    tables
}

/// Options of files that the store takes in.
pub(super) fn options() -> Options {
    let mut options = Options::default();
    options.set_block_based_table_factory(&tables());
    options.set_compression_type(DBCompressionType::Lz4);
    options.set_bytes_per_sync(1 << 20);
    options
}
