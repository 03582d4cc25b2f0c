//! The instance id of a state directory, which distinguishes its process from other processes.
//!
//! Reads and writes the file `instance`. Never replaces an id that can still be read.

use super::{Error, Store};
use std::time::{SystemTime, UNIX_EPOCH};
use std::{fs, io, process};

impl Store {
    /// Returns this directory's id, which is created on first use. The id must survive restarts, because transactional ids contain it and
    /// must stay the same.
    ///
    /// # Errors
    /// Returns an error if the id cannot be read or written.
    pub fn instance_id(&self) -> Result<String, Error> {
        let id = self.read_instance_id()?;
        Ok(self.instance.get_or_init(|| id).clone())
    }

    fn read_instance_id(&self) -> Result<String, Error> {
        #[cfg(feature = "faults")]
        if let Some(disk) = &self.memory {
            let id = disk.instance().unwrap_or_else(|| disk.new_instance());
            disk.set_instance(&id);
            return Ok(id);
        }
        let path = self.dir.join("instance");
        let io = |error| Error::Io { dir: self.dir.clone(), error };
        match fs::read(&path) {
            Ok(id) if id.len() == 16 && id.iter().all(u8::is_ascii_hexdigit) => return Ok(String::from_utf8_lossy(&id).into_owned()),
            // A new id is as safe as a new disk: the brokers abort the open transaction of the previous id when it times out.
            Ok(_) => {
                tracing::error!(file = %path.display(), "the instance id of this state directory is damaged; creating a new one. With exactly_once, an open transaction under the old id can delay read_committed consumers until it times out");
            }
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(io(error)),
            Err(_) => {}
        }
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos();
        let seed = format!("{now} {} {}", process::id(), self.dir.display());
        let id = format!("{:016x}", xxhash_rust::xxh3::xxh3_64(seed.as_bytes()));
        self.write_instance_id(&id)?;
        Ok(id)
    }

    pub(super) fn write_instance_id(&self, id: &str) -> Result<(), Error> {
        // A crash during a direct write could leave an incomplete id, so write another file and rename it.
        let draft = self.dir.join("instance.new");
        let written = fs::write(&draft, id).and_then(|()| fs::rename(&draft, self.dir.join("instance")));
        written.map_err(|error| Error::Io { dir: self.dir.clone(), error })
    }
}
