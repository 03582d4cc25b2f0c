//! Promise: a server's answers match the committed stream. A server does not answer before it has read the changelogs, during a warm-up, or
//! if its configuration differs from the worker's.

use crate::harness::{Asker, OwnBroker, Reply, Worker, broker, http, reset_offset, wait_until, wait_until_fresh};
use crate::observed::{documented, exported};
use crate::stream::{LIMIT, PARTITIONS, SHORT_SESSION, Stream, short_timeouts};
use std::collections::HashSet;

const RECORDS: usize = 60_000;

fn ids(stream: &Stream) -> Vec<(String, String)> {
    let ids: HashSet<_> = stream.records.iter().filter_map(|record| record.key.clone()).collect();
    let mut ids: Vec<_> = ids.into_iter().map(|id| String::from_utf8(id).expect("text")).collect();
    ids.sort_unstable();
    ids.iter().map(|id| id.split_once('/').expect("a user and an item")).map(|(user, item)| (user.to_owned(), item.to_owned())).collect()
}

fn answers(stream: &Stream, address: &str) -> HashSet<Vec<u8>> {
    let ids = ids(stream);
    let command = |(user, item): &(String, String)| vec!["BF.EXISTS".to_owned(), format!("news:{{{user}}}"), item.clone()];
    let replies = Asker::connect(address).ask_all(&ids.iter().map(command).collect::<Vec<_>>());
    let seen = ids.iter().zip(replies).filter(|(_, reply)| match reply {
        Reply::Integer(seen) => *seen == 1,
        other => panic!("no answer: {other:?}"),
    });
    seen.map(|((user, item), _)| format!("{user}/{item}").into_bytes()).collect()
}

/// Panics unless a server's answers match the keys that are seen after the first `count` records.
fn check(stream: &Stream, count: usize, address: &str, status: &str, what: &str) {
    wait_until_fresh(status, LIMIT);
    let (said, known) = (answers(stream, address), stream.oracle.seen(&stream.records[..count], PARTITIONS));
    let text = |keys: Vec<&Vec<u8>>| keys.into_iter().take(3).map(|key| String::from_utf8_lossy(key).into_owned()).collect::<Vec<_>>();
    let (denied, invented): (Vec<_>, Vec<_>) = (known.difference(&said).collect(), said.difference(&known).collect());
    assert!(denied.is_empty(), "{what}: {} seen keys are reported as unseen, such as {:?}", denied.len(), text(denied));
    assert!(invented.is_empty(), "{what}: {} unseen keys are reported as seen, such as {:?}", invented.len(), text(invented));
}

fn is_loading(reply: &Reply) -> bool {
    matches!(reply, Reply::Error(text) if text.starts_with("LOADING"))
}

/// One server has the worker's kind of filter, and another server has a different kind. A server and a worker are killed and replaced.
#[test]
fn answers_match_the_committed_stream() {
    let stream = Stream::new(broker(), "serve", RECORDS).with(short_timeouts);
    let cuckoo = "serve.filters.news={ kind = \"cuckoo\", capacity = \"400k\", false_positive_rate = 1e-9 }";
    let (mut first, address, status) = stream.setup.serve("s", &[]);
    // There is no changelog yet, so the server cannot answer.
    let asked = Asker::connect(&address).ask(&["BF.EXISTS", "news:{1}", "n-1"]);
    assert!(is_loading(&asked), "{asked:?}");
    assert_eq!(http(&status, "GET /readyz", "").0, 503);

    let mut worker = stream.setup.start("a");
    stream.produce(..RECORDS / 3);
    stream.wait_until_read(RECORDS / 3, &mut worker);
    check(&stream, RECORDS / 3, &address, &status, "a third");
    assert_eq!(http(&status, "GET /readyz", "").0, 200);
    first.kill9();

    stream.produce(RECORDS / 3..RECORDS / 2);
    stream.wait_until_read(RECORDS / 2, &mut worker);
    let servers = [stream.setup.serve("s", &[]), stream.setup.serve("t", &[cuckoo])];
    for (_, address, status) in &servers {
        check(&stream, RECORDS / 2, address, status, "a half, from the changelog alone");
    }
    // The killed worker usually leaves an open transaction in the changelog.
    stream.produce(RECORDS / 2..);
    worker.kill9();
    let mut worker = stream.setup.start("b");
    stream.wait_until_read(RECORDS, &mut worker);
    for (server, address, status) in servers {
        check(&stream, RECORDS, &address, &status, "all of it");
        assert_eq!(exported(&http(&status, "GET /metrics", "").1), documented("## Of a server"), "docs/reference/metrics.md, on the right");
        server.drain();
    }
    worker.drain();
}

/// The brokers become unavailable and return. During the outage, the server with `serve.max_staleness` must not answer from a state that is
/// older than this limit.
#[test]
fn server_reports_unavailable_brokers_and_resumes() {
    let mut own = OwnBroker::start();
    let stream = Stream::new(own.address(), "cut-off", RECORDS / 10);
    stream.begin(RECORDS / 20);
    let servers = [stream.setup.serve("s", &[]), stream.setup.serve("t", &["serve.max_staleness=5s"])];
    for (_, address, status) in &servers {
        check(&stream, RECORDS / 20, address, status, "before");
    }
    own.kill();
    let [(_, patient, _), (_, strict, _)] = &servers;
    wait_until("an answer is too old", LIMIT, || match Asker::connect(strict).ask(&["BF.EXISTS", "news:{1}", "n-1"]) {
        Reply::Error(text) => {
            assert!(text.starts_with("MASTERDOWN this server's state is"), "{text}");
            Some(())
        }
        Reply::Integer(_) => None,
        other => panic!("no answer: {other:?}"),
    });
    // The server without `serve.max_staleness` answers with its last known state.
    assert_eq!(answers(&stream, patient), stream.oracle.seen(&stream.records[..RECORDS / 20], PARTITIONS));
    own.wait_until_back();
    let mut worker = stream.setup.start("a");
    stream.produce(RECORDS / 20..);
    stream.wait_until_read(stream.records.len(), &mut worker);
    for (server, address, status) in servers {
        check(&stream, stream.records.len(), &address, &status, "after");
        server.drain();
    }
    worker.drain();
}

/// The group reads its input from the start again and emits the records again, so the server must rebuild its state.
#[test]
fn server_follows_a_reset_group() {
    let stream = Stream::remembered(broker(), "set-back", RECORDS / 10);
    stream.begin(stream.records.len());
    let (server, address, status) = stream.setup.serve("s", &[]);
    check(&stream, stream.records.len(), &address, &status, "before");
    for partition in (0..).take(PARTITIONS) {
        reset_offset(broker(), stream.setup.group(), &stream.input, partition, 0);
    }
    let mut worker = stream.setup.start("b");
    stream.wait_until_read(stream.records.len(), &mut worker);
    check(&stream, stream.records.len(), &address, &status, "after");
    assert!(server.log().contains("offset for this input was reset"), "the server did not notice the reset");
    server.drain();
    worker.drain();
}

#[test]
fn misbehaving_clients_do_not_delay_others() {
    let stream = Stream::new(broker(), "clients", 1000);
    stream.begin(1000);
    let (server, address, status) = stream.setup.serve("s", &["serve.password=secret", "serve.max_connections=50", "serve.threads=2"]);
    wait_until_fresh_with(&address);
    let mut known = Asker::connect(&address);
    for (command, begin) in [
        (&["BF.EXISTS", "news:{1}", "n-1"][..], "NOAUTH"),
        (&["AUTH", "wrong"], "WRONGPASS"),
        (&["AUTH", "default", "wrong"], "WRONGPASS"),
        (&["HELLO", "3"], "NOAUTH"),
    ] {
        let reply = known.ask(command);
        assert!(matches!(&reply, Reply::Error(text) if text.starts_with(begin)), "{command:?}: {reply:?}");
    }
    assert_eq!(known.ask(&["AUTH", "secret"]), Reply::Simple("OK".to_owned()));
    for (command, begin) in [
        (&["BF.EXISTS", "news", "n-1"][..], "ERR the key has 2 parts"),
        (&["BF.EXISTS", "olds:{1}", "n-1"], "ERR there is no key space 'olds'"),
        (&["BF.EXISTS", "news:1", "n-1"], "ERR 'news:1' is not a valid name"),
        (&["BF.EXISTS", "news:{1}"], "ERR wrong number of arguments for 'bf.exists' command"),
        (&["BF.ADD", "news:{1}", "n-1"], "READONLY"),
        (&["GET", "x"], "ERR unknown command 'GET'"),
    ] {
        let reply = known.ask(command);
        assert!(matches!(&reply, Reply::Error(text) if text.starts_with(begin)), "{command:?}: {reply:?}");
    }
    // Some clients send every pipeline as a transaction.
    let ok = || Reply::Simple("OK".to_owned());
    let pipeline: Vec<Vec<_>> =
        [&["MULTI"][..], &["BF.EXISTS", "news:{1}", "x"], &["BF.MEXISTS", "news:{1}", "x", "y"], &["GET"], &["EXEC"]]
            .iter()
            .map(|command| command.iter().map(|&part| part.to_owned()).collect())
            .collect();
    let replies = known.ask_all(&pipeline);
    assert_eq!(
        replies[..4],
        [ok(), Reply::Simple("QUEUED".to_owned()), Reply::Simple("QUEUED".to_owned()), Reply::Simple("QUEUED".to_owned())]
    );
    let Reply::Array(answers) = &replies[4] else { panic!("no list: {replies:?}") };
    assert_eq!(answers[..2], [Reply::Integer(0), Reply::Array(vec![Reply::Integer(0), Reply::Integer(0)])]);
    assert!(matches!(&answers[2], Reply::Error(text) if text.starts_with("ERR unknown command")));
    // The server executes a transaction with many commands but rejects a transaction with too many bytes as a whole.
    for (item, count, begin) in [("x".to_owned(), 2000, None), ("x".repeat(10_000), 200, Some("EXECABORT"))] {
        let mut pipeline = vec![vec!["MULTI".to_owned()]];
        pipeline.extend((0..count).map(|_| ["BF.EXISTS", "news:{1}", &item].map(str::to_owned).to_vec()));
        pipeline.push(vec!["EXEC".to_owned()]);
        match (known.ask_all(&pipeline).pop(), begin) {
            (Some(Reply::Array(answers)), None) => assert_eq!(answers, vec![Reply::Integer(0); count]),
            (Some(Reply::Error(text)), Some(begin)) => assert!(text.starts_with(begin), "{text}"),
            (other, _) => panic!("{count} commands: {other:?}"),
        }
    }
    let name = format!("news:{{{}}}", "x".repeat(2000));
    assert!(matches!(known.ask(&["BF.EXISTS", &name, "x"]), Reply::Error(text) if text.contains("at most 1024 bytes")));
    // Garbage ends only the connection of its sender.
    let mut garbage = Asker::connect(&address);
    garbage.send(b"*1\r\n:7\r\n");
    assert!(matches!(garbage.reply(), Reply::Error(text) if text.starts_with("ERR Protocol error")));
    assert!(garbage.is_closed());
    // These clients send half a command, and nothing else.
    let mut halves: Vec<_> = (0..20).map(|_| Asker::connect(&address)).collect();
    for half in &mut halves {
        half.send(b"*3\r\n$9\r\nBF.EX");
    }
    assert_eq!(known.ask(&["PING"]), Reply::Simple("PONG".to_owned()));
    // Clients without a password take the rest of the 50 connections. The next client is rejected.
    let mut strangers = Vec::new();
    let mut refused = wait_until("a client is refused", LIMIT, || {
        let mut one = Asker::connect(&address);
        // A refused client may find the connection closed before it has sent or read anything.
        let reply = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            one.send(b"*1\r\n$4\r\nPING\r\n");
            one.reply()
        }));
        if matches!(&reply, Ok(Reply::Error(text)) if text.starts_with("ERR max number of clients reached")) {
            return Some(one);
        }
        strangers.push(one);
        None
    });
    assert!(refused.is_closed());
    drop((strangers, halves));
    // HTTP queries require the password, too. The readiness probe does not.
    let question = r#"{"keys":[[1,"n-1"]]}"#;
    assert_eq!(http(&status, "POST /api/v1/spaces/news/contains", question).0, 401);
    assert_eq!(http(&status, "GET /readyz", "").0, 200);
    let request = "POST /api/v1/spaces/news/contains HTTP/1.1\r\nAuthorization: Bearer secret\r\nX-Rest:";
    assert_eq!(http(&status, request, question).0, 200);
    for (question, code) in [("{", 400), (r#"{"keys":[["1"]]}"#, 400), (r#"{"keys":[[1,null]]}"#, 400)] {
        assert_eq!(http(&status, request, question).0, code, "{question}");
    }
    let log = server.drain();
    assert!(!log.contains("secret"), "the password is in the log");
}

fn wait_until_fresh_with(address: &str) {
    wait_until("the space answers queries", LIMIT, || {
        let mut asker = Asker::connect(address);
        asker.ask(&["AUTH", "secret"]);
        matches!(asker.ask(&["BF.EXISTS", "news:{1}", "n-1"]), Reply::Integer(_)).then_some(())
    });
}

/// A server whose window or hash differs from the worker's reports the difference and does not answer queries.
#[test]
fn a_server_with_another_configuration_does_not_answer() {
    let stream = Stream::new(broker(), "other", 1000);
    stream.begin(1000);
    for other in ["topics.0.window=33m", "topics.0.hash={ siphash = \"00112233445566778899aabbccddeeff\" }"] {
        let (server, address, _): (Worker, _, _) = stream.setup.serve("s", &[other]);
        wait_until("the server reports the difference", LIMIT, || match Asker::connect(&address).ask(&["BF.EXISTS", "news:{1}", "n-1"]) {
            Reply::Error(text) if text.starts_with("LOADING") => None,
            Reply::Error(text) => {
                assert!(text.contains("use the same configuration file"), "{text}");
                Some(())
            }
            other => panic!("it answers: {other:?}"),
        });
        server.drain();
    }
}

/// Another hash results in other fingerprints, so the worker reads the input again and writes the fingerprints to the changelog in parts.
#[test]
fn a_server_does_not_answer_before_a_warm_up_is_complete() {
    let stream = Stream::remembered(broker(), "warm-up", RECORDS / 10)
        .with(|setup| setup.worker("max_transaction_records = 50").properties(SHORT_SESSION));
    let count = stream.records.len();
    stream.begin(count);
    let hash = "topics.0.hash={ siphash = \"00112233445566778899aabbccddeeff\" }";
    // At the fault point, the worker has written some parts of every partition to the changelog, but not all parts of one of them.
    let mut worker = stream.setup.start_armed("a", &[hash], &format!("warm_up.record:{}:hang", count - 100));
    worker.wait_for_log("fault point reached", LIMIT);
    let (server, address, status) = stream.setup.serve("s", &[hash]);
    wait_until("the server reports the warm-up", LIMIT, || match Asker::connect(&address).ask(&["BF.EXISTS", "news:{1}", "n-1"]) {
        Reply::Error(text) => text.contains("is restoring partition").then(|| assert!(text.starts_with("LOADING"), "{text}")),
        other => panic!("it answers: {other:?}"),
    });
    worker.kill9();
    let worker = stream.setup.start_with("a", &[hash]);
    check(&stream, count, &address, &status, "after the warm-up, without a new record");
    server.drain();
    worker.drain();
}

/// Without new records, a worker still writes its configuration to the changelog when it gets its partitions back, even if its checkpoint
/// is current and it has nothing to restore.
#[test]
fn server_follows_a_changed_window_in_idle_partitions() {
    let stream = Stream::remembered(broker(), "idle", RECORDS / 10);
    let count = stream.records.len();
    stream.begin(count);
    for (name, change) in [("b", &["topics.0.filter.slices=8"][..]), ("a", &[]), ("b", &["topics.0.window=25h"]), ("a", &[])] {
        let worker = stream.setup.start_with(name, change);
        let (server, address, status) = stream.setup.serve("s", change);
        check(&stream, count, &address, &status, &format!("{name} with {change:?}"));
        server.drain();
        worker.drain();
    }
}
