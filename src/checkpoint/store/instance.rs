//! The id of a state directory, which distinguishes its process from others.
//!
//! Owns the file `instance`. Must never give a directory another id while that can be read.

use super::{Error, Store};
use std::time::{SystemTime, UNIX_EPOCH};
use std::{fs, io, process};

impl Store {
    /// This directory's own id, made when it was first used. It outlives the process, as transactional ids must.
    ///
    /// # Errors
    /// When it cannot be read or written.
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
            // As on a new disk: what its past self left open ends by itself, when the broker gives it up.
            Ok(_) => tracing::error!(file = %path.display(), "the id of this state directory is damaged; making another"),
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
        // A torn file would be another id after a crash: written beside it, then renamed.
        let draft = self.dir.join("instance.new");
        let written = fs::write(&draft, id).and_then(|()| fs::rename(&draft, self.dir.join("instance")));
        written.map_err(|error| Error::Io { dir: self.dir.clone(), error })
    }
}
