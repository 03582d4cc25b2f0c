//! Simulated librdkafka clients: the state of their background threads and the calls of the application.
//!
//! Comments refer to the functions and fields of librdkafka that the code follows, such as `rd_kafka_cgrp_join`.

mod assignor;
mod changelog;
mod consumer;
mod error;
mod fetcher;
mod membership;
mod producer;
mod record;
mod send;
mod transaction;

pub use changelog::{SimEnds, SimReader, SimTail};
pub use consumer::{SimConsumer, SimMembership};
pub use producer::SimProducer;
pub use record::SimRecord;

use super::Simulation;
use super::{ClientId, Signal, World};
use crate::record::TopicPartition;
use fetcher::Fetcher;
use membership::ConsumerState;
use producer::ProducerState;

pub(super) enum Client {
    Consumer(Box<ConsumerState>),
    /// A client that reads partitions without joining a group.
    Reader {
        process: usize,
        signal: Signal,
        fetcher: Fetcher,
    },
    Producer(Box<ProducerState>),
    Plain {
        process: usize,
        signal: Signal,
    },
}

impl Client {
    pub(super) fn process(&self) -> usize {
        match self {
            Self::Consumer(consumer) => consumer.process,
            Self::Producer(producer) => producer.process,
            Self::Reader { process, .. } | Self::Plain { process, .. } => *process,
        }
    }

    /// The signal that changes when the client has something new for the application.
    pub(super) fn signal(&self) -> Signal {
        match self {
            Self::Consumer(consumer) => consumer.signal,
            Self::Producer(producer) => producer.signal,
            Self::Reader { signal, .. } | Self::Plain { signal, .. } => *signal,
        }
    }

    fn fetcher_mut(&mut self) -> Option<&mut Fetcher> {
        match self {
            Self::Consumer(consumer) => Some(&mut consumer.fetcher),
            Self::Reader { fetcher, .. } => Some(fetcher),
            _ => None,
        }
    }

    /// True if a broker holds a fetch of the client, and the client reads this partition.
    pub(super) fn is_parked_at(&self, of: &TopicPartition) -> bool {
        match self {
            Self::Consumer(consumer) => consumer.fetcher.is_parked_at(of),
            Self::Reader { fetcher, .. } => fetcher.is_parked_at(of),
            _ => false,
        }
    }
}

impl World {
    /// Adds a client to the calling thread's process. The id of the client is also its signal.
    pub(super) fn add_client(&mut self, make: impl FnOnce(usize, Signal) -> Client) -> ClientId {
        let (process, signal) = (self.current_process(), self.new_signal());
        self.clients.insert(signal, make(process, signal));
        signal
    }

    pub(super) fn fetcher(&mut self, id: ClientId) -> Option<&mut Fetcher> {
        self.clients.get_mut(&id).and_then(Client::fetcher_mut)
    }

    pub(super) fn consumer(&mut self, id: ClientId) -> Option<&mut ConsumerState> {
        match self.clients.get_mut(&id) {
            Some(Client::Consumer(consumer)) => Some(consumer),
            _ => None,
        }
    }

    pub(super) fn producer(&mut self, id: ClientId) -> Option<&mut ProducerState> {
        match self.clients.get_mut(&id) {
            Some(Client::Producer(producer)) => Some(producer),
            _ => None,
        }
    }
}

/// A client that only sends requests. Removes itself from the simulation when it is dropped.
pub(super) struct Asking {
    pub(super) simulation: Simulation,
    pub(super) id: ClientId,
}

impl Asking {
    pub(super) fn new(simulation: &Simulation) -> Self {
        let id = simulation.with(|world| world.add_client(|process, signal| Client::Plain { process, signal })).unwrap_or(usize::MAX);
        Self { simulation: simulation.clone(), id }
    }
}

impl Drop for Asking {
    fn drop(&mut self) {
        self.simulation.remove_client(self.id);
    }
}

impl Simulation {
    pub(super) fn remove_client(&self, id: ClientId) {
        // Does not call `enter`, because clients are also dropped while a thread unwinds. The clients of a killed process are already gone.
        self.lock().clients.remove(&id);
    }
}
