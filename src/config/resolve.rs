//! Validates the options and converts them to a configuration.
//!
//! All errors are reported at once, except for errors that follow from other errors.

use super::error::{Diagnostics, integer, required};
use super::listen::listen;
use super::raw::{self, Raw};
use super::{Config, Http, Kafka, Log, Start, State, Topic, Worker, inputs, oauth, properties, registry, serve, topics};
use std::path::PathBuf;
use std::time::Duration;
use tracing::level_filters::LevelFilter;

/// Resolves the configuration. The result is valid only if no error was reported.
pub(super) fn resolve(raw: Raw, diagnostics: &mut Diagnostics) -> Option<Config> {
    let kafka = kafka(raw.kafka, diagnostics);
    let worker = worker(&raw.worker, diagnostics);
    let state = state(raw.state, diagnostics);
    let http = http(&raw.http.listen, diagnostics);
    let log = log(raw.log, diagnostics);
    let schema_registry = registry::resolve(raw.schema_registry, diagnostics);
    let (topics, patterns) = topics::resolve(raw.topics, diagnostics);
    // `serve.filters` can contain the space of a topic that matches a pattern, so the filters are checked against such topics, too.
    let spaces = || raw.serve.filters.keys();
    let matched = patterns.iter().flat_map(|pattern| spaces().filter_map(|space| pattern.topic_of_space(space)));
    let with_filters: Vec<_> = topics.iter().cloned().chain(matched).collect();
    let serve = serve::resolve(raw.serve, &with_filters, diagnostics);
    let config = Config { kafka: kafka?, worker: worker?, state, http: http?, log, schema_registry, serve: serve?, topics, patterns };
    for topic in &config.topics {
        schemas(&config, topic, diagnostics);
        inputs::check_internal_topics(&config, topic, diagnostics);
    }
    for pattern in &config.patterns {
        let topic = pattern.topic("input");
        schemas(&config, &topic, diagnostics);
        inputs::check_internal_topics(&config, &topic, diagnostics);
    }
    check_patterns(&config, diagnostics);
    check_changes(&config, diagnostics);
    Some(config)
}

/// Reports options that do not work with patterns, because matching topics can be created after the worker has started.
fn check_patterns(config: &Config, diagnostics: &mut Diagnostics) {
    let Some(pattern) = config.patterns.first() else { return };
    let input = pattern.entry().setting("input");
    if config.kafka.start == Start::Latest {
        let message = format!(
            "{input} is a pattern: with \"latest\", the records that are written to a new topic before the worker finds it would be lost; use \"earliest\""
        );
        diagnostics.add("kafka.start", message);
    }
    if config.kafka.instance_id.is_some() {
        let message = format!(
            "{input} is a pattern: the group assigns no partitions of new topics to static members (KAFKA-12759); remove this option, and the worker uses the id in state.dir instead of a static name"
        );
        diagnostics.add("kafka.instance_id", message);
    }
}

/// Checks that a space with several topics and `emit = "on_change"` has a changelog. Without a changelog, a restart reads the topics again
/// in another order and may restore older content of a key.
fn check_changes(config: &Config, diagnostics: &mut Diagnostics) {
    for space in config.spaces().iter().filter(|space| space.topics.len() > 1 && !config.state.changelog) {
        let [first, second, ..] = space.topics[..] else { continue };
        if first.on_change.is_some() {
            let message = format!(
                "\"on_change\" requires state.changelog = true, because {:?} and {:?} share the space {:?}, and without a changelog, a restart reads them again in another order and may restore older content; set state.changelog to true, or give each topic its own space",
                first.input, second.input, space.name
            );
            diagnostics.add(&first.setting("emit"), message);
        }
    }
}

fn schemas(config: &Config, topic: &Topic, diagnostics: &mut Diagnostics) {
    for (side, format) in [("key_format", topic.formats.key()), ("value_format", topic.formats.value())] {
        let path = topic.setting(side);
        if format.needs_registry() && config.schema_registry.is_none() && !diagnostics.knows("schema_registry") {
            let kind = serde_json::json!(format.format);
            let message = format!(
                "requires schema_registry.url; for records without a registry's frame, set {{ kind = {kind}, schema = \"file\" }} instead"
            );
            diagnostics.add(&path, message);
        }
    }
}

fn kafka(raw: raw::Kafka, diagnostics: &mut Diagnostics) -> Option<Kafka> {
    let what = "the initial brokers, such as \"localhost:9092\"";
    let bootstrap_servers = required(raw.bootstrap_servers, "kafka.bootstrap_servers", what, diagnostics);
    let texts = [
        ("kafka.bootstrap_servers", &bootstrap_servers),
        ("kafka.group_id", &Some(raw.group_id.clone())),
        ("kafka.instance_id", &raw.instance_id),
    ];
    for (path, text) in texts {
        if text.as_ref().is_some_and(|text| text.trim().is_empty()) {
            diagnostics.add(path, "must not be empty");
        }
    }
    if let Some(message) = bootstrap_servers.as_ref().and_then(|servers| not_an_address(servers)) {
        diagnostics.add("kafka.bootstrap_servers", message);
    }
    let mut properties = properties::resolve(&raw.properties.0, diagnostics);
    let oauth = oauth::resolve(&mut properties, bootstrap_servers.as_deref(), diagnostics);
    Some(Kafka {
        bootstrap_servers: bootstrap_servers?,
        group_id: raw.group_id,
        instance_id: raw.instance_id,
        start: raw.start,
        on_truncation: raw.on_truncation,
        connect_timeout: raw.connect_timeout.0,
        properties,
        oauth,
    })
}

/// Returns an error message if a server in the list has a protocol or a user in front of its host. The message does not show a password.
fn not_an_address(servers: &str) -> Option<String> {
    let advice = "remove the part before the host: security.protocol in kafka.properties sets the protocol";
    if servers.contains('@') {
        return Some(format!("expected host:port; {advice}, and sasl.username and sasl.password set the user"));
    }
    let server = servers.split(',').map(str::trim).find(|server| server.contains("://"))?;
    Some(format!("expected host:port, got {server:?}; {advice}"))
}

fn worker(raw: &raw::Worker, diagnostics: &mut Diagnostics) -> Option<Worker> {
    integer(raw.workers.0, &(1..=64), "worker.workers", diagnostics);
    integer(raw.max_transaction_records.0, &(1..=100_000_000), "worker.max_transaction_records", diagnostics);

    let timeout = raw.transaction_timeout.0;
    if !(Duration::from_secs(1)..=Duration::from_secs(15 * 60)).contains(&timeout) {
        diagnostics.add("worker.transaction_timeout", format!("expected a duration from 1s to 15m, got {}", text(timeout)));
    }
    let interval = raw.commit_interval.0;
    if interval < Duration::from_millis(10) {
        diagnostics.add("worker.commit_interval", format!("expected a duration of at least 10ms, got {}", text(interval)));
    } else if interval > timeout / 2 && !diagnostics.knows("worker.transaction_timeout") {
        let message = format!(
            "expected at most {}, which is half of worker.transaction_timeout, got {}; otherwise, the broker could abort a slow commit",
            text(timeout / 2),
            text(interval)
        );
        diagnostics.add("worker.commit_interval", message);
    }
    let checkpoint = raw.checkpoint_interval.0;
    if checkpoint < Duration::from_millis(100) {
        let message = format!("expected a duration of at least 100ms, got {}", text(checkpoint));
        diagnostics.add("worker.checkpoint_interval", message);
    }
    Some(Worker {
        workers: u16::try_from(raw.workers.0).ok()?,
        delivery: raw.delivery,
        commit_interval: interval,
        checkpoint_interval: checkpoint,
        transaction_timeout: timeout,
        max_transaction_records: usize::try_from(raw.max_transaction_records.0).ok()?,
        shutdown_timeout: raw.shutdown_timeout.0,
    })
}

fn state(raw: raw::State, diagnostics: &mut Diagnostics) -> State {
    if raw.dir.is_empty() {
        diagnostics.add("state.dir", "must not be empty");
    }
    if raw.max_write_rate.0 == 0 {
        diagnostics.add("state.max_write_rate", "must not be 0, because no checkpoint could be written");
    }
    State { dir: PathBuf::from(raw.dir), changelog: raw.changelog.0, cold_start: raw.cold_start, max_write_rate: raw.max_write_rate.0 }
}

fn http(raw: &str, diagnostics: &mut Diagnostics) -> Option<Http> {
    listen(raw, "http.listen", "127.0.0.1:8080", diagnostics).ok().map(|listen| Http { listen })
}

fn log(raw: raw::Log, diagnostics: &mut Diagnostics) -> Log {
    // The log filter would mistake a misspelled level for the name of a module and then log only this module.
    let misspelled = |part: &&str| {
        let (module, level) = part.trim().rsplit_once('=').unwrap_or(("all", part.trim()));
        module.trim().is_empty() || module.contains('[') || level.trim().parse::<LevelFilter>().is_err()
    };
    if let Some(part) = raw.level.split(',').find(misspelled) {
        diagnostics.add("log.level", format!("expected a level such as \"info\", or \"info,unseen=debug\"; got {part:?}"));
    }
    Log { level: raw.level, format: raw.format }
}

fn text(duration: Duration) -> String {
    humantime::format_duration(duration).to_string()
}
