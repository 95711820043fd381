//! Chains on kernel interfaces, from end to end: two hosts with Tailwater between them. Needs root.
#![cfg(feature = "dpdk")]

#[path = "../common/mod.rs"]
mod common;
mod services;

use common::namespaces::{HOSTS, Hosts, skipped, wait_for};
use common::*;

const PACKET: &str = "net_af_packet";
const XDP: &str = "net_af_xdp";

fn body() -> Vec<u8> {
    (0..1 << 20).map(|i: u32| (i ^ (i >> 8)) as u8).collect()
}

/// What a port counted.
fn port(report: &serde_json::Value, number: usize, what: &str) -> u64 {
    report["ports"][number][what].as_u64().unwrap()
}

/// Pings and a page, each packet of which is accounted for on both sides.
fn cross(driver: &str) {
    let (hosts, folder) = (Hosts::new(false), Folder::new());
    let mut between = hosts.run(driver, &folder.forward(), &[]);
    for (host, other) in [(0, HOSTS[1]), (1, HOSTS[0])] {
        let ping = hosts.on(host, &format!("ping -q -c 10 -i 0.05 -W 5 {other}"));
        let said = text(&ping.stdout);
        assert!(
            said.contains("10 packets transmitted, 10 received"),
            "{said}"
        );
    }
    let page = folder.path("page");
    // No more packets than wait at a port: the kernel does not tell what it drops.
    let body = &body()[..100_000];
    hosts.serve(1, HOSTS[1], 80, body.to_vec());
    let url = format!("http://{}/", HOSTS[1]);
    let curl = format!("curl -sS -m 60 -o {} {url}", page.display());
    let curl = hosts.on(0, &curl);
    assert!(curl.status.success(), "{}", text(&curl.stderr));
    assert!(std::fs::read(&page).unwrap() == body);
    // The end of the connection may still be on its way.
    wait_for(|| hosts.counted(0)[0] == hosts.counted(1)[1]);
    let counted = [0, 1].map(|host| hosts.counted(host));
    let report = between.stop();
    assert_identity(&report);
    assert_eq!(report["interrupted"], true);
    assert_eq!(count(&report, "lost"), 0, "{report}");
    let sums = ["received", "sent"].map(|what| port(&report, 0, what) + port(&report, 1, what));
    assert_eq!(
        sums,
        ["offered", "delivered"].map(|name| count(&report, name))
    );
    for (number, [sent, received]) in counted.into_iter().enumerate() {
        assert_eq!(port(&report, number, "received"), sent, "{report}");
        assert_eq!(port(&report, number, "sent"), received, "{report}");
    }
}

#[test]
fn packets_cross_over_packet_sockets() {
    if !skipped(&["curl"]) {
        cross(PACKET);
    }
}

#[test]
fn packets_cross_over_xdp() {
    if !skipped(&["curl"]) {
        cross(XDP);
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
    // Nobody answers, but what host 1 asks still arrives.
    hosts.on(1, &format!("ping -q -c 3 -i 0.1 -W 1 {}", HOSTS[0]));
    assert!(hosts.on(2, "ip link del port1").status.success());
    // With the last port the run ends.
    let (report, said) = between.finish();
    assert_identity(&report);
    for number in 0..2 {
        let expected = format!("port net_af_packet{number},iface=port{number} has gone");
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
        // A breath, in which what is on its way arrives.
        std::thread::sleep(std::time::Duration::from_millis(300));
    }
    assert_eq!(hosts.counted(0)[0], replayed);
    let report = between.stop();
    assert_identity(&report);
    let offered = count(&report, "offered");
    assert!(offered >= 1000 && offered <= replayed, "{report}");
    // The kernel does not tell what it drops; of all the rest it is known what became of it.
    let [received, sent] = [port(&report, 0, "received"), port(&report, 1, "sent")];
    assert_eq!((received, sent), (offered, count(&report, "delivered")));
    assert_eq!(hosts.counted(1)[1], sent);
    let frames = frames(&out);
    assert_eq!((frames.len() as u64, wrong_checksums(&frames)), (sent, 0));
}

/// Streams of TCP and UDP, of which nothing but their size is asked: they are as fast as the machine lets them.
fn streams(driver: &str) {
    let (hosts, folder) = (Hosts::new(false), Folder::new());
    let mut between = hosts.run(driver, &folder.forward(), &[]);
    let _server = hosts.start(1, &["iperf3", "-s"]);
    hosts.wait_for_listener(1, 5201);
    for flags in ["", "-R", "-u -b 20M -l 1000", "-u -b 20M -l 1000 -R"] {
        let client = format!("timeout 60 iperf3 -J -t 1 {flags} -c {}", HOSTS[1]);
        let client = hosts.on(0, &client);
        assert!(client.status.success(), "{flags}: {}", text(&client.stdout));
        let result: serde_json::Value = serde_json::from_slice(&client.stdout).unwrap();
        let sum = match &result["end"]["sum_received"]["bytes"] {
            serde_json::Value::Null => &result["end"]["sum"]["bytes"],
            bytes => bytes,
        };
        assert!(sum.as_u64().unwrap() > 100_000, "{flags}: {result}");
    }
    let report = between.stop();
    assert_identity(&report);
    let sums = ["received", "sent"].map(|what| port(&report, 0, what) + port(&report, 1, what));
    assert_eq!(
        sums,
        ["offered", "delivered"].map(|name| count(&report, name)),
        "{report}"
    );
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
