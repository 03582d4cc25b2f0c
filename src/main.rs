//! The `unseen` command.

use std::process::ExitCode;

/// The commit that `git archive` writes into src/cli/commit.txt. In a clone, the file contains only a placeholder that starts with `$`.
const ARCHIVED: &str = include_str!("cli/commit.txt").trim_ascii_end();

/// The allocator of the whole binary, including the C libraries. librdkafka allocates a record in one thread and frees it in another. In
/// that case, the system's allocator takes a lock, and jemalloc is faster. docs/benchmarks/experiments.md has the measurements.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

/// Options that jemalloc reads before `main`: one arena per core instead of four, because every arena keeps unused memory.
#[allow(unsafe_code)]
// SAFETY: only jemalloc uses this symbol, and it expects a pointer to a C string.
#[unsafe(export_name = "malloc_conf")]
static MALLOC_CONF: &[u8; 16] = b"narenas_ratio:1\0";

fn main() -> ExitCode {
    // The binary passes the commit to the library, so a new commit does not recompile the library.
    unseen::cli::main(commit(option_env!("UNSEEN_COMMIT"), ARCHIVED))
}

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
    fn commit_of_the_builder_takes_precedence() {
        assert_eq!(commit(Some("abc with changes"), "def"), "abc with changes");
        assert_eq!(commit(Some("abc"), PLACEHOLDER), "abc");
    }

    #[test]
    fn archive_contains_its_commit() {
        assert_eq!(commit(None, "def"), "def");
        // In the Dockerfile, the build argument `UNSEEN_COMMIT` is empty if it is not set.
        assert_eq!(commit(Some(""), "def"), "def");
    }

    #[test]
    fn commit_of_a_clone_is_unknown_without_the_builder() {
        for built in [None, Some("")] {
            assert!(commit(built, PLACEHOLDER).starts_with("unknown"), "{built:?}");
        }
    }
}
