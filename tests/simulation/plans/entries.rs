//! Inputs with several entries.

use super::{COVERS_ALL, NO_COLD_START, STATIC, WITHOUT_CHANGELOG, check, filters, plan, step};
use crate::options::{Change, EVENT_TIMES, RULES, WHEN};
use crate::plan::{Fault, Plan};
use crate::{Outcome, run};

/// Each entry of an input has its own window, state, and changelog.
#[test]
fn entries_of_one_input_survive_kills_and_a_lost_disk() {
    let of = |more: &[&str]| {
        let steps = [step(60, Fault::Kill), step(120, Fault::LoseDisk { killed: true }), step(200, Fault::Join), step(240, Fault::Kill)];
        plan(&[&[STATIC, NO_COLD_START, RULES][..], more].concat(), steps)
    };
    for kind in filters().map(|filter| filter.choice) {
        check(&of(&[kind]));
    }
    for more in [
        &[COVERS_ALL, WHEN, "tombstones", "on_duplicate = \"mark\""][..],
        &["a window by count that rotates", "refresh = true"],
        &["kind = \"cuckoo\"", "retract", "workers = 2"],
        &["records that lack what the key is made of", "on_invalid = { topic }"],
        &["records that are late, from the future, or without a time", "late = \"drop\"", EVENT_TIMES],
        &[COVERS_ALL, "a space that topics share"],
        &[COVERS_ALL, "repartition = true", WHEN],
        &[COVERS_ALL, "start = \"latest\"", "workers = 2"],
        &[COVERS_ALL, "delivery = \"at_least_once\"", "repartition = true"],
    ] {
        check(&of(more));
    }
}

/// A new entry starts without keys, and an entry that returns still has its former keys. Records of another entry do not count as seen.
#[test]
fn output_is_exact_if_entries_of_an_input_are_removed_and_added() {
    let change = |at| step(at, Fault::Change(Change::Rules));
    let steps = || [change(80), step(120, Fault::Kill), change(160), step(220, Fault::LoseDisk { killed: true }), change(240)];
    for kind in filters().map(|filter| filter.choice) {
        check(&plan(&[STATIC, NO_COLD_START, RULES, kind], steps()));
    }
    let plan = plan(&[STATIC, COVERS_ALL, RULES, WHEN], steps());
    check(&plan);
    assert!(matches!(run(&plan, Some("new_rule_warms_up")), Outcome::Failed(_)), "the simulation does not notice the defect");
}

/// Without a changelog, each state of an input is restored from its own checkpoint, and these checkpoints have different offsets.
#[test]
fn output_is_exact_if_entries_of_an_input_warm_up_from_different_offsets() {
    let steps = || (1..=8).map(|number| step(30 * number, Fault::Kill));
    for more in ["a window by time that rotates", "a window by count that rotates", "a space that topics share"] {
        let kinds = if more.starts_with("a space") { &[COVERS_ALL][..] } else { &[] };
        let options = [&[STATIC, WITHOUT_CHANGELOG, NO_COLD_START, RULES, more][..], kinds].concat();
        check(&plan(&options, steps()));
    }
    let options = [STATIC, WITHOUT_CHANGELOG, NO_COLD_START, RULES, "kind = \"cuckoo\"", "retract"];
    let plan = Plan { seed: 8, commit_ms: 20, checkpoint_ms: 300, ..plan(&options, steps()) };
    check(&plan);
    assert!(matches!(run(&plan, Some("warm_up_applied_again")), Outcome::Failed(_)), "the simulation does not notice the defect");
}
