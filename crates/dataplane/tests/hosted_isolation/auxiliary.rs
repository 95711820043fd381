//! Isolated chains that borrow auxiliary cores.

use crate::common::mappers::{random_flows, random_leases};
use crate::processes::*;
use crate::rig::*;
use crate::{PACKETS, assert_all_booked, await_more, isolation};
use rustix::process::Signal;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::sleep;
use std::time::{Duration, Instant};
use tailwater_dataplane::cores::{self, AvoidCores};
use tailwater_dataplane::scaling::ScalingConfig;
use tailwater_dataplane::shared_port::Unmatched;
use tailwater_handover::park::Mode;
use tailwater_net::Nanos;

/// Time between two packets. A core has time to spare, with which processes can start.
const SPACING: Nanos = Nanos(30_000);

/// Packets that come at once: more than a dedicated core can process by itself in time.
const BURST: u32 = 1_000;

const FUNCTIONS: &str = "{nat: {external: [203.0.113.0/28]}}, {accounting: }, {synthetic: {cycles: 12000}}";

/// Server with a dedicated core and an auxiliary one, whose other threads avoid the first.
fn start(networks: u8) -> (Server, usize, AvoidCores) {
    let auxiliary = cores::available()[0];
    // Repeated traffic would be of other flows each time.
    let trace = trace_of_bursts(networks, (SPACING, BURST), PACKETS);
    let server = Server::with_auxiliary(trace, 1, vec![auxiliary], (false, Unmatched::Drop));
    let elsewhere = AvoidCores::new(&server.cores);
    (server, auxiliary, elsewhere)
}

fn in_pool(auxiliary: usize, scaling: ScalingConfig) -> ScalingConfig {
    ScalingConfig {
        auxiliary: vec![auxiliary],
        buffers: 512,
        ..scaling
    }
}

/// Waits until all of these chains' processes on the auxiliary core are at rest. Returns their number.
fn await_rest(chains: &[&Isolated], auxiliary: usize) -> usize {
    let began = Instant::now();
    loop {
        let processes: Vec<_> = chains.iter().flat_map(|chain| chain.on_core(auxiliary)).collect();
        if processes.iter().all(|(_, policy)| policy == IDLE) {
            return processes.len();
        }
        assert!(began.elapsed() < PATIENCE, "{processes:?}");
        sleep(Duration::from_millis(1));
    }
}

/// Two isolated chains whose mappers move flows and RSS buckets at random: each packet passes once, in the order of its
/// flow, whose state is the same on both cores. Without packets, ordinary programs have the auxiliary core.
pub fn lent() {
    let (server, auxiliary, _elsewhere) = start(2);
    let wrong = Arc::<AtomicU64>::default();
    let run = |network, scaling| {
        let scaling = in_pool(auxiliary, scaling);
        Isolated::offloading(&server, (network, FUNCTIONS), scaling, Some(in_order(&wrong)))
    };
    let chains = [
        run("10.0.0.0/16", random_leases(1, 1, Mode::Sleep, 0)),
        run("10.1.0.0/16", random_flows(2, 1, Mode::Sleep)),
    ];
    await_more(&server, 8_000);
    // Three functions each.
    chains.iter().for_each(|chain| chain.running.withdrawal.withdraw());
    assert_eq!(await_rest(&[&chains[0], &chains[1]], auxiliary), 6);
    let reports = chains.map(|chain| chain.running.drain().unwrap());
    assert_all_booked(&server, &[&reports[0], &reports[1]]);
    assert_eq!(wrong.load(Ordering::Relaxed), 0, "packets out of order");
    for report in &reports {
        assert_eq!(report.packets.dropped_by_nf, 0, "{:?}", report.packets);
        let scaling = report.scaling.as_ref().unwrap();
        assert!(scaling.activated > 0 && scaling.packets_offloaded > 100, "{scaling:?}");
        let flows = report.flows.as_ref().unwrap();
        assert_eq!((flows.opened, flows.active), (50, 50));
        let isolation = isolation(report);
        assert!(isolation.real_time);
        for function in &isolation.functions {
            let restarts = function.restarts;
            let all = [restarts.ended, restarts.overdue, restarts.lied, restarts.over_budget];
            assert_eq!(all, [0; 4], "{function:?}");
        }
    }
}

/// Processes on the auxiliary core are killed again and again, in their turns and while they rest.
pub fn killed() {
    let (server, auxiliary, _elsewhere) = start(1);
    let scaling = in_pool(auxiliary, random_leases(3, 1, Mode::Sleep, 0));
    let chain = Isolated::offloading(&server, ("10.0.0.0/16", FUNCTIONS), scaling, None);
    await_more(&server, 1_000);
    for _ in 0..3 {
        let processes = chain.on_core(auxiliary);
        assert!(!processes.is_empty());
        for (process, _) in &processes {
            signal(*process, Signal::KILL);
        }
        let began = Instant::now();
        let is_back = || {
            let now = chain.on_core(auxiliary);
            now.len() == 3
                && !now
                    .iter()
                    .any(|(process, _)| processes.iter().any(|(old, _)| old == process))
        };
        while !is_back() {
            assert!(began.elapsed() < PATIENCE, "{:?}", chain.on_core(auxiliary));
            sleep(Duration::from_millis(1));
        }
        await_more(&server, 1_000);
    }
    let report = chain.running.drain().unwrap();
    assert_all_booked(&server, &[&report]);
    let ended: u64 = isolation(&report).functions.iter().map(|it| it.restarts.ended).sum();
    assert_eq!(ended, 9, "{:?}", isolation(&report).functions);
    assert!(report.packets.delivered > 1_000, "{:?}", report.packets);
    let scaling = report.scaling.as_ref().unwrap();
    assert!(scaling.packets_offloaded > 100, "{scaling:?}");
    // The state outlives the processes.
    let flows = report.flows.as_ref().unwrap();
    assert_eq!((flows.opened, flows.active), (50, 50));
}
