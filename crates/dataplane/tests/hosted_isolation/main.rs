//! Chains whose functions run in processes of their own, beside other chains on one core and port.
//!
//! The functions' processes are this program, too, so it has no test harness.

mod auxiliary;
#[path = "../common/mod.rs"]
mod common;
mod processes;
#[path = "../many_chains/rig.rs"]
#[allow(dead_code, reason = "shared with other tests")]
mod rig;

use processes::*;
use rig::*;
use rustix::process::Signal;
use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, Instant};
use tailwater_dataplane::cores::{self, AvoidCores};
use tailwater_dataplane::report::RunReport;
use tailwater_dataplane::shared_port::Unmatched;
use tailwater_isolation::program::run_function;
use tailwater_isolation::server::IsolationReport;
use tailwater_net::Nanos;
use tailwater_traffic::Trace;

/// Time between two packets. A chain's ring has room for what arrives in more than 100 ms, during which other programs
/// may have the core.
const SPACING: Nanos = Nanos(60_000);

/// Packets of traffic whose flows stay the same: more than arrive until a test ends.
const PACKETS: u32 = 300_000;

/// Test, with its name.
type Test = (&'static str, fn());

const TESTS: [Test; 7] = [
    ("isolated_and_trusted_chains_share_a_core", share_a_core),
    ("a_killed_process_costs_its_own_chain_packets", killed),
    ("a_function_that_hangs_stops_no_other_chain", hangs),
    ("packets_that_wait_for_a_process_hold_up_no_other_chain", holds),
    ("a_chain_is_replaced_by_one_with_other_processes", replaced),
    (
        "auxiliary_cores_are_lent_to_isolated_chains_and_belong_to_others_when_idle",
        auxiliary::lent,
    ),
    (
        "a_process_killed_on_an_auxiliary_core_costs_its_batch_and_no_flow",
        auxiliary::killed,
    ),
];

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().collect();
    if let [_, first, chain, place] = &arguments[..]
        && first == PROCESS
    {
        let place = place.parse().unwrap_or(usize::MAX);
        return match run_function(Path::new(chain), None, place) {
            Ok(()) => ExitCode::SUCCESS,
            Err(_) => ExitCode::FAILURE,
        };
    }
    if arguments.iter().any(|argument| argument == "--list") {
        return ExitCode::SUCCESS;
    }
    if !rustix::process::geteuid().is_root() || cores::available().len() < 2 {
        println!("skipped: real-time priority needs root, and a core for the other threads");
        return ExitCode::SUCCESS;
    }
    // Of a test harness's arguments, only names of tests matter here.
    let is_number = |argument: &&String| argument.parse::<u32>().is_ok();
    let filters: Vec<_> = arguments[1..]
        .iter()
        .filter(|argument| !argument.starts_with('-') && !is_number(argument))
        .collect();
    let mut passed = 0;
    for (name, test) in TESTS {
        if filters.is_empty() || filters.iter().any(|filter| name.contains(filter.as_str())) {
            test();
            println!("test {name} ... ok");
            passed += 1;
        }
    }
    println!("test result: ok. {passed} passed; 0 failed; 0 ignored");
    ExitCode::SUCCESS
}

fn isolation(report: &RunReport) -> &IsolationReport {
    report.isolation.as_ref().expect("a chain with isolated functions")
}

/// Starts a server with one core, which the other threads avoid: a program that waits for a core at real-time priority
/// gets 50 ms of it in each second.
fn start(trace: Trace, repeated: bool) -> (Server, AvoidCores) {
    let server = Server::start(trace, 1, repeated, Unmatched::Drop);
    let elsewhere = AvoidCores::new(&server.cores);
    (server, elsewhere)
}

/// Waits until the port has received so many packets more.
fn await_more(server: &Server, packets: u64) {
    server.await_received(server.port.counts().received + packets);
}

/// Checks that each received packet is in one book.
fn assert_all_booked(server: &Server, reports: &[&RunReport]) {
    server.host.stop();
    reports.iter().for_each(|report| assert_books(report));
    let offered: u64 = reports.iter().map(|report| report.packets.offered).sum();
    let counts = server.port.counts();
    assert_eq!(counts.received, offered + counts.unmatched + counts.lost, "{counts:?}");
}

/// Two isolated chains and a trusted one: each has exactly its packets, and the functions of each their turns only.
fn share_a_core() {
    let (server, _elsewhere) = start(trace(4, SPACING, PACKETS), false);
    let first = Isolated::start(
        &server,
        "10.0.0.0/16",
        "{nat: {external: [203.0.113.0/28]}}, {accounting: }",
    );
    let second = Isolated::start(&server, "10.1.0.0/16", "{accounting: }");
    let trusted = server.run("10.2.0.0/16", "{accounting: }", 1);
    await_more(&server, 12_000);
    let [first, second] = [first, second].map(|chain| chain.running.drain().unwrap());
    let trusted = trusted.drain().unwrap();
    assert_all_booked(&server, &[&first, &second, &trusted]);
    for report in [&first, &second, &trusted] {
        assert_few_lost(report);
        assert!(report.packets.offered > 2_500, "{:?}", report.packets);
        assert_eq!(report.flows.as_ref().map(|flows| flows.active), Some(50));
    }
    for report in [&first, &second] {
        let isolation = isolation(report);
        assert!(isolation.real_time);
        for function in &isolation.functions {
            assert!(function.turns > 100, "{function:?}");
            let restarts = function.restarts;
            let all = [
                restarts.ended,
                restarts.overdue,
                restarts.lied,
                restarts.over_budget,
                restarts.not_attached,
            ];
            assert_eq!(all, [0; 5], "{function:?}");
        }
    }
    assert!(trusted.isolation.is_none());
}

/// A process is killed again and again. What is lost is in its chain's books, and no flow of it is.
fn killed() {
    let (server, _elsewhere) = start(trace(2, SPACING, PACKETS), false);
    let isolated = Isolated::start(&server, "10.0.0.0/16", "{nat: {external: [203.0.113.0/28]}}");
    let trusted = server.run("10.1.0.0/16", "{forward: }", 1);
    await_more(&server, 2_000);
    for _ in 0..3 {
        let before = isolated.await_process();
        signal(before, Signal::KILL);
        isolated.await_process_after(before);
        await_more(&server, 2_000);
    }
    let (isolated, trusted) = (isolated.running.drain().unwrap(), trusted.drain().unwrap());
    assert_all_booked(&server, &[&isolated, &trusted]);
    assert_few_lost(&trusted);
    let function = &isolation(&isolated).functions[0];
    assert_eq!(function.restarts.ended, 3, "{function:?}");
    assert!(isolated.packets.delivered > 1_000, "{:?}", isolated.packets);
    // The state outlives the process.
    let flows = isolated.flows.as_ref().unwrap();
    assert_eq!((flows.opened, flows.active), (50, 50));
}

/// A process that is stopped in its turn is replaced. One whose function takes the core for longer than its deadline
/// with every batch is replaced each time.
fn hangs() {
    let (server, _elsewhere) = start(trace(3, SPACING, 3_000), true);
    let stopped = Isolated::start(&server, "10.0.0.0/16", "{accounting: }");
    let spins = Isolated::start(&server, "10.1.0.0/16", "{synthetic: {cycles: 10000000}}");
    let trusted = server.run("10.2.0.0/16", "{forward: }", 1);
    let before = stopped.await_process();
    signal(before, Signal::STOP);
    stopped.await_process_after(before);
    let began = Instant::now();
    while began.elapsed() < Duration::from_millis(1_500) {
        await_more(&server, 500);
    }
    let chains = [stopped, spins].map(|chain| chain.running.drain().unwrap());
    let [stopped, spins] = &chains;
    let trusted = trusted.drain().unwrap();
    assert_all_booked(&server, &[stopped, spins, &trusted]);
    assert_eq!(isolation(stopped).functions[0].restarts.overdue, 1);
    assert!(stopped.packets.delivered > 1_000, "{:?}", stopped.packets);
    let restarts = isolation(spins).functions[0].restarts;
    assert!(restarts.overdue > 0, "{restarts:?}");
    assert!(spins.packets.lost > spins.packets.delivered, "{:?}", spins.packets);
    // Each time that a process hangs, and each start of one, may take the core for longer than the ring has room for.
    assert!(
        trusted.packets.lost < trusted.packets.delivered,
        "{:?}",
        trusted.packets
    );
    assert!(trusted.packets.delivered > 1_000, "{:?}", trusted.packets);
}

/// Without a successor, packets wait for 250 ms, and are lost then until it is there. The other chains have the core
/// meanwhile: what they would lose in that time is far more than what they may.
fn holds() {
    let (server, _elsewhere) = start(trace(2, SPACING, 3_000), true);
    let isolated = Isolated::start(&server, "10.0.0.0/16", "{accounting: , onFailure: hold}");
    let trusted = server.run("10.1.0.0/16", "{forward: }", 1);
    await_more(&server, 1_000);
    // Its program cannot be started any more, and the process that waits is gone, too.
    isolated.remove_chain();
    isolated.kill_all();
    await_more(&server, 6_000);
    isolated.restore_chain();
    // Packets that arrive until a successor has started, which takes milliseconds, wait and are not lost.
    for _ in 0..3 {
        isolated.await_process();
        await_more(&server, 1_000);
        isolated.kill_all();
    }
    isolated.await_process();
    await_more(&server, 1_000);
    let (isolated, trusted) = (isolated.running.drain().unwrap(), trusted.drain().unwrap());
    assert_all_booked(&server, &[&isolated, &trusted]);
    assert_few_lost(&trusted);
    assert!(isolated.packets.delivered > 500, "{:?}", isolated.packets);
    let held = isolated.packets.reasons.get("accounting/held");
    assert!(held.is_some_and(|packets| *packets > 0), "{:?}", isolated.packets);
    assert!(isolated.packets.lost > 100, "{:?}", isolated.packets);
}

/// A trusted chain becomes an isolated one, that one another one, and the last one a trusted one again.
fn replaced() {
    let (server, _elsewhere) = start(trace(2, SPACING, 3_000), true);
    let beside = server.run("10.1.0.0/16", "{forward: }", 1);
    let trusted = server.run("10.0.0.0/16", "{accounting: }", 1);
    await_more(&server, 1_000);
    let first = Isolated::replace(&server, "10.0.0.0/16", "{accounting: }", Some(&trusted));
    let mut reports = vec![trusted.drain().unwrap()];
    await_more(&server, 1_000);
    let second = Isolated::replace(
        &server,
        "10.0.0.0/16",
        "{forward: }, {accounting: }",
        Some(&first.running),
    );
    reports.push(first.running.drain().unwrap());
    await_more(&server, 1_000);
    let third = server.start_plan(plan(&server, "10.0.0.0/16", "{accounting: }"), Some(&second.running));
    reports.push(second.running.drain().unwrap());
    await_more(&server, 1_000);
    reports.push(third.drain().unwrap());
    reports.push(beside.drain().unwrap());
    assert_all_booked(&server, &reports.iter().collect::<Vec<_>>());
    for report in &reports {
        assert_few_lost(report);
        assert!(report.packets.delivered > 300, "{:?}", report.packets);
    }
    assert_eq!(children(), 0, "processes are left");
}
