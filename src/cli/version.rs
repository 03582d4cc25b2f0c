//! What `unseen --version` says: what was built, of which commit, with which features.

use std::sync::LazyLock;
use unseen::kafka;

/// The commit, where sources come as an archive without a repository. In a clone it is still a placeholder.
const ARCHIVED: &str = include_str!("commit.txt").trim_ascii_end();

/// The version and all that tells two builds of it apart.
pub static LONG: LazyLock<String> = LazyLock::new(|| {
    let features = [("cli", true), ("worker", cfg!(feature = "worker")), ("faults", cfg!(feature = "faults"))];
    let features: Vec<_> = features.into_iter().filter_map(|(name, on)| on.then_some(name)).collect();
    format!(
        "{}\ncommit: {}\nfeatures: {}\nlibrdkafka: {}",
        env!("CARGO_PKG_VERSION"),
        commit(),
        features.join(", "),
        kafka::librdkafka_version()
    )
});

fn commit() -> &'static str {
    commit_of(option_env!("UNSEEN_COMMIT"), ARCHIVED)
}

/// What the builder says, else what the archive says.
fn commit_of<'a>(built: Option<&'a str>, archived: &'a str) -> &'a str {
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
        assert_eq!(commit_of(Some("abc with changes"), "def"), "abc with changes");
        assert_eq!(commit_of(Some("abc"), PLACEHOLDER), "abc");
    }

    #[test]
    fn an_archive_knows_its_commit() {
        assert_eq!(commit_of(None, "def"), "def");
        // A build argument that nobody gives is empty.
        assert_eq!(commit_of(Some(""), "def"), "def");
    }

    #[test]
    fn a_clone_without_a_builder_that_says_it_is_unknown() {
        for built in [None, Some("")] {
            assert!(commit_of(built, PLACEHOLDER).starts_with("unknown"), "{built:?}");
        }
    }
}
