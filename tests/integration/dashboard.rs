//! Promise: the page shows what the status says, asks nobody else, and can be read on any screen.

use crate::harness::{Setup, TestRecord, broker, produce, topic, wait_for_output};
use crate::observed::address;
use crate::stream::{LIMIT, PARTITIONS};
use std::process::Command;

#[test]
fn the_page_in_a_browser() {
    let (input, output) = (topic(broker(), "page-in", 4), topic(broker(), "page-out", 4));
    let lines = "space = \"page\"\nkey = [{ record = \"key\" }]\nwindow = \"1d\"\nfilter = { capacity = \"100k\" }";
    let setup =
        Setup::new(broker(), "page").worker("commit_interval = \"50ms\"\ncheckpoint_interval = \"300ms\"").topic(&input, &output, lines);
    let record = |number: u32| {
        let key = Some((number % 2_000).to_string().into_bytes());
        TestRecord { partition: (number % 4).cast_signed(), key, timestamp: 1_735_689_600_000 + i64::from(number), ..TestRecord::default() }
    };
    produce(broker(), &input, (0..4_000).map(record));
    let mut worker = setup.start("a");
    let address = address(&mut worker);
    wait_for_output(broker(), &output, 2_000, PARTITIONS, LIMIT, &mut worker);
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/dashboard/check.mjs");
    let check = Command::new("node").args([script, &format!("http://{address}/")]).output().expect("node runs; see scripts/setup.sh");
    let said = String::from_utf8_lossy(&check.stdout).into_owned() + &String::from_utf8_lossy(&check.stderr);
    assert!(check.status.success(), "{said}");
    worker.drain();
}
