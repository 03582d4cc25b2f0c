//! The end of a plan: waits until the group has read everything and compares the output with the truth.

use super::members::Member;
use super::{BEFORE, GROUP, MORE_PARTITIONS, Stage, at};
use crate::harness::TestRecord;
use crate::truth::{self, Written};
use std::sync::Arc;
use unseen::sim::{Faults, Isolation};

impl Stage<'_> {
    pub(super) fn partitions(&self) -> i32 {
        self.plan.partitions + if self.has_more_partitions { MORE_PARTITIONS.cast_signed() } else { 0 }
    }

    /// True if the input has no open transaction, followers have fetched all of it, and the group has committed everything that a
    /// `read_committed` consumer sees.
    pub(super) fn is_read(&self) -> bool {
        let topics = std::iter::once("in").chain(self.other.then_some("other"));
        topics.into_iter().all(|topic| (0..self.partitions()).all(|partition| self.is_read_to_end(topic, partition)))
    }

    pub(super) fn is_read_to_end(&self, topic: &str, partition: i32) -> bool {
        let of = at(topic, partition);
        let is_stable = self.simulation.offsets(&of).is_none_or(|[_, last_stable, _, end]| last_stable == end);
        let last = self.simulation.read(&of, Isolation::ReadCommitted).last().map_or(0, |record| record.offset + 1);
        let is_committed = || self.simulation.committed(GROUP, &of).is_some_and(|(offset, _)| offset >= last);
        is_stable && (last == 0 || is_committed())
    }

    pub(super) fn finish(&mut self) {
        self.feed_until(self.records.len());
        // All faults end, except that slow brokers stay slow.
        self.simulation.set_faults(Faults { record_time: self.record_time(), ..Faults::none() });
        self.members.iter_mut().for_each(|member| member.disk.set_full(false));
        let is_read = self.wait_for(self.limit, Self::is_read);
        let ended: Vec<_> = self.members.iter().map(|member| format!("{} last ended: {}", member.name, member.ended)).collect();
        assert!(is_read, "the group has not read everything; {}", ended.join("; "));
        // A killed process may have left a transaction open. Until the transaction times out, no `read_committed` consumer
        // can read the records after it.
        let is_visible = |stage: &Self| {
            let partitions = ["out", "duplicates", "dead"].iter().flat_map(|topic| (0..stage.plan.partitions).map(|of| at(topic, of)));
            partitions.filter_map(|of| stage.simulation.offsets(&of)).all(|[_, last_stable, _, end]| last_stable == end)
        };
        let inputs = self.inputs();
        if self.plan.options.has("repartition = true") {
            let keys = truth::keys(&self.plan.options, &[], &inputs);
            self.wait_for(self.limit, |stage| truth::lacks_nothing(&keys, &stage.output()));
        }
        let of =
            |member: &Member| Some(format!("{}: {} (it last ended {})", member.name, member.running.as_ref()?.trouble()?, member.ended));
        let trouble = |stage: &Self| stage.members.iter().find_map(of);
        let is_well = self.wait_for(self.limit, |stage| trouble(stage).is_none() && is_visible(stage));
        assert!(is_well, "everything is read, but a member reports: {}", trouble(self).unwrap_or_default());
        self.finish_server();
        for number in self.running() {
            self.terminate(number);
        }
        // An election that is still armed can happen in the last rebalance. The new leaders may not show all records at first.
        assert!(self.wait_for(self.limit, is_visible), "some written records stay above the last stable offset");
        self.compare(&inputs);
        self.check_emitted_again();
        self.judge_server(&inputs);
    }

    /// Compares all written records with the records that an undisturbed run writes for these inputs.
    fn compare(&self, inputs: &[Vec<Vec<TestRecord>>]) {
        let of = |topic| (0..self.plan.partitions).map(|partition| self.read(topic, partition, Isolation::ReadCommitted)).collect();
        let written = Written { output: self.output(), duplicates: of("duplicates"), dead_letters: of("dead") };
        let promises = (self.promise, self.promise_without_delivery);
        truth::check(&self.plan.options, promises, (&[], &self.before), inputs, &written);
    }

    /// If no transaction is open, compares the records written so far with the records that an undisturbed run writes for the committed
    /// input. This detects a commit that is not atomic, even if no process is killed in the middle of the commit.
    pub(super) fn compare_so_far(&mut self) {
        if !self.promise.exact || !self.plan.options.is_ordered() || self.plan.steps.iter().any(|step| step.fault.changes_the_input()) {
            return;
        }
        let is_open = |topic: &str, partition| {
            let offsets = self.simulation.offsets(&at(topic, partition));
            offsets.is_none_or(|[_, last_stable, _, end]| last_stable < end)
        };
        let are_open = || ["in", "out", "duplicates", "dead"].iter().any(|topic| (0..self.plan.partitions).any(|at| is_open(topic, at)));
        if self.simulation.has_pending_offsets(GROUP) || are_open() {
            return;
        }
        let read = self.input_counts(|partition, offset| {
            self.simulation.committed(GROUP, &at("in", partition)).is_some_and(|(committed, _)| offset < committed)
        });
        if read == self.checked {
            return;
        }
        let mut inputs = self.inputs();
        inputs[0].iter_mut().zip(&read).for_each(|(records, &read)| records.truncate(read));
        self.compare(&inputs);
        self.checked = read;
    }

    pub(super) fn read(&self, topic: &str, partition: i32, isolation: Isolation) -> Vec<TestRecord> {
        let header = |(name, value): &(Box<[u8]>, Option<Box<[u8]>>)| {
            (String::from_utf8_lossy(name).into_owned(), value.as_ref().map(|value| value.to_vec()))
        };
        let records = self.simulation.read(&at(topic, partition), isolation);
        let record = |record: &Arc<unseen::sim::StoredRecord>| TestRecord {
            partition,
            key: record.key.as_ref().map(|key| key.to_vec()),
            value: record.value.as_ref().map(|value| value.to_vec()),
            headers: record.headers.iter().map(header).collect(),
            timestamp: record.time,
        };
        records.iter().map(record).collect()
    }

    pub(super) fn output(&self) -> Vec<Vec<TestRecord>> {
        (0..self.plan.partitions).map(|partition| self.read("out", partition, Isolation::ReadCommitted)).collect()
    }

    /// The records that the group must read, by input and partition.
    pub(super) fn inputs(&self) -> Vec<Vec<Vec<TestRecord>>> {
        let of = |topic| (0..self.partitions()).map(|partition| self.read(topic, partition, Isolation::ReadCommitted)).collect::<Vec<_>>();
        let mut input = self.former.clone();
        input.truncate(self.partitions().unsigned_abs() as usize);
        input.iter_mut().zip(of("in")).for_each(|(all, now)| all.extend(now));
        if self.plan.options.has("start = \"latest\"") {
            for (partition, records) in input.iter_mut().enumerate() {
                let before = self.records[..BEFORE].iter().filter(|record| usize::try_from(record.partition) == Ok(partition));
                records.drain(..before.count());
            }
        }
        let marks = [
            (&self.condition_changes, truth::WITHOUT_CONDITION),
            (&self.emit_changes, truth::FIRST_ONLY),
            (&self.rule_changes, truth::WITHOUT_RULE),
        ];
        for (changes, mark) in marks.into_iter().flat_map(|(changes, mark)| changes.chunks(2).map(move |pair| (pair, mark))) {
            let end = |partition: usize| changes.get(1).map_or(usize::MAX, |counts| counts[partition]);
            for (partition, records) in input.iter_mut().enumerate() {
                let (start, end) = (changes[0].get(partition).copied().unwrap_or_default(), end(partition).min(records.len()));
                records[start..end].iter_mut().for_each(|record| record.headers.push((mark.to_owned(), None)));
            }
        }
        std::iter::once(input).chain(self.other.then(|| of("other"))).collect()
    }
}
