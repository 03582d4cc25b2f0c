//! The real binary as a process: started, signalled, waited for, its log read.

use super::wait_until;
use std::fs::OpenOptions;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

/// A running `unseen run`. Dropped, it is killed; if the test has failed, the end of its log is shown.
pub struct Worker {
    child: Child,
    log: PathBuf,
    /// Where this process begins in the log, which those before it under its name have written too.
    log_start: usize,
}

impl Worker {
    /// Starts `unseen run` with a configuration file, its stderr going to `log`.
    pub fn start(config: &Path, log: &Path) -> Self {
        let file = OpenOptions::new().create(true).append(true).open(log).expect("a log file");
        let log_start = std::fs::read(log).expect("the log so far").len();
        let mut command = Command::new(env!("CARGO_BIN_EXE_unseen"));
        command.arg("run").arg("-c").arg(config).stdin(Stdio::null()).stdout(Stdio::null()).stderr(file);
        for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("UNSEEN_")) {
            command.env_remove(name);
        }
        Self { child: command.spawn().expect("the binary starts"), log: log.to_owned(), log_start }
    }

    /// Whether it has not ended.
    pub fn runs(&mut self) -> bool {
        self.child.try_wait().expect("its state").is_none()
    }

    /// Kills it with SIGKILL. Returns when it is gone.
    pub fn kill9(&mut self) {
        self.signal("KILL");
        self.child.wait().expect("it ends");
    }

    /// Asks it to drain and end.
    pub fn sigterm(&mut self) {
        self.signal("TERM");
    }

    /// Stops it in its tracks.
    pub fn sigstop(&mut self) {
        self.signal("STOP");
    }

    /// Lets it go on.
    pub fn sigcont(&mut self) {
        self.signal("CONT");
    }

    fn signal(&mut self, name: &str) {
        // Not waited for yet, its process id can be nobody else's.
        assert!(self.runs(), "the worker has already ended");
        let status = Command::new("kill").arg(format!("-{name}")).arg(self.child.id().to_string()).status();
        assert!(status.is_ok_and(|status| status.success()), "SIG{name} could not be sent");
    }

    /// Waits until it ends.
    pub fn wait(&mut self, timeout: Duration) -> ExitStatus {
        wait_until("the worker ends", timeout, || self.child.try_wait().expect("its state"))
    }

    /// What it has logged so far.
    pub fn log(&self) -> String {
        // No panic here: it is read when a test fails, too.
        let bytes = std::fs::read(&self.log).unwrap_or_default();
        String::from_utf8_lossy(bytes.get(self.log_start..).unwrap_or_default()).into_owned()
    }

    /// The end of its log, for a failure's message.
    pub fn tail(&self) -> String {
        let log = self.log();
        let lines: Vec<&str> = log.lines().collect();
        format!("{} ends:\n{}", self.log.display(), lines[lines.len().saturating_sub(40)..].join("\n"))
    }

    /// Waits until its log holds `text`.
    pub fn wait_for_log(&mut self, text: &str, timeout: Duration) {
        wait_until(&format!("the worker logs `{text}`"), timeout, || {
            let running = self.runs();
            let found = self.log().contains(text);
            assert!(found || running, "the worker ended without logging `{text}`");
            found.then_some(())
        });
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        // Both fail only if it has already ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            eprintln!("{}", self.tail());
        }
    }
}
