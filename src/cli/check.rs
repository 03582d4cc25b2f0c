//! `unseen check`: validates a configuration and prints a summary of its topics.

use crate::config::{self, Config, LeftOut, Pattern, Topic, window_text};
use crate::kafka::{Checked, Feature, Support};
use crate::plan::text::{columns, size};
use crate::{follower, kafka};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::fs::File;
use std::path::Path;

const EXAMPLES: &str = "\
Examples:
  unseen check -c unseen.toml
  unseen check -c unseen.toml --connect

JSON output (--json): one object.
  ok        true if there are no problems
  problems  errors, which make the exit code 78
  warnings  warnings
  topics    one object for each topic: input, output, space, window, filter, bytes (memory if the topic has one partition; null: on disk)
  patterns  one object for each pattern, with the same names as a topic; `topics` has the topics that match only with --connect
  left_out  with --connect, one object for each topic that matches a pattern but is not read: topic, and the reason
  features  with --connect, one object for each feature of the cluster: name, supported (yes, no, untested, or unused), and the reason";

#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    #[command(flatten)]
    config: super::ConfigArgs,
    /// Also connect to the brokers and check the topics, permissions, schemas, and features of the cluster
    ///
    /// To try transactions and other features, the command creates a topic whose name starts with the group, writes two records to the
    /// topic, and deletes it. Nothing else changes.
    #[arg(long)]
    connect: bool,
    /// Print the effective configuration as TOML, with all defaults and without secrets
    #[arg(long)]
    print: bool,
    /// Print JSON
    #[arg(long, conflicts_with = "print")]
    json: bool,
}

pub fn run(args: &Args) -> anyhow::Result<()> {
    let (mut config, mut checked, mut left_out) = (None, Checked::default(), Vec::new());
    let result = check(args, &mut config, &mut checked, &mut left_out);
    if args.json {
        let problems: Vec<_> = result.as_ref().err().into_iter().flat_map(|errors| &errors.0).map(ToString::to_string).collect();
        let topics: Vec<_> = config.iter().flat_map(|config| &config.topics).map(topic_json).collect();
        let patterns: Vec<_> = config.iter().flat_map(|config| &config.patterns).map(pattern_json).collect();
        let Checked { warnings, features, .. } = &checked;
        let report = json!({
            "ok": result.is_ok(), "problems": problems, "warnings": warnings, "topics": topics, "patterns": patterns,
            "left_out": left_out, "features": features,
        });
        super::print(&format!("{report}\n"))?;
    }
    result?;
    let Some(config) = config.filter(|_| !args.json) else { return Ok(()) };
    if args.print {
        let shadows = config.shadows().fold(String::new(), |text, shadow| text + "# " + &shadow + "\n");
        return super::print(&(shadows + &toml::to_string_pretty(&args.config.effective()?)?));
    }
    let ok = if args.connect { "ok" } else { "ok (to compare the file with the cluster, add --connect)" };
    super::print(&format!("{ok}\n\n{}\n{}", summary(&config), features(&checked.features)))
}

/// Runs all checks. Sets `loaded` as soon as the configuration is loaded, because the JSON report contains the topics even if a later check
/// fails. Also writes warnings to stderr.
fn check(args: &Args, loaded: &mut Option<Config>, checked: &mut Checked, left_out: &mut Vec<LeftOut>) -> Result<(), config::Errors> {
    let config = &*loaded.insert(args.config.load()?);
    args.config.check_properties(config)?;
    try_state_dir(&config.state.dir).map_err(|problem| args.config.refuse(vec![problem]))?;
    if config.serve.is_set {
        let mut all = config.clone();
        all.topics.extend(config.patterns.iter().map(Pattern::entry).cloned());
        let faults: Vec<_> =
            follower::check(&all).iter().map(|fault| format!("serve: {fault}; if you do not run `unseen serve`, remove [serve]")).collect();
        if !faults.is_empty() {
            return Err(args.config.refuse(faults));
        }
    }
    let warn = |warnings: &mut Vec<String>, more: Vec<String>| {
        for warning in &more {
            eprintln!("warning: {warning}");
        }
        warnings.extend(more);
    };
    warn(&mut checked.warnings, config.shadows().chain(config.serve.open_writes()).collect());
    warn(&mut checked.warnings, args.config.effective().map_or_else(|_| Vec::new(), |effective| list_elements(&effective)));
    if args.connect {
        eprintln!("connecting to {}", config.kafka.bootstrap_servers);
        let (Checked { features, warnings, problems }, resolved) = kafka::check(config, &|problem| eprintln!("{problem}"));
        checked.features = features;
        warn(&mut checked.warnings, warnings);
        if !problems.is_empty() {
            return Err(args.config.refuse(problems));
        }
        let config = if let Some(resolved) = resolved {
            *left_out = resolved.left_out;
            &*loaded.insert(Config::clone(&resolved.config))
        } else {
            config
        };
        warn(&mut checked.warnings, super::schemas::check(config).map_err(|faults| args.config.refuse(faults))?);
    }
    Ok(())
}

/// Returns a warning for each JSON Pointer in a topic's options that reads only one element of a list. The verdict applies to the whole
/// record, so it also applies to the other elements.
fn list_elements(config: &Value) -> Vec<String> {
    let mut warnings = Vec::new();
    for (number, topic) in config["topics"].as_array().into_iter().flatten().enumerate() {
        for (option, value) in topic.as_object().into_iter().flatten() {
            for pointer in pointers(value).into_iter().filter(|pointer| pointer.split('/').skip(1).any(is_index)) {
                warnings.push(format!(
                    "topics[{number}].{option}: {pointer:?} reads one element of a list, but a verdict applies to the whole record, so the other elements are emitted or dropped together with that element; see \"Batches\" in docs/how-to/choose-a-key.md"
                ));
            }
        }
    }
    warnings
}

fn pointers(value: &Value) -> Vec<&str> {
    match value {
        Value::Array(list) => list.iter().flat_map(pointers).collect(),
        Value::Object(table) => {
            let is_pointer = |name: &str| matches!(name, "field" | "key_field" | "then");
            table.iter().flat_map(|(name, value)| if is_pointer(name) { texts(value) } else { pointers(value) }).collect()
        }
        _ => Vec::new(),
    }
}

fn texts(value: &Value) -> Vec<&str> {
    value.as_array().map_or_else(|| value.as_str().into_iter().collect(), |list| list.iter().filter_map(Value::as_str).collect())
}

fn is_index(step: &str) -> bool {
    !step.is_empty() && step.bytes().all(|byte| byte.is_ascii_digit())
}

/// Checks that the state directory is writable, by creating and deleting a file in it or in its closest existing ancestor.
fn try_state_dir(dir: &Path) -> Result<(), String> {
    // The last ancestor of a relative path is the empty path, which means the current directory.
    let ancestors = dir.ancestors().map(|path| if path.as_os_str().is_empty() { Path::new(".") } else { path });
    let there = ancestors.into_iter().find(|path| path.symlink_metadata().is_ok()).unwrap_or(dir);
    let file = there.join(format!(".unseen-check-{}", std::process::id()));
    let tried = File::create_new(&file).and_then(|_| std::fs::remove_file(&file));
    tried.map_err(|error| {
        let action = if there == dir { "write to".to_owned() } else { format!("create a directory in {} for", there.display()) };
        format!("state.dir: cannot {action} {}: {error}; use a directory that this user can write to", dir.display())
    })
}

fn summary(config: &Config) -> String {
    let mut rows = vec![["topic", "output", "space", "window", "filter", "memory*"].map(str::to_owned)];
    rows.extend(config.topics.iter().map(|topic| row(topic, topic.input.clone())));
    let with_topics: BTreeSet<_> = config.topics.iter().map(|topic| topic.entry).collect();
    let others = config.patterns.iter().filter(|pattern| !with_topics.contains(&pattern.entry().entry));
    rows.extend(others.map(|pattern| row(pattern.entry(), format!("pattern {:?}", pattern.text()))));
    columns(&rows, 0..0) + "\n* of all partitions in the first window; for a window by count, of one partition"
}

fn row(topic: &Topic, name: String) -> [String; 6] {
    let memory = memory(topic).map_or_else(|| "on disk".to_owned(), size);
    let output = topic.output.clone().unwrap_or_else(|| "none (shadow)".to_owned());
    [name, output, topic.space.clone(), window_text(topic.window), topic.filter.to_string(), memory]
}

/// Returns the memory of the filter in bytes for a topic with one partition, or `None` if the filter is on disk.
fn memory(topic: &Topic) -> Option<u64> {
    topic.rules(1).filter.map(|filter| filter.bytes(topic.window))
}

fn topic_json(topic: &Topic) -> Value {
    json!({
        "input": topic.input, "output": topic.output, "space": topic.space, "window": window_text(topic.window),
        "filter": topic.filter.to_string(), "bytes": memory(topic),
    })
}

fn pattern_json(pattern: &Pattern) -> Value {
    let mut json = topic_json(pattern.entry());
    json["input"] = json!({ "pattern": pattern.text() });
    json
}

fn features(features: &[Feature]) -> String {
    if features.is_empty() {
        return String::new();
    }
    let header = ["feature of the cluster", "supported"].map(str::to_owned);
    let rows = features.iter().map(|Feature { name, support }| {
        let support = match support {
            Support::Yes => "yes",
            Support::No(_) => "no",
            Support::Untested(_) => "not tested",
            Support::Unused => "not needed",
        };
        [(*name).to_owned(), support.to_owned()]
    });
    format!("\n{}", columns(&[header].into_iter().chain(rows).collect::<Vec<_>>(), 0..0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_that_read_an_element_of_a_list_are_named() {
        let topic = json!({
            "key": [{ "field": "/Message", "then": ["/a/0x", "/Records/0/id"] }, { "first_of": [{ "key_field": "/12" }, { "field": "/a" }] }],
            "time": { "field": "/events/0/ts" },
            "retract": { "header": "/0", "one_of": ["/1"] },
            "count_by": { "field": "/0a" },
        });
        let warned: Vec<_> = list_elements(&json!({ "topics": [{}, topic] }))
            .iter()
            .map(|warning| warning.split(" reads").next().unwrap().to_owned())
            .collect();
        assert_eq!(warned, ["topics[1].key: \"/Records/0/id\"", "topics[1].key: \"/12\"", "topics[1].time: \"/events/0/ts\""]);
    }
}
