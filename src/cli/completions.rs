//! `unseen completions`: prints shell completions.

use clap_complete::Shell;

#[derive(clap::Args)]
pub struct Args {
    /// Shell that will load the completions
    shell: Shell,
}

pub fn run(args: &Args) -> anyhow::Result<()> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut super::command(), "unseen", &mut script);
    super::print(&String::from_utf8(script)?)
}
