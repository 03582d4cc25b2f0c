//! `unseen schema`: what editors and the Helm chart know of a configuration.

/// Prints the JSON schema of a configuration.
///
/// # Errors
/// When nobody reads it.
pub fn run() -> anyhow::Result<()> {
    super::print(&format!("{:#}\n", crate::config::schema()))
}
