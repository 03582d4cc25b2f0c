//! The checks of `unseen check --connect`: all checks that a worker makes at startup, and some that only this command makes.
//!
//! The checks never change anything on the cluster, except that `features` creates a temporary topic and deletes it.

use super::admin::block_on;
use super::changelog::admin;
use super::cluster::{NamedTopic, denied, list, look, named_topics};
use super::features::{Checked, examine};
use super::ffi::Operation;
use super::{Error, client_config as client, newest};
use crate::broker::topics::{Resolved, resolve_among};
use crate::config::{Config, Topic};
use rdkafka::admin::{ConfigResource, OwnedResourceSpecifier, ResourceSpecifier};
use std::collections::{BTreeMap, BTreeSet};

/// Checks the cluster and compares record times with this machine's clock. If no broker is reachable, waits and passes progress messages to
/// `report`. If the brokers reject this client, returns immediately. Also returns the configuration with the topics that match its
/// patterns, or `None` if the topics cannot be used.
pub fn check(config: &Config, report: &dyn Fn(&str)) -> (Checked, Option<Resolved>) {
    let mut checked = Checked::default();
    let stop = || false;
    let names = if config.patterns.is_empty() { Ok(BTreeSet::new()) } else { list(config, false, &stop, report) };
    let found = names.and_then(|names| resolve_among(config, &names, &|config| look(config, false, &stop, report)));
    let resolved = match found {
        Ok(resolved) => {
            let (config, cluster) = (&resolved.config, &resolved.cluster);
            checked.warnings.clone_from(&cluster.warnings);
            checked.warnings.extend(resolved.left_out.iter().map(ToString::to_string));
            checked.problems = missing_permissions(config, &cluster.partitions);
            checked.warnings.extend(settings(config));
            examine(config, &mut checked);
            checked.warnings.extend(newest::warnings(config, &cluster.partitions));
            Some(resolved)
        }
        Err(Error::Cluster(problems)) => {
            checked.problems.extend(problems.into_iter().map(|problem| problem.message));
            None
        }
        Err(other) => {
            checked.problems.push(other.to_string());
            None
        }
    };
    (checked, resolved)
}

fn missing_permissions(config: &Config, known: &BTreeMap<String, u32>) -> Vec<String> {
    let Ok(observer) = client::observe(config, &client::observer(&config.kafka)) else { return Vec::new() };
    let mut all = named_topics(config);
    let Some(first) = config.topics.first() else { return Vec::new() };
    // The request for permissions fails if one of its topics does not exist, so leave out internal topics that are not created yet.
    let exists = |name: &String| matches!(super::admin::partitions(&observer, name), Ok(1..));
    let internal: BTreeSet<_> = known.keys().filter(|name| !all.iter().any(|named| named.topic == **name) && exists(name)).collect();
    for topic in internal {
        let internal = |operation| NamedTopic { setting: "internal topics".to_owned(), input: first, topic, operation };
        all.extend([Operation::Read, Operation::Write, Operation::Delete].map(internal));
    }
    denied(&observer, &all).into_iter().map(|problem| problem.message).collect()
}

/// Returns warnings about outputs whose settings make them reject or delete records.
fn settings(config: &Config) -> Vec<String> {
    let inputs = config.topics.iter().map(|topic| topic.input.as_str());
    let names: BTreeSet<_> = inputs.chain(config.topics.iter().flat_map(Topic::outputs).map(|(_, name)| name)).collect();
    let names: Vec<_> = names.into_iter().map(ResourceSpecifier::Topic).collect();
    let answer = admin(config).and_then(|(admin, options)| block_on(admin.describe_configs(&names, &options)));
    let found = answer.unwrap_or_default().into_iter().flatten();
    let found: BTreeMap<_, _> = found.filter_map(|resource| Some((topic_name(&resource)?, resource))).collect();
    let get = |topic: &str, setting: &str| found.get(topic)?.get(setting)?.value.clone();
    let mut warnings = Vec::new();
    for topic in &config.topics {
        let limit = |name: &str| get(name, "max.message.bytes").and_then(|bytes| bytes.parse::<u64>().ok());
        for (setting, name) in topic.outputs() {
            if let (Some(input), Some(output)) = (limit(&topic.input), limit(name))
                && output < input
            {
                warnings.push(format!(
                    "{}: topic {name:?} accepts records of at most {output} bytes (max.message.bytes), but {:?} accepts {input}; larger records are invalid, and on_invalid decides what happens to them; to accept larger records, raise max.message.bytes of {name:?}",
                    topic.setting(setting),
                    topic.input
                ));
            }
            if get(name, "cleanup.policy").is_some_and(|policy| policy.contains("compact")) {
                warnings.push(format!(
                    "{}: topic {name:?} is compacted, so it rejects records without a key and keeps only the newest record of each key; to keep all records, set cleanup.policy=delete",
                    topic.setting(setting)
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
