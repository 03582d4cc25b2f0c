//! Memory and CPU time of this process, and the space on the disk of its state directory.
//!
//! A separate thread queries the disk, because a network disk may block, and the endpoints' thread also handles signals.

use crate::status::Process;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

const DISK_INTERVAL: Duration = Duration::from_secs(5);

/// Maximum age of a result. If the disk blocks for longer, no result is shown.
const DISK_AGE_MAX: Duration = Duration::from_secs(60);

/// The space on the disk of the state directory, updated by a separate thread. Clones share the result.
#[derive(Clone, Debug, Default)]
pub struct Disk(Arc<Mutex<Option<(Instant, DiskSpace)>>>);

#[derive(Clone, Copy, Debug)]
struct DiskSpace {
    available: u64,
    size: u64,
}

impl Disk {
    /// Starts a thread that queries the disk of a directory until all clones are dropped.
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

/// Returns the space on the disk of a directory. If the directory does not exist, uses its closest existing ancestor.
fn space_of(dir: &Path) -> Option<DiskSpace> {
    // The last ancestor of a relative path is empty and means the current directory.
    let mut places = dir.ancestors().map(|place| if place.as_os_str().is_empty() { Path::new(".") } else { place });
    let disk = places.find_map(|place| rustix::fs::statvfs(place).ok())?;
    let bytes = |blocks: u64| blocks.saturating_mul(disk.f_frsize);
    Some(DiskSpace { available: bytes(disk.f_bavail), size: bytes(disk.f_blocks) })
}

/// Measures the process and the disk. A value is `None` if the system does not provide it.
pub(super) fn measure(disk: &Disk) -> Process {
    let space = disk.space();
    Process {
        resident_bytes: resident(),
        cpu_seconds: cpu(),
        state_disk_available_bytes: space.map(|space| space.available),
        state_disk_size_bytes: space.map(|space| space.size),
    }
}

/// Returns the resident memory in bytes. `/proc/self/statm` contains it as the second number, in pages (proc(5)).
fn resident() -> Option<u64> {
    let pages: u64 = fs::read_to_string("/proc/self/statm").ok()?.split_ascii_whitespace().nth(1)?.parse().ok()?;
    Some(pages * rustix::param::page_size() as u64)
}

/// Returns user plus system time in seconds. `/proc/self/stat` contains both in clock ticks (proc(5)). The process name in front of the
/// numbers may contain any character, so the search starts at the last parenthesis.
#[expect(clippy::cast_precision_loss, reason = "a number for display")]
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
    fn linux_provides_all_values() {
        let disk = Disk::watch("/".into());
        while disk.space().is_none() {
            std::thread::yield_now();
        }
        let process = measure(&disk);
        assert!(process.resident_bytes.is_some_and(|bytes| bytes > 1 << 20));
        assert!(process.cpu_seconds.is_some_and(|seconds| seconds >= 0.0));
        assert!(process.state_disk_available_bytes <= process.state_disk_size_bytes && process.state_disk_size_bytes.is_some());
    }
}
