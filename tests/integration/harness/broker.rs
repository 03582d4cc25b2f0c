//! The brokers: one that all tests share, and one of its own for a test that kills it.
//!
//! The shared one is, in this order: the one that `UNSEEN_TEST_BROKER` names; the one of
//! docker-compose.yml, where a Docker engine answers; one that scripts/kafka starts.

use super::{PATIENCE, turn};
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::sync::mpsc;
use std::time::Duration;
use tempfile::TempDir;

/// How long scripts/kafka may take: the first time it fetches Kafka.
const START_PATIENCE: Duration = Duration::from_secs(900);

/// Address of the shared broker. Waits until no other test is at work on a broker.
pub fn broker() -> &'static str {
    static BROKER: OnceLock<Shared> = OnceLock::new();
    turn::take();
    match BROKER.get_or_init(Shared::find) {
        Shared::Elsewhere(address) => address,
        Shared::Script(script) => &script.address,
    }
}

enum Shared {
    /// Somebody else's, or docker compose's: it stays when the tests are done.
    Elsewhere(String),
    /// Ours. Never dropped, being static: it ends because this process and so its stdin does.
    Script(Script),
}

impl Shared {
    fn find() -> Self {
        if let Ok(address) = std::env::var("UNSEEN_TEST_BROKER") {
            return Self::Elsewhere(address);
        }
        if succeeds(docker().arg("info")) && succeeds(docker().args(["compose", "version"])) {
            assert!(
                succeeds(docker().args(["compose", "up", "--detach", "--wait", "kafka"])),
                "docker answers, but `docker compose up --wait kafka` failed; run it by hand to see why, \
                 or set UNSEEN_TEST_BROKER=host:port"
            );
            return Self::Elsewhere("127.0.0.1:9092".to_owned());
        }
        Self::Script(Script::start(&[]))
    }
}

fn docker() -> Command {
    let mut command = Command::new("docker");
    command.current_dir(env!("CARGO_MANIFEST_DIR"));
    command
}

fn succeeds(command: &mut Command) -> bool {
    let quiet = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    quiet.status().is_ok_and(|status| status.success())
}

/// A broker that one test has for itself, to kill and restart.
pub struct OwnBroker {
    dir: TempDir,
    address: String,
    script: Option<Script>,
}

impl OwnBroker {
    /// Starts one, with nothing in it.
    pub fn start() -> Self {
        turn::take();
        let dir = TempDir::new_in(env!("CARGO_TARGET_TMPDIR")).expect("a directory for the broker");
        let script = Script::start(&["--dir", path(dir.path())]);
        Self { address: script.address.clone(), dir, script: Some(script) }
    }

    /// Its address, the same after a restart.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// Kills it with SIGKILL. Returns when it is gone.
    pub fn kill(&mut self) {
        let mut script = self.script.take().expect("the broker runs");
        let pid = std::fs::read_to_string(self.dir.path().join("pid")).expect("the broker's process id");
        assert!(succeeds(Command::new("kill").args(["-KILL", pid.trim()])), "the broker cannot be killed");
        script.child.wait().expect("the broker ends");
    }

    /// Starts it again, on the same port with the data that it had.
    pub fn restart(&mut self) {
        assert!(self.script.is_none(), "the broker still runs");
        let script = Script::start(&["--dir", path(self.dir.path())]);
        assert_eq!(script.address, self.address, "the broker came back elsewhere");
        self.script = Some(script);
    }
}

fn path(path: &Path) -> &str {
    path.to_str().expect("a path in UTF-8")
}

/// A running scripts/kafka. It stops when its stdin ends: when this is dropped, or when this process
/// dies, in whatever way.
struct Script {
    child: Child,
    address: String,
}

impl Script {
    fn start(args: &[&str]) -> Self {
        let mut child = Command::new(concat!(env!("CARGO_MANIFEST_DIR"), "/scripts/kafka"))
            .arg("--until-eof")
            .args(args)
            .env("TMPDIR", env!("CARGO_TARGET_TMPDIR"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("scripts/kafka starts");
        let stdout = child.stdout.take().expect("its stdout is a pipe");
        let (sender, lines) = mpsc::channel();
        std::thread::spawn(move || BufReader::new(stdout).lines().map_while(Result::ok).try_for_each(|line| sender.send(line)));
        let Ok(line) = lines.recv_timeout(START_PATIENCE) else {
            panic!("scripts/kafka did not start a broker; it says why above (run it by hand to see it again)");
        };
        let address = line.strip_prefix("ready ").unwrap_or_else(|| panic!("scripts/kafka said `{line}`"));
        Self { address: address.to_owned(), child }
    }
}

impl Drop for Script {
    fn drop(&mut self) {
        drop(self.child.stdin.take());
        let deadline = std::time::Instant::now() + 2 * PATIENCE;
        while matches!(self.child.try_wait(), Ok(None)) && std::time::Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}
