//! `unseen check`: validates a configuration, and prints a summary of its topics.

use super::table::{size, table};
use crate::config::{Config, Topic, window_text};
use crate::{follower, kafka};
use serde_json::Value;
use std::fs::File;
use std::path::Path;

const EXAMPLES: &str = "\
Examples:
  unseen check -c unseen.toml
  unseen check -c unseen.toml --connect";

#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    #[command(flatten)]
    config: super::ConfigArgs,
    /// Also connect to the brokers, and check the topics, their partitions, and the schemas
    #[arg(long)]
    connect: bool,
    /// Print the effective configuration as TOML, with all defaults and without secrets
    #[arg(long)]
    print: bool,
}

/// Validates the configuration, and prints "ok" and one line per topic.
///
/// # Errors
/// Returns [`crate::config::Errors`] with every problem found.
pub fn run(args: &Args) -> anyhow::Result<()> {
    let config = args.config.load()?;
    args.config.check_properties(&config)?;
    try_state_dir(&config.state.dir).map_err(|problem| args.config.refuse(vec![problem]))?;
    if config.serve.is_set {
        let faults: Vec<_> = follower::check(&config)
            .iter()
            .map(|fault| format!("serve: {fault}; if you do not run `unseen serve`, remove [serve]"))
            .collect();
        if !faults.is_empty() {
            return Err(args.config.refuse(faults).into());
        }
    }
    for warning in config.shadows().chain(config.serve.open_writes()) {
        eprintln!("warning: {warning}");
    }
    let effective = args.config.effective()?;
    for warning in list_elements(&effective) {
        eprintln!("warning: {warning}");
    }
    if args.connect {
        eprintln!("connecting to {}", config.kafka.bootstrap_servers);
        let report = |problem: &str| eprintln!("{problem}");
        for warning in kafka::check(&config, &report).map_err(|problems| args.config.refuse(problems))? {
            eprintln!("warning: {warning}");
        }
        for warning in super::schemas::check(&config).map_err(|faults| args.config.refuse(faults))? {
            eprintln!("warning: {warning}");
        }
    }
    if args.print {
        let shadows = config.shadows().fold(String::new(), |text, shadow| text + "# " + &shadow + "\n");
        return super::print(&(shadows + &toml::to_string_pretty(&effective)?));
    }
    super::print(&format!("ok\n\n{}\n", summary(&config)))
}

/// Returns a warning for each option of a topic that reads one element of a list. Other elements are not looked at.
fn list_elements(config: &Value) -> Vec<String> {
    let mut warnings = Vec::new();
    for (number, topic) in config["topics"].as_array().into_iter().flatten().enumerate() {
        for (option, value) in topic.as_object().into_iter().flatten() {
            for pointer in pointers(value).into_iter().filter(|pointer| pointer.split('/').skip(1).any(is_index)) {
                warnings.push(format!(
                    "topics[{number}].{option}: {pointer:?} reads one element of a list, and a record is one unit: if the list has more elements, they are emitted or dropped with it; see \"Batches\" in docs/how-to/choose-a-key.md"
                ));
            }
        }
    }
    warnings
}

/// Returns the pointers to fields in the value of an option.
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
    // The last ancestor of a relative path is empty.
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
    rows.extend(config.topics.iter().map(row));
    table(&rows) + "\n* for one partition; partitions share the capacity of a time window, but each has its own count window"
}

fn row(topic: &Topic) -> [String; 6] {
    let memory = topic.rules(1).filter.map_or_else(|| "on disk".to_owned(), |filter| size(filter.bytes(topic.window)));
    let output = topic.output.clone().unwrap_or_else(|| "none (shadow)".to_owned());
    [topic.input.clone(), output, topic.space.clone(), window_text(topic.window), topic.filter.to_string(), memory]
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

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
