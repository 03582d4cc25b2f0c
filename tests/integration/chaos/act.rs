//! Injects the faults of a plan.

use super::plan::{Fault, Harm, Step};
use super::stage::{Stage, copy};
use crate::harness::state::{damage_page, entries, flip, open, truncate};
use crate::harness::{add_partitions, committed_offset, delete_group, move_offset};
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The maximum wait for a worker to reach an armed fault point, and for commits while the disk is full. A fault point that the worker has
/// not reached within this time stays armed.
const PATIENCE: Duration = Duration::from_secs(4);
/// The maximum time for which two processes with the same name run.
const FIGHT: Duration = Duration::from_secs(8);
/// The number of partitions of each input after [`Fault::AddPartitions`].
const MORE_PARTITIONS: u32 = 6;
/// The distance from the end of the log to the offset that [`Fault::ShortLog`] commits.
const GONE: i64 = 1_000;
/// The wait during [`Fault::FailAt`] and [`Fault::Twin`] ends early when the group has committed this number of records. The wait during
/// [`Fault::FullDisk`] ends early after twice this number.
const SOME: usize = 1_000;

impl Stage<'_> {
    /// Injects the fault of a step. At least one member runs when the function returns.
    pub fn act(&mut self, step: &Step) {
        let running = self.running();
        let at = running[step.who % running.len()];
        let name = self.members[at].name;
        self.story.tell(format_args!("{:?} of {name}", step.fault));
        match &step.fault {
            // These faults are counted when they happen, because the worker may have exited already or may never reach the armed point.
            Fault::Kill | Fault::KillAt(_) | Fault::StopAt { .. } => {}
            fault => self.story.count(fault.name()),
        }
        if step.fault.is_of_operator() {
            self.wait_until_whole();
        }
        match &step.fault {
            Fault::Kill => {
                self.kill(at);
                self.start(at, "");
            }
            Fault::KillAt(points) | Fault::FailAt(points) => self.arm(at, points, Duration::ZERO),
            Fault::StopAt { points, ms } => self.arm(at, points, Duration::from_millis(*ms)),
            Fault::Stop { ms } => self.stop(at, Duration::from_millis(*ms)),
            Fault::Terminate => {
                self.terminate(at);
                self.start(at, "");
            }
            Fault::Join => {
                if let Some(other) = (0..self.members.len()).find(|other| !running.contains(other)) {
                    self.start(other, "");
                    self.wait_for_log(other, "partitions assigned");
                }
            }
            Fault::Leave { killed } if running.len() > 1 => {
                self.end_of(at, *killed);
            }
            Fault::Leave { .. } => {}
            Fault::Roll => {
                for at in running {
                    self.terminate(at);
                    self.start(at, "");
                    self.wait_for_log(at, "partitions assigned");
                }
            }
            Fault::Twin { killed } => self.twin(at, *killed),
            Fault::Broker { worker_too } => self.kill_broker(at, *worker_too),
            Fault::OneBroker { ailment, number, ms, worker_too } => {
                self.begin_ailment(*ailment, *number, Duration::from_millis(*ms));
                if *worker_too {
                    self.kill(at);
                    self.start(at, "");
                }
            }
            Fault::MoveLeaders => self.move_leaders(),
            Fault::RollBrokers => self.roll_brokers(),
            Fault::State { harm, killed } => {
                self.end_of(at, *killed);
                let told = do_harm(&self.stream.setup.state_dir(name), *harm);
                self.story.tell(told);
                self.start(at, "");
            }
            Fault::FullDisk { kib, killed } => self.fill_disk(at, *kib, *killed),
            Fault::Change(change) => self.while_all_are_down(|stage| {
                stage.memory.change(*change, &stage.conditions.options);
                stage.story.tell(stage.memory.lines());
            }),
            Fault::ShortLog { partition } => self.shorten(at, *partition),
            Fault::Server { trouble, ms } => self.trouble_server(*trouble, Duration::from_millis(*ms)),
            Fault::AddPartitions if self.has_more_partitions => {}
            Fault::AddPartitions => self.add_partitions(),
            Fault::LoseOffsets => self.while_all_are_down(|stage| delete_group(&stage.stream.broker, stage.stream.setup.group())),
        }
    }

    fn add_partitions(&mut self) {
        self.has_more_partitions = true;
        let topics: Vec<_> = std::iter::once(self.stream.input.clone()).chain(self.other.clone()).collect();
        let add = |stage: &mut Self| topics.iter().for_each(|topic| add_partitions(&stage.stream.broker, topic, MORE_PARTITIONS));
        // Topics that share a space must have the same number of partitions, so no worker may run between the two changes.
        if topics.len() > 1 { self.while_all_are_down(add) } else { add(self) }
    }

    fn while_all_are_down(&mut self, act: impl FnOnce(&mut Self)) {
        let running = self.running();
        for &at in &running {
            self.terminate(at);
        }
        act(self);
        for at in running {
            self.start(at, "");
        }
    }

    fn end_of(&mut self, at: usize, killed: bool) {
        if killed {
            self.kill(at);
        } else {
            self.terminate(at);
        }
    }

    /// Kills a member and restarts it with armed fault points. A worker reaches some points only after an event, so this function causes
    /// the event: it damages or deletes the state before the restart, or causes a shutdown, an expired session, or a revocation after the
    /// restart.
    fn arm(&mut self, at: usize, points: &str, standstill: Duration) {
        self.kill(at);
        let state = self.stream.setup.state_dir(self.members[at].name);
        let passes = |part: &str| points.split(',').any(|point| point.starts_with(part));
        if passes("quarantine.") {
            self.story.tell(do_harm(&state, Harm::Page));
        } else if passes("rebuild.") {
            self.story.tell(do_harm(&state, Harm::Deleted));
        }
        self.members[at].standstill = standstill;
        self.start(at, points);
        let life = self.members[at].lives;
        let mut guest = None;
        if passes("drain.") || passes("lose.") || passes("revoke.") {
            self.wait_for_log(at, "partitions assigned");
            if passes("drain.") {
                self.terminate(at);
                self.start(at, "");
            } else if passes("lose.") {
                self.stop(at, Duration::from_millis(self.conditions.session_ms + 1_500));
            } else {
                guest = (0..self.members.len()).find(|&other| self.members[other].worker.is_none());
                if let Some(guest) = guest {
                    self.start(guest, "");
                }
            }
        }
        let (before, kills) = (self.committed(), points.ends_with(":kill"));
        self.wait_for(PATIENCE, |stage| {
            let member = &stage.members[at];
            member.lives > life || member.armed.is_empty() || !kills && standstill.is_zero() && stage.committed() >= before + SOME
        });
        if let Some(guest) = guest {
            self.terminate(guest);
        }
    }

    fn stop(&mut self, at: usize, time: Duration) {
        let Some(mut worker) = self.members[at].worker.take() else { return };
        if !worker.runs() {
            self.members[at].worker = Some(worker);
            return;
        }
        worker.sigstop();
        // The test cannot see when the brokers abort the worker's transaction, so the plan sets the duration of the stop.
        self.wait_for(time, |_| false);
        worker.sigcont();
        self.members[at].worker = Some(worker);
    }

    fn wait_for_log(&mut self, at: usize, text: &str) {
        self.wait(&format!("a member logs `{text}`"), |stage| {
            stage.members[at].worker.as_ref().is_some_and(|worker| worker.log().contains(text))
        });
    }

    /// Kills and restarts a member, and runs a second process with a copy of the member's state directory. The two processes have the same
    /// file `instance` and, if the plan sets it, the same `kafka.instance_id`. With `exactly_once`, they therefore use the same
    /// transactional ids.
    fn twin(&mut self, at: usize, killed: bool) {
        self.kill(at);
        let name = self.members[at].name;
        let twin = format!("{name}-twin-{}", self.members[at].lives);
        copy(&self.stream.setup.state_dir(name), &self.stream.setup.state_dir(&twin));
        self.twinned = true;
        self.start(at, "");
        let mut worker = self.spawn(&twin, name, "");
        self.story.tell(format_args!("{twin} starts"));
        let before = self.committed();
        self.wait_for(FIGHT, |stage| worker.ended().is_some() || stage.committed() >= before + SOME);
        if killed && worker.runs() {
            worker.kill9();
            self.story.tell(format_args!("{twin} is killed"));
        } else {
            self.end(worker, &twin);
        }
    }

    fn kill_broker(&mut self, at: usize, worker_too: bool) {
        let Some(broker) = &mut self.broker else { return };
        self.broker_failed = true;
        broker.kill();
        if worker_too {
            self.kill(at);
            self.start(at, "");
        }
        let Some(broker) = &mut self.broker else { return };
        broker.wait_until_back();
        self.story.tell("the broker is back");
    }

    /// First waits until the group has committed all records that the feed may send, so that the log does not grow. Then sets the group's
    /// offset past the end of a partition's log and checks that a worker does what `on_truncation` sets.
    fn shorten(&mut self, at: usize, partition: i32) {
        self.rest();
        let (broker, group) = (self.stream.broker.clone(), self.stream.setup.group().to_owned());
        let offset = committed_offset(&broker, &group, &self.stream.input, partition).expect("all is committed");
        let mut running = self.running();
        for &at in &running {
            self.terminate(at);
        }
        move_offset(&broker, &group, &self.stream.input, partition, offset + GONE);
        if self.conditions.options.has("on_truncation = \"fail\"") {
            let name = self.members[at].name;
            let log = self.spawn(name, name, "").fails(1);
            assert!(log.contains("the log was truncated"), "{name} did not log that the log was truncated");
            move_offset(&broker, &group, &self.stream.input, partition, offset);
        }
        // One member starts alone, so it owns the partition. With `on_truncation = "continue"`, the member continues at the end of the log.
        // The other members start when the group has committed the end of the log.
        running.retain(|&other| other != at);
        self.start(at, "");
        self.wait("the group has the log's end", |stage| committed_offset(&broker, &group, &stage.stream.input, partition) == Some(offset));
        for at in running {
            self.start(at, "");
        }
    }

    fn fill_disk(&mut self, at: usize, kib: u64, killed: bool) {
        // The limit begins only after the worker has started, because a worker that cannot write its first files exits with an error.
        self.wait_for_log(at, "started version=");
        let life = self.members[at].lives;
        // A fault point may have ended the worker already.
        let Some(worker) = self.members[at].alive() else { return };
        worker.limit_files(kib << 10);
        let before = self.committed();
        self.wait_for(PATIENCE, |stage| stage.committed() >= before + 2 * SOME);
        if killed {
            self.kill(at);
            self.start(at, "");
            return;
        }
        if self.members[at].lives == life {
            self.members[at].alive().into_iter().for_each(|worker| worker.lift_file_limit());
        }
    }
}

/// Damages the state of a stopped worker. Returns a description of the damage.
fn do_harm(state: &Path, harm: Harm) -> String {
    match harm {
        Harm::Deleted => {
            fs::remove_dir_all(state).expect("it can be deleted");
            "the state was deleted".to_owned()
        }
        Harm::Cut(number) => on_file(state, number, "cut off", truncate),
        Harm::Flipped(number) => on_file(state, number, "flipped", flip),
        Harm::Removed(number) => on_file(state, number, "removed", |file| fs::remove_file(file).expect("it can be removed")),
        Harm::Page => {
            if open_if_whole(state) && damage_page(state) {
                "a page was damaged".to_owned()
            } else {
                "there is no page to damage".to_owned()
            }
        }
        Harm::Tables => {
            if open_if_whole(state) {
                open(state).flush().expect("the state can be written");
            }
            let tables: Vec<_> = files(state).into_iter().filter(|path| path.extension().is_some_and(|found| found == "sst")).collect();
            for table in &tables {
                flip(table);
            }
            format!("{} tables were flipped", tables.len())
        }
    }
}

fn on_file(state: &Path, number: usize, done: &str, harm: impl FnOnce(&Path)) -> String {
    let files = files(state);
    let Some(file) = files.get(number % files.len().max(1)) else { return "there is no file to harm".to_owned() };
    harm(file);
    format!("{} was {done}", file.display())
}

/// The files of a state directory that a fault can damage, sorted by path. Excludes files of less than 16 bytes and RocksDB's info logs.
fn files(state: &Path) -> Vec<PathBuf> {
    let checkpoints = state.join("checkpoints");
    let mut files = if checkpoints.is_dir() { entries(&checkpoints) } else { Vec::new() };
    files.extend(Some(state.join("instance")).filter(|instance| instance.exists()));
    let holds = |path: &PathBuf| fs::metadata(path).is_ok_and(|found| found.is_file() && found.len() >= 16);
    files.retain(|path| holds(path) && !path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("LOG")));
    files.sort();
    files
}

/// True if RocksDB can open the checkpoints. A killed worker may have left none, and an earlier fault may have damaged them.
fn open_if_whole(state: &Path) -> bool {
    rocksdb::DB::open(&rocksdb::Options::default(), state.join("checkpoints")).is_ok()
}
