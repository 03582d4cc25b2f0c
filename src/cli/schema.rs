//! `unseen schema`: what editors and the Helm chart know of a configuration.

use std::io::Write as _;

/// Prints the JSON schema of a configuration.
///
/// # Errors
/// When nobody reads it.
pub fn run() -> anyhow::Result<()> {
    writeln!(std::io::stdout(), "{:#}", unseen::config::schema())?;
    Ok(())
}
