//! `unseen check`: what is wrong with a configuration, or what it comes to.

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
    let widths: [usize; 6] = std::array::from_fn(|column| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0));
    let mut text = String::new();
    for row in &rows {
        let cells: Vec<_> = row.iter().zip(widths).map(|(cell, width)| format!("{cell:width$}")).collect();
        text += cells.join("  ").trim_end();
        text.push('\n');
    }
    text + "\n* if the input has one partition; more partitions share a window by time, and each has its own by count"
}

fn row(topic: &Topic) -> [String; 6] {
    let memory = topic.rules(1).filter.map_or_else(|| "on disk".to_owned(), |filter| size(filter.bytes()));
    [topic.input.clone(), topic.output.clone(), topic.space.clone(), window_text(topic.window), topic.filter.to_string(), memory]
}

/// A number of bytes with one decimal.
fn size(bytes: u64) -> String {
    let units = [(30, "GiB"), (20, "MiB"), (10, "KiB")];
    let (shift, unit) = units.into_iter().find(|(shift, _)| bytes >> shift > 0).unwrap_or((10, "KiB"));
    let tenths = bytes.saturating_mul(10) >> shift;
    format!("{}.{} {unit}", tenths / 10, tenths % 10)
}
