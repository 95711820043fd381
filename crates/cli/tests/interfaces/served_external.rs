//! External functions of chains on a server: programs of others behind interfaces, one chain's beside another's.

use crate::common::namespaces::{HOSTS, Hosts, skipped, wait_for};
use crate::common::*;
use crate::echo::{Conversation, answer};
use crate::processes::{family_of, signal_if_there};
use crate::served::{self, BOTH, await_chains, chain};
use crate::{has_two_cores, quiet_hosts};
use serde_json::Value;
use std::process::Output;

/// Adds a function that is a bridge of the kernel, and waits until it forwards. Returns its host.
fn bridge(hosts: &mut Hosts, number: &str) -> usize {
    let function = hosts.add_function_for(number);
    hosts.must_on(function, "ip link add between type bridge mcast_snooping 0");
    for interface in ["in0", "out0"] {
        hosts.must_on(function, &format!("ip link set {interface} master between"));
    }
    hosts.must_on(function, "ip link set between up");
    await_forwarding(hosts, function);
    function
}

/// The kernel opens a bridge's port once it has seen the link.
fn await_forwarding(hosts: &Hosts, function: usize) {
    let state = |port: &str| hosts.on(function, &format!("cat /sys/class/net/{port}/brport/state"));
    wait_for(|| ["in0", "out0"].iter().all(|port| state(port).stdout == b"3\n"));
}

fn external(number: &str) -> String {
    format!("{{name: fw{number}, external: {{port: interface=fn-in{number}, returnPort: interface=fn-out{number}}}}}")
}

fn call(folder: &Folder, arguments: &[&str]) -> Output {
    let mut command = tailwater();
    command.args(arguments).arg("--socket").arg(folder.path("edge.sock"));
    command.output().unwrap()
}

fn apply(folder: &Folder, name: &str, wanted: &str, functions: &str, more: &[&str]) -> Output {
    let file = chain(folder, name, wanted, functions);
    let arguments = ["apply", "-f", file.to_str().unwrap()];
    let output = call(folder, &[&arguments, more].concat());
    // The server's own folder is not watched, and read at its next start only.
    std::fs::remove_file(file).unwrap();
    output
}

/// Number of interfaces in the middle that are read.
fn read_interfaces(hosts: &Hosts) -> usize {
    let shown = hosts.on(2, "ip -d link show");
    text(&shown.stdout).matches("promiscuity 1").count()
}

fn packets(folder: &Folder, name: &str, what: &str) -> u64 {
    let listed = call(folder, &["get", "chains", "-o", "json"]);
    let listed: Value = serde_json::from_slice(&listed.stdout).unwrap();
    let chains = listed["chains"].as_array().unwrap();
    let chain = chains.iter().find(|chain| chain["name"] == name);
    chain.map_or(0, |chain| chain["packets"][what].as_u64().unwrap())
}

const UDP: &str = "match: {protocols: [udp]}";
const ICMP: &str = "match: {protocols: [icmp]}";

/// Two chains with a function each. One function fails, recovers, and its chain is replaced and removed; the other
/// chain's packets are answered all the time. What is wrong is refused in one line, and changes nothing.
#[test]
fn functions_behind_interfaces_on_a_server() {
    if skipped(&[]) || !has_two_cores() {
        return;
    }
    let (mut hosts, folder) = (quiet_hosts(), Folder::new());
    let first = bridge(&mut hosts, "");
    bridge(&mut hosts, "1");
    answer(&hosts, 1, HOSTS[1], 1);
    let server = served::server(&folder, BOTH);
    chain(&folder, "edge", UDP, &format!("[{}, {{accounting: }}]", external("")));
    chain(&folder, "rest", ICMP, &format!("[{}]", external("1")));
    let mut program = served::start(&hosts, &server, &[]);
    await_chains(&folder, &mut program, 2);
    assert_eq!(read_interfaces(&hosts), 6);
    let talk = || Conversation::start(&hosts, &[HOSTS[1]], 5, 200).finish();
    let answered = talk();
    hosts.assert_pings(0, HOSTS[1], 5);
    wait_for(|| packets(&folder, "edge", "delivered") == 2 * answered);
    let wrong = [
        (
            "net_ring0",
            "with port net_ring0: expected a kernel interface on a server",
        ),
        (
            "interface=fn-in",
            "interface fn-in is used by function fw of chain edge already",
        ),
        (
            "interface=tw-none",
            "function fw: interface tw-none: no such interface in this network namespace",
        ),
    ];
    for (port, expected) in wrong {
        let functions = format!("[{{name: fw, external: {{port: {port}}}}}]");
        for more in [&["--dry-run=server"][..], &[]] {
            let output = apply(&folder, "third", "match: {protocols: [tcp]}", &functions, more);
            let told = text(&output.stderr);
            assert_eq!((output.status.code(), told.lines().count()), (Some(1), 1), "{told}");
            assert!(told.contains(expected), "{told}");
        }
    }
    assert_eq!(read_interfaces(&hosts), 6);
    // A function that forwards nothing loses its own chain's packets.
    hosts.must_on(first, "ip link set between down");
    let before = packets(&folder, "edge", "lost");
    let sent = hosts.within(0, || {
        let socket = std::net::UdpSocket::bind("0.0.0.0:0").unwrap();
        (0..20).for_each(|_| drop(socket.send_to(b"lost", (HOSTS[1], 7))));
    });
    sent.join().unwrap();
    hosts.assert_pings(0, HOSTS[1], 5);
    wait_for(|| packets(&folder, "edge", "lost") == before + 20);
    hosts.must_on(first, "ip link set between up");
    await_forwarding(&hosts, first);
    talk();
    // A chain with the same interfaces takes the place of the one before, once that has left them.
    let functions = format!("[{}, {{accounting: }}, {{forward: }}]", external(""));
    let output = apply(&folder, "edge", UDP, &functions, &[]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    await_chains(&folder, &mut program, 2);
    talk();
    // One that cannot start leaves the one before running.
    let functions = format!(
        "[{}, {{name: other, external: {{port: interface=tw-none}}}}]",
        external("")
    );
    let output = apply(&folder, "edge", UDP, &functions, &[]);
    let told = text(&output.stderr);
    assert!(told.contains("interface tw-none: no such interface"), "{told}");
    await_chains(&folder, &mut program, 2);
    talk();
    // Nothing of a removed chain remains, and it may come back.
    let output = call(&folder, &["delete", "chain", "edge"]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    wait_for(|| read_interfaces(&hosts) == 4);
    let output = apply(&folder, "edge", UDP, &format!("[{}]", external("")), &[]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    talk();
    hosts.assert_pings(0, HOSTS[1], 5);
    let refused = served::start(&hosts, &server, &["--take-over"]);
    refused.assert_refused("has the external function fw, whose packets do not pass over: drain it first");
    let report = program.stop();
    assert_eq!(read_interfaces(&hosts), 0);
    for chain in report["chains"].as_array().unwrap() {
        let report = &chain["report"];
        let of = |what: &str| report["externals"][0][what].as_u64().unwrap();
        assert_eq!(of("sent"), of("returned") + of("not_returned"), "{report}");
        assert_eq!(report["ports"].as_array().unwrap().len(), 2, "{report}");
        let of = |what: &str| report["packets"][what].as_u64().unwrap();
        assert_eq!(
            of("offered"),
            of("delivered") + of("dropped_by_nf") + of("lost"),
            "{report}"
        );
    }
}

/// They were gone for good, and so were all later packets of their chain.
#[test]
fn interfaces_of_a_function_are_used_again_that_are_made_again() {
    if skipped(&[]) || !has_two_cores() {
        return;
    }
    let (mut hosts, folder) = (quiet_hosts(), Folder::new());
    let function = bridge(&mut hosts, "");
    answer(&hosts, 1, HOSTS[1], 1);
    let server = served::server(&folder, BOTH);
    chain(&folder, "edge", UDP, &format!("[{}]", external("")));
    let mut program = served::start(&hosts, &server, &[]);
    await_chains(&folder, &mut program, 1);
    let talk = || Conversation::start(&hosts, &[HOSTS[1]], 5, 200).finish();
    talk();
    for (inside, outside) in [("in0", "fn-in"), ("out0", "fn-out")] {
        let mut await_said = |expected: &str| {
            wait_for(|| {
                program.assert_runs();
                program.said().contains(&format!("port interface={outside} {expected}"))
            });
        };
        hosts.must_on(2, &format!("ip link del {outside}"));
        await_said("disappeared during the run");
        hosts.link_function(function, inside, outside);
        hosts.must_on(function, &format!("ip link set {inside} master between"));
        await_said("was made again and is used");
    }
    await_forwarding(&hosts, function);
    talk();
    assert_eq!(read_interfaces(&hosts), 4);
    let report = program.stop();
    let report = &report["chains"][0]["report"];
    let of = |what: &str| report["externals"][0][what].as_u64().unwrap();
    assert_eq!(of("sent"), of("returned") + of("not_returned"), "{report}");
    for port in report["ports"].as_array().unwrap() {
        // There, gone, there.
        assert_eq!(
            (&port["gone"], port["link"]["changes"].as_u64()),
            (&Value::Bool(false), Some(2)),
            "{report}"
        );
    }
}

/// Isolated functions in front of an external one and behind it.
#[test]
fn functions_around_one_behind_interfaces_are_isolated_on_a_server() {
    if skipped(&[]) || !has_two_cores() {
        return;
    }
    let (mut hosts, folder) = (quiet_hosts(), Folder::new());
    bridge(&mut hosts, "");
    answer(&hosts, 1, HOSTS[1], 1);
    let server = served::server(&folder, BOTH);
    let functions = format!("[{{forward: }}, {}, {{accounting: }}]", external(""));
    // The namespaces of these hosts hide control groups.
    let isolated = format!("{UDP}\n  isolation: {{mode: process, without: [groups]}}");
    chain(&folder, "edge", &isolated, &functions);
    chain(&folder, "rest", ICMP, "[{forward: }]");
    let mut program = served::start(&hosts, &server, &["--cores", "1"]);
    await_chains(&folder, &mut program, 2);
    let talk = || Conversation::start(&hosts, &[HOSTS[1]], 5, 200).finish();
    talk();
    for process in family_of(program.id()).into_iter().filter(|id| *id != program.id()) {
        signal_if_there(process, "-KILL");
    }
    hosts.assert_pings(0, HOSTS[1], 5);
    // Once their successors are there.
    let before = packets(&folder, "edge", "delivered");
    wait_for(|| {
        let sent = hosts.within(0, || {
            let socket = std::net::UdpSocket::bind("0.0.0.0:0").unwrap();
            socket.send_to(b"more", (HOSTS[1], 9)).unwrap();
        });
        sent.join().unwrap();
        packets(&folder, "edge", "delivered") > before
    });
    talk();
    let report = program.stop();
    let chains = report["chains"].as_array().unwrap();
    let edge = chains.iter().find(|chain| chain["name"] == "edge").unwrap();
    let functions = edge["report"]["isolation"]["functions"].as_array().unwrap();
    assert_eq!(functions.len(), 2, "{report}");
    for function in functions {
        assert!(function["restarts"]["ended"].as_u64() >= Some(1), "{report}");
    }
    assert!(
        edge["report"]["externals"][0]["returned"].as_u64() >= Some(800),
        "{report}"
    );
}
