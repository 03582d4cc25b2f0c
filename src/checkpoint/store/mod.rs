//! The RocksDB store of a state directory.
//!
//! Keeps the database open and moves it aside if it is corrupt. A lookup for a state that was in the corrupt database fails. It never reads
//! the empty database that replaced the corrupt database.

mod claim;
mod instance;
mod loaded;
mod save;

use claim::Claims;

pub use claim::Claim;
pub use loaded::Loaded;

use super::codec::{all_pages, fingerprint_key, fingerprints_of, metadata_key, partition_of};
#[cfg(feature = "faults")]
use super::database::MemoryDisk;
use super::database::{Database, DatabaseError};
use super::decode::{self, Decoder};
use super::draft;
use super::{CheckpointMetadata, Error, PartitionId, Settings};
use crate::dedup::Rules;
use crate::fault;
use crate::filter::GenerationId;
use crate::key::Fingerprint;
use crate::runtime;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicU64;
use std::sync::{Mutex, OnceLock, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard, TryLockError};
use std::{fs, io};

const FORMAT: &str = "7";
const FORMAT_KEY: &[u8] = b"format";

/// Maximum size of a checkpoint that is written as one batch. Larger checkpoints are assembled in files.
const BATCH_BYTES: u64 = 8 << 20;
/// The estimated size in bytes of a changed fingerprint in a batch, including the id of its partition.
const CHANGE_BYTES: u64 = 64;

/// The checkpoints of all partitions of this process, shared by its workers.
#[derive(Debug)]
pub struct Store {
    dir: PathBuf,
    open: RwLock<Opened>,
    claims: Mutex<Claims>,
    /// The number of checkpoints that were assembled in files. Also the name of the next draft's directory.
    drafts: AtomicU64,
    batch_bytes: u64,
    instance: OnceLock<String>,
    #[cfg(feature = "faults")]
    memory: Option<MemoryDisk>,
}

#[derive(Debug, Default)]
struct Opened {
    /// `None` if the database could not be opened.
    db: Option<Database>,
    /// True if a write has failed. The database can still be read but must be reopened before the next write.
    failed: bool,
    /// The number of quarantines. Each quarantine replaces the database with an empty one.
    epoch: u64,
    /// The device and inode of the open directory, to detect that the directory was deleted or replaced.
    place: Option<(u64, u64)>,
}

/// Proof that a partition's state was stored in this epoch of the store. Each quarantine starts a new epoch. Within an epoch, the next
/// checkpoint only has to write the changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Saved {
    epoch: u64,
}

fn place(dir: &Path) -> Option<(u64, u64)> {
    fs::metadata(dir).ok().map(|found| (found.dev(), found.ino()))
}

impl Store {
    /// Opens the directory and creates it if it is missing. Quarantines a corrupt store.
    ///
    /// # Errors
    /// Returns an error if the directory cannot be read or written, is in use, or has a different format.
    pub fn open(dir: &Path) -> Result<Self, Error> {
        create_dir(dir).map_err(|error| Error::Io { dir: dir.to_owned(), error })?;
        Self::new(dir).with_db()
    }

    /// Opens the disk of a simulated process.
    ///
    /// # Errors
    /// See [`Store::open`].
    #[cfg(feature = "faults")]
    pub fn open_in_memory(disk: &MemoryDisk) -> Result<Self, Error> {
        Self { memory: Some(disk.clone()), batch_bytes: u64::MAX, ..Self::new(Path::new("memory")) }.with_db()
    }

    fn with_db(self) -> Result<Self, Error> {
        let db = match self.open_db() {
            Err(Error::Corrupt { what, .. }) => {
                self.move_away(&what)?;
                self.open_db()
            }
            opened => opened,
        }?;
        let mut open = self.opened_mut();
        (open.db, open.place) = (Some(db), self.place());
        drop(open);
        Ok(self)
    }

    /// Opens the directory read-only. This also works while a worker uses the directory, but later writes of the worker are not visible.
    ///
    /// # Errors
    /// Returns an error if the directory contains no state or cannot be read.
    pub fn open_to_read(dir: &Path) -> Result<Self, Error> {
        let store = Self::new(dir);
        let what = if dir.is_dir() { "the directory contains no state" } else { "the directory does not exist" };
        let missing = io::Error::new(io::ErrorKind::NotFound, what);
        if !store.checkpoints().is_dir() {
            return Err(Error::Io { dir: dir.to_owned(), error: missing });
        }
        let db = Database::open_for_read_only(&store.checkpoints()).map_err(|error| store.error(&error))?;
        store.check_format(&db)?;
        store.opened_mut().db = Some(db);
        Ok(store)
    }

    fn new(dir: &Path) -> Self {
        let (open, drafts, instance) = (RwLock::default(), AtomicU64::new(0), OnceLock::new());
        Self {
            dir: dir.to_owned(),
            open,
            claims: Mutex::default(),
            drafts,
            batch_bytes: BATCH_BYTES,
            instance,
            #[cfg(feature = "faults")]
            memory: None,
        }
    }

    #[must_use]
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// The device and inode of the `checkpoints` directory, or `None` if it does not exist.
    fn place(&self) -> Option<(u64, u64)> {
        #[cfg(feature = "faults")]
        if let Some(disk) = &self.memory {
            return disk.number().map(|number| (0, number));
        }
        place(&self.checkpoints())
    }

    fn checkpoints(&self) -> PathBuf {
        self.dir.join("checkpoints")
    }

    fn drafts(&self) -> PathBuf {
        self.dir.join("drafts")
    }

    fn open_db(&self) -> Result<Database, Error> {
        #[cfg(feature = "faults")]
        if let Some(disk) = &self.memory {
            let db = disk.open().map(Database::Memory).map_err(|error| self.error(&error))?;
            return self.with_format(db);
        }
        let db = Database::open(&self.checkpoints()).map_err(|error| self.error(&error))?;
        draft::clean(&self.drafts()).map_err(|error| Error::Io { dir: self.dir.clone(), error })?;
        self.with_format(db)
    }

    fn with_format(&self, db: Database) -> Result<Database, Error> {
        if !self.check_format(&db)? {
            db.put(FORMAT_KEY, FORMAT.as_bytes()).map_err(|error| self.error(&error))?;
        }
        Ok(db)
    }

    /// Checks that the format can be read. Returns false if the database is new. A caller that writes to the database must then write the
    /// format version before anything else.
    fn check_format(&self, db: &Database) -> Result<bool, Error> {
        match db.get(FORMAT_KEY).map_err(|error| self.error(&error))? {
            None => Ok(false),
            Some(found) if found == FORMAT.as_bytes() => Ok(true),
            Some(found) => {
                let got = String::from_utf8_lossy(&found).into_owned();
                Err(Error::Format { dir: self.dir.clone(), expected: FORMAT.to_owned(), got })
            }
        }
    }

    fn error(&self, error: &DatabaseError) -> Error {
        let message = error.message.clone();
        let dir = self.dir.clone();
        // RocksDB has no separate error kinds for a held lock and a missing file, so only the message shows them.
        if message.contains("lock") && message.contains("Resource temporarily unavailable") || message.contains("No locks available") {
            Error::InUse(dir)
        } else if error.is_corruption || message.contains("No such file or directory") {
            Error::Corrupt { dir, what: message }
        } else {
            Error::Store { dir, message }
        }
    }

    fn move_away(&self, what: &str) -> Result<(), Error> {
        #[cfg(feature = "faults")]
        if let Some(disk) = &self.memory {
            let _ = what;
            if !disk.move_aside() {
                self.instance.get().filter(|_| disk.instance().is_none()).into_iter().for_each(|id| disk.set_instance(id));
            }
            return Ok(());
        }
        if !self.checkpoints().exists() {
            tracing::error!(dir = %self.dir.display(), "the state directory was deleted while in use; recreating it. The next checkpoints store complete states, and partitions with an exact store are restored");
            create_dir(&self.dir).map_err(|error| Error::Io { dir: self.dir.clone(), error })?;
            return self.instance.get().filter(|_| !self.dir.join("instance").exists()).map_or(Ok(()), |id| self.write_instance_id(id));
        }
        let now = runtime::wall_clock();
        let aside = self.dir.join(format!("checkpoints.corrupt-{now}"));
        fs::rename(self.checkpoints(), &aside).map_err(|error| Error::Io { dir: self.dir.clone(), error })?;
        tracing::error!(reason = what, quarantined = %aside.display(), "the stored state is corrupt or was replaced; the worker moved it aside and creates an empty store. Later checkpoints contain the states that are in memory, and other partitions are restored");
        Ok(())
    }

    /// Moves the store aside for manual inspection and creates an empty one.
    ///
    /// # Errors
    /// Returns an error if the directory cannot be written.
    pub fn quarantine(&self, what: &str) -> Result<(), Error> {
        let epoch = self.opened().epoch;
        self.quarantine_in(epoch, what)
    }

    /// Quarantines the store, unless it was already replaced since `epoch`.
    fn quarantine_in(&self, epoch: u64, what: &str) -> Result<(), Error> {
        let mut open = self.opened_mut();
        if open.epoch != epoch {
            return Ok(());
        }
        open.db = None;
        open.failed = false;
        open.epoch += 1;
        self.move_away(what)?;
        open.place = None;
        fault::point("quarantine.moved");
        open.db = Some(self.open_db()?);
        open.place = self.place();
        fault::point("quarantine.opened");
        Ok(())
    }

    fn opened(&self) -> RwLockReadGuard<'_, Opened> {
        runtime::yield_until(|| !matches!(self.open.try_read(), Err(TryLockError::WouldBlock)));
        self.open.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn opened_mut(&self) -> RwLockWriteGuard<'_, Opened> {
        runtime::yield_until(|| !matches!(self.open.try_write(), Err(TryLockError::WouldBlock)));
        self.open.write().unwrap_or_else(PoisonError::into_inner)
    }

    #[must_use]
    pub fn epoch(&self) -> u64 {
        self.opened().epoch
    }

    /// True if the store still contains the saved state. A quarantine removes all saved states from the store.
    #[must_use]
    pub fn holds(&self, saved: Saved) -> bool {
        self.opened().epoch == saved.epoch
    }

    /// Returns the content of a fingerprint in a stored generation, 0 if contents are not stored, or `None` if the fingerprint is not
    /// stored. Fails if the store no longer holds `saved` ([`Store::holds`]).
    ///
    /// If the entry is corrupt, quarantines the store. Restoring the partition from the same store would not help, because loading a
    /// checkpoint reads no fingerprints and does not notice the corruption.
    pub(super) fn stored_content(
        &self,
        id: &PartitionId,
        saved: Saved,
        generation: GenerationId,
        entry: Fingerprint,
    ) -> Result<Option<u64>, Error> {
        self.reopen(false)?;
        let open = self.opened();
        let Some(db) = open.db.as_ref().filter(|_| open.epoch == saved.epoch) else {
            return Err(Error::Lost { dir: self.dir.clone(), id: id.clone() });
        };
        let found = db.content(&fingerprint_key(id, generation, entry));
        drop(open);
        let failed = match found {
            Ok(found) => return Ok(found),
            Err(error) => self.error(&error),
        };
        if let Error::Corrupt { what, .. } = &failed {
            self.quarantine_in(saved.epoch, what)?;
        }
        Err(failed)
    }

    /// Calls `take` with each stored page of a partition, in order. The bytes include the checksum.
    pub(super) fn each_page(&self, id: &PartitionId, take: &mut dyn FnMut(&[u8])) -> Result<(), Error> {
        let open = self.opened();
        let Some(db) = &open.db else { return Ok(()) };
        let (from, to) = all_pages(id);
        for entry in db.range(&from, Some(to)) {
            take(&entry.map_err(|error| self.error(&error))?.1);
        }
        Ok(())
    }

    /// Calls `take` for each fingerprint of a generation. The content of the key, if stored, is part of the fingerprint.
    pub(super) fn each_fingerprint(
        &self,
        id: &PartitionId,
        generation: GenerationId,
        take: &mut dyn FnMut(Fingerprint),
    ) -> Result<(), Error> {
        let open = self.opened();
        let Some(db) = &open.db else { return Ok(()) };
        let (from, to) = fingerprints_of(id, generation);
        for entry in db.range(&from, Some(to)) {
            let (key, value) = entry.map_err(|error| self.error(&error))?;
            let invalid = || self.corrupt(id, "a fingerprint has an invalid key or content");
            let entry = key.last_chunk::<16>().map(|entry| u128::from_be_bytes(*entry)).ok_or_else(invalid)?;
            take(Fingerprint(entry | u128::from(decode::content(&value).ok_or_else(invalid)?) << 64));
        }
        Ok(())
    }

    /// Reopens the database if it is closed or, before a write, if an earlier write has failed. After a failed write, RocksDB rejects all
    /// writes until the database is reopened.
    fn reopen(&self, to_write: bool) -> Result<(), Error> {
        let is_open = |open: &Opened| open.db.is_some() && !(to_write && open.failed);
        if is_open(&self.opened()) {
            return Ok(());
        }
        let mut open = self.opened_mut();
        if is_open(&open) {
            return Ok(());
        }
        // Opening for writing needs free disk space, but opening for reading does not. So keep a read-only database, in case the disk is
        // full.
        let readable = open.db.as_ref().and_then(|_| self.open_to_read_again());
        open.db = None;
        match self.open_db() {
            Ok(db) => {
                (open.db, open.failed) = (Some(db), false);
                // `place` is `None` here if a quarantine moved the directory away but could not open a new database.
                open.place = open.place.or_else(|| self.place());
            }
            Err(error) => {
                open.db = readable;
                return Err(error);
            }
        }
        Ok(())
    }

    fn open_to_read_again(&self) -> Option<Database> {
        #[cfg(feature = "faults")]
        if let Some(disk) = &self.memory {
            return disk.open().ok().map(Database::Memory);
        }
        Database::open_for_read_only(&self.checkpoints()).ok()
    }

    fn metadata(&self, db: &Database, id: &PartitionId) -> Result<Option<CheckpointMetadata>, Error> {
        let Some(stored) = db.get(&metadata_key(id)).map_err(|error| self.error(&error))? else { return Ok(None) };
        decode::metadata(id, &stored).map(Some).map_err(|what| self.corrupt(id, &what))
    }

    fn corrupt(&self, id: &PartitionId, what: &str) -> Error {
        Error::Corrupt { dir: self.dir.clone(), what: format!("checkpoint of {id}: {what}") }
    }

    /// Returns the metadata of all stored partitions.
    ///
    /// # Errors
    /// Returns an error if any metadata is corrupt or cannot be read.
    pub fn all_metadata(&self) -> Result<Vec<(PartitionId, CheckpointMetadata)>, Error> {
        self.reopen(false)?;
        let open = self.opened();
        let Some(db) = &open.db else { return Ok(Vec::new()) };
        let mut all_metadata = Vec::new();
        for entry in db.range(b"h".as_slice(), None) {
            let (key, stored) = entry.map_err(|error| self.error(&error))?;
            let Some(id) = partition_of(&key) else { break };
            let metadata = decode::metadata(&id, &stored).map_err(|what| self.corrupt(&id, &what))?;
            all_metadata.push((id, metadata));
        }
        Ok(all_metadata)
    }

    /// Loads the stored state of a partition, if there is one with these settings. The caller must check whether the offsets can be used.
    ///
    /// # Errors
    /// Returns an error if the state is corrupt or cannot be read.
    pub fn load(&self, id: &PartitionId, settings: &Settings, rules: Rules) -> Result<Loaded, Error> {
        self.reopen(false)?;
        let open = self.opened();
        let Some(db) = &open.db else { return Ok(Loaded::Nothing) };
        let Some(metadata) = self.metadata(db, id)? else { return Ok(Loaded::Nothing) };
        if metadata.settings != *settings {
            return Ok(Loaded::Foreign { difference: metadata.settings.difference(settings) });
        }
        let corrupt = |what: String| self.corrupt(id, &what);
        let mut decoder = Decoder::new(id, &metadata, rules).map_err(corrupt)?;
        let (from, to) = all_pages(id);
        for entry in db.range(&from, Some(to)) {
            let (key, stored) = entry.map_err(|error| self.error(&error))?;
            decoder.page(&key, &stored).map_err(corrupt)?;
        }
        let state = decoder.finish().map_err(corrupt)?;
        Ok(Loaded::Usable {
            state: Box::new(state),
            offsets: metadata.offsets,
            changelog: metadata.changelog,
            saved: Saved { epoch: open.epoch },
        })
    }
}

/// Creates a state directory that only this user can read, because it contains fingerprints of keys.
fn create_dir(dir: &Path) -> io::Result<()> {
    fs::DirBuilder::new().recursive(true).mode(0o700).create(dir)
}

#[cfg(test)]
mod tests;
