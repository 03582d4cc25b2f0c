//! `unseen inspect`: shows the contents of state directories or looks up a key.

use super::topic;
use crate::checkpoint::Settings;
use crate::checkpoint::inspect::{Asked, Inspection, Question, StoredPartition, inspect};
use crate::config::Config;
use crate::dedup::Emit;
use crate::key::Scratch;
use crate::plan::text::{columns, size};
use crate::replay::format_rfc3339;
use anyhow::{Context as _, ensure};
use indicatif::HumanCount;
use std::path::PathBuf;

const EXAMPLES: &str = "\
Examples:
  unseen inspect /var/lib/unseen
  unseen inspect /var/lib/unseen -c unseen.toml --key 4711   # is this key a duplicate?";

#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// State directories (`state.dir`). For a directory in use by a worker, the last checkpoint is shown
    #[arg(required = true, value_name = "DIR")]
    dirs: Vec<PathBuf>,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Part of the key to look up; requires --config. Repeat the option for each part of the key, in order
    ///
    /// A field is a JSON value, or a string without quotes. `1` looks up both the number and the string.
    #[arg(long, value_name = "PART", requires = "config")]
    key: Vec<String>,
    /// Configuration file, in TOML or YAML; defines the key
    #[arg(short, long, value_name = "FILE", env = "UNSEEN_CONFIG")]
    config: Option<PathBuf>,
    /// Override a setting of the configuration, for example `--set topics.0.window=2h`. Repeat the option to override several
    #[arg(long, value_name = "PATH=VALUE", value_parser = super::key_value, requires = "config")]
    set: Vec<(String, String)>,
    /// Input topic, or an entry's `space` if several entries read the topic; optional if there is only one choice
    #[arg(short, long, value_name = "INPUT", requires = "key")]
    topic: Option<String>,
}

pub fn run(args: &Args) -> anyhow::Result<()> {
    let key = if args.key.is_empty() { None } else { Some(key(args)?) };
    let directories: Vec<_> = args.dirs.iter().map(|dir| inspect(dir, key.as_ref())).collect::<Result<_, _>>()?;
    if let Some(Question { space, .. }) = &key {
        let found = directories.iter().flat_map(|directory| &directory.partitions).any(|partition| partition.space == *space);
        ensure!(found, "no directory has a partition of space {space:?}; use the directories and the configuration of the same group");
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
        vec![["partition", "filter", "window", "stream time", "keys", "memory", "error*", "digest", "next offsets"].map(str::to_owned)];
    rows.extend(partitions.map(row));
    columns(&rows, 0..0) + "\n* estimated false-positive rate\n"
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

fn slices<'a>(partitions: impl Iterator<Item = &'a StoredPartition>) -> String {
    let mut rows = vec![["slice of", "from", "to", "keys", "full", "memory"].map(str::to_owned)];
    for partition in partitions {
        for slice in &partition.slices {
            #[expect(clippy::cast_precision_loss, reason = "a percentage for display")]
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
    if rows.len() > 1 { format!("\n{}", columns(&rows, 0..0)) } else { String::new() }
}

fn answers<'a>(partitions: impl Iterator<Item = &'a StoredPartition>) -> String {
    let answer = |asked: &Asked, emit: Emit| {
        let same = if emit == Emit::OnChange { " and the same content" } else { "" };
        let seen = match (asked.seen, asked.since_ms, asked.slice) {
            (false, ..) => return "unseen: a record with this key would be emitted".to_owned(),
            (true, Some(since), _) => format!("seen in the slice that starts at {}", format_rfc3339(since)),
            (true, None, Some(slice)) => format!("seen in slice {slice}"),
            (true, None, None) => "seen".to_owned(),
        };
        format!("{seen}: a record with this key{same} would be a duplicate")
    };
    let line = |partition: &StoredPartition| {
        let answer = answer(partition.key.as_ref()?, Settings::emit_of(&partition.filter));
        Some(format!("{}  {answer}\n", name(partition)))
    };
    partitions.filter_map(line).collect()
}

fn key(args: &Args) -> anyhow::Result<Question> {
    let file = args.config.as_ref().context("--key needs --config")?;
    let config = topic::expand_rule(&Config::load(file, &args.set)?, args.topic.as_deref())?;
    let topic = topic::choose(&config, args.topic.as_deref())?;
    let (space, settings, mut fingerprints) = (topic.space.clone(), Settings::of(&config, topic), Vec::new());
    let texts = args.key.iter().map(String::as_bytes);
    topic.key.fingerprints_of_texts(texts, &mut Scratch::default(), &mut fingerprints).with_context(|| format!("{:?}", topic.input))?;
    Ok(Question { space, fingerprints, settings })
}
