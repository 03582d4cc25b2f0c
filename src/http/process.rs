//! What the system knows of this process and of its disk.
//!
//! Must never ask a disk on the thread of the endpoints, which also hears signals: a disk on a network may not answer.

use crate::status::Process;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// How often the disk is looked at.
const DISK_INTERVAL: Duration = Duration::from_secs(5);

/// What was found longer ago than this is not shown: the disk does not answer.
const DISK_AGE_MAX: Duration = Duration::from_secs(60);

/// The space on the disk of the state directory, as a thread of its own last found it. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct Disk(Arc<Mutex<Option<(Instant, DiskSpace)>>>);

#[derive(Clone, Copy, Debug)]
struct DiskSpace {
    available: u64,
    size: u64,
}

impl Disk {
    /// Looks at the disk of a directory for as long as anybody else has this.
    #[must_use]
    pub fn watch(dir: PathBuf) -> Self {
        let disk = Self::default();
        let found = Arc::downgrade(&disk.0);
        std::thread::spawn(move || {
            loop {
                let space = space_of(&dir);
                let Some(found) = found.upgrade() else { return };
                *found.lock().unwrap_or_else(PoisonError::into_inner) = space.map(|space| (Instant::now(), space));
                drop(found);
                std::thread::sleep(DISK_INTERVAL);
            }
        });
        disk
    }

    fn space(&self) -> Option<DiskSpace> {
        let found = *self.0.lock().unwrap_or_else(PoisonError::into_inner);
        found.filter(|(at, _)| at.elapsed() < DISK_AGE_MAX).map(|(_, space)| space)
    }
}

/// The space on the disk of a directory, or of that in which it is yet to be made.
fn space_of(dir: &Path) -> Option<DiskSpace> {
    // Of a relative path, the last ancestor is empty.
    let mut places = dir.ancestors().map(|place| if place.as_os_str().is_empty() { Path::new(".") } else { place });
    let disk = places.find_map(|place| rustix::fs::statvfs(place).ok())?;
    let bytes = |blocks: u64| blocks.saturating_mul(disk.f_frsize);
    Some(DiskSpace { available: bytes(disk.f_bavail), size: bytes(disk.f_blocks) })
}

/// Looks. What the system does not say is none.
pub(super) fn look(disk: &Disk) -> Process {
    let space = disk.space();
    Process {
        resident_bytes: resident(),
        cpu_seconds: cpu(),
        state_disk_available_bytes: space.map(|space| space.available),
        state_disk_size_bytes: space.map(|space| space.size),
    }
}

/// The second number of `/proc/self/statm`, in pages (proc(5)).
fn resident() -> Option<u64> {
    let pages: u64 = fs::read_to_string("/proc/self/statm").ok()?.split_ascii_whitespace().nth(1)?.parse().ok()?;
    Some(pages * rustix::param::page_size() as u64)
}

/// User and system time of `/proc/self/stat`, in clock ticks (proc(5)). The name before them may hold anything.
#[expect(clippy::cast_precision_loss, reason = "a number that is shown")]
fn cpu() -> Option<f64> {
    let stat = fs::read_to_string("/proc/self/stat").ok()?;
    let mut numbers = stat.rsplit_once(')')?.1.split_ascii_whitespace().skip(11);
    let mut ticks = || numbers.next()?.parse::<u64>().ok();
    Some((ticks()? + ticks()?) as f64 / rustix::param::clock_ticks_per_second() as f64)
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[test]
    fn the_system_tells() {
        let disk = Disk::watch("/".into());
        while disk.space().is_none() {
            std::thread::yield_now();
        }
        let process = look(&disk);
        assert!(process.resident_bytes.is_some_and(|bytes| bytes > 1 << 20));
        assert!(process.cpu_seconds.is_some_and(|seconds| seconds >= 0.0));
        assert!(process.state_disk_available_bytes <= process.state_disk_size_bytes && process.state_disk_size_bytes.is_some());
    }
}
