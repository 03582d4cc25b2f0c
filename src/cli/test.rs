//! `unseen test`: what a configuration makes of records, against what a file says that it should.

use super::schemas;
use crate::config::{self, Config};
use crate::format::Schemas;
use crate::testing::{self, Report, TestFile};
use anyhow::Context as _;
use std::fs::File;
use std::io::{self, BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Options of `unseen test`.
#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    config: super::ConfigArgs,
    /// Only the tests whose names contain this.
    #[arg(long, value_name = "TEXT")]
    only: Option<String>,
    /// Also write the results as `JUnit` XML.
    #[arg(long, value_name = "FILE")]
    junit: Option<PathBuf>,
    /// Files of tests, in TOML or YAML. Without one, those beside the configuration: `NAME.test.toml` or `NAME.test.yaml`,
    /// where that is `NAME.toml` or `NAME.yaml`.
    #[arg(value_name = "TESTS")]
    files: Vec<PathBuf>,
}

/// Says of each test whether it passed, and where it did not.
///
/// # Errors
/// When a test failed, or cannot be run.
pub fn run(args: &Args) -> anyhow::Result<()> {
    let config = args.config.load()?;
    let schemas = schemas::patient(&config)?;
    let files = if args.files.is_empty() { beside(&args.config.config)? } else { args.files.clone() };
    let mut ran: Vec<(String, Vec<Report>)> = Vec::new();
    let mut all_ran = Ok(());
    for path in files {
        let name = path.display().to_string();
        let reports = run_file(&path, &config, &schemas, args.only.as_deref());
        all_ran = match &reports {
            Ok(reports) => super::print(&testing::text(&name, reports)),
            Err(message) => Err(anyhow::anyhow!("{name}: {message}")),
        };
        ran.push((name, reports.unwrap_or_else(|message| vec![Report::not_run("the file can be read", &message)])));
        if all_ran.is_err() {
            break;
        }
    }
    // Also of a run that ends here: what reads it would take an old report for that of this run.
    if let Some(path) = &args.junit {
        std::fs::write(path, testing::junit(&ran)).with_context(|| format!("--junit: cannot write {}", path.display()))?;
    }
    all_ran?;
    let all = || ran.iter().flat_map(|(_, reports)| reports);
    let (count, failed) = (all().count(), all().filter(|report| !report.passed()).count());
    anyhow::ensure!(
        count > 0,
        "no test was run{}",
        args.only.as_ref().map_or_else(String::new, |text| format!(": none has `{text}` in its name"))
    );
    anyhow::ensure!(failed == 0, "{failed} of {count} tests failed");
    super::print(&format!("{count} test{} passed\n", if count == 1 { "" } else { "s" }))
}

/// What became of the tests of a file whose names contain `only`; or why it cannot be read.
fn run_file(path: &Path, config: &Config, schemas: &Arc<dyn Schemas>, only: Option<&str>) -> Result<Vec<Report>, String> {
    let file = TestFile::new(&config::document(path)?)?;
    let dir = path.parent().unwrap_or(Path::new(""));
    let open = |file: &Path| -> io::Result<Box<dyn BufRead>> { Ok(Box::new(BufReader::new(File::open(dir.join(file))?))) };
    let chosen = file.tests.iter().filter(|test| only.is_none_or(|text| test.name.contains(text)));
    Ok(chosen.map(|test| testing::run(config, test, schemas, &open)).collect())
}

/// The files of tests beside a configuration.
fn beside(path: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let files: Vec<_> = ["toml", "yaml", "yml"].map(|ending| path.with_extension(format!("test.{ending}"))).into();
    let there: Vec<_> = files.iter().filter(|file| file.exists()).cloned().collect();
    anyhow::ensure!(
        !there.is_empty(),
        "there are no tests beside {}: write {}, or name files of tests",
        path.display(),
        files[0].display()
    );
    Ok(there)
}
