//! Promise: after any faults in any order, the output is what docs/contributing/promises.md promises.
//!
//! A seed determines a plan, which consists of a configuration (`options`) and of faults while a stream is produced (`plan`). The plan runs
//! on real processes and a real broker (`stage`, `act`). A `read_committed` consumer reads the output. The test compares the output with
//! the promises for these options and faults (`table`, `truth`). It also checks the answers of a server that runs alongside the workers
//! (`server`). `scripts/chaos` runs any number of plans.

mod act;
mod brokers;
mod options;
mod plan;
mod seeding;
mod server;
mod stage;
mod story;
mod table;
mod truth;

use crate::harness::{OwnBroker, broker};
use options::SERIES;
use plan::{Bounds, Fault, Plan};
use stage::Stage;
use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::{env, fs};
use story::{Counts, Story};

/// The length of a window by count that rotates, in keys per partition. In most plans, a partition has more keys, so keys leave the window.
const ROTATING_KEYS: i64 = 1_500;
/// The size of a plan in `scripts/chaos`.
const LARGE: Bounds = Bounds { records: 50_000, faults: 9, brokers: 1 };
/// The size of a plan in `scripts/chaos --brokers 3`.
const CLUSTER: Bounds = Bounds { records: 30_000, faults: 6, brokers: 3 };
/// The size of the plan that every test run plays on the shared broker.
const SMALL: Bounds = Bounds { records: 20_000, faults: 5, brokers: 0 };
const SMALL_CLUSTER: Bounds = Bounds { records: 10_000, faults: 2, brokers: 3 };

#[derive(Default)]
struct Sum {
    exact: usize,
    failed: Vec<u64>,
    /// The seeds of failed plans that prove nothing, because their only broker lost a transaction marker when it was killed.
    void: Vec<u64>,
    counts: Counts,
}

impl Sum {
    fn add(&mut self, plan: &Plan, address: &str, mut own: Option<&mut OwnBroker>) {
        let seed = plan.conditions.seed;
        let dir = dir().join(format!("seed-{seed}"));
        let mut story = Story::new(plan);
        let round = AssertUnwindSafe(|| {
            let mut stage = Stage::new(plan, address, own.as_deref_mut(), &mut story, &dir);
            for (step, next) in plan.steps.iter().zip(plan.steps.iter().skip(1).map(Some).chain([None])) {
                stage.reach(step.at, step.read);
                stage.note_what_is_committed();
                if plan.conditions.options.has("records of time 0, or before it") {
                    stage.bring_of_time_0(step.at);
                }
                stage.wait_for(std::time::Duration::from_millis(step.delay_ms), |_| false);
                stage.allow(next.map_or(plan.conditions.records, |next| next.at));
                stage.act(step);
            }
            stage.finish();
        });
        let outcome = catch_unwind(round);
        self.counts.add(story.counts());
        let lost = own.filter(|_| outcome.is_err()).map(|own| own.transactions_without_end(&format!("chaos-{seed}-")));
        lost.iter().flatten().for_each(|lost| story.tell(lost));
        // If a plan kills its only broker, the broker can lose a transaction marker. If such a plan then fails, the failure proves nothing
        // about unseen. In a cluster with replicas, a lost marker is a real failure.
        let was_killed = plan.steps.iter().any(|step| matches!(step.fault, Fault::Broker { .. }));
        if let Some(lost) = lost.as_ref().and_then(|lost| lost.first()).filter(|_| was_killed) {
            self.void.push(seed);
            eprintln!("seed {seed}: {}: void: Kafka was killed, and {lost}", story.counts());
        } else if let Err(panic) = &outcome {
            let reason = panic.downcast_ref::<String>().map(String::as_str).or_else(|| panic.downcast_ref::<&str>().copied());
            let reason = reason.unwrap_or("the plan panicked");
            story.tell(reason);
            self.failed.push(seed);
            eprintln!("seed {seed}: {}: FAILED: {reason}\n{}\nkept in {}", story.counts(), story.text(), dir.display());
        } else {
            self.exact += 1;
            eprintln!("seed {seed}: {}: exact", story.counts());
        }
        for (name, text) in [("story", story.text()), ("plan", &plan.to_string())] {
            fs::create_dir_all(&dir).and_then(|()| fs::write(dir.join(name), text)).expect("a directory for what is kept");
        }
    }

    fn check(&self) {
        let kills = self.counts.of("kill -9") + self.counts.of("kill at a point");
        let void = if self.void.is_empty() { String::new() } else { format!(" ({} more void: {:?})", self.void.len(), self.void) };
        eprintln!("{} plans exact, {} not{void}; {kills} workers killed; {}", self.exact, self.failed.len(), self.counts);
        assert!(self.failed.is_empty(), "not exact: seeds {:?}; see {}", self.failed, dir().display());
    }
}

/// The directory for each plan and its timeline, and for the files of failed plans.
fn dir() -> PathBuf {
    env::var_os("UNSEEN_CHAOS_DIR").map_or_else(|| Path::new(env!("CARGO_TARGET_TMPDIR")).join("chaos"), PathBuf::from)
}

#[test]
fn output_is_exact_after_a_small_plan_on_one_broker() {
    let mut sum = Sum::default();
    sum.add(&Plan::draw(11, SMALL), broker(), None);
    sum.check();
}

#[test]
fn output_is_exact_after_a_small_plan_on_three_brokers() {
    let mut sum = Sum::default();
    let mut cluster = OwnBroker::start_cluster();
    let address = cluster.address().to_owned();
    sum.add(&Plan::draw(17, SMALL_CLUSTER), &address, Some(&mut cluster));
    sum.check();
}

#[test]
fn plan_round_trips_through_its_text_format() {
    for (seed, bounds) in (0..100).flat_map(|seed| [(seed, LARGE), (seed, CLUSTER)]) {
        let plan = Plan::draw(seed, bounds);
        assert_eq!(Plan::parse(&plan.to_string()).expect("a plan"), plan);
        assert_eq!(Plan::draw(seed, bounds), plan);
    }
}

#[test]
#[ignore = "runs as long as scripts/chaos specifies"]
fn at_length() {
    let number = |name: &str| env::var(name).ok().map(|number| number.parse::<u64>().expect("a number"));
    let plans: Vec<_> = if let Ok(file) = env::var("UNSEEN_CHAOS_PLAN") {
        vec![Plan::parse(&fs::read_to_string(&file).expect("the plan")).expect("a plan, a line for each step")]
    } else {
        let first = number("UNSEEN_CHAOS_SEED").unwrap_or(1);
        let bounds = if number("UNSEEN_CHAOS_BROKERS") == Some(3) { CLUSTER } else { LARGE };
        (first..first + number("UNSEEN_CHAOS_ROUNDS").unwrap_or(1)).map(|seed| Plan::draw(seed, bounds)).collect()
    };
    let has_cluster = plans.iter().any(|plan| plan.conditions.brokers == 3);
    let mut broker = if has_cluster { OwnBroker::start_cluster() } else { OwnBroker::start() };
    let mut sum = Sum::default();
    eprintln!();
    for plan in &plans {
        let address = broker.address().to_owned();
        sum.add(plan, &address, Some(&mut broker));
    }
    sum.check();
}

fn meetings(plans: &[Plan]) -> BTreeSet<(&str, &str)> {
    fn of_plan(plan: &Plan) -> Vec<(&str, &str)> {
        let (options, faults) = (plan.conditions.options.names().collect::<Vec<_>>(), plan.rows());
        let faults = faults[options.len()..].to_vec();
        options.into_iter().flat_map(move |option| faults.clone().into_iter().map(move |fault| (option, fault))).collect()
    }
    plans.iter().flat_map(of_plan).collect()
}

/// Every choice and every fault has a row in docs/contributing/promises.md, and every row has a choice or a fault. A series of plans covers
/// nearly all pairs of choices, and two series cover most pairs of a choice and a fault.
#[test]
fn page_and_plans_have_the_same_rows() {
    let plans: Vec<_> = (SERIES..2 * SERIES).map(|seed| Plan::draw(seed, LARGE)).collect();
    let more: Vec<_> = (0..8 * SERIES).map(|seed| Plan::draw(seed, LARGE)).collect();
    let cluster: Vec<_> = (0..SERIES).map(|seed| Plan::draw(seed, CLUSTER)).collect();
    let drawn: BTreeSet<_> = more.iter().chain(&cluster).flat_map(|plan| plan.rows()).collect();
    let rows = table::rows();
    assert_eq!(drawn, rows.keys().map(String::as_str).collect());
    let pairs = |plans: &[Plan]| plans.iter().flat_map(|plan| plan.conditions.options.pairs()).collect::<BTreeSet<_>>();
    let (had, all) = (pairs(&plans), pairs(&more));
    let missing: Vec<_> = all.difference(&had).map(|pair| pair.map(|(at, choice)| options::DIMENSIONS[at][choice])).collect();
    assert!(missing.len() <= all.len() / 80, "{} of {} pairs are not in a series: {missing:?}", missing.len(), all.len());
    let two: Vec<_> = (SERIES..3 * SERIES).map(|seed| Plan::draw(seed, LARGE)).collect();
    let missing: Vec<_> = meetings(&more).difference(&meetings(&two)).copied().collect();
    assert!(missing.len() <= meetings(&more).len() / 10, "two series lack {} pairs of an option and a fault: {missing:?}", missing.len());
    // The output of each plan must be predictable, either in order or by key.
    for plan in more.iter().chain(&cluster) {
        let options = &plan.conditions.options;
        assert!(table::promise(plan.rows()).exact && options.is_ordered() || options.is_judged_by_keys(), "{plan}");
    }
}
