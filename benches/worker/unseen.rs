//! The worker itself.

use super::broker::{Broker, TOPIC};
use super::{Clock, Cost};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use unseen::checkpoint::Store;
use unseen::config::Config;
use unseen::kafka;
use unseen::stats::Stats;
use unseen::worker::{Shared, Worker};

/// Has a new worker with an empty state read all records.
pub fn work(broker: &Broker, records: usize, commit_interval: Duration, changelog: bool) -> Cost {
    let dir = tempfile::tempdir().expect("a directory");
    let (output, group) = (broker.new_name("out"), broker.new_name("group"));
    broker.create(&output);
    let text = format!(
        r#"
        [kafka]
        bootstrap_servers = "{}"
        group_id = "{group}"
        [worker]
        commit_interval = "{commit_interval:?}"
        transaction_records_max = 10000000
        [state]
        dir = "{}"
        changelog = {changelog}
        [[topics]]
        input = "{TOPIC}"
        output = "{output}"
        key = [{{ json = "/id" }}]
        window = "24h"
        filter = {{ kind = "aging", capacity = "10M", false_positive_rate = 1e-4 }}
        "#,
        broker.address,
        dir.path().display(),
    );
    let file = dir.path().join("unseen.toml");
    std::fs::write(&file, text).expect("a configuration");
    let shared = shared(&file);
    let worker = {
        let shared = shared.clone();
        // By that name, a profiler tells it from librdkafka's threads.
        std::thread::Builder::new().name("worker".to_owned()).spawn(move || Worker::connect(shared, 0)?.run(0)).expect("a thread")
    };
    let wait = |count: usize| {
        while shared.stats.totals().records < count as u64 {
            assert!(!worker.is_finished(), "the worker has ended");
            std::thread::sleep(Duration::from_micros(500));
        }
    };
    wait(1);
    let before = usize::try_from(shared.stats.totals().records).expect("a count");
    let clock = Clock::start();
    wait(records);
    let cost = clock.stop(records - before);
    shared.stop.store(true, Ordering::Relaxed);
    worker.join().expect("it does not panic").expect("it ends in good order");
    let unseen = shared.stats.totals().unseen;
    assert!(unseen.abs_diff(records as u64 / 2) < 2000, "half of the records are repeats, and {unseen} came out");
    cost
}

fn shared(file: &Path) -> Shared {
    let config = Arc::new(Config::load(file, &[]).unwrap_or_else(|errors| panic!("{errors}")));
    let store = Arc::new(Store::open(&config.state.dir).expect("a store"));
    Shared {
        topology: Arc::new(kafka::discover(&config, &|| false).expect("the topics")),
        instance: store.instance_id().expect("an id").into(),
        store,
        stats: Arc::new(Stats::new(&config)),
        misplaced: Arc::default(),
        stop: Arc::new(AtomicBool::new(false)),
        config,
    }
}
