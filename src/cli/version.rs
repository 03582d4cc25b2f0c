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

/// What the builder says, else what the archive says.
fn commit() -> &'static str {
    match option_env!("UNSEEN_COMMIT") {
        Some(commit) if !commit.is_empty() => commit,
        _ if ARCHIVED.starts_with('$') => "unknown (built in a clone without UNSEEN_COMMIT)",
        _ => ARCHIVED,
    }
}
