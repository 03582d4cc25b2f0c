//! `unseen check`: validates a configuration, and prints a summary of its topics.

use super::table::{size, table};
use crate::config::{Config, Topic, window_text};
use crate::{follower, kafka};
use std::fs::File;
use std::path::Path;

const EXAMPLES: &str = "\
Examples:
  unseen check -c unseen.toml
  unseen check -c unseen.toml --connect";

#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    #[command(flatten)]
    config: super::ConfigArgs,
    /// Also connect to the brokers, and check the topics, their partitions, and the schemas
    #[arg(long)]
    connect: bool,
    /// Print the effective configuration as TOML, with all defaults and without secrets
    #[arg(long)]
    print: bool,
}

/// Validates the configuration, and prints "ok" and one line per topic.
///
/// # Errors
/// Returns [`crate::config::Errors`] with every problem found.
pub fn run(args: &Args) -> anyhow::Result<()> {
    let config = args.config.load()?;
    args.config.check_properties(&config)?;
    try_state_dir(&config.state.dir).map_err(|problem| args.config.refuse(vec![problem]))?;
    if config.serve.is_set {
        let faults: Vec<_> = follower::check(&config)
            .iter()
            .map(|fault| format!("serve: {fault}; if you do not run `unseen serve`, remove [serve]"))
            .collect();
        if !faults.is_empty() {
            return Err(args.config.refuse(faults).into());
        }
    }
    for warning in config.shadows().chain(config.serve.open_writes()) {
        eprintln!("warning: {warning}");
    }
    if args.connect {
        eprintln!("connecting to {}", config.kafka.bootstrap_servers);
        let report = |problem: &str| eprintln!("{problem}");
        for warning in kafka::check(&config, &report).map_err(|problems| args.config.refuse(problems))? {
            eprintln!("warning: {warning}");
        }
        for warning in super::schemas::check(&config).map_err(|faults| args.config.refuse(faults))? {
            eprintln!("warning: {warning}");
        }
    }
    if args.print {
        let shadows = config.shadows().fold(String::new(), |text, shadow| text + "# " + &shadow + "\n");
        return super::print(&(shadows + &toml::to_string_pretty(&args.config.effective()?)?));
    }
    super::print(&format!("ok\n\n{}\n", summary(&config)))
}

/// Checks that the state directory is writable, by creating and deleting a file in it or in its closest existing ancestor.
fn try_state_dir(dir: &Path) -> Result<(), String> {
    // The last ancestor of a relative path is empty.
    let ancestors = dir.ancestors().map(|path| if path.as_os_str().is_empty() { Path::new(".") } else { path });
    let there = ancestors.into_iter().find(|path| path.symlink_metadata().is_ok()).unwrap_or(dir);
    let file = there.join(format!(".unseen-check-{}", std::process::id()));
    let tried = File::create_new(&file).and_then(|_| std::fs::remove_file(&file));
    tried.map_err(|error| {
        let action = if there == dir { "write to".to_owned() } else { format!("create a directory in {} for", there.display()) };
        format!("state.dir: cannot {action} {}: {error}; use a directory that this user can write to", dir.display())
    })
}

fn summary(config: &Config) -> String {
    let mut rows = vec![["topic", "output", "space", "window", "filter", "memory*"].map(str::to_owned)];
    rows.extend(config.topics.iter().map(row));
    table(&rows) + "\n* for one partition; partitions share the capacity of a time window, but each has its own count window"
}

fn row(topic: &Topic) -> [String; 6] {
    let memory = topic.rules(1).filter.map_or_else(|| "on disk".to_owned(), |filter| size(filter.bytes(topic.window)));
    let output = topic.output.clone().unwrap_or_else(|| "none (shadow)".to_owned());
    [topic.input.clone(), output, topic.space.clone(), window_text(topic.window), topic.filter.to_string(), memory]
}
