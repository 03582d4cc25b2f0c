//! Transactions: fencing, timeouts, markers, and lost answers.

use super::*;
use crate::broker::ErrorCode;
use crate::sim::{Api, RequestFault, SimMembership};

/// Begins a transaction and sends a record to the first partition of `out`.
fn begin(producer: &SimProducer, value: &str) {
    producer.begin_transaction().unwrap();
    send(producer, &at("out", 0), value);
}

#[test]
fn committed_transaction_becomes_visible_and_an_aborted_one_does_not() {
    run(|simulation| {
        topic(simulation, "out", 2);
        let producer = producer(simulation, "a");
        begin(&producer, "1");
        send(&producer, &at("out", 1), "2");
        producer.commit_transaction(TIMEOUT).unwrap();
        begin(&producer, "3");
        assert!(producer.flush(TIMEOUT));
        producer.abort_transaction(TIMEOUT).unwrap();
        simulation.sleep(SECOND);
        assert_eq!((values(simulation, &at("out", 0)), values(simulation, &at("out", 1))), (vec!["1".to_owned()], vec!["2".to_owned()]));
        // The log contains a record, a marker, a record, and a marker.
        assert_eq!(simulation.offsets(&at("out", 0)), Some([0, 4, 4, 4]));
        assert!(!producer.has_late_request());
    });
}

#[test]
fn markers_follow_the_answer_and_the_next_transaction_waits_for_them() {
    run(|simulation| {
        topic(simulation, "out", 1);
        let producer = producer(simulation, "a");
        begin(&producer, "1");
        producer.commit_transaction(TIMEOUT).unwrap();
        let mut is_late = false;
        for number in 2..20 {
            is_late |= simulation.offsets(&at("out", 0)).is_some_and(|[_, stable, high, _]| stable < high);
            begin(&producer, &number.to_string());
            producer.commit_transaction(TIMEOUT).unwrap();
        }
        assert!(is_late, "the coordinator answers before it writes the markers");
        simulation.sleep(SECOND);
        assert_eq!(values(simulation, &at("out", 0)).len(), 19);
    });
}

#[test]
fn init_transactions_aborts_and_fences_the_previous_producer() {
    run(|simulation| {
        topic(simulation, "out", 1);
        let old = producer(simulation, "a");
        begin(&old, "old");
        assert!(old.flush(TIMEOUT));
        let new = producer(simulation, "a");
        let error = old.commit_transaction(TIMEOUT).unwrap_err();
        assert_eq!((error.code, error.is_fatal), (ErrorCode::Fenced, true));
        assert_eq!(old.begin_transaction().unwrap_err().code, ErrorCode::Fenced);
        begin(&new, "new");
        new.commit_transaction(TIMEOUT).unwrap();
        simulation.sleep(SECOND);
        assert_eq!(values(simulation, &at("out", 0)), ["new"]);
    });
}

#[test]
fn coordinator_aborts_a_transaction_that_times_out() {
    run(|simulation| {
        topic(simulation, "out", 1);
        let producer = producer(simulation, "a");
        begin(&producer, "1");
        assert!(producer.flush(TIMEOUT));
        assert_eq!(simulation.offsets(&at("out", 0)), Some([0, 0, 1, 1]));
        simulation.sleep(Duration::from_secs(21));
        assert_eq!(simulation.offsets(&at("out", 0)), Some([0, 2, 2, 2]));
        let error = producer.commit_transaction(TIMEOUT).unwrap_err();
        assert_eq!((error.code, error.is_fatal), (ErrorCode::Fenced, true));
        assert_eq!(values(simulation, &at("out", 0)), [""; 0]);
    });
}

#[test]
fn lost_answer_of_end_leaves_the_transaction_committed() {
    run(|simulation| {
        topic(simulation, "out", 1);
        let producer = producer(simulation, "a");
        begin(&producer, "1");
        simulation.set_request_fault(Api::EndTxn, RequestFault::LostAnswer);
        // The retry learns that the transaction is committed.
        producer.commit_transaction(TIMEOUT).unwrap();
        assert!(producer.has_late_request());
        // If the producer disappears after the broker has served `EndTxn`, the transaction is committed.
        begin(&producer, "2");
        simulation.set_request_fault(Api::EndTxn, RequestFault::LostAnswer);
        assert!(producer.commit_transaction(Duration::from_millis(5)).is_err_and(|error| error.is_retriable));
        drop(producer);
        drop(super::producer(simulation, "a"));
        simulation.sleep(SECOND);
        assert_eq!(values(simulation, &at("out", 0)), ["1", "2"]);
    });
}

#[test]
fn lost_request_of_end_leaves_the_transaction_to_the_next_producer() {
    run(|simulation| {
        topic(simulation, "out", 1);
        let producer = producer(simulation, "a");
        begin(&producer, "1");
        assert!(producer.flush(TIMEOUT));
        simulation.set_request_fault(Api::EndTxn, RequestFault::LostRequest);
        assert!(producer.commit_transaction(Duration::from_millis(5)).is_err_and(|error| error.is_retriable));
        drop(producer);
        drop(super::producer(simulation, "a"));
        simulation.sleep(SECOND);
        assert_eq!(values(simulation, &at("out", 0)), [""; 0]);
    });
}

/// KIP-890: in version 1 of the transaction protocol, `EndTxn` does not identify the transaction.
#[test]
fn late_end_of_one_transaction_ends_the_next_of_the_same_epoch() {
    run(|simulation| {
        topic(simulation, "out", 1);
        let producer = producer(simulation, "a");
        begin(&producer, "1");
        simulation.set_request_fault(Api::EndTxn, RequestFault::Late(2 * SECOND));
        producer.commit_transaction(TIMEOUT).unwrap();
        assert!(producer.has_late_request());
        begin(&producer, "2");
        assert!(producer.flush(TIMEOUT));
        assert_eq!(values(simulation, &at("out", 0)), ["1"]);
        simulation.sleep(3 * SECOND);
        assert_eq!(values(simulation, &at("out", 0)), ["1", "2"], "the late copy has committed the second transaction");
        let error = producer.abort_transaction(TIMEOUT).unwrap_err();
        assert!(error.is_fatal, "{error:?}");
    });
}

#[test]
fn late_end_has_no_effect_on_a_new_epoch() {
    run(|simulation| {
        topic(simulation, "out", 1);
        let first = producer(simulation, "a");
        begin(&first, "1");
        simulation.set_request_fault(Api::EndTxn, RequestFault::Late(2 * SECOND));
        first.commit_transaction(TIMEOUT).unwrap();
        let second = producer(simulation, "a");
        begin(&second, "2");
        assert!(second.flush(TIMEOUT));
        simulation.sleep(3 * SECOND);
        assert_eq!(values(simulation, &at("out", 0)), ["1"]);
        second.abort_transaction(TIMEOUT).unwrap();
    });
}

#[test]
fn offsets_of_an_open_transaction_block_committed() {
    run(|simulation| {
        topic(simulation, "in", 1);
        topic(simulation, "out", 1);
        let mut member = Member::join(simulation, None, false, &["in"]);
        assert!(drive(simulation, &mut [&mut member], |members| members[0].holds(1)));
        let (of, producer) = (at("in", 0), producer(simulation, "a"));
        begin(&producer, "1");
        let membership = member.consumer.membership().unwrap();
        producer.send_offsets(&[(of.clone(), 5, "note".to_owned())], &membership, TIMEOUT).unwrap();
        assert!(member.consumer.committed(std::slice::from_ref(&of)).is_err(), "the offsets are not stable");
        assert_eq!(simulation.committed("group", &of), None);
        producer.commit_transaction(TIMEOUT).unwrap();
        let committed = member.consumer.committed(std::slice::from_ref(&of)).unwrap();
        assert_eq!((committed[0].offset, &*committed[0].metadata), (Some(5), "note"));
    });
}

#[test]
fn offsets_of_an_old_generation_are_refused() {
    run(|simulation| {
        topic(simulation, "in", 2);
        let mut zombie = Member::join(simulation, None, false, &["in"]);
        assert!(drive(simulation, &mut [&mut zombie], |members| members[0].holds(2)));
        let membership = zombie.consumer.membership().unwrap();
        let mut other = Member::join(simulation, None, false, &["in"]);
        assert!(drive(simulation, &mut [&mut zombie, &mut other], |members| members.iter().all(|member| member.holds(1))));
        let producer = producer(simulation, "a");
        producer.begin_transaction().unwrap();
        let error = producer.send_offsets(&[(at("in", 0), 5, String::new())], &membership, TIMEOUT).unwrap_err();
        assert!(error.requires_abort, "{error:?}");
        producer.abort_transaction(TIMEOUT).unwrap();
        // The coordinator checks a request only if it contains a member id, a generation, or an instance id.
        producer.begin_transaction().unwrap();
        producer.send_offsets(&[(at("in", 0), 7, String::new())], &SimMembership::outsider("group"), TIMEOUT).unwrap();
        producer.commit_transaction(TIMEOUT).unwrap();
        simulation.sleep(SECOND);
        assert_eq!(simulation.committed("group", &at("in", 0)), Some((7, String::new())));
    });
}

#[test]
fn too_many_bytes_of_offsets_are_refused() {
    run(|simulation| {
        topic(simulation, "in", 1);
        let producer = producer(simulation, "a");
        for (count, metadata) in [(1, 5000), (2000, 1000)] {
            producer.begin_transaction().unwrap();
            let offsets: Vec<_> = (0..count).map(|partition| (at("in", partition), 1, "x".repeat(metadata))).collect();
            let error = producer.send_offsets(&offsets, &SimMembership::outsider("group"), TIMEOUT).unwrap_err();
            assert!(error.requires_abort, "{error:?}");
            producer.abort_transaction(TIMEOUT).unwrap();
        }
    });
}

#[test]
fn call_times_out_while_brokers_are_down_and_resumes() {
    run(|simulation| {
        topic(simulation, "out", 1);
        let producer = producer(simulation, "a");
        begin(&producer, "1");
        assert!(producer.flush(TIMEOUT));
        simulation.take_all_down(4 * SECOND);
        let error = producer.commit_transaction(SECOND).unwrap_err();
        assert!(error.is_retriable && !error.requires_abort, "{error:?}");
        while producer.commit_transaction(SECOND).is_err() {}
        simulation.sleep(SECOND);
        assert_eq!(values(simulation, &at("out", 0)), ["1"]);
    });
}

#[test]
fn lost_produce_response_does_not_duplicate_records() {
    run(|simulation| {
        topic(simulation, "out", 1);
        let producer = producer(simulation, "a");
        producer.begin_transaction().unwrap();
        for number in 0..20 {
            send(&producer, &at("out", 0), &number.to_string());
            if number % 5 == 0 {
                simulation.set_request_fault(Api::Produce, RequestFault::LostAnswer);
                assert!(producer.flush(TIMEOUT));
            }
        }
        producer.commit_transaction(TIMEOUT).unwrap();
        simulation.sleep(SECOND);
        assert_eq!(values(simulation, &at("out", 0)), (0..20).map(|number| number.to_string()).collect::<Vec<_>>());
    });
}

#[test]
fn producer_whose_transactional_id_expired_aborts_and_gets_another_producer_id() {
    run(|simulation| {
        topic(simulation, "out", 1);
        let producer = producer(simulation, "a");
        begin(&producer, "1");
        producer.commit_transaction(TIMEOUT).unwrap();
        simulation.sleep(SECOND);
        simulation.expire_transactional_ids();
        begin(&producer, "2");
        let error = producer.commit_transaction(TIMEOUT).unwrap_err();
        assert!(error.requires_abort && !error.is_fatal, "{error:?}");
        while producer.abort_transaction(TIMEOUT).is_err() {}
        begin(&producer, "3");
        producer.commit_transaction(TIMEOUT).unwrap();
        simulation.sleep(SECOND);
        assert_eq!(values(simulation, &at("out", 0)), ["1", "3"]);
    });
}
