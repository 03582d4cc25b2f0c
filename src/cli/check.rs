//! `unseen check`: what is wrong with a configuration, or what it comes to.

use super::table::{size, table};
use crate::config::{Config, Topic, window_text};
use crate::{follower, kafka};
use std::fs::File;
use std::path::Path;

/// Options of `unseen check`.
#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    config: super::ConfigArgs,
    /// Also look at the brokers: do the topics exist, and do their partitions fit?
    #[arg(long)]
    connect: bool,
    /// Print the configuration in effect, with all defaults and without secrets, as TOML.
    #[arg(long)]
    print: bool,
}

/// Says "ok" and what each topic comes to.
///
/// # Errors
/// [`crate::config::Errors`] with everything that is wrong.
pub fn run(args: &Args) -> anyhow::Result<()> {
    let config = args.config.load()?;
    args.config.check_properties(&config)?;
    try_state_dir(&config.state.dir).map_err(|problem| args.config.refuse(vec![problem]))?;
    if config.serve.is_set {
        let faults: Vec<_> =
            follower::check(&config).iter().map(|fault| format!("serve: {fault}; if nothing is served, remove [serve]")).collect();
        if !faults.is_empty() {
            return Err(args.config.refuse(faults).into());
        }
    }
    for warning in config.shadows().chain(config.serve.open_writes()) {
        eprintln!("warning: {warning}");
    }
    if args.connect {
        eprintln!("asking {}", config.kafka.bootstrap_servers);
        let report = |trouble: &str| eprintln!("{trouble}");
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

/// Whether the state can be kept there: writes a file to the directory, or where it would be made, and deletes it.
fn try_state_dir(dir: &Path) -> Result<(), String> {
    // Of a relative path, the last ancestor is empty.
    let ancestors = dir.ancestors().map(|path| if path.as_os_str().is_empty() { Path::new(".") } else { path });
    let there = ancestors.into_iter().find(|path| path.symlink_metadata().is_ok()).unwrap_or(dir);
    let file = there.join(format!(".unseen-check-{}", std::process::id()));
    let tried = File::create_new(&file).and_then(|_| std::fs::remove_file(&file));
    tried.map_err(|error| {
        let what = if there == dir { "written to".to_owned() } else { format!("made in {}", there.display()) };
        format!("state.dir: {} cannot be {what}: {error}; it must be a directory that this user can write to", dir.display())
    })
}

/// A line for each topic.
fn summary(config: &Config) -> String {
    let mut rows = vec![["topic", "output", "space", "window", "filter", "memory*"].map(str::to_owned)];
    rows.extend(config.topics.iter().map(row));
    table(&rows) + "\n* if the input has one partition; more partitions share a window by time, and each has its own by count"
}

fn row(topic: &Topic) -> [String; 6] {
    let memory = topic.rules(1).filter.map_or_else(|| "on disk".to_owned(), |filter| size(filter.bytes(topic.window)));
    let output = topic.output.clone().unwrap_or_else(|| "none (shadow)".to_owned());
    [topic.input.clone(), output, topic.space.clone(), window_text(topic.window), topic.filter.to_string(), memory]
}
