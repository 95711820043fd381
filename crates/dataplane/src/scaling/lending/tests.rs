use super::*;
use tailwater_handover::park::{Mode, park};
use tailwater_policy::broker::{BrokerConfig, LeastSlackBroker};

const OBJECTIVE: Nanos = Nanos::from_micros(200);

fn pool(cores: usize) -> AuxiliaryPool {
    let cores = (1..=cores).map(|number| (number, park(Mode::Spin).1)).collect();
    let broker = LeastSlackBroker::new(BrokerConfig::default());
    AuxiliaryPool::new(cores, 1, Box::new(broker))
}

/// Publishes packets that have waited for `waited`, of 1 µs each.
fn publish(borrower: &Borrower, packets: usize, waited: u64, now: Nanos) {
    borrower.board.packet_time.store(1_000 * PART, Ordering::Relaxed);
    let oldest = Nanos(now.0 - waited);
    let helpers = borrower.board.helpers.load(Ordering::Relaxed);
    borrower.publish(packets, Some(oldest), helpers, now);
}

#[test]
fn a_core_is_one_dispatchers_at_a_time() {
    let pool = pool(1);
    let (one, other) = (pool.borrower(OBJECTIVE, 1), pool.borrower(OBJECTIVE, 1));
    let now = Nanos::from_millis(1);
    assert_eq!(one.availability(0), Availability::Free);
    assert!(!one.activate(0, now), "it has no backlog");
    publish(&one, 300, 10_000, now);
    publish(&other, 300, 10_000, now);
    assert!(one.activate(0, now));
    assert_eq!(
        (one.availability(0), other.availability(0)),
        (Availability::Taken, Availability::Taken)
    );
    assert!(!other.activate(0, now), "both are as urgent");
    one.release(0);
    assert_eq!(other.availability(0), Availability::Free);
    assert!(other.activate(0, now));
}

/// The holder's lease ends, it is told to send nothing new, and the other one gets the core once it is released.
#[test]
fn a_lease_that_ends_goes_to_the_more_urgent() {
    let pool = pool(1);
    let (one, other) = (pool.borrower(OBJECTIVE, 1), pool.borrower(OBJECTIVE, 1));
    let start = Nanos::from_millis(1);
    publish(&one, 300, 10_000, start);
    assert!(one.activate(0, start));
    // Leases last for twice the objective.
    let later = start + Nanos(2 * OBJECTIVE.0 + 1);
    // It is nearly done; its lease would be extended otherwise.
    one.publish(1, Some(later), 1, Nanos(later.0 - 2));
    publish(&other, 300, 150_000, later);
    assert_eq!(one.availability(0), Availability::Withdrawn);
    assert!(!other.activate(0, later), "packets of the other one are still there");
    one.release(0);
    assert_eq!(one.availability(0), Availability::Taken);
    assert!(other.activate(0, later));
}

#[test]
fn a_lease_is_extended_while_nobody_else_needs_the_core() {
    let pool = pool(1);
    let one = pool.borrower(OBJECTIVE, 1);
    let mut now = Nanos::from_millis(1);
    publish(&one, 300, 10_000, now);
    assert!(one.activate(0, now));
    for _ in 0..10 {
        now += Nanos(2 * OBJECTIVE.0 + 1);
        publish(&one, 300, 10_000, now);
        assert_eq!(one.availability(0), Availability::Taken);
    }
    // Without a backlog it ends.
    now += Nanos(2 * OBJECTIVE.0 + 1);
    one.publish(0, None, 1, now);
    assert_eq!(one.availability(0), Availability::Withdrawn);
}

#[test]
fn a_dispatcher_that_is_gone_holds_nothing() {
    let pool = pool(2);
    let one = pool.borrower(OBJECTIVE, 1);
    let now = Nanos::from_millis(1);
    publish(&one, 300, 10_000, now);
    assert!(one.activate(0, now));
    drop(one);
    let next = pool.borrower(OBJECTIVE, 1);
    assert_eq!(next.id, 1, "its number is used again");
    assert_eq!(next.availability(0), Availability::Free);
    publish(&next, 300, 10_000, now);
    assert!(next.activate(0, now));
}

/// A chain that is offered far more than its share of the cores yields to one within its share.
#[test]
fn an_overloaded_chain_yields() {
    let pool = pool(1);
    let (flood, calm) = (pool.borrower(OBJECTIVE, 1), pool.borrower(OBJECTIVE, 1));
    let mut now = Nanos::from_millis(1);
    for _ in 0..3_000 {
        now += MEASURE_INTERVAL;
        // 5 cores of load.
        flood.received(5_000);
        publish(&flood, 2_000, 100_000, now);
    }
    // One core for two chains leaves nothing to one in overload: a part is spare.
    assert!(!flood.activate(0, now));
    publish(&calm, 200, 60_000, now);
    assert!(calm.activate(0, now));
}

#[test]
fn the_time_of_a_packet_is_a_recent_mean() {
    let pool = pool(1);
    let one = pool.borrower(OBJECTIVE, 1);
    let time = || one.board.packet_time.load(Ordering::Relaxed) / PART;
    for _ in 0..1_000 {
        one.learn(32, Nanos(32 * 500));
    }
    assert!((480..=500).contains(&time()), "{}", time());
    for _ in 0..1_000 {
        one.learn(32, Nanos(32 * 900));
    }
    assert!((850..=900).contains(&time()), "{}", time());
}
