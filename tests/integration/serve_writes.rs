//! Promise: keys that clients write through servers are emitted once each, and a server confirms at most one client as the first writer of
//! a key.

use crate::harness::{
    Asker, OwnBroker, Reply, Setup, add_partitions, broker, http, read_committed, topic, wait_for_output, wait_until, wait_until_fresh,
};
use crate::stream::{LIMIT, short_timeouts};
use std::collections::HashMap;
use std::sync::Mutex;

const PARTITIONS: usize = 4;
const ITEMS: usize = 600;
const WRITES: [&str; 2] = ["serve.writes=true", "serve.partitioner=murmur2"];
const ORDERS: &str = "space = \"orders\"\nkey = { record = \"key\" }\nwindow = \"1h\"\nretract = { header = \"gone\" }\n\
                      filter = { kind = \"cuckoo\", capacity = \"100k\", false_positive_rate = 1e-9 }";
const SESSIONS: &str = "space = \"sessions\"\nkey = [{ header = \"user\" }, { record = \"value\" }]\nwindow = \"1h\"\nrepartition = true\n\
                        on_invalid = \"drop\"\nfilter = { kind = \"aging\", capacity = \"100k\", false_positive_rate = 1e-9 }";
const FIELDS: &str = "space = \"fields\"\nkey = { field = \"/id\" }\nwindow = \"1h\"\n\
                      filter = { kind = \"aging\", capacity = \"100k\", false_positive_rate = 1e-9 }";

/// Producers of this topic frame their record keys as a schema registry requires. By default, a worker stops at a record without the frame.
const FRAMED: &str = "space = \"framed\"\nkey = { record = \"key\" }\nkey_format = \"json_schema\"\nwindow = \"1h\"\n\
                      filter = { kind = \"aging\", capacity = \"100k\", false_positive_rate = 1e-9 }";

fn setup(broker: &str, topics: &[(&str, &str)]) -> (Setup, Vec<String>) {
    let mut setup = Setup::new(broker, "writes").worker("commit_interval = \"100ms\"\ncheckpoint_interval = \"1s\"");
    let mut outputs = Vec::new();
    for (hint, lines) in topics {
        let [input, output] = ["in", "out"].map(|end| topic(broker, &format!("{hint}-{end}"), PARTITIONS.try_into().expect("few")));
        setup = setup.topic(&input, &output, lines);
        outputs.push(output);
    }
    (setup, outputs)
}

fn words(command: &[&str]) -> Vec<String> {
    command.iter().map(|&word| word.to_owned()).collect()
}

fn number(asker: &mut Asker, command: &[&str]) -> i64 {
    match asker.ask(command) {
        Reply::Integer(number) => number,
        other => panic!("{command:?}: {other:?}"),
    }
}

fn error(asker: &mut Asker, command: &[&str]) -> String {
    match asker.ask(command) {
        Reply::Error(text) => text,
        other => panic!("{command:?}: {other:?}"),
    }
}

/// Several clients of two servers write the same items: in pipelines, in commands with many items, and in transactions. A worker is killed
/// during the writes.
#[test]
fn keys_written_by_clients_are_emitted_once() {
    let (setup, outputs) = setup(broker(), &[("orders", ORDERS), ("sessions", SESSIONS), ("fields", FIELDS)]);
    let setup = short_timeouts(setup);
    let servers = ["s", "t"].map(|name| setup.serve(name, &WRITES));
    let mut first = Asker::connect(&servers[0].1);
    let refusal = error(&mut first, &["BF.ADD", "orders", "too-early"]);
    assert!(refusal.starts_with("LOADING"), "{refusal}");
    let mut worker = setup.start("a");
    for (_, _, status) in &servers {
        wait_until_fresh(status, LIMIT);
    }

    let items: Vec<_> = (0..ITEMS).map(|number| format!("o-{number}")).collect();
    // The number of times that a server confirmed a client as the first writer of an item, by server and item.
    let firsts = Mutex::new([HashMap::<&str, usize>::new(), HashMap::new()]);
    std::thread::scope(|scope| {
        for client in 0..6 {
            let (address, items, firsts) = (&servers[client % 2].1, &items, &firsts);
            scope.spawn(move || {
                let mut asker = Asker::connect(address);
                for items in items.chunks(50) {
                    let replies = match client / 2 {
                        0 => asker.ask_all(&items.iter().map(|item| words(&["BF.ADD", "orders", item])).collect::<Vec<_>>()),
                        1 => {
                            let all = items.iter().map(String::as_str);
                            let command: Vec<_> = ["BF.INSERT", "orders", "CAPACITY", "10", "ITEMS"].into_iter().chain(all).collect();
                            let Reply::Array(replies) = asker.ask(&command) else { panic!("no list") };
                            replies
                        }
                        _ => {
                            let mut pipeline = vec![words(&["MULTI"])];
                            pipeline.extend(items.iter().map(|item| words(&["CF.ADDNX", "orders", item])));
                            pipeline.push(words(&["EXEC"]));
                            let Some(Reply::Array(replies)) = asker.ask_all(&pipeline).pop() else { panic!("no list") };
                            replies
                        }
                    };
                    assert_eq!(replies.len(), items.len());
                    let mut firsts = firsts.lock().expect("no client has failed");
                    for (item, reply) in items.iter().zip(replies) {
                        match reply {
                            Reply::Integer(1) => *firsts[client % 2].entry(item).or_default() += 1,
                            Reply::Integer(0) => {}
                            other => panic!("{item}: {other:?}"),
                        }
                    }
                }
            });
        }
        worker.kill9();
    });
    let firsts = firsts.into_inner().expect("no client has failed");
    for item in &items {
        let said = firsts.each_ref().map(|firsts| firsts.get(item.as_str()).copied().unwrap_or_default());
        assert!(said.iter().all(|&count| count <= 1) && said != [0, 0], "{item}: {said:?}");
    }

    let mut worker = setup.start("b");
    wait_for_output(broker(), &outputs[0], ITEMS, PARTITIONS, LIMIT, &mut worker);
    // A key with two parts. The server chooses the partition of its record.
    let mut second = Asker::connect(&servers[1].1);
    assert_eq!(number(&mut second, &["BF.ADD", "sessions:{u1}", "login"]), 1);
    assert_eq!(number(&mut first, &["BF.EXISTS", "orders", "never"]), 0);
    for (_, _, status) in &servers {
        wait_until_fresh(status, LIMIT);
    }
    assert_eq!(number(&mut first, &["BF.ADD", "orders", "o-1"]), 0, "the key was emitted already");
    wait_until("the key of two parts is seen", LIMIT, || (number(&mut first, &["BF.EXISTS", "sessions:{u1}", "login"]) == 1).then_some(()));
    // A retracted key can be emitted again.
    assert_eq!(number(&mut second, &["CF.DEL", "orders", "o-1"]), 1);
    wait_until("the key is forgotten", LIMIT, || (number(&mut second, &["CF.EXISTS", "orders", "o-1"]) == 0).then_some(()));
    assert_eq!(number(&mut second, &["CF.ADD", "orders", "o-1"]), 1);
    wait_for_output(broker(), &outputs[0], ITEMS + 1, PARTITIONS, LIMIT, &mut worker);
    worker.drain();

    let mut count = HashMap::<Vec<u8>, usize>::new();
    for record in read_committed(broker(), &outputs[0], PARTITIONS).concat() {
        *count.entry(record.key.expect("a key")).or_default() += 1;
    }
    assert_eq!(count.remove(&b"o-1"[..]), Some(2));
    assert!(count.len() == ITEMS - 1 && count.values().all(|&count| count == 1), "{} keys, some more than once", count.len());
    let [session] = &read_committed(broker(), &outputs[1], PARTITIONS).concat()[..] else { panic!("one record") };
    assert_eq!(session.headers, [("user".to_owned(), Some(b"u1".to_vec()))]);
    assert_eq!(session.value.as_deref(), Some(&b"login"[..]));

    for (command, reason) in [
        (&["BF.ADD", "fields", "1"][..], "consist of the record key"),
        (&["CF.DEL", "sessions:{u1}", "login"], "no `retract`"),
        (&["BF.INSERT", "orders", "SIZE", "1"], "items must follow ITEMS"),
        (&["BF.RESERVE", "orders", "1e-10", "100"], "change the filter in the configuration"),
        (&["BF.SCANDUMP", "orders", "0"], "cannot be saved or loaded"),
        (&["DEL", "orders"], "can only be deleted in the configuration"),
    ] {
        let text = error(&mut first, command);
        assert!(text.contains(reason), "{command:?}: {text}");
    }
    assert_eq!(first.ask(&["BF.RESERVE", "orders", "0.01", "1000"]), Reply::Simple("OK".to_owned()));
    for (server, ..) in servers {
        server.drain();
    }
}

/// The topic has the default value of `on_invalid`, which stops the worker at a record without a readable key. The server must therefore
/// reject such records.
#[test]
fn a_client_cannot_write_a_record_that_stops_the_worker() {
    let (setup, outputs) = setup(broker(), &[("framed", FRAMED), ("orders", ORDERS)]);
    let (server, address, status) = setup.serve("s", &WRITES);
    let mut worker = setup.start("a");
    wait_until_fresh(&status, LIMIT);
    let mut asker = Asker::connect(&address);
    for item in ["o-1", "\"o-1\"", "{}"] {
        let text = error(&mut asker, &["BF.ADD", "framed", item]);
        assert!(text.starts_with("READONLY") && text.contains("does not begin with the frame"), "{item}: {text}");
    }
    assert_eq!(number(&mut asker, &["BF.ADD", "orders", "o-1"]), 1);
    wait_for_output(broker(), &outputs[1], 1, PARTITIONS, LIMIT, &mut worker);
    worker.drain();
    server.drain();
}

/// A write that no broker acknowledges fails with an error instead of waiting forever, and its key can be written again.
#[test]
fn a_write_without_brokers_is_an_error() {
    let mut own = OwnBroker::start();
    let (setup, outputs) = setup(own.address(), &[("orders", ORDERS)]);
    let (server, address, status) = setup.serve("s", &WRITES);
    let mut worker = setup.start("a");
    wait_until_fresh(&status, LIMIT);
    let mut asker = Asker::connect(&address);
    assert_eq!(number(&mut asker, &["BF.ADD", "orders", "o-0"]), 1);
    own.pause();
    let text = error(&mut asker, &["BF.ADD", "orders", "o-1"]);
    assert!(text.ends_with("the record may be in the topic anyway"), "{text}");
    own.resume();
    // The broker may have received the failed write despite the error. Whether it has or not, the key is emitted once.
    number(&mut asker, &["BF.ADD", "orders", "o-1"]);
    wait_for_output(own.address(), &outputs[0], 2, PARTITIONS, LIMIT, &mut worker);
    worker.drain();
    assert_eq!(read_committed(own.address(), &outputs[0], PARTITIONS).concat().len(), 2);
    server.drain();
}

/// After SIGTERM, a server waits until the brokers acknowledge its writes, including the writes of disconnected clients. After
/// `worker.shutdown_timeout`, the server logs the number of unacknowledged writes.
#[test]
fn a_stopped_server_finishes_its_writes() {
    let mut own = OwnBroker::start();
    let (setup, outputs) = setup(own.address(), &[("orders", ORDERS)]);
    let (mut server, address, status) = setup.serve("s", &WRITES);
    let (mut hasty, hasty_address, hasty_status) = setup.serve("t", &[WRITES[0], WRITES[1], "worker.shutdown_timeout=1s"]);
    let mut worker = setup.start("a");
    wait_until_fresh(&status, LIMIT);
    wait_until_fresh(&hasty_status, LIMIT);
    let wait_for_commands = |status: &str, commands: u32| {
        let line = format!("unseen_serve_commands_total {commands}");
        wait_until("the server has read the commands", LIMIT, || {
            http(status, "GET /metrics", "").1.lines().any(|other| other == line).then_some(())
        });
    };
    let (mut waiting, mut gone) = (Asker::connect(&address), Asker::connect(&address));
    assert_eq!(number(&mut waiting, &["BF.ADD", "orders", "o-0"]), 1);
    own.pause();
    waiting.send(b"BF.ADD orders o-1\r\n");
    gone.send(b"BF.ADD orders o-2\r\n");
    wait_for_commands(&status, 3);
    drop(gone);
    server.sigterm();
    server.wait_for_log("shutting down", LIMIT);
    own.resume();
    assert_eq!(waiting.reply(), Reply::Integer(1));
    assert!(waiting.is_closed());
    let status = server.wait(LIMIT);
    assert!(status.success(), "the server ended with {status}");
    wait_for_output(own.address(), &outputs[0], 3, PARTITIONS, LIMIT, &mut worker);
    worker.drain();
    own.pause();
    let mut given_up = Asker::connect(&hasty_address);
    given_up.send(b"BF.ADD orders o-3\r\n");
    wait_for_commands(&hasty_status, 1);
    hasty.sigterm();
    let (status, log) = (hasty.wait(LIMIT), hasty.log());
    own.resume();
    assert!(status.success() && log.contains("did not acknowledge these writes of clients"), "{status}: {log}");
}

/// The partition of a key depends on the partition count. Keys that were written before the change stay in their old partitions, and keys
/// that are written after it go to their new partitions. Servers must find both kinds of keys.
#[test]
fn keys_are_found_after_partitions_are_added() {
    let [input, output] = ["grow-in", "grow-out"].map(|hint| topic(broker(), hint, 2));
    let setup = Setup::new(broker(), "grow")
        .worker("commit_interval = \"100ms\"\ncheckpoint_interval = \"1s\"")
        .properties("\"topic.metadata.refresh.interval.ms\" = 500")
        .topic(&input, &output, ORDERS);
    let mut worker = setup.start("a");
    let (server, address, status) = setup.serve("s", &WRITES);
    wait_until_fresh(&status, LIMIT);
    let mut asker = Asker::connect(&address);
    let items = |begin: &str| -> Vec<String> { (0..200).map(|number| format!("{begin}-{number}")).collect() };
    let command = |name: &str, items: &[String]| [name, "orders"].into_iter().map(str::to_owned).chain(items.iter().cloned()).collect();
    let all = |number| Reply::Array(vec![Reply::Integer(number); 200]);
    let are_seen = |asker: &mut Asker, items: &[String]| {
        wait_until("all keys are seen", LIMIT, || (asker.ask_all(&[command("BF.MEXISTS", items)]) == [all(1)]).then_some(()));
    };
    assert_eq!(asker.ask_all(&[command("BF.MADD", &items("before"))]), [all(1)]);
    are_seen(&mut asker, &items("before"));

    add_partitions(broker(), &input, 4);
    worker.wait_for_log("partitions were added", LIMIT);
    let mut written = Vec::new();
    // The producer learns of the new partitions some seconds later.
    wait_until("something is written to a new partition", LIMIT, || {
        let items = items(&format!("after-{}", written.len()));
        let replies = asker.ask_all(&[command("BF.MADD", &items)]);
        if matches!(&replies[..], [Reply::Error(why)] if why.starts_with("LOADING")) {
            // The owner of the new partitions has not written to their changelog partitions yet, so the server has rejected the command and
            // has written nothing to the input.
            return None;
        }
        assert_eq!(replies, [all(1)]);
        written.push(items);
        read_committed(broker(), &input, 4)[2..].iter().any(|records| !records.is_empty()).then_some(())
    });
    written.push(items("before"));
    let (other, elsewhere, _) = setup.serve("t", &[]);
    for address in [&address, &elsewhere] {
        let mut asker = Asker::connect(address);
        for items in &written {
            are_seen(&mut asker, items);
        }
        assert_eq!(asker.ask_all(&[command("BF.MEXISTS", &items("never"))]), [all(0)]);
    }
    other.drain();
    server.drain();
    worker.drain();
}
