//! One run of a contender over a topic, from its start to the count of what came out.

use crate::broker::{Broker, Topic};
use crate::contender::{Contender, Job};
use crate::count::Count;
use crate::process::{self, Process};
use crate::watch::{Pace, Progress, Samples, watch};
use serde::Serialize;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tempfile::TempDir;

/// Of the output, in per cent. The last of it is left out: partitions end one after the other, and marks of transactions
/// are counted.
const END: u64 = 99;

/// What a run took.
#[derive(Clone, Copy, Serialize)]
pub struct Cost {
    /// From the first quarter of what came out.
    pub settled: Pace,
    /// From the first that came out.
    pub whole: Pace,
    /// Most memory, in bytes.
    pub memory: u64,
    /// Bytes of state on disk, after it has stopped.
    pub state: u64,
    /// Bytes that it has written to disk, stopping included.
    pub written: u64,
    /// Records that came out.
    pub outputs: usize,
}

/// A contender at work.
pub struct Run<'a> {
    broker: &'a Broker,
    contender: &'a Contender,
    pub job: Job<'a>,
    pub process: Process,
    read: Option<Arc<AtomicU64>>,
    _dir: TempDir,
}

/// A whole run.
pub fn run(broker: &Broker, topic: &Topic, contender: &Contender) -> Cost {
    let mut run = Run::start(broker, topic, contender);
    let samples = run.watch();
    run.finish(&samples)
}

impl<'a> Run<'a> {
    /// Starts it, with an empty state, a new group and a new output.
    pub fn start(broker: &'a Broker, topic: &'a Topic, contender: &'a Contender) -> Self {
        let dir = TempDir::new().expect("a directory");
        let job = Job { broker: &broker.address, topic, name: broker.new_name("run"), dir: dir.path().to_owned() };
        broker.create(&job.output(), topic.stream.partitions);
        let (process, read) = contender.start(&job);
        Self { broker, contender, job, process, read, _dir: dir }
    }

    /// Watches it until all is done.
    pub fn watch(&mut self) -> Samples {
        let (output, stream) = (self.job.output(), self.job.topic.stream);
        let least = *self.contender.outputs(&stream).start() as u64;
        watch(&mut self.process, || {
            if let Some(read) = &self.read {
                let count = read.load(Ordering::Relaxed);
                return Progress { count, complete: count >= stream.records as u64 };
            }
            let (count, committed) = self.broker.ends(&output, stream.partitions);
            Progress { count, complete: count >= least && committed == count }
        })
    }

    /// Stops it, does something, and starts it again where it was.
    pub fn restart(&mut self, meanwhile: impl FnOnce()) {
        self.process.stop();
        meanwhile();
        (self.process, self.read) = self.contender.start(&self.job);
    }

    /// Stops it; what came out is not counted.
    pub fn abandon(mut self) {
        self.process.stop();
        self.broker.delete(&self.job.name);
    }

    /// Stops it, and counts what came out.
    ///
    /// # Panics
    /// If that is not what had to come out.
    pub fn finish(mut self, samples: &Samples) -> Cost {
        let memory = self.process.memory_peak();
        let (written, outputs) = self.count();
        let all = samples.all();
        let each = self.job.topic.stream.records as f64 / all as f64;
        Cost {
            settled: samples.between(all / 4, all * END / 100, each),
            whole: samples.between(0, all * END / 100, each),
            memory,
            state: process::disk(&self.job.state()),
            written,
            outputs,
        }
    }

    /// Stops it, and counts what came out, as `finish` does. Says how many bytes it has written to disk, too.
    pub fn count(&mut self) -> (u64, usize) {
        let stream = self.job.topic.stream;
        // A peer's answer to being asked is not what is measured: Flink's is now and then none.
        let written = if self.contender.is_peer() { self.process.stop_or_kill() } else { self.process.stop() };
        let outputs = if self.read.is_some() {
            0
        } else {
            let Count { records, ids } = Count::of(self.broker, &self.job.output(), &stream, stream.distinct());
            let allowed = self.contender.outputs(&stream);
            assert!(allowed.contains(&records), "{records} records came out, and not {allowed:?}: this run is worth nothing");
            let passes_on = matches!(self.contender, Contender::PassOn { .. });
            assert!(passes_on || ids == records, "{} records came out twice: this run is worth nothing", records - ids);
            records
        };
        self.broker.delete(&self.job.name);
        (written, outputs)
    }
}
