//! The configurations that a plan can have, and the combinations that are not allowed.
//!
//! Each choice has the name of its row in docs/contributing/promises.md, which documents the promises.

use crate::harness::{SplitMix, pick};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::sync::{LazyLock, Mutex, PoisonError};
use unseen::filter::{Kind, Size};

/// The number of seeds in a series. The options of a series cover nearly all allowed pairs of choices.
pub const SERIES: u64 = 64;

/// The header value of a record that retracts its key.
pub const RETRACTS: &str = "yes";

#[derive(Debug)]
pub struct Filter {
    pub choice: &'static str,
    kind: Kind,
    confirm: bool,
}

impl Filter {
    fn new(kind: Kind, confirm: bool) -> Self {
        let choice = format!("kind = \"{}\"{}", kind.name(), if confirm { ", confirm = true" } else { "" });
        Self { choice: choice.leak(), kind, confirm }
    }

    pub fn can_retract(&self) -> bool {
        self.confirm || self.kind.properties().can_retract
    }

    pub fn keeps_window(&self) -> bool {
        self.kind.properties().keeps_window
    }

    fn has_capacity(&self) -> bool {
        self.kind.properties().size == Size::Capacity
    }
}

/// The filters in this order: the filters that keep the window, the same filters with `confirm` (except filters on disk), and the filters
/// that do not keep the window.
pub static FILTERS: LazyLock<Vec<Filter>> = LazyLock::new(|| {
    let (keep_window, others): (Vec<Kind>, Vec<Kind>) = Kind::ALL.iter().partition(|kind| kind.properties().keeps_window);
    let confirmed = keep_window.clone().into_iter().filter(|kind| !kind.is_on_disk()).map(|kind| Filter::new(kind, true));
    let alone = |kinds: Vec<Kind>| kinds.into_iter().map(|kind| Filter::new(kind, false));
    alone(keep_window).chain(confirmed).chain(alone(others)).collect()
});

/// The dimensions of a configuration. A plan has one choice of each dimension.
pub static DIMENSIONS: LazyLock<Vec<&[&str]>> = LazyLock::new(|| {
    let filters = FILTERS.iter().map(|filter| filter.choice).collect::<Vec<_>>().leak();
    [&[DELIVERY, filters][..], OTHER_DIMENSIONS].concat()
});

const DELIVERY: &[&str] = &["delivery = \"exactly_once\"", "delivery = \"at_least_once\""];
const OTHER_DIMENSIONS: &[&[&str]] = &[
    &[
        "a window by time that rotates",
        "a window by time that covers all",
        "a window by count that rotates",
        "a window by count that covers all",
    ],
    &["slices = 4", "slices = 1"],
    &["adapt = true", "adapt = false"],
    &["refresh = false", "refresh = true"],
    &["late = \"emit\"", "late = \"drop\"", "late = \"dead_letter\""],
    &["no retract", "retract"],
    &["a space of one topic", "a space that topics share"],
    &["state.changelog = true", "state.changelog = false"],
    &["cold_start = \"rebuild\"", "cold_start = \"empty\"", "cold_start = \"fail\""],
    &["repartition = false", "repartition = true"],
    &["start = \"earliest\"", "start = \"latest\""],
    &["on_duplicate = \"drop\"", "on_duplicate = \"mark\"", "on_duplicate = { topic }"],
    &["on_invalid = \"fail\"", "on_invalid = \"drop\"", "on_invalid = { topic }"],
    &["on_tombstone = \"emit\"", "on_tombstone = \"drop\"", "on_tombstone = \"invalid\""],
    &["on_truncation = \"fail\"", "on_truncation = \"continue\""],
    &["no instance_id", "instance_id"],
    &["workers = 1", "workers = 2"],
    &["no seed", "a seed"],
    &[
        "plain records",
        "records that are late, from the future, or without a time",
        "records of time 0, or before it",
        "tombstones",
        "records that lack what the key is made of",
        "records too large for the output",
        "records that the output refuses",
    ],
    &["key parts as they are", NORMALIZED],
    &["Kafka's timestamps", EVENT_TIMES],
    &["values as they are", ENCODED],
    &["all records are deduplicated", WHEN],
    &["emit = \"first\"", ON_CHANGE],
    &["one entry per input", RULES],
];
const NORMALIZED: &str = "normalized key parts, fallbacks, and retraction by value";
/// The event time is in a field, in various formats and units, and differs from Kafka's timestamp. Some records have no event time.
pub const EVENT_TIMES: &str = "event times from a field, optional";
/// The value is compressed with gzip and encoded in base64, and the IDs are in a text field that contains JSON.
pub const ENCODED: &str = "encoded values, with the key in JSON in a text";
/// Some records pass through without deduplication, because of a header or a field.
pub const WHEN: &str = "when, with records that pass through";
/// A record is emitted if its key is unseen, or if its content differs from the content of the last emitted record with the same key.
pub const ON_CHANGE: &str = "emit = \"on_change\"";
/// Records with the header `rule` go to another entry, which has its own key space, key, filter kind, and window.
pub const RULES: &str = "two entries of one input";
pub const RULE_SLICES: u32 = 2;
/// The predicates of [`WHEN`]. They select the records to deduplicate.
const SELECTED: &str = "{ header = \"skip\", exists = false }, { not = { field = \"/kind\", one_of = [\"view\", 7] } }";
pub const RULE_SPACE: &str = "marked";
/// The number of derived dimensions, which are the last in the list. Their choices are computed from the drawn choices, so a new derived
/// dimension does not change the drawn choices of existing seeds.
const DERIVED: usize = 6;

#[derive(Clone, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
#[serde(transparent)]
pub struct Options(Vec<String>);

impl Options {
    fn any(random: &mut SplitMix) -> Self {
        loop {
            let (drawn, derived) = DIMENSIONS.split_at(DIMENSIONS.len() - DERIVED);
            let mut options = Self(drawn.iter().map(|choices| pick(random, choices).to_owned()).collect());
            let sum: usize = options.numbers().into_iter().map(|(at, choice)| at * choice + choice).sum();
            options.0.extend(derived.iter().enumerate().map(|(at, choices)| choices[(sum >> at) % choices.len()].to_owned()));
            if options.has(ON_CHANGE) && !options.may_emit_changes() {
                let at = options.0.len() - 2;
                derived[DERIVED - 2][0].clone_into(&mut options.0[at]);
            }
            if options.is_possible() {
                return options;
            }
        }
    }

    pub fn of_seed(seed: u64) -> Self {
        static SERIES_DRAWN: Mutex<BTreeMap<u64, Vec<Options>>> = Mutex::new(BTreeMap::new());
        let mut drawn = SERIES_DRAWN.lock().unwrap_or_else(PoisonError::into_inner);
        let series = drawn.entry(seed / SERIES).or_insert_with_key(|&series| Self::series(series));
        series[usize::try_from(seed % SERIES).expect("a small number")].clone()
    }

    fn series(seed: u64) -> Vec<Self> {
        let mut random = SplitMix(seed);
        let mut had = BTreeSet::new();
        // Discards one draw. Without this, existing seeds would result in other plans.
        Self::any(&mut random);
        let mut next = || {
            let candidates: Vec<_> = (0..20).map(|_| Self::any(&mut random)).collect();
            let is_drawn = |pair: &[(usize, usize); 2]| pair.iter().all(|&(at, _)| at < DIMENSIONS.len() - DERIVED);
            let news = |options: &Self| options.pairs().filter(|pair| is_drawn(pair) && !had.contains(pair)).count();
            let options = candidates.into_iter().max_by_key(news).expect("there are some");
            had.extend(options.pairs().collect::<Vec<_>>());
            options
        };
        (0..SERIES).map(|_| next()).collect()
    }

    /// All pairs of choices in these options. Each choice consists of the index of its dimension and its index within the dimension.
    pub fn pairs(&self) -> impl Iterator<Item = [(usize, usize); 2]> {
        let all = self.numbers();
        (0..all.len()).flat_map(move |at| (0..at).map(|before| [all[before], all[at]]).collect::<Vec<_>>())
    }

    fn numbers(&self) -> Vec<(usize, usize)> {
        let number = |(at, choice): (usize, &String)| (at, DIMENSIONS[at].iter().position(|other| other == choice).unwrap_or_default());
        self.0.iter().enumerate().map(number).collect()
    }

    pub fn has(&self, choice: &str) -> bool {
        debug_assert!(DIMENSIONS.iter().any(|choices| choices.contains(&choice)), "{choice}");
        self.0.iter().any(|chosen| chosen == choice)
    }

    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(String::as_str)
    }

    /// True if the configuration is valid and its output can be predicted.
    fn is_possible(&self) -> bool {
        let (has, filter) = (|choice| self.has(choice), self.filter());
        let is_invalid =
            ["records that lack what the key is made of", "records too large for the output", "records that the output refuses"];
        let accepted = (!has("repartition = true") && has("no seed") || has("state.changelog = true"))
            && (has("late = \"emit\"") || self.window_keys().is_none())
            && (!has("late = \"dead_letter\"") || has("on_invalid = { topic }"))
            && (!has("adapt = false") || filter.has_capacity())
            && (!has("retract") || filter.can_retract())
            && (!has("on_invalid = \"fail\"") || !is_invalid.into_iter().any(has))
            && (!has("on_invalid = \"fail\"") || !has("tombstones") || !has("on_tombstone = \"invalid\""))
            // A worker stops if a repartition topic rejects an oversized record, so no plan combines `repartition` with oversized records.
            && (!has("repartition = true") || !has("records too large for the output"));
        accepted && (self.is_ordered() && filter.keeps_window() || self.is_judged_by_keys())
    }

    fn filter_number(&self) -> usize {
        FILTERS.iter().position(|filter| self.has(filter.choice)).expect("one of them was chosen")
    }

    pub fn filter(&self) -> &'static Filter {
        &FILTERS[self.filter_number()]
    }

    /// True if [`ON_CHANGE`] is allowed with the other options and the order of the changes is known. [`ON_CHANGE`] is not allowed with a
    /// seed, because seeded keys have no content.
    fn may_emit_changes(&self) -> bool {
        self.filter().kind.is_on_disk() && self.has("no seed") && self.is_ordered()
    }

    /// True if the verdict on each record depends only on the earlier records of its partition and on the seed.
    pub fn is_ordered(&self) -> bool {
        self.has("delivery = \"exactly_once\"") && self.is_in_order()
    }

    /// True if the worker processes the records of a partition in the order of the input.
    pub fn is_in_order(&self) -> bool {
        self.has("a space of one topic") && self.has("repartition = false")
    }

    /// True if exactly one record of each key is unseen, regardless of the order of the records. Records with seeded keys are never unseen.
    pub fn is_judged_by_keys(&self) -> bool {
        !self.rotates()
            && !self.has(ON_CHANGE)
            && self.has("no retract")
            && !self.has("records that are late, from the future, or without a time")
            && !self.has("records of time 0, or before it")
    }

    pub fn rotates(&self) -> bool {
        self.has("a window by time that rotates") || self.has("a window by count that rotates")
    }

    pub fn memory(&self, capacity: usize) -> Memory {
        let window = self.window_keys().unwrap_or_else(|| self.window_seconds());
        Memory {
            filter: self.filter_number(),
            by_count: self.window_keys().is_some(),
            window,
            first_window: window,
            slices: self.slices(),
            capacity,
            adapts: self.has("adapt = true"),
            is_resized: false,
            has_event_times: self.has(EVENT_TIMES),
            is_selective: self.has(WHEN),
            emits_changes: self.has(ON_CHANGE),
            // `field` and `except` compare the same content here: of the fields that `except` does not list, only `/state` differs between
            // records of a key.
            content: if self.slices() == 1 { "field = \"/state\"" } else { "except = [\"/title\", \"/ts\", \"/kind\", \"/padding\"]" },
            has_rule: true,
        }
    }

    /// The configuration lines of the first of two entries with the same input, without the topic names and the lines of
    /// [`Options::lines`]. `None` if the input has one entry. The window is twice as long as the initial window of the second entry.
    /// `suffix` is appended to the name of the space.
    pub fn rule(&self, memory: &Memory, suffix: &str) -> Option<String> {
        let lines = || format!("{}space = \"{RULE_SPACE}{suffix}\"\n{}", self.key_of(true), memory.rule_lines());
        (self.has(RULES) && memory.has_rule).then(lines)
    }

    /// The override that gives a server a cuckoo filter for the entry in [`Options::rule`], because a server cannot use the exact filter of
    /// that entry.
    pub fn rule_of_server(&self, memory: &Memory) -> Option<String> {
        let capacity = if self.window_keys().is_some() { "" } else { ", capacity = 4000" };
        let filter = || format!("serve.filters.{RULE_SPACE}={{ kind = \"cuckoo\"{capacity}, false_positive_rate = 1e-9 }}");
        (self.has(RULES) && memory.has_rule).then(filter)
    }

    /// The configuration lines of the key and the encoding. All variants extract the same IDs.
    pub fn key(&self) -> String {
        self.key_of(false)
    }

    fn key_of(&self, is_reversed: bool) -> String {
        let encoding = if self.has(ENCODED) { "value_encoding = [\"base64\", \"gzip\"]\n" } else { "" };
        let place =
            |name| if self.has(ENCODED) { format!("field = \"/body\", then = \"/{name}\"") } else { format!("field = \"/{name}\"") };
        let (user, no, news) = (place("user_id"), place("no"), place("news_id"));
        let mut parts = if self.has(NORMALIZED) {
            [
                format!("{{ {user}, normalize = [\"to_string\"] }}"),
                format!("{{ first_of = [{{ {no} }}, {{ {news} }}], normalize = [\"trim\", \"lowercase\"] }}"),
            ]
        } else {
            [format!("{{ {user} }}"), format!("{{ {news} }}")]
        };
        if is_reversed {
            parts.reverse();
        }
        format!("key = [{}]\n{encoding}", parts.join(", "))
    }

    /// The configuration lines of an entry, without the topic names, the space, the key, and the lines of [`Memory::lines`].
    pub fn lines(&self, dead_letters: &str, duplicates: &str) -> String {
        let has = |choice| self.has(choice);
        let mut lines = String::new();
        for plain in [
            "refresh = true",
            "late = \"drop\"",
            "late = \"dead_letter\"",
            "repartition = true",
            "on_duplicate = \"mark\"",
            "on_invalid = \"drop\"",
            "on_tombstone = \"drop\"",
            "on_tombstone = \"invalid\"",
        ] {
            if has(plain) {
                lines += plain;
                lines.push('\n');
            }
        }
        if has("retract") {
            let one_of = if has(NORMALIZED) { format!(", one_of = [{RETRACTS:?}]") } else { String::new() };
            writeln!(lines, "retract = {{ header = \"retract\"{one_of} }}").expect("text grows");
        }
        if has("on_invalid = { topic }") {
            writeln!(lines, "on_invalid = {{ topic = {dead_letters:?} }}").expect("text grows");
        }
        if has("on_duplicate = { topic }") {
            writeln!(lines, "on_duplicate = {{ topic = {duplicates:?} }}").expect("text grows");
        }
        lines
    }

    pub fn overrides(&self) -> Vec<String> {
        let has = |choice| self.has(choice);
        let mut overrides = vec![format!("worker.workers={}", if has("workers = 2") { 2 } else { 1 })];
        let delivery = if has("delivery = \"at_least_once\"") { "at_least_once" } else { "exactly_once" };
        overrides.push(format!("worker.delivery={delivery}"));
        overrides.push(format!("state.changelog={}", has("state.changelog = true")));
        let cold = [("rebuild", has("cold_start = \"rebuild\"")), ("empty", has("cold_start = \"empty\"")), ("fail", true)];
        overrides.extend(cold.into_iter().find(|(_, is_it)| *is_it).map(|(cold, _)| format!("state.cold_start={cold}")));
        overrides.push(format!("kafka.start={}", if has("start = \"latest\"") { "latest" } else { "earliest" }));
        overrides.push(format!("kafka.on_truncation={}", if has("on_truncation = \"fail\"") { "fail" } else { "continue" }));
        overrides
    }

    pub fn slices(&self) -> u32 {
        if self.has("slices = 1") { 1 } else { 4 }
    }

    /// The number of keys per partition in a window by count. `None` for a window by time.
    pub fn window_keys(&self) -> Option<i64> {
        let rotates = self.has("a window by count that rotates").then_some(super::ROTATING_KEYS);
        rotates.or_else(|| self.has("a window by count that covers all").then_some(100_000))
    }

    pub fn window_seconds(&self) -> i64 {
        if self.has("a window by time that rotates") { 20 * 60 } else { 24 * 3600 }
    }
}

/// The settings of the entries that can change while all members are stopped (see [`Change`]), such as the filter and the window.
#[derive(Clone, Debug)]
#[allow(clippy::struct_excessive_bools, reason = "each is an option of its own")]
pub struct Memory {
    /// An index into [`FILTERS`].
    filter: usize,
    by_count: bool,
    /// The current window, in keys or in seconds.
    window: i64,
    first_window: i64,
    slices: u32,
    capacity: usize,
    adapts: bool,
    is_resized: bool,
    has_event_times: bool,
    is_selective: bool,
    emits_changes: bool,
    content: &'static str,
    has_rule: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub enum Change {
    /// The next filter that keeps the window.
    Kind,
    /// To the filter `stable`, which does not keep the window, or from it to the first filter.
    Stable,
    /// Capacity, rate, and `adapt`.
    Size,
    Slices,
    /// From the initial window to a window of twice the length, or back.
    Window,
    /// From event times to Kafka's timestamps or back.
    Time,
    /// From a `when` condition to none, or back.
    When,
    /// From emitting changed records to emitting first records, or back.
    Emit,
    /// From two entries of an input to one, or back.
    Rules,
}

impl Memory {
    /// Applies a change. Most settings alternate between two variants. The filter cycles through all suitable filters.
    pub fn change(&mut self, change: Change, options: &Options) {
        match change {
            Change::Kind => {
                let is_next = |filter: &Filter| filter.keeps_window() && (filter.can_retract() || !options.has("retract"));
                let numbers = (self.filter + 1..FILTERS.len()).chain(0..FILTERS.len());
                self.filter = numbers.into_iter().find(|&number| is_next(&FILTERS[number])).expect("there is one");
            }
            Change::Stable => {
                let last = FILTERS.len() - 1;
                self.filter = if self.filter == last { 0 } else { last };
            }
            Change::Size => self.is_resized = !self.is_resized,
            Change::Slices => self.slices = if self.slices == 1 { 4 } else { 1 },
            Change::Window if self.window == options.memory(0).window => self.window *= 2,
            Change::Window => self.window /= 2,
            Change::Time => self.has_event_times = !self.has_event_times,
            Change::When => self.is_selective = !self.is_selective,
            Change::Emit => self.emits_changes = !self.emits_changes,
            Change::Rules => self.has_rule = !self.has_rule,
        }
    }

    /// The false-positive rate of a server that uses the worker's filter, without the exact store that `confirm` adds. `None` if a server
    /// cannot use the filter, or if the filter is `stable`, which does not keep the window.
    pub fn rate_of_follower(&self, retracts: bool) -> Option<f64> {
        let filter = &FILTERS[self.filter];
        let is_possible = filter.has_capacity() && (!retracts || filter.can_retract() && !filter.confirm);
        is_possible.then(|| self.rate())
    }

    /// The false-positive rate of the filter itself, before `confirm` corrects it.
    fn rate(&self) -> f64 {
        match (FILTERS[self.filter].confirm, self.is_resized) {
            (false, false) => 1e-9,
            (false, true) => 1e-8,
            (true, false) => 0.2,
            (true, true) => 0.02,
        }
    }

    /// The configuration lines of the window, the filter, `time`, `when`, and `emit`. Either the false-positive rate is so low that no
    /// false positive is expected, or `confirm` corrects the false positives.
    pub fn lines(&self) -> String {
        let Self { window, slices, .. } = self;
        let window = if self.by_count { format!("{{ keys = {window} }}") } else { format!("\"{window}s\"") };
        let capacity = if self.is_resized { self.capacity * 10 } else { self.capacity };
        let capacity = if self.by_count { String::new() } else { format!(", capacity = {capacity}") };
        let (Filter { choice, kind, .. }, rate) = (&FILTERS[self.filter], self.rate());
        // A change of size also toggles `adapt`.
        let adapt = self.adapts != self.is_resized;
        let filter = match kind.properties().size {
            Size::Capacity => format!("{choice}{capacity}, false_positive_rate = {rate:e}, adapt = {adapt}, slices = {slices}"),
            Size::Memory { .. } => format!("{choice}, memory = \"8MiB\", false_positive_rate = 1e-8"),
            Size::Disk => format!("{choice}, slices = {slices}"),
        };
        let when = if self.is_selective { format!("when = [{SELECTED}]\n") } else { String::new() };
        let emit = if self.emits_changes { format!("emit = {{ on_change = {{ {} }} }}\n", self.content) } else { String::new() };
        format!("window = {window}\nfilter = {{ {filter} }}\n{}{when}{emit}", self.time())
    }

    fn time(&self) -> &'static str {
        if self.has_event_times { "time = { field = \"/ts\", optional = true }\n" } else { "" }
    }

    /// The configuration lines of the entry for records with the header `rule`. Of the lines of this entry, a [`Change`] can change only
    /// `time` and `when`.
    fn rule_lines(&self) -> String {
        let window = 2 * self.first_window;
        let window = if self.by_count { format!("{{ keys = {window} }}") } else { format!("\"{window}s\"") };
        let also = if self.is_selective { format!(", {SELECTED}") } else { String::new() };
        let when = format!("when = [{{ header = \"rule\", exists = true }}{also}]\n");
        format!("window = {window}\nfilter = {{ kind = \"exact\", slices = {RULE_SLICES} }}\n{}{when}", self.time())
    }
}
