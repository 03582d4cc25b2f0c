//! Promise: in the situations that the test names describe, the output is as docs/contributing/promises.md promises.
//!
//! Random plans reach most of these situations, but only with some seeds. These plans reach them in every run. Most plans have an
//! `instance_id`. Without an `instance_id`, the group would wait until a killed process's session ends, and the stream would end before the
//! session does.

mod entries;
mod fault_points;
mod membership;
mod offsets;
mod repartition;
mod state;
mod transactions;
mod verdicts;

use crate::options::{DIMENSIONS, FILTERS, Filter};
use crate::plan::{Fault, Plan, Step};
use crate::{Outcome, run};
use serde_json::json;

const STATIC: &str = "instance_id";
const COVERS_ALL: &str = "a window by time that covers all";
const WITHOUT_CHANGELOG: &str = "state.changelog = false";
const NO_COLD_START: &str = "cold_start = \"fail\"";

fn filters() -> impl Iterator<Item = &'static Filter> {
    FILTERS.iter().filter(|filter| filter.keeps_window())
}

/// A checkpoint interval longer than any plan.
const NEVER_MS: u64 = 1_000_000;

/// A plan with these options, the defaults of all others, and a network without faults.
fn plan(options: &[&str], steps: impl IntoIterator<Item = Step>) -> Plan {
    let unknown = options.iter().find(|option| !DIMENSIONS.iter().any(|choices| choices.contains(option)));
    assert_eq!(unknown, None, "an option that does not exist");
    let choice = |choices: &&[&'static str]| choices.iter().copied().find(|choice| options.contains(choice)).unwrap_or(choices[0]);
    let plan = json!({
        "seed": 1,
        "records": 300,
        "options": DIMENSIONS.iter().map(choice).collect::<Vec<_>>(),
        "capacity": 4_000,
        "commit_ms": 50,
        "checkpoint_ms": 100,
        "session_ms": 2_000,
        "transaction_ms": 1_000,
        "transaction_records": 1_000_000,
        "network": false,
    });
    Plan { steps: steps.into_iter().collect(), ..serde_json::from_value(plan).expect("a plan") }
}

/// A fault 50 ms after the first `at` records.
fn step(at: usize, fault: Fault) -> Step {
    Step { at, delay_ms: 50, who: 0, fault }
}

/// A fault without a delay. If the previous step has the same `at`, a process that the previous step started has hardly begun to work.
fn at_once(at: usize, fault: Fault) -> Step {
    Step { delay_ms: 0, ..step(at, fault) }
}

fn kill_at(point: &str, time: u32) -> Fault {
    Fault::KillAt(point.to_owned(), time)
}

fn fail_at(point: &str, time: u32) -> Fault {
    Fault::FailAt(point.to_owned(), time)
}

/// Carries a plan out and returns the number of killed processes.
fn check(plan: &Plan) -> u64 {
    match run(plan, None) {
        Outcome::Exact { kills } => kills,
        Outcome::Failed(reason) => panic!("{reason}; write this to FILE and run UNSEEN_SIM_PLAN=FILE:\n{plan}"),
    }
}

fn parse(plan: &str) -> Plan {
    Plan::parse(plan).expect("a plan")
}

/// Carries out a plan that was kept because it once failed. With the defect that caused the failure, the plan must still fail.
fn check_kept(defect: &'static str, plan: &str) {
    let plan = parse(plan);
    check(&plan);
    assert!(matches!(run(&plan, Some(defect)), Outcome::Failed(_)), "the simulation does not notice the defect");
}
