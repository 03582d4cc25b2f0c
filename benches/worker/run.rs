//! One run of a contender over a topic, from its start to the count of its output.

use crate::broker::{Broker, Topic};
use crate::contender::{Contender, Job};
use crate::count::Count;
use crate::process::{self, Process};
use crate::watch::{Pace, Progress, Samples, watch};
use serde::Serialize;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tempfile::TempDir;

/// End of the measured part of the output, in percent. The last percent is excluded, because partitions end one after the other, and
/// because the number of outputs includes transaction markers.
const END: u64 = 99;

#[derive(Clone, Copy, Serialize)]
pub struct Cost {
    /// Averages from the end of the first quarter of the output up to `END`.
    pub settled: Pace,
    /// Averages from the first output record up to `END`.
    pub whole: Pace,
    /// Peak resident memory, in bytes.
    pub memory: u64,
    /// Size of the state on disk, in bytes, after the contender has stopped.
    pub state: u64,
    /// Bytes written to disk, including while stopping.
    pub written: u64,
    pub outputs: usize,
    /// Size of the output topic's log in bytes, or 0 if the benchmark did not start the broker.
    pub output_bytes: u64,
}

pub struct Run<'a> {
    broker: &'a Broker,
    contender: &'a Contender,
    pub job: Job<'a>,
    pub process: Process,
    read: Option<Arc<AtomicU64>>,
    _dir: TempDir,
}

pub fn run(broker: &Broker, topic: &Topic, contender: &Contender) -> Cost {
    let mut run = Run::start(broker, topic, contender);
    let samples = run.watch();
    run.finish(&samples)
}

impl<'a> Run<'a> {
    /// Starts a contender with an empty state, a new group, and a new output topic.
    pub fn start(broker: &'a Broker, topic: &'a Topic, contender: &'a Contender) -> Self {
        let dir = TempDir::new().expect("a directory");
        let job = Job { broker: &broker.address, topic, name: broker.new_name("run"), dir: dir.path().to_owned() };
        broker.create(&job.output(), topic.stream.partitions);
        if contender.writes_duplicates() {
            broker.create(&job.duplicates(), topic.stream.partitions);
        }
        let (process, read) = contender.start(&job);
        Self { broker, contender, job, process, read, _dir: dir }
    }

    /// Watches the contender until all records are processed.
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

    pub fn restart(&mut self, meanwhile: impl FnOnce()) {
        self.process.stop();
        meanwhile();
        (self.process, self.read) = self.contender.start(&self.job);
    }

    /// Stops the contender and deletes its topics without counting its output.
    pub fn abandon(mut self) {
        self.process.stop();
        self.broker.delete(&self.job.name);
    }

    /// Stops the contender and counts its output.
    ///
    /// # Panics
    /// Panics if the output does not have the expected number of records.
    pub fn finish(mut self, samples: &Samples) -> Cost {
        let memory = self.process.memory_peak();
        let output_bytes = self.broker.log_bytes(&self.job.output());
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
            output_bytes,
        }
    }

    /// Stops the contender and counts its output like `finish`. Returns the number of bytes written to disk and the number of output
    /// records.
    pub fn count(&mut self) -> (u64, usize) {
        let stream = self.job.topic.stream;
        // Flink sometimes ignores the request to stop, so a peer is killed if it does not stop in time. The time to stop is not measured.
        let written = if self.contender.is_peer() { self.process.stop_or_kill() } else { self.process.stop() };
        let outputs = if self.read.is_some() {
            0
        } else {
            let Count { records, ids } = Count::of(self.broker, &self.job.output(), &stream, stream.distinct());
            let allowed = self.contender.outputs(&stream);
            assert!(allowed.contains(&records), "{records} records were emitted instead of {allowed:?}: this run is invalid");
            let passes_on = matches!(self.contender, Contender::PassOn { .. });
            assert!(passes_on || ids == records, "{} records were emitted twice: this run is invalid", records - ids);
            records
        };
        self.broker.delete(&self.job.name);
        (written, outputs)
    }
}
