//! Chains on kernel interfaces without DPDK: two hosts with Tailwater between them. Requires root, except for refusals.

#[path = "../common/mod.rs"]
mod common;
mod echo;
#[path = "../isolation/processes.rs"]
#[allow(dead_code, reason = "shared with other tests")]
mod processes;
mod renewed;
mod served;
mod served_external;

use common::namespaces::{HOSTS, Hosts, Program, skipped, wait_for};
use common::*;
use echo::{Conversation, answer, send_frames};
use std::path::Path;
use std::process::Command;
use tailwater_net::builder::FrameBuilder;
use tailwater_net::vlan::VlanTag;
use tailwater_net::{FlowKey, protocol};

const PORTS: [&str; 2] = ["interface=port0", "interface=port1"];

/// Hosts that send nothing but a test's packets: they know each other's addresses, and leave checksums to a device.
fn quiet_hosts() -> Hosts {
    let hosts = Hosts::new(false);
    let macs = [0, 1].map(|host| hosts.mac(host));
    for host in 0..2 {
        hosts.neighbour(host, HOSTS[1 - host], &macs[1 - host]);
        hosts.must_on(host, "ethtool -K eth0 tx on tso off gso off");
    }
    // The external address of a translation.
    hosts.neighbour(1, "10.9.0.100", &macs[0]);
    hosts
}

fn has_two_cores() -> bool {
    let two = std::thread::available_parallelism().map_or(1, usize::from) >= 2;
    if !two {
        println!("skipped: this needs two cores");
    }
    two
}

/// Starts a chain between both hosts, and waits until it receives.
fn between(hosts: &Hosts, chain: &Path, more: &[&str]) -> Program {
    let mut program = hosts.run_on(2, chain, &PORTS, more);
    wait_for(|| {
        program.assert_runs();
        ["port0", "port1"].iter().all(|port| {
            let shown = hosts.on(2, &format!("ip -d link show dev {port}"));
            text(&shown.stdout).contains("promiscuity 1")
        })
    });
    program
}

fn port(report: &serde_json::Value, number: usize, what: &str) -> u64 {
    report["ports"][number][what].as_u64().unwrap()
}

fn signal(program: &Program, name: &str) {
    let status = Command::new("kill").args([name, &program.id().to_string()]).status();
    assert!(status.unwrap().success());
}

/// Stops the program's process, and waits until no thread of it runs any more.
fn stop(program: &Program) {
    signal(program, "-STOP");
    let threads = format!("/proc/{}/task", program.id());
    let is_stopped = |thread: &Path| {
        let stat = std::fs::read_to_string(thread.join("stat")).unwrap();
        stat.rsplit(')').next().unwrap().starts_with(" T")
    };
    wait_for(|| {
        let mut threads = std::fs::read_dir(&threads).unwrap();
        threads.all(|thread| is_stopped(&thread.unwrap().path()))
    });
}

/// All datagrams are answered, in order, through translations in both directions, with checksums that the sender has
/// left to a device.
fn all_are_answered(functions: &str, cores: &str, more: impl Fn(&Folder) -> Vec<String>) {
    let (hosts, folder) = (quiet_hosts(), Folder::new());
    let more = more(&folder);
    let more: Vec<&str> = ["--cores", cores]
        .into_iter()
        .chain(more.iter().map(String::as_str))
        .collect();
    answer(&hosts, 1, HOSTS[1], 1);
    let before = [0, 1].map(|host| hosts.counted(host)[0]);
    let mut program = between(&hosts, &folder.spec("chain.yaml", functions, ""), &more);
    let answered = Conversation::start(&hosts, &[HOSTS[1]], 20, 3000).finish();
    let sent = [0, 1].map(|host| hosts.counted(host)[0] - before[host]);
    let report = program.stop();
    assert_identity(&report);
    assert!(answered >= 3000);
    assert_eq!(sent, [answered, answered]);
    assert_eq!(count(&report, "offered"), 2 * answered, "{report}");
    assert_eq!(
        (count(&report, "lost"), count(&report, "dropped_by_nf")),
        (0, 0),
        "{report}"
    );
    let workers = cores.split(',').count();
    for number in 0..2 {
        assert_eq!(port(&report, number, "received"), answered, "{report}");
        assert_eq!(port(&report, number, "sent"), answered, "{report}");
        let own = &report["ports"][number];
        assert_eq!(
            (&own["driver"], &own["link"]["up"]),
            (&"af_packet".into(), &true.into())
        );
        assert_eq!(port(&report, number, "queues"), workers as u64);
        let by_queue = own["by_queue"].as_array().unwrap();
        // Each core has a socket, and each socket has some of the flows.
        assert_eq!(by_queue.len(), if workers > 1 { workers } else { 0 });
        let received: Vec<u64> = by_queue
            .iter()
            .map(|queue| queue["received"].as_u64().unwrap())
            .collect();
        assert!(received.iter().all(|count| *count > 0), "{report}");
    }
    // Nothing remains: the interfaces are as before.
    let shown = text(&hosts.on(2, "ip -d link show").stdout);
    assert!(!shown.contains("promiscuity 1"), "{shown}");
}

const NAT: &str = "[{acl: {default: allow, rules: [{action: deny, protocol: udp, destinationPorts: 10}]}}, \
                   {nat: {external: [10.9.0.100], internal: [10.9.0.1]}}]";

#[test]
fn packets_cross_in_both_directions_on_one_core() {
    if !skipped(&[]) {
        all_are_answered(NAT, "0", |_| Vec::new());
    }
}

/// The kernel distributes flows to both cores' sockets, by a hash of its own: the cores exchange packets by the bucket
/// table, as translations require.
#[test]
fn two_cores_share_interfaces() {
    if !skipped(&[]) && has_two_cores() {
        all_are_answered(NAT, "0,1", |_| Vec::new());
    }
}

/// An auxiliary core sends packets of the core that has received them.
#[test]
fn an_auxiliary_core_processes_packets_of_interfaces() {
    if skipped(&[]) || !has_two_cores() {
        return;
    }
    // Measuring one would take longer than the run.
    let profile = "apiVersion: tailwater.dev/v1alpha1\nkind: CapacityProfile\nchain: test\nconfiguration: \"0\"\n\
                   machine: elsewhere\nsloNanoseconds: 250000000\nepochNanoseconds: 125000000\n\
                   frontier: [[1, 80], [40, 40]]\nrates: [[10, 1000000], [1000, 400000]]\n";
    all_are_answered("[{accounting: }, {forward: }]", "0", |folder| {
        let profile = folder.write("measured.yaml", profile);
        let more = [
            "--auxiliary",
            "1",
            "--policy",
            "netblaze",
            "--profile",
            profile.to_str().unwrap(),
        ];
        more.map(str::to_owned).to_vec()
    });
}

/// A port of one interface sends packets back to where they came from.
#[test]
fn packets_leave_by_the_interface_they_came_from() {
    if skipped(&[]) {
        return;
    }
    let (hosts, folder) = (quiet_hosts(), Folder::new());
    // Both hosts behind one interface: host 1's is behind a bridge.
    hosts.must_on(2, "ip link add twin type veth peer name inner");
    hosts.must_on(2, "ip link add joined type bridge");
    for interface in ["port0", "port1", "twin"] {
        hosts.must_on(2, &format!("ip link set {interface} master joined"));
    }
    // Frames keep their source address.
    hosts.must_on(2, "ip link set twin type bridge_slave learning off");
    for interface in ["joined", "twin", "inner"] {
        hosts.must_on(2, &format!("ip link set {interface} up"));
    }
    // Frames for the chain's own address; it sends them on to host 1.
    let own = text(&hosts.on(2, "cat /sys/class/net/inner/address").stdout);
    let (own, other) = (own.trim(), hosts.mac(1));
    hosts.neighbour(0, "10.9.0.200", own);
    hosts.must_on(1, "ip addr add 10.9.0.200/32 dev lo");
    answer(&hosts, 1, "10.9.0.200", 1);
    let functions = format!(
        "[{{loadBalancer: {{services: [{{address: 10.9.0.200, port: 7, protocol: udp, mode: mac, backends: \
         [{{mac: '{other}'}}]}}], noService: drop}}}}]"
    );
    let chain = folder.spec("chain.yaml", &functions, "");
    let program = tailwater();
    let program = program.get_program().to_str().unwrap().to_owned();
    let line = [
        &program,
        "run",
        chain.to_str().unwrap(),
        "--output",
        "json",
        "--duration",
        "3m",
    ];
    let more = ["--port", "interface=inner", "--no-promiscuous", "--nap", "200us"];
    let mut running = hosts.start(2, &[&line[..], &more].concat());
    // The kernel opens a bridge's port once it has seen the link.
    wait_for(|| {
        running.assert_runs();
        let state = |port: &str| hosts.on(2, &format!("cat /sys/class/net/{port}/brport/state")).stdout;
        ["port0", "port1", "twin"].iter().all(|port| state(port) == b"3\n")
    });
    // A socket is there before it receives, of all protocols.
    wait_for(|| {
        let sockets = text(&hosts.on(2, "cat /proc/net/packet").stdout);
        sockets
            .lines()
            .any(|line| line.split_whitespace().nth(3) == Some("0003"))
    });
    let answered = Conversation::start(&hosts, &["10.9.0.200"], 5, 500).finish();
    let report = running.stop();
    assert_identity(&report);
    // Frames that the kernels of the namespaces send by themselves are for no service.
    let received = port(&report, 0, "received") - count(&report, "dropped_by_nf");
    assert_eq!((received, port(&report, 0, "sent")), (answered, answered), "{report}");
    assert_eq!(count(&report, "delivered"), answered, "{report}");
}

/// A chain between interfaces has an external function behind further ones: a bridge in a namespace.
#[test]
fn external_functions_have_interfaces_beside_the_chains() {
    if skipped(&[]) {
        return;
    }
    let (mut hosts, folder) = (quiet_hosts(), Folder::new());
    let function = hosts.add_function();
    hosts.must_on(function, "ip link add between type bridge mcast_snooping 0");
    for interface in ["in0", "out0"] {
        hosts.must_on(function, &format!("ip link set {interface} master between"));
    }
    hosts.must_on(function, "ip link set between up");
    // The kernel opens a bridge's port once it has seen the link.
    wait_for(|| {
        let state = |port: &str| {
            hosts
                .on(function, &format!("cat /sys/class/net/{port}/brport/state"))
                .stdout
        };
        ["in0", "out0"].iter().all(|port| state(port) == b"3\n")
    });
    answer(&hosts, 1, HOSTS[1], 1);
    let external = "{name: fw, external: {port: interface=fn-in, returnPort: interface=fn-out, timeout: 2s}}";
    let chain = folder.spec("chain.yaml", &format!("[{external}, {{accounting: }}]"), "");
    let line = [
        "--output",
        "json",
        "--both-ways",
        "--duration",
        "3m",
        "--port",
        PORTS[0],
        "--port",
        PORTS[1],
    ];
    let program = tailwater();
    let start = [program.get_program().to_str().unwrap(), "run", chain.to_str().unwrap()];
    let mut running = hosts.start(2, &[&start[..], &line].concat());
    wait_for(|| {
        running.assert_runs();
        let shown = hosts.on(2, "ip -d link show");
        text(&shown.stdout).matches("promiscuity 1").count() == 4
    });
    let answered = Conversation::start(&hosts, &[HOSTS[1]], 5, 300).finish();
    let report = running.stop();
    assert_identity(&report);
    let external = &report["externals"][0];
    assert_eq!(external["returned"], 2 * answered, "{report}");
    assert_eq!(external["not_returned"], 0, "{report}");
    assert_eq!(
        count(&report, "delivered"),
        2 * answered + external["own"].as_u64().unwrap(),
        "{report}"
    );
}

/// The kernel takes VLAN tags out of frames that it receives.
#[test]
fn tagged_frames_keep_their_tags() {
    if skipped(&[]) {
        return;
    }
    let (hosts, folder) = (quiet_hosts(), Folder::new());
    let tags = [
        vec![],
        vec![VlanTag::customer(7)],
        vec![VlanTag::service(9), VlanTag::customer(7)],
    ];
    let frames_in: Vec<Vec<u8>> = (0..300u32)
        .map(|number| {
            let flow = FlowKey::v4(client(1), SERVER, protocol::UDP, 5000, 53);
            let payload = number.to_be_bytes();
            let tags = tags[number as usize % tags.len()].iter();
            let frame = tags.fold(FrameBuilder::new(&flow), |frame, tag| frame.vlan(*tag));
            frame.payload(&payload).to_vec().unwrap()
        })
        .collect();
    let out = folder.path("out.pcap");
    let mut program = between(&hosts, &folder.forward(), &["--capture-out", out.to_str().unwrap()]);
    let sent = frames_in.clone();
    hosts.within(0, move || send_frames("eth0", &sent)).join().unwrap();
    wait_for(|| hosts.counted_at(2, "port1")[0] >= 300);
    let report = program.stop();
    assert_identity(&report);
    assert_eq!(frames(&out), frames_in, "{report}");
}

#[test]
fn a_link_that_goes_down_and_up_is_reported_and_goes_on() {
    if skipped(&[]) {
        return;
    }
    let (hosts, folder) = (quiet_hosts(), Folder::new());
    answer(&hosts, 1, HOSTS[1], 1);
    let mut program = between(&hosts, &folder.forward(), &[]);
    let mut answered = Conversation::start(&hosts, &[HOSTS[1]], 5, 200).finish();
    for (state, news) in [("down", "link down"), ("up", "link up")] {
        hosts.must_on(2, &format!("ip link set port1 {state}"));
        wait_for(|| {
            program.assert_runs();
            program.said().contains(&format!("port interface=port1: {news}"))
        });
        if state == "down" {
            // These are lost.
            let sent = hosts.within(0, || {
                let socket = std::net::UdpSocket::bind("0.0.0.0:0").unwrap();
                (0..50).for_each(|_| drop(socket.send_to(b"lost", (HOSTS[1], 7))));
            });
            sent.join().unwrap();
        }
    }
    answered += Conversation::start(&hosts, &[HOSTS[1]], 5, 200).finish();
    let report = program.stop();
    assert_identity(&report);
    assert_eq!(count(&report, "offered"), 2 * answered + 50, "{report}");
    // None of those that followed once the link was up.
    assert_eq!(count(&report, "lost"), 50, "{report}");
    assert!(report["ports"][1]["link"]["changes"].as_u64() >= Some(1), "{report}");
}

/// Packets that find the ring full are offered and lost, each once.
#[test]
fn losses_of_the_kernel_are_in_the_books() {
    if skipped(&[]) {
        return;
    }
    let (hosts, folder) = (quiet_hosts(), Folder::new());
    let mut program = between(&hosts, &folder.forward(), &["--ring", "64"]);
    let before = hosts.counted(0)[0];
    stop(&program);
    let sent = hosts.within(0, || {
        let socket = std::net::UdpSocket::bind("0.0.0.0:0").unwrap();
        (0..1000).for_each(|_| drop(socket.send_to(b"much", (HOSTS[1], 9))));
    });
    sent.join().unwrap();
    let sent = hosts.counted(0)[0] - before;
    assert_eq!(sent, 1000);
    signal(&program, "-CONT");
    wait_for(|| hosts.counted_at(2, "port1")[0] >= 64);
    let report = program.stop();
    assert_identity(&report);
    let missed = port(&report, 0, "missed");
    assert_eq!((port(&report, 0, "received"), missed), (64, 936), "{report}");
    // Host 1 answers that nobody listens, which its kernel limits.
    let back = port(&report, 1, "received");
    assert_eq!(count(&report, "offered"), 1000 + back, "{report}");
    assert_eq!(report["packets"]["reasons"]["nic-ring-full"], 936, "{report}");
    assert_eq!(report["ports"][0]["descriptors"], 64);
}

#[test]
fn interfaces_that_cannot_be_used_are_refused_with_the_remedy() {
    let folder = Folder::new();
    let forward = folder.forward();
    let output = run(&[&"run", &forward, &"--port", &"interface=tw-none"]);
    assert_refused(
        &output,
        "interface tw-none: no such interface in this network namespace",
    );
    let output = run(&[&"run", &forward, &"--port", &"interface=tw%d"]);
    assert_refused(&output, "expected one interface, which all cores of a port share");
    let server = served::server(&folder, "interface=tw-none");
    let output = run(&[&"serve", &server]);
    assert_refused(
        &output,
        "port north: interface tw-none: no such interface in this network namespace",
    );
    if skipped(&["setpriv"]) {
        return;
    }
    let hosts = Hosts::new(false);
    let program = tailwater();
    let program = program.get_program().to_str().unwrap().to_owned();
    let refused = |ports: &[&str], before: &[&str], expected: &str| {
        let line = [&program, "run", forward.to_str().unwrap()];
        let ports: Vec<&str> = ports.iter().flat_map(|port| ["--port", port]).collect();
        let line = [before, &line, &ports].concat();
        hosts.start(2, &line).assert_refused(expected);
    };
    let without = ["setpriv", "--bounding-set=-all"];
    refused(
        &["interface=port0"],
        &without,
        "interface port0: no permission: packet sockets require root or CAP_NET_RAW",
    );
    refused(&["interface=lo"], &[], "interface lo: expected an Ethernet interface");
    refused(&["interface=port0", "interface=port0"], &[], "the same one twice");
    let chain = folder.spec(
        "mtu.yaml",
        "[{forward: }]",
        "  ports: {entry: interface=port0, mtu: 9000}\n",
    );
    let line = [&*program, "run", chain.to_str().unwrap()];
    let expected = "interface port0: expected an MTU of at least 9000, found 1500: ip link set NAME mtu 9000";
    hosts.start(2, &line).assert_refused(expected);
    hosts.must_on(2, "ip link set port1 down");
    refused(
        &["interface=port1"],
        &[],
        "interface port1: it is down; bring it up: ip link set NAME up",
    );
    hosts.must_on(2, "ip link set port1 up");
    let running = between(&hosts, &forward, &[]);
    refused(
        &["interface=port1"],
        &[],
        "interface port1: in use by another tailwater",
    );
    drop(running);
}
