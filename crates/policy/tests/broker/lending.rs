//! Who gets an auxiliary core.

use super::{OBJECTIVE, Server, broker};
use tailwater_net::Nanos;
use tailwater_policy::broker::{CoreUse, LendPlan};

#[test]
fn a_core_goes_to_the_least_slack() {
    let mut server = Server::new(3, 1);
    server.backlog(0, 60, 150, 1);
    server.backlog(1, 60, 70, 1);
    server.backlog(2, 60, 100, 1);
    server.lend(&mut broker());
    assert_eq!(server.lent(), [Some(1)]);
}

#[test]
fn nothing_is_lent_where_it_gains_nothing() {
    let mut server = Server::new(1, 2);
    // The core would be awake when the backlog is drained.
    server.backlog(0, 20, 0, 1);
    assert_eq!(server.lend(&mut broker()), LendPlan::default());
    server.backlog(0, 21, 0, 1);
    assert_eq!(server.lend(&mut broker()).lend.len(), 1);
}

#[test]
fn a_backlog_gets_no_more_cores_than_it_can_use() {
    let mut server = Server::new(1, 6);
    server.backlog(0, 500, 100, 4);
    server.lend(&mut broker());
    assert_eq!(server.held(0), 4);
}

#[test]
fn urgent_backlogs_share_the_cores_by_weight() {
    let mut server = Server::new(2, 6);
    server.chains[1].weight = 2;
    server.backlog(0, 900, 10, 6);
    server.backlog(1, 500, 30, 6);
    server.lend(&mut broker());
    assert_eq!((server.held(0), server.held(1)), (2, 4));
}

#[test]
fn the_other_chains_share_is_used_while_they_are_not_urgent() {
    let mut server = Server::new(2, 4);
    server.backlog(0, 900, 10, 4);
    server.lend(&mut broker());
    assert_eq!(server.held(0), 4);
    // It has more than its share now, and the other one is late.
    server.backlog(0, 100, 90, 0);
    server.backlog(1, 300, 100, 1);
    let plan = server.lend(&mut broker());
    assert_eq!((plan.end.len(), plan.lend.len()), (1, 1));
    assert_eq!((server.held(0), server.held(1)), (3, 1));
    // Not if it has time.
    server.backlog(1, 100, 190, 1);
    assert_eq!(server.lend(&mut broker()), LendPlan::default());
}

#[test]
fn cores_of_the_own_node_come_first_and_reserved_ones_never() {
    let mut server = Server::new(1, 4);
    server.cores[0].node = 1;
    server.cores[2].node = 1;
    server.cores[3].node = 1;
    server.cores[3].usage = CoreUse::Reserved;
    server.backlog(0, 500, 10, 9);
    let mut plan = server.lend(&mut broker());
    let cores: Vec<u16> = plan.lend.drain(..).map(|lease| lease.core).collect();
    assert_eq!(cores, [2, 4, 1]);
}

#[test]
fn a_preferred_core_is_used_if_it_is_as_near() {
    for (preferred, used) in [(1, 1), (2, 2), (3, 2), (0, 2), (999, 2)] {
        let mut server = Server::new(1, 3);
        server.cores[3].node = 1;
        server.backlog(0, 500, 10, 1).preferred = Some(preferred);
        assert_eq!(server.lend(&mut broker()).lend[0].core, used, "{preferred}");
    }
}

#[test]
fn a_chain_in_overload_leaves_spare_cores_to_the_others() {
    let mut server = Server::new(2, 8);
    server.overload(0);
    server.backlog(0, 5_000, 0, 8);
    server.lend(&mut broker());
    // A quarter.
    assert_eq!(server.held(0), 6);
    let mut alone = Server::new(1, 8);
    alone.overload(0);
    alone.backlog(0, 5_000, 0, 8);
    alone.lend(&mut broker());
    assert_eq!(alone.held(0), 8);
}

#[test]
fn a_chain_in_overload_leaves_what_the_others_needed_at_one_time() {
    let mut broker = broker();
    let mut server = Server::new(2, 8);
    server.backlog(1, 900, 10, 5);
    let until = server.lend(&mut broker).lend[0].until;
    server.queues.clear();
    for (after, held) in [(0, 3), (999, 3), (1_000, 3), (2_100, 6)] {
        let mut server = server.clone();
        server.now = until + Nanos::from_millis(after);
        server.lend(&mut broker);
        server.overload(0);
        server.backlog(0, 5_000, 0, 8);
        server.lend(&mut broker);
        assert_eq!(server.held(0), held, "{after} ms");
    }
}

#[test]
fn an_urgent_chain_takes_cores_of_one_in_overload_at_once() {
    let mut server = Server::new(2, 4);
    server.backlog(0, 5_000, 0, 4);
    server.lend(&mut broker());
    assert_eq!(server.held(0), 4);
    server.overload(0);
    server.backlog(1, 900, 100, 2);
    let plan = server.lend(&mut broker());
    assert_eq!((plan.end.len(), plan.lend.len()), (2, 2));
    assert_eq!((server.held(0), server.held(1)), (2, 2));
    // In overload itself, it takes nothing.
    let mut server = Server::new(2, 4);
    server.backlog(0, 5_000, 0, 4);
    server.lend(&mut broker());
    server.overload(0);
    server.overload(1);
    server.backlog(1, 900, 100, 2);
    assert_eq!(server.lend(&mut broker()), LendPlan::default());
}

#[test]
fn a_lease_ends_by_itself_and_is_extended_while_it_is_needed() {
    let mut broker = broker();
    let mut server = Server::new(1, 2);
    server.backlog(0, 500, 100, 1);
    let first = server.lend(&mut broker).lend[0];
    assert_eq!(first.until, server.now + OBJECTIVE + OBJECTIVE);
    server.backlog(0, 500, 100, 0);
    assert_eq!(server.lend(&mut broker), LendPlan::default());
    server.now = first.until;
    let plan = server.lend(&mut broker);
    assert_eq!((plan.end.len(), plan.lend.len()), (0, 1));
    assert!(plan.lend[0].until > first.until && plan.lend[0].core == first.core);
    // Without a backlog, and without a word from its dispatcher.
    for silent in [false, true] {
        let mut server = server.clone();
        server.now = plan.lend[0].until;
        server.backlog(0, 10, 190, 0);
        if silent {
            server.queues.clear();
        }
        let plan = server.lend(&mut broker);
        assert_eq!((plan.end.len(), plan.lend.len()), (1, 0));
    }
}

#[test]
fn an_expired_lease_goes_to_a_more_urgent_chain() {
    let mut broker = broker();
    let mut server = Server::new(2, 1);
    server.backlog(0, 100, 190, 1);
    server.now = server.lend(&mut broker).lend[0].until;
    server.backlog(0, 100, 190, 0);
    server.backlog(1, 100, 50, 1);
    let plan = server.lend(&mut broker);
    assert_eq!((plan.end.len(), plan.lend.len()), (1, 1));
    assert_eq!(server.lent(), [Some(1)]);
}

#[test]
fn without_a_plan_a_chain_is_entitled_to_its_share_by_weight() {
    let taken = |long: f64| {
        let mut server = Server::new(2, 4);
        server.chains[0].planned = 0.0;
        server.chains[0].long = long;
        server.backlog(0, 900, 10, 4);
        server.lend(&mut broker());
        server.held(0)
    };
    // Three of six cores.
    assert_eq!((taken(3.2), taken(3.4)), (4, 3));
}
