//! Options that determine the verdicts on records.

use super::{COVERS_ALL, NEVER_MS, NO_COLD_START, STATIC, WITHOUT_CHANGELOG, check, filters, plan, step};
use crate::options::{Change, ENCODED, EVENT_TIMES, FILTERS, ON_CHANGE, WHEN};
use crate::plan::{Fault, Plan, Step};
use crate::{Outcome, run};

/// Event times differ from Kafka's timestamps by up to half a window, in several units, and some records have no event time.
#[test]
fn keys_expire_by_event_time_through_kills_and_a_lost_disk() {
    let odd = "records that are late, from the future, or without a time";
    let of = |kind| {
        let steps = [step(60, Fault::Kill), step(120, Fault::LoseDisk { killed: true }), step(200, Fault::Join), step(240, Fault::Kill)];
        plan(&[STATIC, NO_COLD_START, EVENT_TIMES, "late = \"drop\"", odd, kind], steps)
    };
    for kind in filters().map(|filter| filter.choice) {
        check(&of(kind));
    }
    let plan = of(FILTERS[0].choice);
    assert!(matches!(run(&plan, Some("event_times_ignored")), Outcome::Failed(_)), "the simulation does not notice the defect");
}

/// A header or a field selects the records to deduplicate. Some records have no key.
#[test]
fn records_pass_through_in_order_through_kills_and_a_lost_disk() {
    let of = |more: &[&str]| {
        let steps = [step(60, Fault::Kill), step(120, Fault::LoseDisk { killed: true }), step(200, Fault::Join), step(240, Fault::Kill)];
        plan(&[&[STATIC, COVERS_ALL, NO_COLD_START, WHEN][..], more].concat(), steps)
    };
    for more in [
        &[][..],
        &["tombstones", "on_duplicate = \"mark\""],
        &["records that lack what the key is made of", "on_invalid = \"drop\""],
        &["records that the output refuses", "on_invalid = { topic }"],
        &["records that the output refuses", "on_invalid = { topic }", "repartition = true"],
        &["a space that topics share"],
        &["delivery = \"at_least_once\"", "repartition = true"],
    ] {
        check(&of(more));
    }
    let plan = of(&[]);
    assert!(matches!(run(&plan, Some("conditions_ignored")), Outcome::Failed(_)), "the simulation does not notice the defect");
}

#[test]
fn changed_condition_applies_to_later_records() {
    let steps =
        || [step(80, Fault::Change(Change::When)), step(120, Fault::Kill), step(160, Fault::Change(Change::When)), step(220, Fault::Kill)];
    for kind in filters().map(|filter| filter.choice) {
        check(&plan(&[STATIC, NO_COLD_START, WHEN, kind], steps()));
    }
    let lost = step(250, Fault::LoseDisk { killed: true });
    check(&plan(&[STATIC, COVERS_ALL, NO_COLD_START, WHEN, EVENT_TIMES], [steps().to_vec(), vec![lost]].concat()));
}

/// If a key has the contents on, on, off, and on, the worker emits on, off, and on. This must hold even if the worker has only the
/// changelog when it reads the last record.
#[test]
fn changed_contents_are_emitted_through_kills_and_lost_disks() {
    let of = |more: &[&str]| {
        let lost = |at| step(at, Fault::LoseDisk { killed: true });
        let steps = [step(60, Fault::Kill), lost(120), step(160, Fault::Kill), step(200, Fault::Join), lost(240), step(280, Fault::Kill)];
        plan(&[&[STATIC, NO_COLD_START, "kind = \"exact\"", ON_CHANGE][..], more].concat(), steps)
    };
    for more in [
        &[COVERS_ALL][..],
        &["slices = 1", "refresh = true"],
        &["a window by count that rotates", "on_duplicate = \"mark\""],
        &["records that are late, from the future, or without a time", "late = \"drop\""],
        &["records that lack what the key is made of", "on_invalid = { topic }"],
        &["retract", "tombstones", "slices = 1"],
        &[ENCODED, WHEN, EVENT_TIMES],
        &[WITHOUT_CHANGELOG, "cold_start = \"rebuild\""],
    ] {
        let plan = of(more);
        let keeps_disk = |step: &Step| more[0] != WITHOUT_CHANGELOG || !matches!(step.fault, Fault::LoseDisk { .. });
        check(&Plan { steps: plan.steps.iter().filter(|step| keeps_disk(step)).cloned().collect(), ..plan });
    }
    let plan = of(&[COVERS_ALL]);
    assert!(matches!(run(&plan, Some("contents_ignored")), Outcome::Failed(_)));
    assert!(matches!(run(&plan, Some("replaced_contents_not_logged")), Outcome::Failed(_)));
}

#[test]
fn a_change_of_emit_evaluates_the_records_again() {
    let change = |at| step(at, Fault::Change(Change::Emit));
    let steps = [change(80), step(120, Fault::Kill), change(160), step(200, Fault::LoseDisk { killed: true }), change(240)];
    for more in [&["cold_start = \"rebuild\""][..], &["retract", "refresh = true", "start = \"latest\""]] {
        check(&plan(&[&[STATIC, COVERS_ALL, "kind = \"exact\"", ON_CHANGE][..], more].concat(), steps.clone()));
    }
}

#[test]
fn keys_are_retracted_through_kills_and_a_lost_disk() {
    for kind in filters().filter(|filter| filter.can_retract()).map(|filter| filter.choice) {
        let kill = |at| step(at, Fault::Kill);
        let steps = [kill(60), kill(120), step(180, Fault::LoseDisk { killed: true }), kill(240)];
        check(&plan(&[STATIC, kind, "retract"], steps));
    }
}

#[test]
fn topics_of_a_space_share_seen_keys() {
    let options = [STATIC, COVERS_ALL, "a space that topics share"];
    check(&plan(&options, [step(100, Fault::Kill), step(200, Fault::Join)]));
    let without_changelog = [&options[..], &[WITHOUT_CHANGELOG]].concat();
    let kills = [step(150, Fault::Kill), step(250, Fault::Kill)];
    check(&Plan { checkpoint_ms: NEVER_MS, ..plan(&without_changelog, kills) });
}

#[test]
fn records_are_dropped_as_configured_through_kills() {
    for (dropped, records) in [
        ("late = \"drop\"", "records that are late, from the future, or without a time"),
        ("on_tombstone = \"drop\"", "tombstones"),
        ("on_invalid = \"drop\"", "records that lack what the key is made of"),
    ] {
        check(&plan(&[STATIC, dropped, records], [step(100, Fault::Kill), step(200, Fault::Kill)]));
    }
}

#[test]
fn output_is_exact_if_brokers_set_the_timestamps() {
    check(&Plan { append_time: true, ..plan(&[STATIC, "kind = \"exact\""], [step(100, Fault::Kill), step(200, Fault::Kill)]) });
}
