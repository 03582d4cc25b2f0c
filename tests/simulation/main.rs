//! Promise: in every interleaving and under every fault that the simulator draws, the output is as docs/contributing/promises.md promises.
//!
//! The real worker runs against the simulated cluster of `unseen::sim`. A plan is drawn from a seed (`plan`), carried out in virtual time
//! (`stage`), and judged by the same model as on a real broker (`truth`). A failing plan is shrunk and printed. `UNSEEN_SIM_PLAN=FILE` runs
//! it again, and `UNSEEN_SIM_SEED=N` runs one seed. The module `defects` checks that plans fail if the worker has a defect. The module
//! `plans` contains plans that are not random.

mod defects;
mod harness;
#[path = "../integration/chaos/options.rs"]
#[allow(dead_code, reason = "the series on a real broker uses the rest")]
mod options;
mod plan;
mod plans;
mod stage;
#[path = "../integration/chaos/table.rs"]
mod table;
#[path = "../integration/chaos/truth/mod.rs"]
#[allow(dead_code, reason = "servers are asked on a real broker")]
mod truth;

use options::Options;
use plan::Plan;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use std::collections::{BTreeMap, BTreeSet};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};
use std::{env, fs};

// The worker uses the same allocator.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

const FAILURES_MAX: usize = 30;

/// The length of a window by count that rotates, in keys per partition. The stream has more keys than that.
const ROTATING_KEYS: i64 = 20;

const FAULTS: usize = 10;

enum Outcome {
    Exact { kills: u64 },
    Failed(String),
}

fn run(plan: &Plan, defect: Option<&'static str>) -> Outcome {
    match catch_unwind(AssertUnwindSafe(|| stage::carry_out(plan, defect))) {
        Ok(kills) => Outcome::Exact { kills },
        Err(panic) => {
            let reason = panic.downcast_ref::<String>().cloned().or_else(|| panic.downcast_ref::<&str>().map(|&text| text.to_owned()));
            Outcome::Failed(reason.unwrap_or_else(|| "it panicked".to_owned()))
        }
    }
}

/// Deletes steps as long as the plan still fails, for at most half a minute.
fn shrink(plan: &Plan, defect: Option<&'static str>) -> Plan {
    let (mut smallest, began) = (plan.clone(), Instant::now());
    let mut at = 0;
    while at < smallest.steps.len() && began.elapsed() < Duration::from_secs(30) {
        let mut smaller = smallest.clone();
        smaller.steps.remove(at);
        if matches!(run(&smaller, defect), Outcome::Failed(_)) {
            smallest = smaller;
        } else {
            at += 1;
        }
    }
    smallest
}

/// The number of concurrent plans per core. Only one thread of a plan runs at a time. With a single plan, the core would be idle whenever
/// one thread wakes the next.
const PLANS_PER_CORE: usize = 4;

/// Pins the calling thread and its future child threads to one core. Only one thread of a plan runs at a time, usually for less time than
/// it takes to wake a thread on another core.
fn stay_on(core: usize) {
    let mut cores = CpuSet::new();
    cores.set(core);
    // If the call fails, the plans only run slower.
    let _ = sched_setaffinity(None, &cores);
}

/// Runs the plans of these seeds on all cores and returns the number of killed processes. If plans fail, panics with a shrunken copy of the
/// failed plan with the lowest seed.
fn run_seeds(seeds: &[u64], draw: &(dyn Fn(u64) -> Plan + Sync), defect: Option<&'static str>) -> u64 {
    let (next, kills, failed) = (AtomicUsize::new(0), AtomicU64::new(0), Mutex::new(BTreeMap::new()));
    let allowed = sched_getaffinity(None).unwrap_or_default();
    let cores: Vec<_> = (0..CpuSet::MAX_CPU).filter(|&core| allowed.is_set(core)).collect();
    let failures = || failed.lock().unwrap_or_else(PoisonError::into_inner);
    std::thread::scope(|scope| {
        for &core in cores.iter().flat_map(|core| [core; PLANS_PER_CORE]) {
            let (next, kills, failures) = (&next, &kills, &failures);
            scope.spawn(move || {
                stay_on(core);
                while failures().len() < FAILURES_MAX {
                    let Some(&seed) = seeds.get(next.fetch_add(1, Ordering::Relaxed)) else { return };
                    match run(&draw(seed), defect) {
                        Outcome::Exact { kills: more } => drop(kills.fetch_add(more, Ordering::Relaxed)),
                        Outcome::Failed(reason) => {
                            eprintln!("seed {seed}: {reason}");
                            failures().insert(seed, reason);
                        }
                    }
                }
            });
        }
    });
    let failed = failed.into_inner().unwrap_or_else(PoisonError::into_inner);
    if let Some(&first) = failed.keys().next() {
        let smallest = shrink(&draw(first), defect);
        let reasons: Vec<_> = failed.iter().map(|(seed, reason)| format!("seed {seed}: {reason}")).collect();
        panic!(
            "{}\nthe smallest plan that fails like seed {first}; write it to FILE and run UNSEEN_SIM_PLAN=FILE:\n{smallest}",
            reasons.join("\n")
        );
    }
    kills.into_inner()
}

fn number(name: &str, default: u64) -> u64 {
    env::var(name).map_or(default, |text| text.parse().unwrap_or_else(|_| panic!("{name}: expected a number, got {text}")))
}

#[test]
fn every_plan_is_exact() {
    run_seeds(&(0..100).collect::<Vec<_>>(), &|seed| Plan::draw(seed, FAULTS), None);
}

/// With 2,000 partitions, the offsets and changelog records of a transaction do not fit into one request.
#[test]
fn one_worker_reads_and_commits_two_thousand_partitions() {
    let has = |plan: &Plan, choices: &[&str]| choices.iter().all(|choice| plan.options.has(choice));
    let choices = ["delivery = \"exactly_once\"", "state.changelog = true", "repartition = false", "workers = 1", "plain records"];
    let plan = (0..100_000).map(|seed| Plan::draw(seed, 0)).find(|plan| has(plan, &choices)).expect("a plan with these options exists");
    let plan = Plan { partitions: 2_000, records: 3_000, begin_kills: None, server: None, ..plan };
    if let Outcome::Failed(reason) = run(&plan, None) {
        panic!("{reason}\n{plan}");
    }
}

#[test]
fn plan_depends_only_on_its_seed() {
    let digests = (0..20).map(|seed| {
        let plan = Plan::draw(seed, FAULTS);
        assert_eq!(Plan::parse(&plan.to_string()).expect("a plan"), plan);
        let digest = stage::digest(&plan);
        assert_eq!(digest, stage::digest(&plan), "seed {seed} runs differently each time");
        digest
    });
    assert_eq!(digests.collect::<BTreeSet<_>>().len(), 20, "seeds have the same digest");
}

/// Runs `UNSEEN_SIM_PLANS` plans with `UNSEEN_SIM_FAULTS` faults and `UNSEEN_SIM_KILLS` additional kills each, starting at seed
/// `UNSEEN_SIM_SEED`, or the plan in the file `UNSEEN_SIM_PLAN`. `UNSEEN_SIM_LOG=1` prints the logs of the processes.
/// `UNSEEN_SIM_DEFECT=NAME` injects a defect. `UNSEEN_SIM_OPTION=CHOICE` skips the seeds whose options do not have this choice.
#[test]
#[ignore = "runs as long as the environment variables specify"]
fn at_length() {
    if env::var_os("UNSEEN_SIM_LOG").is_some() {
        tracing_subscriber::fmt().without_time().with_ansi(false).with_thread_names(true).with_writer(std::io::stderr).init();
    }
    let defect = env::var("UNSEEN_SIM_DEFECT").ok().map(|name| defects::find(&name));
    if let Ok(file) = env::var("UNSEEN_SIM_PLAN") {
        let plan = Plan::parse(&fs::read_to_string(&file).expect("the plan")).expect("a plan, one line per step");
        stage::carry_out(&plan, defect);
        return;
    }
    let first = number("UNSEEN_SIM_SEED", 0);
    let (count, began) = (number("UNSEEN_SIM_PLANS", 1), Instant::now());
    let faults = usize::try_from(number("UNSEEN_SIM_FAULTS", FAULTS as u64)).expect("a number of faults");
    let kills = usize::try_from(number("UNSEEN_SIM_KILLS", 0)).expect("a number of kills");
    let choice = env::var("UNSEEN_SIM_OPTION").ok();
    let has = |seed: &u64| choice.as_ref().is_none_or(|choice| Options::of_seed(*seed).has(choice));
    let seeds: Vec<_> = (first..).filter(has).take(usize::try_from(count).expect("a number of plans")).collect();
    let kills = run_seeds(&seeds, &|seed| Plan::draw(seed, faults).with_kills(kills), defect);
    eprintln!("{count} plans exact, {kills} processes killed, in {:.1} s", began.elapsed().as_secs_f64());
}
