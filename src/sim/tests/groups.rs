//! Groups: rebalances, sessions, and static members.

use super::*;
use crate::broker::Error;
use crate::sim::Ended;

fn read_values(members: &[&Member]) -> BTreeMap<String, u32> {
    counts(members.iter().flat_map(|member| member.read.iter().map(|(_, _, value)| value.clone())))
}

#[test]
fn cooperative_rebalance_moves_partitions_in_two_rounds() {
    run(|simulation| {
        topic(simulation, "in", 4);
        let mut first = Member::join(simulation, None, false, &["in"]);
        assert!(drive(simulation, &mut [&mut first], |members| members[0].holds(4)));
        let (generation, _) = simulation.group("group");
        let mut second = Member::join(simulation, None, false, &["in"]);
        let never_shared = |members: &[&mut Member]| assert!(members[0].held.iter().all(|held| !members[1].held.contains(held)));
        assert!(drive(simulation, &mut [&mut first, &mut second], |members| {
            never_shared(members);
            members.iter().all(|member| member.holds(2))
        }));
        assert!(simulation.group("group").0 >= generation + 2, "one round to revoke, and one to assign");
        let revoked: Vec<_> = first.revocations.iter().map(|(partitions, lost)| (partitions.len(), *lost)).collect();
        assert_eq!(revoked, [(2, false)], "partitions that stay are never revoked");
    });
}

#[test]
fn eager_rebalance_revokes_everything() {
    run(|simulation| {
        topic(simulation, "in", 4);
        let mut first = Member::join(simulation, None, true, &["in"]);
        assert!(drive(simulation, &mut [&mut first], |members| members[0].holds(4)));
        let mut second = Member::join(simulation, None, true, &["in"]);
        assert!(drive(simulation, &mut [&mut first, &mut second], |members| members.iter().all(|member| member.holds(2))));
        assert_eq!(first.revocations.iter().map(|(partitions, lost)| (partitions.len(), *lost)).collect::<Vec<_>>(), [(4, false)]);
    });
}

#[test]
fn leaving_member_releases_its_partitions_at_once() {
    run(|simulation| {
        topic(simulation, "in", 4);
        let (mut first, mut second) = (Member::join(simulation, None, false, &["in"]), Member::join(simulation, None, false, &["in"]));
        assert!(drive(simulation, &mut [&mut first, &mut second], |members| members.iter().all(|member| member.holds(2))));
        let before = simulation.elapsed();
        second.consumer.close();
        assert!(drive(simulation, &mut [&mut first], |members| members[0].holds(4)));
        assert!(simulation.elapsed().saturating_sub(before) < 5 * SECOND);
    });
}

#[test]
fn session_of_a_killed_process_expires() {
    run(|simulation| {
        topic(simulation, "in", 4);
        let own = simulation.clone();
        let process = simulation.start("killed", move || {
            let mut member = Member::join(&own, None, false, &["in"]);
            while member.turn(SECOND) {}
        });
        let mut member = Member::join(simulation, None, false, &["in"]);
        assert!(drive(simulation, &mut [&mut member], |members| members[0].holds(2)));
        process.kill();
        let before = simulation.elapsed();
        assert!(drive(simulation, &mut [&mut member], |members| members[0].holds(4)));
        let took = simulation.elapsed().saturating_sub(before);
        assert!((8 * SECOND..20 * SECOND).contains(&took), "{took:?}");
    });
}

#[test]
fn static_member_returns_without_a_rebalance_and_fences_its_predecessor() {
    run(|simulation| {
        topic(simulation, "in", 4);
        let mut old = Member::join(simulation, Some("a"), true, &["in"]);
        let mut other = Member::join(simulation, Some("b"), true, &["in"]);
        assert!(drive(simulation, &mut [&mut old, &mut other], |members| members.iter().all(|member| member.holds(2))));
        let before = simulation.group("group");
        let mut new = Member::join(simulation, Some("a"), true, &["in"]);
        assert!(drive(simulation, &mut [&mut new, &mut other], |members| members[0].holds(2)));
        assert_eq!((simulation.group("group"), &new.held), (before, &old.held));
        let mut batch = Batch::default();
        let fenced =
            simulation.wait_for(SECOND, 10 * SECOND, || matches!(old.consumer.poll(&mut batch, 1, Duration::ZERO), Err(Error::Fenced)));
        assert!(fenced, "a heartbeat tells the old consumer that it is fenced");
    });
}

#[test]
fn static_member_that_closes_stays_until_its_session_expires() {
    run(|simulation| {
        topic(simulation, "in", 2);
        let mut first = Member::join(simulation, Some("a"), true, &["in"]);
        let mut second = Member::join(simulation, Some("b"), true, &["in"]);
        assert!(drive(simulation, &mut [&mut first, &mut second], |members| members.iter().all(|member| member.holds(1))));
        let before = simulation.elapsed();
        second.consumer.close();
        assert!(drive(simulation, &mut [&mut first], |members| members[0].holds(2)));
        assert!(simulation.elapsed().saturating_sub(before) > 8 * SECOND);
    });
}

#[test]
fn stopped_process_loses_its_partitions_and_is_notified() {
    run(|simulation| {
        topic(simulation, "in", 2);
        let own = simulation.clone();
        let process = simulation.start("stopped", move || {
            let mut member = Member::join(&own, None, false, &["in"]);
            while member.revocations.is_empty() || !member.revocations.iter().any(|(_, lost)| *lost) {
                member.turn(SECOND);
            }
            member.revocations.last().cloned()
        });
        let mut member = Member::join(simulation, None, false, &["in"]);
        assert!(drive(simulation, &mut [&mut member], |members| members[0].holds(1)));
        process.stop();
        assert!(drive(simulation, &mut [&mut member], |members| members[0].holds(2)));
        process.resume();
        let ended = drive(simulation, &mut [&mut member], |_| process.has_ended());
        assert!(ended, "the stopped process learns that it lost its partitions");
    });
}

#[test]
fn member_that_does_not_poll_loses_its_partitions() {
    run(|simulation| {
        topic(simulation, "in", 2);
        let mut idle = Member::join(simulation, None, false, &["in"]);
        let mut member = Member::join(simulation, None, false, &["in"]);
        assert!(drive(simulation, &mut [&mut idle, &mut member], |members| members.iter().all(|member| member.holds(1))));
        for _ in 0..32 {
            simulation.sleep(10 * SECOND);
            member.turn(Duration::ZERO);
        }
        assert!(drive(simulation, &mut [&mut member], |members| members[0].holds(2)));
        assert!(idle.consumer.lost());
        idle.consumer.assign(&[]).unwrap();
        assert!(!idle.consumer.lost(), "after any assignment, the partitions no longer count as lost");
        assert!(drive(simulation, &mut [&mut idle, &mut member], |members| members.iter().all(|member| member.holds(1))));
        assert!(idle.revocations.iter().any(|(_, lost)| *lost), "the revocation was still queued");
    });
}

/// librdkafka issue 3437: after an outage longer than the session, the client has forgotten its member id. Until the application answers
/// the revocation, the client sends heartbeats without an id. The coordinator fences a static member that sends such a heartbeat.
#[test]
fn static_member_is_fenced_after_an_outage_longer_than_its_session() {
    run(|simulation| {
        topic(simulation, "in", 1);
        let mut member = Member::join(simulation, Some("a"), true, &["in"]);
        assert!(drive(simulation, &mut [&mut member], |members| members[0].holds(1)));
        simulation.take_all_down(14 * SECOND);
        simulation.sleep(20 * SECOND);
        assert!(!member.turn(Duration::ZERO), "the member is fenced");
    });
}

#[test]
fn members_read_everything_across_rebalances() {
    run(|simulation| {
        topic(simulation, "in", 4);
        for number in 0..200 {
            simulation.append(&at("in", number % 4), record(&number.to_string()));
        }
        let mut first = Member::join(simulation, None, false, &["in"]);
        assert!(drive(simulation, &mut [&mut first], |members| members[0].read.len() > 20));
        let mut second = Member::join(simulation, None, false, &["in"]);
        let done = drive(simulation, &mut [&mut first, &mut second], |members| read_values(&[&*members[0], &*members[1]]).len() == 200);
        assert!(done, "{:?}", read_values(&[&first, &second]).len());
    });
}

#[test]
fn added_partitions_are_assigned() {
    run(|simulation| {
        topic(simulation, "in", 2);
        let mut member = Member::join(simulation, None, false, &["in"]);
        assert!(drive(simulation, &mut [&mut member], |members| members[0].holds(2)));
        simulation.add_partitions("in", 3);
        assert!(drive(simulation, &mut [&mut member], |members| members[0].holds(3)));
    });
}

#[test]
fn members_of_different_protocols_do_not_share_a_group() {
    run(|simulation| {
        topic(simulation, "in", 2);
        let mut eager = Member::join(simulation, None, true, &["in"]);
        assert!(drive(simulation, &mut [&mut eager], |members| members[0].holds(2)));
        let mut cooperative = Member::join(simulation, None, false, &["in"]);
        for _ in 0..100 {
            cooperative.turn(Duration::from_millis(100));
            eager.turn(Duration::from_millis(1));
        }
        assert!(cooperative.holds(0));
        eager.consumer.close();
        assert!(drive(simulation, &mut [&mut cooperative], |members| members[0].holds(2)));
    });
}

/// The client's background threads continue while the application does not poll, so the client leaves the group after
/// `max.poll.interval.ms`.
#[test]
fn member_that_does_not_poll_leaves_and_joins_again_at_its_next_poll() {
    run(|simulation| {
        topic(simulation, "in", 4);
        let consumer = SimConsumer::with_group(simulation, "group", None, false, false, |consumer| consumer.max_poll = 6_000_000);
        let consumer = consumer.unwrap();
        consumer.subscribe(&["in"]).unwrap();
        let mut member = Member { consumer, held: Vec::new(), read: Vec::new(), revocations: Vec::new() };
        assert!(drive(simulation, &mut [&mut member], |members| members[0].holds(4)));
        simulation.sleep(5 * SECOND);
        assert_eq!(simulation.group("group").1, 1);
        simulation.sleep(25 * SECOND);
        assert_eq!(simulation.group("group").1, 0, "the client has left and does not rejoin before the next poll");
        let rejoined = |members: &[&mut Member]| members[0].holds(4) && !members[0].revocations.is_empty();
        assert!(drive(simulation, &mut [&mut member], rejoined));
        assert_eq!(member.revocations.iter().map(|(partitions, lost)| (partitions.len(), *lost)).collect::<Vec<_>>(), [(4, true)]);
    });
}

#[test]
fn another_coordinator_knows_the_stored_members_but_no_rebalance() {
    run(|simulation| {
        topic(simulation, "in", 4);
        let (mut first, mut second) = (Member::join(simulation, None, true, &["in"]), Member::join(simulation, None, true, &["in"]));
        assert!(drive(simulation, &mut [&mut first, &mut second], |members| members.iter().all(|member| member.holds(2))));
        let (stored, before) = (simulation.group("group"), (first.revocations.len(), second.revocations.len()));
        simulation.move_all(0);
        let end = simulation.elapsed() + 15 * SECOND;
        drive(simulation, &mut [&mut first, &mut second], |_| simulation.elapsed() > end);
        assert_eq!((simulation.group("group"), (first.revocations.len(), second.revocations.len())), (stored, before));
        // The third member starts a rebalance. When the coordinators move again, the new coordinator does not know about that rebalance, so
        // the rebalance starts over.
        let mut third = Member::join(simulation, None, true, &["in"]);
        assert!(drive(simulation, &mut [&mut third], |_| simulation.group("group").1 == 3));
        simulation.move_all(0);
        assert_eq!(simulation.group("group"), stored);
        assert!(drive(simulation, &mut [&mut first, &mut second, &mut third], |members| members
            .iter()
            .all(|member| !member.held.is_empty())));
        assert!(simulation.group("group").0 > stored.0);
    });
}

#[test]
fn member_cut_off_from_its_coordinator_is_replaced_while_it_keeps_reading() {
    run(|simulation| {
        topic(simulation, "in", 3);
        let own = simulation.clone();
        let process = simulation.start("cut off", move || {
            let mut member = Member::join(&own, None, false, &["in"]);
            let end = own.elapsed() + 40 * SECOND;
            while own.elapsed() < end {
                member.turn(SECOND / 10);
            }
            (member.revocations.iter().any(|(_, lost)| *lost), member.read.len())
        });
        assert!(simulation.wait_for(SECOND, TIMEOUT, || simulation.group("group").1 == 1));
        simulation.sleep(2 * SECOND);
        let coordinator = simulation.lock().cluster.coordinator("group");
        process.cut_off(coordinator, 15 * SECOND);
        (0..3).for_each(|partition| append(simulation, &at("in", partition), ["1"]));
        assert!(simulation.wait_for(SECOND, 14 * SECOND, || simulation.group("group").1 == 0), "the session of the member expires");
        process.wait();
        let Some(Ended::Returned((was_lost, read))) = process.take_outcome() else { panic!("the process did not return") };
        assert!(was_lost && read >= 2, "the member reads from the other brokers: {read}");
    });
}
