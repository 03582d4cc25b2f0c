//! Promise: processing a record allocates no memory. The worker allocates only per batch, transaction, or checkpoint.

#![allow(unsafe_code)]

use crate::harness::{PATIENCE, broker, produce, wait_until};
use crate::stream::Stream;
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use unseen::broker::Broker as _;
use unseen::checkpoint::Store;
use unseen::config::Config;
use unseen::format::NoSchemas;
use unseen::kafka::KafkaBroker;
use unseen::stats::Stats;
use unseen::worker::{Rebuilder, Shared, Worker};

const RECORDS: usize = 240_000;
/// The number of records per transaction. It is so large that allocations per transaction are negligible in the number per record.
const TRANSACTION: usize = 20_000;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);

thread_local! {
    static IS_COUNTED: Cell<bool> = const { Cell::new(false) };
}

struct Counting;

fn count() {
    if IS_COUNTED.try_with(Cell::get).unwrap_or(false) {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
    }
}

// SAFETY: all calls are forwarded to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: guaranteed by the caller.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        // SAFETY: guaranteed by the caller.
        unsafe { System.dealloc(at, layout) }
    }

    unsafe fn realloc(&self, at: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count();
        // SAFETY: guaranteed by the caller.
        unsafe { System.realloc(at, layout, size) }
    }
}

#[test]
fn processing_a_record_does_not_allocate() {
    let stream = Stream::remembered(broker(), "allocations", RECORDS);
    produce(broker(), &stream.input, &stream.records);
    let shared = shared(&stream);
    let worker = {
        let shared = shared.clone();
        std::thread::spawn(move || {
            let worker = Worker::connect(shared, 0)?;
            IS_COUNTED.set(true);
            worker.run(0)
        })
    };
    let come_to = |records: usize| {
        wait_until("the records are read", PATIENCE, || {
            assert!(!worker.is_finished(), "the worker has ended");
            let read = shared.stats.totals().records;
            (read >= records as u64).then(|| (read, ALLOCATIONS.load(Ordering::Relaxed)))
        })
    };
    // After a third of the records, all buffers have reached their final size.
    let (before, allocated) = come_to(RECORDS / 3);
    let (after, allocated_after) = come_to(RECORDS - TRANSACTION);
    shared.stop.store(true, Ordering::Relaxed);
    worker.join().expect("it does not panic").expect("it ends in good order");
    let (records, allocations) = (after - before, allocated_after - allocated);
    assert!(allocated > 0, "nothing is counted");
    assert!(allocations * 50 < records, "{allocations} allocations for {records} records");
}

fn shared(stream: &Stream) -> Shared<KafkaBroker> {
    // With these settings, transactions end by their number of records, not by time.
    let overrides = [
        ("worker.max_transaction_records", TRANSACTION.to_string()),
        ("worker.transaction_timeout", "10m".to_owned()),
        ("worker.commit_interval", "4m".to_owned()),
        ("worker.checkpoint_interval", "10m".to_owned()),
    ];
    let overrides = overrides.map(|(name, value)| (name.to_owned(), value));
    let config = Config::load(&stream.setup.write_config("a"), &overrides).unwrap_or_else(|errors| panic!("{errors}"));
    let store = Arc::new(Store::open(&config.state.dir).expect("a store"));
    let (stats, stop) = (Arc::new(Stats::new(&config)), Arc::new(AtomicBool::new(false)));
    let (config, broker) = (Arc::new(config), KafkaBroker::new(Arc::clone(&stats)));
    Shared {
        cluster: Arc::new(broker.discover(&config, &|| false).expect("the topics")),
        schemas: Arc::new(NoSchemas),
        instance: store.instance_id().expect("an id").into(),
        rebuilder: Arc::new(Rebuilder::start(&broker, &config, &store, &stats, &stop)),
        broker,
        store,
        stats,
        cross_partition_keys: Arc::default(),
        stop,
        config,
    }
}
