//! Replays a recorded stream through the deduplication of a configuration and compares the verdicts with the exact truth. Does the same as
//! `unseen replay --truth`, as a library call for your own tests.
//!
//! ```sh
//! cargo run --release --no-default-features --example replay -- examples/news.toml tests/data/news.ndjson
//! ```

use std::fs::File;
use std::io::{self, BufReader};
use std::path::Path;
use unseen::config::Config;
use unseen::record::Timestamp;
use unseen::replay::{Format, Options, Replay};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [config, input] = &arguments[..] else { return Err("expected CONFIG INPUT".into()) };

    let config = Config::load(Path::new(config), &[])?;
    let topic = &config.topics[0];
    let options = Options { format: Format::Ndjson, time: Some("/time".to_owned()), partitions: 1, truth: true };
    let mut replay = Replay::new(topic, &options)?;
    replay.run(BufReader::new(File::open(input)?), io::sink(), || Timestamp::MAX)?;

    let summary = replay.summary();
    println!("{}: {} records, {} unseen, {} duplicates", topic.input, summary.records, summary.unseen, summary.duplicates);
    let truth = summary.truth.ok_or("the replay has no truth")?;
    println!("dropped wrongly: {}", truth.false_positives);
    // A test would assert that no duplicate was emitted.
    if truth.false_negatives > 0 {
        return Err(format!("{} duplicates within the window were emitted", truth.false_negatives).into());
    }
    Ok(())
}
