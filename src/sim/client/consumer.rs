//! The group consumer.

use super::super::cluster::{Isolation, MemberRef};
use super::super::faults::Api;
use super::super::network::Code;
use super::super::scheduler::Guard;
use super::super::{ClientId, World, micros};
use super::super::{Simulation, TIMEOUT};
use super::Client;
use super::changelog::list_offsets;
use super::error::{client_error, seen, unanswered};
use super::fetcher::Event;
use super::membership::{ConsumerState, JoinState};
use super::record::SimRecord;
use crate::broker::{Batch, ClientError, Committed, Consumer, Error, Errored, Rebalance};
use crate::config::Config;
use crate::record::{Offset, Timestamp, TopicPartition};
use crate::runtime;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

pub struct SimConsumer {
    simulation: Simulation,
    id: ClientId,
    errored: RefCell<Errored>,
}

/// The group metadata that a producer sends with the offsets of a transaction (KIP-447).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SimMembership {
    pub(super) group: String,
    pub(super) member: MemberRef,
}

impl SimMembership {
    /// Returns the group metadata of a process that is not a member.
    #[must_use]
    pub fn outsider(group: &str) -> Self {
        Self { group: group.to_owned(), member: MemberRef { id: String::new(), instance: None, generation: -1 } }
    }
}

fn killed() -> Error {
    Error::Fatal("the process was killed".to_owned())
}

impl SimConsumer {
    pub(in crate::sim) fn new(simulation: &Simulation, config: &Config, worker: usize) -> Result<Self, Error> {
        let shares_spaces = config.shares_spaces();
        let instance = config.kafka.instance_id.as_ref().map(|instance| format!("{instance}-{worker}"));
        // `kafka::client_config::consumer` chooses `range` in the same cases.
        let is_eager = instance.is_some() || shares_spaces;
        let property = |name: &str| config.kafka.properties.get(name).and_then(|text| text.parse().ok()).map(Duration::from_millis);
        Self::with_group(simulation, &config.kafka.group_id, instance, is_eager, shares_spaces, |consumer| {
            consumer.session = property("session.timeout.ms").map_or(consumer.session, micros);
            consumer.heartbeat = property("heartbeat.interval.ms").map_or(consumer.heartbeat, micros);
            consumer.max_poll = property("max.poll.interval.ms").map_or(consumer.max_poll, micros);
        })
    }

    pub(in crate::sim) fn with_group(
        simulation: &Simulation,
        group: &str,
        instance: Option<String>,
        is_eager: bool,
        reports_ends: bool,
        configure: impl FnOnce(&mut ConsumerState),
    ) -> Result<Self, Error> {
        let id = simulation.with(|world| {
            world.add_client(|process, signal| {
                let mut consumer = ConsumerState::new(process, signal, group, instance, is_eager, reports_ends);
                configure(&mut consumer);
                Client::Consumer(Box::new(consumer))
            })
        });
        Ok(Self { simulation: simulation.clone(), id: id.ok_or_else(killed)?, errored: RefCell::default() })
    }

    /// Calls `look` with the state of this consumer. Returns `None` if the process was killed.
    fn with<T>(&self, look: impl FnOnce(&mut ConsumerState) -> T) -> Option<T> {
        self.simulation.with(|world| world.consumer(self.id).map(look)).flatten()
    }

    fn group(&self) -> String {
        self.with(|consumer| consumer.group.clone()).unwrap_or_default()
    }

    fn ask_leader<T: Send + 'static>(
        &self,
        of: &TopicPartition,
        serve: impl Fn(&mut World) -> Result<T, Code> + Clone + Send + 'static,
    ) -> Result<T, Code> {
        self.simulation.call(self.id, Api::ListOffsets, TIMEOUT, |world| world.cluster.leader(of), serve)
    }

    /// Takes up to `records` events from the queue and adds records, ends, and out-of-range errors to `batch`. After a fetch error, drops
    /// the events of the partition until the application seeks or assigns it. Returns the number of events that were taken.
    fn take(&self, world: &mut World, batch: &mut Batch<SimRecord>, records: usize) -> usize {
        let (id, mut errored) = (self.id, self.errored.borrow_mut());
        let Some(consumer) = world.consumer(id) else { return 0 };
        let mut taken = 0;
        while taken < records {
            let Some((topic, partition, event)) = consumer.fetcher.next() else { break };
            taken += 1;
            let of = || TopicPartition { topic: topic.to_string(), partition };
            match event {
                _ if errored.contains(topic, partition) => {}
                Event::Record(record) => batch.messages.push(SimRecord { topic: Arc::clone(topic), partition, record }),
                Event::End(offset) => batch.ends.push((of(), offset)),
                Event::OutOfRange(_) => batch.out_of_range = true,
                Event::Error(_) => errored.add(of(), runtime::now()),
                Event::Passed(_) => {}
            }
        }
        if taken > 0 {
            world.fetch(id);
        }
        taken
    }
}

impl Consumer for SimConsumer {
    type Record<'a> = SimRecord;
    type Membership = SimMembership;

    fn subscribe(&self, topics: &[&str]) -> Result<(), Error> {
        self.simulation.with(|world| {
            let now = world.now;
            if let Some(consumer) = world.consumer(self.id) {
                consumer.topics = topics.iter().map(|&topic| topic.to_owned()).collect();
                consumer.last_poll = now;
                world.join(self.id);
                world.start_heartbeats(self.id);
            }
        });
        Ok(())
    }

    fn poll(&self, batch: &mut Batch<SimRecord>, records: usize, timeout: Duration) -> Result<(), Error> {
        let Some(mut world) = self.simulation.enter() else { return Err(killed()) };
        let (deadline, now, id) = (world.now.saturating_add(micros(timeout)), world.now, self.id);
        let Some(consumer) = world.consumer(id) else { return Err(killed()) };
        consumer.last_poll = now;
        let mut answer = Ok(());
        let mut world: Guard<'_> = self
            .simulation
            .wait_until(world, Some(deadline), id, &mut |world| {
                let Some(consumer) = world.consumer(id) else { return true };
                if consumer.is_fenced {
                    answer = Err(Error::Fenced);
                    return true;
                }
                !consumer.rebalances.is_empty() || self.take(world, batch, records) > 0
            })
            .0;
        let now = world.now;
        world.consumer(id).into_iter().for_each(|consumer| consumer.last_poll = now);
        drop(world);
        answer
    }

    fn has_rebalance(&self) -> bool {
        self.with(|consumer| !consumer.rebalances.is_empty()).unwrap_or(false)
    }

    fn next_rebalance(&self) -> Option<Rebalance> {
        self.with(|consumer| consumer.rebalances.pop_front()).flatten()
    }

    fn assign(&self, partitions: &[(TopicPartition, Offset)]) -> Result<(), Error> {
        self.simulation.with(|world| {
            let Some(consumer) = world.consumer(self.id) else { return };
            if consumer.is_eager {
                consumer.fetcher.retain(|_| false);
            }
            for (partition, offset) in partitions {
                consumer.fetcher.assign(partition, *offset);
                consumer.fetcher.resume(partition);
            }
            self.errored.borrow_mut().forget(|errored| partitions.iter().any(|(partition, _)| partition == errored));
            world.answered_assign(self.id);
            world.fetch(self.id);
        });
        Ok(())
    }

    fn unassign(&self, partitions: &[TopicPartition]) -> Result<(), Error> {
        self.simulation.with(|world| {
            let Some(consumer) = world.consumer(self.id) else { return };
            let is_eager = consumer.is_eager;
            consumer.fetcher.retain(|partition| !is_eager && !partitions.contains(partition));
            self.errored.borrow_mut().forget(|errored| is_eager || partitions.contains(errored));
            world.answered_unassign(self.id);
        });
        Ok(())
    }

    fn lost(&self) -> bool {
        self.with(|consumer| consumer.is_lost).unwrap_or(false)
    }

    fn restart(&self, stopped: &[TopicPartition], all: &[(TopicPartition, Offset)]) -> Result<(), Error> {
        self.simulation.with(|world| {
            let Some(consumer) = world.consumer(self.id) else { return };
            let is_eager = consumer.is_eager;
            for (partition, offset) in all.iter().filter(|(partition, _)| is_eager || stopped.contains(partition)) {
                consumer.fetcher.assign(partition, *offset);
                consumer.fetcher.resume(partition);
                self.errored.borrow_mut().forget(|errored| errored == partition);
            }
            if !is_eager {
                world.answered_by_restart(self.id);
            }
            world.fetch(self.id);
        });
        Ok(())
    }

    fn end(&self, partition: &TopicPartition) -> Option<Offset> {
        self.with(|consumer| consumer.fetcher.end(partition)).flatten()
    }

    fn positions<'p>(&self, partitions: impl Iterator<Item = &'p TopicPartition>) -> Vec<Option<Offset>> {
        let errored = self.errored.borrow();
        let known = |of: &TopicPartition| !errored.contains(&of.topic, of.partition);
        self.with(|consumer| {
            let may_ask = !consumer.fetcher.reports_ends();
            partitions.map(|of| consumer.fetcher.position(of).filter(|_| may_ask && known(of))).collect()
        })
        .unwrap_or_default()
    }

    fn last_stable_offset(&self, partition: &TopicPartition) -> Result<Offset, Error> {
        self.watermarks(partition).map(|(_, stable)| stable)
    }

    fn errored_due(&self) -> Vec<TopicPartition> {
        self.errored.borrow_mut().due(runtime::now())
    }

    fn seek(&self, partition: &TopicPartition, offset: Offset) -> Result<(), Error> {
        let found = self.simulation.with(|world| {
            let found = world.consumer(self.id).is_some_and(|consumer| consumer.fetcher.seek(partition, offset));
            world.fetch(self.id);
            found
        });
        match found {
            Some(true) => {
                self.errored.borrow_mut().forget(|errored| errored == partition);
                Ok(())
            }
            _ => Err(Error::Fatal(format!("cannot seek to offset {offset} of {partition}: it is not being read"))),
        }
    }

    fn pause(&self, partitions: &[TopicPartition]) -> Result<(), Error> {
        self.with(|consumer| partitions.iter().for_each(|partition| consumer.fetcher.pause(partition)));
        Ok(())
    }

    fn resume(&self, partitions: &[TopicPartition]) -> Result<(), Error> {
        self.simulation.with(|world| {
            if let Some(consumer) = world.consumer(self.id) {
                for partition in partitions {
                    consumer.fetcher.resume(partition);
                }
                world.fetch(self.id);
            }
        });
        Ok(())
    }

    fn committed(&self, partitions: &[TopicPartition]) -> Result<Vec<Committed>, Error> {
        if partitions.is_empty() {
            return Ok(Vec::new());
        }
        let (group, asked) = (self.group(), partitions.to_vec());
        let name = group.clone();
        let serve = move |world: &mut World| world.fetch_offsets(&group, &asked);
        let found = self.simulation.call(self.id, Api::OffsetFetch, TIMEOUT, |world| world.cluster.coordinator(&name), serve);
        let found = found.map_err(|code| unanswered("get the group's committed offsets", &code))?;
        let committed = |found: Option<super::super::cluster::CommittedOffset>| {
            found.map_or_else(Committed::default, |found| Committed { offset: Some(found.offset), metadata: found.metadata })
        };
        Ok(found.into_iter().map(committed).collect())
    }

    fn watermarks(&self, partition: &TopicPartition) -> Result<(Offset, Offset), Error> {
        list_offsets(&self.simulation, self.id, partition, Isolation::ReadCommitted, TIMEOUT)
            .map_err(|code| unanswered(&format!("read the ends of {partition}"), &code))
    }

    fn topic_ids(&self, topics: &[&str]) -> Result<BTreeMap<String, String>, Error> {
        self.simulation.topic_ids(self.id, topics).map_err(|code| unanswered(&format!("describe topics {topics:?}"), &code))
    }

    fn offset_at(&self, partition: &TopicPartition, time: Timestamp) -> Result<Option<Offset>, Error> {
        let of = partition.clone();
        self.ask_leader(partition, move |world| Ok(world.cluster.partition(&of)?.log.offset_at(time)))
            .map_err(|code| unanswered(&format!("look up time {time} in {partition}"), &code))
    }

    fn membership(&self) -> Option<SimMembership> {
        self.with(|consumer| Some(SimMembership { group: consumer.group.clone(), member: consumer.membership()? })).flatten()
    }

    fn generation(&self) -> Option<i32> {
        self.with(|consumer| consumer.membership().map(|member| member.generation)).flatten()
    }

    fn commit(&self, offsets: &[(TopicPartition, Offset, String)]) -> Result<(), ClientError> {
        let Some((group, member)) = self.with(|consumer| (consumer.group.clone(), consumer.member())) else {
            return Err(failed(&Code::Transport));
        };
        let (name, offsets) = (group.clone(), offsets.to_vec());
        let serve = move |world: &mut World| world.commit_offsets(&group, &member, &offsets);
        self.simulation
            .call(self.id, Api::OffsetCommit, TIMEOUT, |world| world.cluster.coordinator(&name), serve)
            .map_err(|code| failed(&code))
    }

    fn close(self) {
        // A static member does not send `LeaveGroup` (KIP-345).
        self.simulation.with(|world| {
            let leaves = world.consumer(self.id).is_some_and(|consumer| consumer.instance.is_none() && consumer.state != JoinState::Idle);
            if leaves {
                world.send_leave(self.id);
            }
        });
    }
}

/// Returns the same error as `kafka::Source::commit`. The error is not retriable, because librdkafka has already retried until its timeout.
fn failed(code: &Code) -> ClientError {
    ClientError { requires_abort: true, ..client_error(seen(code), format!("cannot commit offsets: {code:?}")) }
}

impl Drop for SimConsumer {
    fn drop(&mut self) {
        self.simulation.remove_client(self.id);
    }
}
