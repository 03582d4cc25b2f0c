//! The processes of the members.
//!
//! If a worker exits by itself for an acceptable reason (see `Stage::why`), the test restarts the worker. If a worker exits for any other
//! reason, the plan fails.

use super::super::plan::Conditions;
use super::Stage;
use crate::harness::Worker;
use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::ExitStatus;
use std::time::{Duration, Instant};

/// Errors that may stop a worker after another process has used its name.
const FENCED: [&str; 3] = [
    "another process that uses transactional id",
    "another process uses transactional id",
    "another process joined the group with the same kafka.instance_id",
];

pub struct Member {
    pub name: &'static str,
    pub worker: Option<Worker>,
    pub lives: usize,
    pub armed: String,
    /// The duration of the stop at an armed fault point.
    pub standstill: Duration,
    /// The end of the stop. `None` if the process is not stopped at a fault point.
    pub(super) resume: Option<Instant>,
}

impl Member {
    pub fn alive(&mut self) -> Option<&mut Worker> {
        let worker = self.worker.as_mut()?;
        if worker.runs() { Some(worker) } else { None }
    }
}

impl Stage<'_> {
    pub fn running(&self) -> Vec<usize> {
        (0..self.members.len()).filter(|&at| self.members[at].worker.is_some()).collect()
    }

    pub fn start(&mut self, at: usize, armed: &str) {
        let name = self.members[at].name;
        let worker = self.spawn(name, name, armed);
        let member = &mut self.members[at];
        member.worker = Some(worker);
        armed.clone_into(&mut member.armed);
        member.lives += 1;
        member.resume = None;
        let armed = if armed.is_empty() { String::new() } else { format!(", armed with {armed}") };
        self.story.tell(format_args!("{name} starts, life {}{armed}", self.members[at].lives));
    }

    /// Starts a worker with the files of `name`. If the plan sets `kafka.instance_id`, the ID of the worker ends with `known_as`.
    pub fn spawn(&self, name: &str, known_as: &str, armed: &str) -> Worker {
        let Conditions { options, commit_ms, checkpoint_ms, transaction_ms, .. } = self.conditions;
        let mut overrides = options.overrides();
        overrides.extend([
            "log.level=info,unseen=debug".to_owned(),
            format!("worker.commit_interval={commit_ms}ms"),
            format!("worker.checkpoint_interval={checkpoint_ms}ms"),
            format!("worker.transaction_timeout={transaction_ms}ms"),
        ]);
        if options.has("instance_id") {
            overrides.push(format!("kafka.instance_id={}-{known_as}", self.stream.setup.group()));
        }
        let overrides: Vec<_> = overrides.iter().map(String::as_str).collect();
        let config = self.write_config(name);
        let dir = self.stream.setup.dir().join(name);
        let life = fs::read_dir(&dir)
            .map_or(0, |entries| entries.flatten().filter(|entry| entry.file_name().to_string_lossy().starts_with("log-")).count());
        Worker::start_armed(&config, &overrides, armed, &dir.join(format!("log-{life}")))
    }

    /// Writes the configuration with all changes of the plan so far.
    pub fn write_config(&self, name: &str) -> PathBuf {
        let config = self.stream.setup.write_config(name);
        let options = &self.conditions.options;
        let first = options.memory(self.conditions.capacity);
        let mut text = self.stream.setup.config(name).replace(&first.lines(), &self.memory.lines());
        if let (Some(first), Some(now)) = (options.rule(&first, ""), options.rule(&self.memory, "")) {
            text = text.replace(&first, &now);
        }
        fs::write(&config, text).expect("the configuration can be written");
        config
    }

    pub fn kill(&mut self, at: usize) {
        let Some(mut worker) = self.members[at].worker.take() else { return };
        self.story.tell(format_args!("{} is killed", self.members[at].name));
        if worker.runs() {
            worker.kill9();
            self.story.count("kill -9");
        }
    }

    pub fn terminate(&mut self, at: usize) {
        let Some(worker) = self.members[at].worker.take() else { return };
        let name = self.members[at].name;
        self.end(worker, name);
    }

    pub fn end(&mut self, mut worker: Worker, name: &str) {
        self.story.tell(format_args!("{name} gets SIGTERM"));
        if worker.runs() {
            worker.sigterm();
        }
        self.wait("a worker exits after SIGTERM", |_| {
            // A worker that is stopped at a fault point cannot handle SIGTERM.
            if worker.runs() {
                worker.sigcont();
            }
            worker.ended().is_some()
        });
        let status = worker.ended().expect("it has ended");
        let why = self.why(status, &worker.log());
        self.story.tell(format_args!("{name} exited: {}", why.unwrap_or_else(|| panic!("{name} exited with {status} after SIGTERM"))));
    }

    /// The reason for an exit. `None` if the exit is not acceptable.
    fn why(&mut self, status: ExitStatus, log: &str) -> Option<&'static str> {
        if log.contains("fault point reached") && matches!(status.signal(), Some(6 | 9)) {
            self.story.count("kill at a point");
            return Some("killed at a fault point");
        }
        if self.twinned && FENCED.iter().any(|sentence| log.contains(sentence)) {
            return Some("fenced by another process of its name");
        }
        if self.broker_failed && log.contains("the workers did not stop within worker.shutdown_timeout") {
            return Some("could not drain");
        }
        match (status.success(), status.signal()) {
            (true, _) if log.contains("shutting down") => Some("drained"),
            // The worker received SIGTERM before it had installed its handler.
            (_, Some(15)) => Some("terminated"),
            _ => None,
        }
    }

    /// Restarts members that have exited. Sends SIGCONT to members whose stop at a fault point is over.
    pub(super) fn tend(&mut self) {
        for at in 0..self.members.len() {
            let member = &mut self.members[at];
            let Some(worker) = &mut member.worker else { continue };
            let name = member.name;
            if let Some(status) = worker.ended() {
                let log = worker.log();
                let why = self.why(status, &log).unwrap_or_else(|| panic!("{name} ended by itself with {status}"));
                self.story.tell(format_args!("{name} exited: {why}"));
                self.start(at, "");
            } else if let Some(resume) = member.resume {
                if Instant::now() >= resume {
                    member.resume = None;
                    member.armed.clear();
                    worker.sigcont();
                    self.story.tell(format_args!("{name} continues"));
                }
            } else if member.armed.ends_with(":stop") && worker.log().contains("action=Stop") {
                member.resume = Some(Instant::now() + member.standstill);
                self.story.tell(format_args!("{name} stops at its fault point"));
                self.story.count("stop at a point");
            }
        }
    }
}
