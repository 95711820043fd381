//! RSS buckets lent to auxiliary cores, with state in Redis.

use crate::common::mappers::{random_buckets, random_leases};
use crate::server::RedisServer;
use crate::{
    ALONE, Done, FLOWS, NAT, PATIENT, TROUBLES, allocations, bursts, counted, go_lending, packets, plan, replies_to,
    trace,
};
use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use tailwater_chain::batch::Batch;
use tailwater_chain::function::{FlowStates, NetworkFunction};
use tailwater_dataplane::{RunControl, RunPlan, run};
use tailwater_functions::own::OwnFunction;
use tailwater_functions::spec::FunctionSpec;
use tailwater_handover::park::Mode;
use tailwater_net::parse::parse;
use tailwater_net::{FlowKey, Nanos};

/// Packets that went to auxiliary cores.
fn offloaded(done: &Done) -> u64 {
    done.report.scaling.expect("dispatchers").packets_offloaded
}

/// Function of the test's own.
fn own(name: &str, make: impl Fn() -> Box<dyn NetworkFunction> + Send + Sync + 'static) -> FunctionSpec {
    FunctionSpec {
        name: name.to_owned(),
        config: OwnFunction::new("Own", make).into(),
        files: Vec::new(),
        branch: None,
        on_failure: Default::default(),
    }
}

/// RSS buckets are lent to auxiliary cores and taken back at random, as often as possible, by one dispatcher and by two
/// that exchange buckets. Everything is as on one core, and the next run goes on with it, on auxiliary cores, too.
#[test]
fn flows_that_are_lent_to_auxiliary_cores_carry_their_state() {
    let Some(server) = RedisServer::start(&[]) else {
        return;
    };
    let folder = &server.folder;
    for (seed, workers, helpers) in [(1, 1, 1), (7, 1, 2), (42, 2, 1)] {
        server.command(&["flushall"]);
        let lent = || Some(random_leases(seed, helpers, Mode::Sleep, 0));
        let moves = (workers > 1).then(|| random_buckets(seed, Nanos::from_millis(3)).0);
        let traffic = trace(folder, &packets(4000), Nanos::from_micros(50));
        let first = go_lending(folder, NAT, PATIENT, traffic, (workers, moves, lent()), |_| {});
        first.check_all(4000);
        assert!(offloaded(&first) > 100, "{:?}", first.report.scaling);
        // Only the core that opened a flow requested it.
        assert_eq!((first.state().reads, first.state().hits), (50, 0));
        assert_eq!(server.keys(), 150);
        let outside: HashSet<FlowKey> = first.sent.iter().map(|frame| parse(frame).unwrap().key).collect();
        assert_eq!(outside.len(), FLOWS as usize);
        // Only replies: without the first run's bindings, none would pass.
        let some: Vec<Vec<u8>> = first.sent.iter().step_by(3).cloned().collect();
        let replies = trace(folder, &replies_to(&some), Nanos::from_micros(50));
        let second = go_lending(folder, NAT, PATIENT, replies, (workers, None, lent()), |_| {});
        second.check_all(some.len() as u64);
        let replied: HashSet<FlowKey> = some.iter().map(|frame| parse(frame).unwrap().key).collect();
        let flows = replied.len() as u64;
        assert_eq!((second.state().reads, second.state().hits), (flows, flows));
        assert_eq!(server.keys(), 150 + flows);
        assert_eq!(counted(&server, "{nat: {external: [203.0.113.0/28]}}, "), 4000);
    }
}

/// Function that sums its threads' allocations from one batch to the next, once its core has had some packets.
struct Watches {
    packets: u64,
    before: u64,
    /// Packets behind the first ones, and allocations of their cores.
    sums: Arc<[AtomicU64; 2]>,
}

/// Packets of a core in which everything has reached its size.
const FIRST: u64 = 500;

impl NetworkFunction for Watches {
    fn kind(&self) -> &'static str {
        "Watches"
    }

    fn process(&mut self, batch: &mut Batch, _: &mut FlowStates<'_>) {
        let now = allocations::of_thread();
        if self.packets > FIRST {
            self.sums[0].fetch_add(batch.len() as u64, Ordering::Relaxed);
            self.sums[1].fetch_add(now - self.before, Ordering::Relaxed);
        }
        (self.packets, self.before) = (self.packets + batch.len() as u64, now);
    }
}

/// With state in Redis, neither the core that lends RSS buckets nor the one that borrows them allocates for packets. A
/// list may still reach a new length, after a core was preempted: a few times, not for each batch.
#[test]
fn lent_buckets_with_state_cost_no_allocation() {
    let Some(server) = RedisServer::start(&[]) else {
        return;
    };
    let folder = &server.folder;
    let lent = random_leases(3, 1, Mode::Sleep, 0);
    let (mut spec, mut config) = plan(folder, NAT, PATIENT, (1, None, Some(lent)));
    config.capture_out = None;
    let sums = Arc::new([0, 0].map(AtomicU64::new));
    let of_run = Arc::clone(&sums);
    let watches = move || -> Box<dyn NetworkFunction> {
        Box::new(Watches {
            packets: 0,
            before: 0,
            sums: Arc::clone(&of_run),
        })
    };
    spec.functions.push(own("watches", watches));
    let traffic = trace(folder, &packets(8000), Nanos::from_micros(40));
    let _alone = ALONE.lock().unwrap_or_else(|error| error.into_inner());
    let stop = AtomicBool::new(false);
    let plan = RunPlan::new(spec, config).unwrap();
    let report = run(&plan, traffic, RunControl::new(&stop)).unwrap();
    assert_eq!(report.packets.delivered, 8000);
    assert!(report.scaling.unwrap().packets_offloaded > 100);
    let [packets, allocated] = [0, 1].map(|at| sums[at].load(Ordering::Relaxed));
    assert!(packets > 3000, "{packets}");
    assert!(
        allocated < packets / 100,
        "{allocated} allocations of {packets} packets"
    );
}

/// No bucket is lent or taken back while Redis does not answer: packets wait, or pass, where they are. In the end Redis
/// has all changes.
#[test]
fn buckets_stay_on_auxiliary_cores_while_the_server_is_away() {
    const PASS: &str = ", whenUnavailable: pass, wait: 20ms";
    for (trouble, state, times) in [
        (&TROUBLES[1], PATIENT, [100, 220]),
        (&TROUBLES[0], PATIENT, [100, 220]),
        (&TROUBLES[0], PASS, [100, 220]),
        // Until after the last packet: no later change hides one that is written out of order.
        (&TROUBLES[1], PASS, [100, 450]),
    ] {
        let Some(mut server) = RedisServer::start(&[]) else {
            return;
        };
        let folder = server.folder.clone();
        let traffic = bursts(&folder, &packets(3600), Nanos::from_millis(4));
        let [begin, end] = times;
        let mut steps = [(begin, trouble.begins), (end, trouble.ends)].into_iter().peekable();
        let lent = random_leases(5, 1, Mode::Sleep, 0);
        let done = go_lending(
            &folder,
            "{accounting: {}}",
            state,
            traffic,
            (1, None, Some(lent)),
            |elapsed| {
                if let Some((_, step)) = steps.next_if(|(at, _)| elapsed >= Nanos::from_millis(*at)) {
                    step(&mut server);
                }
            },
        );
        assert!(steps.next().is_none(), "the run was over before the trouble");
        done.check_all(3600);
        assert!(offloaded(&done) > 100, "{:?}", done.report.scaling);
        assert_eq!(counted(&server, ""), 3600, "{state}");
    }
}

/// Packets that wait for longer than they may, at home and on an auxiliary core, are lost and counted.
#[test]
fn packets_that_wait_on_auxiliary_cores_for_too_long_are_lost() {
    let Some(mut server) = RedisServer::start(&[]) else {
        return;
    };
    let folder = server.folder.clone();
    let traffic = trace(&folder, &packets(4000), Nanos::from_micros(100));
    let mut steps = [(100, TROUBLES[1].begins), (300, TROUBLES[1].ends)]
        .into_iter()
        .peekable();
    let lent = random_leases(9, 1, Mode::Sleep, 0);
    let state = ", whenUnavailable: drop, wait: 10ms, packets: 512";
    let done = go_lending(
        &folder,
        "{accounting: {}}",
        state,
        traffic,
        (1, None, Some(lent)),
        |elapsed| {
            if let Some((_, step)) = steps.next_if(|(at, _)| elapsed >= Nanos::from_millis(*at)) {
                step(&mut server);
            }
        },
    );
    let sent = done.check();
    assert!(done.state().dropped > 100, "{:?}", done.state());
    assert!(sent > 500, "{:?}", done.report.packets);
}

/// Function that panics after some packets.
struct Dies(u32);

impl NetworkFunction for Dies {
    fn kind(&self) -> &'static str {
        "Dies"
    }

    fn process(&mut self, batch: &mut Batch, _: &mut FlowStates<'_>) {
        self.0 = self.0.checked_sub(batch.len() as u32).expect("on purpose");
    }
}

/// A function panics on either core, while packets and buckets wait for Redis: the run ends, and every packet is
/// counted.
#[test]
fn a_panic_among_lent_buckets_ends_the_run_with_its_books_in_order() {
    let Some(server) = RedisServer::start(&[]) else {
        return;
    };
    let folder = &server.folder;
    for seed in 1..=4 {
        let lent = random_leases(seed, 1, Mode::Sleep, 0);
        let (mut spec, config) = plan(folder, NAT, PATIENT, (1, None, Some(lent)));
        let dies = || -> Box<dyn NetworkFunction> { Box::new(Dies(300)) };
        spec.functions.push(own("dies", dies));
        let traffic = bursts(folder, &packets(1200), Nanos::from_millis(2));
        let _alone = ALONE.lock().unwrap_or_else(|error| error.into_inner());
        let stop = AtomicBool::new(false);
        let plan = RunPlan::new(spec, config).unwrap();
        let error = run(&plan, traffic, RunControl::new(&stop)).unwrap_err();
        let packets = &error.report().unwrap().packets;
        assert!(packets.lost > 0, "{packets:?}");
        assert_eq!(
            packets.offered,
            packets.delivered + packets.dropped_by_nf + packets.lost,
            "{error}: {packets:?}"
        );
    }
}
