//! Explains a record by replaying a capture with the configured filter and with an exact window for the record's key.
//!
//! A capture may start later than the group, so earlier emissions may be unknown. A capture also does not show what the group did with the
//! record, so the explanation only covers the verdict under the given configuration.

use super::live::{empty, key_parts, verdict_without_key};
use super::report::{Cause, Emission, ExplainedRecord, Explanation, Forgetting, InputRange, VerdictName};
use super::{Error, render};
use crate::config::{Config, Start, Topic};
use crate::filter::Slice;
use crate::format::Schemas;
use crate::record::{Offset, Timestamp, Verdict};
use crate::replay::{FollowedRecord, Format, Options, RecordedKey, Replay};
use std::io::{self, BufRead};
use std::sync::Arc;

pub struct Captured<'c> {
    /// Opens the capture at its start.
    pub open: &'c dyn Fn() -> io::Result<Box<dyn BufRead>>,
    /// Name of the capture in error messages.
    pub name: &'c str,
    /// Number of partitions of the topic, or `None` to assume 1.
    pub partitions: Option<u32>,
    /// Returns the latest record time that moves the window, as in [`Replay::run_and_list`].
    pub max_timestamp: &'c dyn Fn() -> Timestamp,
}

#[derive(Default)]
struct KeyState {
    first: Option<FollowedRecord>,
    /// The last emission, unless the key was retracted afterward.
    last: Option<FollowedRecord>,
    /// The slice of the last renewal, or of the insertion if the key was never renewed.
    slice: Option<Slice>,
    emissions: u64,
    retractions: u64,
}

/// Explains the record at an offset of an input by replaying a capture.
///
/// # Errors
/// Fails if the capture does not have the record or cannot be replayed.
pub fn recorded<'c>(
    config: &'c Config,
    input: &str,
    schemas: &Arc<dyn Schemas>,
    (partition, offset): (i32, Offset),
    captured: &Captured<'_>,
) -> Result<Explanation, Error> {
    let partitions = captured.partitions.unwrap_or(1);
    let options = Options { format: Format::Kcat, time: None, partitions, truth: true };
    let open = || (captured.open)().map_err(|error| Error::Question(format!("{}: {error}", captured.name)));
    let rules: Vec<_> = config.rules(input).map(|(_, topic)| topic).collect();
    let replay = |rules: &[&'c Topic]| Ok::<_, Error>(Replay::of_rules(rules, &options)?.with_schemas(Arc::clone(schemas)));
    let found = replay(&rules)?.find(open()?, input, partition, offset)?;
    let Some(RecordedKey { time, fingerprint, texts, first_offset, rule }) = found else {
        return Err(Error::Question(format!(
            "{} has no record of {}[{partition}] at offset {offset}; use a capture that includes it",
            captured.name, input
        )));
    };
    // Replay the rule that selects the record, and the earlier rules of the input. Without the earlier rules, this rule would also get the
    // records that the earlier rules select.
    let rules = &rules[..=rule];
    let topic = rules[rule];
    let record = ExplainedRecord { topic: topic.input.clone(), partition, offset, time_ms: time };
    let parts = key_parts(topic, texts);
    let mut explanation = Explanation { record: Some(record), key: parts, partition: Some(partition), ..empty(topic) };
    limit(&mut explanation, config, topic, first_offset, captured.partitions);
    let fingerprint = match fingerprint {
        Ok(fingerprint) => fingerprint,
        Err(no_key) => {
            let verdict = verdict_without_key(topic, &no_key);
            explanation.verdict = Some(verdict);
            explanation.sentences = render::without_key(topic, verdict, &no_key, None);
            return Ok(explanation);
        }
    };
    let fingerprint = topic.emit().key_of(fingerprint);
    let of = |record: &FollowedRecord| emission(topic, partition, record);
    let mut known = KeyState::default();
    let is_sliced = topic.rules(partitions).is_sliced();
    let (slice, stream_time) = replay(rules)?.follow(open()?, (partition, fingerprint), captured.max_timestamp, &mut |followed| {
        if followed.offset == Some(offset) {
            let (verdict, cause, repeats) = judged(&known, &followed, topic, is_sliced);
            (explanation.verdict, explanation.cause, explanation.repeats) = (Some(verdict), cause, repeats.map(|repeats| of(&repeats)));
        }
        known.note(followed, topic.refresh);
    })?;
    explanation.first = known.first.as_ref().map(of);
    explanation.last = known.last.as_ref().map(of);
    (explanation.emissions, explanation.retractions) = (known.emissions, known.retractions);
    let forgotten = known.slice.map(|inserted| Slice(inserted.0.saturating_add(i64::from(topic.window.slices()) + 1)));
    let is_seen = known.last.is_some() && forgotten.is_none_or(|at| slice.is_none_or(|slice| slice < at));
    explanation.seen = Some(is_seen);
    explanation.forgotten = forgotten.filter(|_| is_seen && is_sliced).map(|at| Forgetting {
        at_slice: at,
        at_stream_time_ms: topic.window.start_of(at),
        slice,
        stream_time_ms: stream_time,
    });
    explanation.sentences = render::sentences(&explanation, topic, None);
    Ok(explanation)
}

/// Adds the limits of the capture to the explanation. Without limits, the explanation is certain.
fn limit(explanation: &mut Explanation, config: &Config, topic: &Topic, first_offset: Option<Offset>, partitions: Option<u32>) {
    let begins = first_offset
        .filter(|&first| first > 0)
        .map(|first| format!("the capture starts at offset {first} of this partition, so earlier emissions are unknown"));
    let limits = [
        (config.kafka.start == Start::Latest, "kafka.start is \"latest\", so the group may have started later than the capture"),
        (
            partitions.is_none() && !topic.filter.is_exact(),
            "the filter was sized for 1 partition; set the topic's number of partitions with --partitions",
        ),
        (topic.repartition, "the worker repartitions the records of this topic before it deduplicates them, and the replay does not"),
        (config.space_of(topic).topics.len() > 1, "other topics share the key space, and the replay has only this topic"),
    ];
    explanation.limits.extend(begins);
    explanation.limits.extend(limits.into_iter().filter(|(holds, _)| *holds).map(|(_, limit)| limit.to_owned()));
    explanation.certain = explanation.limits.is_empty();
}

/// Returns the verdict on a record, its cause, and the record that it duplicates.
fn judged(
    known: &KeyState,
    followed: &FollowedRecord,
    topic: &Topic,
    is_sliced: bool,
) -> (VerdictName, Option<Cause>, Option<FollowedRecord>) {
    match followed.verdict {
        Verdict::Duplicate if followed.is_wrong => (VerdictName::Duplicate, Some(Cause::FalsePositive), None),
        Verdict::Duplicate => (VerdictName::Duplicate, Some(Cause::Repeat), known.last),
        Verdict::Late => (VerdictName::Late, None, None),
        Verdict::Retracted => (VerdictName::Retracted, None, None),
        _ if known.has_other_content(followed, topic) => (VerdictName::Unseen, Some(Cause::Changed), None),
        _ if known.last.is_some() && is_sliced => (VerdictName::Unseen, Some(Cause::Expired), None),
        _ if known.last.is_some() => (VerdictName::Unseen, Some(Cause::Forgotten), None),
        _ if known.retractions > 0 => (VerdictName::Unseen, Some(Cause::AfterRetraction), None),
        _ => (VerdictName::Unseen, Some(Cause::First), None),
    }
}

impl KeyState {
    /// True if the last emitted record with the key is within the window and has different content than this record.
    fn has_other_content(&self, followed: &FollowedRecord, topic: &Topic) -> bool {
        let content_of = |record: &FollowedRecord| topic.emit().content_of(record.fingerprint);
        let age = self.slice.zip(followed.slice).map_or(0, |(inserted, now)| now.0.saturating_sub(inserted.0));
        self.last.is_some_and(|last| content_of(&last) != content_of(followed)) && age <= i64::from(topic.window.slices())
    }

    fn note(&mut self, followed: FollowedRecord, refresh: bool) {
        match followed.verdict {
            Verdict::Unseen => {
                self.first.get_or_insert(followed);
                self.last = Some(followed);
                self.slice = followed.slice;
                self.emissions += 1;
            }
            Verdict::Duplicate if refresh && !followed.is_wrong => self.slice = followed.slice,
            Verdict::Retracted => {
                (self.last, self.slice) = (None, None);
                self.retractions += 1;
            }
            _ => {}
        }
    }
}

fn emission(topic: &Topic, partition: i32, record: &FollowedRecord) -> Emission {
    let offset = record.offset.unwrap_or_default();
    let only = InputRange { topic: topic.input.clone(), partition, first_offset: offset, last_offset: offset };
    Emission { inputs: vec![only], slice: record.slice, committed_at_ms: None, changelog_offset: None, epoch: None }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::NoSchemas;

    const CONFIG: &str = r#"
[kafka]
bootstrap_servers = "localhost:9092"

[[topics]]
input = "news"
output = "news-unseen"
key = { field = "/id" }
window = "1h"
on_invalid = "drop"
filter = { kind = "aging", capacity = 1000, false_positive_rate = 1e-9 }
"#;

    fn line(topic: &str, partition: i32, offset: Offset, value: &str) -> String {
        let value = value.replace('"', "\\\"");
        format!(r#"{{"topic":"{topic}","partition":{partition},"offset":{offset},"ts":5000,"key":null,"payload":"{value}"}}"#) + "\n"
    }

    fn said(config: &str, partitions: Option<u32>, lines: &str, offset: Offset) -> Explanation {
        let config = Config::of_text(config);
        let schemas: Arc<dyn Schemas> = Arc::new(NoSchemas);
        let captured = Captured {
            open: &|| Ok(Box::new(io::Cursor::new(lines.to_owned().into_bytes()))),
            name: "capture",
            partitions,
            max_timestamp: &|| Timestamp::MAX,
        };
        recorded(&config, &config.topics[0].input, &schemas, (0, offset), &captured).unwrap()
    }

    #[test]
    fn only_a_complete_capture_with_the_same_filter_is_certain() {
        let whole = line("news", 0, 0, r#"{"id":1}"#) + &line("news", 0, 1, r#"{"id":1}"#) + &line("news", 0, 2, "{}");
        for (offset, verdict, cause) in [
            (0, VerdictName::Unseen, Some(Cause::First)),
            (1, VerdictName::Duplicate, Some(Cause::Repeat)),
            (2, VerdictName::Invalid, None),
        ] {
            let certain = |said: &Explanation| {
                assert_eq!((said.verdict, said.cause), (Some(verdict), cause));
                assert_eq!(said.certain, said.limits.is_empty(), "{:?}", said.limits);
                said.certain
            };
            assert!(certain(&said(CONFIG, Some(1), &whole, offset)));
            assert!(!certain(&said(CONFIG, None, &whole, offset)), "the size of the filter is unknown");
            let exact = CONFIG.replace("1e-9 }", "1e-9, confirm = true }");
            assert!(certain(&said(&exact, None, &whole, offset)));
            let latest = CONFIG.replace("[kafka]", "[kafka]\nstart = \"latest\"");
            assert!(!certain(&said(&latest, Some(1), &whole, offset)));
            let repartitioned = CONFIG.replace("window", "repartition = true\nwindow");
            assert!(!certain(&said(&repartitioned, Some(1), &whole, offset)));
            let later = whole.replace("\"offset\":", "\"offset\":7");
            assert!(
                !certain(&said(CONFIG, Some(1), &later, 70 + offset)),
                "even a duplicate is uncertain, because its original may precede the capture"
            );
        }
    }

    #[test]
    fn changes_are_explained() {
        let changes = CONFIG
            .replace(r#"kind = "aging", capacity = 1000, false_positive_rate = 1e-9"#, r#"kind = "exact""#)
            .replace("window", "emit = { on_change = { field = \"/state\" } }\nwindow");
        let states = ["on", "on", "off", "on", "on"];
        let lines: String = (0..)
            .zip(states)
            .map(|(offset, state)| line("news", 0, offset, &format!(r#"{{"id":1,"n":{offset},"state":"{state}"}}"#)))
            .collect();
        for (offset, verdict, cause, repeats) in [
            (0, VerdictName::Unseen, Cause::First, None),
            (1, VerdictName::Duplicate, Cause::Repeat, Some(0)),
            (2, VerdictName::Unseen, Cause::Changed, None),
            (3, VerdictName::Unseen, Cause::Changed, None),
            (4, VerdictName::Duplicate, Cause::Repeat, Some(3)),
        ] {
            let said = said(&changes, Some(1), &lines, offset);
            assert_eq!((said.verdict, said.cause, said.certain, said.emissions), (Some(verdict), Some(cause), true, 3), "{offset}");
            assert_eq!(said.repeats.map(|repeats| repeats.inputs[0].first_offset), repeats, "{offset}");
        }
        let said = said(&changes, Some(1), &lines, 4);
        assert_eq!(
            said.sentences[0],
            "The record was dropped. It has the same content as the last emitted record with its key: news[0] offset 3."
        );
    }

    #[test]
    fn records_that_pass_through_do_not_count() {
        let selective = CONFIG.replace("window", "when = { field = \"/type\", equals = \"a\" }\nwindow");
        let lines = line("news", 0, 0, r#"{"id":1,"type":"b"}"#)
            + &line("news", 0, 1, r#"{"id":1,"type":"a"}"#)
            + &line("news", 0, 2, r#"{"id":1,"type":"a"}"#);
        for (offset, verdict, cause, emissions) in [
            (0, VerdictName::Passed, None, 0),
            (1, VerdictName::Unseen, Some(Cause::First), 1),
            (2, VerdictName::Duplicate, Some(Cause::Repeat), 1),
        ] {
            let said = said(&selective, Some(1), &lines, offset);
            assert_eq!((said.verdict, said.cause, said.emissions, said.certain), (Some(verdict), cause, emissions, true));
        }
        let passed = said(&selective, Some(1), &lines, 0);
        assert_eq!(passed.sentences, ["`when` does not select the record, so it is emitted without deduplication."]);
    }

    #[test]
    fn a_record_is_explained_by_its_entry() {
        let entry = CONFIG.split("[[topics]]").nth(1).unwrap();
        let first = entry.replace("window", "space = \"a\"\nwhen = { field = \"/type\", equals = \"a\" }\nwindow");
        let config = CONFIG.replace(entry, &format!("{first}\n[[topics]]{}", entry.replace("/id", "/no")));
        let lines: String = [
            r#"{"type":"a","id":1,"no":1}"#,
            r#"{"type":"b","id":1,"no":1}"#,
            r#"{"type":"a","id":1,"no":2}"#,
            r#"{"type":"b","id":2,"no":1}"#,
            r#"{"type":"b","id":1,"no":2}"#,
        ]
        .iter()
        .zip(0..)
        .map(|(value, offset)| line("news", 0, offset, value))
        .collect();
        for (offset, space, verdict) in [
            (0, "a", VerdictName::Unseen),
            (1, "news", VerdictName::Unseen),
            (2, "a", VerdictName::Duplicate),
            (3, "news", VerdictName::Duplicate),
            (4, "news", VerdictName::Unseen),
        ] {
            let said = said(&config, Some(1), &lines, offset);
            assert_eq!((&*said.space, said.verdict, said.certain), (space, Some(verdict), true), "{offset}");
        }
    }

    #[test]
    fn records_of_other_topics_are_ignored() {
        let mixed = line("wire", 0, 0, r#"{"id":1}"#) + &line("wire", 9, 0, "{}") + &line("news", 0, 0, r#"{"id":1}"#);
        let said = said(&CONFIG.replace("on_invalid = \"drop\"", ""), Some(1), &mixed, 0);
        assert_eq!((said.cause, said.emissions, said.certain), (Some(Cause::First), 1, true));
    }
}
