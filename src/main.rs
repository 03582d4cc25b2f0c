//! The `unseen` command.

use std::process::ExitCode;

/// The commit of an archive. In a clone, it is still a placeholder.
const ARCHIVED: &str = include_str!("cli/commit.txt").trim_ascii_end();

/// It is that of the C libraries, too. librdkafka allocates a record in one thread and frees it in another, which the
/// system's allocator has a lock for: docs/contributing/performance.md says what that took.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

/// What it is told, read as a C string before `main`: an arena a core instead of four, for each keeps memory of its own.
#[allow(unsafe_code)]
// SAFETY: nothing but jemalloc looks for this name, and it reads there a pointer to a C string, which this is.
#[unsafe(export_name = "malloc_conf")]
static MALLOC_CONF: &[u8; 16] = b"narenas_ratio:1\0";

fn main() -> ExitCode {
    // Here and not in the library, so that a new commit compiles only this file again.
    unseen::cli::main(commit(option_env!("UNSEEN_COMMIT"), ARCHIVED))
}

/// Returns the commit that the builder names, or else that of the archive.
fn commit<'a>(built: Option<&'a str>, archived: &'a str) -> &'a str {
    match built {
        Some(commit) if !commit.is_empty() => commit,
        _ if archived.starts_with('$') => "unknown (built in a clone without UNSEEN_COMMIT)",
        _ => archived,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLACEHOLDER: &str = concat!("$", "Format:%H$");

    #[test]
    fn the_builder_knows_the_commit_best() {
        assert_eq!(commit(Some("abc with changes"), "def"), "abc with changes");
        assert_eq!(commit(Some("abc"), PLACEHOLDER), "abc");
    }

    #[test]
    fn an_archive_knows_its_commit() {
        assert_eq!(commit(None, "def"), "def");
        // A build argument that nobody gives is empty.
        assert_eq!(commit(Some(""), "def"), "def");
    }

    #[test]
    fn a_clone_without_a_builder_that_says_it_is_unknown() {
        for built in [None, Some("")] {
            assert!(commit(built, PLACEHOLDER).starts_with("unknown"), "{built:?}");
        }
    }
}
