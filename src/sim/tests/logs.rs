//! Logs: visibility, offsets, and record validation.

use super::*;
use crate::broker::{ErrorCode, OutgoingRecord};

#[test]
fn aborted_records_are_invisible_and_markers_take_offsets() {
    run(|simulation| {
        topic(simulation, "in", 1);
        let of = at("in", 0);
        for (value, is_commit) in [("a", true), ("b", false), ("c", true)] {
            let pid = simulation.open_transaction(vec![(of.clone(), record(value))]);
            simulation.end_transaction(pid, &of, is_commit);
        }
        assert_eq!(simulation.offsets(&of), Some([0, 6, 6, 6]));
        assert_eq!(values(simulation, &of), ["a", "c"]);
        let offsets: Vec<_> = simulation.read(&of, Isolation::ReadUncommitted).iter().map(|record| record.offset).collect();
        assert_eq!(offsets, [0, 2, 4]);
    });
}

#[test]
fn open_transaction_holds_the_last_stable_offset() {
    run(|simulation| {
        topic(simulation, "in", 1);
        let of = at("in", 0);
        simulation.append(&of, record("a"));
        let pid = simulation.open_transaction(vec![(of.clone(), record("b"))]);
        simulation.append(&of, record("c"));
        assert_eq!(simulation.offsets(&of), Some([0, 1, 3, 3]));
        assert_eq!(values(simulation, &of), ["a"]);
        simulation.end_transaction(pid, &of, true);
        assert_eq!((simulation.offsets(&of), values(simulation, &of)), (Some([0, 4, 4, 4]), ["a", "b", "c"].map(str::to_owned).to_vec()));
    });
}

#[test]
fn lagging_followers_hold_the_high_watermark() {
    run(|simulation| {
        topic(simulation, "in", 1);
        let of = at("in", 0);
        simulation.append(&of, record("a"));
        simulation.lag(&of, SECOND);
        let pid = simulation.open_transaction(vec![(of.clone(), record("b"))]);
        simulation.end_transaction(pid, &of, true);
        assert_eq!(simulation.offsets(&of), Some([0, 1, 1, 3]));
        simulation.sleep(2 * SECOND);
        assert_eq!(simulation.offsets(&of), Some([0, 3, 3, 3]));
    });
}

#[test]
fn recreated_topic_has_a_new_id_an_empty_log_and_no_committed_offsets() {
    run(|simulation| {
        topic(simulation, "in", 1);
        let (of, id) = (at("in", 0), simulation.topic_id("in"));
        simulation.append(&of, record("a"));
        simulation.set_committed("group", &of, Some(1));
        simulation.delete_topic("in");
        assert_eq!((simulation.topic_id("in"), simulation.committed("group", &of)), (None, None));
        topic(simulation, "in", 1);
        assert_ne!(simulation.topic_id("in"), id);
        assert_eq!((simulation.offsets(&of), simulation.committed("group", &of)), (Some([0; 4]), None));
    });
}

#[test]
fn position_outside_the_log_is_reported_and_no_longer_read() {
    run(|simulation| {
        topic(simulation, "in", 1);
        let of = at("in", 0);
        append(simulation, &of, (0..10).map(|number| number.to_string()));
        let mut member = Member::join(simulation, None, false, &["in"]);
        assert!(drive(simulation, &mut [&mut member], |members| members[0].read.len() == 10));
        simulation.truncate(&of, 4);
        let mut batch = Batch::default();
        while !batch.out_of_range {
            member.consumer.poll(&mut batch, 10, SECOND).unwrap();
        }
        // Deletes the records below offset 3, as retention does. The later seek to offset 1 is then below the log start offset.
        simulation.append(&of, record("new"));
        simulation.delete_before(&of, 3);
        assert!(member.consumer.seek(&of, 3).is_err(), "librdkafka has stopped reading the partition");
        member.consumer.restart(std::slice::from_ref(&of), &[(of.clone(), 3)]).unwrap();
        batch.out_of_range = false;
        while batch.messages.len() < 2 {
            member.consumer.poll(&mut batch, 10, SECOND).unwrap();
        }
        assert_eq!(batch.messages.iter().map(crate::broker::Record::offset).collect::<Vec<_>>(), [3, 4]);
        member.consumer.seek(&of, 1).unwrap();
        while !batch.out_of_range {
            member.consumer.poll(&mut batch, 10, SECOND).unwrap();
        }
    });
}

#[test]
fn truncation_is_detected_after_the_log_has_grown_again() {
    run(|simulation| {
        topic(simulation, "in", 1);
        let of = at("in", 0);
        append(simulation, &of, (0..10).map(|number| number.to_string()));
        let mut member = Member::join(simulation, None, false, &["in"]);
        assert!(drive(simulation, &mut [&mut member], |members| members[0].read.len() == 10));
        simulation.truncate(&of, 4);
        append(simulation, &of, (0..10).map(|number| format!("new {number}")));
        let mut batch = Batch::default();
        while !batch.out_of_range {
            member.consumer.poll(&mut batch, 10, SECOND).unwrap();
            assert!(batch.messages.is_empty(), "the position is past the truncated records");
        }
    });
}

#[test]
fn compaction_leaves_gaps() {
    run(|simulation| {
        topic(simulation, "in", 1);
        let of = at("in", 0);
        append(simulation, &of, ["a", "b", "c"]);
        simulation.compact("in");
        let records = simulation.read(&of, Isolation::ReadCommitted);
        assert_eq!(records.iter().map(|record| record.offset).collect::<Vec<_>>(), [2]);
        assert_eq!(simulation.offsets(&of), Some([0, 3, 3, 3]));
    });
}

#[test]
fn topics_reject_invalid_records() {
    run(|simulation| {
        let compacted = TopicOptions { is_compacted: true, ..TopicOptions::default() };
        let strict = TopicOptions { before_max_ms: 1000, max_message_bytes: 200, ..TopicOptions::default() };
        simulation.create_topic("compacted", 1, compacted);
        simulation.create_topic("strict", 1, strict);
        let producer = producer(simulation, "a");
        let large = "x".repeat(300);
        let cases: [(OutgoingRecord<'_, _, _>, ErrorCode); 3] = [
            (OutgoingRecord { key: None, ..outgoing("compacted", 0, "v") }, ErrorCode::InvalidRecord),
            (OutgoingRecord { time: OutgoingTime::At(5), ..outgoing("strict", 0, "v") }, ErrorCode::InvalidTimestamp),
            (outgoing("strict", 0, &large), ErrorCode::TooLarge),
        ];
        for (refused, code) in cases {
            producer.begin_transaction().unwrap();
            producer.send(&OutgoingRecord { tag: 5, ..refused }).unwrap();
            assert!(producer.flush(TIMEOUT));
            let failures = producer.take_failures();
            assert_eq!(failures.iter().map(|failure| (failure.tag, failure.code)).collect::<Vec<_>>(), [(5, code)]);
            let error = producer.commit_transaction(TIMEOUT).unwrap_err();
            assert!(error.requires_abort, "{error:?}");
            producer.abort_transaction(TIMEOUT).unwrap();
        }
        // The next transaction succeeds, because the abort has bumped the epoch.
        producer.begin_transaction().unwrap();
        send(&producer, &at("strict", 0), "fine");
        producer.commit_transaction(TIMEOUT).unwrap();
        simulation.sleep(SECOND);
        assert_eq!(values(simulation, &at("strict", 0)), ["fine"]);
    });
}

#[test]
fn log_append_time_replaces_timestamps() {
    run(|simulation| {
        simulation.create_topic("in", 1, TopicOptions { log_append_time: true, ..TopicOptions::default() });
        simulation.append(&at("in", 0), NewRecord { time: Some(5), ..record("a") });
        let records = simulation.read(&at("in", 0), Isolation::ReadCommitted);
        assert_eq!(records[0].time_type, crate::record::TimestampType::LogAppendTime);
        assert!(records[0].time >= simulation.lock().options.epoch_ms);
    });
}

#[test]
fn paused_partition_continues_after_the_last_consumed_record() {
    run(|simulation| {
        topic(simulation, "in", 1);
        let of = at("in", 0);
        append(simulation, &of, (0..50).map(|number| number.to_string()));
        let mut member = Member::join(simulation, None, false, &["in"]);
        assert!(drive(simulation, &mut [&mut member], |members| members[0].holds(1)));
        member.consumer.seek(&of, 0).unwrap();
        let mut batch = Batch::default();
        while batch.messages.len() < 5 {
            member.consumer.poll(&mut batch, 1, SECOND).unwrap();
        }
        member.consumer.pause(std::slice::from_ref(&of)).unwrap();
        let before = batch.messages.len();
        member.consumer.poll(&mut batch, 10, SECOND).unwrap();
        assert_eq!(batch.messages.len(), before, "a paused partition is not read");
        member.consumer.resume(std::slice::from_ref(&of)).unwrap();
        while batch.messages.len() < 50 {
            member.consumer.poll(&mut batch, 10, SECOND).unwrap();
        }
        let offsets: Vec<_> = batch.messages.iter().map(crate::broker::Record::offset).collect();
        assert_eq!(offsets, (0..50).collect::<Vec<_>>());
        assert_eq!(member.consumer.end(&of), Some(50));
    });
}
