//! A process of the real binary: signals, exit, and log.

use super::wait_until;
use std::ffi::OsStr;
use std::fs::{File, OpenOptions};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

const END_PATIENCE: Duration = Duration::from_secs(30);

/// A process of `unseen run`, `unseen serve`, or `unseen dlq redrive`. Dropping the value kills the process. If the test has failed, the
/// drop also prints the end of the log.
pub struct Worker {
    child: Child,
    /// A shell that kills the worker when the stdin of the shell ends, which also happens if the test process is killed.
    guard: Child,
    log: PathBuf,
    /// Writes the log file of a worker from [`Worker::start_armed`]. This process exits with the worker.
    pump: Option<Child>,
    /// The offset in the log file where the output of this process starts. Earlier processes may have written to the same file.
    log_start: usize,
}

impl Worker {
    /// Starts `unseen run` with a configuration file and overrides such as `topics[0].on_invalid=drop`. Its stderr goes to `log`.
    pub fn start(config: &Path, overrides: &[&str], environment: &[(String, String)], log: &Path) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_unseen"));
        command.envs(environment.iter().cloned()).stderr(append_to(log));
        Self::spawn(command, "run", config, overrides, "", log)
    }

    pub fn serve(config: &Path, overrides: &[&str], environment: &[(String, String)], log: &Path) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_unseen"));
        command.envs(environment.iter().cloned()).stderr(append_to(log));
        Self::spawn(command, "serve", config, overrides, "", log)
    }

    /// Starts `unseen dlq redrive` with armed fault points.
    pub fn redrive(config: &Path, faults: &str, log: &Path) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_unseen"));
        command.arg("dlq").stderr(append_to(log));
        Self::spawn(command, "redrive", config, &[], faults, log)
    }

    /// The same as [`Worker::start`], with armed fault points such as `commit.flushed:3:kill`, separated by commas (see src/fault.rs).
    /// [`Worker::limit_files`] can limit the file sizes of this worker.
    pub fn start_armed(config: &Path, overrides: &[&str], faults: &str, log: &Path) -> Self {
        let mut command = Command::new("sh");
        command.args(["-c", r#"trap '' XFSZ; exec "$0" "$@""#, env!("CARGO_BIN_EXE_unseen")]);
        // Another process writes the log file, because [`Worker::limit_files`] limits all files that the worker itself writes.
        let mut pump = Command::new("cat").stdin(Stdio::piped()).stdout(append_to(log)).spawn().expect("cat starts");
        command.stderr(pump.stdin.take().expect("its stdin is a pipe"));
        let mut worker = Self::spawn(command, "run", config, overrides, faults, log);
        worker.pump = Some(pump);
        worker
    }

    /// The same as [`Worker::start`], but the worker cannot write files of more than `bytes`, as on a full disk.
    /// [`Worker::lift_file_limit`] removes the limit.
    pub fn start_on_full_disk(config: &Path, overrides: &[&str], bytes: u64, log: &Path) -> Self {
        let mut command = Command::new("sh");
        // The worker ignores SIGXFSZ, so a write that exceeds the limit fails with an error, as on a full disk.
        command.args(["-c", r#"trap '' XFSZ; exec prlimit --fsize="$0": "$@""#, &bytes.to_string(), env!("CARGO_BIN_EXE_unseen")]);
        command.stderr(append_to(log));
        Self::spawn(command, "run", config, overrides, "", log)
    }

    fn spawn(mut command: Command, what: &str, config: &Path, overrides: &[&str], faults: &str, log: &Path) -> Self {
        let log_start = std::fs::read(log).expect("the log so far").len();
        command.arg(what).arg("-c").arg(config).stdin(Stdio::null()).stdout(Stdio::null());
        for setting in overrides {
            command.args(["--set", setting]);
        }
        without_settings(&mut command);
        if !faults.is_empty() {
            command.env("UNSEEN_FAULT", faults);
        }
        let child = command.spawn().expect("the binary starts");
        let mut guard = Command::new("sh");
        guard.args(["-c", r#"read -r _; kill -KILL "$1""#, "guard"]).arg(child.id().to_string()).stdin(Stdio::piped());
        Self { child, guard: guard.spawn().expect("a shell starts"), log: log.to_owned(), pump: None, log_start }
    }

    /// Limits the file sizes of the running worker. The worker must be from [`Worker::start_armed`] or [`Worker::start_on_full_disk`]. Any
    /// other worker dies of SIGXFSZ when it exceeds the limit.
    pub fn limit_files(&self, bytes: u64) {
        self.prlimit(&bytes.to_string());
    }

    /// Undoes [`Worker::start_on_full_disk`] and [`Worker::limit_files`].
    pub fn lift_file_limit(&self) {
        self.prlimit("unlimited");
    }

    fn prlimit(&self, limit: &str) {
        let status = Command::new("prlimit").arg(format!("--fsize={limit}:")).arg("--pid").arg(self.child.id().to_string()).status();
        assert!(status.is_ok_and(|status| status.success()), "`prlimit --fsize` failed; is util-linux installed?");
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    pub fn runs(&mut self) -> bool {
        self.ended().is_none()
    }

    /// The exit status. `None` if the process is running. Once there is an exit status, the log is complete.
    pub fn ended(&mut self) -> Option<ExitStatus> {
        let status = self.child.try_wait().expect("its state")?;
        if let Some(mut pump) = self.pump.take() {
            pump.wait().expect("it ends");
        }
        Some(status)
    }

    pub fn kill9(&mut self) {
        self.signal("KILL");
        self.child.wait().expect("it ends");
    }

    pub fn sigterm(&mut self) {
        self.signal("TERM");
    }

    pub fn sigstop(&mut self) {
        self.signal("STOP");
    }

    pub fn sigcont(&mut self) {
        if self.runs() {
            self.signal("CONT");
        }
    }

    /// Sends a signal. The process must not have been reaped, because its process ID could then belong to another process.
    fn signal(&mut self, name: &str) {
        let status = Command::new("kill").arg(format!("-{name}")).arg(self.child.id().to_string()).status();
        assert!(status.is_ok_and(|status| status.success()), "SIG{name} could not be sent");
    }

    pub fn wait(&mut self, timeout: Duration) -> ExitStatus {
        wait_until("the worker ends", timeout, || self.ended())
    }

    /// Stops the process with SIGTERM. Panics unless it exits with code 0. Returns its log.
    pub fn drain(mut self) -> String {
        self.sigterm();
        let status = self.wait(END_PATIENCE);
        assert!(status.success(), "the worker ended with {status}");
        self.log()
    }

    /// Waits until the process exits by itself. Panics if the exit code is not `code`. Returns the log.
    pub fn fails(mut self, code: i32) -> String {
        let status = self.wait(END_PATIENCE);
        assert!(status.code() == Some(code), "the worker ended with {status} instead of code {code}");
        self.log()
    }

    pub fn log(&self) -> String {
        // Must not panic, because `drop` calls this function after a panic.
        let bytes = std::fs::read(&self.log).unwrap_or_default();
        String::from_utf8_lossy(bytes.get(self.log_start..).unwrap_or_default()).into_owned()
    }

    pub fn tail(&self) -> String {
        let log = self.log();
        let lines: Vec<&str> = log.lines().collect();
        format!("{} ends:\n{}", self.log.display(), lines[lines.len().saturating_sub(40)..].join("\n"))
    }

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
        // The guard must die first. Otherwise, when its stdin is closed, it would send SIGKILL to the worker's process ID, which can belong
        // to another process after the worker is reaped.
        for child in [&mut self.guard, &mut self.child] {
            // Fails only if the child has already exited.
            let _ = child.kill();
            let _ = child.wait();
        }
        if std::thread::panicking() {
            eprintln!("{}", self.tail());
        }
    }
}

/// The last value that the log shows for a field such as `aborts`.
pub fn logged(log: &str, name: &str) -> u64 {
    let (_, after) = log.rsplit_once(&format!(" {name}=")).unwrap_or_else(|| panic!("the log has no field `{name}`"));
    let digits = after.find(|character: char| !character.is_ascii_digit()).unwrap_or(after.len());
    after[..digits].parse().expect("a number")
}

/// Runs `unseen` to its end. Returns its exit code, stdout, and stderr.
pub fn unseen<A: AsRef<OsStr>>(args: impl IntoIterator<Item = A>) -> (Option<i32>, String, String) {
    unseen_with(args, &[])
}

/// The same as [`unseen`], with environment variables.
pub fn unseen_with<A: AsRef<OsStr>>(args: impl IntoIterator<Item = A>, environment: &[(String, String)]) -> (Option<i32>, String, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_unseen"));
    command.args(args).stdin(Stdio::null());
    without_settings(&mut command);
    let output = command.envs(environment.iter().cloned()).output().expect("the binary starts");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (output.status.code(), text(&output.stdout), text(&output.stderr))
}

fn append_to(log: &Path) -> File {
    OpenOptions::new().create(true).append(true).open(log).expect("a log file")
}

/// Removes the `UNSEEN_` variables of the test process, because they would override settings.
fn without_settings(command: &mut Command) {
    for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("UNSEEN_")) {
        command.env_remove(name);
    }
}
