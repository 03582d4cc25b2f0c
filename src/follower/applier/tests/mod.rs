//! Promise: at every commit, a follower gives the same answers as the worker, for any combination of filters.

mod answers;
mod availability;
mod changelogs;
mod spaces;

use super::*;
use crate::changelog::{Origin, PendingChanges, Span};
use crate::config::Config;
use crate::dedup::Dedup;
use crate::follower::Unavailable;
use crate::follower::space::Space;
use crate::key::numbered::key;
use crate::record::{Record, TopicId};

const KEYS_ASKED: u64 = 150;

/// Returns a configuration with one topic. `topic` and `serve` are additional lines of the file.
fn config(topic: &str, serve: &str) -> Config {
    let head = "[kafka]\nbootstrap_servers = \"localhost:1\"\n[[topics]]\ninput = \"in\"\noutput = \"out\"\nkey = { record = \"key\" }\n";
    Config::of_text(&format!("{head}{topic}\n{serve}"))
}

fn space(config: &Config) -> Space {
    Space::new(config, &config.spaces()[0]).unwrap()
}

/// A worker with the changelog that it has written.
struct Live {
    dedup: Dedup,
    pending: PendingChanges,
    origin: Origin,
    epoch: i64,
    position: Offset,
    committed: Offset,
    warms_up: bool,
    log: Vec<Vec<u8>>,
}

impl Live {
    fn new(rules: Rules, origin: Origin) -> Self {
        let (dedup, pending) = (Dedup::new(rules), PendingChanges::default());
        Self { dedup, pending, origin, epoch: 1, position: 0, committed: 0, warms_up: false, log: Vec::new() }
    }

    fn judge(&mut self, number: u64, time: i64, retract: bool) {
        let done = if retract {
            self.dedup.retract(key(number), Some(time), i64::MAX)
        } else {
            self.dedup.judge(key(number), Some(time), i64::MAX)
        };
        done.unwrap();
        self.pending.note(&self.dedup, TopicId(0), self.position, key(number));
        self.position += 1;
    }

    fn commit(&mut self) {
        let (span, ends) = (Span { topic: "in", start: self.committed, end: self.position }, [(TopicId(0), self.position)]);
        let spans: Vec<_> = [span].into_iter().chain(self.warms_up.then_some(Span::WARM_UP)).collect();
        let records = self.pending.records(&self.dedup, self.origin, self.epoch, &spans, &ends, self.dedup.stream_time());
        self.log.extend(records.into_iter().map(|(_, record)| record));
        self.pending.committed(&ends);
        self.committed = self.position;
    }

    fn end(&self) -> Offset {
        Offset::try_from(self.log.len()).unwrap()
    }
}

fn watermarks(low: Offset, end: Offset, asked: i64) -> Watermarks {
    Watermarks { space: 0, partition: 0, partitions: 1, low, end, high: Some(end), log: None, asked }
}

fn catch_up(partition: &mut PartitionApplier<'_>, live: &Live) {
    let from = usize::try_from(partition.next).unwrap();
    for (offset, value) in live.log.iter().enumerate().skip(from) {
        partition.take(&Event::Record(Logged { offset: Offset::try_from(offset).unwrap(), time: None, value }));
    }
}

fn asked(partition: &Partition) -> Result<Vec<bool>, Unavailable> {
    let keys: Vec<_> = (0..KEYS_ASKED).map(key).collect();
    let mut seen = vec![false; keys.len()];
    partition.ask(&keys, &mut seen).map(|()| seen)
}

fn known(live: &Live) -> Vec<bool> {
    (0..KEYS_ASKED).map(|number| live.dedup.would_drop(key(number)).unwrap().is_some()).collect()
}

const AGING: &str = "window = \"1h\"\nfilter = { capacity = 1000, false_positive_rate = 1e-9 }";

fn record(key: &str) -> Record<'_> {
    Record { key: Some(key.as_bytes()), value: None, headers: &[] }
}
