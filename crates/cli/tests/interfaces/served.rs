//! Servers whose ports are kernel interfaces, and processes that take over from them.
//!
//! `cargo test` does a few take-overs. TAKE_OVERS sets their number, for `make soak`.

use crate::common::namespaces::{HOSTS, Hosts, Program, SERVICE, skipped, wait_for};
use crate::common::*;
use crate::echo::{Conversation, Stream, answer};
use crate::{has_two_cores, quiet_hosts};
use serde_json::Value;
use std::path::{Path, PathBuf};

pub const BOTH: &str = "{entry: interface=port0, exit: interface=port1, bothWays: true}";

/// Writes a server with one port, `north`.
pub fn server(folder: &Folder, port: &str) -> PathBuf {
    std::fs::create_dir_all(folder.path("chains")).unwrap();
    let text = format!(
        "apiVersion: tailwater.dev/v1alpha1\nkind: Server\nmetadata: {{name: edge}}\nspec:\n  cores: \"0-1\"\n  \
         ports: [{{name: north, port: {port}}}]\n  chains: [chains]\n  control: {{socket: edge.sock}}\n  \
         stateDirectory: state\n"
    );
    folder.write("server.yaml", text)
}

pub fn chain(folder: &Folder, name: &str, wanted: &str, functions: &str) -> PathBuf {
    let text = format!(
        "apiVersion: tailwater.dev/v1alpha1\nkind: Chain\nmetadata: {{name: {name}}}\nspec:\n  {wanted}\n  \
         slo: {{latency: 250ms}}\n  functions: {functions}\n"
    );
    folder.write(&format!("chains/{name}.yaml"), text)
}

/// Three chains: a translation, a balancer to these backends, and the way back from them.
fn chains(folder: &Folder, backends: &[String]) {
    let backends: Vec<String> = backends.iter().map(|mac| format!("{{mac: '{mac}'}}")).collect();
    chain(
        folder,
        "edge",
        "match: {protocols: [udp]}",
        "[{nat: {external: [10.9.0.100], internal: [10.9.0.1]}}, {accounting: }]",
    );
    let balancer = format!(
        "[{{loadBalancer: {{services: [{{address: {SERVICE}, port: 7, protocol: udp, mode: mac, backends: [{}]}}]}}}}]",
        backends.join(", ")
    );
    chain(
        folder,
        "service",
        &format!("match: {{destinations: [{SERVICE}/32]}}"),
        &balancer,
    );
    chain(
        folder,
        "back",
        &format!("match: {{sources: [{SERVICE}/32]}}"),
        "[{forward: }]",
    );
}

pub fn start(hosts: &Hosts, server: &Path, more: &[&str]) -> Program {
    let program = tailwater();
    let program = program.get_program().to_str().unwrap();
    let line = [
        program,
        "serve",
        server.to_str().unwrap(),
        "--output",
        "json",
        "--nap",
        "200us",
    ];
    hosts.start(2, &[&line, more].concat())
}

fn client(folder: &Folder, arguments: &[&str]) -> Option<String> {
    let socket = folder.path("edge.sock");
    let output = tailwater()
        .args(arguments)
        .arg("--socket")
        .arg(socket)
        .output()
        .unwrap();
    output.status.success().then(|| text(&output.stdout))
}

/// Waits until all chains run.
pub fn await_chains(folder: &Folder, program: &mut Program, chains: usize) {
    wait_for(|| {
        program.assert_runs();
        let listed = client(folder, &["get", "chains", "-o", "json"]);
        let listed = listed.and_then(|listed| serde_json::from_str::<Value>(&listed).ok());
        let running = |listed: &Value| {
            let all = listed["chains"].as_array().into_iter().flatten();
            all.filter(|chain| chain["phase"] == "Running").count()
        };
        listed.is_some_and(|listed| running(&listed) == chains)
    });
}

/// Asserts that nothing is lost in a server's last report, and that its port has received so many packets.
fn assert_books(report: &Value, received: u64) {
    let port = &report["ports"][0];
    let number = |value: &Value| value.as_u64().unwrap();
    assert_eq!(
        (&port["received"], &port["unmatched"], &port["lost"]),
        (&received.into(), &0.into(), &0.into()),
        "{report}"
    );
    let mut offered = 0;
    for chain in report["chains"].as_array().unwrap() {
        let packets = &chain["report"]["packets"];
        let [all, delivered, dropped, lost] =
            ["offered", "delivered", "dropped_by_nf", "lost"].map(|name| number(&packets[name]));
        assert_eq!((delivered, dropped, lost), (all, 0, 0), "{packets}");
        offered += all;
    }
    assert_eq!(offered, received, "{report}");
}

/// Hosts with two backends, each of which answers; `None` if the kernel lacks a driver.
fn hosts_with_backends() -> Option<(Hosts, Vec<String>)> {
    let mut hosts = quiet_hosts();
    let Some(backends) = hosts.add_backends(2) else {
        println!("skipped: the kernel has no macvlan");
        return None;
    };
    let mac = hosts.mac(0);
    for (number, host) in (3..5).enumerate() {
        hosts.neighbour(host, HOSTS[0], &mac);
        answer(&hosts, host, SERVICE, 10 + number as u8);
    }
    hosts.neighbour(0, SERVICE, &hosts.mac(1));
    answer(&hosts, 1, HOSTS[1], 1);
    Some((hosts, backends))
}

/// Several chains on two cores share two interfaces, and processes take over from each other under load. Flows keep
/// their translation and their backend, no packet is lost or overtaken, and the books of all processes add up.
#[test]
fn processes_take_over_interfaces_under_load() {
    if skipped(&[]) || !has_two_cores() {
        return;
    }
    let Some((hosts, backends)) = hosts_with_backends() else {
        return;
    };
    let take_overs: u32 = std::env::var("TAKE_OVERS")
        .ok()
        .and_then(|n| n.parse().ok())
        .unwrap_or(2);
    let folder = Folder::new();
    let server = server(&folder, BOTH);
    chains(&folder, &backends);
    let mut program = start(&hosts, &server, &[]);
    await_chains(&folder, &mut program, 3);
    let conversation = Conversation::start(&hosts, &[HOSTS[1], SERVICE], 20, u64::MAX);
    let stream = Stream::start(&hosts, HOSTS[1], 4);
    for number in 0..take_overs {
        let before = conversation.answered();
        wait_for(|| conversation.answered() > before + 200);
        // On one core, then on both again: it reads both rings, then one reads one each.
        let cores = if number % 2 == 0 { "1" } else { "0,1" };
        let next = start(&hosts, &server, &["--take-over", "--cores", cores]);
        let (report, said) = program.finish();
        assert!(said.contains("has taken over"), "{said}");
        assert_eq!(report["ports"][0]["lost"], 0, "{report}");
        program = next;
        await_chains(&folder, &mut program, 3);
        wait_for(|| {
            let events = client(&folder, &["events"]).unwrap_or_default();
            let took = events.lines().find(|line| line.contains("TookOver"));
            took.inspect(|line| println!("{line}")).is_some()
        });
    }
    let before = conversation.answered();
    wait_for(|| conversation.answered() > before + 200);
    let (answered, streamed) = (conversation.stop(), stream.stop());
    let report = program.stop();
    assert_books(&report, 2 * answered + streamed);
}

/// A process that would read other interfaces is refused, and one that dies with the sockets in its hands changes
/// nothing.
#[test]
fn a_take_over_that_fails_leaves_the_interfaces_to_the_running_server() {
    if skipped(&[]) || !has_two_cores() {
        return;
    }
    let (hosts, folder) = (quiet_hosts(), Folder::new());
    answer(&hosts, 1, HOSTS[1], 1);
    let spec = server(&folder, BOTH);
    chain(&folder, "edge", "match: {protocols: [udp]}", "[{forward: }]");
    let mut program = start(&hosts, &spec, &[]);
    await_chains(&folder, &mut program, 1);
    let conversation = Conversation::start(&hosts, &[HOSTS[1]], 20, u64::MAX);
    server(&folder, "interface=port1");
    start(&hosts, &spec, &["--take-over"]).assert_refused(
        "take-over refused, the running server goes on: port north: interface port1: the running server's sockets \
         cannot be taken over: they are of port0, port1",
    );
    server(&folder, BOTH);
    let mut next = start(&hosts, &spec, &["--take-over"]);
    std::thread::sleep(std::time::Duration::from_millis(50));
    next.kill();
    let before = conversation.answered();
    wait_for(|| conversation.answered() > before + 200);
    let answered = conversation.stop();
    program.assert_runs();
    for state in ["down", "up"] {
        hosts.must_on(2, &format!("ip link set port1 {state}"));
        let expected = format!("port north: port interface=port1: link {state}");
        wait_for(|| client(&folder, &["events"]).is_some_and(|events| events.contains(&expected)));
    }
    let report = program.stop();
    assert_books(&report, 2 * answered);
}
