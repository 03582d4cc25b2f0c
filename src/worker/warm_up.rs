//! Topics that share a state wait for each other's warm-up.
//!
//! Owns who of them is paused. A record must not be judged by a state that is still to learn what another topic of the
//! space had emitted by then. Must never wait for a record that may not come: the end of a partition is as good.

use super::partition::Wait;
use super::{Error, Worker};
use crate::kafka::Source;
use crate::record::TopicPartition;
use std::collections::BTreeSet;

impl Worker {
    /// Notes which partitions were read to their `ends`, pauses those that must wait for others of their state, and
    /// has those go on that need not wait any more.
    pub(super) fn tend_warm_ups(&mut self, source: &Source, ends: &[TopicPartition]) -> Result<(), Error> {
        for input in self.assignment.inputs.values_mut().filter(|input| ends.contains(&input.partition)) {
            // What is left of the stretch was aborted, or is a marker.
            if input.is_warm_up(input.position) {
                input.warmed_up(input.warm_until - 1);
            }
        }
        let states: BTreeSet<_> = self.assignment.inputs.values().map(|input| input.state).collect();
        let warming: BTreeSet<_> = states.into_iter().filter(|&state| self.assignment.warms_up(&self.topics, state)).collect();
        let (mut waiting, mut going_on) = (Vec::new(), Vec::new());
        for input in self.assignment.inputs.values_mut() {
            let must_wait = warming.contains(&input.state) && !input.is_warm_up(input.position);
            if must_wait && input.wait != Wait::Paused {
                waiting.push((input.partition.clone(), input.position));
                input.wait = Wait::Paused;
            } else if !must_wait && input.wait != Wait::No {
                going_on.push((input.partition.clone(), input.position));
                input.wait = Wait::No;
            }
        }
        let names = |list: &[(TopicPartition, _)]| list.iter().map(|(partition, _)| partition.clone()).collect::<Vec<_>>();
        if !waiting.is_empty() {
            source.pause(&names(&waiting))?;
        }
        if !going_on.is_empty() {
            // What had come of them was passed over.
            let elsewhere: Vec<_> =
                going_on.iter().filter(|(partition, position)| source.seek(partition, *position).is_err()).cloned().collect();
            source.resume(&names(&going_on))?;
            if !elsewhere.is_empty() {
                self.fetch_again(source, &names(&elsewhere))?;
            }
        }
        self.assignment.warming = !warming.is_empty();
        Ok(())
    }
}
