//! `unseen man`: prints or writes the manual pages.

use anyhow::Context as _;
use std::path::PathBuf;

#[derive(clap::Args)]
pub struct Args {
    /// Existing directory for all manual pages. Without a directory, the page for `unseen` is printed to stdout
    dir: Option<PathBuf>,
}

pub fn run(args: &Args) -> anyhow::Result<()> {
    let command = super::command().disable_help_subcommand(true);
    if let Some(dir) = &args.dir {
        return clap_mangen::generate_to(command, dir).with_context(|| format!("cannot write the manual pages to {}", dir.display()));
    }
    let mut page = Vec::new();
    clap_mangen::Man::new(command).render(&mut page)?;
    super::print(&String::from_utf8(page)?)
}
