//! The steering loop with a modelled switch: losses, drains, moves, adoption, refusals.

mod by_load;
mod property;
mod refused;
mod rig;

use super::super::diff::apply;
use super::super::openflow::{ErrorMessage, FlowMod, FlowStatistics, PacketIn};
use super::super::rows::chain_identity;
use super::super::rule::{Action, FlowRule, MaskedAddress};
use super::super::switch::SwitchState;
use super::packets::WAITING_PACKETS;
use super::*;
use proptest::prelude::*;
use rig::{MILLI, Rig, config, frame, route, server};
use tailwater_api::chain::Match;
use tailwater_policy::server::{ClassLoad, FlowClass, IngressConfig, ServerCounters};

fn is_written(output: &Output) -> bool {
    matches!(output, Output::MoveWritten(_))
}

/// Prefixes 10.0.0.0/24 to 10.0.5.0/24 of a fixed chain, two on each server.
fn six_prefixes(config: SteeringConfig) -> Rig {
    let mut rig = Rig::connected(config, &[route("edge", "10.0.0.0/8", false)]);
    let mut cores = [0; 4];
    for prefix in 0..6 {
        let number = prefix % 3 + 1;
        cores[number] += 1;
        rig.packet_in(&format!("10.0.{prefix}.1"));
        rig.settle();
        assert_eq!(rig.server_of(&format!("10.0.{prefix}.9")), Some(number as ServerNumber));
        rig.input(Input::Report(ServerReport {
            server: number as ServerNumber,
            chains: vec![ChainReport {
                chain: "edge".to_owned(),
                counters: ServerCounters::default(),
                measured: None,
                dedicated: cores[number],
                classes: Vec::new(),
            }],
        }));
    }
    rig.outputs.clear();
    rig
}

#[test]
fn packets_of_a_new_prefix_go_out_behind_its_row() {
    let mut rig = Rig::connected(config(), &[route("edge", "10.0.0.0/8", false)]);
    assert_eq!(rig.server_of("10.0.0.1"), Some(0));
    assert_eq!(rig.server_of("11.0.0.1"), None);
    for _ in 0..3 {
        rig.packet_in("10.0.0.1");
    }
    rig.packet_in("10.0.1.1");
    assert!(rig.packets.is_empty(), "the rows are not there yet");
    rig.answer();
    assert_eq!(rig.packets.len(), 3);
    assert!(rig.packets.iter().all(|(action, frame)| {
        *action
            == Action::Server {
                mac: [2, 0, 0, 0, 0, 1],
                port: 1,
            }
            && frame[30..34] == [10, 0, 0, 1]
    }));
    rig.settle();
    assert_eq!(rig.packets.len(), 4);
    assert_eq!(rig.server_of("10.0.1.7"), Some(2));
    // One that was under way when the row was written goes on at once.
    let cookie = super::super::rows::Mark::Row {
        chain: chain_identity("edge"),
        length: 0,
        source: (0, 0),
    };
    let late = PacketIn {
        cookie: cookie.cookie(1),
        in_port: None,
        frame: frame("10.0.1.2"),
    };
    rig.event(SwitchEvent::PacketIn(late));
    assert_eq!(rig.packets.len(), 5);
    // No more than so many wait, and others' packets are not looked at.
    for _ in 0..3000 {
        rig.packet_in("10.9.0.1");
    }
    assert_eq!(rig.steering.dropped_packets(), 3000 - WAITING_PACKETS as u64);
    let foreign = PacketIn {
        cookie: 5,
        in_port: None,
        frame: vec![],
    };
    rig.event(SwitchEvent::PacketIn(foreign));
    rig.settle();
    assert_eq!(rig.packets.len(), 5 + WAITING_PACKETS);
}

#[test]
fn a_silent_server_loses_its_rows_in_one_bundle_and_returns_empty() {
    let mut rig = six_prefixes(config());
    rig.pass(150, &[2]);
    assert_eq!(rig.takes(|output| matches!(output, Output::ServerLost { .. })), 0);
    rig.pass(20, &[2]);
    let lost = Output::ServerLost {
        server: 2,
        cause: LossCause::Silent,
    };
    assert!(rig.outputs.contains(&lost), "{:?}", rig.outputs);
    let changes = rig.answer();
    assert_eq!(changes.len(), 2, "{changes:?}");
    assert!(rig.writes.is_empty());
    assert_eq!(rig.takes(is_written), 2);
    assert_eq!(rig.takes(|output| matches!(output, Output::MovePlanned(_))), 0);
    assert_eq!(
        rig.takes(|output| matches!(output, Output::MoveEnded { in_time: true, .. })),
        2
    );
    for (prefix, server) in [(0, 1), (1, 1), (2, 3), (3, 1), (4, 3), (5, 3)] {
        assert_eq!(rig.server_of(&format!("10.0.{prefix}.1")), Some(server));
    }
    // It reports again: it gets new prefixes, and its old ones stay where they are.
    rig.pass(10, &[]);
    assert_eq!(rig.takes(|output| *output == Output::ServerUsable(2)), 1);
    rig.packet_in("10.0.7.1");
    rig.settle();
    assert_eq!(rig.server_of("10.0.7.1"), Some(2));
    assert_eq!(rig.server_of("10.0.1.1"), Some(1));
}

#[test]
fn a_stop_of_the_ingress_is_no_silence_of_servers() {
    let mut rig = six_prefixes(config());
    rig.stop(5000);
    assert_eq!(rig.takes(|output| matches!(output, Output::ServerLost { .. })), 0);
    // Silence counts before and after it.
    rig.pass(140, &[2]);
    rig.stop(5000);
    assert_eq!(rig.takes(|output| matches!(output, Output::ServerLost { .. })), 0);
    rig.pass(30, &[2]);
    assert_eq!(
        rig.takes(|output| matches!(output, Output::ServerLost { server: 2, .. })),
        1
    );
}

#[test]
fn rows_of_a_drained_server_move_one_after_another() {
    let mut rig = six_prefixes(config());
    rig.input(Input::Server(server(2, Readiness::Draining)));
    rig.pass(20, &[]);
    assert_eq!(rig.takes(|output| matches!(output, Output::MovePlanned(_))), 2);
    rig.settle();
    assert_eq!(rig.takes(is_written), 1);
    assert_eq!(
        (rig.server_of("10.0.1.1"), rig.server_of("10.0.4.1")),
        (Some(1), Some(2))
    );
    rig.pass(100, &[]);
    rig.settle();
    assert_eq!(rig.takes(is_written), 0, "the state of the first is on its way");
    let row = Row::of_prefix("10.0.1.0/24".parse().unwrap());
    let chain = "edge".to_owned();
    rig.input(Input::Moved { chain, row });
    rig.settle();
    assert_eq!(rig.takes(is_written), 1);
    assert_eq!(
        rig.takes(|output| matches!(output, Output::MoveEnded { in_time: true, .. })),
        1
    );
    assert_eq!(rig.takes(|output| *output == Output::ServerDrained(2)), 0);
    // Nothing reports the second: it counts as complete after a while.
    rig.pass(600, &[]);
    assert_eq!(
        rig.takes(|output| matches!(output, Output::MoveEnded { in_time: false, .. })),
        1
    );
    assert_eq!(rig.takes(|output| *output == Output::ServerDrained(2)), 1);
    assert!((0..6).all(|prefix| rig.server_of(&format!("10.0.{prefix}.1")) != Some(2)));
    // Packets of new prefixes do not go there.
    rig.packet_in("10.0.8.1");
    rig.settle();
    assert_ne!(rig.server_of("10.0.8.1"), Some(2));
    // A server that is lost while it drains: the rest moves at once.
    let mut rig = six_prefixes(config());
    rig.input(Input::Server(server(2, Readiness::Draining)));
    rig.pass(20, &[]);
    rig.settle();
    rig.takes(is_written);
    rig.event(SwitchEvent::PortRemoved(2));
    assert_eq!(rig.takes(|output| matches!(output, Output::MoveCancelled(_))), 1);
    rig.settle();
    assert_eq!(rig.takes(is_written), 1);
    assert!((0..6).all(|prefix| rig.server_of(&format!("10.0.{prefix}.1")) != Some(2)));
}

#[test]
fn servers_prepare_before_a_row_is_written() {
    let prepares = SteeringConfig {
        prepare: Some(Nanos::from_millis(100)),
        ..config()
    };
    let mut rig = six_prefixes(prepares.clone());
    rig.input(Input::Server(server(3, Readiness::Draining)));
    rig.pass(20, &[]);
    assert!(rig.writes.is_empty());
    let row = Row::of_prefix("10.0.2.0/24".parse().unwrap());
    let chain = "edge".to_owned();
    rig.input(Input::Prepared {
        chain: chain.clone(),
        row,
    });
    assert_eq!(rig.answer().len(), 1);
    assert_eq!(rig.takes(is_written), 1);
    rig.input(Input::Moved { chain, row });
    rig.pass(50, &[]);
    assert!(rig.writes.is_empty());
    // Nobody prepares: it is written after a while.
    rig.pass(100, &[]);
    assert_eq!(rig.answer().len(), 1);
    // A lost server has nothing to prepare.
    let mut rig = six_prefixes(prepares);
    rig.input(Input::Server(server(3, Readiness::NotReady)));
    assert_eq!(rig.answer().len(), 2);
}

/// Report of a balanced chain: core time per packet is 1 µs.
fn loads(rig: &mut Rig, counters: &mut [ServerCounters; 4], classes: &[(FlowClass, u32)], milliseconds: u64) {
    let at = |rig: &Rig, class: FlowClass| {
        let rows = rig.steering.rows("edge");
        let longest = rows
            .iter()
            .filter(|(row, _)| row.to_row_match().is_some_and(|row| row.matches(class)))
            .max_by_key(|(row, _)| row.destination.map_or(0, |prefix| prefix.prefix_len() + 1));
        longest.map(|(_, server)| *server)
    };
    for (class, packets) in classes {
        if let Some(server) = at(rig, *class) {
            let counters = &mut counters[usize::from(server)];
            counters.offered += u64::from(*packets) * milliseconds;
            counters.processed += u64::from(*packets) * milliseconds;
            counters.busy += Nanos(u64::from(*packets) * 1000 * milliseconds);
        }
    }
    for number in 1..=3_u16 {
        let own = classes.iter().filter(|(class, _)| at(rig, *class) == Some(number));
        let classes = own.map(|(class, packets)| ClassLoad {
            class: *class,
            packets: *packets,
        });
        let report = ServerReport {
            server: number,
            chains: vec![ChainReport {
                chain: "edge".to_owned(),
                counters: counters[usize::from(number)],
                measured: None,
                dedicated: 1,
                classes: classes.collect(),
            }],
        };
        rig.input(Input::Report(report));
    }
}

#[test]
fn the_balancer_moves_rows_of_an_overloaded_server_and_their_rules_follow() {
    let mut rig = Rig::connected(config(), &[route("edge", "10.0.0.0/8", true)]);
    assert_eq!(rig.server_of("10.77.0.1"), Some(1));
    let classes: Vec<(FlowClass, u32)> = (0..100_u8)
        .map(|host| (FlowClass::new([10, host, 0, 1].into(), 0), 60))
        .collect();
    // Counters of a server that ran before: only what comes from now on counts.
    let mut counters = [ServerCounters {
        offered: 1 << 40,
        processed: 1 << 40,
        busy: Nanos(1 << 50),
        late: 1 << 30,
    }; 4];
    for _ in 0..200 {
        rig.now += Nanos(10 * MILLI);
        loads(&mut rig, &mut counters, &classes, 10);
        rig.steering.tick(rig.now);
        rig.steps();
        rig.settle();
        let written: Vec<Output> = rig
            .outputs
            .iter()
            .filter(|output| is_written(output))
            .cloned()
            .collect();
        rig.takes(is_written);
        for output in written {
            let Output::MoveWritten(moved) = output else { continue };
            assert_eq!(moved.cause, MoveCause::Balance);
            rig.input(Input::Moved {
                chain: moved.chain,
                row: moved.row,
            });
        }
    }
    // Six cores of load on servers of four: two have to share.
    let mut by_server = [0; 4];
    for host in 0..100 {
        by_server[usize::from(rig.server_of(&format!("10.{host}.0.1")).unwrap())] += 60;
    }
    assert_eq!(by_server[0] + by_server[3], 0, "{by_server:?}");
    assert!(by_server[1] < 3400 && by_server[2] < 3400, "{by_server:?}");
    let rows = rig.steering.rows("edge");
    assert!(rows.len() >= 2 && rows.len() < 10, "{rows:?}");
    // The server with the default row is lost.
    rig.takes(|_| true);
    rig.event(SwitchEvent::PortRemoved(1));
    assert!(!rig.writes.is_empty(), "at once");
    rig.settle();
    assert!((0..100).all(|host| rig.server_of(&format!("10.{host}.0.1")) != Some(1)));
    assert!(rig.takes(is_written) > 0);
    // The chain leaves a server that works: its rows follow in turn, with state.
    let mut other = route("edge", "10.0.0.0/8", true);
    other.servers = vec![(3, 4)];
    rig.input(Input::Chain(other));
    for _ in 0..20 {
        rig.pass(600, &[]);
        rig.settle();
    }
    let is_lost = |output: &Output| match output {
        Output::MoveEnded { moved, .. } => moved.cause == MoveCause::Lost && moved.from == 2,
        _ => false,
    };
    assert_eq!(rig.takes(is_lost), 0);
    assert!((0..100).all(|host| rig.server_of(&format!("10.{host}.0.1")) == Some(3)));
}

#[test]
fn rows_are_adopted_by_the_next_ingress_and_written_again_after_a_restart_of_the_switch() {
    let mut rig = six_prefixes(config());
    let table = rig.table.clone();
    let mut next = Rig::new(config(), &[route("edge", "10.0.0.0/8", false)]);
    next.table = table.clone();
    next.connect();
    assert!(next.writes.is_empty(), "nothing differs");
    assert!(matches!(
        next.outputs.last(),
        Some(Output::Connected {
            adopted: 6,
            foreign: 0,
            ..
        })
    ));
    // A server is gone in between: its rows move, and others stay.
    let mut next = Rig::new(config(), &[route("edge", "10.0.0.0/8", false)]);
    next.input(Input::Server(server(1, Readiness::NotReady)));
    next.table = table.clone();
    next.connect();
    let changes = next.answer();
    assert_eq!(changes.len(), 2, "{changes:?}");
    assert_eq!(next.server_of("10.0.1.1"), Some(2));
    assert_ne!(next.server_of("10.0.0.1"), Some(1));
    // Rows of chains that are no more, and of others' rules.
    let mut next = Rig::new(config(), &[]);
    next.table = table.clone();
    let foreign = FlowRule {
        cookie: 9,
        priority: 7,
        matching: FlowMatch::default(),
        action: Action::Normal,
    };
    super::super::rows::insert(&mut next.table, foreign.clone());
    next.connect();
    next.settle();
    assert_eq!(next.table.len(), 5);
    assert!(next.table.values().any(|rule| *rule == foreign));
    // The switch restarts in the middle of a write.
    rig.packet_in("10.0.6.1");
    rig.event(SwitchEvent::Disconnected {
        reason: "restart".to_owned(),
    });
    rig.table.clear();
    rig.connect();
    rig.settle();
    assert_eq!(rig.table.len(), table.len() + 1);
    assert!(table.iter().all(|(key, rule)| rig.table.get(key) == Some(rule)));
    assert!(
        rig.outputs
            .iter()
            .any(|output| matches!(output, Output::Connected { adopted: 0, .. }))
    );
    assert_eq!(rig.packets.last().unwrap().1, frame("10.0.6.1"), "the packet waited");
}

/// Limits of the switch, as last reported.
fn limits(rig: &Rig) -> Option<SwitchLimits> {
    rig.outputs.iter().rev().find_map(|output| match output {
        Output::Limits(limits) => Some(limits.clone()),
        _ => None,
    })
}

#[test]
fn a_table_without_room_gives_prefixes_to_one_server() {
    // Fixed: five rules. Two prefixes have room, and the switch says so.
    let mut rig = Rig::new(config(), &[route("edge", "10.0.0.0/8", false)]);
    rig.room = 7;
    rig.connect();
    rig.settle();
    for prefix in 0..3 {
        rig.packet_in(&format!("10.0.{prefix}.1"));
        rig.settle();
    }
    assert_eq!(rig.table.len(), 7);
    let default = rig.server_of("10.99.0.1").unwrap();
    assert_ne!(default, 0);
    assert_eq!(rig.takes(|output| matches!(output, Output::Problem(_))), 0);
    // The default server is lost.
    rig.input(Input::Server(server(default, Readiness::NotReady)));
    rig.settle();
    assert!(rig.server_of("10.99.0.1").is_some_and(|now| now != default && now != 0));
    assert_eq!(rig.table.len(), 7);
    // It says that there is room where there is none.
    let mut rig = Rig::new(config(), &[route("edge", "10.0.0.0/8", false)]);
    rig.connect();
    rig.room = 6;
    rig.settle();
    for prefix in 0..3 {
        if rig.server_of("10.99.0.1") == Some(0) {
            rig.packet_in(&format!("10.0.{prefix}.1"));
            rig.settle();
        }
    }
    assert_eq!(rig.table.len(), 6);
    assert!(rig.server_of("10.99.0.1").is_some_and(|default| default != 0));
    assert_eq!(rig.packets.len(), 2);
    let full = Output::Problem(SteeringProblem::TableFull { rules: 6 });
    assert!(rig.outputs.contains(&full), "{:?}", rig.outputs);
    assert!(limits(&rig).is_some_and(|limits| limits.is_full && !limits.is_too_small));
    // Not even the fixed rules.
    let mut rig = Rig::new(config(), &[route("edge", "10.0.0.0/8", false)]);
    rig.room = 3;
    rig.connect();
    rig.settle();
    assert_eq!(rig.table.len(), 3);
    let small = Output::Problem(SteeringProblem::TableTooSmall { wanted: 5, room: 3 });
    assert!(rig.outputs.contains(&small), "{:?}", rig.outputs);
    assert!(limits(&rig).is_some_and(|limits| limits.is_too_small));
    // It is over when a larger switch is connected.
    rig.room = 100;
    rig.connect();
    rig.settle();
    assert_eq!(limits(&rig), Some(SwitchLimits::default()));
}

#[test]
fn refused_changes_are_tried_again_and_foreign_rules_stay() {
    let mut rig = Rig::connected(config(), &[route("edge", "10.0.0.0/8", true)]);
    rig.input(Input::Chain(route("more", "11.0.0.0/8", true)));
    let (id, _) = rig.writes.pop_front().unwrap();
    let error = ErrorMessage { kind: 3, code: 2 };
    rig.event(SwitchEvent::WriteFailed { id, error });
    assert_eq!(rig.reads, 1);
    rig.reads = 0;
    rig.event(SwitchEvent::Rules(rig.rules()));
    assert!(rig.writes.is_empty());
    rig.pass(1900, &[]);
    assert!(rig.writes.is_empty());
    rig.pass(200, &[]);
    rig.settle();
    assert_eq!(rig.server_of("11.0.0.1"), Some(1));
    // Somebody takes the place of a rule.
    let mut rig = Rig::new(config(), &[route("edge", "10.0.0.0/8", true)]);
    let mut free = Rig::connected(config(), &[route("edge", "10.0.0.0/8", true)]);
    let place = free
        .table
        .values()
        .find(|rule| matches!(rule.action, Action::Server { .. }))
        .unwrap();
    let taken = FlowRule {
        cookie: 0x99,
        action: Action::Drop,
        ..place.clone()
    };
    super::super::rows::insert(&mut rig.table, taken.clone());
    rig.connect();
    rig.settle();
    assert!(rig.table.values().any(|rule| *rule == taken));
    assert_eq!(
        rig.takes(|output| matches!(output, Output::Problem(SteeringProblem::Foreign { cookie: 0x99, .. }))),
        1
    );
    let foreign = limits(&rig).unwrap().foreign;
    assert!(
        foreign.len() == 1 && foreign["edge"].contains("cookie 0x99"),
        "{foreign:?}"
    );
    // The other owner deletes it: the place is the ingress's.
    rig.table.retain(|_, rule| *rule != taken);
    rig.steering.read_rules();
    rig.steps();
    rig.event(SwitchEvent::Rules(rig.rules()));
    rig.input(Input::Chain(route("more", "11.0.0.0/8", true)));
    rig.settle();
    assert_eq!(
        (limits(&rig), rig.server_of("10.0.0.1")),
        (Some(SwitchLimits::default()), Some(1))
    );
    // An audit finds a rule that is missing.
    free.table
        .retain(|_, rule| !matches!(rule.action, Action::Server { .. }));
    free.steering.read_rules();
    free.steps();
    free.event(SwitchEvent::Rules(free.rules()));
    assert_eq!(
        free.takes(|output| *output == Output::Problem(SteeringProblem::Tampered { rules: 1 })),
        1
    );
    free.settle();
    assert_eq!(free.server_of("10.0.0.1"), Some(1));
}

#[test]
fn chains_that_cannot_be_steered_are_rejected_with_the_reason() {
    let mut rig = Rig::connected(config(), &[route("edge", "10.0.0.0/8", true)]);
    let why = |rig: &mut Rig| {
        rig.pass(10, &[]);
        match rig.outputs.pop() {
            Some(Output::ChainRefused { chain, why, .. }) => format!("chain {chain}: {why}"),
            other => panic!("{other:?}"),
        }
    };
    rig.input(Input::Chain(route("twin", "10.0.0.0/8", true)));
    assert_eq!(
        why(&mut rig),
        "chain twin: its packets are also those of chain edge: expected a more or less specific spec.match"
    );
    let mut wide = route("wide", "11.0.0.0/8", true);
    wide.matching.vlans = (1..=1025).collect();
    rig.input(Input::Chain(wide));
    assert_eq!(
        why(&mut rig),
        "chain wide: expected a spec.match with at most 1024 combinations of prefixes, protocols and VLANs, found 1025"
    );
    let mut long = route("long", "11.0.0.0/8", true);
    long.mapping.prefix_v4 = 33;
    rig.input(Input::Chain(long));
    assert_eq!(
        why(&mut rig),
        "chain long: expected prefix lengths of at most 32 and 128"
    );
    let mut many = route("many", "11.0.0.0/8", true);
    let prefixes = |lengths: std::ops::Range<u8>| lengths.map(|length| format!("11.0.0.0/{length}").parse().unwrap());
    many.matching.destinations = prefixes(8..31).collect();
    many.matching.sources = prefixes(8..30).collect();
    rig.input(Input::Chain(many));
    assert!(why(&mut rig).contains("too many different combinations of prefix lengths"));
    assert!(rig.steering.rows("twin").is_empty());
    // Its packets are another one's at once.
    rig.input(Input::ChainRemoved("edge".to_owned()));
    rig.settle();
    assert!(rig.steering.rows("edge").is_empty() && !rig.steering.rows("twin").is_empty());
    assert_eq!(rig.server_of("10.0.0.1"), Some(1));
}

#[test]
fn nothing_happens_without_servers_and_names_of_ports_are_followed() {
    let mut rig = Rig::new(config(), &[route("edge", "10.0.0.0/8", true)]);
    for number in 1..=3 {
        rig.input(Input::ServerRemoved(number));
    }
    rig.connect();
    rig.settle();
    assert_eq!(rig.server_of("10.0.0.1"), None);
    let named = Server {
        port: PortReference::Name("s3".to_owned()),
        ..server(3, Readiness::Ready)
    };
    rig.input(Input::Server(named));
    rig.settle();
    assert_eq!(rig.server_of("10.0.0.1"), Some(3));
    // All servers are lost: the rule stays, and a server that comes back has it.
    rig.event(SwitchEvent::PortRemoved(3));
    rig.settle();
    assert_eq!(rig.server_of("10.0.0.1"), Some(3));
    rig.input(Input::Server(server(2, Readiness::Ready)));
    rig.pass(100, &[1]);
    rig.settle();
    assert_eq!(rig.server_of("10.0.0.1"), Some(2));
}
