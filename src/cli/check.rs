//! `unseen check`: what is wrong with a configuration, or what it comes to.

use super::table::{size, table};
use unseen::config::{Config, Topic, window_text};
use unseen::kafka;

/// Options of `unseen check`.
#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    config: super::ConfigArgs,
    /// Also look at the brokers: do the topics exist, and do their partitions fit?
    #[arg(long)]
    connect: bool,
}

/// Says "ok" and what each topic comes to.
///
/// # Errors
/// [`unseen::config::Errors`] with everything that is wrong.
pub fn run(args: &Args) -> anyhow::Result<()> {
    let config = args.config.load()?;
    args.config.check_properties(&config)?;
    if args.connect {
        eprintln!("asking {}", config.kafka.bootstrap_servers);
        for warning in kafka::check(&config).map_err(|problems| args.config.refuse(problems))? {
            eprintln!("warning: {warning}");
        }
    }
    println!("ok\n\n{}", summary(&config));
    Ok(())
}

/// A line for each topic.
fn summary(config: &Config) -> String {
    let mut rows = vec![["topic", "output", "space", "window", "filter", "memory*"].map(str::to_owned)];
    rows.extend(config.topics.iter().map(row));
    table(&rows) + "\n* if the input has one partition; more partitions share a window by time, and each has its own by count"
}

fn row(topic: &Topic) -> [String; 6] {
    let memory = topic.rules(1).filter.map_or_else(|| "on disk".to_owned(), |filter| size(filter.bytes()));
    [topic.input.clone(), topic.output.clone(), topic.space.clone(), window_text(topic.window), topic.filter.to_string(), memory]
}
