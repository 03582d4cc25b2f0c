//! Brokers: a shared one ([`broker`]), a shared one that also has SSL and SASL listeners ([`secure_broker`]), and brokers of a single test,
//! which the test may kill ([`OwnBroker`]).
//!
//! [`broker`] uses the broker whose address is in `UNSEEN_TEST_BROKER`. If this variable is not set, [`broker`] uses the broker of
//! docker-compose.yml, provided that a Docker engine with Compose is running and `UNSEEN_KAFKA_VERSION` is not set. Otherwise,
//! scripts/kafka starts the broker.

use super::segments::transactions_without_end;
use super::topic::client;
use super::{PATIENCE, Way, turn, wait_until};
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::metadata::{Metadata, MetadataPartition, MetadataTopic};
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::sync::mpsc;
use std::thread::{JoinHandle, sleep};
use std::time::Duration;
use tempfile::TempDir;

/// The maximum wait for a line from scripts/kafka, which downloads Kafka when it runs for the first time.
const START_PATIENCE: Duration = Duration::from_secs(900);

/// Waits for this test's turn (see `turn`) and returns the address of the shared broker.
pub fn broker() -> &'static str {
    static BROKER: OnceLock<Shared> = OnceLock::new();
    turn::take();
    match BROKER.get_or_init(Shared::find) {
        Shared::Elsewhere(address) => address,
        Shared::Script(script) => &script.address,
    }
}

enum Shared {
    /// A broker that keeps running after the tests.
    Elsewhere(String),
    /// A broker that this process starts. The value is never dropped, but the script stops when its stdin ends, which happens when this
    /// process exits.
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
        Self::Script(Script::start(&[]))
    }
}

/// Waits for this test's turn and returns the broker that also has SSL and SASL listeners (see `--secure` in scripts/kafka).
pub fn secure_broker() -> &'static SecureBroker {
    static BROKER: OnceLock<SecureBroker> = OnceLock::new();
    turn::take();
    BROKER.get_or_init(|| SecureBroker(Script::start(&["--secure"])))
}

pub struct SecureBroker(Script);

impl SecureBroker {
    /// The address of the `PLAINTEXT` listener, whose clients have all permissions.
    pub fn address(&self) -> &str {
        &self.0.address
    }

    pub fn file(&self, name: &str) -> PathBuf {
        self.0.clients.as_ref().expect("a broker that was started with --secure").join(name)
    }

    /// The path of the first segment of a partition on the broker's disk.
    pub fn segment(&self, topic: &str, partition: i32) -> PathBuf {
        self.file("../broker").join(format!("{topic}-{partition}")).join("00000000000000000000.log")
    }

    pub fn read(&self, name: &str) -> String {
        fs::read_to_string(self.file(name)).expect("a file that scripts/kafka makes").trim_end().to_owned()
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

/// The brokers of a single test, which may kill them. scripts/kafka restarts a broker that was killed, on the same port and with its data.
/// If [`OwnBroker::take_down`] killed the broker, the restart waits for [`OwnBroker::repair`]. The parameter `at` of the methods is the
/// index of a broker, from 0.
pub struct OwnBroker {
    fault: Option<(usize, BrokerFault)>,
    script: Script,
    lines: Lines,
    addresses: Vec<String>,
    ways: Vec<Way>,
    /// The addresses that the proxies forward to.
    behind: Vec<String>,
    ready: Vec<bool>,
    // This field is last, because Rust drops fields in order, and the brokers must stop before the directory is deleted.
    dir: TempDir,
}

/// A fault of one broker that lasts until [`OwnBroker::repair`].
pub enum BrokerFault {
    Down,
    Paused,
    /// The thread pauses the broker for 180 of every 200 ms, until the sender is dropped.
    Slow(mpsc::Sender<()>, JoinHandle<()>),
}

impl OwnBroker {
    pub fn start() -> Self {
        Self::start_brokers(1, &[])
    }

    /// Starts an empty broker for up to 10,000 partitions. With the heap of the other test brokers, this broker would spend all its time on
    /// garbage collection, so its heap is larger.
    pub fn start_large() -> Self {
        let flags = std::env::var("UNSEEN_KAFKA_JVM").unwrap_or_else(|_| "-Xmx2g -XX:+UseSerialGC -XX:TieredStopAtLevel=1".to_owned());
        Self::start_brokers(1, &[("UNSEEN_KAFKA_JVM", &flags)])
    }

    /// Starts an empty cluster of three brokers. By default, topics get a replication factor of 3 and `min.insync.replicas = 2`.
    pub fn start_cluster() -> Self {
        Self::start_brokers(3, &[])
    }

    fn start_brokers(count: usize, environment: &[(&str, &str)]) -> Self {
        turn::take();
        let dir = TempDir::new_in(env!("CARGO_TARGET_TMPDIR")).expect("a directory for the brokers");
        let ways: Vec<_> = (0..count).map(|_| Way::new()).collect();
        let path = dir.path().to_str().expect("a path in UTF-8");
        let ports: Vec<_> = ways.iter().map(|way| way.port().to_string()).collect();
        let args = ["--brokers", &count.to_string(), "--dir", path, "--behind", &ports.join(",")];
        let (child, lines) = Script::spawn(&args, environment);
        let behind = said(&lines, "behind");
        let behind: Vec<_> = behind.split(',').map(str::to_owned).collect();
        for (way, target) in ways.iter().zip(&behind) {
            way.lead_to(target);
        }
        let mut addresses = vec![String::new(); count];
        for _ in 0..count {
            let (at, address) = numbered(&said(&lines, "ready"));
            addresses[at] = address;
        }
        let script = Script { child, address: addresses.join(","), clients: None };
        Self { dir, fault: None, script, lines, addresses, ways, behind, ready: vec![true; count] }
    }

    pub const fn count(&self) -> usize {
        self.addresses.len()
    }

    pub fn way(&self) -> &Way {
        &self.ways[0]
    }

    /// The address that the first broker's proxy forwards to.
    pub fn behind(&self) -> &str {
        &self.behind[0]
    }

    pub fn ways(&self) -> &[Way] {
        &self.ways
    }

    /// The bootstrap servers for clients that connect through the proxies.
    pub fn servers_by_way(&self) -> String {
        self.ways.iter().map(Way::address).collect::<Vec<_>>().join(",")
    }

    /// The bootstrap servers. They stay the same after a restart.
    pub fn address(&self) -> &str {
        &self.script.address
    }

    /// Kills the only broker with SIGKILL.
    pub fn kill(&mut self) {
        self.ready[0] = false;
        signal(self.dir.path(), 0, "-KILL");
    }

    /// Stops the only broker with SIGSTOP. Its connections stay open, but it does not respond.
    pub fn pause(&mut self) {
        signal(self.dir.path(), 0, "-STOP");
    }

    pub fn resume(&mut self) {
        signal(self.dir.path(), 0, "-CONT");
    }

    pub fn wait_until_back(&mut self) {
        assert_eq!(numbered(&said(&self.lines, "ready")), (0, self.script.address.clone()), "the restarted broker has another address");
        self.ready[0] = true;
    }

    /// Kills one broker with SIGKILL and keeps it down until [`OwnBroker::repair`].
    pub fn take_down(&mut self, at: usize) {
        self.repair();
        self.unready(at);
        fs::write(self.down_file(at), "").expect("a file");
        signal(self.dir.path(), at, "-KILL");
        self.fault = Some((at, BrokerFault::Down));
    }

    /// Stops one broker with SIGSTOP until [`OwnBroker::repair`].
    pub fn pause_one(&mut self, at: usize) {
        self.repair();
        signal(self.dir.path(), at, "-STOP");
        self.fault = Some((at, BrokerFault::Paused));
    }

    /// Makes one broker slow until [`OwnBroker::repair`]: it runs for 20 of every 200 milliseconds.
    pub fn slow_down(&mut self, at: usize) {
        self.repair();
        let (sender, ended) = mpsc::channel::<()>();
        let dir = self.dir.path().to_owned();
        let thread = std::thread::spawn(move || {
            while matches!(ended.try_recv(), Err(mpsc::TryRecvError::Empty)) {
                signal(&dir, at, "-STOP");
                sleep(Duration::from_millis(180));
                signal(&dir, at, "-CONT");
                sleep(Duration::from_millis(20));
            }
        });
        self.fault = Some((at, BrokerFault::Slow(sender, thread)));
    }

    /// Ends the current fault of a broker, if there is one. Does not wait until the broker is ready.
    pub fn repair(&mut self) {
        match self.fault.take() {
            None => {}
            Some((at, BrokerFault::Down)) => fs::remove_file(self.down_file(at)).expect("it was created"),
            Some((at, BrokerFault::Paused)) => signal(self.dir.path(), at, "-CONT"),
            Some((_, BrokerFault::Slow(sender, thread))) => {
                drop(sender);
                thread.join().expect("the thread sends signals");
            }
        }
    }

    /// Stops one broker with SIGTERM. It moves its leaderships to the other brokers and exits, and scripts/kafka starts it again.
    pub fn restart(&mut self, at: usize) {
        self.unready(at);
        signal(self.dir.path(), at, "-TERM");
    }

    /// True if no broker has a fault, all brokers are ready, and every partition has a leader and all its replicas in sync.
    pub fn is_whole(&mut self) -> bool {
        self.update_ready();
        self.fault.is_none() && self.ready.iter().all(|&ready| ready) && self.has_full_isr()
    }

    fn has_full_isr(&self) -> bool {
        let is_full = |partition: &MetadataPartition| partition.leader() >= 0 && partition.isr().len() == partition.replicas().len();
        self.metadata().is_some_and(|metadata| metadata.topics().iter().flat_map(MetadataTopic::partitions).all(is_full))
    }

    /// The smallest number of replicas that any partition has, in sync or not. `None` if the brokers do not respond or have no topics.
    pub fn fewest_replicas(&self) -> Option<usize> {
        let metadata = self.metadata()?;
        metadata.topics().iter().flat_map(MetadataTopic::partitions).map(|partition| partition.replicas().len()).min()
    }

    fn metadata(&self) -> Option<Metadata> {
        let consumer: BaseConsumer = client(self.address()).create().expect("a consumer");
        consumer.fetch_metadata(None, Duration::from_secs(2)).ok()
    }

    /// Ends the current fault of a broker, if there is one, and waits until [`OwnBroker::is_whole`].
    pub fn wait_until_whole(&mut self) {
        self.repair();
        wait_until("all replicas are in sync", 2 * PATIENCE, || self.is_whole().then_some(()));
    }

    fn unready(&mut self, at: usize) {
        self.update_ready();
        self.ready[at] = false;
    }

    fn update_ready(&mut self) {
        while let Ok(line) = self.lines.try_recv() {
            let (at, address) =
                numbered(line.strip_prefix("ready ").unwrap_or_else(|| panic!("unexpected output of scripts/kafka: `{line}`")));
            assert_eq!(address, self.addresses[at], "the restarted broker has another address");
            self.ready[at] = true;
        }
    }

    fn down_file(&self, at: usize) -> PathBuf {
        self.dir.path().join(format!("broker{}.down", at + 1))
    }

    pub fn copy_logs(&self, to: &Path) {
        for file in super::state::entries(self.dir.path()) {
            let name = file.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
            if name.contains(".log") {
                let _ = fs::copy(&file, to.join(name));
            }
        }
    }

    /// Describes the transactions without a commit or abort marker, in topics whose names start with `prefix`.
    pub fn transactions_without_end(&self, prefix: &str) -> Vec<String> {
        let dirs = (1..=self.count()).map(|number| self.dir.path().join(format!("broker{number}")));
        dirs.flat_map(|dir| transactions_without_end(&dir, prefix)).collect()
    }
}

impl Drop for OwnBroker {
    fn drop(&mut self) {
        self.repair();
    }
}

fn signal(dir: &Path, at: usize, signal: &str) {
    let pid = fs::read_to_string(dir.join(format!("broker{}.pid", at + 1))).expect("the broker's process ID");
    assert!(succeeds(Command::new("kill").args([signal, pid.trim()])), "`kill {signal}` failed for the process of a broker");
}

/// Parses `NUMBER ADDRESS` from scripts/kafka, which numbers brokers from 1. Returns the index from 0 and the address.
fn numbered(text: &str) -> (usize, String) {
    let (number, address) = text.split_once(' ').expect("a number and an address");
    (number.parse::<usize>().expect("a number") - 1, address.to_owned())
}

type Lines = mpsc::Receiver<String>;

/// A running scripts/kafka. The script stops when its stdin ends, either because this value is dropped or because this process dies.
struct Script {
    child: Child,
    address: String,
    /// The directory with the client files of a secure broker, such as passwords and certificates. `None` without `--secure`.
    clients: Option<PathBuf>,
}

impl Script {
    fn start(args: &[&str]) -> Self {
        let (child, lines) = Self::spawn(args, &[]);
        let clients = args.contains(&"--secure").then(|| said(&lines, "clients").into());
        let address = said(&lines, "ready");
        Self { child, address, clients }
    }

    fn spawn(args: &[&str], environment: &[(&str, &str)]) -> (Child, Lines) {
        let mut child = Command::new(concat!(env!("CARGO_MANIFEST_DIR"), "/scripts/kafka"))
            .arg("--until-eof")
            .args(args)
            .envs(environment.iter().copied())
            .env("TMPDIR", env!("CARGO_TARGET_TMPDIR"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("scripts/kafka starts");
        let stdout = child.stdout.take().expect("its stdout is a pipe");
        let (sender, lines) = mpsc::channel();
        std::thread::spawn(move || BufReader::new(stdout).lines().map_while(Result::ok).try_for_each(|line| sender.send(line)));
        (child, lines)
    }
}

/// Waits for the next line of scripts/kafka, which must start with `word`, and returns the rest of it.
fn said(lines: &Lines, word: &str) -> String {
    let Ok(line) = lines.recv_timeout(START_PATIENCE) else {
        panic!("scripts/kafka did not start a broker; see its output above, or run it by hand");
    };
    let rest = line.strip_prefix(word).and_then(|rest| rest.strip_prefix(' '));
    rest.unwrap_or_else(|| panic!("unexpected output of scripts/kafka: `{line}`")).to_owned()
}

impl Drop for Script {
    fn drop(&mut self) {
        drop(self.child.stdin.take());
        let deadline = std::time::Instant::now() + 2 * PATIENCE;
        while matches!(self.child.try_wait(), Ok(None)) && std::time::Instant::now() < deadline {
            sleep(Duration::from_millis(20));
        }
    }
}
