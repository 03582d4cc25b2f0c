use super::*;
use crate::changelog::{Origin, insertions};
use crate::filter::{AgingSizing, Window};
use crate::key::Fingerprint;

/// As the benchmarks run: four partitions, half of the records repeats, few keys.
fn bench(records_per_second: u64, commit_interval_ms: u64) -> ScaleAsk {
    ScaleAsk {
        records_per_second,
        repeats: 0.5,
        keys: 3_000_000,
        partitions: 4,
        commit_interval_ms,
        brokers: 1,
        replication: 1,
        max_transaction_records: 10_000_000,
        kind: "aging".to_owned(),
        ..ScaleAsk::default()
    }
}

/// Ten billion ids a day.
fn large(partitions: u64, members: u64) -> ScaleAsk {
    let sizing = AgingSizing::new(Window::time(86_400_000, 4), 10_000_000_000 / partitions, 1e-4);
    ScaleAsk {
        records_per_second: 1_000_000,
        repeats: repeats(1_000_000, 10_000_000_000, Some(86_400_000)).unwrap(),
        keys: 10_000_000_000,
        window_ms: Some(86_400_000),
        partitions,
        members,
        kind: "aging".to_owned(),
        filter_partition_bytes: sizing.bytes(Window::time(86_400_000, 4)),
        ..ScaleAsk::default()
    }
}

#[expect(clippy::needless_pass_by_value, reason = "made for each call")]
fn scale(ask: ScaleAsk) -> Scale {
    Scale::new(&ask).unwrap()
}

fn close(got: f64, expected: f64, within: f64) {
    assert!((got / expected - 1.0).abs() <= within, "{got}, expected about {expected}");
}

fn limit<'s>(scale: &'s Scale, name: &str) -> &'s Limit {
    scale.limits.iter().find(|limit| limit.name == name).unwrap()
}

/// docs/benchmarks/latency.md: µs of processor time a record, by commit interval and share of the peak.
#[test]
fn the_formula_gives_what_was_measured_at_a_pace() {
    let rows = [(20, [5.56, 1.55, 1.18]), (100, [5.00, 1.47, 1.07]), (1000, [4.79, 1.51, 1.17])];
    for (commit, costs) in rows {
        for (share, cost) in [0.1, 0.5, 0.8].into_iter().zip(costs) {
            let rate = 465_528.0 * share;
            close(scale(bench(whole(rate), commit)).processor.members_cores * 1e6 / rate, cost, 0.12);
        }
    }
}

/// docs/benchmarks/throughput.md: µs of processor time a record at full speed, by share of repeats.
#[test]
fn the_formula_gives_what_was_measured_at_full_speed() {
    for (rate, repeats, commit, cost) in [(1_602_643, 0.5, 100, 0.74), (1_277_946, 0.0, 1000, 1.12), (3_042_223, 0.95, 1000, 0.43)] {
        let need = scale(ScaleAsk { repeats, ..bench(rate, commit) });
        close(need.processor.members_cores * 1e6 / float(rate), cost, 0.12);
    }
}

/// docs/benchmarks/growth.md: µs of processor time a record, with 1 partition and with 64. All of that run cost more than others.
#[test]
fn the_formula_gives_what_more_partitions_cost() {
    let cost = |partitions, rate: u64| scale(ScaleAsk { partitions, ..bench(rate, 100) }).processor.members_cores * 1e6 / float(rate);
    let more = cost(64, 900_000) - cost(1, 900_000);
    assert!((0.02..0.05).contains(&more), "{more}");
}

/// docs/benchmarks/latency.md: milliseconds for half of the records, and for 99 %, at half of the peak.
#[test]
fn the_formula_gives_the_latency_that_was_measured() {
    for (commit, half, most) in [(20, 30.0, 61.0), (100, 69.0, 126.0), (1000, 563.0, 1041.0)] {
        let time = scale(bench(232_764, commit)).time;
        close(time.visible_half_ms, half, 0.12);
        close(time.visible_99_ms, most, 0.12);
    }
}

/// docs/benchmarks/active.md: time from commit to commit, and processor time.
#[test]
fn the_formula_gives_what_a_thousand_active_partitions_cost() {
    for (commit, transactions, cores) in [(100, 0.55, 0.42), (1000, 0.4, 0.46)] {
        let need = scale(ScaleAsk { partitions: 1000, ..bench(100_000, commit) });
        close(need.brokers.transactions, transactions, 0.12);
        close(need.processor.members_cores, cores, 0.12);
    }
}

#[test]
fn a_record_of_the_changelog_has_the_bytes_that_are_reckoned() {
    let bytes = |keys: u128| {
        let keys: Vec<_> = (0..keys).map(Fingerprint).collect();
        insertions(Origin::new("", "", "", ""), None, None, None, &keys).len()
    };
    close(float((bytes(1001) - bytes(1)) as u64) / 1000.0, costs::KEY_BYTES.get(), 0.0);
    // Two lengths beside the name, a colon and the id; 9 of Kafka's.
    let span = 2 + "orders-input".len() + 1 + "kSpBHX6yTYO6kEsYgWQkBQ".len() + 16;
    close(float((bytes(0) + span + 9) as u64), costs::CHANGELOG_RECORD.get(), 0.0);
}

#[test]
fn what_is_known_says_where_from() {
    for cost in costs::ALL {
        assert_eq!(cost.value.is_none(), cost.basis == Basis::Unknown, "{}", cost.name);
        assert!(cost.value.is_none_or(|value| value > 0.0) && !cost.source.is_empty(), "{}", cost.name);
    }
    let names: std::collections::BTreeSet<_> = costs::ALL.iter().map(|cost| cost.name).collect();
    assert_eq!(names.len(), costs::ALL.len());
}

#[test]
fn a_million_records_of_ten_billion_ids() {
    let need = scale(large(1000, 50));
    close(need.load.unseen_per_second, 115_741.0, 1e-3);
    // Transactions of 50 workers, each of 20 partitions of output and changelog, and the offsets. Each broker has a third of them.
    let took = 20.0 / 3.0 * costs::COMMIT_TIME.get() / 1e6;
    let commits = 50.0 / (0.2 + took);
    close(need.brokers.transactions, commits, 1e-3);
    close(need.brokers.markers, commits * 41.0, 1e-3);
    close(need.brokers.offsets, commits * 20.0, 1e-3);
    // 16 bytes a key; 281 a commit.
    close(float(need.network.changelog_bytes), 115_741.0 * 16.0 + commits * 20.0 * 281.0, 1e-3);
    assert_eq!((need.brokers.replicas, need.brokers.replicas_per_broker), (9_000.0, 3_000.0));
    close(float(need.memory.filter_bytes * 1000), 34.0 / 8.0 * 1e10, 0.02);
    let more = scale(ScaleAsk { commit_interval_ms: 1000, ..large(1000, 50) });
    close(need.brokers.markers / more.brokers.markers, (1.0 + took) / (0.2 + took), 1e-3);
}

#[test]
fn checkpoints_that_may_not_write_more_are_rarer() {
    let (few, many) = (scale(large(1000, 10)), scale(large(1000, 50)));
    assert_eq!((few.disk.member_write_bytes, many.time.checkpoint_seconds), (32 << 20, 10.0));
    // 10M keys of a window are in slices of 8.5 MB, all of whose pages change.
    close(few.time.checkpoint_seconds, 100.0 * (8.5e6 + 16.0 * 16384.0) / float(32 << 20), 0.02);
}

#[test]
fn few_records_are_in_few_commits() {
    // One record in ten seconds for each partition is no commit each 200 ms.
    let need = scale(ScaleAsk { records_per_second: 100, partitions: 1000, repeats: 0.0, ..bench(1, 200) });
    close(need.brokers.changelog_records, 100.0, 0.02);
    close(need.brokers.produce_requests_most, 200.0, 0.02);
}

/// Four lingers and the rest with the commit; a full batch waits for neither.
#[test]
fn requests_are_at_most_what_linger_commits_and_full_batches_make() {
    let need = scale(ScaleAsk { repeats: 0.0, linger_ms: 50.0, ..large(1000, 50) });
    let interval = 1000.0 * 50.0 / need.brokers.transactions;
    close(need.brokers.produce_requests_most - need.brokers.changelog_records, 1000.0 * (20.0 + 1000.0 / interval) + 200.0, 1e-3);
    let one = scale(ScaleAsk { repeats: 0.0, linger_ms: 250.0, ..large(1, 1) });
    // 200 MB a second in batches of 1 MB, and a few that are not full.
    assert!((200.0..220.0).contains(&(one.brokers.produce_requests_most - one.brokers.changelog_records)), "{:?}", one.brokers);
}

#[test]
fn a_transaction_must_end_before_its_timeout() {
    let ask = ScaleAsk { brokers: 1, replication: 1, ..large(8000, 1) };
    let time = |ask: &ScaleAsk| limit(&scale(ask.clone()), "a transaction's time").clone();
    let long = time(&ask);
    assert!(long.used > 1.0 && (5000.0..7000.0).contains(&long.breaks_at.unwrap()), "{long:?}");
    assert!(time(&ScaleAsk { transaction_timeout_ms: 60_000, ..ask.clone() }).used < 0.5);
    // Without a transaction there is no such limit.
    assert!(scale(ScaleAsk { exactly_once: false, ..ask }).limits.iter().all(|limit| limit.name != "a transaction's time"));
}

#[test]
fn the_first_limit_is_the_fullest_and_breaks_where_it_says() {
    let need = scale(large(1000, 1));
    assert!(need.limits.windows(2).all(|pair| pair[0].used >= pair[1].used));
    let cores = limit(&need, "processor of a member");
    assert!(cores.used > 1.0 && cores.breaks_at.unwrap() < 1e6, "{cores:?}");
    let (rate, ask) = (whole(cores.breaks_at.unwrap()), large(1000, 1));
    close(scale(ScaleAsk { records_per_second: rate, ..ask }).processor.member_cores, 1.0, 1e-3);
    assert!(need.text().contains(" is past, at "), "{}", need.text());

    let need = scale(large(1000, 50));
    close(limit(&need, "replicas of a broker").breaks_at.unwrap(), 4000.0 * 3.0 / 9.0, 1e-3);
    let memory = scale(ScaleAsk { member_memory_bytes: Some(2 << 30), ..large(1000, 50) });
    let keys = whole(limit(&memory, "memory of a member").breaks_at.unwrap());
    let growth = float(keys) / 1e10;
    let filter_partition_bytes = whole(float(memory.ask.filter_partition_bytes) * growth);
    let full = scale(ScaleAsk { keys, filter_partition_bytes, ..memory.ask.clone() });
    close(float(full.memory.member_most_one_lost_bytes), float(2 << 30), 1e-3);
}

#[test]
fn options_leave_out_what_they_do() {
    let need = |change: &dyn Fn(&mut ScaleAsk)| {
        let mut ask = large(100, 10);
        change(&mut ask);
        scale(ask)
    };
    let usual = need(&|_| ());
    let twice = need(&|ask| ask.exactly_once = false);
    assert_eq!((twice.brokers.transactions, twice.brokers.markers), (0.0, 0.0));
    let no_changelog = need(&|ask| ask.changelog = false);
    assert_eq!((no_changelog.network.changelog_bytes, no_changelog.time.rebuild_partition_seconds), (0, None));
    assert!(no_changelog.text().contains("no changelog"));
    let shadow = need(&|ask| ask.output = false);
    assert_eq!(shadow.network.out_bytes, 0);
    let between = need(&|ask| ask.repartition = true);
    assert_eq!(between.network.in_bytes, 2 * usual.network.in_bytes);
    assert!(between.brokers.markers > usual.brokers.markers && between.processor.records_cores > usual.processor.records_cores);
    let untimed = need(&|ask| ask.window_ms = None);
    assert_eq!(untimed.disk.changelog_bytes, None);
    let exact = need(&|ask| (ask.filter_partition_bytes, ask.filter_partition_disk_bytes, ask.kind) = (0, 1 << 30, "exact".to_owned()));
    assert!(exact.disk.member_bytes == 20 << 30 && exact.memory.filter_bytes == 0);
    let idle = need(&|ask| ask.members = 200);
    assert_eq!((idle.load.workers, idle.load.idle_workers, idle.load.member_partitions), (100.0, 100.0, 1.0));
    assert!(idle.text().contains("! 100 worker threads have no partition\n"));
}

#[test]
fn what_is_no_deployment_is_refused() {
    let refused = |change: &dyn Fn(&mut ScaleAsk)| {
        let mut ask = large(1000, 50);
        change(&mut ask);
        Scale::new(&ask).unwrap_err().to_string()
    };
    assert_eq!(refused(&|ask| ask.members = 0), "--members: expected 1 to 100000, got 0");
    assert_eq!(
        refused(&|ask| ask.records_per_second = u64::MAX),
        "--records-per-second: expected 1 to 1000000000, got 18446744073709552000"
    );
    assert_eq!(refused(&|ask| ask.repeats = f64::NAN), "--repeats: expected 0 to 1, got NaN");
    assert_eq!(refused(&|ask| ask.compression = 0.0), "--compression: expected 0.001 to 1, got 0");
    assert_eq!(refused(&|ask| ask.replication = 4), "--replication: 4 replicas need as many brokers, and --brokers says 3");
    assert_eq!(repeats(10, 10_000_000, None), Err(ScaleError::Repeats));
    let few = repeats(10, 10_000_000, Some(3_600_000)).unwrap_err().to_string();
    assert_eq!(few, "--records-per-second: the keys of a window are 2778 new ones a second, more than the 10 records");
}

/// Fields that are null, but for those that may be.
fn nulls(name: &str, value: &serde_json::Value) -> Vec<String> {
    let may_be = ["window_ms", "member_memory_bytes", "broker_cores", "changelog_bytes", "broker_commits_cores", "breaks_at", "value"];
    match value {
        serde_json::Value::Null if !may_be.contains(&name) => vec![name.to_owned()],
        serde_json::Value::Array(values) => values.iter().flat_map(|value| nulls(name, value)).collect(),
        serde_json::Value::Object(fields) => fields.iter().flat_map(|(name, value)| nulls(name, value)).collect(),
        _ => Vec::new(),
    }
}

#[test]
fn the_least_and_the_most_give_finite_numbers_in_80_columns() {
    let least = ScaleAsk { linger_ms: 0.0, ..ScaleAsk::default() };
    let most = ScaleAsk {
        records_per_second: 1_000_000_000,
        record_bytes: 1_000_000_000,
        keys: 100_000_000_000,
        window_ms: Some(3660 * 86_400_000),
        slices: 64,
        partitions: 1_000_000,
        members: 100_000,
        workers: 64,
        cores: 1024,
        brokers: 10_000,
        replication: 100,
        commit_interval_ms: 10,
        filter_partition_bytes: 1 << 50,
        filter_partition_disk_bytes: 1 << 50,
        ..large(1000, 1)
    };
    let one_of_all = ScaleAsk { partitions: 1, members: 1, workers: 1, ..most.clone() };
    for ask in [least, most, one_of_all] {
        let need = scale(ask);
        // What is no number would be null in JSON.
        assert_eq!(nulls("", &serde_json::to_value(&need).unwrap()), Vec::<String>::new());
        for line in need.text().lines() {
            assert!(line.chars().count() <= 80, "{line}");
        }
    }
}
