//! Promise: `unseen explain` reports the true cause of each verdict, even after kills, a rebuild, and a reset of the group. If the cause
//! cannot be known, it reports the cause as unknown.

use crate::harness::{
    RETRACT, Setup, TestRecord, Worker, broker, client, committed_offset, delete_records_before, produce, read_committed, reset_offset,
    topic, unseen, wait_until,
};
use crate::stream::LIMIT;
use rdkafka::consumer::{BaseConsumer, Consumer as _};
use serde_json::Value;
use std::collections::HashMap;
use std::fs;

const START: i64 = 1_735_689_600_000;
/// The approximate number of records that a test explains per cause.
const SAMPLE: usize = 2;

fn record(number: usize, key: usize) -> TestRecord {
    TestRecord {
        key: Some(format!("key-{key}").into_bytes()),
        value: Some(number.to_string().into_bytes()),
        timestamp: START + i64::try_from(number).expect("few"),
        ..TestRecord::default()
    }
}

/// Creates `count` records. About half of them are duplicates.
fn records(count: usize) -> Vec<TestRecord> {
    (0..count).map(|number| record(number, if number % 2 == 0 { number } else { number * 7 % (number + 1) / 2 * 2 })).collect()
}

fn lines(filter: &str) -> String {
    format!("space = \"ids\"\nkey = {{ record = \"key\" }}\nwindow = \"1d\"\nfilter = {filter}")
}

fn read(setup: &Setup, input: &str, worker: &mut Worker, count: usize) {
    wait_until("all records are read", LIMIT, || {
        assert!(worker.runs(), "the worker has ended");
        (committed_offset(broker(), setup.group(), input, 0) >= i64::try_from(count).ok()).then_some(())
    });
}

fn ask(setup: &Setup, args: &[&str]) -> (Option<i32>, String, String) {
    let config = setup.write_config("a").display().to_string();
    unseen([&["explain", "-c", &config], args].concat())
}

fn explained(setup: &Setup, args: &[&str]) -> Value {
    let (code, shown, error) = ask(setup, &[args, &["--json"]].concat());
    assert_eq!(code, Some(0), "{args:?}: {error}");
    serde_json::from_str::<Value>(&shown).expect("JSON")["explanations"][0].clone()
}

/// The values of the emitted records, which must be numbers in a single partition.
fn came_out(output: &str) -> Vec<usize> {
    read_committed(broker(), output, 1)[0].iter().map(|record| record.text().parse().expect("a number")).collect()
}

/// The expected verdict and cause of each record, and the number of the record that it repeats.
fn truth(records: &[TestRecord], came_out: &[usize]) -> Vec<(&'static str, &'static str, Option<usize>)> {
    let mut last = HashMap::new();
    let of = |(number, record): (usize, &TestRecord)| {
        let earlier = last.get(&record.key).copied();
        if came_out.contains(&number) {
            last.insert(record.key.clone(), number);
            return ("unseen", if earlier.is_some() { "forgotten" } else { "first" }, None);
        }
        ("duplicate", if earlier.is_some() { "repeat" } else { "false_positive" }, earlier)
    };
    records.iter().enumerate().map(of).collect()
}

fn sample(truth: &[(&str, &str, Option<usize>)], cause: &str) -> Vec<usize> {
    let all: Vec<_> = (0..truth.len()).filter(|&number| truth[number].1 == cause).collect();
    all.iter().copied().step_by((all.len() / SAMPLE).max(1)).collect()
}

fn check(setup: &Setup, input: &str, truth: &[(&str, &str, Option<usize>)], causes: &[&str], args: &[&str]) {
    for cause in causes {
        let sample = sample(truth, cause);
        assert!(!sample.is_empty(), "no record is of the sort {cause}");
        for number in sample {
            let (verdict, cause, repeats) = truth[number];
            let said = explained(setup, &[&[input, "0", &number.to_string()], args].concat());
            assert_eq!((said["verdict"].as_str(), said["cause"].as_str()), (Some(verdict), Some(cause)), "{number}: {said:#}");
            assert_eq!(said["certain"], true, "{number}: {said:#}");
            let range = &said["repeats"]["inputs"];
            let exact = repeats.map(|offset| (offset as u64, offset as u64));
            let first = |name: &str| range[0][name].as_u64();
            assert_eq!(first("first_offset").zip(first("last_offset")), exact, "{number}: {said:#}");
            assert!(range.as_array().is_none_or(|all| all.len() == 1 && all[0]["topic"] == input), "{number}: {said:#}");
        }
    }
}

/// Runs workers that process the records. The first worker is killed, and the last worker rebuilds its state from the changelog. Returns
/// the setup, the input, and the output.
fn judged_through_kills(hint: &str, filter: &str, records: &[TestRecord]) -> (Setup, String, String) {
    let (input, output) = (topic(broker(), hint, 1), topic(broker(), &format!("{hint}-out"), 1));
    let setup = Setup::new(broker(), hint).kafka(&format!("instance_id = \"{hint}\"")).worker("commit_interval = \"20ms\"").topic(
        &input,
        &output,
        &lines(filter),
    );
    let third = records.len() / 3;
    produce(broker(), &input, &records[..third]);
    let mut worker = setup.start("a");
    read(&setup, &input, &mut worker, third / 2);
    worker.kill9();
    let mut worker = setup.start("a");
    produce(broker(), &input, &records[third..2 * third]);
    read(&setup, &input, &mut worker, 2 * third);
    worker.drain();
    fs::remove_dir_all(setup.state_dir("a")).expect("it can be deleted");
    let mut worker = setup.start_with("a", &["state.cold_start=fail"]);
    produce(broker(), &input, &records[2 * third..]);
    read(&setup, &input, &mut worker, records.len());
    worker.drain();
    (setup, input, output)
}

#[test]
fn duplicates_and_false_positives_of_each_kind_are_explained() {
    for (hint, filter, causes) in [
        (
            "why-aging",
            "{ kind = \"aging\", capacity = 1000, false_positive_rate = 0.3, adapt = false }",
            &["first", "repeat", "false_positive"][..],
        ),
        ("why-cuckoo", "{ kind = \"cuckoo\", capacity = 1000, false_positive_rate = 0.3 }", &["first", "repeat", "false_positive"]),
        ("why-exact", "{ kind = \"exact\" }", &["first", "repeat"]),
        ("why-confirmed", "{ kind = \"aging\", capacity = 1000, false_positive_rate = 0.3, confirm = true }", &["first", "repeat"]),
    ] {
        let records = records(900);
        let (setup, input, output) = judged_through_kills(hint, filter, &records);
        let truth = truth(&records, &came_out(&output));
        check(&setup, &input, &truth, causes, &[]);
    }
}

/// A stable filter forgets keys at random. If one commit has two records with the same key, it can be unknown which of them was emitted.
#[test]
fn certain_explanations_of_a_stable_filter_are_true() {
    let records = records(6_000);
    let (setup, input, output) =
        judged_through_kills("why-stable", "{ kind = \"stable\", memory = \"1KiB\", false_positive_rate = 0.2 }", &records);
    let truth = truth(&records, &came_out(&output));
    let mut certain = 0;
    for number in sample(&truth, "false_positive").into_iter().chain(sample(&truth, "repeat")) {
        let said = explained(&setup, &[&input, "0", &number.to_string()]);
        if said["certain"] == true {
            certain += 1;
            assert_eq!((said["verdict"].as_str(), said["cause"].as_str()), (Some(truth[number].0), Some(truth[number].1)), "{said:#}");
        }
    }
    assert!(certain > 0, "nothing was certain");
}

#[test]
fn a_capture_gives_the_same_explanation() {
    let records = records(600);
    let filter = "{ kind = \"aging\", capacity = 1000, false_positive_rate = 0.3, adapt = false }";
    let (setup, input, output) = judged_through_kills("why-capture", filter, &records);
    let truth = truth(&records, &came_out(&output));
    let file = setup.dir().join("all.jsonl").display().to_string();
    let config = setup.write_config("a").display().to_string();
    let (code, _, error) = unseen(["capture", "-c", &config, "-o", &file]);
    assert_eq!(code, Some(0), "{error}");
    check(&setup, &input, &truth, &["first", "repeat", "false_positive"], &["--capture", &file, "--partitions", "1"]);
}

#[test]
fn duplicates_of_another_topic_of_the_space_are_explained() {
    let inputs = ["a", "b"].map(|name| topic(broker(), &format!("why-{name}"), 1));
    let output = topic(broker(), "why-shared-out", 1);
    let lines = lines("{ capacity = 1000, false_positive_rate = 1e-9 }");
    let setup = inputs
        .iter()
        .fold(Setup::new(broker(), "why-shared").worker("commit_interval = \"20ms\""), |setup, input| setup.topic(input, &output, &lines));
    let mut worker = setup.start("a");
    produce(broker(), &inputs[0], (0..10).map(|number| record(number, number)));
    read(&setup, &inputs[0], &mut worker, 10);
    produce(broker(), &inputs[1], (0..20).map(|number| record(number, number)));
    read(&setup, &inputs[1], &mut worker, 20);
    worker.drain();
    let said = explained(&setup, &[&inputs[1], "0", "7"]);
    assert_eq!((&said["cause"], &said["certain"]), (&"repeat".into(), &true.into()), "{said:#}");
    assert_eq!((&said["repeats"]["inputs"][0]["topic"], &said["repeats"]["inputs"][0]["first_offset"]), (&(*inputs[0]).into(), &7.into()));
    let said = explained(&setup, &[&inputs[1], "0", "17"]);
    assert_eq!((&said["verdict"], &said["cause"], &said["seen"]), (&"unseen".into(), &"first".into(), &true.into()), "{said:#}");
}

#[test]
fn retractions_renewals_and_windows_by_count_are_explained() {
    let (input, output) = (topic(broker(), "why-taken-back", 1), topic(broker(), "why-taken-back-out", 1));
    let lines = "space = \"ids\"\nkey = { record = \"key\" }\nwindow = { keys = 8 }\nrefresh = true\nretract = { header = \"retract\" }\nfilter = { kind = \"exact\", slices = 2 }";
    let setup = Setup::new(broker(), "why-taken-back").topic(&input, &output, lines);
    let mut taken_back = record(1, 0);
    taken_back.headers.push((RETRACT.to_owned(), None));
    let mut worker = setup.start("a");
    produce(broker(), &input, [record(0, 0), taken_back, record(2, 0), record(3, 0)]);
    read(&setup, &input, &mut worker, 4);
    for (offset, verdict, cause) in [("0", "unseen", Some("first")), ("1", "retracted", None), ("3", "duplicate", Some("repeat"))] {
        let said = explained(&setup, &[&input, "0", offset]);
        assert_eq!((said["verdict"].as_str(), said["cause"].as_str()), (Some(verdict), cause), "{offset}: {said:#}");
    }
    let said = explained(&setup, &["--key", "key-0"]);
    assert_eq!((&said["emissions"], &said["retractions"], &said["seen"]), (&2.into(), &1.into(), &true.into()), "{said:#}");
    assert_eq!(said["forgotten"]["at_slice"], 3, "{said:#}");
    // The window consists of two slices of four keys and the open slice, so these 20 keys push `key-0` out of the window. The changelog
    // still has the commits with `key-0`, but the next record with `key-0` is unseen.
    produce(broker(), &input, (4..24).map(|number| record(number, number)));
    read(&setup, &input, &mut worker, 24);
    produce(broker(), &input, [record(24, 0)]);
    read(&setup, &input, &mut worker, 25);
    worker.drain();
    let said = explained(&setup, &[&input, "0", "24"]);
    assert_eq!(said["verdict"], "unseen", "{said:#}");
}

#[test]
fn changes_are_explained() {
    let (input, output) = (topic(broker(), "why-changed", 1), topic(broker(), "why-changed-out", 1));
    let setup =
        Setup::new(broker(), "why-changed").topic(&input, &output, &format!("{}\nemit = \"on_change\"", lines("{ kind = \"exact\" }")));
    let report = |number, state: &str| TestRecord { value: Some(state.into()), ..record(number, number % 2) };
    let mut worker = setup.start("a");
    // The first commit contains records with several contents of each key.
    produce(broker(), &input, ["on", "on", "on", "off", "off", "off"].into_iter().enumerate().map(|(number, state)| report(number, state)));
    read(&setup, &input, &mut worker, 6);
    produce(broker(), &input, [report(6, "off"), report(7, "on")]);
    read(&setup, &input, &mut worker, 8);
    worker.drain();
    for (offset, verdict, cause, repeats) in [
        ("0", "unseen", "first", None),
        ("2", "duplicate", "repeat", Some(0)),
        ("3", "unseen", "changed", None),
        ("5", "duplicate", "repeat", Some(3)),
        ("6", "duplicate", "repeat", Some(4)),
        ("7", "unseen", "changed", None),
    ] {
        let said = explained(&setup, &[&input, "0", offset]);
        assert_eq!((&said["verdict"], &said["cause"], &said["certain"]), (&verdict.into(), &cause.into(), &true.into()), "{said:#}");
        assert_eq!(said["repeats"]["inputs"][0]["first_offset"].as_i64(), repeats, "{said:#}");
    }
    let said = explained(&setup, &["--key", "key-1"]);
    assert_eq!((&said["emissions"], &said["seen"]), (&3.into(), &true.into()), "{said:#}");
    let [dir, config] = [setup.state_dir("a"), setup.write_config("a")].map(|path| path.display().to_string());
    let (_, shown, error) = unseen(["inspect", &dir, "-c", &config, "--key", "key-1"]);
    assert!(shown.contains(": a record with this key and the same content would be a duplicate"), "{shown} {error}");
}

#[test]
fn a_reset_group_is_explained_by_its_last_pass() {
    let records = records(300);
    let filter = "{ kind = \"exact\" }";
    let (setup, input, output) = judged_through_kills("why-set-back", filter, &records);
    let before = came_out(&output).len();
    reset_offset(broker(), setup.group(), &input, 0, 200);
    let said = explained(&setup, &[&input, "0", "250"]);
    assert_eq!(said["verdict"], "pending", "{said:#}");
    let mut worker = setup.start("a");
    read(&setup, &input, &mut worker, 300);
    worker.drain();
    // After the reset, the unseen records from offset 200 on are emitted again. Only the second emission counts.
    let out = came_out(&output);
    let (kept, again) = out.split_at(before);
    let all: Vec<_> = kept.iter().filter(|&&number| number < 200).chain(again).copied().collect();
    check(&setup, &input, &truth(&records, &all), &["first", "repeat"], &[]);
}

#[test]
fn repartitioned_records_are_explained_by_key() {
    const COUNT: usize = 1_000;
    let (input, output) = (topic(broker(), "why-brought", 2), topic(broker(), "why-brought-out", 2));
    let lines = format!("{}\nrepartition = true", lines("{ kind = \"aging\", capacity = 1000, false_positive_rate = 0.3, adapt = false }"));
    let setup = Setup::new(broker(), "why-brought").worker("commit_interval = \"20ms\"").topic(&input, &output, &lines);
    let all: Vec<_> = (0..COUNT).map(|number| TestRecord { partition: i32::from(number % 2 == 1), ..record(number, number) }).collect();
    produce(broker(), &input, &all);
    let mut worker = setup.start("a");
    let reader: BaseConsumer = client(broker()).create().expect("a consumer");
    let between = format!("{}-{input}-repartition", setup.group());
    for (partition, of) in [(0, &input), (1, &input), (0, &between), (1, &between)] {
        wait_until("all records are judged", LIMIT, || {
            assert!(worker.runs(), "the worker has ended");
            let (_, end) = reader.fetch_watermarks(of, partition, LIMIT).expect("the broker answers");
            // The log can end with a commit marker. The committed offset can then be the offset of the marker.
            (committed_offset(broker(), setup.group(), of, partition)? + 1 >= end).then_some(())
        });
    }
    worker.drain();
    let out: Vec<_> = read_committed(broker(), &output, 2).concat().iter().map(|record| record.text().to_owned()).collect();
    assert!(out.len() < COUNT, "nothing was dropped wrongly");
    let (mut wrong, mut others) = (0, 0);
    for number in 0..COUNT {
        let came_out = out.contains(&number.to_string());
        if if came_out { others } else { wrong } >= SAMPLE {
            continue;
        }
        let said = explained(&setup, &[&input, if number % 2 == 0 { "0" } else { "1" }, &(number / 2).to_string()]);
        if came_out {
            others += 1;
            assert_eq!((&said["verdict"], &said["certain"], &said["emissions"]), (&"unknown".into(), &false.into(), &1.into()), "{said:#}");
        } else {
            wrong += 1;
            assert_eq!((&said["cause"], &said["certain"]), (&"false_positive".into(), &false.into()), "{said:#}");
        }
    }
}

#[test]
fn unknown_causes_are_reported_as_unknown() {
    let records = records(60);
    let filter = "{ kind = \"aging\", capacity = 1000, false_positive_rate = 1e-9 }";
    let (setup, input, _) = judged_through_kills("why-not", filter, &records);
    let refused = |args: &[&str], what: &str| {
        let (code, _, error) = ask(&setup, args);
        assert!(code == Some(1) && error.contains(what), "{args:?}: {error}");
    };
    refused(&[&input, "0", "60"], "no committed record at offset 60");
    refused(&[&input, "3", "0"], "partition 3 does not exist; topic ");
    refused(&["--key", "a", "--key", "b"], "the key has 1 part");
    // These records exist but have not been processed.
    produce(broker(), &input, [record(60, 1_000), TestRecord { key: None, ..record(61, 0) }]);
    let said = explained(&setup, &[&input, "0", "60"]);
    assert_eq!((&said["verdict"], &said["seen"]), (&"pending".into(), &false.into()), "{said:#}");
    let said = explained(&setup, &[&input, "0", "61"]);
    assert!(said["sentences"][0].as_str().is_some_and(|text| text.contains("has no key") && text.contains("on_invalid")), "{said:#}");
    // If the changelog no longer has the commit of a record, the verdict on the record is unknown.
    let changelog = format!("{}-ids-changelog", setup.group());
    let said = explained(&setup, &[&input, "0", "0"]);
    let end = said["changelog"]["end_offset"].as_i64().expect("the end of the changelog");
    // Keeps only the last commit of the changelog, which consists of one record and a commit marker.
    delete_records_before(broker(), &changelog, 0, end - 2);
    let said = explained(&setup, &[&input, "0", "0"]);
    assert_eq!((&said["verdict"], &said["certain"]), (&"unknown".into(), &false.into()), "{said:#}");
    assert!(said["limits"].to_string().contains("no longer has commits below offset"), "{said:#}");
    let (code, shown, _) = ask(&setup, &["--set", "state.changelog=false", &input, "0", "0"]);
    assert!(code == Some(0) && shown.contains("state.changelog is false"), "{shown}");
    delete_records_before(broker(), &input, 0, 10);
    refused(&[&input, "0", "9"], "now starts at offset 10, so the record was deleted");
    assert_eq!(explained(&setup, &["--key", "key-2"])["key"][0]["value"], "key-2");
}
