//! Faults of a plan that take several steps.

use super::records::new_record;
use super::{GROUP, MORE_PARTITIONS, STEP, Stage, at, input_options};
use crate::harness::TestRecord;
use crate::options::Change;
use crate::plan::{Fault, MEMBERS};
use crate::truth;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use unseen::broker::Note;
use unseen::record::{Offset, TopicPartition};
use unseen::sim::{Effect, Isolation, NewRecord};

impl Stage<'_> {
    pub(super) fn step_clock(&mut self, number: usize, ms: i64) {
        self.members[number].clock_ahead += ms;
        let ahead = self.members[number].clock_ahead;
        self.life(number).process.set_clock_ahead(ahead);
    }

    pub(super) fn cut_off(&mut self, number: usize, brokers: &[usize], time: Duration) {
        for &broker in brokers {
            self.life(number).process.cut_off(broker, time);
        }
    }

    /// Runs a second process with the same name. It starts with a copy of the first process's disk.
    pub(super) fn twin(&mut self, number: usize, killed: bool) {
        self.kill(number);
        let disk = self.members[number].disk.copy();
        self.start(number);
        let twin = self.spawn(&self.members[number], "twin", &disk);
        self.simulation.sleep(Duration::from_secs(8));
        if killed {
            twin.process.kill();
            twin.process.wait();
            self.end_of(&twin);
        } else {
            self.end(&twin);
        }
    }

    pub(super) fn change_after_reading(&mut self, change: Change) {
        assert!(self.wait_for(self.limit, Self::is_read), "the group has not read the input before its configuration changes");
        self.while_all_are_down(|stage| {
            let read = stage.inputs()[0].iter().map(Vec::len).collect();
            let changes = match change {
                Change::When => &mut stage.condition_changes,
                Change::Rules => &mut stage.rule_changes,
                _ => &mut stage.emit_changes,
            };
            changes.push(read);
            stage.memory.change(change, &stage.plan.options);
        });
    }

    pub(super) fn add_partitions(&mut self) {
        if std::mem::replace(&mut self.has_more_partitions, true) {
            return;
        }
        let add = |stage: &mut Self| {
            if stage.plan.options.has("instance_id") {
                // Static members that return within their session keep the previous assignment, without the new partitions. So all sessions
                // must end first. A late heartbeat can extend a session.
                let is_empty = || stage.simulation.group(GROUP).1 == 0;
                assert!(stage.simulation.wait_for(STEP, stage.limit, is_empty), "the sessions of ended processes do not expire");
            }
            for topic in ["in", "other"] {
                stage.simulation.add_partitions(topic, stage.plan.partitions.unsigned_abs() + MORE_PARTITIONS);
            }
        };
        if self.other || self.plan.options.has("instance_id") { self.while_all_are_down(add) } else { add(self) }
    }

    /// Makes former leaders of the input answer while a process restores its partitions. They report the offsets from before the last
    /// records were appended.
    pub(super) fn ask_former_leader(&mut self, number: usize) {
        let (after, time) = (Duration::from_secs(2), Duration::from_secs(2));
        for partition in 0..self.partitions() {
            self.simulation.answer_from_former_leader(&at("in", partition), after, time);
        }
        self.feed_until_exactly(self.fed + 20);
        self.simulation.sleep(after);
        self.terminate(number);
        self.start(number);
    }

    /// Restarts a process and makes a former group coordinator answer while the process restores its partitions. The former coordinator
    /// returns outdated offsets, because it does not know the latest commits.
    pub(super) fn ask_former_coordinator(&mut self, number: usize) {
        let (after, time) = (Duration::from_secs(2), Duration::from_secs(2));
        self.simulation.answer_from_former_coordinator(GROUP, after, time);
        self.feed_until_exactly(self.fed + 20);
        self.simulation.sleep(after);
        self.terminate(number);
        self.start(number);
    }

    /// Reads a whole partition of the input. Waits first until the followers have fetched all records, because a new leader may otherwise
    /// hide the latest records.
    fn read_whole(&self, partition: i32) -> Vec<TestRecord> {
        let is_visible = || self.simulation.offsets(&at("in", partition)).is_none_or(|[_, last_stable, _, end]| last_stable == end);
        assert!(self.simulation.wait_for(STEP, self.limit, is_visible), "some records of the input stay above the last stable offset");
        self.read("in", partition, Isolation::ReadCommitted)
    }

    pub(super) fn recreate_input(&mut self, loses_disks: bool) {
        assert!(self.wait_for(self.limit, Self::is_read), "the group has not read the input before it is deleted");
        self.while_all_are_down(|stage| {
            let read: Vec<_> = (0..stage.partitions()).map(|partition| stage.read_whole(partition)).collect();
            stage.former.iter_mut().zip(read).for_each(|(former, read)| former.extend(read));
            let count = stage.partitions().unsigned_abs();
            if loses_disks {
                stage.members.iter().for_each(|member| member.disk.delete());
            }
            stage.simulation.delete_topic("in");
            stage.simulation.create_topic("in", count, input_options(stage.plan));
        });
    }

    /// Waits until everything is read, then sets the group's offset past the end of the log and waits until the group notices.
    pub(super) fn shorten(&mut self, of: &TopicPartition) {
        assert!(self.wait_for(self.limit, Self::is_read), "the group has not read the input before it becomes shorter");
        let Some((offset, _)) = self.simulation.committed(GROUP, of) else { return };
        self.while_all_are_down(|stage| stage.simulation.set_committed(GROUP, of, Some(offset + 1_000)));
        let is_noticed = |stage: &Self| stage.simulation.committed(GROUP, of).is_some_and(|(committed, _)| committed <= offset + 100);
        assert!(self.wait_for(self.limit, is_noticed), "the group does not notice that the log is shorter");
    }

    pub(super) fn wait_until_read(&mut self) {
        assert!(self.wait_for(self.limit, Self::is_read), "the group has not read the input");
    }

    /// Aborts a transaction in each partition of the input. Then expires all records, so the log start offset is higher than the group's
    /// committed offset.
    pub(super) fn expire_input(&mut self) {
        for partition in 0..self.partitions() {
            let (of, read) = (at("in", partition), self.read_whole(partition));
            self.former[partition.unsigned_abs() as usize].extend(read);
            let producer = self.simulation.open_transaction(vec![(of.clone(), NewRecord::default())]);
            self.simulation.end_transaction(producer, &of, false);
            self.simulation.delete_before(&of, Offset::MAX);
        }
    }

    pub(super) fn expire_under_way(&mut self) {
        self.wait_until_read();
        self.expire_input();
        let running = self.running();
        if let Some(other) = (0..MEMBERS).find(|other| !running.contains(other)) {
            self.start(other);
        }
    }

    pub(super) fn elect_after_restore(&mut self, number: usize, lag: Offset) {
        self.kill(number);
        if self.plan.options.has("state.changelog = false") {
            self.members[number].disk = self.members[number].first_disk.copy();
        }
        self.start(number);
        // The first assignment can be empty until the session of the killed process ends. So each of the first three assignments triggers
        // an election.
        (1..4).for_each(|count| self.life(number).process.arm("assign.restored", count, Effect::Elect(lag)));
    }

    pub(super) fn open_transaction(&mut self, partition: i32, ms: u64) {
        let of = at("in", partition);
        let records = self.coming_records(&of, 1);
        if records.is_empty() {
            return;
        }
        let producer = self.simulation.open_transaction(records);
        self.simulation.sleep(Duration::from_millis(ms));
        self.simulation.end_transaction(producer, &of, false);
    }

    /// Writes two transactions of other producers. Records of the stream are appended before, between, and after the transactions' records.
    /// Both transactions end later, and the second transaction ends first.
    pub(super) fn mix_transaction(&mut self, partition: i32, ms: u64, committed: bool) {
        let of = at("in", partition);
        for (part, is_commit) in [(1, committed), (2, !committed)] {
            let records = self.coming_records(&of, 3);
            if !records.is_empty() {
                self.mixed[partition.unsigned_abs() as usize] += if is_commit { records.len() } else { 0 };
                let producer = self.simulation.open_transaction(records);
                self.simulation.end_transaction_in(Duration::from_millis(ms) / part, producer, &of, is_commit);
            }
            self.feed_until_exactly(self.fed + 5);
        }
    }

    /// Waits until the group has read everything and no client can still be retrying a request. Then expires the transactional ids. If an
    /// id expired during a retry, its producer could not find out whether its last transaction was committed.
    pub(super) fn expire_transactional_ids(&mut self) {
        self.wait_until_read();
        self.simulation.sleep(Duration::from_secs(20));
        self.simulation.expire_transactional_ids();
    }

    /// Copies the next `count` records of the stream for a partition of the input.
    fn coming_records(&self, of: &TopicPartition, count: usize) -> Vec<(TopicPartition, NewRecord)> {
        let coming = self.records.iter().skip(self.fed).filter(|record| record.partition == of.partition);
        coming.take(count).cloned().map(|record| (of.clone(), new_record(record))).collect()
    }

    /// Waits until the group has read the input and the repartition topic. Then deletes the repartition topic.
    pub(super) fn delete_repartition_topic(&mut self) {
        assert!(self.wait_for(self.limit, Self::is_read), "the group has not read the input before the repartition topic is deleted");
        let topics = ["in", "other"].map(|input| format!("{GROUP}-{input}-repartition"));
        let is_judged =
            |stage: &Self| topics.iter().all(|topic| (0..stage.plan.partitions).all(|partition| stage.is_read_to_end(topic, partition)));
        assert!(self.wait_for(self.limit, is_judged), "the group has not read the repartition topic before it is deleted");
        self.while_all_are_down(|stage| topics.iter().for_each(|topic| stage.simulation.delete_topic(topic)));
    }

    /// Waits until everything is read, then resets the group's offset. The keys of all records from the new offset must then be emitted
    /// again, except for keys that also occur in earlier records or in records that the output rejects, because these keys count as seen.
    pub(super) fn reset_offset(&mut self, of: &TopicPartition, back: Offset) {
        assert!(self.wait_for(self.limit, Self::is_read), "the group has not read the input before its offset is reset");
        self.while_all_are_down(|stage| {
            let Some([low, ..]) = stage.simulation.offsets(of) else { return };
            let Some((committed, metadata)) = stage.simulation.committed(GROUP, of) else { return };
            // Records from before the group's start were never emitted, so the offset must not be reset to them.
            let first = Note::read(&metadata).first.unwrap_or(low);
            let to = (committed - back).max(low).max(first);
            stage.simulation.set_committed(GROUP, of, Some(to));
            stage.forget_sights();
            let records = stage.simulation.read(of, Isolation::ReadCommitted);
            let before = records.iter().filter(|record| record.offset < to).count();
            let records = stage.read(&of.topic, of.partition, Isolation::ReadCommitted);
            let former = &stage.former[of.partition.unsigned_abs() as usize];
            let refused: Vec<_> = records.iter().filter(|record| truth::is_refused(&stage.plan.options, record)).cloned().collect();
            let known: BTreeSet<_> = truth::ids(former).chain(truth::ids(&records[..before])).chain(truth::ids(&refused)).collect();
            let emitted = stage.times_emitted();
            for id in truth::ids(&records[before..]).filter(|id| !known.contains(id)) {
                stage.again.extend(emitted.get(&id).map(|times| (id, times + 1)));
            }
        });
        if self.plan.has(&Fault::LoseOffsets) {
            // Before its first commit after the reset, the group must not lose its offsets. Otherwise, it would resume at its checkpoints,
            // which undoes the reset.
            self.wait_until_read();
        }
    }

    fn times_emitted(&self) -> BTreeMap<Vec<u8>, usize> {
        let mut times = BTreeMap::new();
        truth::unmarked(&self.output()).iter().flat_map(|records| truth::ids(records)).for_each(|id| *times.entry(id).or_default() += 1);
        times
    }

    pub(super) fn check_emitted_again(&self) {
        let times = self.times_emitted();
        let missing = self.again.iter().find(|(id, least)| times.get(*id).is_none_or(|times| times < least));
        let missing = missing.map(|(id, _)| String::from_utf8_lossy(id));
        assert!(missing.is_none(), "key {missing:?} was not emitted again after the group's offset was reset");
    }
}
