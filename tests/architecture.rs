//! The invariants that ARCHITECTURE.md states of the source itself.

use std::fs;
use std::path::{Path, PathBuf};

/// The parts in reading order: each may use only those before it.
const PARTS: [&str; 18] = [
    "record",
    "key",
    "format",
    "filter",
    "dedup",
    "changelog",
    "config",
    "replay",
    "plan",
    "stats",
    "registry",
    "status",
    "fault",
    "clock",
    "checkpoint",
    "http",
    "kafka",
    "worker",
];
/// The parts that decide: no I/O, no clock, no randomness, no concurrency.
const PURE: [&str; 5] = ["record", "key", "filter", "dedup", "changelog"];

/// Every Rust file with its path below `src`, comments left out.
fn sources() -> Vec<(String, String)> {
    fn walk(dir: &Path, found: &mut Vec<PathBuf>) {
        for entry in fs::read_dir(dir).expect("src can be read") {
            let path = entry.expect("src can be read").path();
            if path.is_dir() {
                walk(&path, found);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                found.push(path);
            }
        }
    }
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut found = Vec::new();
    walk(&root, &mut found);
    let read = |path: PathBuf| {
        let name = path.strip_prefix(&root).expect("below src").to_string_lossy().replace('\\', "/");
        let text = fs::read_to_string(&path).expect("a source file can be read");
        let code = text.lines().map(|line| line.split("//").next().unwrap_or("")).collect::<Vec<_>>().join("\n");
        (name, code)
    };
    found.into_iter().map(read).collect()
}

/// The part that a file belongs to: `filter` for `filter/bloom.rs`.
fn part(file: &str) -> &str {
    file.split(['/', '.']).next().unwrap_or(file)
}

fn is_test(file: &str) -> bool {
    file.ends_with("tests.rs")
}

/// Files outside of `allowed` that name `word`.
fn named_outside(word: &str, allowed: &[&str]) -> Vec<String> {
    let files = sources().into_iter().filter(|(file, code)| !allowed.contains(&part(file)) && code.contains(word));
    files.map(|(file, _)| file).collect()
}

#[test]
fn rdkafka_is_named_only_in_kafka() {
    assert_eq!(named_outside("rdkafka::", &["kafka"]), [""; 0]);
}

#[test]
fn rocksdb_is_named_only_in_checkpoint() {
    assert_eq!(named_outside("rocksdb::", &["checkpoint"]), [""; 0]);
}

#[test]
fn clap_and_anyhow_are_named_only_in_the_command_line() {
    assert_eq!(named_outside("clap", &["cli", "main"]), [""; 0]);
    assert_eq!(named_outside("anyhow", &["cli", "main"]), [""; 0]);
}

#[test]
fn the_core_is_pure() {
    let impure = [
        "std::fs",
        "std::io",
        "std::net",
        "std::thread",
        "std::sync",
        "std::time",
        "std::env",
        "SystemTime",
        "Instant",
        "tokio",
        "rand",
        "async ",
        "tracing",
    ];
    for (file, code) in sources() {
        if PURE.contains(&part(&file)) && !is_test(&file) {
            for word in impure {
                assert!(!code.contains(word), "{file} is of the pure core and names {word}");
            }
        }
    }
}

#[test]
fn parts_use_only_those_above_them() {
    for (file, code) in sources() {
        let Some(own) = PARTS.iter().position(|&name| name == part(&file)) else { continue };
        for below in &PARTS[own + 1..] {
            assert!(!code.contains(&format!("crate::{below}")), "{file} uses {below}, which is below it");
        }
    }
}

#[test]
fn the_library_lists_its_parts_in_reading_order() {
    let (_, lib) = sources().into_iter().find(|(file, _)| file == "lib.rs").expect("src/lib.rs");
    let listed: Vec<_> = lib.lines().filter_map(|line| line.strip_prefix("pub mod ")?.strip_suffix(';')).collect();
    assert_eq!(listed, PARTS);
}

#[test]
fn fault_points_are_those_listed() {
    let passed = |code: &str, call: &str| {
        let call = format!("fault::{call}(\"");
        let names = code.split(&call).skip(1).filter_map(|rest| rest.split('"').next());
        names.map(str::to_owned).collect::<Vec<_>>()
    };
    let mut found: Vec<_> = sources().iter().flat_map(|(_, code)| [passed(code, "point"), passed(code, "step")].concat()).collect();
    let mut listed = unseen::fault::POINTS.to_vec();
    found.sort_unstable();
    listed.sort_unstable();
    assert_eq!(found, listed, "each is passed at one place, and named in fault::POINTS");
}

#[test]
fn what_ships_has_no_fault_points() {
    let read = |name| fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(name)).expect("a file of the repository");
    let metadata = read("Cargo.toml");
    assert!(metadata.contains("\ndefault = [\"cli\"]\n"), "the default features are others");
    for feature in ["cli = ", "worker = "] {
        let line = metadata.lines().find(|line| line.starts_with(feature)).expect("the feature");
        assert!(!line.contains("faults"), "{line}");
    }
    for built_by in ["Dockerfile", "scripts/demo"] {
        assert!(!read(built_by).contains("--features") && !read(built_by).contains("--all-features"), "{built_by}");
    }
}

#[test]
fn every_module_says_what_it_owns() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    for (file, _) in sources() {
        let text = fs::read_to_string(root.join(&file)).expect("a source file can be read");
        assert!(is_test(&file) || text.starts_with("//! "), "{file} does not open with what it is for");
    }
}

#[test]
fn files_stay_small() {
    for (file, code) in sources() {
        let lines = code.lines().count();
        assert!(lines <= 500 || is_test(&file), "{file} has {lines} lines");
    }
}
