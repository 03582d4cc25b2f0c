//! An in-memory disk for simulations. The disk survives the simulated process. Tests can fill, damage, copy, and delete it.

use super::{DatabaseError, Entry};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

#[derive(Debug)]
pub(in crate::checkpoint) enum Change {
    Put(Vec<u8>, Vec<u8>),
    Delete(Vec<u8>),
    DeleteRange(Vec<u8>, Vec<u8>),
}

/// Values by key. `None` is a value with a wrong checksum.
type Entries = Arc<Mutex<BTreeMap<Vec<u8>, Option<Vec<u8>>>>>;

/// A state directory in memory. Clones share the same directory.
#[derive(Clone, Debug, Default)]
pub struct MemoryDisk(Arc<Mutex<Directory>>);

#[derive(Debug, Default)]
struct Directory {
    disk: u64,
    checkpoints: Option<(u64, Entries)>,
    instance: Option<String>,
    /// The number of `checkpoints` directories created so far, which is also the number of the newest directory.
    created: u64,
    is_full: bool,
}

/// An open database. Like RocksDB, it stays readable after its directory is deleted.
#[derive(Debug)]
pub(in crate::checkpoint) struct Handle {
    disk: MemoryDisk,
    entries: Entries,
}

impl MemoryDisk {
    #[must_use]
    pub fn new(disk: u64) -> Self {
        Self(Arc::new(Mutex::new(Directory { disk, ..Directory::default() })))
    }

    fn lock(&self) -> MutexGuard<'_, Directory> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn set_full(&self, is_full: bool) {
        self.lock().is_full = is_full;
    }

    pub fn delete(&self) {
        let mut directory = self.lock();
        (directory.checkpoints, directory.instance) = (None, None);
    }

    #[must_use]
    pub fn copy(&self) -> Self {
        let directory = self.lock();
        let checkpoints = directory.checkpoints.as_ref().map(|(number, entries)| {
            let entries = entries.lock().unwrap_or_else(PoisonError::into_inner).clone();
            (*number, Arc::new(Mutex::new(entries)))
        });
        let Directory { disk, instance, created, .. } = &*directory;
        let copy = Directory { disk: *disk, checkpoints, instance: instance.clone(), created: *created, is_full: false };
        Self(Arc::new(Mutex::new(copy)))
    }

    /// Damages the value of entry `number` modulo the number of entries. Like RocksDB, the database detects the damage by a checksum.
    /// Returns false if the disk has no entries.
    #[must_use]
    pub fn damage(&self, number: usize) -> bool {
        let directory = self.lock();
        let Some((_, entries)) = &directory.checkpoints else { return false };
        let mut entries = entries.lock().unwrap_or_else(PoisonError::into_inner);
        let count = entries.len().max(1);
        let damaged = entries.values_mut().nth(number % count).map(|value| *value = None);
        damaged.is_some()
    }

    /// Turns the disk into the disk of another process, which will get a new instance id.
    pub fn forget_instance(&self, disk: u64) {
        let mut directory = self.lock();
        (directory.disk, directory.instance) = (disk, None);
    }

    pub(in crate::checkpoint) fn open(&self) -> Result<Handle, DatabaseError> {
        let mut directory = self.lock();
        if directory.checkpoints.is_none() {
            if directory.is_full {
                return Err(full());
            }
            directory.created += 1;
            directory.checkpoints = Some((directory.created, Entries::default()));
        }
        let entries = directory.checkpoints.as_ref().map(|(_, entries)| Arc::clone(entries)).unwrap_or_default();
        Ok(Handle { disk: self.clone(), entries })
    }

    /// The number of the current `checkpoints` directory, or `None` if the directory does not exist. A directory that replaces it gets a
    /// new number.
    pub(in crate::checkpoint) fn number(&self) -> Option<u64> {
        self.lock().checkpoints.as_ref().map(|(number, _)| *number)
    }

    /// Removes the `checkpoints` directory from the disk, as a quarantine does. Returns false if the directory does not exist.
    pub(in crate::checkpoint) fn move_aside(&self) -> bool {
        self.lock().checkpoints.take().is_some()
    }

    pub(in crate::checkpoint) fn instance(&self) -> Option<String> {
        self.lock().instance.clone()
    }

    pub(in crate::checkpoint) fn new_instance(&self) -> String {
        let Directory { disk, created, .. } = &*self.lock();
        format!("{disk:08x}{created:08x}")
    }

    pub(in crate::checkpoint) fn set_instance(&self, id: &str) {
        self.lock().instance = Some(id.to_owned());
    }
}

impl Handle {
    fn entries(&self) -> MutexGuard<'_, BTreeMap<Vec<u8>, Option<Vec<u8>>>> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn check_room(&self) -> Result<(), DatabaseError> {
        if self.disk.lock().is_full { Err(full()) } else { Ok(()) }
    }

    pub(super) fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, DatabaseError> {
        self.entries().get(key).map(|value| value.clone().ok_or_else(corrupt)).transpose()
    }

    pub(super) fn put(&self, key: &[u8], value: &[u8]) -> Result<(), DatabaseError> {
        self.check_room()?;
        self.entries().insert(key.to_vec(), Some(value.to_vec()));
        Ok(())
    }

    pub(super) fn range(&self, from: &[u8], to: Option<&[u8]>) -> Vec<Result<Entry, DatabaseError>> {
        let entries = self.entries();
        let within = entries.range(from.to_vec()..).take_while(|(key, _)| to.is_none_or(|to| &key[..] < to));
        within.map(|(key, value)| Ok((key.clone().into(), value.clone().ok_or_else(corrupt)?.into()))).collect()
    }

    pub(super) fn write(&self, changes: Vec<Change>) -> Result<u64, DatabaseError> {
        self.check_room()?;
        let (mut entries, mut bytes) = (self.entries(), 0);
        for change in changes {
            match change {
                Change::Put(key, value) => {
                    bytes += (key.len() + value.len()) as u64;
                    entries.insert(key, Some(value));
                }
                Change::Delete(key) => drop(entries.remove(&key)),
                Change::DeleteRange(from, to) => {
                    let gone: Vec<_> = entries.range(from..to).map(|(key, _)| key.clone()).collect();
                    for key in &gone {
                        entries.remove(key);
                    }
                }
            }
        }
        Ok(bytes)
    }
}

fn corrupt() -> DatabaseError {
    DatabaseError { message: "Corruption: block checksum mismatch".to_owned(), is_corruption: true }
}

fn full() -> DatabaseError {
    DatabaseError { message: "IO error: No space left on device".to_owned(), is_corruption: false }
}
