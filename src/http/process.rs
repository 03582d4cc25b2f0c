//! What the system knows of this process and of its disk.

use crate::status::Process;
use std::fs;
use std::path::Path;

/// Looks. What the system does not tell is none.
pub(super) fn look(state_dir: &Path) -> Process {
    let disk = rustix::fs::statvfs(state_dir).ok();
    Process {
        resident_bytes: resident(),
        cpu_seconds: cpu(),
        state_disk_available_bytes: disk.as_ref().map(|disk| disk.f_bavail.saturating_mul(disk.f_frsize)),
        state_disk_size_bytes: disk.as_ref().map(|disk| disk.f_blocks.saturating_mul(disk.f_frsize)),
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
        let process = look(Path::new("/"));
        assert!(process.resident_bytes.is_some_and(|bytes| bytes > 1 << 20));
        assert!(process.cpu_seconds.is_some_and(|seconds| seconds >= 0.0));
        assert!(process.state_disk_available_bytes <= process.state_disk_size_bytes && process.state_disk_size_bytes.is_some());
    }
}
