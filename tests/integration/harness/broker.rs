//! The brokers: one that all tests share, one for those of secured connections, and one of its own for a
//! test that kills it.
//!
//! The shared one is, in this order: the one that `UNSEEN_TEST_BROKER` names; the one of
//! docker-compose.yml, where a Docker engine answers and `UNSEEN_KAFKA_VERSION` asks for no version; one that
//! scripts/kafka starts.

use super::segments::transactions_without_end;
use super::{PATIENCE, Way, turn};
use std::io::{BufRead, BufReader};
use std::path::PathBuf;
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
        let any_version = std::env::var_os("UNSEEN_KAFKA_VERSION").is_none();
        if any_version && succeeds(docker().arg("info")) && succeeds(docker().args(["compose", "version"])) {
            assert!(
                succeeds(docker().args(["compose", "up", "--detach", "--wait", "kafka"])),
                "docker answers, but `docker compose up --wait kafka` failed; run it by hand to see why, \
                 or set UNSEEN_TEST_BROKER=host:port"
            );
            let port = std::env::var("UNSEEN_KAFKA_PORT").unwrap_or_else(|_| "9092".to_owned());
            return Self::Elsewhere(format!("127.0.0.1:{port}"));
        }
        Self::Script(Script::start(&[]).0)
    }
}

/// A broker that also listens for SSL and SASL; see `--secure` of scripts/kafka. Waits for its turn, as [`broker`] does.
pub fn secure_broker() -> &'static SecureBroker {
    static BROKER: OnceLock<SecureBroker> = OnceLock::new();
    turn::take();
    BROKER.get_or_init(|| SecureBroker(Script::start(&["--secure"]).0))
}

/// A broker with listeners for SSL and SASL. Ends with this process, being static.
pub struct SecureBroker(Script);

impl SecureBroker {
    /// Address of its plain listener, where everything is allowed.
    pub fn address(&self) -> &str {
        &self.0.address
    }

    /// A file that clients need.
    pub fn file(&self, name: &str) -> PathBuf {
        self.0.clients.as_ref().expect("a broker that was started with --secure").join(name)
    }

    /// What that file holds.
    pub fn read(&self, name: &str) -> String {
        std::fs::read_to_string(self.file(name)).expect("a file that scripts/kafka makes").trim_end().to_owned()
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

/// A broker that one test has for itself, to kill. It comes back by itself, on the same port with the
/// data that it had.
pub struct OwnBroker {
    dir: TempDir,
    script: Script,
    lines: Lines,
    way: Way,
}

impl OwnBroker {
    /// Starts one, with nothing in it.
    pub fn start() -> Self {
        turn::take();
        let dir = TempDir::new_in(env!("CARGO_TARGET_TMPDIR")).expect("a directory for the broker");
        let way = Way::new();
        let path = dir.path().to_str().expect("a path in UTF-8");
        let (script, lines) = Script::start(&["--respawn", "--dir", path, "--behind", &way.port().to_string()]);
        way.lead_to(script.behind.as_ref().expect("a broker that was started with --behind"));
        Self { dir, script, lines, way }
    }

    /// Another way to it, for who is to be cut off.
    pub const fn way(&self) -> &Way {
        &self.way
    }

    /// Its address, the same after a restart.
    pub fn address(&self) -> &str {
        &self.script.address
    }

    /// Kills it with SIGKILL.
    pub fn kill(&mut self) {
        self.signal("-KILL");
    }

    /// Stops it with SIGSTOP: its connections stay, and nothing is answered.
    pub fn pause(&mut self) {
        self.signal("-STOP");
    }

    /// Lets it go on after a pause.
    pub fn resume(&mut self) {
        self.signal("-CONT");
    }

    fn signal(&self, signal: &str) {
        let pid = std::fs::read_to_string(self.dir.path().join("pid")).expect("the broker's process id");
        assert!(succeeds(Command::new("kill").args([signal, pid.trim()])), "the broker cannot be sent {signal}");
    }

    /// The first segment of a partition, as it lies on the broker's disk.
    pub fn segment(&self, topic: &str, partition: i32) -> PathBuf {
        self.dir.path().join("broker").join(format!("{topic}-{partition}")).join("00000000000000000000.log")
    }

    /// Transactions that it has lost the end of, in topics whose names begin like this.
    pub fn transactions_without_end(&self, prefix: &str) -> Vec<String> {
        transactions_without_end(&self.dir.path().join("broker"), prefix)
    }

    /// Waits until it serves again.
    pub fn wait_until_back(&mut self) {
        assert_eq!(said(&self.lines, "ready"), self.script.address, "the broker came back elsewhere");
    }
}

/// What scripts/kafka prints.
type Lines = mpsc::Receiver<String>;

/// A running scripts/kafka. It stops when its stdin ends: when this is dropped, or when this process
/// dies, in whatever way.
struct Script {
    child: Child,
    address: String,
    /// Where clients of a secure broker find what they need.
    clients: Option<PathBuf>,
    /// Where it listens for those who come by another port.
    behind: Option<String>,
}

impl Script {
    fn start(args: &[&str]) -> (Self, Lines) {
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
        let clients = args.contains(&"--secure").then(|| said(&lines, "clients").into());
        let behind = args.contains(&"--behind").then(|| said(&lines, "behind"));
        let address = said(&lines, "ready");
        (Self { child, address, clients, behind }, lines)
    }
}

/// Waits for the next line of scripts/kafka, which begins with `word`, and returns what follows: where
/// its broker serves, once it does.
fn said(lines: &Lines, word: &str) -> String {
    let Ok(line) = lines.recv_timeout(START_PATIENCE) else {
        panic!("scripts/kafka did not start a broker; it says why above (run it by hand to see it again)");
    };
    let rest = line.strip_prefix(word).and_then(|rest| rest.strip_prefix(' '));
    rest.unwrap_or_else(|| panic!("scripts/kafka said `{line}`")).to_owned()
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
