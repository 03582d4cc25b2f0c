//! `unseen demo`: runs a worker on an embedded broker with a synthetic news feed and compares the output with an exact count.

use crate::checkpoint::Store;
use crate::config::Config;
use crate::format::NoSchemas;
use crate::kafka::{self, Embedded, Generator, KafkaBroker, Reader};
use crate::runtime;
use crate::stats::{Stats, Totals};
use crate::worker::{Rebuilder, Shared, Worker};
use anyhow::Context as _;
use std::collections::{HashMap, HashSet};
use std::io::{IsTerminal as _, Write as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

const PARTITIONS: i32 = 4;
/// Maximum number of unread records. The embedded broker keeps only the newest records, so records that stay unread for too long are lost.
const UNREAD_MAX: u64 = 40_000;
const DRAIN_TIMEOUT: Duration = Duration::from_secs(10);

const EXAMPLES: &str = "\
Examples:
  unseen demo
  unseen demo --seconds 20 --duplicates 80";

#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Number of seconds to generate records for
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u64).range(1..=25))]
    seconds: u64,
    /// Percentage of duplicates in the feed
    #[arg(long, value_name = "PERCENT", default_value_t = 50, value_parser = clap::value_parser!(u64).range(0..=99))]
    duplicates: u64,
}

fn configuration(servers: &str, dir: &Path) -> String {
    format!(
        r#"[kafka]
bootstrap_servers = "{servers}"
group_id = "unseen-demo"
[kafka.properties]
"fetch.wait.max.ms" = 10   # the embedded broker always waits this long before it answers

[state]
dir = "{}"
changelog = false          # the embedded broker does not hide aborted records, and the demo deletes its state at the end

[[topics]]
input  = "news.events"
output = "news.unseen"
space  = "seen-news"
key    = [{{ field = "/news_id" }}]
window = "24h"
filter = {{ kind = "aging", capacity = "12M", false_positive_rate = 1e-4 }}
"#,
        dir.join("state").display()
    )
}

fn introduce(args: &Args, configuration: &str) {
    println!("unseen demo: deduplicates a news feed with {} % duplicates for {} s.", args.duplicates, args.seconds);
    println!("The demo uses an embedded broker, which cannot show fault tolerance. The integration tests");
    println!("(scripts/test) check on a real Kafka that a kill -9 neither loses nor duplicates records.\n");
    for line in configuration.lines() {
        println!("    {line}");
    }
    println!();
}

pub fn run(args: &Args) -> anyhow::Result<()> {
    let dir = Scratch::new()?;
    let broker = Embedded::start(&["news.events", "news.unseen"], PARTITIONS)?;
    let text = configuration(&broker.address(), &dir.0);
    let file = dir.0.join("unseen.toml");
    std::fs::write(&file, &text)?;
    introduce(args, &text);

    let config = Arc::new(Config::load(&file, &[])?);
    let (stop, stats) = (Arc::new(AtomicBool::new(false)), Arc::new(Stats::new(&config)));
    let store = Arc::new(Store::open(&config.state.dir)?);
    let kafka = KafkaBroker::new(Arc::clone(&stats));
    let shared = Shared {
        broker: kafka.clone(),
        cluster: Arc::new(broker.cluster()),
        rebuilder: Arc::new(Rebuilder::start(&kafka, &config, &store, &stats, &stop)),
        store,
        stats: Arc::clone(&stats),
        cross_partition_keys: Arc::default(),
        schemas: Arc::new(NoSchemas),
        stop: Arc::clone(&stop),
        instance: "demo".into(),
        config,
    };
    let worker = std::thread::spawn(move || Worker::connect(shared, 0)?.run(0));
    let (read, written) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    let reader = {
        let (reader, stop, read) = (broker.reader("news.unseen", PARTITIONS)?, Arc::clone(&stop), Arc::clone(&read));
        std::thread::spawn(move || collect(&reader, &stop, &read))
    };
    let began = Instant::now();
    let writer = {
        let (generator, stats, read, written) =
            (broker.generator("news.events")?, Arc::clone(&stats), Arc::clone(&read), Arc::clone(&written));
        let feed = Feed { duplicates: args.duplicates, length: Duration::from_secs(args.seconds), random: 0, ids: 0 };
        std::thread::spawn(move || feed.write(&generator, &stats, &read, &written))
    };

    let mut line = ProgressLine { began, shown: 0, at: began };
    while !writer.is_finished() && !worker.is_finished() {
        std::thread::sleep(Duration::from_millis(200));
        line.show(&stats, false);
    }
    if worker.is_finished() {
        worker.join().map_err(|_| anyhow::anyhow!("the worker panicked; this is a bug, please report it"))??;
        anyhow::bail!("the worker stopped without an error before the demo ended; this is a bug, please report it");
    }
    let truth = writer.join().map_err(|_| anyhow::anyhow!("the generator panicked; this is a bug, please report it"))??;
    let generated = written.load(Ordering::Relaxed);
    let waiting = Instant::now();
    while (stats.totals().records < generated || read.load(Ordering::Relaxed) < stats.totals().unseen) && waiting.elapsed() < DRAIN_TIMEOUT
    {
        std::thread::sleep(Duration::from_millis(50));
    }
    let elapsed = began.elapsed();
    line.show(&stats, true);
    eprintln!();
    stop.store(true, Ordering::Relaxed);
    worker.join().map_err(|_| anyhow::anyhow!("the worker panicked; this is a bug, please report it"))??;
    let emitted = reader.join().map_err(|_| anyhow::anyhow!("the reader panicked; this is a bug, please report it"))?;
    summarize(generated, &truth, &emitted, elapsed)
}

/// Generates records, some with a new ID and some with the ID of an earlier record.
struct Feed {
    duplicates: u64,
    length: Duration,
    random: u64,
    ids: u64,
}

impl Feed {
    /// Returns the IDs that were written.
    fn write(mut self, generator: &Generator, stats: &Stats, read: &AtomicU64, written: &AtomicU64) -> Result<HashSet<u64>, kafka::Error> {
        let mut truth = HashSet::new();
        let mut until: Option<Instant> = None;
        while until.is_none_or(|until| Instant::now() < until) {
            let totals = stats.totals();
            if totals.records > 0 {
                // Joining the group takes a while, so the time starts when the worker has processed its first record.
                until.get_or_insert_with(|| Instant::now() + self.length);
            }
            let unread = written
                .load(Ordering::Relaxed)
                .saturating_sub(totals.records)
                .max(totals.unseen.saturating_sub(read.load(Ordering::Relaxed)));
            if unread > UNREAD_MAX {
                std::thread::sleep(Duration::from_millis(1));
                continue;
            }
            for _ in 0..100 {
                let id = self.next_id();
                truth.insert(id);
                let news_id = format!("news-{id:08}");
                let time = runtime::wall_clock();
                let value = value(id, &news_id, time);
                let partition = i32::try_from(mix(id) % u64::from(PARTITIONS.unsigned_abs())).unwrap_or(0);
                generator.write(partition, &news_id, value.as_bytes(), time)?;
            }
            written.fetch_add(100, Ordering::Relaxed);
        }
        generator.flush()?;
        Ok(truth)
    }

    /// Returns a new ID or an earlier ID. Half of the duplicates repeat one of the last 1,000 IDs, as retries do. The others repeat any
    /// earlier ID.
    fn next_id(&mut self) -> u64 {
        self.random = self.random.wrapping_add(1);
        let random = mix(self.random);
        if self.ids == 0 || random % 100 >= self.duplicates {
            self.ids += 1;
            return self.ids;
        }
        let reach = if random & (1 << 40) == 0 { self.ids.min(1000) } else { self.ids };
        self.ids - mix(random) % reach
    }
}

fn value(id: u64, news_id: &str, published: i64) -> String {
    let source = id % 97;
    let title = format!("Event number {id}, according to sources close to the matter");
    format!(r#"{{"news_id":"{news_id}","source":"wire-{source}","title":"{title}","lang":"en","published":{published}}}"#)
}

/// `SplitMix64`, a small pseudorandom generator (Steele, Lea, Flood, 2014).
const fn mix(seed: u64) -> u64 {
    let mut z = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

fn collect(reader: &Reader, stop: &AtomicBool, read: &AtomicU64) -> HashMap<Vec<u8>, u64> {
    let mut emitted = HashMap::new();
    while !stop.load(Ordering::Relaxed) {
        if let Some(key) = reader.read(Duration::from_millis(100)) {
            *emitted.entry(key).or_default() += 1;
            read.fetch_add(1, Ordering::Relaxed);
        }
    }
    emitted
}

struct ProgressLine {
    began: Instant,
    shown: u64,
    at: Instant,
}

impl ProgressLine {
    fn show(&mut self, stats: &Stats, last: bool) {
        let Totals { records, unseen, duplicates, .. } = stats.totals();
        let terminal = std::io::stderr().is_terminal();
        if !terminal && !last && self.at.elapsed() < Duration::from_secs(2) {
            return;
        }
        if records == 0 && !last {
            eprint!("{:>5.1} s  the worker is joining its group{}", self.began.elapsed().as_secs_f64(), if terminal { '\r' } else { '\n' });
            let _ = std::io::stderr().flush();
            self.at = Instant::now();
            return;
        }
        let rate = u128::from(records - self.shown) * 1000 / self.at.elapsed().as_millis().max(1);
        let end = if terminal { '\r' } else { '\n' };
        eprint!(
            "{:>5.1} s  {rate:>7} records/s  {records:>9} records  {unseen:>9} unseen  {duplicates:>9} duplicates  slice {:>5.1} % full {end}",
            self.began.elapsed().as_secs_f64(),
            stats.load() * 100.0,
        );
        let _ = std::io::stderr().flush();
        (self.shown, self.at) = (records, Instant::now());
    }
}

fn summarize(generated: u64, truth: &HashSet<u64>, emitted: &HashMap<Vec<u8>, u64>, elapsed: Duration) -> anyhow::Result<()> {
    let twice = emitted.values().filter(|&&times| times > 1).count();
    let missing = truth.len() - emitted.len().min(truth.len());
    println!("\ncompared with an exact count:");
    println!("  {generated:>9} records written with {} distinct IDs in {:.1} s", truth.len(), elapsed.as_secs_f64());
    println!("  {:>9} records emitted", emitted.values().sum::<u64>());
    println!("  {twice:>9} IDs emitted twice");
    #[expect(clippy::cast_precision_loss, reason = "a rate")]
    let rate = missing as f64 / truth.len().max(1) as f64;
    println!("  {missing:>9} IDs not emitted: false positives, a rate of {rate:.1e} (configured maximum: 1e-4)");
    println!("\nNext, follow \"Your first topic in five minutes\" in README.md. `unseen init --help` shows how to write a configuration.");
    anyhow::ensure!(twice == 0, "{twice} IDs were emitted twice; this is a bug, please report it");
    Ok(())
}

struct Scratch(PathBuf);

impl Scratch {
    fn new() -> anyhow::Result<Self> {
        let dir = std::env::temp_dir().join(format!("unseen-demo-{}", std::process::id()));
        std::fs::create_dir_all(&dir).with_context(|| format!("cannot create {}", dir.display()))?;
        Ok(Self(dir))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
