//! The space of configurations: what may be chosen, and what does not go together.
//!
//! A choice has the name of its row in docs/guarantees.md, which says what is promised under it.

use super::plan::pick;
use crate::harness::SplitMix;
use std::collections::BTreeSet;
use std::fmt::Write;

/// Of each, one is chosen. The last says what records there are among plain ones.
pub const DIMENSIONS: &[&[&str]] = &[
    &["delivery = \"exactly_once\"", "delivery = \"at_least_once\""],
    &["kind = \"aging\"", "kind = \"cuckoo\"", "kind = \"exact\"", "kind = \"aging\", confirm = true", "kind = \"cuckoo\", confirm = true"],
    &[
        "a window by time that rotates",
        "a window by time that covers all",
        "a window by count that rotates",
        "a window by count that covers all",
    ],
    &["slices = 4", "slices = 1"],
    &["refresh = false", "refresh = true"],
    &["late = \"emit\"", "late = \"drop\"", "late = \"dead_letter\""],
    &["no unsee", "unsee"],
    &["a space of one topic", "a space that topics share"],
    &["state.changelog = true", "state.changelog = false"],
    &["cold_start = \"rebuild\"", "cold_start = \"empty\"", "cold_start = \"fail\""],
    &["repartition = false", "repartition = true"],
    &["start = \"earliest\"", "start = \"latest\""],
    &["on_duplicate = \"drop\"", "on_duplicate = \"mark\"", "on_duplicate = { topic }"],
    &["on_invalid = \"fail\"", "on_invalid = \"drop\"", "on_invalid = { topic }"],
    &["on_tombstone = \"emit\"", "on_tombstone = \"drop\""],
    &["no instance_id", "instance_id"],
    &["workers = 1", "workers = 2"],
    &[
        "plain records",
        "records that are late, from the future, or without a time",
        "tombstones",
        "records that lack what the key is made of",
        "records too large for the output",
        "records that the output refuses",
    ],
];

/// One of each dimension.
#[derive(Clone, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
#[serde(transparent)]
pub struct Options(Vec<String>);

impl Options {
    /// Any that go together.
    fn any(random: &mut SplitMix) -> Self {
        loop {
            let options = Self(DIMENSIONS.iter().map(|choices| pick(random, choices).to_owned()).collect());
            if options.is_possible() {
                return options;
            }
        }
    }

    /// The `number`th of a series that has soon had all pairs of choices that go together.
    pub fn of_series(series: u64, number: usize) -> Self {
        let mut random = SplitMix(series);
        let mut had = BTreeSet::new();
        let mut options = Self::any(&mut random);
        for _ in 0..=number {
            let candidates: Vec<_> = (0..20).map(|_| Self::any(&mut random)).collect();
            let news = |options: &Self| options.pairs().filter(|pair| !had.contains(pair)).count();
            options = candidates.into_iter().max_by_key(news).expect("there are some");
            had.extend(options.pairs().collect::<Vec<_>>());
        }
        options
    }

    /// All pairs of choices in it, each by the numbers of dimension and choice.
    pub fn pairs(&self) -> impl Iterator<Item = [(usize, usize); 2]> {
        let number = |(at, choice): (usize, &String)| (at, DIMENSIONS[at].iter().position(|other| other == choice).unwrap_or_default());
        let all: Vec<_> = self.0.iter().enumerate().map(number).collect();
        (0..all.len()).flat_map(move |at| (0..at).map(|before| [all[before], all[at]]).collect::<Vec<_>>())
    }

    pub fn has(&self, choice: &str) -> bool {
        debug_assert!(DIMENSIONS.iter().any(|choices| choices.contains(&choice)), "{choice}");
        self.0.iter().any(|chosen| chosen == choice)
    }

    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(String::as_str)
    }

    /// Whether the configuration is accepted, and what comes out can be told.
    fn is_possible(&self) -> bool {
        let has = |choice| self.has(choice);
        let confirms = has("kind = \"aging\", confirm = true") || has("kind = \"cuckoo\", confirm = true");
        let is_invalid =
            ["records that lack what the key is made of", "records too large for the output", "records that the output refuses"];
        let accepted = (!has("repartition = true") || has("state.changelog = true"))
            && (has("late = \"emit\"") || self.window_keys().is_none())
            && (!has("late = \"dead_letter\"") || has("on_invalid = { topic }"))
            // A cuckoo filter alone may take out the copy of another key.
            && (!has("unsee") || confirms || has("kind = \"exact\""))
            && (!has("on_invalid = \"fail\"") || !is_invalid.into_iter().any(has))
            // A repartitioned record is refused on its second way, or ends the worker on its first.
            && (!has("repartition = true") || !has("records too large for the output"));
        accepted && (self.is_ordered() || self.is_told_by_keys())
    }

    /// Whether each record's fate follows from the input alone, in order.
    pub fn is_ordered(&self) -> bool {
        self.has("delivery = \"exactly_once\"") && self.has("a space of one topic") && self.has("repartition = false")
    }

    /// Whether each key is unseen once, whatever the order.
    pub fn is_told_by_keys(&self) -> bool {
        !self.has("a window by time that rotates")
            && !self.has("a window by count that rotates")
            && self.has("no unsee")
            && !self.has("records that are late, from the future, or without a time")
    }

    /// What the configuration says of each topic, but for its names. Rates are so low that not one record is expected to
    /// fall to them, or wrong answers are put right.
    pub fn lines(&self, capacity: usize, dead_letters: &str, duplicates: &str) -> String {
        let has = |choice| self.has(choice);
        let capacity = if self.window_keys().is_some() { String::new() } else { format!(", capacity = {capacity}") };
        let filter = match DIMENSIONS[1].iter().position(|kind| has(kind)) {
            Some(0) => format!("kind = \"aging\"{capacity}, false_positive_rate = 1e-9"),
            Some(1) => format!("kind = \"cuckoo\"{capacity}, false_positive_rate = 1e-9"),
            Some(3) => format!("kind = \"aging\"{capacity}, false_positive_rate = 0.2, confirm = true"),
            Some(4) => format!("kind = \"cuckoo\"{capacity}, false_positive_rate = 0.2, confirm = true"),
            _ => "kind = \"exact\"".to_owned(),
        };
        let (window, slices) = (self.window(), self.slices());
        let mut lines = format!("window = {window}\nfilter = {{ {filter}, slices = {slices} }}\n");
        for plain in [
            "refresh = true",
            "late = \"drop\"",
            "late = \"dead_letter\"",
            "repartition = true",
            "on_duplicate = \"mark\"",
            "on_invalid = \"drop\"",
            "on_tombstone = \"drop\"",
        ] {
            if has(plain) {
                lines += plain;
                lines.push('\n');
            }
        }
        if has("unsee") {
            lines += "unsee = { header = \"unsee\" }\n";
        }
        if has("on_invalid = { topic }") {
            writeln!(lines, "on_invalid = {{ topic = {dead_letters:?} }}").expect("text grows");
        }
        if has("on_duplicate = { topic }") {
            writeln!(lines, "on_duplicate = {{ topic = {duplicates:?} }}").expect("text grows");
        }
        lines
    }

    /// What it says of all topics together.
    pub fn overrides(&self) -> Vec<String> {
        let has = |choice| self.has(choice);
        let mut overrides = vec![format!("worker.workers={}", if has("workers = 2") { 2 } else { 1 })];
        let delivery = if has("delivery = \"at_least_once\"") { "at_least_once" } else { "exactly_once" };
        overrides.push(format!("worker.delivery={delivery}"));
        overrides.push(format!("state.changelog={}", has("state.changelog = true")));
        let cold = [("rebuild", has("cold_start = \"rebuild\"")), ("empty", has("cold_start = \"empty\"")), ("fail", true)];
        overrides.extend(cold.into_iter().find(|(_, is_it)| *is_it).map(|(cold, _)| format!("state.cold_start={cold}")));
        overrides.push(format!("kafka.start={}", if has("start = \"latest\"") { "latest" } else { "earliest" }));
        overrides
    }

    pub fn slices(&self) -> u32 {
        if self.has("slices = 1") { 1 } else { 4 }
    }

    /// The window as the configuration has it.
    fn window(&self) -> String {
        match self.window_keys() {
            Some(keys) => format!("{{ keys = {keys} }}"),
            None => format!("\"{}s\"", self.window_seconds()),
        }
    }

    /// Keys of a window by count, in each partition.
    pub fn window_keys(&self) -> Option<i64> {
        let rotates = self.has("a window by count that rotates").then_some(1_500);
        rotates.or_else(|| self.has("a window by count that covers all").then_some(100_000))
    }

    pub fn window_seconds(&self) -> i64 {
        if self.has("a window by time that rotates") { 20 * 60 } else { 24 * 3600 }
    }
}
