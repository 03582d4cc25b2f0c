//! `unseen inspect`: what a state directory holds, and several joined into one.

use super::table::{size, table};
use anyhow::Context;
use indicatif::HumanCount;
use std::path::PathBuf;
use std::time::{Duration, UNIX_EPOCH};
use unseen::checkpoint::{Head, PartitionId, Store, digest, merge};

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
}

/// Prints what the directories hold.
///
/// # Errors
/// When one cannot be read, or they cannot be joined.
pub fn run(args: &Args) -> anyhow::Result<()> {
    if let Some(target) = &args.merge {
        let partitions = merge::merge(&args.dirs, target)?;
        eprintln!("joined {partitions} partitions in {}", target.display());
        return show(std::slice::from_ref(target), args.json);
    }
    show(&args.dirs, args.json)
}

fn show(dirs: &[PathBuf], json: bool) -> anyhow::Result<()> {
    let mut rows = vec![["partition", "filter", "window", "stream time", "keys", "memory", "digest", "next offsets"].map(str::to_owned)];
    let mut all = serde_json::Map::new();
    for dir in dirs {
        let store = Store::open_to_read(dir)?;
        let mut partitions = serde_json::Map::new();
        for (id, head) in store.heads()? {
            let digest = format!("{:032x}", digest(&store, &id, &head)?);
            rows.push(row(&id, &head, &digest));
            let mut value = serde_json::to_value(&head).context("a head")?;
            if let Some(fields) = value.as_object_mut() {
                fields.insert("digest".to_owned(), digest.into());
            }
            partitions.insert(id.to_string(), value);
        }
        all.insert(dir.display().to_string(), partitions.into());
    }
    if json {
        println!("{}", serde_json::to_string_pretty(&all)?);
    } else {
        print!("{}", table(&rows));
    }
    Ok(())
}

fn row(id: &PartitionId, head: &Head, digest: &str) -> [String; 8] {
    let usage = head.memory.usage();
    let time = head.memory.stream_time.map_or_else(|| "none yet".to_owned(), time);
    let offsets: Vec<_> = head.offsets.iter().map(|(topic, offset)| format!("{topic}={offset}")).collect();
    [
        id.to_string(),
        head.settings.filter.clone(),
        head.settings.window.to_string(),
        time,
        HumanCount(usage.keys).to_string(),
        if usage.bytes == 0 { "on disk".to_owned() } else { size(usage.bytes) },
        digest[..12].to_owned(),
        offsets.join(" "),
    ]
}

/// RFC 3339, in UTC.
fn time(millis: i64) -> String {
    let since = u64::try_from(millis).ok().and_then(|millis| UNIX_EPOCH.checked_add(Duration::from_millis(millis)));
    since.map_or_else(|| format!("{millis} ms"), |time| humantime::format_rfc3339_millis(time).to_string())
}
