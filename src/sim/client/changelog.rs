//! The changelog clients: a reader of one partition at a time, a tail of many partitions, and a client that looks up the ends of
//! partitions.

use super::super::cluster::Isolation;
use super::super::faults::Api;
use super::super::network::Code;
use super::super::{ClientId, World, micros};
use super::super::{Simulation, TIMEOUT};
use super::error::unanswered;
use super::fetcher::{Event, Fetcher};
use super::{Asking, Client};
use crate::broker::{ChangelogEnds, ChangelogReader, ChangelogTail, Error, Logged, TailEvent};
use crate::record::{Offset, TopicPartition};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// Looks up the log start offset and the end of a partition with two requests. The log may change between the two answers, so the smaller
/// answer counts as the start (`rd_kafka_query_watermark_offsets`).
pub(super) fn list_offsets(
    simulation: &Simulation,
    client: ClientId,
    of: &TopicPartition,
    isolation: Isolation,
    timeout: Duration,
) -> Result<(Offset, Offset), Code> {
    let deadline = simulation.deadline(timeout);
    let ask = |asks_start: bool| {
        let asked = of.clone();
        let serve = move |world: &mut World| world.list_offsets(&asked, isolation).map(|(start, end)| if asks_start { start } else { end });
        let left = Duration::from_micros(deadline.saturating_sub(simulation.now_micros()));
        simulation.call(client, Api::ListOffsets, left, |world| world.cluster.leader(of), serve)
    };
    // The brokers may answer the two requests in either order, because the client may have to repeat one of the requests.
    let start_first = simulation.with(|world| world.random.chance(8000)).unwrap_or(true);
    let (one, other) = (ask(start_first)?, ask(!start_first)?);
    Ok((one.min(other), one.max(other)))
}

pub struct SimReader(Asking, SimTail);

impl SimReader {
    pub(in crate::sim) fn new(simulation: &Simulation) -> Self {
        Self(Asking::new(simulation), SimTail::new(simulation))
    }
}

impl ChangelogReader for SimReader {
    type Tail = SimTail;

    fn tail(&self) -> &SimTail {
        &self.1
    }

    fn ends(&self, changelog: &TopicPartition) -> Result<Option<(Offset, Offset)>, Error> {
        let ask = |isolation| {
            let found = list_offsets(&self.0.simulation, self.0.id, changelog, isolation, TIMEOUT);
            found.map_err(|code| unanswered(&format!("read the ends of {changelog}"), &code))
        };
        let (_, end) = ask(Isolation::ReadUncommitted)?;
        let (low, stable) = ask(Isolation::ReadCommitted)?;
        Ok((stable >= end).then_some((low, stable)))
    }

    fn delete_before(&self, partition: &TopicPartition, offset: Offset) -> Result<(), Error> {
        let of = partition.clone();
        let serve = move |world: &mut World| {
            if world.cluster.topics.get(&of.topic).is_some_and(|topic| topic.options.is_compacted) {
                // Kafka rejects `DeleteRecords` unless the topic's `cleanup.policy` contains `delete` (`Partition.deleteRecordsOnLeader`).
                return Err(Code::PolicyViolation);
            }
            let log = &mut world.cluster.partition_mut(&of)?.log;
            if offset > log.high_watermark {
                return Err(Code::OffsetOutOfRange);
            }
            log.delete_before(offset);
            world.trace_on("deleted before", &of, offset);
            Ok(())
        };
        let answer = self.0.simulation.call(self.0.id, Api::DeleteRecords, TIMEOUT, |world| world.cluster.leader(partition), serve);
        answer.map_err(|code| unanswered(&format!("trim {partition}"), &code))
    }

    fn topic_id(&self, topic: &str) -> Result<Option<String>, Error> {
        let found = self.0.simulation.topic_ids(self.0.id, &[topic]);
        found.map(|mut ids| ids.remove(topic)).map_err(|code| unanswered(&format!("describe topic {topic:?}"), &code))
    }
}

pub struct SimTail {
    simulation: Simulation,
    id: ClientId,
}

impl SimTail {
    pub(in crate::sim) fn new(simulation: &Simulation) -> Self {
        let add = |world: &mut World| world.add_client(|process, signal| Client::Reader { process, signal, fetcher: Fetcher::new(true) });
        Self { simulation: simulation.clone(), id: simulation.with(add).unwrap_or(usize::MAX) }
    }
}

impl ChangelogTail for SimTail {
    fn start(&self, partition: &TopicPartition, offset: Offset) -> Result<(), Error> {
        self.simulation.with(|world| {
            if let Some(fetcher) = world.fetcher(self.id) {
                fetcher.assign(partition, offset);
            }
            world.fetch(self.id);
        });
        Ok(())
    }

    fn stop(&self, partition: &TopicPartition) -> Result<(), Error> {
        self.simulation.with(|world| {
            if let Some(fetcher) = world.fetcher(self.id) {
                fetcher.retain(|other| other != partition);
            }
        });
        Ok(())
    }

    fn poll(&self, count: usize, wait: Duration, take: &mut dyn FnMut(&str, i32, TailEvent<'_>)) -> Result<(), Error> {
        let Some(world) = self.simulation.enter() else { return Ok(()) };
        let (deadline, id) = (world.now.saturating_add(micros(wait)), self.id);
        let mut events = Vec::new();
        let look = &mut |world: &mut World| {
            let Some(fetcher) = world.fetcher(id) else { return true };
            while events.len() < count {
                let Some((topic, partition, event)) = fetcher.next() else { break };
                events.push((Arc::clone(topic), partition, event));
            }
            world.fetch(id);
            !events.is_empty()
        };
        let (world, _) = self.simulation.wait_until(world, Some(deadline), id, look);
        drop(world);
        for (topic, partition, event) in &events {
            let event = match event {
                Event::Record(record) => {
                    let time = Some(record.time).filter(|&time| time >= 0);
                    TailEvent::Record(Logged { offset: record.offset, time, value: record.value.as_deref().unwrap_or_default() })
                }
                Event::End(offset) => TailEvent::End(*offset),
                Event::OutOfRange(_) => TailEvent::OutOfRange,
                Event::Error(_) => TailEvent::Error,
                Event::Passed(_) => continue,
            };
            take(topic, *partition, event);
        }
        Ok(())
    }
}

impl Drop for SimTail {
    fn drop(&mut self) {
        self.simulation.remove_client(self.id);
    }
}

pub struct SimEnds(Asking);

impl SimEnds {
    pub(in crate::sim) fn new(simulation: &Simulation) -> Self {
        Self(Asking::new(simulation))
    }

    fn ask(&self, partition: &TopicPartition, isolation: Isolation, timeout: Duration) -> Result<(Offset, Offset), Error> {
        let found = list_offsets(&self.0.simulation, self.0.id, partition, isolation, timeout);
        found.map_err(|code| unanswered(&format!("read the ends of {partition}"), &code))
    }
}

impl ChangelogEnds for SimEnds {
    fn partitions(&self, topic: &str) -> Result<u32, Error> {
        let found = self.0.simulation.partition_count(self.0.id, topic);
        found.map_err(|code| unanswered(&format!("describe topic {topic:?}"), &code))
    }

    fn ids(&self, topics: &[&str]) -> BTreeMap<String, String> {
        self.0.simulation.topic_ids(self.0.id, topics).unwrap_or_default()
    }

    fn of(&self, partition: &TopicPartition, timeout: Duration) -> Result<(Offset, Offset), Error> {
        self.ask(partition, Isolation::ReadCommitted, timeout)
    }

    fn high_watermark(&self, partition: &TopicPartition, timeout: Duration) -> Result<Offset, Error> {
        self.ask(partition, Isolation::ReadUncommitted, timeout).map(|(_, end)| end)
    }
}
