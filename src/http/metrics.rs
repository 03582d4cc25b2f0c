//! Renders the status as Prometheus metrics.
//!
//! Defines the names of the metrics. A test compares them with `docs/reference/metrics.md`. Labels must have few values: names from the
//! configuration, partition numbers, fixed words, or the few values of `count_by`.

use super::encoder::{self, Encoder, float, seconds};
use crate::record::Reason;
use crate::status::{ConflictStatus, Durations, ObservedRate, SpaceStatus, State, Status, TopicStatus, ValueStatus, VerdictCounts};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::DescriptorEncoder;
use std::fmt::Error;

pub fn render(status: Status) -> String {
    encoder::render(Metrics(status))
}

#[derive(Debug)]
struct Metrics(Status);

impl Collector for Metrics {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> Result<(), Error> {
        let (status, mut encoder) = (&self.0, Encoder::new(encoder));
        records(status, &mut encoder)?;
        partitions(status, &mut encoder)?;
        transactions(status, &mut encoder)?;
        filters(status, &mut encoder)?;
        checkpoints(status, &mut encoder)?;
        schemas(status, &mut encoder)?;
        process(status, &mut encoder)
    }
}

fn records(status: &Status, encoder: &mut Encoder<'_>) -> Result<(), Error> {
    let of = |count: fn(&TopicStatus) -> u64| status.topics.iter().map(move |topic| ([("topic", topic.topic.clone())], count(topic)));
    let verdicts = |topic: &TopicStatus| {
        let VerdictCounts { unseen, duplicate, late, invalid, retracted, tombstone, passed } = topic.records;
        let counts = [
            ("unseen", unseen),
            ("duplicate", duplicate),
            ("late", late),
            ("invalid", invalid),
            ("retracted", retracted),
            ("tombstone", tombstone),
            ("passed", passed),
        ];
        let topic = topic.topic.clone();
        counts.map(|(verdict, count)| ([("topic", topic.clone()), ("verdict", verdict.to_owned())], count))
    };
    encoder.counters("unseen_records_total", "Records by verdict", status.topics.iter().flat_map(verdicts))?;
    let invalid = status.topics.iter().flat_map(|topic| {
        // Report every reason from the start, because Prometheus misses the first increase of a counter that did not exist before.
        Reason::ALL.map(|reason| {
            let count = topic.invalid.get(reason.label()).copied().unwrap_or_default();
            ([("topic", topic.topic.clone()), ("reason", reason.label().to_owned())], count)
        })
    });
    encoder.counters("unseen_invalid_total", "Invalid records, by reason", invalid)?;
    encoder.counters("unseen_consumed_bytes_total", "Bytes of keys and values read", of(|topic| topic.consumed_bytes))?;
    encoder.counters("unseen_dead_letters_total", "Records written to the dead-letter topic", of(|topic| topic.dead_letters))?;
    encoder.counters("unseen_future_records_total", "Records with a time too far ahead of the clock", of(|topic| topic.future))?;
    let suspect = status.topics.iter().map(|topic| ([("topic", topic.topic.clone())], f64::from(u8::from(topic.time_warning.is_some()))));
    let help = "1 if record times keep the window of the topic from moving or make it move too slowly";
    encoder.gauges("unseen_record_times_suspect", help, suspect)?;
    encoder.counters(
        "unseen_warmed_up_records_total",
        "Records read again during a warm-up and not emitted",
        of(|topic| topic.warmed_up),
    )?;
    let help = "Upper bound for the number of records that were deleted before they were read";
    encoder.counters("unseen_deleted_unread_records_total", help, of(|topic| topic.deleted_unread))?;
    let by_value = |count: fn(&ValueStatus) -> u64| {
        status.topics.iter().flat_map(move |topic| {
            topic.values.iter().map(move |value| {
                // Prometheus treats an empty label as missing, so the series for all other values has no value label.
                let label = value.value.clone().unwrap_or_default();
                ([("topic", topic.topic.clone()), ("value", label)], count(value))
            })
        })
    };
    encoder.counters("unseen_value_records_total", "Sampled records, by the value of count_by", by_value(|value| value.records))?;
    encoder.counters(
        "unseen_value_duplicates_total",
        "Sampled duplicates, by the value of count_by",
        by_value(|value| value.duplicates),
    )?;
    let of_compared = |count: fn(&ConflictStatus) -> u64| {
        status.topics.iter().filter_map(move |topic| Some(([("topic", topic.topic.clone())], count(topic.key_conflicts.as_ref()?))))
    };
    let help = "Sampled duplicates that were compared with their original records";
    encoder.counters("unseen_compared_duplicates_total", help, of_compared(|all| all.compared))?;
    encoder.counters(
        "unseen_key_conflicts_total",
        "Compared duplicates whose content differs from the original",
        of_compared(|all| all.conflicts),
    )?;
    let shadows = status.topics.iter().map(|topic| ([("topic", topic.topic.clone())], f64::from(u8::from(topic.shadow))));
    encoder.gauges("unseen_shadow", "1 if the topic has no output, so only its state is updated", shadows)?;
    encoder.gauge("unseen_left_out_topics", "Topics that match a pattern but are not read", Some(float(status.left_out.len() as u64)))?;
    let help = "Time from the record timestamp to the commit, for every 64th record written";
    histogram(encoder, "unseen_end_to_end_latency_seconds", help, &status.end_to_end_latency)
}

fn partitions(status: &Status, encoder: &mut Encoder<'_>) -> Result<(), Error> {
    let lags = status.partitions.iter().filter_map(|partition| {
        let labels = [("topic", partition.topic.clone()), ("partition", partition.partition.to_string())];
        Some((labels, float(partition.lag?.unsigned_abs())))
    });
    encoder.gauges("unseen_consumer_lag_records", "Offsets between the committed offset and the end of the partition", lags)?;
    encoder.gauge("unseen_assigned_partitions", "Partitions assigned to this process", Some(float(status.partitions.len() as u64)))?;
    encoder.counter("unseen_rebalances_total", "Assignments and revocations of partitions", status.rebalances)
}

fn transactions(status: &Status, encoder: &mut Encoder<'_>) -> Result<(), Error> {
    let results = [("committed", status.transactions.committed), ("aborted", status.transactions.aborted)];
    let results = results.map(|(result, count)| ([("result", result.to_owned())], count));
    encoder.counters("unseen_transactions_total", "Transactions by result", results)?;
    histogram(
        encoder,
        "unseen_transaction_duration_seconds",
        "Time from the start of a transaction to its end",
        &status.transaction_duration,
    )
}

fn filters(status: &Status, encoder: &mut Encoder<'_>) -> Result<(), Error> {
    let label = |space: &SpaceStatus| [("space", space.space.clone())];
    let gauge = |value: fn(&SpaceStatus) -> Option<f64>| status.spaces.iter().filter_map(move |space| Some((label(space), value(space)?)));
    let observed = |value: fn(ObservedRate) -> Option<f64>| {
        status.spaces.iter().filter_map(move |space| Some((label(space), value(space.false_positives.observed?)?)))
    };
    let counts = |value: fn(&SpaceStatus) -> u64| status.spaces.iter().map(move |space| (label(space), value(space)));
    encoder.gauges(
        "unseen_filter_fill_ratio",
        "Keys of the open slice divided by the capacity of a slice, for the fullest partition",
        gauge(|space| Some(space.fill_ratio)),
    )?;
    encoder.gauges("unseen_filter_keys", "Number of remembered keys", gauge(|space| Some(float(space.keys))))?;
    encoder.gauges(
        "unseen_filter_capacity_keys",
        "Number of keys that the filters are sized for",
        gauge(|space| space.capacity_keys.map(float)),
    )?;
    encoder.gauges("unseen_filter_memory_bytes", "Memory of the filters", gauge(|space| Some(float(space.memory_bytes))))?;
    encoder.gauges("unseen_filter_target_fpr_ratio", "Configured false-positive rate", gauge(|space| space.false_positives.target))?;
    encoder.gauges(
        "unseen_filter_estimated_fpr_ratio",
        "False-positive rate of the worst partition, estimated from the contents of its filter",
        gauge(|space| Some(space.false_positives.estimated)),
    )?;
    encoder.gauges(
        "unseen_filter_observed_fpr_ratio",
        "False-positive rate observed on a sample of the keys, over about one window",
        observed(|observed| observed.rate),
    )?;
    encoder.gauges(
        "unseen_filter_observed_fpr_low_ratio",
        "Lower end of the 95 % confidence interval of the observed false-positive rate",
        observed(|observed| Some(observed.low)),
    )?;
    encoder.gauges(
        "unseen_filter_observed_fpr_high_ratio",
        "Upper end of the 95 % confidence interval of the observed false-positive rate",
        observed(|observed| Some(observed.high)),
    )?;
    encoder.gauges(
        "unseen_filter_observed_fpr_checked_keys",
        "Number of unseen keys in the sample for the observed false-positive rate",
        observed(|observed| Some(float(observed.checked))),
    )?;
    encoder.counters("unseen_filter_rotations_total", "Slices started", counts(|space| space.rotations))?;
    encoder.counters(
        "unseen_filter_corrected_total",
        "Records that the filter alone would have dropped wrongly",
        counts(|space| space.corrected),
    )?;
    encoder.counters(
        "unseen_filter_evicted_keys_total",
        "Keys forgotten too early because a filter reached its maximum memory",
        counts(|space| space.evicted),
    )?;
    encoder.counters(
        "unseen_cross_partition_keys_total",
        "Keys that appeared in more than one partition, in a sample of one key in 1,024",
        counts(|space| space.cross_partition_keys),
    )
}

fn checkpoints(status: &Status, encoder: &mut Encoder<'_>) -> Result<(), Error> {
    let checkpoints = &status.checkpoints;
    encoder.counter("unseen_checkpoints_total", "Checkpoints written; a checkpoint has the state of one partition", checkpoints.written)?;
    encoder.counter("unseen_checkpoint_failures_total", "Checkpoints that could not be written", checkpoints.failures)?;
    histogram(encoder, "unseen_checkpoint_duration_seconds", "Duration of checkpoints", &status.checkpoint_duration)?;
    encoder.gauge("unseen_checkpoint_size_bytes", "Bytes written by the last checkpoint", checkpoints.last_bytes.map(float))?;
    let last = checkpoints.last_success_ms.map(seconds);
    encoder.gauge("unseen_checkpoint_last_success_timestamp_seconds", "Time of the last successful checkpoint", last)?;
    encoder.counter("unseen_rebuilds_total", "States rebuilt from changelogs", status.rebuilds.done)?;
    encoder.counter("unseen_rebuilt_keys_total", "Key changes applied from changelogs to rebuild states", status.rebuilds.keys)?;
    encoder.gauge(
        "unseen_rebuilding_partitions",
        "Partitions whose state is being rebuilt from a changelog",
        Some(float(status.rebuilds.running)),
    )?;
    histogram(
        encoder,
        "unseen_restore_duration_seconds",
        "Time from the assignment of a partition until its state is restored",
        &status.restore_duration,
    )
}

fn schemas(status: &Status, encoder: &mut Encoder<'_>) -> Result<(), Error> {
    // Without a registry, all values are 0.
    let registry = status.schema_registry.clone().unwrap_or_default();
    let results = [("answered", registry.answers), ("failed", registry.failures)];
    encoder.counters(
        "unseen_schema_registry_requests_total",
        "Requests to the schema registry, by result",
        results.map(|(result, count)| ([("result", result.to_owned())], count)),
    )?;
    encoder.gauge("unseen_schemas", "Known schemas of the schema registry", Some(float(registry.known)))?;
    encoder.gauge(
        "unseen_awaited_schemas",
        "Requested schemas that have not arrived yet; partitions with their records wait",
        Some(float(registry.awaited)),
    )
}

fn process(status: &Status, encoder: &mut Encoder<'_>) -> Result<(), Error> {
    let present = |state: State| ([("state", state.label().to_owned())], f64::from(u8::from(state == status.state)));
    encoder.gauges("unseen_state", "1 for the current state of the process, 0 for all other states", State::ALL.map(present))?;
    encoder.gauges("unseen_build_info", "Always 1", [([("version", status.version.clone())], 1.0)])?;
    let contact = status.broker_contact_ms.map(seconds);
    encoder.gauge("unseen_broker_last_contact_timestamp_seconds", "Time of the last answer from a broker", contact)?;
    let ages = status.loop_ages_seconds.iter().enumerate();
    let ages = ages.filter_map(|(worker, &age)| Some(([("worker", worker.to_string())], age?)));
    encoder.gauges("unseen_worker_loop_age_seconds", "Time since a worker thread last started an iteration of its loop", ages)?;
    let process = &status.process;
    let available = process.state_disk_available_bytes.map(float);
    encoder.gauge("unseen_state_disk_available_bytes", "Available space on the disk of the state directory", available)?;
    encoder.gauge("unseen_state_disk_size_bytes", "Size of the disk of the state directory", process.state_disk_size_bytes.map(float))?;
    of_process(encoder, status.started_ms, process.resident_bytes, process.cpu_seconds)
}

/// Encodes the standard process metrics of Prometheus.
pub(super) fn of_process(
    encoder: &mut Encoder<'_>,
    started_ms: i64,
    resident_bytes: Option<u64>,
    cpu_seconds: Option<f64>,
) -> Result<(), Error> {
    encoder.gauge("process_start_time_seconds", "Start time of the process", Some(seconds(started_ms)))?;
    encoder.gauge("process_resident_memory_bytes", "Resident memory", resident_bytes.map(float))?;
    encoder.seconds_counter("process_cpu_seconds_total", "CPU time", cpu_seconds)
}

fn histogram(encoder: &mut Encoder<'_>, name: &str, help: &str, durations: &Durations) -> Result<(), Error> {
    let mut below = 0;
    let each = durations.buckets.iter().map(|&(bound, count)| {
        let own = count - below;
        below = count;
        (bound, own)
    });
    let mut buckets: Vec<_> = each.collect();
    buckets.push((f64::MAX, durations.count - below));
    encoder.buckets(name, help, durations.sum_seconds, &buckets)
}
