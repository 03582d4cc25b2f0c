//! The questions of `unseen check --connect`, beyond those that a worker asks at its start.
//!
//! Must never change anything: `features` alone creates a topic, for a moment.

use super::admin::block_on;
use super::changelog::admin;
use super::client_config::CALL_TIMEOUT;
use super::cluster::{NamedTopic, look, named_topics, observe, outputs};
use super::features::{Checked, examine};
use super::ffi::{Operation, describe_topics};
use super::{Cluster, Error, client_config as client, newest};
use crate::config::Config;
use rdkafka::admin::{ConfigResource, OwnedResourceSpecifier, ResourceSpecifier};
use rdkafka::consumer::Consumer as _;
use std::collections::{BTreeMap, BTreeSet};

/// Checks the cluster, and compares record times with this machine's clock. Does not wait for a broker that refuses us to change
/// its mind. What it waits for is reported meanwhile.
pub fn check(config: &Config, report: &dyn Fn(&str)) -> Checked {
    let mut checked = Checked::default();
    match look(config, false, &|| false, report) {
        Ok(Cluster { partitions, warnings, .. }) => {
            checked.warnings = warnings;
            checked.problems = missing_permissions(config, &partitions);
            checked.warnings.extend(settings(config));
            examine(config, &mut checked);
            checked.warnings.extend(newest::warnings(config, &partitions));
        }
        Err(Error::Cluster(problems)) => checked.problems = problems,
        Err(other) => checked.problems.push(other.to_string()),
    }
    checked
}

/// Reports each permission on a topic that the brokers deny. Some brokers do not answer this question.
fn missing_permissions(config: &Config, known: &BTreeMap<String, u32>) -> Vec<String> {
    let Ok(observer) = observe(config, &client::observer(&config.kafka)) else { return Vec::new() };
    let mut all = named_topics(config);
    // Internal topics that do not exist yet are not described.
    let exists = |name: &String| matches!(super::admin::partitions(&observer, name), Ok(1..));
    let internal: BTreeSet<_> = known.keys().filter(|name| !all.iter().any(|named| named.topic == **name) && exists(name)).collect();
    for topic in internal {
        let internal = |operation| NamedTopic { setting: "internal topics".to_owned(), topic, operation };
        all.extend([Operation::Read, Operation::Write, Operation::Delete].map(internal));
    }
    let names: Vec<_> = all.iter().map(|named| named.topic).collect::<BTreeSet<_>>().into_iter().collect();
    let Ok(described) = describe_topics(observer.client(), &names, true, CALL_TIMEOUT) else { return Vec::new() };
    let denied = |named: &&NamedTopic<'_>| described.get(named.topic).is_some_and(|topic| topic.denies(named.operation));
    let problem = |NamedTopic { setting, topic, operation }: &NamedTopic<'_>| {
        format!("{setting}: this user lacks the permission {operation:?} on topic {topic:?}; give the user {operation:?} on it")
    };
    all.iter().filter(denied).map(problem).collect()
}

/// Reports settings of topics by which an output rejects records that its input has.
fn settings(config: &Config) -> Vec<String> {
    let inputs = config.topics.iter().map(|topic| topic.input.as_str());
    let outputs_of = |topic| outputs(topic).into_iter().map(|(_, name)| name);
    let names: BTreeSet<_> = inputs.chain(config.topics.iter().flat_map(outputs_of)).collect();
    let names: Vec<_> = names.into_iter().map(ResourceSpecifier::Topic).collect();
    let answer = admin(config).and_then(|(admin, options)| block_on(admin.describe_configs(&names, &options)));
    let found = answer.unwrap_or_default().into_iter().flatten();
    let found: BTreeMap<_, _> = found.filter_map(|resource| Some((topic_name(&resource)?, resource))).collect();
    let get = |topic: &str, setting: &str| found.get(topic)?.get(setting)?.value.clone();
    let mut warnings = Vec::new();
    for (at, topic) in config.topics.iter().enumerate() {
        let limit = |name: &str| get(name, "max.message.bytes").and_then(|bytes| bytes.parse::<u64>().ok());
        for (setting, name) in outputs(topic) {
            if let (Some(input), Some(output)) = (limit(&topic.input), limit(name))
                && output < input
            {
                warnings.push(format!(
                    "topics[{at}].{setting}: topic {name:?} accepts at most {output} bytes (max.message.bytes), and {:?} {input}; larger records are invalid, so on_invalid decides about them",
                    topic.input
                ));
            }
            if get(name, "cleanup.policy").is_some_and(|policy| policy.contains("compact")) {
                warnings.push(format!(
                    "topics[{at}].{setting}: topic {name:?} is compacted: it rejects records without a key, and keeps only the newest record of each key"
                ));
            }
        }
    }
    warnings
}

fn topic_name(resource: &ConfigResource) -> Option<String> {
    match &resource.specifier {
        OwnedResourceSpecifier::Topic(name) => Some(name.clone()),
        _ => None,
    }
}
