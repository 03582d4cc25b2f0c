//! The options of `unseen plan` that size a deployment.
//!
//! Owns where each number comes from: the flag, then the configuration, then what a configuration has that says nothing.

use std::time::Duration;
use unseen::config::{Config, Delivery, Filter, RateIs, Topic, flags};
use unseen::plan::scale::{Scale, ScaleAsk, ScaleError, repeats};
use unseen::plan::{Comparison, Row};

/// What `--help` says of the JSON.
pub const JSON_HELP: &str = "
  scale    with --records-per-second: ask, load, processor, memory, disk, network, brokers, time, limits[] of name, used,
           breaks_at, of, basis and then; unit_costs[] of name, value, unit, basis and source. docs/scale.md has the formulas";

/// Options that size a deployment.
#[derive(clap::Args)]
#[command(next_help_heading = "Deployment")]
pub struct Args {
    /// Records a second of the whole topic, repeats and all, such as 1M: says what a deployment needs, and what breaks first.
    #[arg(long, value_name = "N", value_parser = flags::count)]
    pub records_per_second: Option<u64>,
    /// Processes of the group.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = flags::count, requires = "records_per_second")]
    members: u64,
    /// Worker threads of each; `worker.workers` of -c, or 1.
    #[arg(long, value_name = "N", value_parser = flags::count, requires = "records_per_second")]
    workers: Option<u64>,
    /// Cores of each.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = flags::count, requires = "records_per_second")]
    cores: u64,
    /// Memory of each, such as 4GiB; without it, memory is no limit.
    #[arg(long, value_name = "SIZE", value_parser = flags::bytes, requires = "records_per_second")]
    member_memory: Option<u64>,
    /// Share of records that are repeats, such as 0.5; without it, what is left beside the new keys of a window.
    #[arg(long, value_name = "SHARE", requires = "records_per_second")]
    repeats: Option<f64>,
    /// Bytes of a record: key, value and headers.
    #[arg(long, value_name = "SIZE", default_value = "200", value_parser = flags::bytes, requires = "records_per_second")]
    record_bytes: u64,
    /// Bytes on the wire over those of records, such as 0.4; 1 is not compressed.
    #[arg(long, value_name = "RATIO", default_value_t = 1.0, requires = "records_per_second")]
    compression: f64,
    /// Time between commits; `worker.commit_interval` of -c, or 200ms.
    #[arg(long, value_name = "TIME", value_parser = flags::duration, requires = "records_per_second")]
    commit_interval: Option<Duration>,
    /// Brokers.
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = flags::count, requires = "records_per_second")]
    brokers: u64,
    /// Cores of each broker; without it, they are no limit.
    #[arg(long, value_name = "N", value_parser = flags::count, requires = "records_per_second")]
    broker_cores: Option<u64>,
    /// Replicas of output and changelog.
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = flags::count, requires = "records_per_second")]
    replication: u64,
}

/// What a deployment needs, if that was asked.
///
/// # Errors
/// For numbers that no deployment has.
pub fn scale(args: &Args, config: Option<&Config>, topic: Option<&Topic>, report: &Comparison) -> Result<Option<Scale>, ScaleError> {
    let Some(records_per_second) = args.records_per_second else { return Ok(None) };
    let (ask, usual) = (&report.ask, ScaleAsk::default());
    let repeats = match (args.repeats, &report.sample) {
        (Some(share), _) => share,
        // Its keys are those of its own rate.
        (None, Some(sample)) => sample.repeat_share,
        (None, None) => repeats(records_per_second, ask.keys, ask.window_ms)?,
    };
    let filter = chosen(topic, &report.kinds).ok_or(ScaleError::Kind)?;
    let partitions = u64::from(ask.partitions);
    let property = |names: &[&str]| {
        let set = config.into_iter().flat_map(|config| names.iter().filter_map(|&name| config.kafka.properties.get(name)));
        set.last().map(String::as_str)
    };
    let worker = config.map(|config| &config.worker);
    let delivery = worker.map_or_else(Delivery::default, |worker| worker.delivery);
    let configured = || worker.map_or(Duration::from_millis(usual.commit_interval_ms), |worker| worker.commit_interval);
    let commit_interval = args.commit_interval.unwrap_or_else(configured);
    Scale::new(&ScaleAsk {
        records_per_second,
        repeats,
        record_bytes: args.record_bytes,
        compression: args.compression,
        keys: ask.keys,
        window_ms: ask.window_ms,
        // A pair is one slice, whatever is asked of the others.
        slices: if filter.kind == "pair" { 1 } else { ask.slices },
        partitions,
        members: args.members,
        workers: args.workers.or(worker.map(|worker| worker.workers.into())).unwrap_or(usual.workers),
        cores: args.cores,
        member_memory_bytes: args.member_memory,
        brokers: args.brokers,
        broker_cores: args.broker_cores,
        replication: args.replication,
        commit_interval_ms: millis(commit_interval),
        max_transaction_records: worker.map_or(usual.max_transaction_records, |worker| worker.max_transaction_records as u64),
        checkpoint_interval_ms: worker.map_or(usual.checkpoint_interval_ms, |worker| millis(worker.checkpoint_interval)),
        // The worker asks for twice the commit interval at least.
        transaction_timeout_ms: worker
            .map_or(usual.transaction_timeout_ms, |worker| millis(worker.transaction_timeout))
            .max(millis(commit_interval).saturating_mul(2)),
        max_write_rate: config.map_or(usual.max_write_rate, |config| config.state.max_write_rate),
        linger_ms: property(&["linger.ms", "queue.buffering.max.ms"])
            .and_then(|text| text.parse().ok())
            .unwrap_or_else(|| delivery.linger(commit_interval, ask.partitions).as_secs_f64() * 1000.0),
        session_timeout_ms: property(&["session.timeout.ms"]).and_then(|text| text.parse().ok()).unwrap_or(usual.session_timeout_ms),
        exactly_once: delivery == Delivery::ExactlyOnce,
        changelog: config.is_none_or(|config| config.state.changelog),
        repartition: topic.is_some_and(|topic| topic.repartition),
        output: topic.is_none_or(|topic| topic.output.is_some()),
        kind: filter.kind.clone(),
        filter_partition_bytes: filter_bytes(topic, filter, partitions),
        filter_partition_disk_bytes: filter.disk_bytes.div_ceil(partitions.max(1)),
    })
    .map(Some)
}

/// The kind that the topic has, if it is compared; else the first that a topic can have.
fn chosen<'r>(topic: Option<&Topic>, kinds: &'r [Row]) -> Option<&'r Row> {
    let of_topic = topic.and_then(|topic| kinds.iter().find(|row| row.kind == topic.filter.kind.name()));
    of_topic.or_else(|| kinds.iter().find(|row| row.configuration.is_some()))
}

/// Memory of the filter of one partition, as the topic sizes it.
fn filter_bytes(topic: Option<&Topic>, row: &Row, partitions: u64) -> u64 {
    let filter = topic.map(|topic| &topic.filter).filter(|filter| filter.kind.name() == row.kind);
    // Each partition has all of a window by count, whose keys the configuration names.
    if let (Some(filter), Some(topic)) = (filter, topic.filter(|topic| topic.window.length_ms().is_none())) {
        let spec = filter.spec(topic.window, u32::try_from(partitions).unwrap_or(u32::MAX));
        return spec.map_or(0, |spec| spec.bytes(topic.window));
    }
    match (filter, row.by_mean) {
        (Some(Filter { memory: Some(bytes), .. }), _) => bytes / partitions.max(1),
        (Some(Filter { rate_is: RateIs::Mean, .. }), Some(by_mean)) => by_mean.steady_partition_bytes,
        _ => row.steady_partition_bytes,
    }
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}
