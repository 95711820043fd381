//! External functions, which are unaware of Tailwater, in chains: the kernel's firewall and address translation, Open
//! vSwitch, and another program behind shared memory.

use crate::common::namespaces::{Hosts, Program, skipped, wait_for};
use crate::common::*;
use crate::processes::{processes_at, signal_if_there};
use std::collections::BTreeSet;
use std::net::{Ipv4Addr, UdpSocket};
use std::path::{Path, PathBuf};
use std::time::Duration;
use tailwater_net::parse::Network;

/// The far host, and the router's address on its side.
const FAR: &str = "198.51.100.2";
const ROUTER: [&str; 2] = ["10.9.0.254", "198.51.100.254"];
const ROUTER_MAC: &str = "02:00:00:00:00:01";

/// Returns a counter of packets at the external function.
fn of_function(report: &serde_json::Value, what: &str) -> u64 {
    report["externals"][0][what].as_u64().unwrap()
}

fn reason(report: &serde_json::Value, name: &str) -> u64 {
    report["packets"]["reasons"][name].as_u64().unwrap_or(0)
}

/// Returns the packets that a busy machine lost before they reached the chain.
fn lost_in_front(report: &serde_json::Value) -> u64 {
    reason(report, "nic-ring-full") + reason(report, "not-drained")
}

/// Writes a chain with the external function between built-in ones.
fn chain(folder: &Folder, external: &str) -> PathBuf {
    let functions = format!(
        "[{{name: edge, acl: {{default: allow, rules: [{{action: deny, protocol: udp, destinationPorts: 9}}]}}}}, \
         {{forward: {{destinationMac: \"{ROUTER_MAC}\"}}}}, {{name: firewall, external: {{{external}}}}}, \
         {{accounting: {{export: {{file: {}}}}}}}]",
        folder.path("flows.csv").display()
    );
    folder.spec("chain.yaml", &functions, "")
}

const BETWEEN: &str = "port: 'net_af_packet2,iface=fn-in', returnPort: 'net_af_packet3,iface=fn-out', \
                       timeout: 2s, missing: dropped";

/// Adds a router that translates addresses, and blocks mail servers.
fn router(hosts: &mut Hosts, rules: &Path) -> usize {
    let function = hosts.add_function();
    let on = |line: &str| hosts.must_on(function, line);
    on("sysctl -q -w net.ipv4.ip_forward=1 net.ipv4.conf.all.rp_filter=0 \
        net.ipv4.conf.in0.rp_filter=0 net.ipv4.conf.out0.rp_filter=0");
    on(&format!("ip link set in0 address {ROUTER_MAC}"));
    on(&format!("ip addr add {}/24 dev in0", ROUTER[0]));
    on(&format!("ip addr add {}/24 dev out0", ROUTER[1]));
    std::fs::write(
        rules,
        "table ip t {\n\
         chain f { type filter hook forward priority 0; policy accept; tcp dport 25 drop; }\n\
         chain p { type nat hook postrouting priority 100; oifname \"out0\" masquerade; }\n}\n",
    )
    .unwrap();
    on(&format!("nft -f {}", rules.display()));
    function
}

/// Asserts that each packet is accounted for once, by the counters of the chain, of the function and of the ports.
fn assert_accounted(report: &serde_json::Value, own_ports: usize) {
    assert_identity(report);
    let [sent, returned, missing, late, own] =
        ["sent", "returned", "not_returned", "late", "own"].map(|what| of_function(report, what));
    assert_eq!(sent, returned + missing, "{report}");
    let ports = report["ports"].as_array().unwrap();
    let sum = |ports: &[serde_json::Value], what: &str| -> u64 {
        ports.iter().map(|port| port[what].as_u64().unwrap()).sum()
    };
    let (entry, function) = ports.split_at(own_ports);
    assert_eq!(sum(function, "sent"), sent, "{report}");
    assert_eq!(sum(function, "received"), returned + late + own, "{report}");
    if own_ports > 0 {
        assert_eq!(sum(entry, "received") + own, count(report, "offered"), "{report}");
        assert_eq!(sum(entry, "sent"), count(report, "delivered"), "{report}");
    }
}

#[test]
fn the_kernels_firewall_and_translation_are_a_function_of_a_chain() {
    if skipped(&["nft", "curl"]) {
        return;
    }
    let (mut hosts, folder) = (Hosts::new(false), Folder::new());
    let function = router(&mut hosts, &folder.path("rules.nft"));
    hosts.must_on(0, &format!("ip route add default via {}", ROUTER[0]));
    hosts.must_on(1, "ip addr flush dev eth0");
    hosts.must_on(1, &format!("ip addr add {FAR}/24 dev eth0"));
    // The chain sets one direction's destination only; the other direction resolves it.
    let text = std::fs::read_to_string(chain(&folder, BETWEEN)).unwrap();
    let chain = folder.write(
        "both.yaml",
        text.replace(&format!("{{forward: {{destinationMac: \"{ROUTER_MAC}\"}}}}, "), ""),
    );
    let mut between = hosts.run(super::PACKET, &chain, &[]);
    // With the function's own ARP, and with translated echo identifiers.
    hosts.assert_pings(0, FAR, 10);
    let body = &super::body()[..60_000];
    for port in [80, 25] {
        hosts.serve(1, FAR, port, body.to_vec());
    }
    let curl = hosts.on(0, &format!("curl -sS -m 60 http://{FAR}/"));
    assert!(curl.status.success(), "{}", text_of(&curl));
    assert!(curl.stdout == body);
    let refused = hosts.on(0, &format!("curl -sS -m 1 http://{FAR}:25/"));
    assert_eq!(refused.status.code(), Some(28), "{}", text_of(&refused));
    // The far host receives packets from the router's address, and responds to it.
    let (ready, is_ready) = std::sync::mpsc::channel();
    let server = hosts.within(1, move || {
        let socket = UdpSocket::bind((FAR, 53)).unwrap();
        socket.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        ready.send(()).unwrap();
        (0..20).for_each(|_| {
            let mut buffer = [0; 100];
            let (length, from) = socket.recv_from(&mut buffer).unwrap();
            assert_eq!(from.ip(), ROUTER[1].parse::<Ipv4Addr>().unwrap());
            socket.send_to(&buffer[..length], from).unwrap();
        });
    });
    is_ready.recv().unwrap();
    let client = hosts.within(0, || {
        let socket = UdpSocket::bind(("10.9.0.1", 0)).unwrap();
        socket.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        (0..20u8).for_each(|number| {
            let (question, mut answer) = (vec![number; usize::from(number)], [0; 100]);
            socket.send_to(&question, (FAR, 53)).unwrap();
            let (length, from) = socket.recv_from(&mut answer).unwrap();
            assert_eq!(
                (&answer[..length], from.ip().to_string()),
                (&question[..], FAR.to_owned())
            );
        });
    });
    client.join().unwrap();
    server.join().unwrap();
    // Packets refused by the built-in function in front do not reach the external one.
    let before = hosts.counted_at(function, "in0")[1];
    hosts.on(0, &format!("ping -q -c 1 -W 5 {FAR}"));
    wait_for(|| hosts.counted_at(function, "in0")[1] > before);
    let report = between.stop();
    assert_accounted(&report, 2);
    assert_eq!(count(&report, "lost"), 0, "{report}");
    let [own, late] = ["own", "late"].map(|what| of_function(&report, what));
    assert!(own > 0 && late == 0, "{report}");
    assert!(of_function(&report, "returned") > 100, "{report}");
    // Requests for mail with retransmissions, and ARP requests that the router answered itself.
    assert_eq!(
        reason(&report, "firewall/not-returned"),
        count(&report, "dropped_by_nf"),
        "{report}"
    );
    let delay = report["externals"][0]["delay_us"]["p50"].as_f64().unwrap();
    assert!(
        delay > 0.0 && report["latency_us"]["max"].as_f64().unwrap() >= delay,
        "{report}"
    );
    // Behind the function, flows are the translated ones.
    let flows = std::fs::read_to_string(folder.path("flows.csv")).unwrap();
    assert!(flows.contains(ROUTER[1]), "{flows}");
}

fn text_of(output: &std::process::Output) -> String {
    text(&output.stdout) + &text(&output.stderr)
}

#[test]
fn a_capture_goes_through_the_kernels_firewall_and_every_packet_is_accounted_for() {
    if skipped(&["nft"]) {
        return;
    }
    let (mut hosts, folder) = (Hosts::new(false), Folder::new());
    let function = router(&mut hosts, &folder.path("rules.nft"));
    hosts.must_on(
        function,
        &format!("ip neigh replace {SERVER} lladdr 02:00:00:00:00:09 dev out0 nud permanent"),
    );
    let packets = 5_000;
    let (capture, out) = (folder.capture("in.pcap", &mixture(packets)), folder.path("out.pcap"));
    let chain = chain(&folder, BETWEEN);
    let mut run = hosts.replay(&chain, &capture, &["--capture-out", out.to_str().unwrap()]);
    let (report, said) = run.finish();
    assert_eq!(said, "");
    assert_accounted(&report, 0);
    // One packet in ten is mail, which the firewall drops.
    let mail = packets as u64 / 10;
    assert_eq!(count(&report, "offered"), packets as u64, "{report}");
    assert_eq!(reason(&report, "firewall/not-returned"), mail, "{report}");
    assert_eq!(count(&report, "delivered"), packets as u64 - mail, "{report}");
    let frames = frames(&out);
    assert_eq!(
        (frames.len() as u64, wrong_checksums(&frames)),
        (packets as u64 - mail, 0)
    );
    let router: Ipv4Addr = ROUTER[1].parse().unwrap();
    assert!(
        frames.iter().all(|frame| key(frame).source() == router),
        "all are translated"
    );
}

/// Isolated functions in front of an external one and behind it behave as in one process. A killed one loses the
/// packets it holds, but none that are at the external function.
#[test]
fn functions_around_the_kernels_firewall_are_isolated() {
    if skipped(&["nft"]) {
        return;
    }
    let (mut hosts, folder) = (Hosts::new(false), Folder::new());
    let function = router(&mut hosts, &folder.path("rules.nft"));
    let neighbour = format!("ip neigh replace {SERVER} lladdr 02:00:00:00:00:09 dev out0 nud permanent");
    hosts.must_on(function, &neighbour);
    let (few, many) = (5_000, 30_000);
    let text = std::fs::read_to_string(chain(&folder, BETWEEN)).unwrap();
    let export = format!("{{export: {{file: {}}}}}", folder.path("flows.csv").display());
    let chain = folder.write("isolated.yaml", text.replace(&export, ""));
    let out = folder.path("out.pcap");
    let run = |isolation: &str, packets: usize| {
        let capture = folder.capture("in.pcap", &mixture(packets));
        let mut more = vec!["--capture-out", out.to_str().unwrap(), "--isolation"];
        more.extend(isolation.split(' '));
        let mut run = hosts.replay(&chain, &capture, &more);
        if packets == many {
            // Kills processes of the front part and of the part behind, in the middle of the traffic.
            wait_for(|| !processes_at(run.id(), 3).is_empty());
            for place in [0, 3, 1] {
                std::thread::sleep(Duration::from_millis(120));
                for process in processes_at(run.id(), place) {
                    signal_if_there(process, "-KILL");
                }
            }
        }
        let (report, _) = run.finish();
        assert_accounted(&report, 0);
        assert_eq!(count(&report, "offered"), packets as u64, "{report}");
        let mut sent = frames(&out);
        sent.sort();
        (report, sent)
    };
    let (report, sent) = run("none", few);
    assert_eq!(sent.len(), few - few / 10, "{report}");
    // The namespaces of these hosts hide control groups.
    let ways = ["process --isolation-without all", "process --isolation-without groups"];
    // A page fault that waits for memory, on a busy machine, is a sleep in the turn: the batch is lost.
    let undisturbed = |way| {
        let disturbed = |report: &serde_json::Value| {
            let names = ["edge", "forward", "accounting"];
            names
                .iter()
                .any(|name| reason(report, &format!("{name}/process-failed")) > 0)
        };
        let mut runs = (0..4).map(|_| run(way, few));
        let found = runs.find(|(report, _)| !disturbed(report));
        found.unwrap_or_else(|| panic!("{way}: packets were lost in each of four runs"))
    };
    for way in ways {
        let (isolated, same) = undisturbed(way);
        assert_eq!(isolated["packets"], report["packets"], "{way}");
        assert!(sent == same, "{way}: other packets were sent");
        let functions = isolated["isolation"]["functions"].as_array().unwrap();
        let turns = functions.iter().map(|it| (&it["name"], it["turns"].as_u64()));
        let names: Vec<_> = turns.clone().map(|(name, _)| name).collect();
        assert_eq!(names, ["edge", "forward", "accounting"], "{isolated}");
        assert!(turns.into_iter().all(|(_, turns)| turns > Some(0)), "{isolated}");
    }
    let (report, survived) = run(ways[1], many);
    let lost: u64 = ["edge", "forward", "accounting"]
        .map(|name| reason(&report, &format!("{name}/process-failed")))
        .iter()
        .sum();
    assert!(lost > 0, "{report}");
    assert_eq!(count(&report, "lost"), lost, "{report}");
    // The same flows, whose packets are identical.
    let known: BTreeSet<_> = sent.iter().collect();
    let other = survived.iter().find(|frame| !known.contains(frame));
    assert_eq!(other, None, "{}", report["packets"]);
    let mail = reason(&report, "firewall/not-returned");
    let all = survived.len() as u64 + lost + mail;
    assert_eq!(all, many as u64, "{}", report["packets"]);
}

/// Open vSwitch in its own namespace and directory.
struct Switch<'h> {
    hosts: &'h Hosts,
    host: usize,
    folder: &'h Folder,
    _database: Program,
}

impl<'h> Switch<'h> {
    fn new(hosts: &'h Hosts, host: usize, folder: &'h Folder) -> Switch<'h> {
        let path = |name: &str| folder.path(name).display().to_string();
        let schema = "/usr/share/openvswitch/vswitch.ovsschema";
        hosts.must_on(host, &format!("ovsdb-tool create {} {schema}", path("db")));
        let remote = format!("--remote=punix:{}", path("db.sock"));
        let control = format!("--unixctl={}", path("db.ctl"));
        let line = ["ovsdb-server", &path("db"), &remote, &control];
        let database = hosts.start(host, &line);
        wait_for(|| folder.path("db.sock").exists());
        Switch {
            hosts,
            host,
            folder,
            _database: database,
        }
    }

    fn set(&self, line: &str) {
        let database = self.folder.path("db.sock");
        let line = format!("ovs-vsctl --timeout=30 --db=unix:{} {line}", database.display());
        self.hosts.must_on(self.host, &line);
    }

    /// Starts the switch itself.
    fn start(&self) -> Program {
        let database = format!("unix:{}", self.folder.path("db.sock").display());
        let folder = format!("OVS_RUNDIR={}", self.folder.0.display());
        let line = ["env", &folder, "ovs-vswitchd", &database, "--unixctl=switch.ctl"];
        self.hosts.start(self.host, &line)
    }

    /// Programs the switch to forward between the ports with other addresses, and to drop packets to port 53.
    fn program(&self) {
        let socket = self.folder.path("between.mgmt");
        let flows = [
            "priority=2,udp,tp_dst=53,actions=drop",
            "priority=1,in_port=1,ip,actions=mod_nw_src:192.0.2.9,mod_dl_dst:02:00:00:00:00:07,dec_ttl,output:2",
        ];
        for flow in flows {
            let line = format!(
                "ovs-ofctl --timeout=30 -O OpenFlow13 add-flow unix:{} {flow}",
                socket.display()
            );
            // A killed switch's socket may still exist.
            wait_for(|| self.hosts.on(self.host, &line).status.success());
        }
    }
}

/// Returns a packet with a number; the switch forwards or drops it.
fn numbered(number: u32) -> (u64, Vec<u8>) {
    let port = 4000 + (number % 50) as u16;
    let to = if number.is_multiple_of(4) { 53 } else { 80 };
    (
        u64::from(number) * 500_000,
        udp(client(1 + (number % 20) as u8), port, SERVER, to),
    )
}

#[test]
fn open_vswitch_is_a_function_that_may_be_killed_and_may_lose_its_interface() {
    if skipped(&["ovs-vswitchd", "ovsdb-server", "ovs-ofctl"]) {
        return;
    }
    let (mut hosts, folder) = (Hosts::new(false), Folder::new());
    let host = hosts.add_function();
    let hosts = hosts;
    let switch = Switch::new(&hosts, host, &folder);
    let mut program = switch.start();
    switch.set(
        "add-br between -- set bridge between datapath_type=netdev protocols=OpenFlow13 fail_mode=secure \
         -- add-port between in0 -- set interface in0 ofport_request=1 \
         -- add-port between out0 -- set interface out0 ofport_request=2",
    );
    switch.program();
    // Packets differ in their ports only, which do not count in the comparison, so they are identified by order.
    let capture = folder.capture("in.pcap", &(0..20_000).map(numbered).collect::<Vec<_>>());
    let chain = chain(
        &folder,
        "port: 'net_af_packet2,iface=fn-in', returnPort: 'net_af_packet3,iface=fn-out', timeout: 200ms",
    );
    let out = folder.path("out.pcap");
    let more = ["--capture-out", out.to_str().unwrap()];
    let mut run = hosts.replay(&chain, &capture, &more);
    let received = || hosts.counted_at(host, "out0")[0];
    let goes_on = |from: u64| wait_for(|| received() > from + 200);
    goes_on(received());
    // Killed, then restarted with the same rules.
    program.kill();
    std::thread::sleep(Duration::from_millis(700));
    let _again = switch.start();
    switch.program();
    goes_on(received());
    run.assert_runs();
    hosts.must_on(2, "ip link del fn-out");
    let (report, said) = run.finish();
    assert!(
        said.contains("net_af_packet3,iface=fn-out disappeared during the run"),
        "{said}"
    );
    assert_identity(&report);
    assert_eq!(
        count(&report, "offered"),
        20_000 + of_function(&report, "own"),
        "{report}"
    );
    let [sent, returned, missing] = ["sent", "returned", "not_returned"].map(|what| of_function(&report, what));
    assert_eq!(sent, returned + missing, "{report}");
    assert!(returned > 400 && missing > 5_000, "{report}");
    assert_eq!(
        count(&report, "lost"),
        missing + of_function(&report, "refused") + lost_in_front(&report),
        "{report}"
    );
    let frames = frames(&out);
    let ip: Vec<_> = frames
        .iter()
        .filter(|frame| tailwater_net::parse::parse(frame).is_ok_and(|headers| headers.network == Network::V4))
        .collect();
    assert!(ip.len() as u64 >= returned, "{} of {returned}", ip.len());
    let changed: Ipv4Addr = "192.0.2.9".parse().unwrap();
    assert!(
        ip.iter()
            .all(|frame| key(frame).source() == changed && key(frame).destination_port() == 80)
    );
}

/// A second, independent Tailwater returns the packets that it receives.
#[test]
fn a_program_behind_shared_memory_may_be_killed_and_started_again() {
    if skipped(&[]) {
        return;
    }
    let (hosts, folder) = (Hosts::new(false), Folder::new());
    let socket = folder.path("memif.sock");
    let memif = |role: &str| format!("net_memif0,role={role},socket={},socket-abstract=no", socket.display());
    let chain = chain(&folder, &format!("port: '{}', timeout: 100ms", memif("server")));
    let other = folder.forward();
    let function = || {
        let program = tailwater();
        let port = memif("client");
        let line = [
            program.get_program().to_str().unwrap(),
            "run",
            other.to_str().unwrap(),
            "--duration",
            "3m",
            "--port",
            &port,
        ];
        hosts.start(2, &line)
    };
    let packets: Vec<_> = (0..20_000).map(|n| (u64::from(n) * 500_000, numbered(n).1)).collect();
    let capture = folder.capture("in.pcap", &packets);
    let mut run = hosts.replay(&chain, &capture, &[]);
    wait_for(|| {
        run.assert_runs();
        socket.exists()
    });
    let mut first = function();
    wait_for(|| run.said().contains("link up"));
    std::thread::sleep(Duration::from_secs(1));
    first.kill();
    wait_for(|| run.said().matches("link down").count() > 1);
    let _second = function();
    wait_for(|| run.said().matches("link up").count() > 1);
    let (report, _) = run.finish();
    assert_identity(&report);
    assert_eq!(count(&report, "offered"), 20_000, "{report}");
    let [sent, returned, missing, refused] =
        ["sent", "returned", "not_returned", "refused"].map(|what| of_function(&report, what));
    // Includes packets that a busy machine lost in front.
    let waited = lost_in_front(&report);
    let all = (returned + missing, sent + refused + waited);
    assert_eq!((sent, 20_000), all, "{report}");
    assert!(returned > 1_000 && refused > 0, "{report}");
    assert_eq!(
        (count(&report, "delivered"), of_function(&report, "own")),
        (returned, 0),
        "{report}"
    );
}
