//! Tests of the example files, the README, and the defaults that they show.

use super::{MINIMAL, load, load_as};
use crate::config::raw::{Filter, Http, Kafka, Log, Raw, SchemaRegistry, Serve, State, Topic, Worker};
use crate::config::{Config, OnDuplicate, OnInvalid, OnTombstone};
use crate::filter::Window;
use serde::de::DeserializeOwned;
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

fn example(name: &str) -> (PathBuf, String) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("config").join(name);
    let text = fs::read_to_string(&path).unwrap();
    (path, text)
}

/// Returns the names of a struct's fields, which Serde lists in its error for an unknown field.
fn names<T: DeserializeOwned>() -> Vec<String> {
    let message = serde_json::from_str::<T>(r#"{"?": 0}"#).map(drop).unwrap_err().to_string();
    message.split('`').skip(3).step_by(2).map(str::to_owned).collect()
}

#[test]
fn examples_mention_every_option() {
    let all = [
        names::<Raw>(),
        names::<Kafka>(),
        names::<Worker>(),
        names::<State>(),
        names::<Http>(),
        names::<Log>(),
        names::<SchemaRegistry>(),
        names::<Serve>(),
        names::<Topic>(),
        names::<Filter>(),
    ];
    assert_eq!(all.iter().map(Vec::len).collect::<Vec<_>>(), [8, 7, 7, 4, 1, 2, 6, 11, 23, 9]);
    for name in all.iter().flatten() {
        for (file, assigned) in [("example.toml", " ="), ("example.yaml", ":")] {
            let known = example(file).1.lines().any(|line| {
                let line = line.trim_start().trim_start_matches(['#', ' ', '-']);
                let header = line.trim_matches(['[', ']']).rsplit('.').next() == Some(name);
                header || line.strip_prefix(name.as_str()).is_some_and(|rest| rest.starts_with(assigned))
            });
            assert!(known, "{file} does not mention {name}");
        }
    }
}

#[test]
fn examples_are_equal_and_show_the_defaults() {
    let mut shown = Vec::new();
    for name in ["example.toml", "example.yaml"] {
        let (path, text) = example(name);
        shown.push(format!("{:#?}", Config::load_with(&path, &BTreeMap::new(), &[]).unwrap()));
        // In the example file, `#name` is an option with its default, and `# text` is a comment.
        let stated: Vec<_> = text
            .lines()
            .map(|line| match line.split_once('#') {
                Some((indent, rest)) if indent.trim().is_empty() && rest.starts_with(|c: char| c.is_ascii_lowercase()) => {
                    format!("{indent}{rest}")
                }
                _ => line.to_owned(),
            })
            .collect();
        let changed = stated.iter().zip(text.lines()).filter(|(a, b)| a != b).count();
        assert_eq!(changed, 47, "{name}: defaults that are stated");
        shown.push(format!("{:#?}", load_as(name, &stated.join("\n"), &[], &[]).unwrap()));
    }
    for other in &shown[1..] {
        assert_eq!(&shown[0], other);
    }
}

#[test]
fn defaults_are_as_documented() {
    let config = load(MINIMAL).unwrap();
    assert_eq!(config.kafka.group_id, "unseen");
    assert_eq!(config.kafka.connect_timeout, Duration::from_secs(60));
    assert_eq!(config.worker.max_transaction_records, 1_000_000);
    assert_eq!(config.state.max_write_rate, 32 << 20);
    let topic = &config.topics[0];
    assert_eq!((&*topic.space, topic.filter.capacity), ("in", Some(10_000_000)));
    assert_eq!(topic.window, Window::time(24 * 60 * 60 * 1000, 4));
    assert_eq!((&topic.on_duplicate, topic.on_tombstone, &topic.on_invalid), (&OnDuplicate::Drop, OnTombstone::Emit, &OnInvalid::Fail));
}

#[test]
fn the_configuration_in_the_readme_is_accepted() {
    let readme = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("README.md")).unwrap();
    let (_, after) = readme.split_once("```toml\n").unwrap();
    let (block, _) = after.split_once("```").unwrap();
    assert_eq!(load(block).unwrap().topics[0].output.as_deref(), Some("news.unseen"));
}
