use super::*;
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::sync::Arc;
use tailwater_chain::function::NetworkFunction;
use tailwater_chain::live::Live;
use tailwater_chain::rig::{ChainRig, INPUT, udp};
use tailwater_net::Nanos;

fn memory(lines: u64, pattern: Pattern, of_flows: bool) -> Memory {
    Memory {
        bytes: lines * LINE,
        pattern,
        of_flows,
    }
}

fn pattern() -> impl Strategy<Value = Pattern> {
    prop_oneof![
        (1u64..40).prop_map(Pattern::Stride),
        Just(Pattern::Random),
        Just(Pattern::Chase),
    ]
}

/// Reads one line and returns its value, which identifies the line.
fn read_at(set: &mut WorkingSet, from: u64) -> u64 {
    set.visit(from, (1, 0), 0).sum
}

proptest! {
    /// Reference model: enumerates the visited lines one by one, and keeps the last value written to each in a map.
    #[test]
    fn what_is_read_is_what_was_written_where_the_walk_came_by(
        lines in 40u64..300,
        pattern in pattern(),
        walks in prop::collection::vec((any::<u32>(), 0u32..50, 0u32..50, any::<u64>()), 1..30),
    ) {
        let mut set = WorkingSet::new(&memory(lines, pattern, true)).unwrap();
        let mut chase = WorkingSet::new(&memory(lines, pattern, true)).unwrap();
        let mut model: BTreeMap<u64, u64> = BTreeMap::new();
        let mut line_of = |state: u64| match pattern {
            Pattern::Stride(by) => ((state + by) % lines, state),
            Pattern::Random => {
                let line = (u128::from(mix(state) >> 32) * u128::from(lines)) >> 32;
                (state.wrapping_add(1), line as u64)
            }
            // The walk itself provides the order here; another test checks that it covers everything.
            Pattern::Chase => (chase.visit(state, (1, 0), 0).next, state),
        };
        for (hash, reads, writes, value) in walks {
            let from = set.place_of(hash);
            let (mut state, mut sum) = (from, 0u64);
            for turn in 0..reads + writes {
                let (next, line) = line_of(state);
                prop_assert!(line < lines);
                if turn < reads {
                    sum = sum.wrapping_add(model.get(&line).copied().unwrap_or(0));
                } else {
                    model.insert(line, value);
                }
                state = next;
            }
            let visited = set.visit(from, (reads, writes), value);
            prop_assert_eq!((visited.next, visited.sum), (state, sum));
        }
    }

    #[test]
    fn a_chase_is_one_round_through_all(lines in 1u64..2000, from in any::<u32>()) {
        let mut set = WorkingSet::new(&memory(lines, Pattern::Chase, false)).unwrap();
        let from = set.place_of(from);
        let mut at = from;
        for turn in 0..lines {
            prop_assert_eq!(read_at(&mut set, at), 0, "line {} came twice", at);
            at = set.visit(at, (0, 1), turn + 1).next;
        }
        prop_assert_eq!(at, from);
    }

    /// No step of the arithmetic is skipped or simplified, which would burn fewer cycles than declared.
    #[test]
    fn every_step_is_taken(value in any::<u64>(), cycles in 0u32..4000) {
        let mut expected = u128::from(value);
        for _ in 0..cycles.div_ceil(4) {
            expected = (expected ^ 0x2545_f491) * 0x9e37_79b9_7f4a_7c15 % (1 << 64);
        }
        prop_assert_eq!(u128::from(burn(value, cycles)), expected);
    }
}

/// Neighbours in a chase are not neighbours in memory, which a processor would prefetch.
#[test]
fn a_chase_is_in_no_order() {
    let mut set = WorkingSet::new(&memory(10_000, Pattern::Chase, false)).unwrap();
    let near = (0..10_000u64)
        .filter(|&at| set.visit(at, (1, 0), 0).next.abs_diff(at) < 10)
        .count();
    assert!(near < 60, "{near} of 10,000 are near, of about 19 by chance");
}

fn rig(work: Work, of_flows: bool) -> (ChainRig, Arc<Live<Work>>) {
    let live = Arc::new(Live::new(work));
    let memory = memory(64, Pattern::Random, of_flows);
    let function = Synthetic::new(Arc::clone(&live), &memory);
    (ChainRig::new(vec![Box::new(function)], INPUT), live)
}

fn share(share: f64) -> Work {
    Work {
        cycles: 8,
        reads: 2,
        writes: 1,
        drop: (share * 2f64.powi(64)) as u64,
        ..Work::default()
    }
}

#[test]
fn the_share_that_is_dropped_is_the_one_declared() {
    for of_flows in [false, true] {
        for (declared, least, most) in [(0.0, 0, 0), (0.25, 1_800, 2_200), (1.0, 8_000, 8_000)] {
            let (mut rig, _) = rig(share(declared), of_flows);
            let frames: Vec<_> = (0..50).map(udp).collect();
            for _ in 0..160 {
                rig.run(&frames, Nanos::ZERO);
            }
            let dropped = rig.count("synthetic/by-chance");
            assert!((least..=most).contains(&dropped), "{declared}: {dropped}");
        }
    }
}

/// With flow state, drops depend on the flow and its packet number only: packets of other flows make no difference.
#[test]
fn which_packets_of_a_flow_are_dropped_is_the_flows_own() {
    let fates = |others: &[u16]| {
        let (mut rig, _) = rig(share(0.5), true);
        (0..64)
            .map(|_| {
                let others: Vec<_> = others.iter().map(|&port| udp(port)).collect();
                rig.run(&others, Nanos::ZERO);
                rig.run(&[udp(7)], Nanos::ZERO).len()
            })
            .collect::<Vec<_>>()
    };
    let alone = fates(&[]);
    assert_eq!(fates(&[1, 2, 3]), alone);
    let passed: usize = alone.iter().sum();
    assert!((16..48).contains(&passed), "{passed} of 64 passed");
}

#[test]
fn work_is_replaced_between_two_batches() {
    let (mut rig, live) = rig(share(1.0), false);
    assert!(rig.run(&[udp(1)], Nanos::ZERO).is_empty());
    live.replace(share(0.0));
    assert_eq!(rig.run(&[udp(1)], Nanos::ZERO).len(), 1);
}

#[test]
fn flows_are_looked_up_only_for_what_is_of_flows() {
    let bytes = |new_flow_cycles, of_flows| {
        let work = Work {
            new_flow_cycles,
            ..Work::default()
        };
        let memory = memory(1, Pattern::Chase, of_flows);
        Synthetic::new(Arc::new(Live::new(work)), &memory).state_bytes()
    };
    assert_eq!(bytes(0, false), 0);
    assert!(bytes(1, false) > 0);
    assert!(bytes(0, true) > 0);
}
