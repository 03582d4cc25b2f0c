//! Promise: writing a checkpoint uses at most 64 MiB of additional memory, for a filter of any size.
//!
//! The test has its own process, because it measures the memory of the whole process.

use std::collections::BTreeMap;
use std::fs;
use std::sync::Arc;
use std::time::Instant;
use unseen::changelog::Progress;
use unseen::checkpoint::{CheckpointMetadata, PartitionId, Saved, Settings, Store, StoredFingerprints};
use unseen::dedup::{Dedup, Emit, Late, Rules};
use unseen::filter::{AgingSizing, Spec, Window};
use unseen::key::Fingerprint;

const EXTRA_MAX: u64 = 64 << 20;

/// The number of new keys per checkpoint. It is high enough to change every page of the filter.
const KEYS: u64 = 200_000;

/// Returns a size from /proc/self/status, in bytes.
fn status(name: &str) -> u64 {
    let status = fs::read_to_string("/proc/self/status").expect("Linux tells");
    let line = status.lines().find_map(|line| line.strip_prefix(name)).expect("there is such a line");
    line.trim_matches(|letter: char| !letter.is_ascii_digit()).parse::<u64>().expect("a number") * 1024
}

fn key(number: u64) -> Fingerprint {
    Fingerprint(u128::from(number).wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835))
}

struct Kept {
    store: Arc<Store>,
    memory: Dedup,
    saved: Option<Saved>,
}

impl Kept {
    /// Saves a checkpoint and returns the additional peak memory in bytes.
    fn save(&mut self, what: &str, rules: Rules) -> u64 {
        let id = PartitionId { space: "orders".to_owned(), partition: 0 };
        let settings = Settings { window: rules.window, filter: String::new(), hash: String::new(), keys: BTreeMap::new() };
        let head = CheckpointMetadata { settings, offsets: BTreeMap::new(), changelog: Progress::default(), state: self.memory.metadata() };
        // Resets `VmHWM`, the peak memory of the process.
        fs::write("/proc/self/clear_refs", "5").expect("Linux lets us");
        let (before, began) = (status("VmRSS:"), Instant::now());
        let (saved, bytes) = self.store.save(&self.store.claim(&id), &head, &mut self.memory, self.saved).expect("there is room");
        let (elapsed, extra) = (began.elapsed(), status("VmHWM:") - before);
        println!("{what}: {} MiB written in {elapsed:.0?}, with {} MiB of memory", bytes >> 20, extra >> 20);
        if self.saved != Some(saved) {
            self.memory.attach(Box::new(StoredFingerprints::new(Arc::clone(&self.store), id, saved)));
        }
        self.saved = Some(saved);
        extra
    }
}

#[test]
#[cfg_attr(not(target_os = "linux"), ignore = "only Linux tells how much memory was used")]
fn checkpoint_of_any_size_takes_a_few_megabytes() {
    let window = Window::Time { slice_ms: 1_000_000, slices: 1 };
    let filter = Spec::Aging(AgingSizing::new(window, 140_000_000, 1e-3));
    let rules = Rules { window, filter: Some(filter), exact: false, refresh: false, late: Late::Emit, emit: Emit::First };
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a directory");
    let store = Arc::new(Store::open(dir.path()).expect("a store"));
    let mut kept = Kept { store: Arc::clone(&store), memory: Dedup::new(rules), saved: None };
    let mut most = 0;
    for round in 0..3 {
        (0..KEYS).for_each(|number| drop(kept.memory.judge(key(round * KEYS + number), Some(1), i64::MAX)));
        let bytes: u64 = kept.memory.metadata().parts().iter().map(|part| part.pages * 65_536).sum();
        assert!(bytes >= 250 << 20, "the filter has {bytes} bytes");
        most = most.max(kept.save("a filter, all of it changed", rules));
    }
    assert!(most <= EXTRA_MAX, "a filter of 256 MB takes {} MiB more to write", most >> 20);

    let rules = Rules { filter: None, exact: true, ..rules };
    let mut kept = Kept { store, memory: Dedup::new(rules), saved: None };
    for round in 0..2 {
        (0..1_000_000).for_each(|number| drop(kept.memory.judge(key(round * 1_000_000 + number), Some(1), i64::MAX)));
        most = most.max(kept.save("a million fingerprints", rules));
    }
    assert!(most <= EXTRA_MAX, "a million fingerprints take {} MiB more to write", most >> 20);
}
