//! Servers that are lost, and servers that are emptied.

use super::*;

const SCALE_IN: IngressConfig = IngressConfig {
    scale_in: true,
    ..CONFIG
};

impl Rack {
    /// Returns the servers in use.
    fn used(&self) -> Vec<u16> {
        let servers = 0..self.counters.len() as u16;
        servers.filter(|server| self.mapper.is_used(*server)).collect()
    }

    /// Sets the load of all classes together, in thousandths of a core.
    fn set(&mut self, load: f64) {
        let sum: f64 = self.classes.iter().map(|class| f64::from(class.packets)).sum();
        for class in &mut self.classes {
            class.packets = (f64::from(class.packets) * load / sum).round().max(1.0) as u32;
        }
    }

    /// Lets some milliseconds pass. Returns how often a server was emptied.
    fn emptied_in(&mut self, milliseconds: u32) -> usize {
        let before = self.emptied;
        self.run(milliseconds);
        self.emptied - before
    }
}

#[test]
fn all_rows_leave_a_server_with_the_third_missing_report() {
    for lost in [0, 1] {
        let mut rack = Rack::new(CONFIG, 4, prefixes(1000, 4700));
        rack.run(1000);
        assert_eq!(rack.used(), [0, 1]);
        rack.failed.push(lost);
        assert_eq!(rack.run(2), []);
        assert!(!rack.mapper.is_lost(lost as u16));
        let moves = rack.run(1);
        assert!(rack.mapper.is_lost(lost as u16) && !rack.mapper.is_used(lost as u16));
        assert!(!moves.is_empty() && moves.len() <= 4, "{moves:?}");
        assert!(
            moves.iter().all(|planned| usize::from(planned.from) == lost),
            "{moves:?}"
        );
        rack.run(3000);
        let loads = rack.loads();
        assert_eq!(loads[lost], 0.0);
        // One server has no room for all.
        assert!(loads.iter().all(|load| *load < 3.5), "{loads:?}");
        assert!(!rack.used().contains(&(lost as u16)));
        let unknown = FlowClass::new(address("203.0.113.1"), 0);
        assert_ne!(usize::from(rack.mapper.steer(unknown).1), lost);
    }
}

#[test]
fn rows_of_a_lost_server_without_packets_leave_it_too() {
    let mut rack = Rack::new(CONFIG, 3, prefixes(1000, 6000));
    rack.run(1000);
    rack.set(0.0);
    rack.classes.clear();
    rack.failed.push(1);
    rack.run(50);
    let destinations = prefixes(1000, 6000);
    assert!(destinations.iter().all(|class| rack.mapper.steer(class.class).1 != 1));
}

#[test]
fn a_missing_report_or_two_move_nothing() {
    let mut rack = Rack::new(CONFIG, 2, prefixes(1000, 4700));
    rack.run(1000);
    for _ in 0..200 {
        rack.failed.push(1);
        assert_eq!(rack.run(2), []);
        rack.failed.clear();
        assert_eq!(rack.run(1), []);
    }
}

#[test]
fn without_another_server_nothing_moves_and_a_server_that_returns_is_used() {
    let mut rack = Rack::new(CONFIG, 2, prefixes(1000, 4700));
    rack.run(1000);
    rack.failed = vec![0, 1];
    assert_eq!(rack.run(100), []);
    rack.failed = vec![0];
    let moves = rack.run(10);
    assert!(
        !moves.is_empty() && moves.iter().all(|planned| planned.to == 1),
        "{moves:?}"
    );
    rack.failed.clear();
    rack.run(1000);
    let loads = rack.loads();
    assert!(loads.iter().all(|load| *load < 3.5), "{loads:?}");
}

#[test]
fn a_server_that_is_not_needed_is_emptied_if_that_is_configured() {
    let mut rack = Rack::new(SCALE_IN, 4, prefixes(1000, 7500));
    rack.run(1000);
    assert_eq!(rack.used().len(), 3);
    rack.set(5000.0);
    // A server fewer suffices, but not for long enough yet.
    assert_eq!(rack.emptied_in(1900), 0);
    assert_eq!(rack.emptied_in(5000), 1);
    assert_eq!(rack.used().len(), 2);
    rack.set(300.0);
    assert_eq!(rack.emptied_in(10_000), 1);
    // The last one stays.
    assert_eq!(rack.emptied_in(10_000), 0);
    assert_eq!((rack.used().len(), rack.mapper.rows()), (1, 0));
    let mut without = Rack::new(CONFIG, 4, prefixes(1000, 7500));
    without.run(1000);
    without.set(300.0);
    assert_eq!(without.run(10_000), []);
}

#[test]
fn a_load_at_the_boundary_does_not_flap() {
    let mut rack = Rack::new(SCALE_IN, 3, prefixes(100, 4000));
    let mut emptied = rack.emptied_in(1000);
    for step in 0..240_u64 {
        // To and fro between what one server holds and a bit more.
        rack.set(2400.0 + (step.wrapping_mul(0x9e37_79b9) % 1400) as f64);
        emptied += rack.emptied_in(500);
    }
    assert!(emptied <= 3, "{emptied} times in two minutes");
}

#[test]
fn a_sine_load_empties_few_servers() {
    let mut rack = Rack::new(SCALE_IN, 3, prefixes(100, 3500));
    let mut emptied = 0;
    // Half of each period of six seconds one server suffices.
    for step in 0..1200 {
        let phase = f64::from(step) * std::f64::consts::TAU / 24.0;
        rack.set(3500.0 + 2500.0 * phase.sin());
        emptied += rack.emptied_in(250);
    }
    assert!((1..=10).contains(&emptied), "{emptied} times in 50 periods");
}

#[test]
fn a_server_that_fails_while_it_is_emptied_is_left_at_once() {
    let mut rack = Rack::new(SCALE_IN, 3, prefixes(100, 5000));
    rack.run(1000);
    rack.set(1000.0);
    let from = (0..10_000).find_map(|_| rack.run(1).first().map(|planned| planned.from));
    let from = from.expect("one of two is not needed");
    rack.failed.push(usize::from(from));
    rack.run(100);
    assert!(!rack.mapper.is_moving() && rack.mapper.is_lost(from));
    assert_eq!(rack.used().len(), 1);
    assert_eq!(rack.loads()[usize::from(from)], 0.0);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Whatever the rows are: after a loss none sends anything to the lost server, other servers' flows stay, and the
    /// table is large enough.
    #[test]
    fn no_class_stays_at_a_lost_server(
        hosts in proptest::collection::vec((any::<u32>(), 0_u16..512, 1_u32..2000), 1..60),
        table in 0_usize..8,
        servers in 2_usize..5,
        lost in 0_usize..5,
        rounds in 1_u32..4,
    ) {
        let load = |(host, bucket, packets): (u32, u16, u32)| ClassLoad {
            class: FlowClass::new(Ipv4Addr::from_bits(host & 0x0000_07ff).into(), bucket),
            packets,
        };
        let mut classes: Vec<ClassLoad> = hosts.into_iter().map(load).collect();
        classes.sort_by_key(|class| class.class);
        classes.dedup_by_key(|class| class.class);
        let mut rack = Rack::new(IngressConfig { table, ..CONFIG }, servers, classes);
        for round in 1..=rounds {
            rack.set(f64::from(round) * 4000.0);
            rack.run(400);
        }
        let lost = lost % servers;
        let before: Vec<u16> = rack.classes.iter().map(|class| rack.mapper.steer(class.class).1).collect();
        rack.failed.push(lost);
        rack.run(12);
        for (class, before) in rack.classes.iter().zip(before) {
            let after = usize::from(rack.mapper.steer(class.class).1);
            prop_assert_ne!(after, lost);
            if usize::from(before) != lost && !rack.mapper.servers[usize::from(before)].sheds {
                prop_assert!(rack.mapper.is_used(before));
            }
        }
        prop_assert!(rack.mapper.rows() <= table);
        let unknown = FlowClass::new(address("203.0.113.1"), 0);
        prop_assert_ne!(usize::from(rack.mapper.steer(unknown).1), lost);
    }
}

#[test]
fn a_draining_server_gives_all_its_rows_away_and_gets_none() {
    for drained in [0, 1] {
        let mut rack = Rack::new(CONFIG, 3, prefixes(1000, 4700));
        rack.run(1000);
        assert_eq!(rack.used(), [0, 1]);
        rack.mapper.set_membership(drained, Membership::Draining);
        let moves = rack.run(20);
        assert!(!moves.is_empty());
        assert!(
            moves
                .iter()
                .all(|planned| planned.from == drained && planned.to != drained)
        );
        assert!(!rack.mapper.is_lost(drained) && !rack.mapper.is_used(drained));
        rack.run(3000);
        assert_eq!(rack.loads()[usize::from(drained)], 0.0);
        assert_eq!(rack.used(), if drained == 0 { [1, 2] } else { [0, 2] });
    }
}

#[test]
fn a_server_reported_lost_is_left_at_once_and_returns_as_a_new_one() {
    let mut rack = Rack::new(CONFIG, 2, prefixes(1000, 4700));
    rack.run(1000);
    rack.mapper.set_membership(1, Membership::Lost);
    let moves = rack.run(1);
    assert!(!moves.is_empty() && moves.iter().all(|planned| (planned.from, planned.to) == (1, 0)));
    // It still reports, which does not bring it back.
    rack.run(500);
    assert!(rack.mapper.is_lost(1) && !rack.mapper.is_used(1));
    rack.mapper.set_membership(1, Membership::Open);
    rack.run(500);
    assert_eq!(rack.used(), [0, 1]);
    // With none left, rows stay where they are.
    for server in 0..2 {
        rack.mapper.set_membership(server, Membership::Lost);
    }
    assert_eq!(rack.run(10), []);
}

#[test]
fn an_added_server_is_taken_when_the_load_requires_it() {
    let mut rack = Rack::new(CONFIG, 1, prefixes(1000, 4700));
    assert_eq!(rack.run(100), []);
    assert_eq!(rack.mapper.add_server(2), 1);
    rack.counters.push(ServerCounters::default());
    rack.mapper.set_cores(1, 4);
    rack.run(1000);
    assert_eq!(rack.used(), [0, 1]);
    let loads = rack.loads();
    assert!((loads[0] - loads[1]).abs() < 0.8, "{loads:?}");
}

#[test]
fn a_new_mapper_takes_over_the_rows_of_the_switch() {
    let mut rack = Rack::new(CONFIG, 4, prefixes(1000, 9000));
    rack.run(1000);
    let rows: Vec<_> = rack.mapper.table().collect();
    assert_eq!(rows.len(), rack.mapper.rows() + 1);
    let mut mapper = IngressBalancer::new(CONFIG, [4; 4]);
    let default = rows.iter().find(|(row, _)| *row == RowMatch::DEFAULT);
    mapper.restore(default.unwrap().1, rows.iter().copied(), rack.now);
    for class in &rack.classes {
        assert_eq!(mapper.steer(class.class), rack.mapper.steer(class.class));
    }
    let used = (0..4).filter(|server| mapper.is_used(*server));
    assert_eq!(used.collect::<Vec<_>>(), rack.used());
    rack.mapper = mapper;
    assert_eq!(rack.run(1000), [], "the load is within the limits");
}

#[test]
fn a_cancelled_move_changes_nothing() {
    let mut rack = Rack::new(CONFIG, 2, prefixes(100, 4700));
    rack.run(2);
    let mut mapper = IngressBalancer::new(CONFIG, [4, 4]);
    mapper.moving.push(RowMove {
        row: RowMatch::DEFAULT,
        from: 0,
        to: 1,
        load: 1.0,
    });
    mapper.cancel(RowMatch::DEFAULT);
    assert!(!mapper.is_moving());
    mapper.rows_written();
    assert_eq!(mapper.steer(rack.classes[0].class), (RowMatch::DEFAULT, 0));
}

#[test]
fn a_server_is_filled_as_far_as_permitted_and_no_further_later() {
    let mut rack = Rack::new(CONFIG, 2, prefixes(100, 1_000));
    rack.mapper.set_most_fill(0.2);
    // One of four cores is too much.
    rack.run(3_000);
    assert_eq!(rack.used(), [0, 1]);
    rack.run(20_000);
    assert!(rack.loads().iter().all(|load| *load <= 0.8), "{:?}", rack.loads());
    assert!((0..2).all(|server| rack.mapper.limit(server) <= 0.2));
    let added = rack.mapper.add_server(4);
    assert_eq!(rack.mapper.limit(added), 0.2);
}

#[test]
fn after_moves_nothing_is_judged_before_the_reports_show_them() {
    let moves_with = |delay: Nanos| {
        let mut rack = Rack::new(CONFIG, 3, prefixes(100, 4_700));
        rack.mapper.set_report_delay(delay);
        let first = rack.run(2_000).len();
        (first, rack.run(3_000).len())
    };
    assert!(matches!(moves_with(Nanos::ZERO), (1.., 0)));
    assert!(matches!(moves_with(Nanos::from_millis(300)), (1.., 0)));
}
