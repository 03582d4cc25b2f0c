//! Inspects and damages state directories.

use super::unseen;
use rocksdb::{DB, IteratorMode};
use std::collections::BTreeMap;
use std::fs::{self, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

pub fn entries(dir: &Path) -> Vec<PathBuf> {
    fs::read_dir(dir).expect("a directory").map(|entry| entry.expect("an entry").path()).collect()
}

pub fn open(state: &Path) -> DB {
    DB::open_default(state.join("checkpoints")).expect("the state is a RocksDB")
}

/// The checkpoint files with this extension, the largest first. Panics if there are none.
pub fn files(state: &Path, ending: &str) -> Vec<PathBuf> {
    let mut files = entries(&state.join("checkpoints"));
    files.retain(|path| path.extension().is_some_and(|found| found == ending));
    files.sort_by_key(|path| std::cmp::Reverse(size(path)));
    assert!(!files.is_empty(), "there is no file *.{ending} in the state");
    files
}

/// Flushes the checkpoints to disk and returns their SST files.
pub fn tables(state: &Path) -> Vec<PathBuf> {
    open(state).flush().expect("the state can be written");
    files(state, "sst")
}

fn size(path: &Path) -> u64 {
    fs::metadata(path).expect("a file").len()
}

pub fn truncate(path: &Path) {
    OpenOptions::new().write(true).open(path).and_then(|file| file.set_len(size(path) / 2)).expect("the file can be cut off");
}

/// Inverts eight bytes in the middle of a file.
pub fn flip(path: &Path) {
    let file = OpenOptions::new().read(true).write(true).open(path).expect("a file");
    let (at, mut bytes) = (size(path) / 2, [0; 8]);
    file.read_exact_at(&mut bytes, at).expect("its middle");
    file.write_all_at(&bytes.map(|byte| !byte), at).expect("its middle can be written");
}

/// Flips a bit in a page of a filter and writes the page with a valid RocksDB checksum, as if the memory of the worker had been corrupt
/// before it wrote the page. Returns `false` if there is no page.
pub fn damage_page(state: &Path) -> bool {
    let db = open(state);
    let page = db.iterator(IteratorMode::Start).flatten().find(|(key, _)| key.starts_with(b"p"));
    let Some((key, mut page)) = page else { return false };
    let middle = page.len() / 2;
    page[middle] ^= 1;
    db.put(key, page).expect("it can be written");
    true
}

pub fn contents(db: &DB) -> BTreeMap<Box<[u8]>, Box<[u8]>> {
    db.iterator(IteratorMode::Start).collect::<Result<_, _>>().expect("it can be read")
}

/// The digest of each partition in a state directory. The keys of the map have the form `"space"[partition]`.
pub fn digests(state: &Path) -> BTreeMap<String, String> {
    let (code, out, err) = unseen(["inspect", "--json", state.to_str().expect("a path in UTF-8")]);
    assert_eq!(code, Some(0), "{err}");
    let all: serde_json::Value = serde_json::from_str(&out).expect("JSON");
    let partitions = all["directories"][0]["partitions"].as_array().expect("the directory's partitions");
    let name = |partition: &serde_json::Value| format!("{}[{}]", partition["space"], partition["partition"]);
    partitions.iter().map(|partition| (name(partition), partition["digest"].to_string())).collect()
}
