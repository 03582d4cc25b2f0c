//! Promise: a process that was frozen while others took over cannot write to partitions that it no longer owns.

use crate::harness::{OwnBroker, Reader, Setup, TestRecord, broker, committed_offset, produce, read_committed, topic, wait_until};
use crate::stream::{LIMIT, PARTITIONS, SHORT_SESSION, Stream};

const RECORDS: usize = 100_000;

/// The process is stopped for longer than its transaction timeout, but not for longer than its session timeout. It keeps its partitions,
/// and the broker aborts its transaction. Even if this happens repeatedly, the worker must not conclude that another process uses its
/// transactional ID.
#[test]
fn worker_frozen_past_its_transaction_timeout_does_not_change_the_output() {
    let stream = Stream::new(broker(), "stopped", RECORDS)
        .with(|setup| setup.worker("transaction_timeout = \"1s\"").properties("\"session.timeout.ms\" = \"60000\""));
    let feed = stream.feed(20);
    let mut worker = stream.setup.start("a");
    worker.wait_for_log("partition restored", LIMIT);
    let output = Reader::new(broker(), &stream.output, PARTITIONS);
    let mut aborted = 0;
    wait_until("the broker aborts six transactions", LIMIT, || {
        worker.sigstop();
        if output.has_open_transaction() == Some(true) {
            wait_until("the broker aborts the transaction", LIMIT, || (output.has_open_transaction() == Some(false)).then_some(()));
            aborted += 1;
        }
        worker.sigcont();
        (aborted == 6).then_some(())
    });
    feed.join();
    worker.wait_for_log("outcome of the transaction is unknown", LIMIT);
    stream.check(worker);
}

/// The process is stopped for longer than its session timeout. When it continues, another process has its partitions.
#[test]
fn a_worker_frozen_past_its_session_cannot_write() {
    let stream =
        Stream::new(broker(), "zombie", RECORDS).with(|setup| setup.worker("transaction_timeout = \"2s\"").properties(SHORT_SESSION));
    let feed = stream.feed(15);
    let mut zombie = stream.setup.start("zombie");
    zombie.wait_for_log("partition restored", LIMIT);
    let mut heir = stream.setup.start("heir");
    heir.wait_for_log("partition restored", LIMIT);
    zombie.sigstop();
    let all = |log: &str| (0..4).all(|partition| log.contains(&format!("{}[{partition}]", stream.input)));
    wait_until("the new owner has all partitions", LIMIT, || all(&heir.log()).then_some(()));
    zombie.sigcont();
    zombie.wait_for_log("lost=true", LIMIT);
    feed.join();
    zombie.sigterm();
    zombie.wait(LIMIT);
    stream.check(heir);
}

/// Two processes with the same transactional ID fence each other. One of the two exits with an error message, and the other one continues.
#[test]
fn one_of_two_processes_with_a_copied_state_directory_stops() {
    let stream = Stream::remembered(broker(), "copied", RECORDS);
    stream.begin(1_000);
    let (original, copy) = (stream.setup.state_dir("a"), stream.setup.state_dir("b"));
    std::fs::create_dir_all(&copy).expect("a directory");
    std::fs::copy(original.join("instance"), copy.join("instance")).expect("its id can be copied");
    let feed = stream.feed(10);
    let mut both = ["a", "b"].map(|name| stream.setup.start(name));
    let ended = wait_until("one process exits", LIMIT, || both.iter_mut().position(|worker| !worker.runs()));
    let [a, b] = both;
    let (ended, other) = if ended == 0 { (a, b) } else { (b, a) };
    let log = ended.fails(1);
    assert!(
        log.contains(
            "possibly because a state directory was copied; give each process its own kafka.instance_id, or delete the file \"instance\""
        ),
        "{log}"
    );
    feed.join();
    stream.check(other);
}

/// A worker writes the keys of a warm-up to the changelog without writing any output records. If a process is frozen during a warm-up and
/// continues after it has lost its partitions, it must not write to the changelog after the new owner has.
#[test]
fn a_worker_frozen_in_a_warm_up_cannot_write_to_the_changelog() {
    for delivery in ["exactly_once", "at_least_once"] {
        let (records, warm) = (40_000, "warm_up.record:15000:stop");
        let stream = Stream::remembered(broker(), "warm-zombie", records).with(|setup| {
            setup
                .worker(&format!("transaction_timeout = \"2s\"\ndelivery = \"{delivery}\"\nmax_transaction_records = 2000"))
                .properties(SHORT_SESSION)
        });
        // The first worker reads without a changelog. The next one has the changelog enabled and no checkpoint, so it warms up.
        stream.produce(..records / 2);
        let mut worker = stream.setup.start_with("first", &["state.changelog=false"]);
        stream.wait_until_read(records / 2, &mut worker);
        worker.drain();
        let mut zombie = stream.setup.start_armed("zombie", &[], warm);
        zombie.wait_for_log("action=Stop", LIMIT);
        // The successor also warms up and continues with new records.
        let mut heir = stream.setup.start("heir");
        stream.produce(records / 2..records - 1_000);
        stream.wait_until_read(records - 1_000, &mut heir);
        zombie.sigcont();
        zombie.wait_for_log("lost=true", LIMIT);
        zombie.sigterm();
        zombie.wait(LIMIT);
        heir.drain();
        // A worker that has only the changelog must remember all emitted keys.
        let logged = stream.setup.start_with("logged", &["state.cold_start=fail"]);
        stream.produce(records - 1_000..);
        let log = stream.check(logged);
        assert!(log.contains("state rebuilt from the changelog") && log.contains("warm_up_records=0"), "{log}");
    }
}

/// A network can deliver a request long after its client has closed the connection and repeated the request. When the request arrives, the
/// same producer may have started its next transaction, which the request must not end.
#[test]
fn delayed_end_of_a_transaction_does_not_end_the_next_one() {
    let own = OwnBroker::start();
    let broker = own.address();
    let (input, output) = (topic(broker, "late-end-in", 1), topic(broker, "late-end-out", 1));
    let lines = "key = { record = \"key\" }\nwindow = \"24h\"\nfilter = { kind = \"exact\" }";
    let setup =
        Setup::new(broker, "late-end").worker("transaction_timeout = \"60s\"").properties(SHORT_SESSION).topic(&input, &output, lines);
    let record = |number: u8| TestRecord {
        key: Some(vec![b'0' + number]),
        timestamp: 1_700_000_000_000 + i64::from(number),
        ..TestRecord::default()
    };
    let servers = format!("kafka.bootstrap_servers={}", own.way().address());
    // The first commit is the commit of the start position. The third commit hangs.
    let mut worker = setup.start_armed("a", &[&servers], "commit.begin:3:hang");
    let wait_until_read = |end| {
        wait_until("all records are read", LIMIT, || (committed_offset(broker, setup.group(), &input, 0) == Some(end)).then_some(()));
    };
    wait_until_read(0);
    own.way().hold_end();
    produce(broker, &input, [record(1)]);
    own.way().wait_until_held();
    wait_until_read(1);
    produce(broker, &input, [record(2)]);
    let reader = Reader::new(broker, &output, 1);
    wait_until("the next transaction is open", LIMIT, || (reader.has_open_transaction()?).then_some(()));
    let code = own.way().release_end();
    worker.kill9();
    let mut worker = setup.start("a");
    wait_until_read(2);
    let log = worker.log();
    worker.kill9();
    assert_eq!(read_committed(broker, &output, 1)[0], [record(1), record(2)], "{log}");
    assert!(code != 0, "the broker took the request for the end of the next transaction");
}
