//! Routes that are refused at first.

use super::*;

fn refusals(rig: &mut Rig) -> Vec<String> {
    let mut found = Vec::new();
    rig.outputs.retain(|output| match output {
        Output::ChainRefused { chain, is_steered, .. } => {
            found.push(format!("{chain} {is_steered}"));
            false
        }
        _ => true,
    });
    found
}

/// Cookie's chain of the most preferred rule for an address.
fn chain_of(rig: &Rig, destination: &str) -> Option<u32> {
    let address: std::net::Ipv4Addr = destination.parse().unwrap();
    let rule = rig.table.values().rev().find(|rule| {
        let destination = rule.matching.destination;
        matches!(destination, Some(MaskedAddress::V4 { value, mask }) if address.to_bits() & mask == value)
    });
    match Mark::of(rule?.cookie, 1) {
        Some(Mark::Row { chain, .. }) => Some(chain),
        _ => None,
    }
}

fn has(rig: &Rig, destination: &str, chain: &str) {
    assert_eq!(chain_of(rig, destination), Some(chain_identity(chain)), "{destination}");
}

const PREFIXES: [&str; 3] = ["10.0.0.0/16", "10.1.0.0/16", "10.2.0.0/16"];

fn two_chains() -> Rig {
    Rig::connected(
        config(),
        &[route("a", PREFIXES[0], true), route("b", PREFIXES[1], true)],
    )
}

#[test]
fn two_chains_exchange_their_matches() {
    let mut rig = two_chains();
    rig.input(Input::Chain(route("a", PREFIXES[1], true)));
    rig.input(Input::Chain(route("b", PREFIXES[0], true)));
    rig.settle();
    rig.pass(20, &[]);
    assert_eq!(refusals(&mut rig), Vec::<String>::new());
    has(&rig, "10.1.0.1", "a");
    has(&rig, "10.0.0.1", "b");
}

#[test]
fn a_chain_takes_the_match_that_another_leaves_after_it() {
    let mut rig = two_chains();
    rig.input(Input::Chain(route("a", PREFIXES[1], true)));
    rig.settle();
    // Its old match stays until then.
    has(&rig, "10.0.0.1", "a");
    rig.input(Input::Chain(route("b", PREFIXES[2], true)));
    rig.settle();
    has(&rig, "10.1.0.1", "a");
    has(&rig, "10.2.0.1", "b");
    assert_eq!(chain_of(&rig, "10.0.0.1"), None);
    rig.pass(20, &[]);
    assert_eq!(refusals(&mut rig), Vec::<String>::new());
}

#[test]
fn a_refused_chain_is_told_once_and_taken_when_the_other_is_gone() {
    let mut rig = two_chains();
    rig.input(Input::Chain(route("a", PREFIXES[1], true)));
    rig.input(Input::Chain(route("c", PREFIXES[1], true)));
    rig.pass(20, &[]);
    assert_eq!(refusals(&mut rig), ["a true", "c false"]);
    rig.input(Input::Chain(route("c", PREFIXES[1], true)));
    // Its servers change in any case.
    let few = ChainRoute {
        servers: vec![(3, 4)],
        ..route("a", PREFIXES[1], true)
    };
    rig.input(Input::Chain(few));
    rig.settle();
    rig.pass(1000, &[]);
    rig.settle();
    assert_eq!(refusals(&mut rig), Vec::<String>::new());
    assert_eq!(rig.server_of("10.0.0.1"), Some(3));
    rig.input(Input::ChainRemoved("b".to_owned()));
    rig.settle();
    has(&rig, "10.1.0.1", "a");
    assert_eq!(chain_of(&rig, "10.0.0.1"), None);
    assert_eq!(rig.takes(|output| *output == Output::ChainAccepted("a".to_owned())), 1);
    rig.input(Input::ChainRemoved("a".to_owned()));
    rig.settle();
    has(&rig, "10.1.0.1", "c");
    // One that is gone is not tried again.
    rig.input(Input::Chain(route("d", PREFIXES[1], true)));
    rig.input(Input::ChainRemoved("d".to_owned()));
    rig.input(Input::ChainRemoved("c".to_owned()));
    rig.settle();
    assert_eq!(chain_of(&rig, "10.1.0.1"), None);
}

#[test]
fn a_circle_of_which_one_is_impossible_changes_as_far_as_it_can() {
    let mut rig = two_chains();
    rig.input(Input::Chain(route("c", PREFIXES[2], true)));
    // a and c exchange; b wants what c has then.
    rig.input(Input::Chain(route("b", PREFIXES[0], true)));
    rig.input(Input::Chain(route("a", PREFIXES[2], true)));
    rig.input(Input::Chain(route("c", PREFIXES[0], true)));
    rig.settle();
    rig.pass(20, &[]);
    let refused = refusals(&mut rig);
    assert_eq!(refused.len(), 1, "{refused:?}");
    has(&rig, "10.2.0.1", "a");
}

#[test]
fn a_changed_match_leaves_flows_where_they_are_and_no_packet_unmatched() {
    // One change a bundle: packets come at each moment between.
    let one = SteeringConfig {
        per_bundle: 1,
        ..config()
    };
    let with = |prefixes: &[&str], rebalance| {
        let mut route = route("a", PREFIXES[0], rebalance);
        route.matching.destinations = prefixes.iter().map(|prefix| prefix.parse().unwrap()).collect();
        route
    };
    for rebalance in [true, false] {
        let mut rig = Rig::connected(one.clone(), &[with(&PREFIXES[..2], rebalance)]);
        let addresses: Vec<String> = (0..4).map(|number| format!("10.1.{number}.1")).collect();
        if !rebalance {
            for address in &addresses {
                rig.packet_in(address);
                rig.settle();
            }
        }
        let servers = |rig: &Rig| -> Vec<Option<ServerNumber>> {
            addresses.iter().map(|address| rig.server_of(address)).collect()
        };
        let before = servers(&rig);
        assert!(
            before.iter().all(|server| server.is_some_and(|server| server > 0)),
            "{before:?}"
        );
        // To a prefix more and one less, to longer ones, and to all.
        for prefixes in [&PREFIXES[1..], &["10.1.0.0/17", "10.1.128.0/17"], &["10.0.0.0/8"]] {
            rig.input(Input::Chain(with(prefixes, rebalance)));
            while !rig.writes.is_empty() {
                rig.answer();
                assert_eq!(servers(&rig), before, "{prefixes:?}");
            }
            has(&rig, "10.1.3.1", "a");
        }
        assert_eq!(rig.takes(|output| matches!(output, Output::MovePlanned(_))), 0);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn matches_that_are_possible_in_the_end_are_all_taken(
        orders in prop::collection::vec(Just(vec![0, 1, 2, 3]).prop_shuffle(), 1..6),
        wild in prop::collection::vec((0..3_usize, 0..4_usize), 0..6),
    ) {
        let prefixes = ["10.0.0.0/16", "10.1.0.0/16", "10.2.0.0/16", "10.3.0.0/16"];
        let names = ["a", "b", "c"];
        let chains: Vec<ChainRoute> = (0..3).map(|at| route(names[at], prefixes[at], true)).collect();
        let mut rig = Rig::connected(config(), &chains);
        for order in orders {
            for &(chain, prefix) in &wild {
                rig.input(Input::Chain(route(names[chain], prefixes[prefix], true)));
            }
            for (name, prefix) in names.iter().zip(&order) {
                rig.input(Input::Chain(route(name, prefixes[*prefix], true)));
            }
            rig.settle();
            rig.outputs.clear();
            rig.pass(20, &[]);
            prop_assert_eq!(refusals(&mut rig), Vec::<String>::new());
            for (name, prefix) in names.iter().zip(&order) {
                let address = prefixes[*prefix].replace(".0/16", ".1");
                prop_assert_eq!(chain_of(&rig, &address), Some(chain_identity(name)));
            }
        }
    }
}
