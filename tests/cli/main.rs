//! Promise: commands that need no broker report errors in one line and exit without an error if the reader closes the pipe.

mod check;
mod commands;
mod entries;
mod http;
mod login;
mod replay;
mod run;
mod serve;
mod test;

use assert_cmd::cargo::cargo_bin;
use std::fs;
use std::path::PathBuf;
use std::process::{Command, Output};
use tempfile::TempDir;

/// A directory with a configuration file that contains the given lines in `[kafka]` and in the topic.
struct Setup(TempDir);

impl Setup {
    fn new(kafka: &str, topic: &str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let state = dir.path().join("state");
        let text = format!(
            "[kafka]\nbootstrap_servers = \"localhost:1\"\n{kafka}\n[state]\ndir = \"{}\"\n[log]\nformat = \"json\"\n[http]\nlisten = \"off\"\n\
             [[topics]]\ninput = \"in\"\noutput = \"out\"\nwindow = \"1h\"\nfilter = {{ capacity = 1000, confirm = true }}\n{topic}\n",
            state.display()
        );
        fs::write(dir.path().join("unseen.toml"), text).unwrap();
        Self(dir)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(cargo_bin("unseen"));
        for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("UNSEEN")) {
            command.env_remove(name);
        }
        command.args(args).arg("-c").arg(self.path("unseen.toml"));
        command
    }

    /// Returns the exit code, stdout, and stderr.
    fn run(&self, args: &[&str]) -> (Option<i32>, String, String) {
        let Output { status, stdout, stderr } = self.command(args).output().unwrap();
        (status.code(), String::from_utf8(stdout).unwrap(), String::from_utf8(stderr).unwrap())
    }
}

const ID: &str = "key = { field = \"/id\" }";

/// Returns the output of a command without a configuration, which must succeed.
fn unseen(args: &[&str]) -> String {
    let Output { status, stdout, stderr } = Command::new(cargo_bin("unseen")).args(args).output().unwrap();
    assert!(status.success(), "{args:?}: {}", String::from_utf8_lossy(&stderr));
    String::from_utf8(stdout).unwrap()
}
