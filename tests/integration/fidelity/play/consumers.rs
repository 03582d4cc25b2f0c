//! The calls of the group's member and of the changelog readers.

use super::super::plan::To;
use super::super::{Names, Side};
use super::producers::producer;
use super::{AGO_MS, POLL, Player, text};
use unseen::broker::{Batch, Broker, ChangelogReader as _, ChangelogTail as _, Consumer as _, Rebalance, Record, TailEvent};
use unseen::record::{Offset, TopicPartition};

impl<S: Side> Player<'_, S> {
    /// Joins the group, takes all partitions, and pauses them.
    pub(super) fn join(&mut self) {
        let topics: Vec<_> = (0..Names::TOPICS.len()).map(|topic| self.names.topic(topic)).collect();
        self.consumer.subscribe(&topics.iter().map(String::as_str).collect::<Vec<_>>()).expect("a subscription");
        let all: Vec<_> = self.all().into_iter().map(|to| self.at(to)).collect();
        let mut assigned = Vec::new();
        self.side.wait(&mut || {
            self.consumer.poll(&mut Batch::default(), 1, POLL).expect("the consumer can read");
            while let Some(rebalance) = self.consumer.next_rebalance() {
                match rebalance {
                    Rebalance::Assigned(partitions) => {
                        let starts: Vec<_> = partitions.iter().map(|of| (of.clone(), self.low(of))).collect();
                        self.consumer.assign(&starts).expect("an assignment");
                        self.consumer.pause(&partitions).expect("it is assigned");
                        assigned.extend(partitions);
                    }
                    Rebalance::Revoked { partitions, .. } => {
                        assigned.retain(|of| !partitions.contains(of));
                        self.consumer.unassign(&partitions).expect("an assignment");
                    }
                }
            }
            assigned.len() == all.len()
        });
        assert_eq!(assigned.len(), all.len(), "the member has not got all partitions: {assigned:?}");
    }

    fn low(&self, of: &TopicPartition) -> Offset {
        loop {
            if let Ok((low, _)) = self.consumer.watermarks(of) {
                return low;
            }
        }
    }

    /// Replaces the member and all other clients, because their metadata may be outdated after `change`.
    pub(super) fn rejoin(&mut self, change: impl FnOnce(&mut Self)) -> String {
        self.former = self.consumer.membership().or(self.former.take());
        let next = self.side.broker().consumer(&self.config, 0).expect("a consumer");
        std::mem::replace(&mut self.consumer, next).close();
        for id in 0..2 {
            self.fence(id);
        }
        change(self);
        let broker = self.side.broker();
        for id in 0..2 {
            self.fence(id);
        }
        self.plain = producer(self.side, self.names, &self.names.config(&self.side.servers(), "at_least_once"), 2);
        self.reader = broker.changelog_reader(&self.config).expect("a reader");
        self.tail = broker.changelog_tail(&self.config).expect("a reader");
        self.join();
        self.committed()
    }

    pub(super) fn recreate(&mut self, topic: usize) {
        let (name, (kind, partitions)) = (self.names.topic(topic), Names::TOPICS[topic]);
        let partitions = if topic == 0 { self.partitions } else { partitions };
        self.side.delete_topic(&name);
        self.side.create_topic(&name, partitions, kind);
    }

    pub(super) fn position(&self, of: &TopicPartition) -> Option<Offset> {
        self.consumer.positions(std::iter::once(of)).pop().flatten()
    }

    pub(super) fn read(&mut self, from: To, offset: Offset) -> String {
        let of = &self.at(from);
        let (Ok((low, end)), Ok(ends)) = (self.consumer.watermarks(of), self.reader.ends(of)) else { return "no answer".to_owned() };
        if ends.is_none() && offset > end {
            return "beyond an open transaction".to_owned();
        }
        let is_outside = offset < low || offset > end;
        self.consumer.seek(of, offset).expect("it is assigned");
        self.consumer.resume(std::slice::from_ref(of)).expect("it is assigned");
        let mut batch = Batch::default();
        self.side.wait(&mut || {
            self.consumer.poll(&mut batch, 100, POLL).expect("the consumer can read");
            batch.out_of_range || !is_outside && (offset == end || self.position(of) == Some(end))
        });
        let records: Vec<_> = batch.messages.iter().map(|record| self.render(record)).collect();
        let shown = format!(
            "{low}..{end}, out of range {}, position {:?}, end {:?}, {records:?}",
            batch.out_of_range,
            self.position(of),
            self.consumer.end(of).filter(|_| offset != end && !is_outside)
        );
        drop(batch);
        if is_outside {
            let starts: Vec<_> = self.all().into_iter().map(|to| (self.at(to), self.low(&self.at(to)))).collect();
            self.consumer.restart(std::slice::from_ref(of), &starts).expect("an assignment");
        }
        self.consumer.pause(std::slice::from_ref(of)).expect("it is assigned");
        shown
    }

    fn render(&self, record: &impl Record) -> String {
        let headers: Vec<_> = record.all_headers().map(|(name, value)| format!("{}={}", text(Some(name)), text(value))).collect();
        // The clocks of the two clusters differ, so times are relative to the start. Times that a broker has set are not shown.
        let since = |time| Some(time - self.start_ms).filter(|since| *since <= -AGO_MS / 2);
        let stamp = record.stamp().map(|(kind, time)| (kind, if time < 0 { Some(time) } else { since(time) }));
        format!("{} {} {} {headers:?} {stamp:?}", record.offset(), text(record.key()), text(record.value()))
    }

    pub(super) fn tail(&self, from: To, offset: Option<Offset>) -> String {
        let of = &self.at(from);
        let offset = offset.unwrap_or_else(|| self.low(of));
        let (Ok((_, end)), Ok(ends)) = (self.consumer.watermarks(of), self.reader.ends(of)) else { return "no answer".to_owned() };
        if ends.is_none() && offset > end {
            return "beyond an open transaction".to_owned();
        }
        let mut events = Vec::new();
        let mut is_done = false;
        self.tail.start(of, offset).expect("it is not read");
        self.side.wait(&mut || {
            let take = &mut |_: &str, _, event: TailEvent<'_>| {
                is_done |= matches!(event, TailEvent::End(_) | TailEvent::OutOfRange);
                events.push(match event {
                    TailEvent::Record(logged) => format!("{} {}", logged.offset, text(Some(logged.value))),
                    TailEvent::End(offset) => format!("end {offset}"),
                    TailEvent::OutOfRange => "out of range".to_owned(),
                    TailEvent::Error => "error".to_owned(),
                });
            };
            self.tail.poll(100, POLL, take).expect("the tail can read");
            is_done
        });
        self.tail.stop(of).expect("it is read");
        format!("{events:?}")
    }

    pub(super) fn look(&mut self, to: To, number: i64) -> String {
        let of = &self.at(to);
        let time = self.start_ms - AGO_MS + number;
        let found = self.consumer.topic_ids(&[&of.topic]).map(|mut ids| ids.remove(&of.topic).unwrap_or_default());
        let id = found.ok().map(|id| {
            self.ids.iter().position(|known| *known == id).unwrap_or_else(|| {
                self.ids.push(id);
                self.ids.len() - 1
            })
        });
        let missing = self.side.broker().missing(
            &self.config,
            &unseen::broker::Cluster { partitions: [(of.topic.clone(), 1)].into(), ..unseen::broker::Cluster::default() },
        );
        format!(
            "watermarks {:?}, ends {:?}, last stable offset {:?}, uncommitted end {:?}, offset of a time {:?}, topic {id:?}, missing {missing:?}",
            self.consumer.watermarks(of).ok(),
            self.reader.ends(of).ok(),
            self.consumer.last_stable_offset(of).ok(),
            self.side.end(of),
            // The brokers set the timestamps of topic 2 from their own clocks, so the offset differs between the two clusters.
            self.consumer.offset_at(of, time).ok().filter(|_| to.0 != 2),
        )
    }

    pub(super) fn committed(&self) -> String {
        if self.slots.iter().any(|slot| slot.has_offsets) {
            // While a transaction has uncommitted offsets, a client would wait until the transaction ends or the request times out.
            return "unstable".to_owned();
        }
        let of: Vec<_> = (0..self.partitions.cast_signed()).map(|partition| self.at(To(0, partition))).collect();
        let committed = self.consumer.committed(&of).map_err(|_| "no answer");
        let committed = committed.map(|all| all.into_iter().map(|one| (one.offset, one.metadata.len())).collect::<Vec<_>>());
        format!("{committed:?}")
    }
}
