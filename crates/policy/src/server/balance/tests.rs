mod servers;

use super::*;
use proptest::prelude::*;
use std::net::{IpAddr, Ipv4Addr};

const CONFIG: IngressConfig = IngressConfig {
    prefix_v4: 24,
    prefix_v6: 48,
    threshold: 1,
    table: 100,
    flow_hash: true,
    rebalance: true,
    scale_in: false,
};

/// Nanoseconds of core time that a packet takes.
const PACKET: u64 = 1000;

/// Rack that processes what a mapper steers: classes with their packets per millisecond.
struct Rack {
    mapper: IngressBalancer,
    classes: Vec<ClassLoad>,
    counters: Vec<ServerCounters>,
    /// Servers that have failed.
    failed: Vec<usize>,
    /// Milliseconds until moves are complete, if there are any, and times a server was emptied.
    completes: u32,
    emptied: usize,
    now: Nanos,
    /// Share of the packets of a server that are late, by its share of used cores.
    late: fn(f64) -> f64,
}

fn address(text: &str) -> IpAddr {
    text.parse().unwrap()
}

impl Rack {
    fn new(config: IngressConfig, servers: usize, classes: Vec<ClassLoad>) -> Rack {
        Rack {
            mapper: IngressBalancer::new(config, vec![4; servers]),
            classes,
            counters: vec![ServerCounters::default(); servers],
            failed: Vec::new(),
            completes: 0,
            emptied: 0,
            now: Nanos::ZERO,
            late: |full| if full > 1.0 { 1.0 - 1.0 / full } else { 0.0 },
        }
    }

    /// Returns the cores that each server's load takes.
    fn loads(&self) -> Vec<f64> {
        let mut loads = vec![0.0; self.counters.len()];
        for class in &self.classes {
            let (_, server) = self.mapper.steer(class.class);
            loads[usize::from(server)] += f64::from(class.packets) * PACKET as f64 / 1e6;
        }
        loads
    }

    /// Lets a number of milliseconds pass. Moves take two. Returns those that were planned.
    fn run(&mut self, milliseconds: u32) -> Vec<RowMove> {
        let mut all = Vec::new();
        let mut loads = self.loads();
        for _ in 0..milliseconds {
            for (counters, &load) in self.counters.iter_mut().zip(&loads) {
                let packets = (load * 1e6 / PACKET as f64).round() as u64;
                let done = packets.min(4_000_000 / PACKET);
                counters.offered += packets;
                counters.processed += done;
                counters.busy += Nanos(done * PACKET);
                counters.late += (packets as f64 * (self.late)(load / 4.0)).round() as u64;
            }
            self.now += Nanos::from_millis(1);
            if self.completes > 0 {
                self.completes -= 1;
                if self.completes == 0 {
                    let rows: Vec<RowMatch> = self.mapper.moving.iter().map(|moving| moving.row).collect();
                    self.emptied += usize::from(self.mapper.emptying.is_some());
                    rows.into_iter().for_each(|row| self.mapper.moved(row));
                }
            }
            let reports = self.counters.iter().enumerate();
            let reports = reports.map(|(server, counters)| (!self.failed.contains(&server)).then_some(*counters));
            if self.mapper.report(self.now, &reports.collect::<Vec<_>>()) {
                let mut moves = Vec::new();
                self.mapper.plan(&self.classes, &mut moves);
                if !moves.is_empty() {
                    self.mapper.rows_written();
                    loads = self.loads();
                    self.completes = 2;
                }
                all.extend(moves);
            }
        }
        all
    }
}

/// Returns a class for each of these destinations with packets per millisecond.
fn classes(loads: impl IntoIterator<Item = (String, u32)>) -> Vec<ClassLoad> {
    let class = |(destination, packets): (String, u32)| ClassLoad {
        class: FlowClass::new(address(&destination), 0),
        packets,
    };
    loads.into_iter().map(class).collect()
}

/// Returns `count` /24 prefixes, together `packets` per millisecond, spread over the address space. The first has most.
fn prefixes(count: u32, packets: u32) -> Vec<ClassLoad> {
    let sum: f64 = (1..=count).map(|rank| 1.0 / f64::from(rank)).sum();
    classes((1..=count).map(|rank| {
        let address = Ipv4Addr::from_bits(rank.wrapping_mul(0x9e37_79b1) & 0xffff_ff00 | 1);
        (
            address.to_string(),
            (f64::from(packets) / f64::from(rank) / sum).round() as u32,
        )
    }))
}

#[test]
fn a_load_beyond_one_server_is_halved_by_one_row_within_milliseconds() {
    let mut rack = Rack::new(CONFIG, 4, prefixes(1000, 4700));
    let moves = rack.run(2);
    assert_eq!(moves.len(), 1, "{moves:?}");
    assert_eq!((moves[0].from, moves[0].to), (0, 1));
    let loads = rack.loads();
    assert!((loads[0] - loads[1]).abs() < 0.5, "{loads:?}");
    assert_eq!(rack.mapper.rows(), 1);
    // It stays so.
    assert_eq!(rack.run(3000), []);
}

#[test]
fn a_load_within_a_server_stays_there() {
    let mut rack = Rack::new(CONFIG, 4, prefixes(1000, 3000));
    assert_eq!(rack.run(1000), []);
    assert_eq!(rack.loads()[0].round(), 3.0);
}

#[test]
fn as_many_servers_are_taken_as_the_load_requires() {
    for (load, used) in [(4700, 2), (6500, 2), (7500, 3), (9900, 3), (12_500, 4), (15_500, 4)] {
        let mut rack = Rack::new(CONFIG, 4, prefixes(1000, load));
        let moves = rack.run(1000);
        let loads = rack.loads();
        let with: Vec<f64> = loads.into_iter().filter(|load| *load > 0.0).collect();
        assert_eq!(with.len(), used, "{load}: {with:?}");
        let most = with.iter().copied().fold(0.0, f64::max);
        assert!(
            most <= f64::from(load) / 1000.0 / used as f64 * 1.2,
            "{load}: {with:?} {moves:?}"
        );
        assert!(moves.len() <= 4 * used, "{moves:?}");
    }
}

#[test]
fn a_load_that_drifts_to_one_server_moves_on() {
    let mut rack = Rack::new(CONFIG, 3, prefixes(1000, 4700));
    rack.run(1000);
    // What server 1 has doubles, and the rest falls.
    for class in &mut rack.classes {
        class.packets = match rack.mapper.steer(class.class).1 {
            1 => class.packets * 2,
            _ => class.packets / 4,
        };
    }
    let before = rack.loads();
    assert!(before[1] > 4.0 && before[0] < 1.0, "{before:?}");
    let moves = rack.run(1000);
    assert!(
        moves.iter().all(|planned| (planned.from, planned.to) == (1, 0)),
        "{moves:?}"
    );
    let loads = rack.loads();
    assert!(loads[1] < 3.4 && loads[2] == 0.0, "{loads:?}");
}

#[test]
fn servers_that_lose_packets_within_their_limit_learn_a_lower_one() {
    let mut rack = Rack::new(CONFIG, 4, prefixes(1000, 2800));
    // Bursty: 3 % are late from 60 % of the cores on.
    rack.late = |full| if full > 0.6 { 0.03 } else { 0.0 };
    let moves = rack.run(1000);
    assert!(!moves.is_empty());
    let loads = rack.loads();
    assert!(loads[0] < 2.4 && loads[1] < 2.4 && loads[2] == 0.0, "{loads:?}");
    assert!(rack.mapper.servers[0].limit < 0.6);
    // The second has learnt from the first.
    assert!(rack.mapper.servers[1].limit < 0.6);
    // Without late packets the limit grows again, slower than it fell.
    let learnt = rack.mapper.servers[0].limit;
    rack.run(5000);
    assert!(rack.mapper.servers[0].limit > learnt);
}

#[test]
fn late_packets_below_the_tolerated_share_move_nothing() {
    let mut rack = Rack::new(CONFIG, 2, prefixes(100, 3000));
    rack.late = |_| 0.004;
    assert_eq!(rack.run(2000), []);
}

#[test]
fn prefixes_are_divided_only_where_one_is_too_large() {
    // Many hosts behind one /24, with more than a server together, and other prefixes.
    let hosts = (0..64).map(|host| (format!("10.1.1.{host}"), 100));
    let others = (0..8).map(|other| (format!("10.7.{other}.1"), 50));
    let mut rack = Rack::new(CONFIG, 3, classes(hosts.chain(others)));
    let moves = rack.run(1000);
    let longest = moves.iter().map(|planned| planned.row.length()).max();
    assert!(longest > Some(25), "{moves:?}");
    assert!(moves.iter().all(|planned| !planned.row.is_by_hash()));
    assert!(rack.loads().iter().all(|load| *load <= 3.5), "{:?}", rack.loads());
    // Hosts of prefixes that are small enough stay together.
    let small = (0..1000_u32).map(|host| (format!("10.{}.{}.{}", host % 7, host / 100, host % 100), 5));
    let mut rack = Rack::new(CONFIG, 3, classes(small));
    let moves = rack.run(1000);
    assert!(!moves.is_empty());
    assert!(moves.iter().all(|planned| planned.row.length() <= 25), "{moves:?}");
}

/// Returns the classes of a destination's flows.
fn one_destination(packets: u32) -> Vec<ClassLoad> {
    let class = |part: u16| ClassLoad {
        class: FlowClass::new(address("10.0.0.1"), part * 32),
        packets: packets / 16,
    };
    (0..16).map(class).collect()
}

#[test]
fn a_destination_too_large_for_a_server_is_divided_by_hash_if_the_switch_can() {
    let mut rack = Rack::new(CONFIG, 3, one_destination(6400));
    let moves = rack.run(1000);
    assert!(moves.iter().any(|planned| planned.row.is_by_hash()), "{moves:?}");
    assert!(rack.loads().iter().all(|load| *load <= 3.6), "{:?}", rack.loads());
    let config = IngressConfig {
        flow_hash: false,
        ..CONFIG
    };
    let mut rack = Rack::new(config, 3, one_destination(6400));
    assert_eq!(rack.run(1000), []);
}

#[test]
fn one_class_too_large_for_a_server_stays_and_others_leave() {
    let mut loads = vec![("10.0.0.1".to_owned(), 4500)];
    loads.extend((0..10).map(|other| (format!("10.9.{other}.1"), 100)));
    let mut rack = Rack::new(CONFIG, 2, classes(loads));
    let moves = rack.run(1000);
    let large = FlowClass::new(address("10.0.0.1"), 0);
    let moved = moves.iter().filter(|planned| planned.row.matches(large)).count();
    assert!(moved <= 1, "it does not go to and fro: {moves:?}");
    let loads = rack.loads();
    assert!(loads.iter().any(|load| (*load - 4.5).abs() < 0.1), "{loads:?}");
}

#[test]
fn the_table_is_never_exceeded_and_redundant_rows_are_removed() {
    for table in [0, 1, 2, 5] {
        let config = IngressConfig { table, ..CONFIG };
        let mut rack = Rack::new(config, 4, prefixes(300, 12_000));
        rack.run(2000);
        assert!(rack.mapper.rows() <= table, "{table}");
    }
    let mut mapper = IngressBalancer::new(CONFIG, [4, 4]);
    let class = FlowClass::new(address("10.1.1.1"), 0);
    let step = |mapper: &mut IngressBalancer, length: u8, to: u16| {
        let row = RowMatch::of(class, length);
        mapper.moving.push(RowMove {
            row,
            from: 1 - to,
            to,
            load: 1.0,
        });
        mapper.rows_written();
        mapper.moved(row);
        mapper.rows()
    };
    assert_eq!(step(&mut mapper, 25, 1), 1);
    assert_eq!(step(&mut mapper, 33, 0), 2);
    // The prefix returns: both rows say the same as the default row.
    assert_eq!(step(&mut mapper, 25, 0), 0);
    assert_eq!(mapper.steer(class), (RowMatch::DEFAULT, 0));
}

#[test]
fn nothing_is_decided_while_rows_move_and_backlogs_settle() {
    let mut mapper = IngressBalancer::new(CONFIG, [4, 4]);
    let load = prefixes(100, 8000);
    let counters = |milliseconds: u64| {
        let first = ServerCounters {
            offered: 8000 * milliseconds,
            processed: 4000 * milliseconds,
            busy: Nanos(4000 * PACKET * milliseconds),
            late: 8000 * milliseconds,
        };
        [Some(first), Some(ServerCounters::default())]
    };
    assert!(mapper.report(Nanos::from_millis(1), &counters(1)));
    let mut moves = Vec::new();
    mapper.plan(&load, &mut moves);
    assert!(mapper.is_moving() && !moves.is_empty());
    assert!(!mapper.report(Nanos::from_millis(2), &counters(2)));
    mapper.rows_written();
    assert!(!mapper.report(Nanos::from_millis(3), &counters(3)));
    moves.iter().for_each(|planned| mapper.moved(planned.row));
    assert!(!mapper.is_moving());
    for milliseconds in 4..=13 {
        assert!(!mapper.report(Nanos::from_millis(milliseconds), &counters(milliseconds)));
    }
    assert!(mapper.report(Nanos::from_millis(15), &counters(15)));
}

proptest! {
    /// Whatever the load: classes change their servers by the planned moves only, as these say, loads are conserved, and
    /// the table is large enough.
    #[test]
    fn rows_move_what_they_match_and_nothing_else(
        hosts in proptest::collection::vec((any::<u32>(), 0_u16..512, 1_u32..2000), 1..60),
        narrow in any::<bool>(),
        table in 0_usize..8,
        flow_hash in any::<bool>(),
        servers in 2_usize..5,
        rounds in proptest::collection::vec(any::<u32>(), 1..5),
    ) {
        let mask = if narrow { 0x0000_01ff } else { u32::MAX };
        let load = |(host, bucket, packets): (u32, u16, u32)| ClassLoad {
            class: FlowClass::new(Ipv4Addr::from_bits(host & mask).into(), bucket),
            packets,
        };
        let mut classes: Vec<ClassLoad> = hosts.into_iter().map(load).collect();
        classes.sort_by_key(|class| class.class);
        classes.dedup_by_key(|class| class.class);
        let config = IngressConfig { table, flow_hash, ..CONFIG };
        let mut rack = Rack::new(config, servers, classes);
        for round in rounds {
            for (number, class) in rack.classes.iter_mut().enumerate() {
                class.packets = 1 + (class.packets ^ round.rotate_left(number as u32)) % 2000;
            }
            let before: Vec<_> = rack.classes.iter().map(|class| rack.mapper.steer(class.class)).collect();
            let mut moves = Vec::new();
            for state in &mut rack.mapper.servers {
                state.sheds = state.used;
                state.load = 0.0;
            }
            for (class, (_, server)) in rack.classes.iter().zip(&before) {
                rack.mapper.servers[usize::from(*server)].load += f64::from(class.packets) / 1000.0;
            }
            rack.mapper.plan(&rack.classes, &mut moves);
            rack.mapper.rows_written();
            prop_assert!(rack.mapper.rows() <= table);
            for (class, (row, before)) in rack.classes.iter().zip(before) {
                let mut expected = before;
                // A shorter row leaves what a longer one matches.
                let mut length = row.length();
                let mut moved = 0;
                for planned in &moves {
                    // The longest match applies, and of equal ones the last.
                    if planned.row.matches(class.class) && expected == planned.from && planned.row.length() >= length {
                        (expected, length) = (planned.to, planned.row.length());
                        moved += 1;
                    }
                }
                let after = rack.mapper.steer(class.class).1;
                if after != before {
                    prop_assert_eq!(after, expected, "{:?}", class);
                    prop_assert_eq!(moved, 1, "{:?} moves once", class);
                }
            }
            moves.iter().for_each(|planned| rack.mapper.moved(planned.row));
            prop_assert!(!rack.mapper.is_moving());
        }
    }
}
