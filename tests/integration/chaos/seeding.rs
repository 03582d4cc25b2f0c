//! Seeds the group of a plan with `unseen seed`, as if another tool had already emitted some keys of the stream.

use super::options::{EVENT_TIMES, RULES};
use super::stage::Stage;
use super::truth;
use crate::harness::{News, TestRecord, unseen};
use serde_json::json;
use std::collections::BTreeSet;
use std::fs;

impl Stage<'_> {
    pub fn seed(&mut self) {
        // `unseen seed` writes keys of a single space, and a group cannot be seeded twice. So only keys in the space of the last entry are
        // seeded.
        let is_of_space = |record: &&TestRecord| truth::is_judged(record) && !truth::is_of_first_entry(record);
        let some = self.stream.records.iter().filter(is_of_space).skip(3).step_by(7);
        let options = &self.conditions.options;
        let of_first_time = |record: &TestRecord| {
            let time = News::default().start;
            let mut seed = TestRecord { timestamp: time, ..record.clone() };
            if options.has(EVENT_TIMES) {
                truth::set_event_time(&mut seed, time, 0);
            }
            seed
        };
        let mut had = BTreeSet::new();
        self.seeds = some.filter(|record| had.insert(truth::id(record))).map(of_first_time).collect();
        let line = |seed: &TestRecord| {
            let key = seed.key.as_deref().map(String::from_utf8_lossy);
            let (topic, partition) = (&self.stream.input, seed.partition);
            json!({ "topic": topic, "partition": partition, "ts": seed.timestamp, "key": key, "payload": seed.text() }).to_string() + "\n"
        };
        let file = self.stream.setup.dir().join("seeds.ndjson");
        fs::write(&file, self.seeds.iter().map(line).collect::<String>()).expect("a file");
        let (config, file) = (self.write_config("a").display().to_string(), file.display().to_string());
        let topic = if options.has(RULES) { "news" } else { &self.stream.input };
        let overrides = options.overrides();
        let mut args = vec!["seed", "-c", &config, &file, "--format", "capture", "--topic", topic];
        args.extend(overrides.iter().flat_map(|setting| ["--set", setting]));
        let (code, said, error) = unseen(args);
        assert_eq!(code, Some(0), "the group cannot be seeded: {error}");
        self.story.tell(format_args!("seeded: {}", said.trim()));
    }
}
