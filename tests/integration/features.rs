//! Promise: `unseen check --connect` reports each feature that a cluster lacks, with a solution. The command deletes the topics that it
//! creates, or names them if it cannot delete them.

use crate::harness::{OwnBroker, PATIENCE, Setup, api, broker, client, committed_offset, front, limit_api, unseen, wait_until};
use crate::stream::Stream;
use rdkafka::consumer::{BaseConsumer, Consumer as _};
use serde_json::Value;
use std::collections::BTreeMap;

fn check(setup: &Setup, overrides: &[&str]) -> (Option<i32>, Value) {
    let file = setup.write_config("a").display().to_string();
    let mut args = vec!["check", "--connect", "--json", "-c", &file];
    args.extend(overrides.iter().flat_map(|setting| ["--set", setting]));
    let (code, stdout, stderr) = unseen(args);
    (code, serde_json::from_str(&stdout).unwrap_or_else(|error| panic!("{error}: {stdout}{stderr}")))
}

/// The support of each feature, by name: `yes`, `no`, `unused`, or `untested`.
fn features(report: &Value) -> BTreeMap<&str, &str> {
    let features = report["features"].as_array().expect("a list");
    features.iter().map(|feature| (feature["name"].as_str().expect("a name"), feature["supported"].as_str().expect("an answer"))).collect()
}

fn messages(report: &Value) -> String {
    let lists = ["problems", "warnings"].map(|name| report[name].as_array().expect("a list"));
    lists.into_iter().flatten().map(|text| text.as_str().expect("a text").to_owned() + "\n").collect()
}

/// The topics whose names start with the group ID: internal topics and the temporary topics of `unseen check`.
fn topics_of(servers: &str, group: &str) -> Vec<String> {
    let consumer: BaseConsumer = client(servers).create().expect("a consumer");
    let metadata = consumer.fetch_metadata(None, PATIENCE).expect("an answer");
    metadata.topics().iter().map(|topic| topic.name().to_owned()).filter(|name| name.starts_with(group)).collect()
}

#[test]
fn a_complete_cluster_passes_and_nothing_remains() {
    let stream = Stream::remembered(broker(), "features", 1);
    let (code, report) = check(&stream.setup, &[]);
    assert_eq!(code, Some(0), "{report}");
    let found = features(&report);
    assert!(found.len() == 9 && found.values().all(|supported| *supported == "yes"), "{report}");
    assert_eq!((&report["ok"], messages(&report)), (&Value::Bool(true), String::new()), "{report}");
    // The brokers confirm a deletion before they have deleted the topic.
    wait_until("no topic remains", PATIENCE, || topics_of(broker(), stream.setup.group()).is_empty().then_some(()));
    for partition in 0..4 {
        assert_eq!(committed_offset(broker(), stream.setup.group(), &stream.input, partition), None);
    }

    let (code, report) = check(&stream.setup, &["worker.delivery=at_least_once", "state.changelog=false"]);
    assert_eq!(code, Some(0), "{report}");
    assert!(features(&report).values().all(|supported| *supported == "unused"), "{report}");

    let (code, report) = check(&stream.setup, &["worker.delivery=at_least_once"]);
    assert_eq!(code, Some(0), "{report}");
    let unused = ["transactions", "transactional_offsets", "read_committed"];
    assert!(
        features(&report).iter().all(|(name, supported)| *supported == if unused.contains(name) { "unused" } else { "yes" }),
        "{report}"
    );
}

#[test]
fn settings_of_outputs_that_reject_records_are_reported() {
    let stream = Stream::remembered(broker(), "features-settings", 1);
    let settings = [("cleanup.policy", "compact"), ("max.message.bytes", "1000")];
    let output = crate::harness::topic_with(broker(), "features-compact", 4, &settings);
    let (code, report) = check(&stream.setup, &[&format!("topics[0].output={output}")]);
    assert_eq!(code, Some(0), "{report}");
    let messages = messages(&report);
    assert!(
        messages.contains(&format!("topics[0].output: topic {output:?} is compacted, so it rejects records without a key")),
        "{messages}"
    );
    assert!(messages.contains(&format!("topics[0].output: topic {output:?} accepts records of at most 1000 bytes")), "{messages}");
}

const API_VERSIONS: i16 = 18;
const METADATA: i16 = 3;
const CREATE_TOPICS: i16 = 19;
const DELETE_TOPICS: i16 = 20;
const DELETE_RECORDS: i16 = 21;
const INIT_PRODUCER_ID: i16 = 22;
const END_TXN: i16 = 26;
const TXN_OFFSET_COMMIT: i16 = 28;

#[test]
fn missing_features_are_reported_with_the_options_that_avoid_them() {
    let broker = OwnBroker::start();
    let stream = Stream::remembered(broker.address(), "lacking", 1).with(|setup| setup.servers(&broker.servers_by_way()));
    // Makes the brokers appear to lack an API or its later versions. `unseen check` reports a missing feature as a problem if the worker
    // needs the feature with the settings of the stream, and otherwise as a warning.
    let without = |limited: i16, most: Option<i16>| {
        let behind = front(broker.behind(), move || {
            Box::new(move |request, ask| {
                let mut answer = ask(&request)?;
                if api(&request).0 == API_VERSIONS {
                    limit_api(&request, &mut answer, limited, most);
                }
                Ok(answer)
            })
        });
        broker.way().lead_to(&behind);
    };
    for (limited, most, feature, words, remedy) in [
        (
            END_TXN,
            None,
            "transactions",
            "worker.delivery: the brokers do not complete transactions",
            "set worker.delivery to \"at_least_once\"",
        ),
        (
            TXN_OFFSET_COMMIT,
            None,
            "transactional_offsets",
            "worker.delivery: the brokers do not accept offsets",
            "set worker.delivery to \"at_least_once\"",
        ),
        (
            DELETE_RECORDS,
            None,
            "delete_records",
            "the brokers do not support DeleteRecords",
            "set state.changelog and repartition to false",
        ),
        (METADATA, Some(9), "topic_ids", "the brokers do not support topic IDs", "do not recreate topics of a group"),
    ] {
        without(limited, most);
        let (code, report) = check(&stream.setup, &[]);
        let is_problem = words.starts_with("worker.");
        assert_eq!(code, Some(if is_problem { 78 } else { 0 }), "{report}");
        assert_eq!(features(&report)[feature], "no", "{report}");
        let messages = messages(&report);
        assert!(messages.lines().any(|line| line.contains(words) && line.contains(remedy)), "{messages}");
        for other in ["topic_settings", "delete_records"].into_iter().filter(|other| *other != feature && feature != "transactions") {
            assert_eq!(features(&report)[other], "yes", "{report}");
        }
        if is_problem {
            let (code, report) = check(&stream.setup, &["worker.delivery=at_least_once"]);
            assert_eq!((code, features(&report)["delete_records"]), (Some(0), "yes"), "{report}");
        }
    }
    without(INIT_PRODUCER_ID, None);
    let (code, report) = check(&stream.setup, &["worker.delivery=at_least_once"]);
    assert_eq!((code, features(&report)["idempotent_producer"]), (Some(78), "no"), "{report}");
    assert!(messages(&report).contains("the brokers do not accept records of an idempotent producer: "), "{report}");
    // Without a temporary topic, the command cannot test the features.
    without(CREATE_TOPICS, None);
    let (code, report) = check(&stream.setup, &[]);
    assert_eq!(code, Some(78), "{report}");
    assert!(messages(&report).contains("state.changelog: cannot create topic"), "{report}");
    let (code, report) = check(&stream.setup, &["state.changelog=false"]);
    assert_eq!((code, features(&report)["read_committed"]), (Some(0), "untested"), "{report}");
    assert!(messages(&report).contains("some features of the cluster were not tested: cannot create topic"), "{report}");
}

/// Renames a setting in a `CreateTopics` request to a name that the broker does not know.
fn spoil(mut request: Vec<u8>, setting: &str) -> Vec<u8> {
    if api(&request).0 == CREATE_TOPICS
        && let Some(at) = request.windows(setting.len()).position(|bytes| bytes == setting.as_bytes())
    {
        request[at] = b'?';
    }
    request
}

/// Amazon MSK Serverless, for example, does not allow clients to set the segment size.
#[test]
fn worker_runs_on_brokers_that_reject_optional_topic_settings() {
    let broker = OwnBroker::start();
    let stream = Stream::remembered(broker.address(), "settings", 2_000);
    let stream = stream.with(|setup| setup.servers(&broker.servers_by_way()));
    let refuse = |setting: &'static str| {
        broker.way().lead_to(&front(broker.behind(), move || Box::new(move |request, ask| ask(&spoil(request, setting)))));
    };
    refuse("cleanup.policy");
    let (code, report) = check(&stream.setup, &[]);
    assert_eq!(code, Some(78), "{report}");
    let words = "even with only the settings cleanup.policy=delete, retention.ms=-1, retention.bytes=-1, which prevent data loss";
    assert!(messages(&report).contains(words), "{report}");

    refuse("segment.bytes");
    let (code, report) = check(&stream.setup, &[]);
    assert_eq!(code, Some(0), "{report}");
    assert!(features(&report).values().all(|supported| *supported == "yes"), "{report}");
    let left_out = "created without message.timestamp.type, message.timestamp.before.max.ms, message.timestamp.after.max.ms, segment.bytes";
    assert!(
        messages(&report)
            .contains(&format!("-news-changelog\" (InvalidConfig (Broker: Configuration is invalid)), so the topic will be {left_out}")),
        "{report}"
    );

    let worker = stream.setup.start("a");
    stream.produce(..);
    let log = stream.check(worker);
    assert_eq!(log.matches(left_out).count(), 1, "{log}");
    // The changelog was created without the settings in `left_out`, and `check` accepts it.
    let (code, report) = check(&stream.setup, &[]);
    assert_eq!((code, messages(&report)), (Some(0), String::new()), "{report}");
}

/// The brokers create the topic, but the response is lost. In the second run, the request to delete the topic is lost, too.
#[test]
fn topic_whose_creation_is_not_confirmed_is_deleted_or_named() {
    let broker = OwnBroker::start();
    let stream = Stream::remembered(broker.address(), "unconfirmed", 1).with(|setup| setup.servers(&broker.servers_by_way()));
    for unanswered in [&[CREATE_TOPICS][..], &[CREATE_TOPICS, DELETE_TOPICS]] {
        let behind = front(broker.behind(), move || {
            Box::new(move |request, ask| {
                let number = api(&request).0;
                if number == DELETE_TOPICS && unanswered.contains(&number) {
                    return Err(std::io::ErrorKind::ConnectionReset.into());
                }
                let answer = ask(&request)?;
                if unanswered.contains(&number) { Err(std::io::ErrorKind::ConnectionReset.into()) } else { Ok(answer) }
            })
        });
        broker.way().lead_to(&behind);
        let (_, report) = check(&stream.setup, &["state.changelog=false"]);
        let messages = messages(&report);
        assert!(messages.contains("some features of the cluster were not tested: cannot create topic"), "{messages}");
        let is_named = messages.contains("which this check may have created");
        let left = || topics_of(broker.address(), stream.setup.group());
        if unanswered.contains(&DELETE_TOPICS) {
            assert!(is_named && left().iter().all(|topic| messages.contains(topic)), "{:?}: {messages}", left());
            assert_eq!(left().len(), 1, "{messages}");
        } else {
            assert!(!is_named, "{messages}");
            wait_until("no topic remains", PATIENCE, || left().is_empty().then_some(()));
        }
    }
}

/// Some brokers deliver records of aborted transactions, for example librdkafka's mock cluster. This test turns each abort into a commit.
#[test]
fn brokers_that_show_records_of_aborted_transactions_are_reported() {
    let broker = OwnBroker::start();
    let stream = Stream::remembered(broker.address(), "leaking", 1).with(|setup| setup.servers(&broker.servers_by_way()));
    let behind = front(broker.behind(), || {
        Box::new(|mut request, ask| {
            if api(&request).0 == END_TXN {
                // The last field of `EndTxn` is true for a commit. From version 3 on, one byte for tagged fields follows.
                let at = request.len() - if api(&request).1 >= 3 { 2 } else { 1 };
                request[at] = 1;
            }
            ask(&request)
        })
    });
    broker.way().lead_to(&behind);
    let (code, report) = check(&stream.setup, &[]);
    assert_eq!((code, features(&report)["read_committed"], features(&report)["transactions"]), (Some(78), "no", "yes"), "{report}");
    assert!(messages(&report).contains("a read_committed consumer received a record of an aborted transaction"), "{report}");
}
