//! Connections whose two directions are processed on several cores. Answers pass only where the request was seen, so
//! each packet shows that one core at a time had its connection.

mod common;

use common::mappers::{random_buckets, random_flows, random_help, random_leases, random_splits};
use common::traffic::{Traffic, order};
use common::{Folder, Reference, RunResult, Setup, run_through, run_until};
use std::sync::atomic::AtomicBool;
use tailwater_handover::park::Mode;
use tailwater_net::Nanos;

/// Connections are opened from inside only.
const ONE_WAY: &str = "firewall: {rules: [allow from lan], zones: {lan: {prefixes: [10.0.0.0/8]}}}";

fn traffic() -> Traffic {
    Traffic {
        answers: true,
        ..Traffic::default()
    }
}

/// Runs the setup's traffic, with answers.
fn run(setup: Setup) -> RunResult {
    let traffic = Traffic {
        answers: true,
        ..setup.traffic
    };
    run_through(ONE_WAY, Setup { traffic, ..setup })
}

/// All packets pass, as on one core, where accounting counts both directions separately and has a flow for each.
fn equals_single(setups: impl IntoIterator<Item = Setup>) {
    equals_single_with(Traffic::default(), setups);
}

/// Same with other traffic.
fn equals_single_with(traffic: Traffic, setups: impl IntoIterator<Item = Setup>) {
    let single = run(Setup {
        traffic,
        ..Setup::default()
    });
    let report = single.report();
    let connections = u64::from(traffic.flows / 2);
    assert_eq!(report.flows.map(|flows| flows.active), Some(connections));
    assert_eq!(report.packets.reasons.get("firewall/opened"), Some(&connections));
    // One line has the names of the columns.
    assert_eq!(single.records.len() as u64, 2 * connections + 1);
    let single = Reference::new(single).unwrap();
    for setup in setups {
        assert_eq!(single.difference(run(Setup { traffic, ..setup })), None);
    }
}

#[test]
fn connections_handed_to_helpers_and_back() {
    let flows = random_flows(0x2545_f491, 2, Mode::Sleep);
    let buckets = random_leases(0x9e37_79b9_7f4a, 2, Mode::Sleep, 0);
    equals_single([flows, buckets].map(|scaling| Setup {
        scaling: Some(scaling),
        ..Setup::default()
    }));
}

#[test]
fn buckets_of_connections_moved_between_workers() {
    let setups = [(1, false), (77, true)].map(|(seed, helped)| {
        let (server, _) = random_buckets(seed, Nanos::from_millis(2));
        Setup {
            workers: 3,
            scaling: helped.then(|| random_leases(seed, 1, Mode::Sleep, 0)),
            server: Some(server),
            ..Setup::default()
        }
    });
    equals_single(setups);
}

/// Also split, with auxiliary cores: a dedicated core that helps never has only a part of the chain.
#[test]
fn connections_lent_between_dedicated_cores() {
    let setups = [([2, 0], 0), ([3, 1], 2)].map(|(cores, functions)| Setup {
        workers: cores[0],
        scaling: Some(random_help(11, cores, Mode::Sleep, functions)),
        ..Setup::default()
    });
    let traffic = Traffic {
        flows: 100,
        ..Traffic::sparse()
    };
    equals_single_with(traffic, setups);
}

#[test]
fn connections_split_in_front_of_the_firewall() {
    let (flows, buckets) = (random_splits(7, 2, Mode::Sleep, 2), random_leases(7, 2, Mode::Sleep, 2));
    equals_single([flows, buckets].map(|scaling| Setup {
        scaling: Some(scaling),
        ..Setup::default()
    }));
}

/// Rules are replaced continuously while packets pass, on several cores. Packets that all versions allow are not lost,
/// and keep their order.
#[test]
fn rules_change_under_load_without_loss() {
    let folder = Folder::new();
    let path = folder.0.join("firewall.rules");
    let write = |number: u32| {
        let more: String = (0..200 * (number % 3))
            .map(|i| format!("deny tcp destination 203.0.113.{} ports {i}\n", i % 256))
            .collect();
        let kept = ["allow from lan", "allow udp from lan ports 53"][number as usize % 2];
        // At once: half a file may be read, and denies everything.
        let next = path.with_extension("next");
        std::fs::write(&next, format!("# {number}\n{more}{kept}\n")).unwrap();
        std::fs::rename(&next, &path).unwrap();
    };
    write(0);
    let functions = format!(
        "firewall: {{rulesFile: {}, zones: {{lan: {{prefixes: [10.0.0.0/8]}}}}}}",
        path.display()
    );
    let setup = Setup {
        traffic: Traffic {
            packets: 60_000,
            spacing: Nanos::from_micros(50),
            ..traffic()
        },
        workers: 2,
        scaling: Some(random_flows(5, 1, Mode::Sleep)),
        ..Setup::default()
    };
    let (mut versions, mut written) = (0, 0);
    let run = run_until(&functions, setup, &AtomicBool::new(false), |progress| {
        let news = progress.news.iter().filter(|line| line.contains("in force (version"));
        versions += news.count() as u32;
        if written == versions {
            written += 1;
            write(written);
        }
    });
    assert!(versions >= 2, "{versions} of {written}");
    let packets = &run.report().packets;
    assert_eq!((packets.delivered, packets.lost), (60_000, 0), "{packets:?}");
    for (flow, numbers) in order(&run.frames) {
        assert!((1..=numbers.len() as u32).eq(numbers), "flow {flow}");
    }
}
