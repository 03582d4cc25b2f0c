//! The topics to deduplicate: validates each topic and compares them with each other.

use super::error::{Diagnostics, integer, required};
use super::inputs::Inputs;
use super::pattern::{self, Pattern};
use super::space::{self, KeySpace};
use super::units::{KEYS, Length, window_text};
use super::{Filter, OnDuplicate, OnInvalid, Topic, content, filter, format, inputs, key, predicate, raw, rules};
use crate::dedup::Late;
use crate::filter::{Growth, Kind, Window};
use crate::key::{EventTime, KeySpec, Predicate};
use crate::values::CountBy;
use serde_json::{Value, json};
use std::ops::RangeInclusive;

const SLICES: RangeInclusive<u64> = 1..=64;

/// Resolves the topics and the patterns. Leaves out the entries that cannot be resolved because of errors.
pub(super) fn resolve(raw: Vec<Option<raw::Topic>>, diagnostics: &mut Diagnostics) -> (Vec<Topic>, Vec<Pattern>) {
    if raw.is_empty() && !diagnostics.knows("topics") {
        diagnostics.add("topics", "required: at least one topic to deduplicate");
    }
    let (mut topics, mut patterns) = (Vec::new(), Vec::new());
    for (index, raw) in raw.into_iter().enumerate() {
        if let Some(raw) = required(raw, &format!("topics[{index}]"), "a topic", diagnostics) {
            topics.extend(entry(raw, index, &mut patterns, diagnostics));
        }
    }
    check_loops(&topics, diagnostics);
    rules::check(&topics, diagnostics);
    check_spaces(&topics, diagnostics);
    (topics.into_iter().map(|(_, topic)| topic).collect(), patterns)
}

/// Returns the topics of an entry, each with the path of its input. An entry with a pattern has no topics yet and is added to `patterns`.
fn entry(mut raw: raw::Topic, index: usize, patterns: &mut Vec<Pattern>, diagnostics: &mut Diagnostics) -> Vec<(String, Topic)> {
    let path = format!("topics[{index}]");
    let at = |name: &str| format!("{path}.{name}");
    let input = raw.input.take();
    let pattern = if let Some(Inputs::Pattern(text)) = &input { Some(text.clone()) } else { None };
    let regex = pattern.as_deref().and_then(|text| pattern::compile(text, &at("input"), diagnostics));
    let inputs = inputs::resolve(input, &at("input"), diagnostics);
    let mut names = vec![("output", raw.output.as_ref()), ("space", raw.space.as_ref())];
    if let OnDuplicate::Topic(name) = &raw.on_duplicate {
        names.push(("on_duplicate.topic", Some(name)));
    }
    if let OnInvalid::Topic(name) = &raw.on_invalid {
        names.push(("on_invalid.topic", Some(name)));
    }
    if pattern.is_some() {
        pattern::check_names(&names, &path, diagnostics);
    }
    for (field, name) in names {
        if let Some(name) = name {
            inputs::check_names(name, &inputs, &at(field), diagnostics);
        }
    }
    let Some(topic) = topic(raw, index, &path, diagnostics) else { return Vec::new() };
    if let (Some(text), Some(regex)) = (pattern, regex) {
        patterns.push(Pattern::new(text, regex, topic));
        return Vec::new();
    }
    inputs.into_iter().map(|(path, input)| (path, inputs::topic(&topic, &input))).collect()
}

/// Resolves the settings of an entry. In the result, the input is the placeholder `{input}`, and other names can contain the placeholder.
fn topic(raw: raw::Topic, entry: usize, path: &str, diagnostics: &mut Diagnostics) -> Option<Topic> {
    let at = |name: &str| format!("{path}.{name}");
    let when = raw.when.as_ref().map_or_else(|| Some(Vec::new()), |raw| predicate::when(raw, &at("when"), diagnostics));
    let spec = match required(raw.key, &at("key"), "the parts of the key, such as { record = \"key\" }", diagnostics) {
        Some(raw) => key::resolve(&raw, &at("key"), diagnostics),
        None => None,
    };
    let hashing = raw.hash.as_ref().map(raw::hashing).transpose().map_err(|message| diagnostics.add(&at("hash"), message)).ok().flatten();
    let hashed = |spec: KeySpec| hashing.into_iter().fold(spec, KeySpec::with_hashing);
    let spec = spec.map(hashed);
    let on_change = content::emit(raw.emit.as_ref(), raw.filter.kind, &at("emit"), diagnostics).map(hashed);
    let time = time(raw.time.as_ref(), &at("time"), diagnostics);
    let wanted = |spec| (std::iter::once(spec).chain(&on_change).collect::<Vec<_>>(), time.as_ref());
    let formats = |spec| format::resolve(&raw.key_format, (&raw.value_format, &raw.value_encoding), &wanted(spec), path, diagnostics);
    let formats = spec.as_ref().and_then(formats);
    let length = required(raw.window, &at("window"), "how long a key stays seen, such as \"24h\"", diagnostics);
    let window = length.and_then(|length| window(length, raw.filter.slices.0, path, diagnostics));
    let filter = filter::resolve(&raw.filter, length, window, &at("filter"), diagnostics);
    let retract = retract(raw.retract.as_ref(), &filter, &at("retract"), diagnostics);
    late(raw.late, length, &raw.on_invalid, &at("late"), diagnostics);

    let key_conflicts = content::key_conflicts(raw.key_conflicts.as_ref(), on_change.is_some(), &at("key_conflicts"), diagnostics);
    let count_by = count_by(raw.count_by.as_ref(), &at("count_by"), diagnostics);

    Some(Topic {
        entry,
        input: inputs::PLACEHOLDER.to_owned(),
        space: raw.space.unwrap_or_else(|| inputs::PLACEHOLDER.to_owned()),
        output: raw.output,
        when: when?,
        key: spec?,
        formats: formats?,
        repartition: raw.repartition.0,
        window: window?,
        filter,
        retract,
        refresh: raw.refresh.0,
        time,
        max_future: raw.max_future.0,
        late: raw.late,
        on_change,
        on_duplicate: raw.on_duplicate,
        on_tombstone: raw.on_tombstone,
        on_invalid: raw.on_invalid,
        count_by,
        key_conflicts,
    })
}

fn window(length: Length, slices: u64, path: &str, diagnostics: &mut Diagnostics) -> Option<Window> {
    integer(slices, &SLICES, &format!("{path}.filter.slices"), diagnostics);
    let slices = u32::try_from(slices).ok().filter(|&slices| SLICES.contains(&slices.into()))?;
    let place = format!("{path}.window");
    match length {
        Length::Time(length) => {
            let length = i64::try_from(length.as_millis()).ok()?;
            if length < i64::from(slices) {
                diagnostics.add(&place, format!("expected at least one millisecond per slice, got {length}ms for {slices} slices"));
            }
            Some(Window::time(length, slices))
        }
        Length::Keys(keys) => {
            integer(keys, &(u64::from(slices)..=*KEYS.end()), &place, diagnostics);
            KEYS.contains(&keys).then(|| Window::keys(keys, slices))
        }
    }
}

fn retract(raw: Option<&Value>, filter: &Filter, path: &str, diagnostics: &mut Diagnostics) -> Option<Predicate> {
    let retract = predicate::retract(raw?).map_err(|message| diagnostics.add(path, message)).ok()?;
    if !filter.can_retract() {
        let message = format!(
            "filter kind {:?} cannot retract keys; use kind {}, or set filter.confirm = true",
            filter.kind.name(),
            Kind::list('"', |kind| kind.can_retract)
        );
        diagnostics.add(path, message);
    }
    Some(retract)
}

fn time(raw: Option<&Value>, path: &str, diagnostics: &mut Diagnostics) -> Option<EventTime> {
    key::time(raw?).map_err(|message| diagnostics.add(path, message)).ok()
}

fn count_by(raw: Option<&Value>, path: &str, diagnostics: &mut Diagnostics) -> Option<CountBy> {
    raw::count_by(raw?).map_err(|message| diagnostics.add(path, message)).ok()
}

fn late(late: Late, length: Option<Length>, on_invalid: &OnInvalid, path: &str, diagnostics: &mut Diagnostics) {
    if late != Late::Emit && matches!(length, Some(Length::Keys(_))) {
        diagnostics.add(path, "a window by count has no late records: use \"emit\", or remove it");
    } else if late == Late::DeadLetter && !matches!(on_invalid, OnInvalid::Topic(_)) {
        diagnostics.add(path, "\"dead_letter\" requires a dead-letter topic: set on_invalid = { topic = \"name\" }");
    }
}

/// Checks that no input is also an output, and that an entry lists each input only once.
fn check_loops(topics: &[(String, Topic)], diagnostics: &mut Diagnostics) {
    for (index, (path, topic)) in topics.iter().enumerate() {
        let input = &topic.input;
        if let Some((other, _)) = topics[..index].iter().find(|(_, other)| other.input == *input && other.entry == topic.entry) {
            diagnostics.add(path, format!("{input:?} is already the input at {other}; remove one of the two"));
        }
        let mut written: Vec<_> = topic.output.iter().map(|name| ("output", name)).collect();
        if let OnDuplicate::Topic(name) = &topic.on_duplicate {
            written.push(("on_duplicate.topic", name));
        }
        if let OnInvalid::Topic(name) = &topic.on_invalid {
            written.push(("on_invalid.topic", name));
        }
        for (field, name) in written {
            if let Some((_, Topic { entry: reader, .. })) = topics.iter().find(|(_, reader)| reader.input == *name) {
                let message = format!(
                    "{name:?} is the input of topics[{reader}], and a topic cannot be both an input and an output of one configuration; use another topic"
                );
                diagnostics.add(&topic.setting(field), message);
            }
        }
    }
}

/// Checks that the topics of a space have the same values of the settings that the function `rules` returns, and that all or none of them
/// have an output. The topics share the state of the space.
fn check_spaces(topics: &[(String, Topic)], diagnostics: &mut Diagnostics) {
    let spaces = space::group(topics.iter().map(|(_, topic)| topic));
    for (index, (_, topic)) in topics.iter().enumerate() {
        let of_space = spaces.iter().find(|space| space.name == topic.space);
        let Some(other) = of_space.map(KeySpace::first) else { continue };
        // All inputs of an entry have the same settings, so one message is enough.
        if topics[..index].iter().any(|(_, known)| known.entry == topic.entry && known.space == topic.space) {
            continue;
        }
        if other.is_shadow() != topic.is_shadow() {
            let message = format!(
                "{:?} and {:?} share the space {:?}: set an output for both or for neither, because records whose keys only the shadow topic has seen would be lost",
                other.input, topic.input, topic.space
            );
            diagnostics.add(&topic.setting("output"), message);
        }
        let differences = rules(other).into_iter().zip(rules(topic)).filter(|(a, b)| a != b);
        for ((field, theirs), (_, ours)) in differences {
            let message = format!(
                "{:?} and {:?} share the space {:?} and must have the same value: topics[{}] has {theirs}, but this topic has {ours}",
                other.input, topic.input, topic.space, other.entry
            );
            diagnostics.add(&topic.setting(field), message);
        }
    }
}

fn growth_text(growth: Growth) -> String {
    let most = growth.max_bytes.map_or_else(|| "none".to_owned(), |bytes| bytes.to_string());
    format!("adapt = {}, max_memory = {most}, at_max_memory = {}", growth.adapt, json!(growth.at_max))
}

/// Returns the settings that must be equal for all topics of a space, as text.
fn rules(topic: &Topic) -> [(&'static str, String); 13] {
    // The `let` names all fields, so the compiler reports each new field until this function decides whether all topics of a space must
    // have the same value.
    let Topic {
        entry: _,
        input: _,
        output: _, // Either all topics have an output, or all are shadows: see check_spaces.
        when: _,   // Each topic selects its own records.
        space: _,
        key: _,     // Each topic has its own key. The hash must be equal, see below.
        formats: _, // Equal values are the same key in all formats.
        repartition: _,
        window: _,
        filter:
            Filter { kind: _, capacity: _, false_positive_rate: _, memory: _, confirm: _, growth: Growth { adapt: _, max_bytes: _, at_max: _ } },
        retract: _, // Each topic decides which of its records are retractions.
        refresh: _,
        time: _, // Each topic has its own location of the event time.
        max_future: _,
        late: _,
        on_change: _, // Each topic has its own parts to compare. `emit` must be equal, see below.
        on_duplicate: _,
        on_tombstone: _,
        on_invalid: _,
        count_by: _,
        key_conflicts: _,
    } = topic;
    [
        ("repartition", topic.repartition.to_string()),
        ("window", window_text(topic.window)),
        ("filter.slices", topic.window.slices().to_string()),
        ("hash", topic.key.hashing_id()),
        ("filter.kind", topic.filter.kind.name().to_owned()),
        ("filter.capacity", topic.filter.capacity.map_or_else(|| "none".to_owned(), |keys| keys.to_string())),
        ("filter.false_positive_rate", format!("{:e}", topic.filter.false_positive_rate)),
        ("filter.memory", topic.filter.memory.map_or_else(|| "none".to_owned(), |bytes| bytes.to_string())),
        ("filter.confirm", topic.filter.confirm.to_string()),
        ("filter", growth_text(topic.filter.growth)),
        ("refresh", topic.refresh.to_string()),
        ("late", json!(topic.late).to_string()),
        ("emit", if topic.on_change.is_some() { "\"on_change\"" } else { "\"first\"" }.to_owned()),
    ]
}
