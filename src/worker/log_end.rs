//! The end of a partition's log: control records to step over, and open transactions that hold the partition back.
//!
//! Owns offsets at which there is no record to read. Must never step over a record, nor ask a broker more often than once a
//! second.

use super::ids::InputId;
use super::input::STALLED;
use super::{Error, Flow, Worker};
use crate::broker::{self, Broker, Consumer as _};
use crate::fault;
use crate::record::{Offset, TopicPartition};
use crate::runtime;
use std::time::{Duration, Instant};

/// Time between two looks at the ends of all partitions.
const INTERVAL: Duration = Duration::from_secs(1);

/// Time between two questions for the end of a log that seems to be shorter than it was.
const ASK_AGAIN: Duration = Duration::from_millis(500);

/// Time for which an answer that a log is shorter than it was is doubted.
const DOUBT: Duration = Duration::from_secs(5);

/// Time between two log lines about open transactions.
const LOG_INTERVAL: Duration = Duration::from_secs(600);

/// When the ends of partitions are looked at, and when an open transaction was last logged.
pub(super) struct LogEnds {
    next: Instant,
    /// When a broker may be asked about an open transaction.
    ask_next: Instant,
    logged: Option<Instant>,
}

impl LogEnds {
    pub(super) fn new() -> Self {
        let next = runtime::now() + INTERVAL;
        Self { next, ask_next: next, logged: None }
    }
}

impl<B: Broker> Worker<B> {
    /// Returns where a partition begins and ends. An end before `read`, an offset up to which the group has read it, is believed only when
    /// some seconds have passed `since`: a leader that stood still while another took over answers for a moment from what it knew.
    pub(super) fn watermarks(
        &self,
        source: &B::Consumer,
        partition: &TopicPartition,
        read: Option<Offset>,
        since: Instant,
    ) -> Result<(Offset, Offset), Error> {
        loop {
            let (low, high) = self.patiently(|| source.watermarks(partition))?;
            if read.is_none_or(|read| read <= high) || runtime::since(since) >= DOUBT || fault::defect("former_leader_believed") {
                return Ok((low, high));
            }
            if self.stopping() {
                return Err(broker::Error::Stopped.into());
            }
            self.alive();
            runtime::sleep(ASK_AGAIN);
        }
    }

    /// Looks at the ends of all partitions, once a second. To be called when everything that was fetched is processed.
    pub(super) fn look_at_log_ends(&mut self, source: &B::Consumer) -> Result<Flow, Error> {
        let now = runtime::now();
        if now < self.log_ends.next {
            return Ok(Flow::On);
        }
        self.log_ends.next = now + INTERVAL;
        let flow = self.step_over_control_records(source)?;
        for input in self.assignment.inputs.values_mut() {
            input.note_stall(source.end(&input.partition), now);
        }
        self.ask_for_open_transaction(source, now);
        Ok(flow)
    }

    /// Steps over the control records that the consumer has passed. To be called when everything that was fetched is
    /// processed.
    pub(super) fn step_over_control_records(&mut self, source: &B::Consumer) -> Result<Flow, Error> {
        let positions = source.positions(self.assignment.inputs.values().map(|input| &input.partition));
        let ends: Vec<_> = self.assignment.inputs.keys().copied().zip(positions).filter_map(|(id, end)| Some((id, end?))).collect();
        self.step_over(source, ends)
    }

    /// Steps over what lies before the ends that partitions were read to.
    pub(super) fn step_over_to(&mut self, source: &B::Consumer, ends: &[(TopicPartition, Offset)]) -> Result<Flow, Error> {
        let id = |of: &TopicPartition| Some(InputId { topic: self.topics.find(&of.topic)?, partition: of.partition });
        let ends = ends.iter().filter_map(|(of, end)| Some((id(of)?, *end))).collect();
        self.step_over(source, ends)
    }

    fn step_over(&mut self, source: &B::Consumer, ends: Vec<(InputId, Offset)>) -> Result<Flow, Error> {
        let mut stepped = false;
        for (id, end) in ends {
            let Some(input) = self.assignment.inputs.get_mut(&id).filter(|input| input.position < end) else { continue };
            if input.step_over(end) {
                stepped = true;
                // The next checkpoint is of the new offset.
                self.assignment.states.get_mut(&input.state).into_iter().for_each(|state| state.changed = true);
            }
        }
        match if stepped { self.outbox.begin() } else { Ok(()) } {
            Ok(()) => Ok(Flow::On),
            Err(failure) => self.abort(source, failure).map(|()| Flow::Back),
        }
    }

    /// Asks the broker of one partition that stands still whether an open transaction is the cause.
    fn ask_for_open_transaction(&mut self, source: &B::Consumer, now: Instant) {
        if now < self.log_ends.ask_next {
            return;
        }
        let mut inputs = self.assignment.inputs.values_mut();
        let due = inputs.find_map(|input| Some((&input.partition, input.stall.as_mut().filter(|stall| stall.must_ask(now))?)));
        let Some((partition, stall)) = due else { return };
        // A reader of committed records is not given what follows the first open transaction.
        let Ok(stable) = source.last_stable_offset(partition) else {
            // Records waited for the answer: they must not do so every second.
            self.log_ends.ask_next = now + STALLED;
            return;
        };
        let is_open = stable <= stall.position;
        stall.answer = Some((now, is_open));
        if !is_open || self.log_ends.logged.is_some_and(|logged| now.saturating_duration_since(logged) < LOG_INTERVAL) {
            return;
        }
        self.log_ends.logged = Some(now);
        tracing::warn!(
            %partition,
            offset = stall.position,
            seconds = now.saturating_duration_since(stall.since).as_secs(),
            "input is held back by an open transaction of one of its producers; if that producer is gone, look for the transaction with kafka-transactions.sh find-hanging (logged every ten minutes; the status lists all such partitions)"
        );
    }
}
