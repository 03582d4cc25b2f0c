//! Promise: if the state directory is lost or damaged, the log reports that, and no record is lost. Keys that are still in the input are
//! not emitted twice. Corrupt state is kept for inspection.

use crate::harness::state::{contents, damage_page, entries, files, flip, open, tables, truncate};
use crate::harness::{News, broker, topic, wait_until};
use crate::stream::{LIMIT, SHORT_SESSION, Stream};
use std::fs;
use std::path::Path;
use std::time::Duration;

const RECORDS: usize = 50_000;
/// The number of records that are read before the state is damaged.
const BEFORE: usize = RECORDS / 2;

/// A stream whose first half was read by a worker named `a`, which has stopped and written its state. The second half is in the input, and
/// many of its duplicates repeat records of the first half.
fn half_read(hint: &str) -> Stream {
    half_read_of(Stream::remembered(broker(), hint, RECORDS))
}

fn half_read_of(stream: Stream) -> Stream {
    // There is no changelog, because a worker would rebuild any lost state from it (see `changelog`).
    let stream = stream.with(|setup| setup.state("changelog = false"));
    stream.begin(BEFORE);
    stream.produce(BEFORE..);
    stream
}

/// Damages the state between two processes of a worker. Panics unless the output is the same as without damage, and the log of the second
/// process contains this text.
fn survives(stream: Stream, fault: impl FnOnce(&Path), sentence: &str) -> Stream {
    fault(&stream.setup.state_dir("a"));
    let log = stream.check(stream.setup.start("a"));
    assert!(log.contains(sentence), "the log does not contain `{sentence}`:\n{log}");
    stream
}

/// The same as [`survives`]. Also panics unless the corrupt state is in quarantine.
fn is_quarantined(stream: Stream, fault: impl FnOnce(&Path), sentence: &str) {
    let stream = survives(stream, fault, sentence);
    let aside = entries(&stream.setup.state_dir("a")).into_iter().filter(|path| path.to_string_lossy().contains("checkpoints.corrupt-"));
    let aside: Vec<_> = aside.collect();
    assert!(matches!(&aside[..], [one] if !entries(one).is_empty()), "quarantined: {aside:?}");
    let mut worker = stream.setup.start_with("a", &["state.cold_start=fail"]);
    worker.wait_for_log("partitions assigned", LIMIT);
    let log = worker.drain();
    assert!(!log.contains("corrupt"), "{log}");
}

#[test]
fn a_damaged_id_is_replaced() {
    survives(
        half_read("state-id"),
        |state| flip(&state.join("instance")),
        "the instance id of this state directory is damaged; creating a new one",
    );
}

#[test]
fn deleted_state_stops_the_worker_or_is_rebuilt() {
    let stream = half_read("state-cold");
    fs::remove_dir_all(stream.setup.state_dir("a")).expect("it can be deleted");
    let log = stream.setup.start_with("a", &["state.cold_start=fail"]).fails(1);
    assert!(log.contains(&format!("error: cannot restore all seen keys of {}[", stream.input)), "{log}");
    assert!(log.contains("]: no checkpoint can be used; to start anyway, set state.cold_start to \"rebuild\", "), "{log}");
    let log = stream.check(stream.setup.start("a"));
    assert!(log.contains("cannot restore all seen keys; reading "), "{log}");
}

#[test]
fn a_truncated_table_is_quarantined() {
    is_quarantined(
        half_read("state-cut-table"),
        |state| truncate(&tables(state)[0]),
        "the stored state is corrupt or was replaced; the worker moved it aside",
    );
}

/// RocksDB truncates the torn end of its log, which leaves an older checkpoint, as after a power failure.
#[test]
fn truncated_log_leaves_an_older_checkpoint() {
    survives(half_read("state-cut-log"), |state| truncate(&files(state, "log")[0]), "partition restored");
}

#[test]
fn flipped_bits_are_quarantined() {
    is_quarantined(
        half_read("state-flipped"),
        |state| tables(state).iter().for_each(|path| flip(path)),
        "the stored state is corrupt or was replaced; the worker moved it aside",
    );
}

/// The fingerprints of an exact filter are not loaded with a checkpoint, but read one by one when records need them.
#[test]
fn flipped_bits_among_fingerprints_are_quarantined() {
    let (records, day) = (News { count: RECORDS, ..News::default() }.records(), Duration::from_secs(24 * 3600));
    let output = topic(broker(), "state-prints-out", 4);
    let stream = Stream::remembered_by(broker(), "state-prints", output, records, day, "filter = { kind = \"exact\" }");
    is_quarantined(
        half_read_of(stream),
        |state| flip(&tables(state)[0]),
        "the stored state is corrupt or was replaced; the worker moved it aside",
    );
}

/// Damage that RocksDB does not detect, as if memory was corrupt before the page was written.
#[test]
fn a_damaged_page_is_quarantined() {
    is_quarantined(half_read("state-page"), |state| assert!(damage_page(state), "there is no page"), "the checksum of page ");
}

#[test]
fn a_changed_window_is_not_misread() {
    let stream = half_read("state-window");
    // A window of half the length still covers all records, so the output must be the same.
    let log = stream.check(stream.setup.start_with("a", &["topics[0].window=12h"]));
    let sentence = "the checkpoint was written with a different configuration: its window is 4 slices of 6h, but the configured window is 4 slices of 3h";
    assert!(log.contains(sentence), "{log}");
    assert!(log.contains("cannot restore all seen keys; reading "), "{log}");
}

#[test]
fn state_of_another_version_is_not_changed() {
    let stream = half_read("state-version");
    let state = stream.setup.state_dir("a");
    let (own, before) = {
        let db = open(&state);
        let own = db.get("format").expect("it can be read").expect("a format");
        db.put("format", "99").expect("it can be written");
        (String::from_utf8(own).expect("a number"), contents(&db))
    };
    let log = stream.setup.start("a").fails(1);
    let sentence = format!(
        "error: state directory {}: expected format {own}, got 99; run the version of unseen that wrote the directory",
        state.display()
    );
    assert!(log.contains(&sentence), "{log}");
    {
        let db = open(&state);
        assert!(contents(&db) == before, "what the other version wrote was changed");
        db.put("format", own).expect("it can be written");
    }
    assert!(entries(&state).iter().all(|path| !path.to_string_lossy().contains("corrupt")), "it was quarantined");
    stream.check(stream.setup.start_with("a", &["state.cold_start=fail"]));
}

#[test]
fn an_unusable_directory_is_reported() {
    let stream = Stream::remembered(broker(), "state-file", 1_000);
    let file = stream.setup.dir().join("file");
    fs::write(&file, "not a directory").expect("a file");
    // Even root cannot create a directory inside a regular file.
    let state = file.join("state");
    let log = stream.setup.start_with("a", &[&format!("state.dir={}", state.display())]).fails(1);
    let sentence = format!(
        "error: state directory {}: Not a directory (os error 20); check the path, this user's permissions, and the free disk space",
        state.display()
    );
    assert!(log.contains(&sentence), "{log}");
}

#[test]
fn directory_in_use_is_rejected() {
    let stream = half_read("state-shared");
    let state = stream.setup.state_dir("a");
    let mut first = stream.setup.start("a");
    first.wait_for_log("started", LIMIT);
    let log = stream.setup.start_with("b", &[&format!("state.dir={}", state.display())]).fails(1);
    let sentence =
        format!("error: state directory {} is in use by another unseen process; give each process its own `state.dir`", state.display());
    assert!(log.contains(&sentence), "{log}");
    stream.check(first);
}

#[test]
fn a_full_disk_fails_only_checkpoints() {
    let stream = Stream::remembered(broker(), "state-full", RECORDS).with(|setup| setup.properties(SHORT_SESSION));
    stream.produce(..BEFORE);
    // The limit leaves space for the empty checkpoints that a worker writes when it starts, but not for a page of a filter.
    let mut worker = stream.setup.start_on_full_disk("a", &["log.level=info,unseen=debug"], 128 << 10);
    worker.wait_for_log("checkpoint failed; the worker continues and tries again at the next checkpoint", LIMIT);
    stream.wait_until_read(BEFORE, &mut worker);

    let full = worker.log().len();
    worker.lift_file_limit();
    stream.produce(BEFORE..);
    wait_until("checkpoints are written again", LIMIT, || {
        let since = &worker.log()[full..];
        (0..4).all(|partition| since.contains(&format!("checkpoint written partition=news[{partition}]"))).then_some(())
    });
    worker.kill9();
    stream.check(stream.setup.start_with("a", &["state.cold_start=fail"]));
}

/// After `rm -rf` of a directory in use, the process can still use the deleted files. When it exits, they are lost, with any checkpoint in
/// them.
#[test]
fn a_deleted_directory_is_recreated() {
    for kind in ["kind = \"aging\", capacity = \"100k\", false_positive_rate = 1e-9", "kind = \"exact\""] {
        let stream = Stream::remembered_by(
            broker(),
            "state-deleted",
            topic(broker(), "state-deleted-out", 4),
            News { count: RECORDS, ..News::default() }.records(),
            Duration::from_secs(24 * 3600),
            &format!("filter = {{ {kind} }}"),
        );
        stream.produce(..BEFORE);
        let mut worker = stream.setup.start_with("a", &["log.level=info,unseen=debug"]);
        stream.wait_until_read(BEFORE, &mut worker);
        let state = stream.setup.state_dir("a");
        let instance = fs::read(state.join("instance")).expect("an id");
        let checkpoints = |log: &str| (0..4).all(|partition| log.contains(&format!("checkpoint written partition=news[{partition}]")));
        wait_until("checkpoints are written", LIMIT, || checkpoints(&worker.log()).then_some(()));
        let before = worker.log().len();
        fs::remove_dir_all(&state).expect("it can be deleted");
        stream.produce(BEFORE..RECORDS - 1_000);
        worker.wait_for_log("the state directory was deleted while in use; recreating it", LIMIT);
        wait_until("checkpoints are written again", LIMIT, || checkpoints(&worker.log()[before..]).then_some(()));
        stream.wait_until_read(RECORDS - 1_000, &mut worker);
        worker.drain();
        assert_eq!(fs::read(state.join("instance")).expect("an id"), instance, "another id keeps readers from what is open");
        // The next process must find the whole state in the recreated directory.
        stream.produce(RECORDS - 1_000..);
        stream.check(stream.setup.start_with("a", &["state.cold_start=fail", "state.changelog=false"]));
    }
}
