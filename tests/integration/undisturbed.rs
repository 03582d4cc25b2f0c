//! Promise: what comes out is what the exact window lets out, unchanged and in order.

use crate::harness::{PATIENCE, broker, client, produce};
use crate::stream::{RECORDS, Stream};
use rdkafka::producer::{BaseProducer, BaseRecord, Producer};

#[test]
fn undisturbed() {
    let stream = Stream::new(broker(), "undisturbed", RECORDS);
    produce(broker(), &stream.input, &stream.records);
    let worker = stream.setup.start("a");
    stream.check(worker);
}

#[test]
fn undisturbed_with_four_workers() {
    let stream = Stream::new(broker(), "workers", RECORDS / 4).with(|setup| setup.worker("workers = 4"));
    let feed = stream.feed(5);
    let worker = stream.setup.start("a");
    feed.join();
    stream.check(worker);
}

/// A producer that gave up a transaction never wrote what was in it: it must not count as seen.
#[test]
fn what_was_aborted_in_the_input_is_not_there() {
    const HALF: usize = 10_000;
    let stream = Stream::remembered(broker(), "aborted", 2 * HALF);
    stream.produce(..HALF);
    let producer: BaseProducer =
        client(broker()).set("transactional.id", format!("{}-producer", stream.input)).create().expect("a producer");
    producer.init_transactions(PATIENCE).expect("transactions");
    producer.begin_transaction().expect("a transaction");
    for record in &stream.records[HALF..] {
        let mut out = BaseRecord::<[u8], [u8]>::to(&stream.input).partition(record.partition).timestamp(record.timestamp);
        out.key = record.key.as_deref();
        out.payload = record.value.as_deref();
        producer.send(out).map_err(|(error, _)| error).expect("it is queued");
    }
    producer.flush(PATIENCE).expect("it is written");
    producer.abort_transaction(PATIENCE).expect("it is aborted");
    stream.produce(HALF..);
    let worker = stream.setup.start("a");
    stream.check(worker);
}
