//! Steps from one configuration to another, and which matches contradict each other.

mod common;

use common::{ModelMachine, manifest, server, yaml};
use std::collections::BTreeSet;
use std::sync::Arc;
use tailwater_server::steps::{Step, between, undo};
use tailwater_server::{AppliedChain, Configuration, Origin};

/// Chain on port `north`, for the destinations `10.N.0.0/16`.
fn chain(name: &str, destination: u8) -> AppliedChain {
    let text = yaml(name, &format!("10.{destination}.0.0/16"), "[forward: {}]", "1ms");
    AppliedChain::parse(&manifest(&text), &server(""), Origin::Applied).unwrap()
}

fn configuration(chains: &[AppliedChain]) -> Configuration {
    Configuration {
        generation: 1,
        chains: chains
            .iter()
            .map(|chain| (chain.name.clone(), Arc::new(chain.clone())))
            .collect(),
    }
}

fn drained(name: &str, destination: u8) -> AppliedChain {
    AppliedChain {
        drained: true,
        ..chain(name, destination)
    }
}

fn steps(current: &[AppliedChain], next: &[AppliedChain]) -> Vec<String> {
    let steps = between(&configuration(current), &configuration(next), &BTreeSet::new());
    let text = |step: &Step| match step {
        Step::Replace { old, new } if old.name != new.name => format!("replace {} {}", old.name, new.name),
        step => format!("{} {}", step.verb(), step.chain().name),
    };
    steps.iter().map(text).collect()
}

#[test]
fn a_chain_whose_text_stays_has_a_step_only_if_its_force_differs() {
    let none: [&str; 0] = [];
    assert_eq!(steps(&[chain("a", 1)], &[chain("a", 1)]), none);
    let forced = AppliedChain {
        forced: true,
        ..chain("a", 1)
    };
    assert_eq!(steps(&[chain("a", 1)], std::slice::from_ref(&forced)), ["change a"]);
    assert_eq!(
        steps(std::slice::from_ref(&forced), std::slice::from_ref(&forced)),
        none
    );
    // The same text with files of another folder.
    let mut elsewhere = chain("a", 1);
    elsewhere.manifest.path = Some("/elsewhere/a.yaml".into());
    assert_eq!(steps(&[chain("a", 1)], std::slice::from_ref(&elsewhere)), ["change a"]);
    let mut renamed = elsewhere.clone();
    renamed.manifest.path = Some("/elsewhere/b.yaml".into());
    assert_eq!(steps(&[elsewhere], &[renamed]), none);
}

#[test]
fn a_new_chain_replaces_one_with_its_packets_that_is_gone() {
    assert_eq!(steps(&[chain("a", 1)], &[chain("b", 1)]), ["replace a b"]);
    assert_eq!(steps(&[chain("a", 1)], &[chain("b", 2)]), ["drain a", "start b"]);
    // The old one is drained, not gone: it stays in the configuration.
    assert_eq!(
        steps(&[chain("a", 1)], &[drained("a", 1), chain("b", 1)]),
        ["drain a", "start b"]
    );
    // The new one is not new: it was drained, and its last packets may be on their way.
    assert_eq!(
        steps(&[chain("a", 1), drained("b", 1)], &[chain("b", 1)]),
        ["drain a", "start b"]
    );
    // One that has failed has no packets to give.
    let failed = BTreeSet::from(["a".to_owned()]);
    let found = between(
        &configuration(&[chain("a", 1)]),
        &configuration(&[chain("b", 1)]),
        &failed,
    );
    assert!(matches!(&found[..], [Step::Add(new)] if new.name == "b"), "{found:?}");
}

#[test]
fn steps_are_undone_in_reverse() {
    let mut machine = ModelMachine::default();
    let all: Vec<Step> = ["a", "b", "c"].map(|name| Step::Add(Arc::new(chain(name, 1)))).into();
    for step in &all {
        step.enact(&mut machine).unwrap();
    }
    machine.state().log.clear();
    assert_eq!(undo(&mut machine, &all).len(), 0);
    assert_eq!(machine.state().log, ["drain c", "drain b", "drain a"]);
}

#[test]
fn matches_contradict_each_other_as_soon_as_one_of_them_is_new() {
    let fails = |current: &[AppliedChain], next: &[AppliedChain]| {
        configuration(next).check_matches(&configuration(current)).is_err()
    };
    let (a, b) = (chain("a", 1), chain("b", 1));
    let both = [a.clone(), b.clone()];
    assert!(fails(&[], &both));
    assert!(fails(std::slice::from_ref(&a), &both));
    assert!(!fails(&[], &[a.clone(), chain("b", 2)]));
    // Two that are there already are not in the way of others.
    assert!(!fails(&both, &[a.clone(), b.clone(), chain("c", 3)]));
    // A drained one gets no packets; when it comes back, it is new.
    assert!(!fails(&[], &[a.clone(), drained("b", 1)]));
    assert!(fails(&[a.clone(), drained("b", 1)], &both));
    assert!(fails(&[a.clone(), chain("b", 2)], &both));
    // Another port.
    let east = AppliedChain {
        port: "east".to_owned(),
        ..b
    };
    assert!(!fails(&[], &[a, east]));
}
