//! Promise: a worker sends spans of its batches, commits, checkpoints, and restores to a collector. An unreachable collector delays
//! nothing, not even the end of the process.

use crate::harness::{Setup, TestRecord, broker, produce, topic, wait_for_output};
use crate::stream::{LIMIT, PARTITIONS};
use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::Duration;

fn collector() -> (String, Arc<Mutex<Vec<u8>>>) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = format!("http://{}", listener.local_addr().expect("an address"));
    let kept = Arc::new(Mutex::new(Vec::new()));
    let keep = Arc::clone(&kept);
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let (Ok(mut stream), keep) = (stream, Arc::clone(&keep)) else { continue };
            std::thread::spawn(move || {
                let (mut request, mut part) = (Vec::new(), [0; 8192]);
                while let Ok(length) = stream.read(&mut part) {
                    request.extend_from_slice(&part[..length]);
                    let text = String::from_utf8_lossy(&request).to_lowercase();
                    let body = text.find("\r\n\r\n").map(|end| end + 4);
                    let wanted = text.split("content-length: ").nth(1).and_then(|rest| rest.split("\r\n").next()?.parse::<usize>().ok());
                    if length == 0 {
                        return;
                    }
                    // Counts bytes, because the lossily decoded text may be longer.
                    if let (Some(_), Some(wanted)) = (body, wanted)
                        && request.windows(4).position(|end| end == b"\r\n\r\n").is_some_and(|head| request.len() >= head + 4 + wanted)
                    {
                        keep.lock().expect("no panic").append(&mut request);
                        let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n");
                    }
                }
            });
        }
    });
    (address, kept)
}

#[test]
fn spans_reach_a_collector() {
    let (address, kept) = collector();
    let (input, output) = (topic(broker(), "spans-in", 4), topic(broker(), "spans-out", 4));
    let lines = "space = \"s\"\nkey = [{ record = \"key\" }]\nwindow = \"1d\"\nfilter = { capacity = \"1k\" }";
    let setup = Setup::new(broker(), "spans")
        .worker("commit_interval = \"50ms\"\ncheckpoint_interval = \"300ms\"")
        .topic(&input, &output, lines)
        .environment("OTEL_EXPORTER_OTLP_ENDPOINT", &address);
    let record = |number: u8| TestRecord { key: Some(vec![number]), timestamp: 1_735_689_600_000, ..TestRecord::default() };
    produce(broker(), &input, (0..100).map(record));
    let mut worker = setup.start("a");
    wait_for_output(broker(), &output, 100, PARTITIONS, LIMIT, &mut worker);
    worker.drain();
    let kept = kept.lock().expect("no panic");
    let text = String::from_utf8_lossy(&kept);
    assert!(text.contains("POST /v1/traces"), "{text}");
    let bodies = text.split("POST /v1/traces").filter_map(|request| request.split("\r\n\r\n").nth(1));
    let spans: Vec<_> = bodies
        .map(|body| serde_json::from_str::<serde_json::Value>(body).expect("JSON"))
        .flat_map(|body| body["resourceSpans"][0]["scopeSpans"][0]["spans"].as_array().expect("a list").clone())
        .collect();
    for name in ["batch", "commit", "checkpoint", "restore"] {
        let span = spans.iter().find(|span| span["name"] == name).unwrap_or_else(|| panic!("no span {name}"));
        let time = |field: &str| span[field].as_str().and_then(|nanos| nanos.parse::<u128>().ok()).expect("nanoseconds");
        assert!(time("startTimeUnixNano") > 0 && time("startTimeUnixNano") <= time("endTimeUnixNano"), "{span}");
        assert_eq!((span["traceId"].as_str().map(str::len), span["spanId"].as_str().map(str::len)), (Some(32), Some(16)));
    }
}

/// A listener that accepts no further connections, and the connections that fill its backlog. Connecting to the listener hangs.
fn unreachable() -> (TcpListener, Vec<TcpStream>) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("an address");
    let connect = || TcpStream::connect_timeout(&address, Duration::from_millis(300)).ok();
    // Fills the backlog of the listener.
    let waiting: Vec<_> = std::iter::from_fn(connect).take(100_000).collect();
    assert!(connect().is_none(), "the listener takes connections without end");
    (listener, waiting)
}

#[test]
fn unreachable_collector_does_not_delay_the_worker() {
    let (listener, _waiting) = unreachable();
    let address = format!("http://{}", listener.local_addr().expect("an address"));
    let (input, output) = (topic(broker(), "no-spans-in", 4), topic(broker(), "no-spans-out", 4));
    let lines = "space = \"s\"\nkey = [{ record = \"key\" }]\nwindow = \"1d\"\nfilter = { capacity = \"1k\" }";
    let setup = Setup::new(broker(), "no-spans")
        .worker("commit_interval = \"10ms\"\nshutdown_timeout = \"10s\"")
        .topic(&input, &output, lines)
        .environment("OTEL_EXPORTER_OTLP_ENDPOINT", &address);
    let record = |number: u8| TestRecord { key: Some(vec![number]), timestamp: 1_735_689_600_000, ..TestRecord::default() };
    produce(broker(), &input, (0..100).map(record));
    let mut worker = setup.start("a");
    wait_for_output(broker(), &output, 100, PARTITIONS, LIMIT, &mut worker);
    worker.sigterm();
    // If the worker had no timeouts for the collector, the operating system would try to connect for two minutes.
    assert!(worker.wait(Duration::from_secs(30)).success(), "the worker exited with an error");
}
