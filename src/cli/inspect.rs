//! `unseen inspect`: what a state directory holds, what it says of a key, and several joined into one.

use super::table::{size, table};
use super::topic;
use crate::checkpoint::inspect::{Asked, Inspection, Question, StoredPartition, inspect};
use crate::checkpoint::{Settings, merge};
use crate::config::Config;
use crate::key::Scratch;
use crate::replay::format_rfc3339;
use anyhow::{Context as _, ensure};
use indicatif::HumanCount;
use std::path::PathBuf;

/// Options of `unseen inspect`.
#[derive(clap::Args)]
pub struct Args {
    /// State directories (`state.dir`). A worker may be using them: what it wrote last is shown.
    #[arg(required = true, value_name = "DIR")]
    dirs: Vec<PathBuf>,
    /// Write a new state directory in which each partition has seen what it had in any of these. Their
    /// configurations must be alike.
    #[arg(long, value_name = "NEW_DIR")]
    merge: Option<PathBuf>,
    /// Print everything that is known, as one JSON object.
    #[arg(long)]
    json: bool,
    /// Say whether a record with this key would be a duplicate, and since which slice. One for each part of the key,
    /// in order. A field is a JSON value, or a text without its quotes; of `1`, both the number and the text are asked for.
    /// Needs --config.
    #[arg(long, value_name = "PART", requires = "config")]
    key: Vec<String>,
    /// The configuration that says how keys are made.
    #[arg(short, long, value_name = "FILE", env = "UNSEEN_CONFIG")]
    config: Option<PathBuf>,
    /// The topic whose key it is; needed if the configuration has several.
    #[arg(long, value_name = "INPUT", requires = "key")]
    topic: Option<String>,
}

/// Prints what the directories hold.
///
/// # Errors
/// When one cannot be read, or they cannot be joined.
pub fn run(args: &Args) -> anyhow::Result<()> {
    let mut dirs = args.dirs.clone();
    if let Some(target) = &args.merge {
        let partitions = merge::merge(&args.dirs, target)?;
        eprintln!("joined {partitions} partitions in {}", target.display());
        dirs = vec![target.clone()];
    }
    let key = if args.key.is_empty() { None } else { Some(key(args)?) };
    let directories: Vec<_> = dirs.iter().map(|dir| inspect(dir, key.as_ref())).collect::<Result<_, _>>()?;
    if let Some(Question { space, .. }) = &key {
        let found = directories.iter().flat_map(|directory| &directory.partitions).any(|partition| partition.space == *space);
        ensure!(found, "there is nothing of the space {space:?} here");
    }
    if args.json {
        return super::print(&format!("{}\n", serde_json::to_string_pretty(&Inspection { directories })?));
    }
    let partitions = || directories.iter().flat_map(|directory| &directory.partitions);
    let more = if key.is_some() { format!("\n{}", answers(partitions())) } else { slices(partitions()) };
    super::print(&(overview(partitions()) + &more))
}

fn overview<'a>(partitions: impl Iterator<Item = &'a StoredPartition>) -> String {
    let mut rows =
        vec![["partition", "filter", "window", "stream time", "keys", "memory", "wrong*", "digest", "next offsets"].map(str::to_owned)];
    rows.extend(partitions.map(row));
    table(&rows) + "\n* share of unseen keys called seen, by formula\n"
}

fn name(partition: &StoredPartition) -> String {
    format!("{}[{}]", partition.space, partition.partition)
}

fn row(partition: &StoredPartition) -> [String; 9] {
    let offsets: Vec<_> = partition.offsets.iter().map(|(topic, offset)| format!("{topic}={offset}")).collect();
    [
        name(partition),
        partition.filter.clone(),
        partition.window.clone(),
        partition.stream_time_ms.map_or_else(|| "none yet".to_owned(), format_rfc3339),
        HumanCount(partition.keys).to_string(),
        if partition.memory_bytes == 0 { "on disk".to_owned() } else { size(partition.memory_bytes) },
        format!("{:.1e}", partition.estimated_rate),
        partition.digest[..12].to_owned(),
        offsets.join(" "),
    ]
}

/// The slices of each partition; nothing where no kind has them.
fn slices<'a>(partitions: impl Iterator<Item = &'a StoredPartition>) -> String {
    let mut rows = vec![["slice of", "from", "to", "keys", "full", "memory"].map(str::to_owned)];
    for partition in partitions {
        for slice in &partition.slices {
            #[expect(clippy::cast_precision_loss, reason = "a ratio that is shown")]
            let full = slice
                .capacity_keys
                .map_or(String::new(), |capacity| format!("{:.0} %", 100.0 * slice.keys as f64 / capacity.max(1) as f64));
            rows.push([
                name(partition),
                slice.from_ms.map_or_else(|| slice.slice.to_string(), format_rfc3339),
                slice.to_ms.map_or_else(String::new, format_rfc3339),
                HumanCount(slice.keys).to_string(),
                full,
                if slice.memory_bytes == 0 { "on disk".to_owned() } else { size(slice.memory_bytes) },
            ]);
        }
    }
    if rows.len() > 1 { format!("\n{}", table(&rows)) } else { String::new() }
}

/// What each partition says of the key.
fn answers<'a>(partitions: impl Iterator<Item = &'a StoredPartition>) -> String {
    let answer = |asked: &Asked| match (asked.seen, asked.since_ms, asked.slice) {
        (false, ..) => "unseen: a record with this key would go out".to_owned(),
        (true, Some(since), _) => {
            format!("seen in the slice that began at {}: a record with this key would be a duplicate", format_rfc3339(since))
        }
        (true, None, Some(slice)) => format!("seen in slice {slice}: a record with this key would be a duplicate"),
        (true, None, None) => "seen: a record with this key would be a duplicate".to_owned(),
    };
    let lines = partitions.filter_map(|partition| Some(format!("{}  {}\n", name(partition), answer(partition.key.as_ref()?))));
    lines.collect()
}

/// The key that is asked for.
fn key(args: &Args) -> anyhow::Result<Question> {
    let file = args.config.as_ref().context("--key needs --config")?;
    let config = Config::load(file, &[])?;
    let topic = topic::choose(&config, args.topic.as_deref())?;
    let (space, settings, mut fingerprints) = (topic.space.clone(), Settings::of(&config, topic), Vec::new());
    let texts = args.key.iter().map(String::as_bytes);
    topic.key.fingerprints_of_texts(texts, &mut Scratch::default(), &mut fingerprints).with_context(|| format!("{:?}", topic.input))?;
    Ok(Question { space, fingerprints, settings })
}
