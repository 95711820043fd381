//! Policies of racks as they run live, on one server's RSS buckets, in virtual time.

mod common;

use common::{MS, Random, SLO, conserved, profile, run};
use std::sync::Arc;
use tailwater_baselines::catalog::Policy;
use tailwater_net::Nanos;
use tailwater_sim::policies::Steered;
use tailwater_sim::{ChainModel, Rack, RackPolicy, Recording, RunOptions};

/// Returns the live policy of this name, with one of the server's cores in use at the start.
fn live(name: &str) -> RackPolicy {
    let policy = Policy::named(name).unwrap();
    let make = policy.server_mappers(SLO, &profile(), false).unwrap().unwrap();
    RackPolicy {
        name: name.to_owned(),
        steered: Steered::Rack(Some(make())),
        core: None,
        start_cores: Some(1),
    }
}

/// Traffic of 1.4 cores (200,000 packets/s each) for 700 ms, then of 0.1 cores for 2 s: a thousand flows.
fn step() -> Arc<Recording> {
    let mut random = Random(9);
    let mut packets = Vec::new();
    let mut now = 0;
    while now < 2700 * MS {
        let mean = if now < 700 * MS { 3570.0 } else { 50_000.0 };
        now += random.gap(mean).max(1);
        packets.push((Nanos(now), random.below(1000) as u32, 500));
    }
    Arc::new(Recording::of_packets("step", packets, 50))
}

#[test]
fn controllers_of_racks_take_and_release_cores_of_one_server() {
    let packets = step();
    let model = ChainModel::from_profile(&profile()).unwrap();
    let mut lost = Vec::new();
    for name in ["metron", "quadrant", "quadrant-metron", "dyssect"] {
        let options = RunOptions {
            check: true,
            ..RunOptions::default()
        };
        let mut report = run(&Rack::of_one(4), model.clone(), live(name), &packets, &options);
        let report = report.chains.remove(0);
        conserved(&report, &packets);
        // The last window is incomplete.
        let windows = &report.windows[..report.windows.len() - 1];
        let dedicated: Vec<u32> = windows.iter().map(|window| window.dedicated).collect();
        assert_eq!(dedicated[0], 1, "{name}");
        let most = dedicated.iter().copied().max().unwrap();
        assert!((2..=4).contains(&most), "{name}: {dedicated:?}");
        assert_eq!(dedicated.last(), Some(&1), "{name}: {dedicated:?}");
        // With enough cores nothing more is lost.
        let later = &windows[60..];
        assert_eq!(later.iter().map(|window| window.lost).sum::<u64>(), 0, "{name}");
        lost.push(report.packets.lost);
    }
    // Those that decide every 50 or 100 ms lose less than Metron with its 500 ms.
    assert!(
        lost[1..].iter().all(|lost_by_other| *lost_by_other < lost[0]),
        "{lost:?}"
    );
}
