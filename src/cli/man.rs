//! `unseen man`: the manual pages. Prints one, or writes all; installs nothing.

use anyhow::Context as _;
use std::path::PathBuf;

#[derive(clap::Args)]
pub struct Args {
    /// Write a page for `unseen` and one for each command here. Without it, the page for `unseen` is printed.
    dir: Option<PathBuf>,
}

/// Prints the page for the whole command, or writes all pages into a directory that is there.
///
/// # Errors
/// When they cannot be written.
pub fn run(args: &Args) -> anyhow::Result<()> {
    let command = super::command().disable_help_subcommand(true);
    if let Some(dir) = &args.dir {
        return clap_mangen::generate_to(command, dir).with_context(|| format!("cannot write the manual pages into {}", dir.display()));
    }
    let mut page = Vec::new();
    clap_mangen::Man::new(command).render(&mut page)?;
    super::print(&String::from_utf8(page)?)
}
