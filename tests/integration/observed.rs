//! Promise: the state, the counts, and the false-positive rate that a worker shows over HTTP are correct.

use crate::harness::{
    Setup, TestRecord, Worker, broker, client, committed_offset, logged, produce, read_committed, topic, unique, wait_until,
};
use crate::stream::{LIMIT, PARTITIONS, SHORT_SESSION};
use rdkafka::producer::{BaseProducer, BaseRecord, Producer as _};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::time::Duration;

pub fn address(worker: &mut Worker) -> String {
    worker.wait_for_log("listening for HTTP", LIMIT);
    let log = worker.log();
    let rest = log.split("listening for HTTP address=").nth(1).expect("an address");
    rest.split_whitespace().next().expect("an address").to_owned()
}

/// Requests a path. Returns the status code, the headers in lowercase, and the body.
pub fn ask(address: &str, path: &str) -> (u16, String, String) {
    let mut stream = TcpStream::connect(address).expect("it listens");
    stream.set_read_timeout(Some(Duration::from_secs(20))).expect("a limit");
    write!(stream, "GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n").expect("a request");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("an answer");
    let (head, body) = answer.split_once("\r\n\r\n").expect("head and body");
    let code = head.split(' ').nth(1).and_then(|code| code.parse().ok()).expect("a status code");
    (code, head.to_lowercase(), body.to_owned())
}

fn status(address: &str) -> Value {
    serde_json::from_str(&ask(address, "/api/v1/status").2).expect("JSON")
}

fn samples(text: &str) -> BTreeMap<String, f64> {
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    lines
        .map(|line| line.rsplit_once(' ').expect("a value"))
        .map(|(name, value)| (name.to_owned(), value.parse().expect("a number")))
        .collect()
}

fn record(number: u64, partition: i32) -> TestRecord {
    let timestamp = 1_735_689_600_000 + i64::try_from(number / 100).expect("few");
    TestRecord { partition, key: Some(number.to_be_bytes().to_vec()), value: Some(b"value".to_vec()), timestamp, ..TestRecord::default() }
}

fn wait_until_read(group: &str, input: &str, end: usize, worker: &mut Worker) {
    wait_until("all records are read", LIMIT, || {
        assert!(worker.runs(), "the worker has ended");
        let read: i64 = (0..).take(PARTITIONS).filter_map(|partition| committed_offset(broker(), group, input, partition)).sum();
        (read == i64::try_from(end).expect("few")).then_some(())
    });
}

/// The value of a sample. `name` includes the labels, if there are any.
pub fn metric(address: &str, name: &str) -> f64 {
    let text = ask(address, "/metrics").2;
    let value = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    value.unwrap_or_else(|| panic!("no {name} in {text}")).parse().expect("a number")
}

/// Waits until the status meets a condition, and returns the status. The worker publishes its status once per second.
fn wait_for_status(address: &str, what: &str, is_so: impl Fn(&Value) -> bool) -> Value {
    wait_until(what, LIMIT, || Some(status(address)).filter(|status| is_so(status)))
}

#[test]
fn state_counts_and_metrics_match_the_stream() {
    let (input, output, dead) = (topic(broker(), "seen-in", 4), topic(broker(), "seen-out", 4), topic(broker(), "seen-dead", 4));
    let lines = format!(
        "space = \"s\"\nkey = [{{ record = \"key\" }}]\nwindow = \"1d\"\non_invalid = {{ topic = \"{dead}\" }}\ncount_by = {{ header = \"tenant\" }}\nkey_conflicts = true\nfilter = {{ capacity = \"100k\", false_positive_rate = 1e-9 }}"
    );
    let setup =
        Setup::new(broker(), "seen").worker("commit_interval = \"50ms\"\ncheckpoint_interval = \"300ms\"").topic(&input, &output, &lines);
    let keys = 4_000_u64;
    let partition = |number: u64| i32::try_from(number % 4).expect("a partition");
    let mut records: Vec<_> = (0..2 * keys).map(|number| record(number % keys, partition(number % keys))).collect();
    for record in &mut records {
        record.headers.push(("tenant".to_owned(), Some(tenant(record.partition).into_bytes())));
    }
    // One duplicate in ten has a different value than its original.
    for record in records.iter_mut().skip(usize::try_from(keys).expect("few")).step_by(10) {
        record.value = Some(b"other".to_vec());
    }
    records.extend((0..3).map(|partition| TestRecord { key: None, ..record(keys, partition) }));
    produce(broker(), &input, records.clone());
    let mut worker = setup.start("a");
    let address = address(&mut worker);
    wait_until_read(setup.group(), &input, records.len(), &mut worker);
    let is_read = |status: &Value| {
        let lags = status["partitions"].as_array().expect("a list").iter().map(|partition| partition["lag"].as_i64());
        status["state"] == "running" && status["checkpoints"]["written"].as_u64() >= Some(4) && lags.eq([Some(0); 4])
    };
    let status = wait_for_status(&address, "the status shows all read, and a checkpoint", is_read);
    let topic = &status["topics"][0];
    assert_eq!(topic["topic"], Value::from(&*input));
    assert_eq!(
        topic["records"],
        serde_json::json!({ "unseen": keys, "duplicate": keys, "late": 0, "invalid": 3, "retracted": 0, "tombstone": 0, "passed": 0 })
    );
    assert_eq!((&topic["invalid"], &topic["dead_letters"]), (&serde_json::json!({ "null_key": 3 }), &Value::from(3)));
    are_counted_by_tenant(&topic["values"], keys / 4);
    assert_eq!(
        topic["key_conflicts"],
        serde_json::json!({ "compared": keys, "conflicts": keys / 10, "fields": { "the value": keys / 10 } })
    );
    assert_eq!(topic["consumed_bytes"], Value::from(2 * keys * 13 + 3 * 5));
    let space = &status["spaces"][0];
    assert_eq!((&space["space"], &space["keys"], &space["partitions"]), (&Value::from("s"), &Value::from(keys), &Value::from(4)));
    assert!(space["memory_bytes"].as_u64() > Some(10_000) && space["capacity_keys"].as_u64() >= Some(100_000), "{space}");
    assert_eq!(space["false_positives"]["observed"]["wrong"], Value::from(0));
    assert!(status["process"]["resident_bytes"].as_u64() > Some(1 << 20), "{status}");
    let events = status["events"].as_array().expect("a list");
    assert!(
        events.iter().any(|event| event["message"].as_str().is_some_and(|message| message.starts_with("partitions assigned"))),
        "{events:?}"
    );
    let says_so = |event: &Value| event["message"].as_str().is_some_and(|message| message.starts_with("a duplicate has different content"));
    assert_eq!(events.iter().filter(|event| says_so(event)).count(), 9, "an example at 1, 2, 4, to 256: {events:?}");

    is_scraped_so(&address, &input, keys);
    for (path, code, start) in
        [("/livez", 200, "ok"), ("/readyz", 200, "ready"), ("/version", 200, env!("CARGO_PKG_VERSION")), ("/nothing", 404, "")]
    {
        let (got, _, body) = ask(&address, path);
        assert!(got == code && body.starts_with(start), "{path}: {got} {body}");
    }
    let (_, head, page) = ask(&address, "/");
    assert!(head.contains("content-security-policy: default-src 'self'") && page.contains("dashboard.js"), "{head}");
    let schema: Value = serde_json::from_str(&ask(&address, "/api/v1/schema").2).expect("JSON");
    assert_eq!(schema["title"], "Status");
    worker.drain();
}

fn tenant(partition: i32) -> String {
    format!("tenant {partition}")
}

/// Panics unless the counts per tenant are correct. Each partition has the records of one tenant: `keys` distinct keys, and then the same
/// keys again. The worker counts one record in 32. It names a tenant at the 16th counted record, and the tenant's own counts start after
/// that record.
fn are_counted_by_tenant(values: &Value, keys: u64) {
    let sampled = |offsets: std::ops::Range<u64>| {
        u64::try_from(offsets.filter(|offset| offset.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 59 == 0).count()).expect("few")
    };
    let count = |value: &Value| (value["value"].clone(), value["records"].as_u64(), value["duplicates"].as_u64());
    let mut values: Vec<_> = values.as_array().expect("a list").iter().map(count).collect();
    // The count without a name: the first 16 counted records of each tenant, and the last record of three partitions (which has no tenant
    // and no key), if the worker counted it.
    let rest = 4 * 16 + 3 * sampled(2 * keys..2 * keys + 1);
    assert_eq!(values.pop(), Some((Value::Null, Some(rest), Some(0))));
    values.sort_by_key(|(value, ..)| value.to_string());
    let named = (0..4).map(|partition| (Value::from(tenant(partition)), Some(sampled(0..2 * keys) - 16), Some(sampled(keys..2 * keys))));
    assert_eq!(values, named.collect::<Vec<_>>());
}

/// Panics unless the metrics match the status, and the worker exports exactly the documented metrics.
fn is_scraped_so(address: &str, input: &str, keys: u64) {
    let (code, head, text) = ask(address, "/metrics");
    assert!(code == 200 && head.contains("content-type: application/openmetrics-text; version=1.0.0"), "{head}");
    let samples = samples(&text);
    let sample = |name: &str, labels: &str| samples.get(&format!("{name}{{{labels}}}")).copied();
    #[expect(clippy::cast_precision_loss, reason = "few")]
    let count = keys as f64;
    assert_eq!(sample("unseen_records_total", &format!("topic=\"{input}\",verdict=\"unseen\"")), Some(count));
    assert_eq!(sample("unseen_consumer_lag_records", &format!("topic=\"{input}\",partition=\"3\"")), Some(0.0));
    // The worker also exports reasons that have not occurred, because Prometheus sees an increase only if there was a 0 before.
    assert_eq!(sample("unseen_invalid_total", &format!("topic=\"{input}\",reason=\"oversize\"")), Some(0.0));
    assert_eq!(sample("unseen_filter_keys", "space=\"s\""), Some(count));
    assert_eq!(sample("unseen_state", "state=\"running\""), Some(1.0));
    assert!(text.ends_with("# EOF\n"));
    assert_eq!(
        exported(&text),
        documented("## Of a worker"),
        "docs/reference/metrics.md, on the right, must list what is exported, on the left"
    );
}

/// The type and the label names of each metric, by the name of the metric.
pub type Metrics = BTreeMap<String, (String, BTreeSet<String>)>;

pub fn exported(text: &str) -> Metrics {
    let types = text.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split_once(' '));
    let metric = |(name, kind): (&str, &str)| {
        let full = if kind == "counter" { format!("{name}_total") } else { name.to_owned() };
        let sample = if kind == "histogram" { format!("{name}_count") } else { full.clone() };
        let line = text.lines().find(|line| line.strip_prefix(&*sample).is_some_and(|rest| rest.starts_with(['{', ' '])));
        let labels = line.and_then(|line| line.split_once('{')?.1.split_once('}')).map_or("", |(labels, _)| labels);
        let names = labels.split(',').filter_map(|label| Some(label.split_once('=')?.0.to_owned()));
        (full, (kind.to_owned(), names.collect()))
    };
    types.map(metric).collect()
}

/// The metrics in the section of docs/reference/metrics.md with this heading.
pub fn documented(heading: &str) -> Metrics {
    let page = include_str!("../../docs/reference/metrics.md");
    let (_, part) = page.split_once(heading).expect("a heading");
    let part = part.split("\n## ").next().unwrap_or_default();
    let rows = part.lines().filter_map(|line| line.strip_prefix("| `"));
    let metric = |row: &str| {
        let cells: Vec<_> = row.split('|').map(str::trim).collect();
        let labels = cells[2].split(',').map(|label| label.trim().trim_matches('`').to_owned()).filter(|label| !label.is_empty());
        (cells[0].trim_end_matches('`').to_owned(), (cells[1].to_owned(), labels.collect()))
    };
    rows.map(metric).collect()
}

/// The filter is overfull and must not grow. Its observed false-positive rate must match an exact count.
#[test]
fn observed_rate_of_an_overfull_filter_is_correct() {
    let (input, output) = (topic(broker(), "wrong-in", 4), topic(broker(), "wrong-out", 4));
    let lines = "space = \"s\"\nkey = [{ record = \"key\" }]\nwindow = \"1d\"\n[topics.filter]\ncapacity = \"200k\"\nfalse_positive_rate = 0.01\nadapt = false\nmax_memory = \"430KiB\"\nat_max_memory = \"saturate\"";
    let setup =
        Setup::new(broker(), "wrong").worker("commit_interval = \"100ms\"\ncheckpoint_interval = \"1s\"").topic(&input, &output, lines);
    let keys = 400_000_u64;
    let partition = |number: u64| i32::try_from(number % 4).expect("a partition");
    produce(broker(), &input, (0..keys).map(|number| record(number, partition(number))));
    let mut worker = setup.start("a");
    let address = address(&mut worker);
    wait_until_read(setup.group(), &input, usize::try_from(keys).expect("few"), &mut worker);
    let counted = |status: &Value| {
        let records = &status["topics"][0]["records"];
        records["unseen"].as_u64().zip(records["duplicate"].as_u64()).map(|(unseen, duplicate)| unseen + duplicate) == Some(keys)
            && status["spaces"][0]["false_positives"]["observed"]["checked"].as_u64() > Some(0)
    };
    // A report has the positions and the filter states of the same moment, so current positions imply current states.
    let reported = |status: &Value| {
        let positions = status["partitions"].as_array().expect("a list").iter().filter_map(|partition| partition["position"].as_u64());
        counted(status) && positions.sum::<u64>() == keys
    };
    let settled = wait_for_status(&address, "the status shows all read", reported);
    let emitted: HashSet<_> = read_committed(broker(), &output, PARTITIONS).concat().into_iter().map(|record| record.key).collect();
    #[expect(clippy::cast_precision_loss, reason = "few")]
    let truth = 1.0 - emitted.len() as f64 / keys as f64;
    let rates = &settled["spaces"][0]["false_positives"];
    let observed = &rates["observed"];
    let number = |value: &Value| value.as_f64().expect("a number");
    assert!(truth > 0.02, "the filter was to be overfull, and is wrong at {truth}");
    assert!((number(&observed["low"])..=number(&observed["high"])).contains(&truth), "{truth} is not within {rates}");
    // The exact count covers the whole time in which the filter filled up. The estimate is for the current, overfull filter, so the
    // estimated rate is higher.
    assert!((1.0..3.5).contains(&(number(&rates["estimated"]) / truth)), "{truth} {rates}");

    // The alert `UnseenFalsePositivesObserved` uses the same factor of 1.5. Its lower bound is computed from the counts and is similar to
    // `unseen_filter_observed_fpr_low_ratio`.
    let samples = samples(&ask(&address, "/metrics").2);
    let sample = |name: &str| samples[&format!("unseen_filter_{name}{{space=\"s\"}}")];
    assert!(
        sample("observed_fpr_ratio") > 1.5 * sample("target_fpr_ratio") && sample("observed_fpr_low_ratio") > sample("target_fpr_ratio")
    );

    // The checkpoint contains the watched keys, so a restarted worker shows the same observed rate.
    let log = worker.drain();
    let line = log.lines().find(|line| line.contains("the filter is close to filter.capacity")).expect("a warning");
    assert!(logged(line, "window_capacity") == 50_000 && logged(line, "slice_capacity") >= 12_500, "{line}");
    let mut worker = setup.start("a");
    let address = self::address(&mut worker);
    let again =
        wait_for_status(&address, "it runs again", |status| status["state"] == "running" && status["spaces"][0]["keys"].as_u64() > Some(0));
    assert_eq!(&again["spaces"][0]["false_positives"]["observed"], observed);
    worker.kill9();
}

#[test]
fn readiness_reports_what_the_worker_waits_for() {
    let lines = "space = \"s\"\nkey = [{ record = \"key\" }]\nwindow = \"1d\"\nfilter = { capacity = \"1k\" }";
    let setup = Setup::new("127.0.0.1:1", "ready").topic("in", "out", lines);
    let mut worker = setup.start("a");
    let unreachable = address(&mut worker);
    let (code, _, body) = ask(&unreachable, "/readyz");
    let starting = "not ready: the process is still starting: it opens state.dir, connects to 127.0.0.1:1, and checks the topics; ";
    assert!(code == 503 && body.starts_with(starting), "{code} {body}");
    assert_eq!(ask(&unreachable, "/livez").0, 200);
    worker.kill9();

    // One partition of the changelog has an open transaction, so its rebuild waits until the transaction ends.
    let (input, output) = (topic(broker(), "ready-in", 4), topic(broker(), "ready-out", 4));
    let setup = Setup::new(broker(), "ready").worker("commit_interval = \"50ms\"").properties(SHORT_SESSION).topic(&input, &output, lines);
    produce(broker(), &input, (0..400).map(|number| record(number, i32::try_from(number % 4).expect("a partition"))));
    let mut worker = setup.start("a");
    wait_until_read(setup.group(), &input, 400, &mut worker);
    worker.kill9();
    std::fs::remove_dir_all(setup.state_dir("a")).expect("it can be deleted");
    let stranger: BaseProducer = client(broker()).set("transactional.id", unique("ready")).create().expect("a producer");
    stranger.init_transactions(LIMIT).and_then(|()| stranger.begin_transaction()).expect("a transaction");
    let log = format!("{}-s-changelog", setup.group());
    stranger.send(BaseRecord::<(), _>::to(&log).partition(2).payload("in the way")).expect("room in the queue");
    stranger.flush(LIMIT).expect("it is written");
    let mut worker = setup.start("a");
    let waits = address(&mut worker);
    let body = wait_until("the worker reports that it waits for one partition", LIMIT, || {
        let (code, _, body) = ask(&waits, "/readyz");
        (code == 503 && body.contains("1 of 4 partitions")).then_some(body)
    });
    assert_eq!(body, "not ready: 1 of 4 partitions are being restored\n");
    let status = status(&waits);
    let doing: Vec<_> = status["partitions"].as_array().expect("a list").iter().map(|partition| partition["state"].clone()).collect();
    assert_eq!(doing, ["running", "running", "rebuilding", "running"].map(Value::from));
    stranger.abort_transaction(LIMIT).expect("it is aborted");
    wait_until("the worker is ready", LIMIT, || (ask(&waits, "/readyz").0 == 200).then_some(()));
    worker.drain();
}
