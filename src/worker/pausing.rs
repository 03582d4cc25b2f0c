//! Pauses partitions that must wait. A partition waits for the warm-up of another input of its unit or for the schema of its next record.
//! While the worker holds back new records, a partition that has only new records waits for the next commit.
//!
//! Decides which partitions are paused. Never lets a state judge a record while the state lacks keys of another topic of the space. Never
//! skips a record because its schema is unknown. Never waits for a record that may not exist, so a warm-up also ends at the end of its
//! partition.

use super::ids::InputId;
use super::stall::Wait;
use super::{Error, Worker};
use crate::broker::{Broker, Consumer as _};
use crate::fault;
use crate::format::SchemaId;
use crate::record::TopicPartition;

impl<B: Broker> Worker<B> {
    /// Marks the next record of a partition as waiting for an unknown schema. Other partitions continue.
    pub(super) fn block_on_schema(&mut self, of: InputId, schema: SchemaId) {
        let Some(input) = self.assignment.inputs.get_mut(&self.topics.input_of(of)) else { return };
        tracing::debug!(partition = %input.partition, schema = %schema, offset = input.position(), "waiting for a schema");
        input.blocked_on_schema = Some(schema);
        self.assignment.any_blocked_on_schema = true;
    }

    pub(super) fn update_pauses(&mut self, source: &B::Consumer) -> Result<(), Error> {
        if !self.assignment.any_warm_up && !self.assignment.any_blocked_on_schema && !self.assignment.holds_new_records {
            return Ok(());
        }
        let warming = self.assignment.warming(&self.topics);
        let holding = self.assignment.holds_new_records && self.writer.is_open();
        let (mut waiting, mut going_on) = (Vec::new(), Vec::new());
        for (&id, input) in &mut self.assignment.inputs {
            input.blocked_on_schema = input.blocked_on_schema.filter(|&schema| self.key_reader.is_awaited(schema));
            let must_warm_up = warming.contains(&self.topics.unit_of(id)) && !input.is_warm_up(input.position());
            let is_new = holding && input.replay_complete();
            let must_wait = must_warm_up || is_new || input.blocked_on_schema.is_some();
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
            // Records that arrived during the pause were passed over. The consumer must seek back to the position to read them again.
            let is_elsewhere = |(partition, position): &&(TopicPartition, _)| {
                !fault::defect("passed_over_records_not_read_again") && source.seek(partition, *position).is_err()
            };
            let elsewhere: Vec<_> = going_on.iter().filter(is_elsewhere).cloned().collect();
            source.resume(&names(&going_on))?;
            if !elsewhere.is_empty() {
                self.restart_fetching(source, &names(&elsewhere))?;
            }
        }
        self.assignment.holds_new_records = holding;
        self.assignment.any_warm_up = !warming.is_empty();
        self.assignment.any_blocked_on_schema = self.assignment.inputs.values().any(|input| input.blocked_on_schema.is_some());
        Ok(())
    }
}
