//! `unseen completions`: what shells complete of the command line. Prints, and installs nothing.

use clap_complete::Shell;

#[derive(clap::Args)]
pub struct Args {
    /// The shell to complete for.
    shell: Shell,
}

/// Prints the completions for a shell.
///
/// # Errors
/// When they cannot be written.
pub fn run(args: &Args) -> anyhow::Result<()> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut super::command(), "unseen", &mut script);
    super::print(&String::from_utf8(script)?)
}
