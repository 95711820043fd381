//! External functions behind kernel interfaces, without DPDK: network namespaces through which the kernel forwards.
//! Requires root, except for refusals.

mod common;

use common::namespaces::{Hosts, skipped, wait_for};
use common::*;
use std::collections::HashMap;
use std::net::UdpSocket;
use std::os::fd::AsRawFd;
use std::path::PathBuf;
use std::time::Duration;
use tailwater_net::builder::FrameBuilder;
use tailwater_net::ethernet::MacAddress;
use tailwater_net::vlan::VlanTag;
use tailwater_net::{FlowKey, protocol};

const ROUTER_MAC: MacAddress = MacAddress([2, 0, 0, 0, 0, 1]);
const PACKETS: u32 = 6_000;
const FLOWS: u32 = 40;

/// Writes a chain with an external function behind a built-in one and in front of another.
fn chain(folder: &Folder, external: &str) -> PathBuf {
    let functions = format!(
        "[{{name: edge, acl: {{default: allow, rules: [{{action: deny, protocol: udp, destinationPorts: 9}}]}}}}, \
         {{name: fw, external: {{{external}}}}}, {{accounting: }}]"
    );
    folder.spec("chain.yaml", &functions, "")
}

/// Lets the kernel of a function's namespace forward packets to the server.
fn route(hosts: &Hosts, function: usize) {
    let on = |line: &str| hosts.must_on(function, line);
    on("sysctl -q -w net.ipv4.ip_forward=1 net.ipv4.conf.all.rp_filter=0 net.ipv4.conf.in0.rp_filter=0");
    on(&format!("ip link set in0 address {ROUTER_MAC}"));
    on("ip addr add 10.9.0.254/24 dev in0");
    on("ip addr add 198.51.100.254/24 dev out0");
    on(&format!(
        "ip neigh replace {SERVER} lladdr 02:00:00:00:00:09 dev out0 nud permanent"
    ));
}

/// Lets the kernel of a function's namespace forward frames unchanged.
fn bridge(hosts: &Hosts, function: usize) {
    hosts.must_on(function, "ip link add between type bridge mcast_snooping 0");
    for interface in ["in0", "out0", "between"] {
        if interface != "between" {
            hosts.must_on(function, &format!("ip link set {interface} master between"));
        }
        hosts.must_on(function, &format!("ip link set {interface} up"));
    }
    // The kernel opens a bridge's port once it has seen the link, up to a second later.
    for interface in ["in0", "out0"] {
        let state = format!("cat /sys/class/net/{interface}/brport/state");
        const FORWARDING: &[u8] = b"3\n";
        wait_for(|| hosts.on(function, &state).stdout == FORWARDING);
    }
}

/// A flow's packet with its number as payload.
fn numbered(number: u32) -> Vec<u8> {
    let flow = number % FLOWS;
    let (from, port) = (client(1 + flow as u8), 5000 + flow as u16);
    let key = FlowKey::v4(from, SERVER, protocol::UDP, port, 53);
    let frame = FrameBuilder::new(&key).macs(MacAddress([2, 0, 0, 0, 0, 7]), ROUTER_MAC);
    let payload = number.to_be_bytes();
    frame.payload(&payload).to_vec().unwrap()
}

/// A capture of numbered packets, a tenth of a millisecond apart.
fn capture(folder: &Folder, packets: u32) -> PathBuf {
    let packets: Vec<_> = (0..packets).map(|i| (u64::from(i) * 100_000, numbered(i))).collect();
    folder.capture("in.pcap", &packets)
}

fn of_function(report: &serde_json::Value, what: &str) -> u64 {
    report["externals"][0][what].as_u64().unwrap()
}

fn sum_of_ports(report: &serde_json::Value, what: &str) -> u64 {
    let ports = report["ports"].as_array().unwrap().iter();
    ports.map(|port| port[what].as_u64().unwrap()).sum()
}

fn reason(report: &serde_json::Value, name: &str) -> u64 {
    report["packets"]["reasons"][name].as_u64().unwrap_or(0)
}

/// Asserts that each packet is accounted for once, by the counters of the chain, of the function and of the ports.
fn assert_accounted(report: &serde_json::Value) {
    assert_identity(report);
    let [sent, returned, missing, late, own] =
        ["sent", "returned", "not_returned", "late", "own"].map(|what| of_function(report, what));
    assert_eq!(sent, returned + missing, "{report}");
    assert_eq!(sum_of_ports(report, "sent"), sent, "{report}");
    assert_eq!(sum_of_ports(report, "received"), returned + late + own, "{report}");
}

/// Asserts that the numbers of each flow rise, and returns the packets.
fn in_order(frames: &[Vec<u8>]) -> usize {
    let mut last: HashMap<_, u32> = HashMap::new();
    for frame in frames {
        let payload = frame[42..46].try_into().unwrap();
        let number = u32::from_be_bytes(payload);
        let before = last.insert(key(frame), number);
        assert!(before.is_none_or(|before| before < number), "{before:?} {number}");
    }
    assert_eq!(last.len(), FLOWS as usize);
    frames.len()
}

/// All packets pass through the kernel of one namespace per worker, with these further arguments.
fn forwards(workers: usize, isolation: &[&str]) {
    let (mut hosts, folder) = (Hosts::new(false), Folder::new());
    let (port, cores) = match workers {
        1 => ("interface=fn-in, returnPort: interface=fn-out", "0"),
        _ => ("interface=fn-in%d, returnPort: interface=fn-out%d", "0,1"),
    };
    for worker in 0..workers {
        let number = if workers == 1 {
            String::new()
        } else {
            worker.to_string()
        };
        let function = hosts.add_function_for(&number);
        route(&hosts, function);
    }
    let chain = chain(&folder, &format!("port: {port}, timeout: 2s"));
    let (capture, out) = (capture(&folder, PACKETS), folder.path("out.pcap"));
    let more = ["--cores", cores, "--capture-out", out.to_str().unwrap()];
    let (report, said) = hosts.replay(&chain, &capture, &[&more, isolation].concat()).finish();
    if isolation.is_empty() {
        assert_eq!(said, "");
    } else {
        let functions = report["isolation"]["functions"].as_array().unwrap();
        assert!(
            functions.iter().all(|function| function["turns"].as_u64() > Some(0)),
            "{report}"
        );
    }
    assert_accounted(&report);
    assert_eq!(count(&report, "offered"), u64::from(PACKETS), "{report}");
    assert_eq!(count(&report, "delivered"), u64::from(PACKETS), "{report}");
    assert_eq!(of_function(&report, "own"), 0, "{report}");
    let ports = report["ports"].as_array().unwrap();
    assert_eq!(ports.len(), 2 * workers);
    for (number, port) in ports.iter().enumerate() {
        let [sent, received] = ["sent", "received"].map(|what| port[what].as_u64().unwrap());
        // Each worker sends by its first port and receives from its second.
        assert_eq!((sent > 0, received > 0), (number % 2 == 0, number % 2 == 1), "{report}");
        assert_eq!(
            (&port["gone"], &port["link"]["up"]),
            (&false.into(), &true.into()),
            "{report}"
        );
    }
    let frames = frames(&out);
    assert_eq!(in_order(&frames), PACKETS as usize);
    assert_eq!(wrong_checksums(&frames), 0);
    // Nothing remains: the interfaces are as before.
    let shown = text(&hosts.on(2, "ip -d link show").stdout);
    assert!(shown.contains("fn-in") && !shown.contains("promiscuity 1"), "{shown}");
}

#[test]
fn all_packets_return_from_the_kernel_in_order() {
    if !skipped(&[]) {
        forwards(1, &[]);
    }
}

/// Returns `true` and prints the reason if this machine has one core only.
fn has_one_core() -> bool {
    let one = std::thread::available_parallelism().map_or(1, usize::from) < 2;
    if one {
        println!("skipped: this needs two cores");
    }
    one
}

#[test]
fn two_workers_have_interfaces_of_their_own() {
    if !skipped(&[]) && !has_one_core() {
        forwards(2, &[]);
    }
}

/// Packets of both workers pass functions in processes in front of the external one and behind. The namespaces of these
/// hosts hide control groups.
#[test]
fn functions_around_interfaces_of_two_workers_are_isolated() {
    if !skipped(&[]) && !has_one_core() {
        forwards(2, &["--isolation", "process", "--isolation-without", "groups"]);
    }
}

#[test]
fn a_function_whose_interface_is_deleted_costs_its_packets_and_the_run_ends() {
    if skipped(&[]) {
        return;
    }
    for gone in ["fn-in", "fn-out"] {
        let (mut hosts, folder) = (Hosts::new(false), Folder::new());
        let function = hosts.add_function();
        route(&hosts, function);
        let chain = chain(
            &folder,
            "port: interface=fn-in, returnPort: interface=fn-out, timeout: 50ms, outside: 1000",
        );
        let packets = 20_000;
        let mut run = hosts.replay(&chain, &capture(&folder, packets), &[]);
        wait_for(|| {
            run.assert_runs();
            hosts.counted_at(function, "out0")[0] > 1_000
        });
        hosts.must_on(2, &format!("ip link del {gone}"));
        let (report, said) = run.finish();
        assert!(
            said.contains(&format!("port interface={gone} disappeared during the run")),
            "{said}"
        );
        assert_accounted(&report);
        assert_eq!(count(&report, "offered"), u64::from(packets), "{report}");
        let [returned, missing, refused] =
            ["returned", "not_returned", "refused"].map(|what| of_function(&report, what));
        assert!(returned > 900, "{report}");
        assert_eq!(count(&report, "delivered"), returned, "{report}");
        assert_eq!(returned + missing + refused, u64::from(packets), "{report}");
        let number = usize::from(gone == "fn-out");
        assert_eq!(report["ports"][number]["gone"], true, "{report}");
        match gone {
            "fn-in" => assert!(reason(&report, "fw/not-taken") > 1_000, "{report}"),
            _ => assert!(missing + refused > 1_000, "{report}"),
        }
    }
}

/// The kernel takes tags out of frames that it receives.
#[test]
fn tagged_frames_return_with_their_tags() {
    if skipped(&[]) {
        return;
    }
    let (mut hosts, folder) = (Hosts::new(false), Folder::new());
    let function = hosts.add_function();
    bridge(&hosts, function);
    let tags = [
        vec![],
        vec![VlanTag::customer(7)],
        vec![VlanTag::service(9), VlanTag::customer(7)],
    ];
    let frames_in: Vec<_> = (0..300u32)
        .map(|number| {
            let key = FlowKey::v4(client(1), SERVER, protocol::UDP, 5000, 53);
            let payload = number.to_be_bytes();
            let frame = FrameBuilder::new(&key).macs(MacAddress([2, 0, 0, 0, 0, 7]), ROUTER_MAC);
            let tags = tags[number as usize % tags.len()].iter();
            let frame = tags.fold(frame, |frame, tag| frame.vlan(*tag));
            (u64::from(number) * 200_000, frame.payload(&payload).to_vec().unwrap())
        })
        .collect();
    let chain = chain(
        &folder,
        "port: interface=fn-in, returnPort: interface=fn-out, timeout: 2s",
    );
    let (capture, out) = (folder.capture("in.pcap", &frames_in), folder.path("out.pcap"));
    let more = ["--capture-out", out.to_str().unwrap()];
    let (report, _) = hosts.replay(&chain, &capture, &more).finish();
    assert_accounted(&report);
    let frames_in: Vec<_> = frames_in.into_iter().map(|(_, frame)| frame).collect();
    assert_eq!(frames(&out), frames_in, "{report}");
}

/// Sends `datagrams` datagrams from the function's namespace, with checksums and segmentation left to the interface.
fn send_own(hosts: &Hosts, function: usize, datagrams: usize, bytes: usize, segment: Option<i32>) {
    let sender = hosts.within(function, move || {
        let socket = UdpSocket::bind(("198.51.100.254", 7000)).unwrap();
        if let Some(bytes) = segment {
            let (level, option) = (libc::SOL_UDP, libc::UDP_SEGMENT);
            let size = size_of_val(&bytes) as libc::socklen_t;
            // SAFETY: the value has this size and outlives the call.
            let set = unsafe { libc::setsockopt(socket.as_raw_fd(), level, option, (&raw const bytes).cast(), size) };
            assert_eq!(set, 0);
        }
        for _ in 0..datagrams {
            socket.send_to(&vec![0x5a; bytes], (SERVER, 7000)).unwrap();
            std::thread::sleep(Duration::from_millis(1));
        }
    });
    sender.join().unwrap();
}

#[test]
fn checksums_left_to_a_device_are_completed_and_oversized_frames_counted() {
    if skipped(&[]) {
        return;
    }
    let (mut hosts, folder) = (Hosts::new(false), Folder::new());
    let function = hosts.add_function();
    route(&hosts, function);
    hosts.must_on(function, "ethtool -K out0 tx on tx-udp-segmentation on");
    let chain = chain(
        &folder,
        "port: interface=fn-in, returnPort: interface=fn-out, timeout: 2s",
    );
    // Frames longer than the MTU, too.
    let mut packets: Vec<_> = (0..20_000).map(|i| (u64::from(i) * 100_000, numbered(i))).collect();
    let key = FlowKey::v4(client(1), SERVER, protocol::UDP, 5000, 53);
    let long = FrameBuilder::new(&key).payload(&[1; 1600]).to_vec().unwrap();
    for packet in packets.iter_mut().take(1_000).step_by(100) {
        packet.1 = long.clone();
    }
    let (capture, out) = (folder.capture("in.pcap", &packets), folder.path("out.pcap"));
    let more = ["--capture-out", out.to_str().unwrap()];
    let mut run = hosts.replay(&chain, &capture, &more);
    wait_for(|| {
        run.assert_runs();
        hosts.counted_at(function, "out0")[0] > 1_000
    });
    send_own(&hosts, function, 20, 101, None);
    // Segmentation is left to the interface: one frame of several segments.
    send_own(&hosts, function, 3, 8_000, Some(1_000));
    let (report, _) = run.finish();
    assert_accounted(&report);
    assert_eq!(reason(&report, "fw/too-long"), 10, "{report}");
    assert_eq!(of_function(&report, "own"), 20, "{report}");
    assert_eq!(report["ports"][1]["receive_errors"], 3, "{report}");
    assert_eq!(count(&report, "delivered"), 20_000 - 10 + 20, "{report}");
    let frames = frames(&out);
    let own = frames.iter().filter(|frame| frame.len() == 42 + 101);
    assert_eq!((own.count(), wrong_checksums(&frames)), (20, 0));
}

#[test]
fn interfaces_that_cannot_be_used_are_refused_with_the_remedy() {
    let folder = Folder::new();
    let chain_at = |port: &str| chain(&folder, &format!("port: {port}"));
    let missing = chain_at("interface=tw-none");
    let output = run(&[&"run", &missing, &"--traffic", &"bursty"]);
    assert_refused(
        &output,
        "interface tw-none: no such interface in this network namespace",
    );
    if skipped(&["setpriv"]) {
        return;
    }
    let mut hosts = Hosts::new(false);
    hosts.add_function();
    hosts.must_on(2, "ip link set fn-out down");
    let program = tailwater();
    let program = program.get_program().to_str().unwrap();
    let refused = |port: &str, before: &[&str], expected: &str| {
        let chain = chain_at(port);
        let line = [program, "run", chain.to_str().unwrap(), "--traffic", "bursty"];
        hosts.start(2, &[before, &line].concat()).assert_refused(expected);
    };
    refused(
        "interface=fn-out",
        &[],
        "interface fn-out: it is down; bring it up: ip link set NAME up",
    );
    refused("interface=lo", &[], "interface lo: expected an Ethernet interface");
    let without = ["setpriv", "--bounding-set=-all"];
    refused(
        "interface=fn-in",
        &without,
        "interface fn-in: no permission: packet sockets require root or CAP_NET_RAW",
    );
    let chain = chain_at("interface=fn-in");
    let first = hosts.start(
        2,
        &[
            program,
            "run",
            chain.to_str().unwrap(),
            "--traffic",
            "bursty",
            "--duration",
            "30s",
        ],
    );
    wait_for(|| text(&hosts.on(2, "ip -d link show dev fn-in").stdout).contains("promiscuity 1"));
    refused("interface=fn-in", &[], "interface fn-in: in use by another tailwater");
    drop(first);
}
