//! A configuration and a directory for the files of workers.

use super::{PATIENCE, Worker, unique, unseen_with};
use std::fmt::Write;
use std::path::{Path, PathBuf};
use tempfile::TempDir;

/// The common settings of a test's workers: group, topics, and options. Each worker has a name, which is also the name of a directory in
/// [`Setup::dir`]. That directory contains the worker's configuration file, log, and state. If the test succeeds, dropping the setup
/// deletes all files.
pub struct Setup {
    dir: TempDir,
    servers: String,
    group: String,
    /// The lines of the section `[kafka]`. The next three fields are the lines of `[kafka.properties]`, `[worker]`, and `[state]`.
    kafka: String,
    properties: String,
    worker: String,
    state: String,
    /// The sections that follow `[log]`, such as `[[topics]]`.
    rest: String,
    environment: Vec<(String, String)>,
}

impl Setup {
    pub fn new(broker: &str, hint: &str) -> Self {
        let group = unique(hint);
        Self {
            dir: TempDir::new_in(env!("CARGO_TARGET_TMPDIR")).expect("a directory for the test"),
            servers: broker.to_owned(),
            kafka: format!("group_id = \"{group}\"\n"),
            properties: String::new(),
            worker: String::new(),
            state: String::new(),
            rest: String::new(),
            environment: Vec::new(),
            group,
        }
    }

    /// Uses the group ID `group` instead of a unique one.
    pub fn of_group(mut self, group: &str) -> Self {
        self.kafka = self.kafka.replace(&self.group, group);
        group.clone_into(&mut self.group);
        self
    }

    pub fn servers(mut self, servers: &str) -> Self {
        servers.clone_into(&mut self.servers);
        self
    }

    /// Adds lines to `[kafka]`, such as `connect_timeout = "5s"`.
    pub fn kafka(mut self, lines: &str) -> Self {
        add(&mut self.kafka, lines);
        self
    }

    /// Adds lines to `[kafka.properties]`, such as `"session.timeout.ms" = "6000"`.
    pub fn properties(mut self, lines: &str) -> Self {
        add(&mut self.properties, lines);
        self
    }

    /// Adds lines to `[worker]`, such as `commit_interval = "50ms"`.
    pub fn worker(mut self, lines: &str) -> Self {
        add(&mut self.worker, lines);
        self
    }

    /// Adds lines to `[state]`, such as `cold_start = "fail"`.
    pub fn state(mut self, lines: &str) -> Self {
        add(&mut self.state, lines);
        self
    }

    /// Adds a topic. `lines` has all settings of the topic except `input` and `output`.
    pub fn topic(mut self, input: &str, output: &str, lines: &str) -> Self {
        writeln!(self.rest, "\n[[topics]]\ninput = \"{input}\"\noutput = \"{output}\"\n{lines}").expect("text grows");
        self
    }

    pub fn sections(mut self, toml: &str) -> Self {
        add(&mut self.rest, toml);
        self
    }

    pub fn environment(mut self, name: &str, value: &str) -> Self {
        self.environment.push((name.to_owned(), value.to_owned()));
        self
    }

    pub fn group(&self) -> &str {
        &self.group
    }

    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    pub fn state_dir(&self, name: &str) -> PathBuf {
        self.dir().join(name).join("state")
    }

    pub fn config(&self, name: &str) -> String {
        let Self { servers, kafka, properties, worker, state, rest, .. } = self;
        let dir = self.state_dir(name).display().to_string();
        format!(
            "[kafka]\nbootstrap_servers = \"{servers}\"\n{kafka}\n[kafka.properties]\n{properties}\n[worker]\n{worker}\n[state]\ndir = {dir:?}\n{state}\n\
             [http]\nlisten = \"127.0.0.1:0\"\n[log]\nlevel = \"info\"\nformat = \"text\"\n{rest}"
        )
    }

    pub fn write_config(&self, name: &str) -> PathBuf {
        let dir = self.dir().join(name);
        let file = dir.join("unseen.toml");
        std::fs::create_dir_all(&dir).and_then(|()| std::fs::write(&file, self.config(name))).expect("a configuration file");
        file
    }

    /// Starts `unseen run`. A worker that restarts with the same name finds its state.
    pub fn start(&self, name: &str) -> Worker {
        self.start_with(name, &[])
    }

    /// The same as [`Setup::start`], with overrides such as `topics[0].on_invalid=drop`.
    pub fn start_with(&self, name: &str, overrides: &[&str]) -> Worker {
        Worker::start(&self.write_config(name), overrides, &self.environment, &self.log(name))
    }

    /// Starts `unseen serve` on free ports. Returns the process, the address for Redis clients, and the HTTP address.
    pub fn serve(&self, name: &str, overrides: &[&str]) -> (Worker, String, String) {
        self.serve_by(&self.write_config(name), name, overrides)
    }

    /// The same as [`Setup::serve`], with an existing configuration file.
    pub fn serve_by(&self, config: &Path, name: &str, overrides: &[&str]) -> (Worker, String, String) {
        let ports = ["serve.listen=127.0.0.1:0", "serve.http_listen=127.0.0.1:0"];
        let overrides: Vec<_> = ports.iter().chain(overrides).copied().collect();
        let mut server = Worker::serve(config, &overrides, &self.environment, &self.log(name));
        server.wait_for_log("listening for HTTP", PATIENCE);
        let log = server.log();
        let address = |what: &str| {
            let (_, line) = log.split_once(what).expect("it listens");
            line.split_once("address=").expect("an address").1.split_whitespace().next().expect("an address").to_owned()
        };
        let addresses = (address("listening for Redis clients"), address("listening for HTTP"));
        (server, addresses.0, addresses.1)
    }

    /// The same as [`Setup::start_with`], but the worker cannot write files of more than `bytes`, and `Setup::environment` has no effect.
    pub fn start_on_full_disk(&self, name: &str, overrides: &[&str], bytes: u64) -> Worker {
        Worker::start_on_full_disk(&self.write_config(name), overrides, bytes, &self.log(name))
    }

    /// Runs `unseen check --connect`. Returns its exit code, stdout, and stderr.
    pub fn check_with(&self, name: &str, overrides: &[&str]) -> (Option<i32>, String, String) {
        let file = self.write_config(name).display().to_string();
        let mut args = vec!["check", "--connect", "-c", &file];
        args.extend(overrides.iter().flat_map(|setting| ["--set", setting]));
        unseen_with(args, &self.environment)
    }

    /// The same as [`Setup::start_with`], with armed fault points (see [`Worker::start_armed`]). `Setup::environment` has no effect.
    pub fn start_armed(&self, name: &str, overrides: &[&str], faults: &str) -> Worker {
        Worker::start_armed(&self.write_config(name), overrides, faults, &self.log(name))
    }

    fn log(&self, name: &str) -> PathBuf {
        self.dir().join(name).join("log")
    }
}

impl Drop for Setup {
    /// Keeps the files of a failed test. `UNSEEN_TEST_KEEP` keeps the files of every test.
    fn drop(&mut self) {
        if std::thread::panicking() || std::env::var_os("UNSEEN_TEST_KEEP").is_some() {
            self.dir.disable_cleanup(true);
            eprintln!("state and logs are kept in {}", self.dir.path().display());
        }
    }
}

fn add(section: &mut String, lines: &str) {
    section.push_str(lines);
    section.push('\n');
}
