//! Partitions that must not be read for a while: topics that share a state wait for each other's warm-up, a record waits for
//! its schema, and new records wait for those that a full transaction must carry.
//!
//! Owns who of them is paused. A record must not be judged by a state that is still to learn what another topic of the
//! space had emitted by then, nor be passed over because nobody knows yet what its key is. Must never wait for a record
//! that may not come: a warm-up also ends at the end of its partition.

use super::ids::InputId;
use super::input::Wait;
use super::{Error, Worker};
use crate::broker::{Broker, Consumer as _};
use crate::fault;
use crate::format::SchemaId;
use crate::record::TopicPartition;
use std::collections::BTreeSet;

impl<B: Broker> Worker<B> {
    /// The next record of a partition can be decided once a schema is known; those of other partitions go on.
    pub(super) fn await_schema(&mut self, of: InputId, schema: SchemaId) {
        let Some(input) = self.assignment.inputs.get_mut(&of) else { return };
        tracing::debug!(partition = %input.partition, schema = %schema, offset = input.position(), "waiting for a schema");
        input.awaits = Some(schema);
        self.assignment.awaiting = true;
    }

    /// Pauses partitions that must wait for others of their state, for a schema, or for records that the transaction must carry,
    /// and resumes those that need not wait any more.
    pub(super) fn tend_waiting(&mut self, source: &B::Consumer) -> Result<(), Error> {
        if !self.assignment.warming && !self.assignment.awaiting && !self.assignment.holding {
            return Ok(());
        }
        let states: BTreeSet<_> = self.assignment.inputs.values().map(|input| input.state).collect();
        let warming: BTreeSet<_> = states.into_iter().filter(|&state| self.assignment.warms_up(&self.topics, state)).collect();
        let holding = self.assignment.holding && self.outbox.is_open() && self.assignment.must_repeat();
        let (mut waiting, mut going_on) = (Vec::new(), Vec::new());
        for input in self.assignment.inputs.values_mut() {
            input.awaits = input.awaits.filter(|&schema| self.key_reader.awaits(schema));
            let must_warm_up = warming.contains(&input.state) && !input.is_warm_up(input.position());
            let is_new = holding && input.replay_complete();
            let must_wait = must_warm_up || is_new || input.awaits.is_some();
            if must_wait && input.wait != Wait::Paused {
                waiting.push((input.partition.clone(), input.position()));
                input.wait = Wait::Paused;
            } else if !must_wait && input.wait != Wait::No {
                going_on.push((input.partition.clone(), input.position()));
                input.wait = Wait::No;
            }
        }
        let names = |list: &[(TopicPartition, _)]| list.iter().map(|(partition, _)| partition.clone()).collect::<Vec<_>>();
        if !waiting.is_empty() {
            source.pause(&names(&waiting))?;
        }
        if !going_on.is_empty() {
            // Records that came meanwhile were passed over. They are read again.
            let is_elsewhere = |(partition, position): &&(TopicPartition, _)| {
                !fault::defect("passed_over_records_not_read_again") && source.seek(partition, *position).is_err()
            };
            let elsewhere: Vec<_> = going_on.iter().filter(is_elsewhere).cloned().collect();
            source.resume(&names(&going_on))?;
            if !elsewhere.is_empty() {
                self.fetch_again(source, &names(&elsewhere))?;
            }
        }
        self.assignment.holding = holding;
        self.assignment.warming = !warming.is_empty();
        self.assignment.awaiting = self.assignment.inputs.values().any(|input| input.awaits.is_some());
        Ok(())
    }
}
