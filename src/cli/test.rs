//! `unseen test`: runs test files against a configuration.

use super::schemas;
use crate::config::{self, Config};
use crate::format::Schemas;
use crate::testing::{self, Report, TestFile};
use anyhow::Context as _;
use std::fs::File;
use std::io::{self, BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::sync::Arc;

const EXAMPLES: &str = "\
Examples:
  unseen test -c unseen.toml                           # runs unseen.test.toml or unseen.test.yaml
  unseen test -c unseen.toml --only late --junit report.xml

JSON output (--json): one object.
  ok        true if tests were run, and all passed
  tests     number of tests
  failed    number of tests that failed or could not run
  files[]   file, and tests[]: name, passed, records (number), differences[] (record, what, expected, got, why),
            left_out (number of further differences), and error (the reason if the test could not run)";

#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    #[command(flatten)]
    config: super::ConfigArgs,
    /// Run only the tests whose names contain this text
    #[arg(long, value_name = "TEXT")]
    only: Option<String>,
    /// Also write the results to a file as `JUnit` XML
    #[arg(long, value_name = "FILE")]
    junit: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Test files, in TOML or YAML [default: `NAME.test.toml` or `NAME.test.yaml` next to the configuration file `NAME.toml`]
    #[arg(value_name = "TESTS")]
    files: Vec<PathBuf>,
}

pub fn run(args: &Args) -> anyhow::Result<()> {
    let config = args.config.load()?;
    let schemas = schemas::blocking(&config)?;
    let files = if args.files.is_empty() { default_files(&args.config.config)? } else { args.files.clone() };
    let mut ran: Vec<(String, Vec<Report>)> = Vec::new();
    let mut all_ran = Ok(());
    for path in files {
        let name = path.display().to_string();
        let reports = run_file(&path, &config, &schemas, args.only.as_deref());
        all_ran = match &reports {
            Ok(_) if args.json => Ok(()),
            Ok(reports) => super::print(&testing::text(&name, reports)),
            Err(message) => Err(anyhow::anyhow!("{name}: {message}")),
        };
        ran.push((name, reports.unwrap_or_else(|message| vec![Report::not_run("the file can be read", &message)])));
        if all_ran.is_err() {
            break;
        }
    }
    // Write the report even if the run stopped early. Otherwise CI would read the report of an earlier run.
    if let Some(path) = &args.junit {
        std::fs::write(path, testing::junit(&ran)).with_context(|| format!("--junit: cannot write {}", path.display()))?;
    }
    if args.json {
        super::print(&format!("{}\n", testing::json(&ran)))?;
    }
    all_ran?;
    let (count, failed) = testing::totals(&ran);
    anyhow::ensure!(
        count > 0,
        "no test was run{}",
        args.only.as_ref().map_or_else(String::new, |text| format!(": no test name contains `{text}`"))
    );
    anyhow::ensure!(failed == 0, "{failed} of {count} tests failed");
    if args.json {
        return Ok(());
    }
    super::print(&format!("{count} test{} passed\n", if count == 1 { "" } else { "s" }))
}

fn run_file(path: &Path, config: &Config, schemas: &Arc<dyn Schemas>, only: Option<&str>) -> Result<Vec<Report>, String> {
    let file = TestFile::new(&config::document(path)?)?;
    let dir = path.parent().unwrap_or(Path::new(""));
    let open = |file: &Path| -> io::Result<Box<dyn BufRead>> { Ok(Box::new(BufReader::new(File::open(dir.join(file))?))) };
    let chosen = file.tests.iter().filter(|test| only.is_none_or(|text| test.name.contains(text)));
    Ok(chosen.map(|test| testing::run(config, test, schemas, &open)).collect())
}

fn default_files(path: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let files: Vec<_> = ["toml", "yaml", "yml"].map(|ending| path.with_extension(format!("test.{ending}"))).into();
    let there: Vec<_> = files.iter().filter(|file| file.exists()).cloned().collect();
    anyhow::ensure!(!there.is_empty(), "there are no tests next to {}; write {}, or pass test files", path.display(), files[0].display());
    Ok(there)
}
