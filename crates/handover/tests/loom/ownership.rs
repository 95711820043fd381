//! Owners of flows: order and counts while flows move between cores.

use std::sync::atomic::{AtomicBool, Ordering};
use tailwater_handover::owner::Placement;
use tailwater_handover::park::Mode;

use crate::model::{Setup, Step, run, run_steps};
use crate::{check, check_three};

const ONE_HELPER: Setup = Setup {
    flows: 2,
    segments: 2,
    auxiliaries: 1,
    ring: 2,
    batch: 2,
    mode: Mode::Sleep,
    hasty: false,
};

#[test]
fn protocol_a_flow_goes_to_a_helper_and_comes_back() {
    // In some runs the last packet returns to the dispatcher, in others it has to follow the flow.
    static STAYED: [AtomicBool; 2] = [AtomicBool::new(false), AtomicBool::new(false)];
    check(2, || {
        let wanted = [
            Placement::Home,
            Placement::Auxiliary(0),
            Placement::Auxiliary(0),
            Placement::Home,
        ];
        let outcome = run(&ONE_HELPER, wanted.map(|placement| (0, placement)).into_iter());
        STAYED[outcome.stayed as usize].store(true, Ordering::Relaxed);
    });
    assert!(STAYED.iter().all(|seen| seen.load(Ordering::Relaxed)));
}

#[test]
fn protocol_two_flows_cross_each_other() {
    check(2, || {
        let (home, away) = (Placement::Home, Placement::Auxiliary(0));
        let packets = [(0, away), (1, home), (0, home), (1, away)];
        run(&ONE_HELPER, packets.into_iter());
    });
}

#[test]
fn protocol_a_flow_goes_from_helper_to_helper() {
    check_three(|| {
        let setup = Setup {
            auxiliaries: 2,
            flows: 1,
            ..ONE_HELPER
        };
        let wanted = [Placement::Auxiliary(0), Placement::Auxiliary(1), Placement::Home];
        run(&setup, wanted.map(|placement| (0, placement)).into_iter());
    });
}

const SPLIT: Placement = Placement::Split { from: 1, auxiliary: 0 };

/// Both cores process the flow at once, each its own segment.
#[test]
fn protocol_a_flow_is_split_and_becomes_whole_again() {
    static STAYED: [AtomicBool; 2] = [AtomicBool::new(false), AtomicBool::new(false)];
    check(2, || {
        let wanted = [Placement::Home, SPLIT, SPLIT, Placement::Home];
        let outcome = run(&ONE_HELPER, wanted.map(|placement| (0, placement)).into_iter());
        STAYED[outcome.stayed as usize].store(true, Ordering::Relaxed);
    });
    assert!(STAYED.iter().all(|seen| seen.load(Ordering::Relaxed)));
}

#[test]
fn protocol_a_split_flow_goes_to_a_helper_whole() {
    check(2, || {
        let wanted = [SPLIT, Placement::Auxiliary(0), SPLIT];
        run(&ONE_HELPER, wanted.map(|placement| (0, placement)).into_iter());
    });
}

const TWO_PARTS: Setup = Setup {
    flows: 1,
    segments: 3,
    auxiliaries: 2,
    ..ONE_HELPER
};

/// The last segment passes from one auxiliary core to another with packets in flight, and comes back without.
#[test]
fn protocol_a_part_is_divided_with_packets_in_flight() {
    check_three(|| {
        let steps = [Step::Packet(0, SPLIT), Step::Divide(0, 2, 1), Step::Routed(0)];
        run_steps(&TWO_PARTS, steps.into_iter());
    });
}

#[test]
fn protocol_the_dispatchers_last_segment_is_given_away_with_packets_in_flight() {
    check_three(|| {
        let split = Placement::Split { from: 2, auxiliary: 0 };
        let steps = [Step::Packet(0, split), Step::Divide(0, 1, 1), Step::Routed(0)];
        run_steps(&TWO_PARTS, steps.into_iter());
    });
}

#[test]
fn protocol_parts_are_joined_when_no_packet_is_on_its_way() {
    check_three(|| {
        let steps = [
            Step::Packet(0, SPLIT),
            Step::Divide(0, 2, 1),
            Step::Routed(0),
            Step::Join(0),
            Step::Routed(0),
        ];
        run_steps(&TWO_PARTS, steps.into_iter());
    });
}

#[test]
fn protocol_full_rings_only_make_it_wait() {
    check(2, || {
        let setup = Setup {
            ring: 1,
            flows: 1,
            ..ONE_HELPER
        };
        let wanted = [
            Placement::Auxiliary(0),
            Placement::Auxiliary(0),
            Placement::Auxiliary(0),
        ];
        run(&setup, wanted.map(|placement| (0, placement)).into_iter());
    });
}

/// Shows that the checks above would detect packets out of order.
#[test]
fn protocol_without_counts_is_caught() {
    static CAUGHT: [AtomicBool; 2] = [AtomicBool::new(false), AtomicBool::new(false)];
    check(2, || {
        let setup = Setup {
            hasty: true,
            ..ONE_HELPER
        };
        let wanted = [Placement::Auxiliary(0), Placement::Home];
        let outcome = run(&setup, wanted.map(|placement| (0, placement)).into_iter());
        CAUGHT[0].fetch_or(outcome.disordered > 0, Ordering::Relaxed);
    });
    check(2, || {
        let setup = Setup {
            hasty: true,
            ..ONE_HELPER
        };
        let wanted = [SPLIT, Placement::Home];
        let outcome = run(&setup, wanted.map(|placement| (0, placement)).into_iter());
        CAUGHT[1].fetch_or(outcome.disordered > 0, Ordering::Relaxed);
    });
    assert!(CAUGHT.iter().all(|caught| caught.load(Ordering::Relaxed)));
}
