//! Promise: the dashboard shows the status, makes requests to no other host, and is readable on any screen.

use crate::harness::{Feed, Setup, TestRecord, broker, make_topic, produce, topic, wait_for_output, wait_until};
use crate::observed::address;
use crate::stream::{LIMIT, PARTITIONS};
use std::process::Command;
use std::time::{SystemTime, UNIX_EPOCH};

#[test]
fn the_dashboard_works_in_a_browser() {
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
    let said = check(&address, None);
    assert!(said.is_ok(), "{}", said.unwrap_err());
    worker.drain();
}

fn check(address: &str, pictures: Option<&str>) -> Result<(), String> {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/dashboard/check.mjs");
    let page = format!("http://{address}/");
    let args = [script, &page].into_iter().chain(pictures);
    let check = Command::new("node").args(args).output().expect("node runs; see scripts/setup.sh");
    let said = String::from_utf8_lossy(&check.stdout).into_owned() + &String::from_utf8_lossy(&check.stderr);
    if check.status.success() { Ok(()) } else { Err(said) }
}

/// Takes the pictures for the docs: `UNSEEN_PICTURES=docs cargo test ... -- --ignored pictures`.
#[test]
#[ignore = "it makes pictures, and proves nothing more"]
fn take_pictures_for_the_docs() {
    let dir = std::env::var("UNSEEN_PICTURES").expect("UNSEEN_PICTURES is set to a directory");
    let made = |name: &str| format!("{name}.{:x}", std::process::id());
    let [news, videos] = ["news.events", "videos.watched"].map(made);
    let [fresh, unwatched] = ["news.unseen", "videos.unwatched"].map(made);
    for name in [&news, &videos, &fresh, &unwatched] {
        make_topic(broker(), name, 4);
    }
    let key = "key = [{ record = \"key\" }]\nwindow = \"24h\"";
    let roomy = format!("space = \"seen-news\"\n{key}\nfilter = {{ capacity = \"1M\", false_positive_rate = 1e-3 }}");
    // This filter is too small, so the dashboard shows an exceeded false-positive rate.
    let tight = "filter = { capacity = \"250k\", false_positive_rate = 0.01, adapt = false, max_memory = \"540KiB\", at_max_memory = \"saturate\" }";
    let tight = format!("space = \"seen-videos\"\n{key}\n{tight}");
    let setup = Setup::new(broker(), "pictures")
        .worker("checkpoint_interval = \"2s\"")
        .topic(&news, &fresh, &roomy)
        .topic(&videos, &unwatched, &tight);
    let now = i64::try_from(SystemTime::now().duration_since(UNIX_EPOCH).expect("a clock").as_millis()).expect("a time");
    let feed = |topic: &str, repeats: u32, per_second: u32| {
        let record = move |number: u32| {
            let key = if number % 100 < repeats { number.wrapping_mul(2_654_435_761) % number.max(1) } else { number };
            let timestamp = now + i64::from(number) * 1000 / i64::from(per_second);
            TestRecord { partition: (key % 4).cast_signed(), key: Some(key.to_string().into_bytes()), timestamp, ..TestRecord::default() }
        };
        Feed::start(broker(), topic, (0..90 * per_second).map(record).collect(), per_second)
    };
    let mut worker = setup.start("a");
    let address = address(&mut worker);
    let feeds = [feed(&news, 45, 4000), feed(&videos, 20, 2500)];
    wait_until("half of the records are written", LIMIT, || (feeds[1].sent() > 45 * 2500).then_some(()));
    let said = check(&address, Some(&dir));
    assert!(said.is_ok(), "{}", said.unwrap_err());
    worker.kill9();
}
