//! Promise: the image's build finds every file that Cargo.toml requires.
//!
//! Follows the first stage of the Dockerfile in a temporary directory: copies the same files, subject to .dockerignore, and runs the same
//! commands. A complete `cargo build` would take many minutes. The test therefore also asks for a binary that does not exist and checks
//! that cargo reports no other error.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

fn first_stage(dockerfile: &str) -> Vec<(String, String)> {
    let text = dockerfile.lines().filter(|line| !line.trim_start().starts_with('#')).collect::<Vec<_>>().join("\n");
    let text = text.replace("\\\n", " ");
    let instructions = text.lines().filter_map(|line| line.split_once(' ')).map(|(name, rest)| (name.to_owned(), rest.trim().to_owned()));
    let mut stages = 0;
    let stage = instructions.take_while(|(name, _)| {
        stages += usize::from(name == "FROM");
        stages < 2
    });
    stage.collect()
}

fn copy(from: &Path, to: &Path) {
    if from.is_dir() {
        fs::create_dir_all(to).unwrap();
        for entry in fs::read_dir(from).unwrap() {
            let entry = entry.unwrap();
            copy(&entry.path(), &to.join(entry.file_name()));
        }
    } else {
        fs::create_dir_all(to.parent().unwrap()).unwrap();
        fs::copy(from, to).unwrap_or_else(|error| panic!("COPY {}: {error}", from.display()));
    }
}

/// The error message of cargo if nothing except this binary is missing.
const NO_SUCH: &str = "no bin target named `no-such`";

/// Installs a `cargo` that stops before it compiles.
fn put_cargo(bin: &Path) {
    use std::os::unix::fs::PermissionsExt as _;
    fs::create_dir_all(bin).unwrap();
    let script = format!(
        r#"#!/bin/sh
said=$('{cargo}' "$@" --offline --bin no-such 2>&1)
case "$said" in *'{NO_SUCH}'*) ;; *) echo "$said" >&2; exit 1 ;; esac
'{cargo}' metadata --no-deps --offline --format-version 1 > "$(dirname "$0")/metadata.json"
"#,
        // The real cargo, because `cargo` in the PATH is this script.
        cargo = env!("CARGO")
    );
    fs::write(bin.join("cargo"), script).unwrap();
    fs::set_permissions(bin.join("cargo"), fs::Permissions::from_mode(0o755)).unwrap();
}

/// The tables of a manifest, except those that the Dockerfile removes.
fn tables(manifest: &str) -> Vec<&str> {
    let is_cut = |line: &str| matches!(line, "[[test]]" | "[[bench]]" | "[[example]]");
    manifest.lines().filter(|line| line.starts_with('[') && !is_cut(line)).collect()
}

#[test]
fn table_after_a_test_without_a_blank_line_is_kept() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let squeezed = fs::read_to_string(root.join("Cargo.toml")).unwrap().replace("\n\n", "\n");
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("Cargo.toml"), &squeezed).unwrap();
    let (_, cut) = first_stage(&fs::read_to_string(root.join("Dockerfile")).unwrap())
        .into_iter()
        .find(|(name, rest)| name == "RUN" && rest.contains("Cargo.toml"))
        .expect("the Dockerfile cuts the manifest");
    let (cut, _) = cut.split_once("&& mkdir").expect("the manifest comes before the empty sources");
    let run = Command::new("sh").args(["-c", cut]).current_dir(dir.path()).output().unwrap();
    assert!(run.status.success(), "{cut}\n{}", String::from_utf8_lossy(&run.stderr));
    let kept = fs::read_to_string(dir.path().join("Cargo.toml")).unwrap();
    assert_eq!(kept.lines().filter(|line| line.starts_with('[')).collect::<Vec<_>>(), tables(&squeezed));
}

#[test]
fn image_build_finds_all_files() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let read = |name| fs::read_to_string(root.join(name)).unwrap();
    let ignored = read(".dockerignore");
    let context: Vec<_> = ignored.lines().filter_map(|line| line.strip_prefix('!')).collect();
    assert!(ignored.lines().any(|line| line == "*"), ".dockerignore leaves out all that it does not name");
    let dir = tempfile::tempdir().unwrap();
    let (src, bin) = (dir.path().join("src"), dir.path().join("bin"));
    fs::create_dir(&src).unwrap();
    put_cargo(&bin);
    let path = format!("{}:{}", bin.display(), std::env::var("PATH").unwrap());

    let mut builds = 0;
    for (name, rest) in first_stage(&read("Dockerfile")) {
        match &*name {
            "COPY" => {
                let mut sources: Vec<_> = rest.split_whitespace().collect();
                let target = src.join(sources.pop().unwrap());
                for source in sources {
                    assert!(context.contains(&source), "COPY {source}: .dockerignore leaves it out");
                    let into = if target.is_dir() && !root.join(source).is_dir() { target.join(source) } else { target.clone() };
                    copy(&root.join(source), &into);
                }
            }
            // The other commands install system packages.
            "RUN" if rest.contains("Cargo.toml") || rest.contains("cargo build") => {
                let run = Command::new("sh")
                    .args(["-c", &rest])
                    .current_dir(&src)
                    .env("PATH", &path)
                    .env("CARGO_TARGET_DIR", bin.join("target"))
                    .output()
                    .unwrap();
                assert!(run.status.success(), "RUN {rest}\n{}", String::from_utf8_lossy(&run.stderr));
                builds += usize::from(rest.contains("cargo build"));
            }
            _ => {}
        }
    }
    assert!(builds > 0, "the first stage builds");
    let metadata: serde_json::Value = serde_json::from_str(&fs::read_to_string(bin.join("metadata.json")).unwrap()).unwrap();
    let targets = metadata["packages"][0]["targets"].as_array().unwrap();
    let built: Vec<_> = targets.iter().filter(|target| target["kind"][0] == "lib" || target["kind"][0] == "bin").collect();
    assert_eq!(built.len(), 2, "{targets:?}");
    for target in built {
        let file = PathBuf::from(target["src_path"].as_str().unwrap());
        assert!(file.is_file(), "{} is not there", file.display());
    }
}
