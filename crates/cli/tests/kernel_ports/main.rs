//! Chains on kernel interfaces, end to end: two hosts with Tailwater between them. Requires root.
#![cfg(feature = "dpdk")]

#[path = "../common/mod.rs"]
mod common;
mod detection;
mod external;
mod firewall;
mod mobile;
mod pairs;
#[path = "../isolation/processes.rs"]
#[allow(dead_code, reason = "not every test uses everything")]
mod processes;
mod programs;
mod services;
mod tunnels;

use common::namespaces::{HOSTS, Hosts, skipped, wait_for};
use common::*;
use tailwater_net::builder::FrameBuilder;
use tailwater_net::vlan::VlanTag;
use tailwater_net::{FlowKey, protocol};

const PACKET: &str = "net_af_packet";
const XDP: &str = "net_af_xdp";

fn body() -> Vec<u8> {
    (0..1 << 20).map(|i: u32| (i ^ (i >> 8)) as u8).collect()
}

/// Returns a counter of a port.
fn port(report: &serde_json::Value, number: usize, what: &str) -> u64 {
    report["ports"][number][what].as_u64().unwrap()
}

/// Pings in both directions, and a page from host 1.
fn pings_and_a_page(hosts: &Hosts, addresses: [&str; 2]) {
    for (host, other) in [(0, addresses[1]), (1, addresses[0])] {
        hosts.assert_pings(host, other, 10);
    }
    // Small enough for a port's queue, since the kernel does not report drops.
    let body = &body()[..100_000];
    hosts.serve(1, addresses[1], 80, body.to_vec());
    let curl = hosts.on(0, &format!("curl -sS -m 60 http://{}/", addresses[1]));
    assert!(curl.status.success(), "{}", text(&curl.stderr));
    assert!(curl.stdout == body);
}

/// Pings and a page; asserts that each packet is accounted for on both sides.
fn cross(driver: &str, more: &[&str]) {
    let (hosts, folder) = (Hosts::new(false), Folder::new());
    let mut between = hosts.run(driver, &folder.forward(), more);
    pings_and_a_page(&hosts, HOSTS);
    // The last packets of the connection may still be in flight.
    let arrived = |from, to| hosts.counted(from)[0] == hosts.counted(to)[1];
    wait_for(|| arrived(0, 1) && arrived(1, 0));
    let counted = [0, 1].map(|host| hosts.counted(host));
    let report = between.stop();
    assert_all_went_through(&report);
    assert_eq!(report["interrupted"], true);
    for (number, [sent, received]) in counted.into_iter().enumerate() {
        assert_eq!(port(&report, number, "received"), sent, "{report}");
        assert_eq!(port(&report, number, "sent"), received, "{report}");
    }
}

/// Asserts that nothing was lost, and that the ports' counters equal the chain's.
fn assert_all_went_through(report: &serde_json::Value) {
    assert_identity(report);
    assert_eq!(count(report, "lost"), 0, "{report}");
    let sums = ["received", "sent"].map(|what| port(report, 0, what) + port(report, 1, what));
    let counts = ["offered", "delivered"].map(|name| count(report, name));
    assert_eq!(sums, counts, "{report}");
}

#[test]
fn packets_cross_over_packet_sockets() {
    if !skipped(&["curl"]) {
        cross(PACKET, &[]);
    }
}

#[test]
fn packets_cross_over_xdp() {
    if !skipped(&["curl"]) {
        cross(XDP, &[]);
    }
}

/// Few descriptors are the default where the cache is small.
#[test]
fn xdp_has_its_buffers_however_few_descriptors_there_are() {
    if !skipped(&["curl"]) {
        cross(XDP, &["--ring", "128"]);
    }
}

/// One core receives from the interface's only queue, two cores send through it in turn.
fn cross_on_two_cores(driver: &str) {
    if std::thread::available_parallelism().map_or(1, usize::from) < 2 {
        println!("skipped: this needs two cores");
        return;
    }
    let (hosts, folder) = (Hosts::new(false), Folder::new());
    let chain = folder.spec("accounting.yaml", "[{accounting: }, {forward: }]", "");
    let mut between = hosts.run(driver, &chain, &["--cores", "0,1"]);
    pings_and_a_page(&hosts, HOSTS);
    // Flows in all buckets, by different client ports.
    for _ in 0..10 {
        let curl = hosts.on(0, &format!("curl -sS -m 60 http://{}/", HOSTS[1]));
        assert!(curl.status.success(), "{}", text(&curl.stderr));
    }
    let report = between.stop();
    assert_all_went_through(&report);
    assert_eq!(report["cores"]["dedicated"], 2);
    for number in 0..2 {
        let queues = ["queues", "send_queues"].map(|what| port(&report, number, what));
        assert_eq!(queues, [1, 1]);
    }
}

#[test]
fn packets_cross_on_two_cores_over_packet_sockets() {
    if !skipped(&["curl"]) {
        cross_on_two_cores(PACKET);
    }
}

#[test]
fn packets_cross_on_two_cores_over_xdp() {
    if !skipped(&["curl"]) {
        cross_on_two_cores(XDP);
    }
}

#[test]
fn ports_need_not_be_promiscuous() {
    if skipped(&[]) {
        return;
    }
    let (hosts, folder) = (Hosts::new(false), Folder::new());
    let ports = [0, 1].map(|port| format!("{PACKET}{port},iface=port{port}"));
    let more = ["--no-promiscuous"];
    let mut between = hosts.run_on(2, &folder.forward(), &[&ports[0], &ports[1]], &more);
    wait_for(|| {
        between.assert_runs();
        let ping = hosts.on(0, &format!("ping -q -c 1 -W 1 {}", HOSTS[1]));
        ping.status.success()
    });
    for port in 0..2 {
        let shown = hosts.on(2, &format!("ip -d link show dev port{port}"));
        assert!(text(&shown.stdout).contains("promiscuity 0"));
    }
    let report = between.stop();
    assert_identity(&report);
    assert_eq!(report["ports"][0]["link"]["up"], true, "{report}");
}

/// Simulates unplugging and replugging a cable.
#[test]
fn a_link_that_goes_and_comes_back_is_told() {
    if skipped(&[]) {
        return;
    }
    for driver in [PACKET, XDP] {
        let (hosts, folder) = (Hosts::new(false), Folder::new());
        let mut between = hosts.run(driver, &folder.forward(), &[]);
        hosts.assert_pings(0, HOSTS[1], 2);
        for (state, number) in [("down", 1), ("up", 2)] {
            let set = hosts.on(0, &format!("ip link set dev eth0 {state}"));
            assert!(set.status.success());
            let expected = format!("port {driver}0,iface=port0: link {state}\n");
            wait_for(|| {
                between.assert_runs();
                between.said().ends_with(&expected)
            });
            assert_eq!(between.said().matches(": link ").count(), number);
        }
        hosts.assert_pings(0, HOSTS[1], 2);
        let report = between.stop();
        assert_identity(&report);
        let link = |number: usize| &report["ports"][number]["link"];
        assert_eq!((&link(0)["up"], &link(0)["changes"]), (&true.into(), &2.into()));
        assert_eq!((&link(1)["up"], &link(1)["changes"]), (&true.into(), &0.into()));
    }
}

/// The kernel removes tags from the frames of packet sockets.
#[test]
fn tags_stay_in_the_frames() {
    if skipped(&["tcpreplay"]) {
        return;
    }
    let packets: Vec<_> = (0..20u16)
        .map(|i| {
            let flow = FlowKey::v4(client(1), SERVER, protocol::UDP, 1000 + i, 53);
            let frame = FrameBuilder::new(&flow).vlan(VlanTag::customer(100 + i));
            (u64::from(i) * 1000, frame.payload(b"tagged").to_vec().unwrap())
        })
        .collect();
    for driver in [PACKET, XDP] {
        let (hosts, folder) = (Hosts::new(false), Folder::new());
        for host in 0..2 {
            hosts.on(host, "ethtool -K eth0 txvlan off rxvlan off");
            hosts.on(2, &format!("ethtool -K port{host} txvlan off rxvlan off"));
        }
        let capture = folder.capture("in.pcap", &packets);
        let out = folder.path("out.pcap");
        let more = ["--capture-out", out.to_str().unwrap()];
        let mut between = hosts.run(driver, &folder.forward(), &more);
        let replay = format!("tcpreplay -q -i eth0 --pps=1000 {}", capture.display());
        let replay = hosts.on(0, &replay);
        assert!(replay.status.success(), "{}", text(&replay.stderr));
        wait_for(|| hosts.counted(1)[1] >= 20);
        assert_all_went_through(&between.stop());
        let sent: Vec<_> = packets.iter().map(|(_, frame)| frame.clone()).collect();
        assert!(frames(&out) == sent, "{driver}: {:02x?}", frames(&out)[0]);
    }
}

/// The load exceeds the chain's capacity, until after the end.
#[test]
fn a_flooded_run_ends_by_a_signal() {
    if skipped(&["tcpreplay"]) {
        return;
    }
    let (hosts, folder) = (Hosts::new(false), Folder::new());
    let capture = folder.capture("in.pcap", &mixture(1000));
    let capture = capture.to_str().unwrap();
    let mut between = hosts.run(PACKET, &folder.acl_nat(), &[]);
    let flood = ["tcpreplay", "-q", "-K", "-i", "eth0", "--topspeed", "--loop=0"];
    let mut flood = hosts.start(0, &[&flood[..], &[capture]].concat());
    wait_for(|| hosts.counted(1)[1] > 1000);
    flood.assert_runs();
    let report = between.stop();
    flood.assert_runs();
    assert_identity(&report);
    assert_eq!(report["interrupted"], true);
    assert!(count(&report, "dropped_by_nf") > 0, "{report}");
}

/// A tap verifies checksums on request. Checksums of sent packets are computed by the chain's functions.
#[test]
fn packets_that_a_device_finds_damaged_are_dropped_unless_the_spec_says_otherwise() {
    if skipped(&["tcpreplay"]) {
        return;
    }
    let (hosts, folder) = (Hosts::new(false), Folder::new());
    let mut packets = mixture(300);
    for (i, (_, frame)) in packets.iter_mut().enumerate() {
        // The IP header's checksum, or the payload's.
        match i % 3 {
            0 => frame[24] ^= 0x55,
            1 => *frame.last_mut().unwrap() ^= 0x55,
            _ => {}
        }
    }
    let capture = folder.capture("in.pcap", &packets);
    for (rest, delivered) in [("", 100), ("  packets: {malformed: pass}\n", 300)] {
        let chain = folder.spec("forward.yaml", "[{forward: }]", rest);
        let ports = ["net_tap0,iface=tap0", "net_tap1,iface=tap1"];
        let mut between = hosts.run_on(2, &chain, &ports, &[]);
        wait_for(|| {
            between.assert_runs();
            let up = |tap| hosts.on(2, &format!("ip link set dev tap{tap} up"));
            (0..2).all(|tap| up(tap).status.success())
        });
        std::thread::sleep(std::time::Duration::from_millis(500));
        let replay = format!("tcpreplay -q -i tap0 --pps=1000 {}", capture.display());
        let replay = hosts.on(2, &replay);
        assert!(replay.status.success(), "{}", text(&replay.stderr));
        wait_for(|| hosts.counted_at(2, "tap1")[1] >= delivered);
        let report = between.stop();
        assert_identity(&report);
        let dropped = report["packets"]["reasons"]["malformed/checksum"].as_u64();
        assert_eq!(dropped.unwrap_or(0), 300 - delivered, "{report}");
        assert_eq!(count(&report, "delivered"), delivered, "{report}");
        assert_eq!(report["ports"][0]["checks_checksums"], delivered == 100);
    }
}

#[test]
fn a_port_that_vanishes_is_told_and_the_other_goes_on() {
    if skipped(&[]) {
        return;
    }
    let (hosts, folder) = (Hosts::new(false), Folder::new());
    let mut between = hosts.run(PACKET, &folder.forward(), &[]);
    assert!(hosts.on(2, "ip link del port0").status.success());
    std::thread::sleep(std::time::Duration::from_millis(500));
    // No response arrives, but packets of host 1 do.
    hosts.on(1, &format!("ping -q -c 3 -i 0.1 -W 1 {}", HOSTS[0]));
    assert!(hosts.on(2, "ip link del port1").status.success());
    // The run ends with the last port.
    let (report, said) = between.finish();
    assert_identity(&report);
    for number in 0..2 {
        let expected = format!("port net_af_packet{number},iface=port{number} disappeared during the run");
        assert!(said.contains(&expected), "{said}");
        assert_eq!(report["ports"][number]["gone"], true);
    }
    assert!(port(&report, 1, "received") > 0, "{report}");
    assert_eq!(report["interrupted"], false);
}

#[test]
fn a_capture_is_replayed_at_rising_rates() {
    if skipped(&["tcpreplay"]) {
        return;
    }
    let (hosts, folder) = (Hosts::new(false), Folder::new());
    let capture = folder.capture("in.pcap", &mixture(1000));
    let out = folder.path("out.pcap");
    let more = ["--capture-out", out.to_str().unwrap()];
    let mut between = hosts.run(PACKET, &folder.acl_nat(), &more);
    let mut replayed = 0;
    for rate in ["--pps=1000", "--pps=5000", "--topspeed"] {
        let replay = format!("tcpreplay -q -i eth0 {rate} {}", capture.display());
        let replay = hosts.on(0, &replay);
        assert!(replay.status.success(), "{}", text(&replay.stderr));
        replayed += 1000;
        // Time for packets in flight to arrive.
        std::thread::sleep(std::time::Duration::from_millis(300));
    }
    assert_eq!(hosts.counted(0)[0], replayed);
    let report = between.stop();
    assert_identity(&report);
    let offered = count(&report, "offered");
    assert!(offered >= 1000 && offered <= replayed, "{report}");
    // The kernel does not report its drops; all other packets are accounted for.
    let [received, sent] = [port(&report, 0, "received"), port(&report, 1, "sent")];
    assert_eq!((received, sent), (offered, count(&report, "delivered")));
    assert_eq!(hosts.counted(1)[1], sent);
    let frames = frames(&out);
    assert_eq!((frames.len() as u64, wrong_checksums(&frames)), (sent, 0));
}

/// Streams of TCP and UDP, in both directions.
fn streams(driver: &str) {
    let (hosts, folder) = (Hosts::new(false), Folder::new());
    let mut between = hosts.run(driver, &folder.forward(), &[]);
    programs::streams(&hosts, HOSTS[0], HOSTS[1]);
    // The report counts packets of a burst for which a device has no room.
    let report = between.stop();
    assert_identity(&report);
    let sums = ["received", "sent"].map(|what| port(&report, 0, what) + port(&report, 1, what));
    let counts = ["offered", "delivered"].map(|name| count(&report, name));
    assert_eq!(sums, counts, "{report}");
}

#[test]
fn streams_cross_both_ways_over_packet_sockets() {
    if !skipped(&["iperf3"]) {
        streams(PACKET);
    }
}

#[test]
fn streams_cross_both_ways_over_xdp() {
    if !skipped(&["iperf3"]) {
        streams(XDP);
    }
}

/// Each host has a tap of its own program, and shared memory connects the programs.
#[test]
fn packets_cross_two_programs_over_taps_and_shared_memory() {
    if skipped(&["curl"]) {
        return;
    }
    let (hosts, folder) = (Hosts::new(false), Folder::new());
    let (chain, socket) = (folder.forward(), folder.path("memif.sock"));
    let memif = |role: &str| {
        let socket = socket.display();
        format!("net_memif0,role={role},socket={socket},socket-abstract=no")
    };
    let tap = "net_tap0,iface=tap0";
    let mut server = hosts.run_on(1, &chain, &[&memif("server"), tap], &[]);
    wait_for(|| {
        server.assert_runs();
        server.said().contains("link down")
    });
    let mut client = hosts.run_on(0, &chain, &[tap, &memif("client")], &[]);
    wait_for(|| {
        client.assert_runs();
        server.said().contains("link up")
    });
    let addresses = ["10.10.0.1", "10.10.0.2"];
    for (host, address) in addresses.into_iter().enumerate() {
        let set = |what: &str| hosts.on(host, &format!("ip {what}")).status.success();
        assert!(set(&format!("addr add {address}/24 dev tap0")));
        assert!(set("link set dev tap0 up"));
    }
    // Waits until the client has connected, too.
    wait_for(|| {
        let ping = hosts.on(0, &format!("ping -q -c 1 -W 1 {}", addresses[1]));
        ping.status.success()
    });
    pings_and_a_page(&hosts, addresses);
    let counted = || [0, 1].map(|host| hosts.counted_at(host, "tap0"));
    // The last packets of the connection may still be in flight. The client's shared-memory counters disappear with the
    // server, except for those that the run has read before.
    let mut last = counted();
    wait_for(|| {
        std::thread::sleep(std::time::Duration::from_secs(1));
        let before = std::mem::replace(&mut last, counted());
        before == last
    });
    let [[sent_0, received_0], [sent_1, received_1]] = last;
    let of_server = server.stop();
    wait_for(|| {
        client.assert_runs();
        client.said().ends_with("link down\n")
    });
    let of_client = client.stop();
    for report in [&of_client, &of_server] {
        assert_identity(report);
    }
    let [tap, to_server] = [0, 1].map(|number| ["received", "sent"].map(|what| port(&of_client, number, what)));
    let [to_client, other_tap] = [0, 1].map(|number| ["received", "sent"].map(|what| port(&of_server, number, what)));
    assert_eq!((tap, other_tap), ([sent_0, received_0], [sent_1, received_1]));
    assert_eq!((to_server[0], to_server[1]), (to_client[1], to_client[0]));
    // The first packets are lost if they arrive before the client is ready.
    let lost = count(&of_client, "lost") + count(&of_server, "lost");
    assert_eq!(
        sent_0 + sent_1,
        received_0 + received_1 + lost,
        "{of_client} {of_server}"
    );
}

/// DPDK would remove the first run's XDP program from the interface.
#[test]
fn a_second_run_on_an_interface_is_refused_and_the_first_goes_on() {
    if skipped(&[]) {
        return;
    }
    let (hosts, folder) = (Hosts::new(false), Folder::new());
    let chain = folder.forward();
    let mut between = hosts.run(XDP, &chain, &[]);
    for driver in [XDP, PACKET] {
        let ports = [0, 1].map(|port| format!("{driver}{port},iface=port{port}"));
        let second = hosts.run_on(2, &chain, &[&ports[0], &ports[1]], &[]);
        second.assert_refused("\"port0\" is in use by another tailwater");
    }
    hosts.assert_pings(0, HOSTS[1], 3);
    assert_all_went_through(&between.stop());
}

/// As in a container: root without capabilities.
#[test]
fn without_capabilities_ports_of_the_kernel_are_refused() {
    if skipped(&["setpriv"]) {
        return;
    }
    let (hosts, folder) = (Hosts::new(false), Folder::new());
    let (program, chain) = (tailwater(), folder.forward());
    let without = ["setpriv", "--bounding-set=-all"];
    for port in ["net_af_packet0,iface=port0", "net_af_xdp0,iface=port0", "net_tap0"] {
        let program = program.get_program().to_str().unwrap();
        let run = [program, "run", chain.to_str().unwrap(), "--port", port];
        let refused = hosts.start(2, &[&without[..], &run].concat());
        refused.assert_refused("no permission: ");
    }
}
