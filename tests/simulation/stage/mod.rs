//! Carries out a plan: the simulated cluster and the processes of the group.

mod end;
mod faults;
mod members;
mod records;
mod server;

use crate::harness::TestRecord;
use crate::options::{Change, Memory, RULES};
use crate::plan::{Fault, MEMBERS, Plan, Step};
use crate::table::{self, Promise};
use crate::truth::LIMIT_BYTES;
use members::Member;
use records::new_record;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use unseen::checkpoint::{MemoryDisk, Store};
use unseen::config::Config;
use unseen::record::TopicPartition;
use unseen::sim::{Api, Effect, Faults, Isolation, NewRecord, RequestFault, Simulation, TopicOptions};

/// The number of partitions that a plan can add to a topic.
const MORE_PARTITIONS: u32 = 2;
const GROUP: &str = "group";
/// The number of records that are appended before the group starts.
const BEFORE: usize = 20;
/// The longest virtual time that a plan without a defect waits for the group, for example until the group has committed everything.
const LIMIT: Duration = Duration::from_secs(600);
/// Like `LIMIT`, for a worker with a defect, which may never commit everything.
const LIMIT_WITH_DEFECT: Duration = Duration::from_secs(120);
const STEP: Duration = Duration::from_millis(100);
/// The maximum number of client calls in a plan. Only a worker that loops forever exceeds it.
const STEPS_MAX: u64 = 5_000_000;

type Configs = BTreeMap<(String, Vec<String>), Arc<Config>>;

struct Stage<'p> {
    plan: &'p Plan,
    simulation: Simulation,
    /// `LIMIT`, or `LIMIT_WITH_DEFECT` if the worker has a defect.
    limit: Duration,
    memory: Memory,
    members: Vec<Member>,
    records: Vec<TestRecord>,
    promise: Promise,
    promise_without_delivery: Promise,
    /// For each partition of the input, the number of records that were committed at the last comparison.
    checked: Vec<usize>,
    /// The records from before the group's start, as they are in the input.
    before: Vec<TestRecord>,
    /// The records of deleted inputs, by partition.
    former: Vec<Vec<TestRecord>>,
    /// For each partition of the input, the number of records that other producers write in committed transactions.
    mixed: Vec<usize>,
    has_more_partitions: bool,
    /// For each change of `when`, the number of records that the group had read before the change, by partition of the input.
    condition_changes: Vec<Vec<usize>>,
    /// Like `condition_changes`, for changes of `emit`.
    emit_changes: Vec<Vec<usize>>,
    /// Like `condition_changes`, for each time that the first of the input's two `[[topics]]` entries is removed or added back.
    rule_changes: Vec<Vec<usize>>,
    kills: u64,
    other: bool,
    fed: usize,
    server: Option<server::Server>,
    /// The keys of records that the group reads again because its offset was reset. For each key, the number of times that it must have
    /// been emitted by the end.
    again: BTreeMap<Vec<u8>, usize>,
    /// The configurations so far, by their text and overrides. They are reused because sizing a filter can take longer than a whole plan.
    configs: RefCell<Configs>,
}

/// Carries out a plan, with or without a defect, and checks the output. Returns the number of killed processes.
pub fn carry_out(plan: &Plan, defect: Option<&'static str>) -> u64 {
    simulate(plan, defect).0
}

pub fn digest(plan: &Plan) -> (u64, u64) {
    simulate(plan, None).1
}

fn simulate(plan: &Plan, defect: Option<&'static str>) -> (u64, (u64, u64)) {
    // The brokers' clock starts after the times of the records but before `MAX_TIMESTAMP`, because the model's window does not move for
    // times after `MAX_TIMESTAMP`.
    let options = unseen::sim::Options { epoch_ms: 1_790_000_000_000, step_limit: STEPS_MAX, defect, ..unseen::sim::Options::default() };
    Simulation::run(plan.seed, options, |simulation| {
        let limit = if defect.is_some() { LIMIT_WITH_DEFECT } else { LIMIT };
        let mut stage = Stage::new(plan, simulation.clone(), limit);
        for step in &plan.steps {
            stage.feed_until(step.at);
            simulation.sleep(Duration::from_millis(step.delay_ms));
            stage.tend();
            stage.act(step);
        }
        stage.finish();
        (stage.kills, simulation.digest())
    })
}

fn input_options(plan: &Plan) -> TopicOptions {
    TopicOptions { after_max_ms: i64::MAX, log_append_time: plan.append_time, ..TopicOptions::default() }
}

fn at(topic: &str, partition: i32) -> TopicPartition {
    TopicPartition { topic: topic.to_owned(), partition }
}

impl<'p> Stage<'p> {
    fn new(plan: &'p Plan, simulation: Simulation, limit: Duration) -> Self {
        let options = &plan.options;
        let endless = TopicOptions { after_max_ms: i64::MAX, ..TopicOptions::default() };
        let input = input_options(plan);
        let output = TopicOptions {
            is_compacted: options.has("records that the output refuses"),
            max_message_bytes: if options.has("records too large for the output") { LIMIT_BYTES } else { endless.max_message_bytes },
            ..endless.clone()
        };
        let other = options.has("a space that topics share");
        let count = plan.partitions.unsigned_abs();
        for (name, options) in [("in", &input), ("out", &output), ("dead", &endless), ("duplicates", &endless)] {
            simulation.create_topic(name, count, options.clone());
        }
        if other {
            simulation.create_topic("other", count, input);
        }
        let member = |((number, name), clock_ahead)| Member {
            name,
            disk: MemoryDisk::new(number),
            first_disk: MemoryDisk::new(number),
            old_disk: None,
            running: None,
            clock_ahead,
            ended: String::new(),
        };
        let members: Vec<_> = (0..).zip(["a", "b", "c"]).zip(plan.clocks_ms).map(member).collect();
        assert_eq!(members.len(), MEMBERS);
        let mut stage = Self {
            plan,
            simulation,
            limit,
            memory: options.memory(plan.capacity),
            members,
            records: records::records(plan),
            promise: table::promise(plan.rows()),
            promise_without_delivery: table::promise_without_delivery(plan.rows()),
            checked: Vec::new(),
            before: Vec::new(),
            former: vec![Vec::new(); (count + MORE_PARTITIONS) as usize],
            mixed: vec![0; (count + MORE_PARTITIONS) as usize],
            has_more_partitions: false,
            condition_changes: Vec::new(),
            emit_changes: Vec::new(),
            rule_changes: Vec::new(),
            kills: 0,
            other,
            fed: 0,
            server: None,
            again: BTreeMap::new(),
            configs: RefCell::default(),
        };
        stage.feed_until_exactly(BEFORE);
        stage.before = (0..plan.partitions).flat_map(|partition| stage.read("in", partition, Isolation::ReadCommitted)).collect();
        if stage.plan.aborted_seed {
            stage.abort_a_seed();
        }
        stage.begin();
        stage.start(0);
        // Every member gets a copy of the first member's checkpoints, as if it had been a member when the group started.
        let states = if options.has(RULES) { 2 } else { 1 };
        let is_stored = |stage: &Self| {
            Store::open_in_memory(&stage.members[0].disk.copy())
                .and_then(|store| store.all_metadata())
                .is_ok_and(|all| i32::try_from(all.len()) == Ok(stage.plan.partitions * states))
        };
        assert!(stage.wait_for(stage.limit, is_stored), "the first checkpoints are not written");
        stage.terminate(0);
        for number in 1..MEMBERS {
            let disk = stage.members[0].disk.copy();
            disk.forget_instance(number as u64);
            stage.members[number].disk = disk;
        }
        stage.members.iter_mut().for_each(|member| member.first_disk = member.disk.copy());
        stage.start(0);
        stage.begin_server();
        let faults = if plan.network { Faults::drawn(plan.seed) } else { Faults::none() };
        stage.simulation.set_faults(Faults { record_time: stage.record_time(), ..faults });
        if stage.other {
            for record in stage.records.iter().step_by(3).cloned().collect::<Vec<_>>() {
                stage.append("other", record);
            }
        }
        stage
    }

    fn changelog(&self) -> String {
        format!("{GROUP}-{}-changelog", self.plan.space())
    }

    const fn record_time(&self) -> Duration {
        Duration::from_millis(self.plan.record_ms)
    }

    /// Writes the records that a killed `unseen seed` leaves in the changelog: one record of an aborted transaction per partition.
    fn abort_a_seed(&self) {
        let changelog = self.changelog();
        let endless = TopicOptions { after_max_ms: i64::MAX, ..TopicOptions::default() };
        self.simulation.create_topic(&changelog, self.plan.partitions.unsigned_abs(), endless);
        for partition in 0..self.plan.partitions {
            let of = at(&changelog, partition);
            let record = NewRecord { time: Some(0), key: None, value: Some(b"of a seed".to_vec()), headers: Vec::new() };
            let producer = self.simulation.open_transaction(vec![(of.clone(), record)]);
            self.simulation.end_transaction(producer, &of, false);
        }
    }

    /// If the plan has `begin_kills`, starts the group with two members. Each member is killed after its number of client calls in
    /// `begin_kills`.
    fn begin(&mut self) {
        let Some(calls) = self.plan.begin_kills else { return };
        for (number, calls) in calls.into_iter().enumerate() {
            self.start(number);
            self.life(number).process.kill_after_calls(calls);
        }
        let is_read = |stage: &Self| stage.is_read();
        assert!(self.wait_for(self.limit, is_read), "the group has not begun");
        self.terminate(0);
        self.terminate(1);
    }

    fn append(&self, topic: &str, record: TestRecord) {
        let appended = self.simulation.append(&at(topic, record.partition), new_record(record));
        assert!(appended.is_some(), "{topic} does not take a record of the plan");
    }

    fn feed_until_exactly(&mut self, count: usize) {
        while self.fed < count.min(self.records.len()) {
            let record = self.records[self.fed].clone();
            self.append("in", record);
            self.fed += 1;
        }
    }

    /// Appends records up to a position in the stream, while virtual time passes.
    fn feed_until(&mut self, at: usize) {
        let end = BEFORE + at;
        while self.fed < end.min(self.records.len()) {
            let some = 1 + usize::try_from(self.simulation.draw(20)).unwrap_or(1);
            self.feed_until_exactly((self.fed + some).min(end));
            self.simulation.sleep(Duration::from_millis(self.simulation.draw(120)));
            self.tend();
        }
    }

    fn act(&mut self, Step { who, fault, .. }: &Step) {
        let running = self.running();
        let number = running[who % running.len()];
        match fault {
            Fault::Kill => {
                self.kill(number);
                self.start(number);
            }
            Fault::KillAfter(calls) => self.life(number).process.kill_after_calls(*calls),
            Fault::KillAt(point, count) => self.life(number).process.arm(named(point), *count, Effect::Kill),
            Fault::FailAt(point, count) => self.life(number).process.arm(named(point), *count, Effect::Fail),
            Fault::Stop { ms } => {
                self.life(number).process.stop();
                self.simulation.sleep(Duration::from_millis(*ms));
                self.life(number).process.resume();
            }
            Fault::StopAt { point, count, ms } => {
                self.life(number).process.arm(named(point), *count, Effect::Stop(Duration::from_millis(*ms)));
            }
            Fault::Terminate => {
                self.terminate(number);
                self.start(number);
            }
            Fault::Join => {
                if let Some(other) = (0..MEMBERS).find(|other| !running.contains(other)) {
                    self.start(other);
                }
            }
            Fault::Leave { killed } if running.len() > 1 => self.stop_one(number, *killed),
            Fault::Leave { .. } => {}
            Fault::Roll => {
                for number in running {
                    self.terminate(number);
                    self.start(number);
                    self.simulation.sleep(Duration::from_secs(3));
                }
            }
            Fault::Twin { killed } => self.twin(number, *killed),
            Fault::LoseDisk { killed } => {
                self.stop_one(number, *killed);
                self.members[number].disk.delete();
                self.start(number);
            }
            Fault::DamageDisk { entry, killed } => {
                self.stop_one(number, *killed);
                let _ = self.members[number].disk.damage(*entry);
                self.start(number);
            }
            Fault::OldDisk => {
                self.stop_one(number, true);
                let member = &mut self.members[number];
                let now = member.disk.copy();
                if let Some(old) = member.old_disk.replace(now) {
                    member.disk = old;
                }
                self.start(number);
            }
            Fault::FullDisk { ms } => {
                let disk = self.members[number].disk.clone();
                disk.set_full(true);
                self.simulation.sleep(Duration::from_millis(*ms));
                disk.set_full(false);
            }
            Fault::DeleteDisk => self.members[number].disk.delete(),
            Fault::Change(change @ (Change::When | Change::Emit | Change::Rules)) => self.change_after_reading(*change),
            Fault::Change(change) => self.while_all_are_down(|stage| stage.memory.change(*change, &stage.plan.options)),
            Fault::AddPartitions => self.add_partitions(),
            // If a partition of the changelog is empty, only the group's offsets show where the group started in that partition. So the
            // group must keep its offsets.
            Fault::LoseOffsets if self.plan.options.has("start = \"latest\"") && !self.has_logged() => {}
            Fault::LoseOffsets => self.while_all_are_down(|stage| stage.simulation.delete_group(GROUP)),
            Fault::Outage { ms } => {
                self.simulation.take_all_down(Duration::from_millis(*ms));
                self.simulation.sleep(Duration::from_millis(*ms));
            }
            Fault::Elect { partition, lag } => self.simulation.elect(&at("in", *partition), *lag),
            Fault::FormerLeader => self.ask_former_leader(number),
            Fault::FormerCoordinator => self.ask_former_coordinator(number),
            Fault::RecreateInput => self.recreate_input(false),
            Fault::RecreateInputAndDisks => self.recreate_input(true),
            Fault::LateEnd { ms } => self.simulation.set_request_fault(Api::EndTxn, RequestFault::Late(Duration::from_millis(*ms))),
            Fault::ShortLog { partition } => self.shorten(&at("in", *partition)),
            Fault::ExpireInput => {
                self.wait_until_read();
                self.while_all_are_down(Self::expire_input);
            }
            Fault::ExpireUnderWay => self.expire_under_way(),
            Fault::DeleteChangelog => self.while_all_are_down(|stage| stage.simulation.delete_topic(&stage.changelog())),
            Fault::DeleteRepartitionTopic => self.delete_repartition_topic(),
            Fault::ResetOffset { partition, back } => self.reset_offset(&at("in", *partition), *back),
            Fault::ElectAfterRestore { lag } => self.elect_after_restore(number, *lag),
            Fault::StepClock { ms } => self.step_clock(number, *ms),
            Fault::Server { killed, ms } => self.disturb_server(*killed, Duration::from_millis(*ms)),
            Fault::OpenTransaction { partition, ms } => self.open_transaction(*partition, *ms),
            Fault::MixedTransaction { partition, ms, committed } => self.mix_transaction(*partition, *ms, *committed),
            Fault::CutOff { brokers, ms } => self.cut_off(number, brokers, Duration::from_millis(*ms)),
            Fault::StallAt { point, count, ms } => {
                self.life(number).process.arm(named(point), *count, Effect::Stall(Duration::from_millis(*ms)));
            }
            Fault::ExpireTransactionalIds => self.expire_transactional_ids(),
            Fault::MoveAll { lag } => self.simulation.move_all(*lag),
            Fault::NewTopic => self.make_topic(),
        }
    }

    /// Creates the first topic that the pattern matches and that does not exist yet. The topic has no records.
    fn make_topic(&self) {
        let count = self.plan.partitions.unsigned_abs();
        (0..9).any(|number| self.simulation.create_topic(&format!("in-{number}"), count, input_options(self.plan)));
    }

    fn has_logged(&self) -> bool {
        let of = |partition| at(&self.changelog(), partition);
        (0..self.plan.partitions).all(|partition| !self.simulation.read(&of(partition), Isolation::ReadCommitted).is_empty())
    }
}

fn named(point: &str) -> &'static str {
    unseen::fault::POINTS.iter().find(|known| **known == point).copied().unwrap_or_else(|| panic!("no fault point {point}"))
}
