//! Workers that stall or panic in the middle of a burst: losses are counted and have a cause, the other packets
//! continue in order, and the run ends.

mod common;

use common::mappers::{RandomFlows, helped, random_buckets, random_flows, random_help, random_splits};
use common::traffic::{PACKETS, Traffic, order};
use common::{BALANCER, NAT, RunResult, Setup, run_only, run_through, run_until};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;
use tailwater_chain::batch::Batch;
use tailwater_chain::function::{FlowStates, NetworkFunction};
use tailwater_dataplane::RunError;
use tailwater_dataplane::report::RunReport;
use tailwater_functions::own::OwnFunction;
use tailwater_functions::spec::FunctionSpec;
use tailwater_handover::park::Mode;
use tailwater_net::Nanos;
use tailwater_policy::core::{CoreMapper, Destination, Flowlet, Loads, Plan, View};

/// Fault of a worker.
#[derive(Clone, Copy)]
enum Fault {
    StandsStill(Duration),
    Dies,
}

/// Triggers the fault once, in a thread whose name has this prefix, after it has processed some packets.
struct Faulty {
    thread: &'static str,
    fault: Fault,
    after: Arc<AtomicU32>,
}

impl NetworkFunction for Faulty {
    fn kind(&self) -> &'static str {
        "Faulty"
    }

    fn process(&mut self, batch: &mut Batch, _: &mut FlowStates<'_>) {
        let thread = std::thread::current();
        if !thread.name().is_some_and(|name| name.starts_with(self.thread)) {
            return;
        }
        let seen = batch.len() as u32;
        let before = self.after.fetch_sub(seen, Ordering::Relaxed);
        // The counter continues below zero, so it crosses zero once.
        if before as i32 >= 0 && (before.wrapping_sub(seen) as i32) < 0 {
            match self.fault {
                Fault::StandsStill(time) => std::thread::sleep(time),
                Fault::Dies => panic!("on purpose"),
            }
        }
    }
}

fn faulty(thread: &'static str, fault: Fault, after: u32) -> Option<FunctionSpec> {
    let after = Arc::new(AtomicU32::new(after));
    let make = move || -> Box<dyn NetworkFunction> {
        Box::new(Faulty {
            thread,
            fault,
            after: Arc::clone(&after),
        })
    };
    Some(FunctionSpec {
        name: "faulty".to_owned(),
        config: OwnFunction::new("Faulty", make).into(),
        files: Vec::new(),
        branch: None,
        on_failure: Default::default(),
    })
}

/// A tenth of the usual rate, so a run takes seconds if nothing ends it.
fn slow() -> Traffic {
    let traffic = Traffic::default();
    Traffic {
        spacing: Nanos(10 * traffic.spacing.0),
        ..traffic
    }
}

/// Every packet is accounted for, those sent are in order, and every loss has a cause.
fn check(outcome: &RunResult, report: &RunReport) {
    let packets = &report.packets;
    let known = packets.delivered + packets.dropped_by_nf + packets.lost;
    assert_eq!(packets.offered, known, "{packets:?}");
    assert_eq!(outcome.frames.len() as u64, packets.delivered);
    for (flow, numbers) in order(&outcome.frames) {
        let rises = numbers.windows(2).all(|pair| pair[0] < pair[1]);
        assert!(rises, "flow {flow} is out of order: {numbers:?}");
    }
    let causes: u64 = report.late_by_cause.values().sum();
    assert!(causes >= packets.lost, "{:?}", report.late_by_cause);
    let windows: u64 = report.windows.list.iter().map(|window| window.lost).sum();
    assert_eq!(windows, packets.lost);
}

/// Moves flows at random, and stalls once while auxiliary cores have packets.
struct Stalling {
    random: RandomFlows,
    decisions: u32,
    stood: Arc<AtomicBool>,
}

impl CoreMapper for Stalling {
    fn due(&self, now: Nanos, packets: u32) -> bool {
        self.random.due(now, packets)
    }

    fn decide(&mut self, view: &View<'_>, plan: &mut Plan) {
        self.decisions += 1;
        let handed = view.auxiliaries.iter().any(|helper| helper.load.packets > 0);
        if self.decisions >= 20 && handed && !self.stood.swap(true, Ordering::Relaxed) {
            std::thread::sleep(Duration::from_millis(40));
        }
        self.random.decide(view, plan);
    }

    fn place(&mut self, flowlet: Flowlet, loads: &Loads<'_>) -> Destination {
        self.random.place(flowlet, loads)
    }
}

/// The dispatcher's core stalls for 40 ms while an auxiliary core has packets of it. Packets beyond its ring are lost,
/// counted, and attributed to the stall. All others continue in order.
#[test]
fn a_dispatcher_that_stands_still_recovers() {
    let stood = Arc::new(AtomicBool::new(false));
    let mapper = {
        let stood = Arc::clone(&stood);
        move || -> Box<dyn CoreMapper> {
            Box::new(Stalling {
                random: RandomFlows::new(11, 1),
                decisions: 0,
                stood: Arc::clone(&stood),
            })
        }
    };
    let setup = Setup {
        slo: "10ms",
        ring: 1024,
        scaling: Some(helped(Arc::new(mapper), 1, Mode::Sleep)),
        ..Setup::default()
    };
    let outcome = run_through(NAT, setup);
    assert!(stood.load(Ordering::Relaxed));
    let report = outcome.report();
    check(&outcome, report);
    let packets = &report.packets;
    assert_eq!(packets.offered, u64::from(PACKETS));
    // At least some 4,000 packets arrive in 40 ms, of which the ring holds 1,024.
    assert!(packets.lost > 2_000, "{packets:?}");
    assert!(report.late_by_cause["descheduled"] > 2_000);
}

/// An auxiliary core stalls in the middle of a burst, and soon holds all buffers. The dispatcher continues as far as it
/// can. Packets it has to leave in the ring are attributed to the auxiliary core. Then all continue.
#[test]
fn a_helper_that_stands_still_holds_up_its_flows_only() {
    let mut scaling = random_flows(5, 1, Mode::Sleep);
    scaling.buffers = 512;
    let setup = Setup {
        slo: "10ms",
        ring: 1024,
        scaling: Some(scaling),
        last: faulty("helper-", Fault::StandsStill(Duration::from_millis(60)), 2000),
        ..Setup::default()
    };
    let outcome = run_through(NAT, setup);
    let report = outcome.report();
    check(&outcome, report);
    assert_eq!(report.packets.offered, u64::from(PACKETS));
    // In 60 ms at least some 6,000 packets arrive, half of them for the auxiliary core. 512 buffers and the ring hold
    // 1,536. If other programs preempt the dispatcher as well, that takes precedence.
    let causes = &report.late_by_cause;
    assert!(
        causes["waiting-for-helper"] + causes["descheduled"] > 1_000,
        "{causes:?}"
    );
    assert!(causes["descheduled"] > 0);
    assert!(report.packets.lost > 1_000);
    assert!(report.windows.flagged > 0);
}

/// An auxiliary core that still stalls when the run is over: it returns its packets later, and the run ends then.
#[test]
fn a_helper_that_stands_still_at_the_end() {
    let setup = Setup {
        slo: "200us",
        traffic: Traffic {
            packets: 5_000,
            ..Traffic::default()
        },
        scaling: Some(random_flows(5, 1, Mode::Sleep)),
        last: faulty("helper-", Fault::StandsStill(Duration::from_millis(900)), 200),
        ..Setup::default()
    };
    let outcome = run_through(NAT, setup);
    let report = outcome.report();
    check(&outcome, report);
    assert_eq!(report.packets.offered, 5_000);
    assert!(report.packets.reasons["not-drained"] > 0, "{report:?}");
}

/// Runs a chain in which one worker panics. Its packets are lost for that reason, and the run ends long before its
/// traffic does.
fn dies(functions: &str, thread: &'static str, setup: Setup) {
    let setup = Setup {
        traffic: slow(),
        last: faulty(thread, Fault::Dies, 2000),
        ..setup
    };
    let outcome = match functions {
        "forward: {}" => run_only(functions, setup),
        _ => run_through(functions, setup),
    };
    let Err(RunError::Died {
        thread: dead,
        message,
        report,
    }) = &outcome.result
    else {
        panic!("{:?}", outcome.result);
    };
    assert!(dead.starts_with(thread), "{dead}");
    assert_eq!(message, "on purpose");
    check(&outcome, report);
    let packets = &report.packets;
    assert!(packets.offered < u64::from(PACKETS), "{packets:?}");
    assert!(packets.delivered > 0);
    let died = packets.reasons["worker-died"];
    assert!(died > 0);
    assert!(report.late_by_cause["descheduled"] >= died);
    assert!(!report.interrupted);
}

#[test]
fn a_helper_that_dies_ends_the_run() {
    for functions in [NAT, "forward: {}"] {
        let setup = Setup {
            scaling: Some(random_flows(3, 1, Mode::Sleep)),
            ..Setup::default()
        };
        dies(functions, "helper-", setup);
    }
}

#[test]
fn a_dispatcher_that_dies_ends_the_run() {
    for functions in [NAT, "forward: {}"] {
        let setup = Setup {
            scaling: Some(random_flows(3, 1, Mode::Sleep)),
            ..Setup::default()
        };
        dies(functions, "worker-", setup);
    }
}

#[test]
fn a_worker_without_helpers_that_dies_ends_the_run() {
    dies(NAT, "worker-", Setup::default());
}

/// Both cores hold packets of split flows.
#[test]
fn a_worker_that_dies_with_split_flows_ends_the_run() {
    for thread in ["worker-", "helper-"] {
        let setup = Setup {
            scaling: Some(random_splits(3, 1, Mode::Sleep, 3)),
            ..Setup::default()
        };
        dies(BALANCER, thread, setup);
    }
}

/// Buckets are migrating between workers, and auxiliary cores work for both.
#[test]
fn one_of_many_workers_that_dies_ends_the_run() {
    for thread in ["worker-", "helper-"] {
        let (server, _) = random_buckets(17, Nanos::from_micros(300));
        let setup = Setup {
            workers: 3,
            reta_delay: Nanos::from_micros(300),
            scaling: Some(random_flows(3, 2, Mode::Sleep)),
            server: Some(server),
            ..Setup::default()
        };
        dies(NAT, thread, setup);
    }
}

/// Dedicated cores process each other's packets: the one that dies may have had some of another.
#[test]
fn a_dedicated_core_that_dies_while_it_helps_ends_the_run() {
    for functions in [NAT, "forward: {}"] {
        for dedicated in [2, 3] {
            let setup = Setup {
                workers: dedicated,
                scaling: Some(random_help(9, [dedicated, 0], Mode::Sleep, 0)),
                ..Setup::default()
            };
            dies(functions, "worker-", setup);
        }
    }
}

/// A dedicated core stalls, perhaps with packets of another. The others continue, and then this one does, in order.
#[test]
fn a_dedicated_core_that_stands_still_while_it_helps_recovers() {
    let setup = Setup {
        slo: "10ms",
        workers: 3,
        ring: 1024,
        scaling: Some(random_help(13, [3, 0], Mode::Sleep, 0)),
        last: faulty("worker-", Fault::StandsStill(Duration::from_millis(60)), 2000),
        ..Setup::default()
    };
    let outcome = run_through(NAT, setup);
    check(&outcome, outcome.report());
    assert_eq!(outcome.report().packets.offered, u64::from(PACKETS));
}

/// Mapper that panics.
struct Failing(RandomFlows, u32);

impl CoreMapper for Failing {
    fn due(&self, now: Nanos, packets: u32) -> bool {
        self.0.due(now, packets)
    }

    fn decide(&mut self, view: &View<'_>, plan: &mut Plan) {
        self.0.decide(view, plan);
    }

    fn place(&mut self, flowlet: Flowlet, loads: &Loads<'_>) -> Destination {
        self.1 += 1;
        assert!(self.1 < 1000, "no place on purpose");
        self.0.place(flowlet, loads)
    }
}

/// It panics while a batch is being sorted, with packets that have not been placed yet.
#[test]
fn a_mapper_that_dies_ends_the_run() {
    let mapper = || -> Box<dyn CoreMapper> { Box::new(Failing(RandomFlows::new(3, 1), 0)) };
    let setup = Setup {
        traffic: slow(),
        scaling: Some(helped(Arc::new(mapper), 1, Mode::Sleep)),
        ..Setup::default()
    };
    let outcome = run_until(NAT, setup, &AtomicBool::new(false), |_| {});
    let Err(RunError::Died { message, report, .. }) = &outcome.result else {
        panic!("{:?}", outcome.result);
    };
    assert_eq!(message, "no place on purpose");
    check(&outcome, report);
    assert!(report.packets.offered < u64::from(PACKETS));
    assert!(report.packets.reasons["worker-died"] > 0);
}
