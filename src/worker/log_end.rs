//! The end of a partition's log: skips control records and detects open transactions that hold the partition back.
//!
//! Handles offsets that have no record to process. Never skips a record that must be processed, and asks a broker at most once per second.

use super::ids::InputId;
use super::input::Input;
use super::stall::STALLED;
use super::{Error, Flow, Worker};
use crate::broker::{Broker, Consumer as _};
use crate::fault;
use crate::record::{Offset, TopicPartition};
use crate::runtime;
use std::time::{Duration, Instant};

const INTERVAL: Duration = Duration::from_secs(1);

/// The minimum time between two log lines about open transactions.
const LOG_INTERVAL: Duration = Duration::from_secs(600);

pub(super) struct LogEnds {
    next: Instant,
    /// The earliest time to ask a broker about open transactions again.
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
    /// Checks the ends of all partitions once per second. Must only be called after all fetched records are processed.
    pub(super) fn check_log_ends(&mut self, source: &B::Consumer) -> Result<Flow, Error> {
        let now = runtime::now();
        if now < self.log_ends.next {
            return Ok(Flow::Continue);
        }
        self.log_ends.next = now + INTERVAL;
        let flow = self.step_over_control_records(source)?;
        for input in self.assignment.inputs.values_mut() {
            input.note_stall(source.end(&input.partition), now);
        }
        self.find_open_transaction(source, now);
        Ok(flow)
    }

    /// Skips the control records and aborted records that the consumer has passed since it last returned a record. Must only be called
    /// after all fetched records are processed, because the consumer has also passed fetched records.
    pub(super) fn step_over_control_records(&mut self, source: &B::Consumer) -> Result<Flow, Error> {
        let positions = source.positions(self.assignment.inputs.values().map(|input| &input.partition));
        let ends: Vec<_> = self.assignment.inputs.keys().copied().zip(positions).filter_map(|(id, end)| Some((id, end?))).collect();
        self.step_over(source, ends)
    }

    /// Skips the control records and aborted records below `ends`, the end offsets that the consumer has reached.
    pub(super) fn step_over_to(&mut self, source: &B::Consumer, ends: &[(TopicPartition, Offset)]) -> Result<Flow, Error> {
        let id = |of: &TopicPartition| Some(InputId { topic: self.topics.find(&of.topic)?, partition: of.partition });
        let mut ends: Vec<_> = ends.iter().filter_map(|(of, end)| Some((id(of)?, *end))).collect();
        if fault::defect("early_end_ends_warm_up") {
            let inputs = &self.assignment.inputs;
            for (id, end) in &mut ends {
                *end = inputs.get(id).map_or(0, Input::beginning).max(*end);
            }
        }
        self.step_over(source, ends)
    }

    fn step_over(&mut self, source: &B::Consumer, ends: Vec<(InputId, Offset)>) -> Result<Flow, Error> {
        let mut stepped = false;
        for (id, end) in ends {
            let Some(input) = self.assignment.inputs.get_mut(&id).filter(|input| input.position() < end) else { continue };
            if input.step_over(end) {
                stepped = true;
                // The next checkpoint must contain the new offset.
                for id in input.states() {
                    if let Some(state) = self.assignment.states.get_mut(&id) {
                        state.changed = true;
                    }
                }
            }
        }
        match if stepped { self.writer.begin() } else { Ok(()) } {
            Ok(()) => Ok(Flow::Continue),
            Err(failure) => self.abort(source, failure).map(|()| Flow::Rewound),
        }
    }

    /// Asks a broker whether an open transaction holds back a partition that makes no progress. Asks about one partition per call.
    fn find_open_transaction(&mut self, source: &B::Consumer, now: Instant) {
        if now < self.log_ends.ask_next {
            return;
        }
        let mut inputs = self.assignment.inputs.values_mut();
        let due = inputs.find_map(|input| Some((&input.partition, input.stall.as_mut().filter(|stall| stall.must_ask(now))?)));
        let Some((partition, stall)) = due else { return };
        // With `read_committed`, a consumer cannot read past the start of the first open transaction (the last stable offset).
        let Ok(stable) = source.last_stable_offset(partition) else {
            // A failing request blocks the worker for up to a second, so it must not be repeated every second.
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
            "an open transaction of a producer blocks this partition; if that producer is gone, find the transaction with kafka-transactions.sh find-hanging and abort it (logged at most every ten minutes; the status lists all such partitions)"
        );
    }
}
