//! The records of a plan.

use super::BEFORE;
use crate::harness::{News, RETRACT, SplitMix, TestRecord};
use crate::options::{Options, RETRACTS};
use crate::plan::Plan;
use crate::truth::{self, LIMIT_BYTES, MAX_TIMESTAMP};
use unseen::sim::NewRecord;

pub(super) fn new_record(record: TestRecord) -> NewRecord {
    let headers = record.headers.into_iter().map(|(name, value)| (name.into_bytes(), value)).collect();
    NewRecord { time: Some(record.timestamp), key: record.key, value: record.value, headers }
}

pub(super) fn records(plan: &Plan) -> Vec<TestRecord> {
    let news = News { seed: plan.seed, count: plan.records + BEFORE, partitions: plan.partitions.unsigned_abs(), ..News::default() };
    let mut records = news.records();
    let mut random = SplitMix(plan.seed);
    if plan.options.has("retract") {
        let some = records.iter_mut().filter(|_| random.below(10) == 0);
        some.for_each(|record| record.headers.push((RETRACT.to_owned(), Some(RETRACTS.into()))));
    }
    for record in &mut records {
        if random.below(20) == 0 {
            make_odd(&plan.options, record, &mut random);
        }
    }
    truth::move_times(&plan.options, &mut records, plan.seed);
    truth::set_states(&plan.options, &mut records, plan.seed);
    truth::mark_passing(&plan.options, &mut records, plan.seed);
    truth::mark_rules(&plan.options, &mut records, plan.seed);
    truth::encode(&plan.options, &mut records);
    records
}

fn make_odd(options: &Options, record: &mut TestRecord, random: &mut SplitMix) {
    if options.has("records of time 0, or before it") {
        record.timestamp = -i64::try_from(random.below(3)).unwrap_or_default();
    } else if options.has("records that are late, from the future, or without a time") {
        record.timestamp = [record.timestamp - 3 * 24 * 3_600_000, 1, -1, MAX_TIMESTAMP + 1_000_000_000_000][random.below(4)];
    } else if options.has("tombstones") {
        record.value = None;
    } else if options.has("records that lack what the key is made of") {
        record.value.iter_mut().for_each(|value| value.truncate(20));
    } else if options.has("records that the output refuses") {
        record.key = None;
    } else if options.has("records too large for the output") {
        record.pad(&"x".repeat(LIMIT_BYTES + 1));
    }
}
