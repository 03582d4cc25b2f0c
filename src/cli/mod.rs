//! The command line: one file a command. The only place where clap and anyhow are used.

mod capture;
mod check;
mod completions;
mod demo;
mod explain;
mod inspect;
mod interrupt;
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
mod table;
mod test;
mod topic;
mod version;

use anyhow::Context as _;
use clap::{Parser, Subcommand};
use std::io::{ErrorKind, Write as _};
use std::path::PathBuf;
use std::process::ExitCode;
use unseen::config::{self, Config};
use unseen::kafka;

/// Exit code of a bad configuration: `EX_CONFIG` of sysexits.h.
const EXIT_CONFIG: u8 = 78;

/// Emits each Kafka record once: what was seen within its window is not emitted again.
#[derive(Parser)]
#[command(version, long_version = version::LONG.as_str(), propagate_version = true, arg_required_else_help = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Deduplicate the configured topics until told to stop.
    Run(run::Args),
    /// Answer which keys were seen, to clients of Redis and over HTTP, beside the workers.
    Serve(serve::Args),
    /// Say everything that is wrong with a configuration.
    Check(check::Args),
    /// Print the JSON schema of a configuration, for editors.
    Schema,
    /// Write records of a topic to a file, for replay and plan.
    Capture(capture::Args),
    /// Put a recorded stream through the same deduplication, without Kafka.
    Replay(replay::Args),
    /// Run tests of a configuration: records in, and what is to become of them.
    Test(test::Args),
    /// Begin a group with keys that were seen before, by another tool.
    Seed(seed::Args),
    /// Say what became of a record, and why.
    Explain(explain::Args),
    /// Show what a state directory holds, or join several.
    Inspect(inspect::Args),
    /// Compare kinds of filter: memory, error over load, promises.
    Plan(Box<plan::Args>),
    /// Show the whole thing on an in-process broker, in under half a minute.
    Demo(demo::Args),
    /// Print completions for a shell.
    Completions(completions::Args),
    /// Print the manual page, or write all of them.
    Man(man::Args),
}

/// Where the configuration comes from.
#[derive(clap::Args)]
struct ConfigArgs {
    /// The configuration file: TOML or YAML, by its ending.
    #[arg(short, long, value_name = "FILE", env = "UNSEEN_CONFIG")]
    config: PathBuf,
    /// Override a setting, such as `--set worker.workers=4`. May be given more than once. A place in a list is a number,
    /// `topics.0.window=2h` or `topics[0].window=2h`; a value may be a table, as in TOML: `topics.0.window={keys=1M}`.
    #[arg(long, value_name = "PATH=VALUE", value_parser = key_value)]
    set: Vec<(String, String)>,
}

impl ConfigArgs {
    fn load(&self) -> Result<Config, config::Errors> {
        Config::load(&self.config, &self.set)
    }

    fn effective(&self) -> Result<serde_json::Value, config::Errors> {
        Config::effective(&self.config, &self.set)
    }

    /// Refuses properties that librdkafka would refuse.
    fn check_properties(&self, config: &Config) -> Result<(), config::Errors> {
        kafka::check_properties(config).map_err(|errors| self.refuse(errors.iter().map(ToString::to_string).collect()))
    }

    /// Faults that only show outside of the configuration, as those of its file.
    fn refuse(&self, messages: Vec<String>) -> config::Errors {
        let source = self.config.display().to_string();
        config::Errors(messages.into_iter().map(|message| config::Error { source: source.clone(), path: String::new(), message }).collect())
    }
}

/// Writes to the standard output. That whoever reads it has enough, as `head` may, is no failure.
fn print(text: &str) -> anyhow::Result<()> {
    let mut stdout = std::io::stdout();
    match stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()) {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(()),
        result => result.context("cannot write the output"),
    }
}

fn key_value(text: &str) -> Result<(String, String), String> {
    let (key, value) = text.split_once('=').ok_or("expected PATH=VALUE, such as worker.workers=4")?;
    Ok((key.to_owned(), value.to_owned()))
}

/// Parses the command line, does what it says, and turns failures into one sentence and an exit code.
pub fn main() -> ExitCode {
    let result = match Cli::parse().command {
        Command::Run(args) => run::run(&args),
        Command::Serve(args) => serve::run(&args),
        Command::Check(args) => check::run(&args),
        Command::Schema => schema::run(),
        Command::Capture(args) => capture::run(&args),
        Command::Replay(args) => replay::run(&args),
        Command::Test(args) => test::run(&args),
        Command::Seed(args) => seed::run(&args),
        Command::Explain(args) => explain::run(&args),
        Command::Inspect(args) => inspect::run(&args),
        Command::Plan(args) => plan::run(&args),
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
            // A sentence may go over several lines.
            if log::is_json() {
                tracing::error!("{error:#}");
            } else {
                eprintln!("error: {error:#}");
            }
            ExitCode::FAILURE
        }
    }
}
