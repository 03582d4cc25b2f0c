//! A synthetic news feed. About half of its records are duplicates: half of the duplicates repeat a recent item, and half repeat any
//! earlier item. The timestamps are slightly out of order.
//!
//! The same parameters always result in the same records.

use super::{SplitMix, TestRecord};
use std::time::Duration;

/// The number of latest items that count as recent.
const NEAR: u64 = 1_000;

/// An eighth of the timestamps are moved back by a random time that is shorter than this.
const JITTER_MS: u64 = 5_000;

const WORDS: [&str; 16] = [
    "markets", "harbour", "late", "council", "storm", "record", "quiet", "city", "votes", "river", "opens", "again", "north", "strike",
    "ends", "école",
];

pub struct News {
    pub seed: u64,
    pub count: usize,
    pub partitions: u32,
    /// The time of the first record, in milliseconds since the epoch. It must be in the past on any machine, because records from the
    /// future do not advance stream time.
    pub start: i64,
    pub span: Duration,
}

impl Default for News {
    fn default() -> Self {
        // 2025-01-01T00:00:00Z
        Self { seed: 1, count: 1_000_000, partitions: 4, start: 1_735_689_600_000, span: Duration::from_secs(2 * 3600) }
    }
}

impl News {
    /// Returns the records. Each value has about 200 bytes of JSON. The ID of an item is `USER_ID/NEWS_ID`, from the fields `/user_id` and
    /// `/news_id`. Both the record key and the header `id` contain the ID. All records with the same ID are in the same partition. The
    /// first header `trace` is different in every record.
    pub fn records(&self) -> Vec<TestRecord> {
        let mut random = SplitMix(self.seed);
        let span = i64::try_from(self.span.as_millis()).expect("a span of less than an eternity");
        let count = i64::try_from(self.count).expect("a count of less than an eternity").max(1);
        let mut items = 0_u64;
        (0..count)
            .map(|number| {
                let item = match random.next() % 4 {
                    0 if items > 0 => random.next() % items,
                    1 if items > 0 => items - 1 - random.next() % items.min(NEAR),
                    _ => {
                        items += 1;
                        items - 1
                    }
                };
                let jitter = if random.next().is_multiple_of(8) { random.next() % JITTER_MS } else { 0 };
                let timestamp = self.start + span * number / count - jitter.cast_signed();
                self.record(item, number, timestamp, &mut random)
            })
            .collect()
    }

    fn record(&self, item: u64, number: i64, timestamp: i64, random: &mut SplitMix) -> TestRecord {
        let hash = SplitMix(self.seed ^ item).next();
        let (user, news) = (hash % 5_000, format!("n-{item:08}"));
        let id = format!("{user}/{news}");
        let title = (0..20).map(|_| WORDS[random.below(WORDS.len())]).collect::<Vec<_>>().join(" ");
        let value = format!(r#"{{"user_id":{user},"news_id":"{news}","title":"{title}","ts":{timestamp}}}"#);
        let mut headers = vec![
            ("id".to_owned(), Some(id.clone().into_bytes())),
            ("trace".to_owned(), Some(format!("{:x}-{number:x}", self.seed).into_bytes())),
        ];
        if number % 8 == 0 {
            // Kafka allows repeated header names and null header values, so some records have both.
            headers.push(("trace".to_owned(), None));
        }
        TestRecord {
            partition: i32::try_from(hash >> 32 & 0xffff).expect("16 bits") % self.partitions.cast_signed(),
            key: Some(id.into_bytes()),
            value: Some(value.into_bytes()),
            headers,
            timestamp,
        }
    }
}
