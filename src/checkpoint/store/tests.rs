//! Promise: if a checkpoint is interrupted at any step, the store contains the previous checkpoint or the new checkpoint.

use super::*;
use crate::changelog::Progress;
use crate::checkpoint::StoredFingerprints;
use crate::checkpoint::draft::Draft;
use crate::dedup::{Dedup, Emit, Late};
use crate::filter::{AgingSizing, Spec, Window};
use crate::record::{Offset, Verdict};
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::sync::Arc;

fn contents(store: &Store) -> Vec<[Box<[u8]>; 2]> {
    let open = store.open.read().unwrap();
    open.db.as_ref().unwrap().range(&[], None).map(|entry| entry.unwrap().into()).collect()
}

fn id() -> PartitionId {
    PartitionId { space: "orders".to_owned(), partition: 3 }
}

fn rules(slices: u32, filter: bool, exact: bool) -> Rules {
    let window = Window::Time { slice_ms: 100, slices };
    // The filter has many pages, and only a few of them change.
    let filter = filter.then(|| Spec::Aging(AgingSizing::new(window, 200_000, 1e-3)));
    Rules { window, filter, exact, refresh: false, late: Late::Emit, emit: Emit::First }
}

fn settings(rules: Rules) -> Settings {
    Settings { window: rules.window, filter: String::new(), hash: String::new(), keys: BTreeMap::new() }
}

struct Kept {
    _dir: tempfile::TempDir,
    store: Arc<Store>,
    state: Dedup,
    saved: Option<Saved>,
}

impl Kept {
    fn new(rules: Rules, batch_bytes: u64) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let store = Store { batch_bytes, ..Store::open(dir.path()).unwrap() };
        Self { _dir: dir, store: Arc::new(store), state: Dedup::new(rules), saved: None }
    }

    fn save(&mut self, rules: Rules, offset: Offset) {
        let offsets = BTreeMap::from([("orders".to_owned(), offset)]);
        let metadata =
            CheckpointMetadata { settings: settings(rules), offsets, changelog: Progress::default(), state: self.state.metadata() };
        let (saved, _) = self.store.save(&self.store.claim(&id()), &metadata, &mut self.state, self.saved).unwrap();
        if self.saved != Some(saved) {
            self.state.attach(Box::new(StoredFingerprints::new(Arc::clone(&self.store), id(), saved)));
        }
        self.saved = Some(saved);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn files_and_batches_store_the_same_entries(
        lives in prop::collection::vec((1..=3_u32, prop::sample::select(vec![(true, true), (true, false), (false, true)]),
            prop::collection::vec(prop_oneof![
                12 => (0..60_u64, 0..80_i64, prop::bool::weighted(0.2)).prop_map(Some), 1 => Just(None)
            ], 1..60)), 1..4)
    ) {
        let mut kept = [Kept::new(rules(1, true, true), u64::MAX), Kept::new(rules(1, true, true), 0)];
        for (slices, (filter, exact), steps) in lives {
            let rules = rules(slices, filter, exact);
            for kept in &mut kept {
                let mut clock = 0;
                // A changed configuration does not match the stored state, so the state is replaced.
                (kept.state, kept.saved) = (Dedup::new(rules), None);
                kept.save(rules, 0);
                for (offset, step) in (1..).zip(&steps) {
                    let Some((number, pause, taken_back)) = *step else { kept.save(rules, offset); continue };
                    clock += pause;
                    let key = Fingerprint(xxhash_rust::xxh3::xxh3_128(&number.to_le_bytes()));
                    let judged = if taken_back { kept.state.retract(key, Some(clock), i64::MAX) } else { kept.state.judge(key, Some(clock), i64::MAX) };
                    prop_assert!(judged.is_ok());
                }
                kept.save(rules, 1000);
            }
            prop_assert!(contents(&kept[0].store) == contents(&kept[1].store));
            let loaded = kept[1].store.load(&id(), &settings(rules), rules).unwrap();
            let Loaded::Usable { state, offsets, .. } = loaded else { return Err(TestCaseError::fail("no stored state")) };
            prop_assert_eq!((state.metadata(), offsets["orders"]), (kept[0].state.metadata(), 1000));
            let left = kept[1].store.drafts().read_dir().into_iter().flatten().count();
            prop_assert_eq!(left, 0, "drafts are left behind");
        }
    }
}

/// The situation after a rebuild: the state is large and not stored yet.
#[test]
fn a_full_checkpoint_in_files_survives_the_deletion_of_the_old_state() {
    for (filter, exact) in [(true, true), (true, false), (false, true)] {
        let rules = rules(1, filter, exact);
        let key = |number: u64| Fingerprint(xxhash_rust::xxh3::xxh3_128(&number.to_le_bytes()));
        let mut kept = [Kept::new(rules, u64::MAX), Kept::new(rules, 0)];
        for kept in &mut kept {
            // The second checkpoint replaces a state of the same size.
            for life in 0..2_u64 {
                (kept.state, kept.saved) = (Dedup::new(rules), None);
                for number in 0..1000 {
                    kept.state.judge(key(1000 * life + number), Some(5), i64::MAX).unwrap();
                }
                kept.save(rules, 1000);
                let forgotten = (0..1000).filter(|number| {
                    let judged = kept.state.judge(key(1000 * life + number), Some(5), i64::MAX).unwrap();
                    judged != Verdict::Duplicate
                });
                assert_eq!(forgotten.count(), 0, "the checkpoint that stored the keys lost some");
            }
        }
        assert!(contents(&kept[0].store) == contents(&kept[1].store), "files and batches differ");
        assert!(matches!(kept[1].store.load(&id(), &settings(rules), rules), Ok(Loaded::Usable { .. })));
    }
}

#[test]
fn keys_from_before_the_first_timestamp_stay_stored() {
    let rules = rules(1, false, true);
    let mut kept = Kept::new(rules, u64::MAX);
    kept.state.judge(Fingerprint(1), None, i64::MAX).unwrap();
    kept.save(rules, 1);
    kept.state.judge(Fingerprint(2), Some(500), i64::MAX).unwrap();
    kept.save(rules, 2);
    assert_eq!(kept.state.judge(Fingerprint(1), Some(501), i64::MAX), Ok(Verdict::Duplicate));
}

#[test]
fn a_new_state_directory_is_private_to_the_user() {
    use std::os::unix::fs::PermissionsExt as _;
    let dir = tempfile::tempdir().unwrap();
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    let created = dir.path().join("above/state");
    drop(Store::open(&created).unwrap());
    assert_eq!([mode(&dir.path().join("above")), mode(&created)], [0o700; 2]);
    drop(Store::open(dir.path()).unwrap());
    assert_eq!(mode(dir.path()), 0o755);
}

#[test]
fn an_interrupted_checkpoint_leaves_the_previous_one() {
    let rules = rules(2, true, true);
    let mut kept = Kept::new(rules, 0);
    kept.state.judge(Fingerprint(1 << 100), Some(5), i64::MAX).unwrap();
    kept.save(rules, 7);
    let before = contents(&kept.store);
    // The leftovers of a killed process: complete files and a truncated one.
    let dir = kept.store.drafts().join("left");
    fs::create_dir_all(&dir).unwrap();
    let mut draft = Draft::in_files(dir.clone());
    draft.put(&metadata_key(&id()), b"another").unwrap();
    draft.delete_range(&all_pages(&id())).unwrap();
    draft.finish().unwrap();
    fs::write(dir.join("1.sst"), "cut o").unwrap();
    std::mem::forget(draft);
    let path = kept.store.dir.clone();
    drop((kept.state, kept.store));
    let store = Store::open(&path).unwrap();
    assert_eq!(contents(&store), before);
    assert!(!store.drafts().exists(), "a start deletes leftover drafts");
}

/// In this test, RocksDB keeps its log in memory until the log is synced. So a copy of the directory contains exactly what survives a power
/// failure.
#[test]
fn a_power_failure_after_a_slice_has_expired_leaves_a_complete_checkpoint() {
    let rules = rules(1, false, true);
    let mut kept = Kept::new(rules, 0);
    let (first, dir) = (Fingerprint(1 << 100), kept.store.dir().to_owned());
    // The first checkpoint deletes all ranges, so its files span more than one slice.
    kept.save(rules, 0);
    kept.state.judge(first, Some(5), i64::MAX).unwrap();
    kept.save(rules, 1);
    let Kept { _dir: directory, store, state, .. } = kept;
    drop((store, state));
    let mut store = Store::open(&dir).unwrap();
    let mut open = store.opened_mut();
    open.db = None;
    let mut options = crate::checkpoint::options::options();
    options.set_manual_wal_flush(true);
    open.db = Some(Database::RocksDb(rocksdb::DB::open(&options, store.checkpoints()).unwrap()));
    drop(open);
    store.batch_bytes = u64::MAX;
    let store = Arc::new(store);
    let Ok(Loaded::Usable { mut state, saved, .. }) = store.load(&id(), &settings(rules), rules) else { panic!("no checkpoint") };
    state.attach(Box::new(StoredFingerprints::new(Arc::clone(&store), id(), saved)));
    let mut kept = Kept { _dir: directory, store, state: *state, saved: Some(saved) };
    kept.state.judge(Fingerprint(2 << 100), Some(500), i64::MAX).unwrap();
    kept.save(rules, 2);

    let copy = tempfile::tempdir().unwrap();
    fs::create_dir(copy.path().join("checkpoints")).unwrap();
    for entry in fs::read_dir(kept.store.checkpoints()).unwrap() {
        let file = entry.unwrap().path();
        fs::copy(&file, copy.path().join("checkpoints").join(file.file_name().unwrap())).unwrap();
    }
    let copy = Arc::new(Store::open(copy.path()).unwrap());
    let Ok(Loaded::Usable { mut state, offsets, saved, .. }) = copy.load(&id(), &settings(rules), rules) else { panic!("no checkpoint") };
    state.attach(Box::new(StoredFingerprints::new(Arc::clone(&copy), id(), saved)));
    let knows_first = state.judge(first, Some(5), i64::MAX) == Ok(Verdict::Duplicate);
    assert!(offsets["orders"] == 2 || knows_first, "the checkpoint at offset {} lacks a key", offsets["orders"]);
}

#[test]
fn a_directory_of_an_older_format_is_rejected_and_unchanged() {
    let rules = rules(4, true, false);
    let mut kept = Kept::new(rules, BATCH_BYTES);
    kept.save(rules, 7);
    let dir = kept.store.dir().to_owned();
    kept.store.open.read().unwrap().db.as_ref().unwrap().put(FORMAT_KEY, b"6").unwrap();
    let Kept { _dir, store, .. } = kept;
    drop(store);
    for opened in [Store::open_to_read(&dir), Store::open(&dir), Store::open_to_read(&dir)] {
        let error = opened.unwrap_err().to_string();
        assert!(
            error.contains("expected format 7, got 6; run the version of unseen that wrote the directory, or move the directory aside"),
            "{error}"
        );
    }
}

#[test]
fn only_the_newest_claim_can_save() {
    let rules = rules(1, true, false);
    let mut kept = Kept::new(rules, u64::MAX);
    let former = kept.store.claim(&id());
    kept.save(rules, 29);
    let metadata = CheckpointMetadata {
        settings: settings(rules),
        offsets: BTreeMap::from([("orders".to_owned(), 10)]),
        changelog: Progress::default(),
        state: kept.state.metadata(),
    };
    let other = PartitionId { partition: 1, ..id() };
    let mut state = Dedup::new(rules);
    assert!(matches!(kept.store.save(&former, &metadata, &mut state, None), Err(Error::Superseded(_))));
    kept.store.save(&kept.store.claim(&other), &metadata, &mut state, None).unwrap();
    let offsets: Vec<_> = kept.store.all_metadata().unwrap().into_iter().map(|(_, metadata)| metadata.offsets["orders"]).collect();
    assert_eq!(offsets, [10, 29]);
}

/// After a quarantine, the disk may be too full for a new database. The next checkpoint creates the database and must not mistake it for
/// another process's replacement, which would be quarantined as well.
#[cfg(feature = "faults")]
#[test]
fn a_quarantine_on_a_full_disk_ends_when_the_disk_has_room() {
    let disk = MemoryDisk::new(1);
    let rules = rules(1, true, false);
    let store = Arc::new(Store::open_in_memory(&disk).unwrap());
    let mut kept = Kept { _dir: tempfile::tempdir().unwrap(), store, state: Dedup::new(rules), saved: None };
    kept.save(rules, 7);
    disk.set_full(true);
    kept.store.quarantine("a page is damaged").unwrap_err();
    disk.set_full(false);
    kept.saved = None;
    kept.save(rules, 7);
    assert_eq!(kept.store.epoch(), 1);
}
