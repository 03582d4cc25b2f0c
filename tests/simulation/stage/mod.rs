//! Carries out a plan: the simulated cluster, and the processes of the group.

mod faults;
mod server;

use crate::harness::{News, RETRACT, SplitMix, TestRecord};
use crate::options::{Change, Memory, Options, RETRACTS};
use crate::plan::{Fault, MEMBERS, Plan, Step};
use crate::table::{self, Promise};
use crate::truth::{self, LIMIT_BYTES, MAX_TIMESTAMP};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use unseen::broker::Broker as _;
use unseen::checkpoint::{MemoryDisk, Store};
use unseen::config::Config;
use unseen::format::NoSchemas;
use unseen::record::TopicPartition;
use unseen::runtime::Task;
use unseen::sim::{Api, Effect, Ended, Faults, Isolation, NewRecord, Process, RequestFault, SimBroker, Simulation, TopicOptions};
use unseen::stats::Stats;
use unseen::status::{self, Identity, Status};
use unseen::worker::{Rebuilder, Shared, Worker};

/// The number of partitions that are added at a time.
const MORE_PARTITIONS: u32 = 2;
const GROUP: &str = "group";
/// The number of records before the group starts.
const BEFORE: usize = 20;
/// The time that the group may take to commit everything after the last fault.
const LIMIT: Duration = Duration::from_secs(600);
/// The same for a worker with a defect, which may never commit everything.
const LIMIT_WITH_DEFECT: Duration = Duration::from_secs(120);
const STEP: Duration = Duration::from_millis(100);
/// Maximum number of client calls in a plan. This is many times the number that any plan needs, so that a worker that loops without
/// progress fails.
const STEPS_MAX: u64 = 5_000_000;

/// A process that is or may become a member of the group.
struct Member {
    name: &'static str,
    disk: MemoryDisk,
    /// Its disk right after the start of the group.
    first_disk: MemoryDisk,
    /// Its disk at an earlier moment.
    old_disk: Option<MemoryDisk>,
    running: Option<Life>,
    clock_ahead: i64,
    /// The reason for its last exit.
    ended: String,
}

/// A running process.
struct Life {
    process: Process<Result<(), String>>,
    stop: Arc<AtomicBool>,
    config: Arc<Config>,
    stats: Arc<Stats>,
}

impl Life {
    /// The reason why the process is not ready, or the partition that lags although everything was read. `None` if all is well.
    fn trouble(&self) -> Option<String> {
        let identity = Identity { instance: Some("simulated"), time_ms: 0, started_ms: 0, draining: false, login_trouble: None };
        let process =
            status::Process { resident_bytes: None, cpu_seconds: None, state_disk_available_bytes: None, state_disk_size_bytes: None };
        let status = Status::new(&self.config, &self.stats, &identity, None, process, Vec::new());
        let lag = status.partitions.iter().find(|partition| partition.lag.is_some_and(|lag| lag > 0));
        status.reason.or_else(|| lag.map(|of| format!("{}[{}] has a lag of {:?}", of.topic, of.partition, of.lag)))
    }
}

type Configs = BTreeMap<(String, Vec<String>), Arc<Config>>;

struct Stage<'p> {
    plan: &'p Plan,
    simulation: Simulation,
    /// The virtual time that the group may take to get to a state.
    limit: Duration,
    memory: Memory,
    members: Vec<Member>,
    records: Vec<TestRecord>,
    promise: Promise,
    /// The records of deleted inputs, by partition.
    former: Vec<Vec<TestRecord>>,
    /// The number of records per partition of the input that other producers write in transactions.
    mixed: Vec<usize>,
    has_more_partitions: bool,
    /// Records of each partition of the input that were read when the condition changed, once for each change.
    condition_changes: Vec<Vec<usize>>,
    kills: u64,
    other: bool,
    /// The number of records of the stream that were appended.
    fed: usize,
    server: Option<server::Server>,
    /// Keys of records that the group reads again because its offset was reset, and the number of times that each must be emitted by the
    /// end.
    again: BTreeMap<Vec<u8>, usize>,
    /// The configurations so far, by text and options. Sizing a filter takes longer than many plans.
    configs: RefCell<Configs>,
}

/// Carries out a plan, with or without a defect, and checks the output. Returns the number of killed processes.
pub fn carry_out(plan: &Plan, defect: Option<&'static str>) -> u64 {
    simulate(plan, defect).0
}

/// A digest that distinguishes runs of a plan.
pub fn digest(plan: &Plan) -> (u64, u64) {
    simulate(plan, None).1
}

fn simulate(plan: &Plan, defect: Option<&'static str>) -> (u64, (u64, u64)) {
    // After the records' times, but before the latest time that moves a window.
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

/// A record of the plan, as a producer sends it.
fn new_record(record: TestRecord) -> NewRecord {
    let headers = record.headers.into_iter().map(|(name, value)| (name.into_bytes(), value)).collect();
    NewRecord { time: Some(record.timestamp), key: record.key, value: record.value, headers }
}

/// The settings of the input.
fn input_options(plan: &Plan) -> TopicOptions {
    TopicOptions { after_max_ms: i64::MAX, log_append_time: plan.append_time, ..TopicOptions::default() }
}

fn at(topic: &str, partition: i32) -> TopicPartition {
    TopicPartition { topic: topic.to_owned(), partition }
}

fn load(text: &str, overrides: &[String]) -> Arc<Config> {
    let pair = |setting: &String| setting.split_once('=').map(|(name, value)| (name.to_owned(), value.to_owned()));
    let overrides: Vec<_> = overrides.iter().filter_map(pair).collect();
    let dir = tempfile::tempdir().expect("a directory for a configuration");
    let file = dir.path().join("unseen.toml");
    fs::write(&file, text).expect("a configuration file");
    Arc::new(Config::load(&file, &overrides).unwrap_or_else(|errors| panic!("{errors}")))
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
            records: records(plan),
            promise: table::promise(plan.rows()),
            former: vec![Vec::new(); (count + MORE_PARTITIONS) as usize],
            mixed: vec![0; (count + MORE_PARTITIONS) as usize],
            has_more_partitions: false,
            condition_changes: Vec::new(),
            kills: 0,
            other,
            fed: 0,
            server: None,
            again: BTreeMap::new(),
            configs: RefCell::default(),
        };
        stage.feed_until_exactly(BEFORE);
        if stage.plan.aborted_seed {
            stage.abort_a_seed();
        }
        stage.begin();
        stage.start(0);
        // Every member has the empty checkpoint of the group's start, as if it had been a member then.
        let is_stored = |stage: &Self| {
            Store::open_in_memory(&stage.members[0].disk.copy())
                .and_then(|store| store.all_metadata())
                .is_ok_and(|all| i32::try_from(all.len()) == Ok(stage.plan.partitions))
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

    const fn record_time(&self) -> Duration {
        Duration::from_millis(self.plan.record_ms)
    }

    /// Writes what a killed `unseen seed` leaves behind: records of an aborted transaction in every partition of the changelog.
    fn abort_a_seed(&self) {
        let changelog = format!("{GROUP}-news-changelog");
        let endless = TopicOptions { after_max_ms: i64::MAX, ..TopicOptions::default() };
        self.simulation.create_topic(&changelog, self.plan.partitions.unsigned_abs(), endless);
        for partition in 0..self.plan.partitions {
            let of = at(&changelog, partition);
            let record = NewRecord { time: Some(0), key: None, value: Some(b"of a seed".to_vec()), headers: Vec::new() };
            let producer = self.simulation.open_transaction(vec![(of.clone(), record)]);
            self.simulation.end_transaction(producer, &of, false);
        }
    }

    /// Starts the group with two members that are killed after some calls.
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

    // ---- Records ----

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

    // ---- Processes ----

    fn config(&self, name: &str, more: Vec<String>) -> Arc<Config> {
        let Plan { options, max_poll_ms, commit_ms, checkpoint_ms, transaction_ms, transaction_records, session_ms, .. } = self.plan;
        let lines = format!("{}space = \"news\"\n{}", options.key(), self.memory.lines());
        let lines = format!("{lines}{}", options.lines("dead", "duplicates"));
        let topic = |input: &str| format!("[[topics]]\ninput = \"{input}\"\noutput = \"out\"\n{lines}\n");
        let other = if self.other { topic("other") } else { String::new() };
        let text = format!(
            "[kafka]\nbootstrap_servers = \"simulated:1\"\ngroup_id = \"{GROUP}\"\n[kafka.properties]\n\"session.timeout.ms\" = \"{session_ms}\"\n\
             \"heartbeat.interval.ms\" = \"{}\"\n{}{}{other}",
            session_ms / 5,
            max_poll_ms.map(|ms| format!("\"max.poll.interval.ms\" = \"{ms}\"\n")).unwrap_or_default(),
            topic("in")
        );
        let mut overrides = options.overrides();
        overrides.extend([
            format!("worker.commit_interval={commit_ms}ms"),
            format!("worker.checkpoint_interval={checkpoint_ms}ms"),
            format!("worker.transaction_timeout={transaction_ms}ms"),
            format!("worker.max_transaction_records={transaction_records}"),
        ]);
        if options.has("instance_id") {
            overrides.push(format!("kafka.instance_id={GROUP}-{name}"));
        }
        overrides.extend(more);
        Arc::clone(self.configs.borrow_mut().entry((text, overrides)).or_insert_with_key(|(text, overrides)| load(text, overrides)))
    }

    fn spawn(&self, member: &Member, name: &str, disk: &MemoryDisk) -> Life {
        let (config, stop) = (self.config(member.name, Vec::new()), Arc::new(AtomicBool::new(false)));
        let stats = Arc::new(Stats::new(&config));
        let (broker, disk) = (self.simulation.broker(), disk.clone());
        let (with, counts, told) = (Arc::clone(&config), Arc::clone(&stats), Arc::clone(&stop));
        let process = self.simulation.start(name, move || main(&broker, &with, &disk, &counts, &told));
        process.set_clock_ahead(member.clock_ahead);
        Life { process, stop, config, stats }
    }

    fn start(&mut self, number: usize) {
        let member = &self.members[number];
        let life = self.spawn(member, member.name, &member.disk);
        self.members[number].running = Some(life);
    }

    fn running(&self) -> Vec<usize> {
        (0..self.members.len()).filter(|&number| self.members[number].running.is_some()).collect()
    }

    fn kill(&mut self, number: usize) {
        if let Some(life) = self.members[number].running.take() {
            life.process.kill();
            life.process.wait();
            self.end_of(&life);
        }
    }

    /// Stops a process gracefully, and waits until it has ended.
    fn terminate(&mut self, number: usize) {
        if let Some(life) = self.members[number].running.take() {
            self.end(&life);
        }
    }

    fn end(&mut self, life: &Life) {
        life.stop.store(true, Ordering::Relaxed);
        life.process.resume();
        if !self.simulation.wait_for(STEP, Duration::from_secs(30), || life.process.has_ended()) {
            // Like `worker.shutdown_timeout`.
            life.process.kill();
            life.process.wait();
        }
        self.end_of(life);
    }

    /// Returns how a process has ended. A panic fails the plan.
    fn end_of(&mut self, life: &Life) -> String {
        match life.process.take_outcome() {
            Some(Ended::Panicked(message)) => panic!("a process panicked: {message}"),
            Some(Ended::Killed) => self.kills += 1,
            Some(Ended::Returned(Err(error))) => {
                Self::check_reason(&error);
                return error;
            }
            Some(Ended::Returned(Ok(()))) | None => {}
        }
        "in good order, or killed".to_owned()
    }

    /// Fails the plan unless a process may exit for this reason.
    fn check_reason(error: &str) {
        let is_wrong = ["from its changelog: ", "arrived through the consumer's own queue", "another consumer group or key space writes"];
        assert!(!is_wrong.iter().any(|wrong| error.contains(wrong)), "a process ended: {error}");
        // Other reasons are allowed only if they are temporary: the plan fails if the group does not commit everything.
    }

    /// Restarts processes that have ended.
    fn tend(&mut self) {
        for number in 0..self.members.len() {
            if self.members[number].running.as_ref().is_some_and(|life| life.process.has_ended()) {
                let life = self.members[number].running.take().expect("it was running");
                self.members[number].ended = self.end_of(&life);
                self.start(number);
            }
        }
        self.tend_server();
    }

    fn wait_for(&mut self, limit: Duration, ready: impl Fn(&Self) -> bool) -> bool {
        let end = self.simulation.elapsed() + limit;
        loop {
            self.tend();
            if ready(self) {
                return true;
            }
            if self.simulation.elapsed() > end {
                return false;
            }
            self.simulation.sleep(STEP);
        }
    }

    // ---- Faults ----

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
            Fault::Change(Change::When) => self.change_condition(),
            Fault::Change(change) => self.while_all_are_down(|stage| stage.memory.change(*change, &stage.plan.options)),
            Fault::AddPartitions => self.add_partitions(),
            // If nothing was ever logged, only the offsets show that the group has started.
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
            Fault::DeleteChangelog => self.while_all_are_down(|stage| stage.simulation.delete_topic(&format!("{GROUP}-news-changelog"))),
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
        }
    }

    /// True if every partition of the changelog has a record.
    fn has_logged(&self) -> bool {
        let of = |partition| at(&format!("{GROUP}-news-changelog"), partition);
        (0..self.plan.partitions).all(|partition| !self.simulation.read(&of(partition), Isolation::ReadCommitted).is_empty())
    }

    fn life(&self, number: usize) -> &Life {
        self.members[number].running.as_ref().expect("it is running")
    }

    fn stop_one(&mut self, number: usize, killed: bool) {
        if killed { self.kill(number) } else { self.terminate(number) }
    }

    fn while_all_are_down(&mut self, act: impl FnOnce(&mut Self)) {
        let running = self.running();
        for &number in &running {
            self.terminate(number);
        }
        act(self);
        for number in running {
            self.start(number);
        }
    }

    // ---- The end ----

    fn partitions(&self) -> i32 {
        self.plan.partitions + if self.has_more_partitions { MORE_PARTITIONS.cast_signed() } else { 0 }
    }

    /// True if the input has no open transaction, followers have fetched all of it, and the group has committed everything that a
    /// `read_committed` consumer sees.
    fn is_read(&self) -> bool {
        let topics = std::iter::once("in").chain(self.other.then_some("other"));
        topics.into_iter().all(|topic| (0..self.partitions()).all(|partition| self.is_read_to_end(topic, partition)))
    }

    fn is_read_to_end(&self, topic: &str, partition: i32) -> bool {
        let of = at(topic, partition);
        let is_stable = self.simulation.offsets(&of).is_none_or(|[_, last_stable, _, end]| last_stable == end);
        let last = self.simulation.read(&of, Isolation::ReadCommitted).last().map_or(0, |record| record.offset + 1);
        let is_committed = || self.simulation.committed(GROUP, &of).is_some_and(|(offset, _)| offset >= last);
        is_stable && (last == 0 || is_committed())
    }

    fn finish(&mut self) {
        self.feed_until(self.records.len());
        // Slow brokers stay slow.
        self.simulation.set_faults(Faults { record_time: self.record_time(), ..Faults::none() });
        self.members.iter_mut().for_each(|member| member.disk.set_full(false));
        let is_read = self.wait_for(self.limit, Self::is_read);
        let ended: Vec<_> = self.members.iter().map(|member| format!("{} last ended: {}", member.name, member.ended)).collect();
        assert!(is_read, "the group has not read everything; {}", ended.join("; "));
        // A killed process may have left a transaction open. Until it times out, nobody can read what follows it.
        let is_visible = |stage: &Self| {
            let offsets = (0..stage.plan.partitions).filter_map(|partition| stage.simulation.offsets(&at("out", partition)));
            offsets.into_iter().all(|[_, last_stable, _, end]| last_stable == end)
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
        // The election may have been armed for the last rebalance.
        assert!(self.wait_for(self.limit, is_visible), "a part of the output stays above its last stable offset");
        let before: Vec<_> = self.records[..BEFORE].to_vec();
        truth::check(&self.plan.options, self.promise, (&[], &before), &inputs, &self.output());
        self.check_emitted_again();
        self.judge_server(&inputs);
    }

    fn read(&self, topic: &str, partition: i32, isolation: Isolation) -> Vec<TestRecord> {
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

    fn output(&self) -> Vec<Vec<TestRecord>> {
        (0..self.plan.partitions).map(|partition| self.read("out", partition, Isolation::ReadCommitted)).collect()
    }

    /// The records of the inputs that the group must read.
    fn inputs(&self) -> Vec<Vec<Vec<TestRecord>>> {
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
        for changes in self.condition_changes.chunks(2) {
            let end = |partition: usize| changes.get(1).map_or(usize::MAX, |counts| counts[partition]);
            for (partition, records) in input.iter_mut().enumerate() {
                let (start, end) = (changes[0].get(partition).copied().unwrap_or_default(), end(partition).min(records.len()));
                records[start..end].iter_mut().for_each(|record| record.headers.push((truth::WITHOUT_CONDITION.to_owned(), None)));
            }
        }
        std::iter::once(input).chain(self.other.then(|| of("other"))).collect()
    }
}

fn named(point: &str) -> &'static str {
    unseen::fault::POINTS.iter().find(|known| **known == point).copied().unwrap_or_else(|| panic!("no fault point {point}"))
}

/// The main function of a process: like `unseen run`, but without HTTP and signals.
fn main(broker: &SimBroker, config: &Arc<Config>, disk: &MemoryDisk, stats: &Arc<Stats>, stop: &Arc<AtomicBool>) -> Result<(), String> {
    let text = |error: &dyn std::fmt::Display| error.to_string();
    let store = Arc::new(Store::open_in_memory(disk).map_err(|error| text(&error))?);
    let cluster = broker.discover(config, &|| stop.load(Ordering::Relaxed)).map_err(|error| text(&error))?;
    let instance = config.kafka.instance_id.clone().map_or_else(|| store.instance_id(), Ok).map_err(|error| text(&error))?;
    let shared = Shared {
        broker: broker.clone(),
        config: Arc::clone(config),
        cluster: Arc::new(cluster),
        rebuilder: Arc::new(Rebuilder::start(broker, config, &store, stats, stop)),
        store,
        stats: Arc::clone(stats),
        cross_partition_keys: Arc::default(),
        schemas: Arc::new(NoSchemas),
        stop: Arc::clone(stop),
        instance: instance.as_str().into(),
    };
    let work = |number: usize, shared: Shared<SimBroker>| match Worker::connect(shared, number).and_then(|worker| worker.run(number)) {
        Ok(()) | Err(unseen::worker::Error::Kafka(unseen::broker::Error::Stopped)) => Ok(()),
        Err(error) => Err(error.to_string()),
    };
    let threads: Vec<_> = (0..usize::from(config.worker.workers))
        .map(|number| {
            let (shared, stop, task) = (shared.clone(), Arc::clone(stop), Task::new("worker"));
            let done = task.done();
            let process = std::thread::current().name().unwrap_or_default().to_owned();
            let thread = std::thread::Builder::new().name(process).spawn(move || {
                task.run(|| {
                    let ended = work(number, shared);
                    // The other workers drain, too.
                    stop.store(true, Ordering::Relaxed);
                    ended
                })
            });
            (thread.expect("a thread can be started"), done)
        })
        .collect();
    drop(shared);
    let join = |(thread, done): (std::thread::JoinHandle<Result<(), String>>, unseen::runtime::Done)| {
        done.wait();
        thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    };
    threads.into_iter().map(join).fold(Ok(()), Result::and)
}

/// The records of a plan, some of them unusual.
fn records(plan: &Plan) -> Vec<TestRecord> {
    let news = News { seed: plan.seed, count: plan.records + BEFORE, partitions: plan.partitions.unsigned_abs(), ..News::default() };
    let mut records = news.records();
    let mut random = SplitMix(plan.seed);
    if plan.options.has("retract") {
        let some = records.iter_mut().filter(|_| random.below(10) == 0);
        some.for_each(|record| record.headers.push((RETRACT.to_owned(), Some(RETRACTS.into()))));
    }
    for record in &mut records {
        if random.below(20) == 0 {
            make_odd(&plan.options, record, &mut random);
        }
    }
    truth::move_times(&plan.options, &mut records, plan.seed);
    truth::mark_passing(&plan.options, &mut records, plan.seed);
    truth::encode(&plan.options, &mut records);
    records
}

fn make_odd(options: &Options, record: &mut TestRecord, random: &mut SplitMix) {
    if options.has("records of time 0, or before it") {
        record.timestamp = -i64::try_from(random.below(3)).unwrap_or_default();
    } else if options.has("records that are late, from the future, or without a time") {
        record.timestamp = [record.timestamp - 3 * 24 * 3_600_000, 1, -1, MAX_TIMESTAMP + 1_000_000_000_000][random.below(4)];
    } else if options.has("tombstones") {
        record.value = None;
    } else if options.has("records that lack what the key is made of") {
        record.value.iter_mut().for_each(|value| value.truncate(20));
    } else if options.has("records that the output refuses") {
        record.key = None;
    } else if options.has("records too large for the output") {
        record.pad(&"x".repeat(LIMIT_BYTES + 1));
    }
}
