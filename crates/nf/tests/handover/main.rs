//! Flows whose packets are processed by one instance of a function after the other, as when a core
//! hands flows to others: flow state is all that the instances need of each other, so what leaves is
//! what leaves one instance alone. Flows end at the first instance, and those that open companions begin
//! there. That a flow is shown again on the way, because something it could depend on has changed, makes
//! no difference either.

mod filter;
mod rewriting;
mod rig;

use proptest::prelude::*;
use rig::{Rig, SECOND, segment, sums};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use tailwater_net::tcp::TcpFlags;
use tailwater_net::{FlowKey, Nanos};
use tailwater_nf::accounting::{Accounting, AccountingTable, ExportFormat};
use tailwater_nf::acl::generate::{RuleSetSpec, client_keys};
use tailwater_nf::acl::{Acl, AclTable, Action};

/// Instances of a function in a chain of relays.
const INSTANCES: usize = 3;

/// A file that is gone when its test is.
struct Scratch(std::path::PathBuf);

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// The records of these packets (flow, milliseconds since the one before, who processes it), sorted.
/// With several instances flows are shown again now and then.
fn records(instances: usize, packets: &[(u16, u64, usize)]) -> (String, Vec<String>) {
    static FILES: AtomicU32 = AtomicU32::new(0);
    let number = FILES.fetch_add(1, Ordering::Relaxed);
    let name = format!("tailwater-handover-{}-{number}", std::process::id());
    let file = Scratch(std::env::temp_dir().join(name));
    let table = Arc::new(AccountingTable::with_export(&file.0, ExportFormat::Csv).unwrap());
    let mut rig = Rig::new((0..instances).map(|_| Accounting::new(Arc::clone(&table))));
    let mut now = SECOND;
    for &(port, pause, turn) in packets {
        now += Nanos::from_millis(pause);
        rig.expire(now);
        rig.turn_to(turn);
        if instances > 1 && pause % 3 == 0 {
            rig.show_again();
        }
        let flags = TcpFlags(1 << (pause % 6));
        let frame = segment(port, 0, flags, &vec![0; (pause % 700) as usize]);
        assert_eq!(rig.run(std::slice::from_ref(&frame), now), [frame]);
    }
    rig.finish();
    table.finish().unwrap();
    let totals = table.totals();
    let text = std::fs::read_to_string(&file.0).unwrap();
    let mut lines: Vec<_> = text.lines().skip(1).map(str::to_owned).collect();
    lines.sort_unstable();
    (format!("{totals:?}"), lines)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]
    /// Counters are in the flow's state; the last record of a flow is written where it ends, others,
    /// of flows that outlast 71 minutes, where that is seen.
    #[test]
    fn accounting_counts_the_same(
        packets in prop::collection::vec((0u16..6, 0u64..55_000, 0..INSTANCES), 1..400),
    ) {
        let one: Vec<_> = packets.iter().map(|&(port, pause, _)| (port, pause, 0)).collect();
        prop_assert_eq!(records(INSTANCES, &packets), records(1, &one));
    }

    #[test]
    fn acl_decides_the_same(turns in prop::collection::vec(0..INSTANCES, 20), cached in any::<bool>()) {
        let spec = RuleSetSpec {
            rules: 300,
            seed: 7,
            sources: vec!["10.0.0.0/8".parse().unwrap()],
            destinations: vec!["198.18.0.0/15".parse().unwrap()],
        };
        let table = Arc::new(AclTable::new(&spec.generate(), Action::Deny).unwrap());
        let make = || match cached {
            true => Acl::new(Arc::clone(&table)),
            false => Acl::without_flows(Arc::clone(&table)),
        };
        let (mut one, mut relay) = (Rig::new([make()]), Rig::new((0..INSTANCES).map(|_| make())));
        let keys = client_keys(&spec.sources, &spec.destinations, 40, 3);
        let frames: Vec<_> = keys.iter().map(rig::frame).collect();
        let mut passed = 0;
        for turn in turns {
            relay.turn_to(turn);
            relay.show_again();
            let sent = one.run(&frames, SECOND);
            passed += sent.len();
            prop_assert_eq!(relay.run(&frames, SECOND), sent);
        }
        prop_assert!(passed > 0 && passed < 800, "{}", passed);
        prop_assert_eq!(sums(&relay), sums(&one));
    }
}

/// The records are not the trivial ones: a flow of 1,500 packets over 100 minutes, each processed
/// elsewhere than the one before.
#[test]
fn a_long_flow_is_split_where_it_is_processed() {
    let packets: Vec<_> = (0..1500).map(|i| (1, 4000, i % INSTANCES)).collect();
    let (_, lines) = records(INSTANCES, &packets);
    assert_eq!(lines.len(), 2);
    let counted: u64 = lines
        .iter()
        .map(|line| line.split(',').nth(6).unwrap().parse::<u64>().unwrap())
        .sum();
    assert_eq!(counted, 1500);
    let key = FlowKey::v4(rig::CLIENT, rig::SERVER, 6, 1, 80);
    assert!(lines[0].starts_with(&format!("{},{}", key.source(), key.destination())));
}
