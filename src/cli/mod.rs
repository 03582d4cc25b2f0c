//! The command line: one file per command. Only this module uses clap and anyhow.

mod capture;
mod check;
mod completions;
mod demo;
mod dlq;
mod explain;
mod init;
mod inspect;
mod interrupt;
mod key_part;
mod log;
mod man;
mod otlp;
mod plan;
mod replay;
mod run;
mod schema;
mod schemas;
mod seed;
mod serve;
mod service;
mod test;
mod topic;

use crate::config::{self, Config};
use crate::kafka;
use anyhow::Context as _;
use clap::error::{ContextKind, ContextValue, ErrorKind as UsageError};
use clap::{CommandFactory as _, FromArgMatches as _, Parser, Subcommand};
use std::fmt::Display;
use std::io::{ErrorKind, Write as _};
use std::path::PathBuf;
use std::process::ExitCode;

/// Exit code for an invalid configuration: `EX_CONFIG` in sysexits.h.
const EXIT_CONFIG: u8 = 78;

/// Deduplicate Kafka topics: emit the first record of every key and drop later ones within a window
#[derive(Parser)]
#[command(version, propagate_version = true, arg_required_else_help = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

/// Commands by purpose, as `unseen --help` lists them. All other commands are hidden.
const GROUPS: [(&str, &[&str]); 4] = [
    ("Deduplicate", &["run", "serve", "seed"]),
    ("Configure and test", &["init", "check", "test", "plan", "capture", "replay"]),
    ("Diagnose and repair", &["explain", "inspect", "dlq"]),
    ("Try", &["demo"]),
];

#[derive(Subcommand)]
enum Command {
    /// Run the worker until SIGTERM or Ctrl+C
    Run(run::Args),
    /// Serve lookups of seen keys to Redis and HTTP clients
    Serve(serve::Args),
    /// Initialize a consumer group with the keys that another tool has already emitted
    Seed(seed::Args),
    /// Write a minimal configuration file, from flags or from the records of a topic
    Init(Box<init::Args>),
    /// Validate a configuration file
    #[command(visible_alias = "validate")]
    Check(check::Args),
    /// Test a configuration: run sample records and compare the results
    Test(test::Args),
    /// Compare the memory, error rates, and guarantees of the filter kinds
    Plan(Box<plan::Args>),
    /// Write the records of a topic to a file, for `replay` and `plan`
    Capture(capture::Args),
    /// Deduplicate a captured stream without Kafka
    Replay(replay::Args),
    /// Show the verdict on a record and the reason for it
    Explain(explain::Args),
    /// Show the contents of state directories or look up a key in them
    Inspect(inspect::Args),
    /// Redrive dead letters
    Dlq(dlq::Args),
    /// Run a worker on an embedded broker for a few seconds
    Demo(demo::Args),
    /// Print the JSON schema of the configuration, for editors
    #[command(hide = true)]
    Schema,
    /// Print shell completions
    #[command(hide = true)]
    Completions(completions::Args),
    /// Print the manual page or write all manual pages to a directory
    #[command(hide = true)]
    Man(man::Args),
}

#[derive(clap::Args)]
struct ConfigArgs {
    /// Configuration file, in TOML or YAML
    #[arg(short, long, value_name = "FILE", env = "UNSEEN_CONFIG")]
    config: PathBuf,
    /// Override a setting, for example `--set worker.workers=4`. Repeat the option to override several
    ///
    /// Lists are indexed from 0: `topics.0.window=2h` or `topics[0].window=2h`. A value can be a TOML table:
    /// `topics.0.window={keys=1M}`.
    #[arg(long, value_name = "PATH=VALUE", value_parser = key_value)]
    set: Vec<(String, String)>,
}

/// Options of commands that write to Kafka and then exit.
#[derive(clap::Args)]
struct WriteArgs {
    /// Check and count everything, but do not write anything
    #[arg(long)]
    dry_run: bool,
    /// Do not print progress
    #[arg(short, long)]
    quiet: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl ConfigArgs {
    fn load(&self) -> Result<Config, config::Errors> {
        Config::load(&self.config, &self.set)
    }

    fn load_with(&self, topic: Option<&str>) -> anyhow::Result<Config> {
        topic::expand(&self.load()?, topic)
    }

    fn effective(&self) -> Result<serde_json::Value, config::Errors> {
        Config::effective(&self.config, &self.set)
    }

    /// Returns an error for each property that librdkafka rejects.
    fn check_properties(&self, config: &Config) -> Result<(), config::Errors> {
        kafka::check_properties(config).map_err(|errors| self.refuse(errors.iter().map(ToString::to_string).collect()))
    }

    fn refuse(&self, messages: Vec<String>) -> config::Errors {
        let source = self.config.display().to_string();
        config::Errors(messages.into_iter().map(|message| config::Error { source: source.clone(), path: String::new(), message }).collect())
    }
}

/// Writes to stdout. A closed pipe, as with `head`, is not an error.
fn print(text: &str) -> anyhow::Result<()> {
    let mut stdout = std::io::stdout();
    match stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()) {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(()),
        result => result.context("cannot write to stdout"),
    }
}

fn key_value(text: &str) -> Result<(String, String), String> {
    let (key, value) = text.split_once('=').ok_or("expected PATH=VALUE, such as worker.workers=4")?;
    Ok((key.to_owned(), value.to_owned()))
}

/// Returns the command line, with help that lists the commands by purpose. The function is public for the documentation test.
#[must_use]
pub fn command() -> clap::Command {
    let command = Cli::command();
    let group = |(heading, names): &(&str, &[&str])| {
        let about = |name: &&str| command.find_subcommand(name).and_then(clap::Command::get_about).map(ToString::to_string);
        let lines = names.iter().map(|name| format!("  {name:<8}  {}\n", about(name).unwrap_or_default()));
        format!("{heading}:\n{}\n", lines.collect::<String>())
    };
    let groups: String = GROUPS.iter().map(group).collect();
    command.help_template(format!("{{about-with-newline}}\n{{usage-heading}} {{usage}}\n\n{groups}Options:\n{{options}}"))
}

fn long_version(commit: &str) -> String {
    let features = [("cli", true), ("worker", cfg!(feature = "worker")), ("faults", cfg!(feature = "faults"))];
    let features: Vec<_> = features.into_iter().filter_map(|(name, on)| on.then_some(name)).collect();
    format!(
        "{}\ncommit: {commit}\nfeatures: {}\nlibrdkafka: {}",
        env!("CARGO_PKG_VERSION"),
        features.join(", "),
        kafka::librdkafka_version()
    )
}

/// Exits as clap does for an invalid command line.
fn usage(message: impl Display) -> ! {
    clap::Error::raw(UsageError::ValueValidation, format!("{message}\n")).exit()
}

/// True if `--config` is the only required argument that is missing from the command line.
fn lacks_config(error: &clap::Error) -> bool {
    let missing = error.get(ContextKind::InvalidArg).filter(|_| error.kind() == UsageError::MissingRequiredArgument);
    matches!(missing, Some(ContextValue::Strings(missing)) if matches!(&missing[..], [only] if only.starts_with("--config")))
}

pub fn main(commit: &str) -> ExitCode {
    let command = command().long_version(&*long_version(commit).leak());
    let matches = command.try_get_matches().unwrap_or_else(|error| {
        if lacks_config(&error) {
            usage("no configuration file: set -c FILE or UNSEEN_CONFIG, or write a file with `unseen init`");
        }
        error.exit()
    });
    let result = match Cli::from_arg_matches(&matches).unwrap_or_else(|error| error.exit()).command {
        Command::Run(args) => run::run(&args),
        Command::Serve(args) => serve::run(&args),
        Command::Init(args) => init::run(&args),
        Command::Check(args) => check::run(&args),
        Command::Schema => schema::run(),
        Command::Capture(args) => capture::run(&args),
        Command::Replay(args) => replay::run(&args),
        Command::Test(args) => test::run(&args),
        Command::Seed(args) => seed::run(&args),
        Command::Explain(args) => explain::run(&args),
        Command::Inspect(args) => inspect::run(&args),
        Command::Plan(args) => plan::run(&args),
        Command::Dlq(args) => dlq::run(&args),
        Command::Demo(args) => demo::run(&args),
        Command::Completions(args) => completions::run(&args),
        Command::Man(args) => man::run(&args),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            if let Some(errors) = error.downcast_ref::<config::Errors>() {
                for error in &errors.0 {
                    if log::is_json() { tracing::error!("{error}") } else { eprintln!("{error}") }
                }
                return ExitCode::from(EXIT_CONFIG);
            }
            if log::is_json() {
                tracing::error!("{error:#}");
            } else {
                eprintln!("error: {error:#}");
            }
            ExitCode::FAILURE
        }
    }
}
