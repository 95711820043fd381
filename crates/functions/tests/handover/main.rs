//! Flows whose packets are processed by several instances of a function in turn, as when a core offloads flows to
//! others. Instances share only flow state, so the output equals that of a single instance. Flows end at the first
//! instance, and flows that open companions begin there. Showing a flow again in between, because a rule version has
//! changed, makes no difference either.

mod dns;
mod filter;
mod firewall;
mod flow_stats;
mod ipfix;
mod mobile;
mod optimizing;
mod rewriting;
mod rig;

use proptest::prelude::*;
use rig::{Rig, SECOND, segment, sums};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use tailwater_api::PacketAction;
use tailwater_chain::live::Live;
use tailwater_functions::accounting::{Accounting, AccountingTable, ExportFormat};
use tailwater_functions::acl::generate::{RuleSetSpec, client_keys};
use tailwater_functions::acl::{Acl, AclTable, Action, Rule};
use tailwater_functions::bpf_filter::{self, BpfFilter, BpfRules, parse_program};
use tailwater_functions::count::{Count, CountTable, Counter, Counters};
use tailwater_functions::synthetic::{LINE, Memory, Pattern, Synthetic, Work};
use tailwater_net::tcp::TcpFlags;
use tailwater_net::{FlowKey, Nanos};

/// Instances of a function in a relay.
const INSTANCES: usize = 3;

/// File that is removed on drop.
struct Scratch(std::path::PathBuf);

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// Sorted records of these packets (flow, milliseconds since the previous packet, instance). With several instances,
/// flows are shown again from time to time.
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
    /// Counters are in the flow's state. The last record of a flow is written where it ends; others, of flows longer
    /// than 71 minutes, where the split is detected.
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

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]
    /// The flow's state holds the matching counters, and every instance counts for all.
    #[test]
    fn counters_count_the_same(packets in prop::collection::vec((0u16..6, any::<bool>(), 0..INSTANCES), 1..200)) {
        let counter = |name: &str, ports| Counter {
            name: name.to_owned(),
            rule: Rule {
                source: None,
                destination: None,
                source_ports: ports,
                destination_ports: 0..=u16::MAX,
                protocol: None,
                action: Action::Allow,
            },
            vlan: None,
        };
        let counters = Counters::new(vec![counter("low", 0..=2), counter("mid", 2..=4)]);
        let table = Arc::new(CountTable::new(counters));
        let mut rig = Rig::new((0..INSTANCES).map(|_| Count::new(Arc::clone(&table))));
        let (mut low, mut mid) = (0, 0);
        for (port, again, turn) in packets {
            rig.turn_to(turn);
            if again {
                rig.show_again();
            }
            let frame = segment(port, 0, TcpFlags::ACK, b"");
            (low, mid) = (low + u64::from(port <= 2), mid + u64::from((2..=4).contains(&port)));
            prop_assert_eq!(rig.run(std::slice::from_ref(&frame), SECOND), [frame]);
        }
        prop_assert_eq!((rig.count("low"), rig.count("mid")), (low, mid));
    }
}

/// Covers records of a non-trivial flow: 1,500 packets over 100 minutes, each processed by another instance than the
/// one before.
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

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]
    /// A flow and its packet number determine the random decision, and both move with the flow.
    #[test]
    fn synthetic_drops_the_same(turns in prop::collection::vec(0..INSTANCES, 20), drop in any::<u64>()) {
        let work = Work { cycles: 20, new_flow_cycles: 20, reads: 3, writes: 1, drop };
        let live = Arc::new(Live::new(work));
        let memory = Memory { bytes: 100 * LINE, pattern: Pattern::Chase, of_flows: true };
        let make = || Synthetic::new(Arc::clone(&live), &memory);
        let (mut one, mut relay) = (Rig::new([make()]), Rig::new((0..INSTANCES).map(|_| make())));
        let frames: Vec<_> = (0..40).map(|port| segment(port, 0, TcpFlags::ACK, b"")).collect();
        for turn in turns {
            relay.turn_to(turn);
            relay.show_again();
            prop_assert_eq!(relay.run(&frames, SECOND), one.run(&frames, SECOND));
        }
        prop_assert_eq!(sums(&relay), sums(&one));
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]
    /// Packets leave no state: each is decided on its own.
    #[test]
    fn programs_decide_the_same(turns in prop::collection::vec(0..INSTANCES, 20), bits in 1_u32..16) {
        // Matches on the low bits of the source port, for TCP over IPv4 without options.
        let text = format!("5\n40 0 0 34\n84 0 0 {bits}\n21 1 0 0\n6 0 0 1\n6 0 0 0\n");
        let program = parse_program(&text).unwrap();
        let rules = BpfRules::new(&[bpf_filter::Rule { program, action: PacketAction::Drop }], PacketAction::Pass).unwrap();
        let live = Arc::new(Live::new(rules));
        let make = || BpfFilter::new(Arc::clone(&live));
        let (mut one, mut relay) = (Rig::new([make()]), Rig::new((0..INSTANCES).map(|_| make())));
        let frames: Vec<_> = (0..40).map(|port| segment(port, 0, TcpFlags::ACK, b"")).collect();
        for turn in turns {
            relay.turn_to(turn);
            let sent = one.run(&frames, SECOND);
            prop_assert!((2..40).contains(&sent.len()));
            prop_assert_eq!(relay.run(&frames, SECOND), sent);
        }
        prop_assert_eq!(sums(&relay), sums(&one));
    }
}
