//! A process that is measured from outside. It never outlives this program.

#![allow(unsafe_code)]

use rustix::process::{Pid, Signal, WaitId, WaitIdOptions};
use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

const PATIENCE: Duration = Duration::from_secs(60);

pub struct Process {
    child: Child,
    log: PathBuf,
    pub started: Instant,
}

impl Process {
    pub fn start(command: &mut Command, log: &Path) -> Self {
        let file = || File::options().create(true).append(true).open(log).expect("a log");
        Self::spawn(command.stdout(file()).stderr(file()), log)
    }

    /// Starts the process. Also returns the last number that the process has printed to stdout, which a thread keeps up to date.
    pub fn start_counting(command: &mut Command, log: &Path) -> (Self, Arc<AtomicU64>) {
        let mut process = Self::spawn(command.stdout(Stdio::piped()).stderr(File::create(log).expect("a log")), log);
        let stdout = BufReader::new(process.child.stdout.take().expect("a pipe"));
        let last = Arc::new(AtomicU64::new(0));
        let told = Arc::clone(&last);
        std::thread::spawn(move || {
            for number in stdout.lines().map_while(Result::ok).filter_map(|line| line.parse().ok()) {
                told.store(number, Ordering::Relaxed);
            }
        });
        (process, last)
    }

    fn spawn(command: &mut Command, log: &Path) -> Self {
        // SAFETY: between fork and exec, the closure only makes a system call.
        unsafe { command.pre_exec(|| Ok(rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?)) };
        let started = Instant::now();
        let child = command.stdin(Stdio::null()).spawn().unwrap_or_else(|error| panic!("{command:?} does not start: {error}"));
        Self { child, log: log.to_owned(), started }
    }

    pub fn worked(&self) -> Duration {
        worked(&self.proc("stat"))
    }

    /// Peak resident memory so far, in bytes.
    pub fn memory_peak(&self) -> u64 {
        self.number("status", "VmHWM:") * 1024
    }

    pub fn said(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// Panics if the process has exited.
    pub fn must_live(&mut self) {
        if let Ok(Some(status)) = self.child.try_wait() {
            panic!("the process exited ({status}):\n{}", self.last_words());
        }
    }

    pub fn last_words(&self) -> String {
        let said = self.said();
        let lines: Vec<_> = said.lines().collect();
        lines[lines.len().saturating_sub(30)..].join("\n")
    }

    /// Asks the process to stop and waits until it has exited. Returns the number of bytes that it has written to disk.
    pub fn stop(&mut self) -> u64 {
        assert!(self.ends_by(Signal::TERM), "the process does not stop:\n{}", self.last_words());
        self.take_away()
    }

    /// Asks the process to stop and kills it if it does not stop in time. Returns the number of bytes that it has written to disk.
    pub fn stop_or_kill(&mut self) -> u64 {
        if !self.ends_by(Signal::TERM) {
            eprintln!("the process does not stop within {PATIENCE:?}; killing it");
            assert!(self.ends_by(Signal::KILL), "the process survives SIGKILL");
        }
        self.take_away()
    }

    /// Sends a signal and returns true if the process exits in time. The process is not reaped yet, so its counters can still be read.
    fn ends_by(&self, signal: Signal) -> bool {
        let pid = Pid::from_child(&self.child);
        rustix::process::kill_process(pid, signal).expect("a process of ours");
        let asked = Instant::now();
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT | WaitIdOptions::NOHANG;
        while rustix::process::waitid(WaitId::Pid(pid), options).expect("a child process").is_none() {
            if asked.elapsed() > PATIENCE {
                return false;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        true
    }

    fn take_away(&mut self) -> u64 {
        let written = self.number("io", "write_bytes:");
        self.child.wait().expect("the process has exited");
        written
    }

    fn number(&self, file: &str, name: &str) -> u64 {
        let text = self.proc(file);
        let found = text.lines().find_map(|line| line.strip_prefix(name)?.split_whitespace().next()?.parse().ok());
        found.unwrap_or_else(|| panic!("/proc has no {name}:\n{}", self.last_words()))
    }

    fn proc(&self, file: &str) -> String {
        fs::read_to_string(format!("/proc/{}/{file}", self.child.id())).unwrap_or_else(|error| panic!("{error}:\n{}", self.last_words()))
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// CPU time of a process, from its `/proc/PID/stat`.
pub fn worked(stat: &str) -> Duration {
    // The process name is in parentheses and may contain anything, so the fields start after the last parenthesis.
    let fields: Vec<_> = stat.rsplit(')').next().unwrap_or("").split_whitespace().collect();
    let ticks: u64 = [11, 12].iter().map(|&field| fields[field].parse::<u64>().expect("a count")).sum();
    Duration::from_millis(ticks * 1000 / rustix::param::clock_ticks_per_second())
}

/// Returns the disk space of the files in a directory and its subdirectories, in bytes.
pub fn disk(dir: &Path) -> u64 {
    use std::os::unix::fs::MetadataExt;
    let Ok(entries) = fs::read_dir(dir) else { return 0 };
    let size = |entry: fs::DirEntry| {
        let Ok(data) = entry.metadata() else { return 0 };
        if data.is_dir() { disk(&entry.path()) } else { data.blocks() * 512 }
    };
    entries.flatten().map(size).sum()
}
