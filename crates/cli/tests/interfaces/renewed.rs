//! Interfaces that are deleted and made again under traffic.

use crate::common::namespaces::{HOSTS, Hosts, Program, skipped, wait_for};
use crate::common::*;
use crate::echo::try_frames;
use crate::served::{BOTH, await_chains, chain, server, start};
use crate::{between, has_two_cores, port, quiet_hosts};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;
use tailwater_net::builder::FrameBuilder;
use tailwater_net::{FlowKey, protocol};

/// Datagrams of many flows from host 0, whether it has an interface or not.
struct Storm {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<()>,
}

impl Storm {
    fn start(hosts: &Hosts) -> Storm {
        let stop = Arc::<AtomicBool>::default();
        let stopped = Arc::clone(&stop);
        let [from, to] = HOSTS.map(|host| host.parse().unwrap());
        let frames: Vec<Vec<u8>> = (0..40)
            .map(|flow| {
                let key = FlowKey::v4(from, to, protocol::UDP, 5000 + flow, 9);
                FrameBuilder::new(&key).payload(&[0; 32]).to_vec().unwrap()
            })
            .collect();
        let thread = hosts.within(0, move || {
            while !stopped.load(Ordering::Relaxed) {
                try_frames("eth0", &frames);
                std::thread::sleep(Duration::from_millis(2));
            }
        });
        Storm { stop, thread }
    }

    fn stop(self) {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().unwrap();
    }
}

/// Waits until a program has said this so many times.
fn await_said(program: &mut Program, expected: &str, times: usize) {
    wait_for(|| {
        program.assert_runs();
        program.said().matches(expected).count() >= times
    });
}

/// Waits until host 1 receives.
fn await_packets(hosts: &Hosts, program: &mut Program) {
    let before = hosts.counted(1)[1];
    wait_for(|| {
        program.assert_runs();
        hosts.counted(1)[1] > before + 400
    });
}

fn delete(hosts: &Hosts, program: &mut Program, host: usize, times: usize) {
    hosts.must_on(2, &format!("ip link del port{host}"));
    let expected = format!("port interface=port{host} disappeared during the run");
    await_said(program, &expected, times);
}

fn make_again(hosts: &Hosts, program: &mut Program, host: usize, times: usize) {
    hosts.link(host);
    let expected = format!("port interface=port{host} was made again and is used, with MAC address ");
    await_said(program, &expected, times);
}

/// Both cores get a new ring of each interface, and the counters go on. Once both interfaces are gone, the run ends.
#[test]
fn a_run_uses_interfaces_again_that_are_made_again() {
    if skipped(&[]) || !has_two_cores() {
        return;
    }
    let (hosts, folder) = (quiet_hosts(), Folder::new());
    let chain = folder.spec("chain.yaml", "[{accounting: }]", "");
    let mut program = between(&hosts, &chain, &["--cores", "0,1"]);
    let storm = Storm::start(&hosts);
    await_packets(&hosts, &mut program);
    for host in [0, 1] {
        delete(&hosts, &mut program, host, 1);
        make_again(&hosts, &mut program, host, 1);
        await_packets(&hosts, &mut program);
    }
    storm.stop();
    delete(&hosts, &mut program, 0, 2);
    delete(&hosts, &mut program, 1, 2);
    let (report, _) = program.finish();
    assert_identity(&report);
    let sum = |what| port(&report, 0, what) + port(&report, 1, what);
    assert_eq!(count(&report, "offered"), sum("received") + sum("missed"), "{report}");
    assert_eq!(count(&report, "delivered"), sum("sent"), "{report}");
    assert!(port(&report, 0, "received") > 1_200, "{report}");
    for number in 0..2 {
        let own = &report["ports"][number];
        assert_eq!(own["gone"], true, "{report}");
        assert!(own["link"]["changes"].as_u64() >= Some(3), "{report}");
    }
    let by_queue = report["ports"][0]["by_queue"].as_array().unwrap();
    assert!(by_queue.iter().all(|queue| queue["received"].as_u64() > Some(0)));
}

/// A server waits for its interfaces also when all are gone.
#[test]
fn a_server_uses_interfaces_again_that_are_made_again() {
    if skipped(&[]) || !has_two_cores() {
        return;
    }
    let (hosts, folder) = (quiet_hosts(), Folder::new());
    let spec = server(&folder, BOTH);
    chain(&folder, "edge", "match: {protocols: [udp]}", "[{forward: }]");
    let mut program = start(&hosts, &spec, &[]);
    await_chains(&folder, &mut program, 1);
    let storm = Storm::start(&hosts);
    await_packets(&hosts, &mut program);
    delete(&hosts, &mut program, 0, 1);
    delete(&hosts, &mut program, 1, 1);
    make_again(&hosts, &mut program, 0, 1);
    make_again(&hosts, &mut program, 1, 1);
    await_packets(&hosts, &mut program);
    storm.stop();
    let report = program.stop();
    let own = &report["ports"][0];
    let packets = &report["chains"][0]["report"]["packets"];
    let [offered, delivered, dropped, lost] =
        ["offered", "delivered", "dropped_by_nf", "lost"].map(|what| packets[what].as_u64().unwrap());
    assert_eq!(offered, delivered + dropped + lost, "{report}");
    let [received, unmatched, missed] = ["received", "unmatched", "lost"].map(|what| own[what].as_u64().unwrap());
    assert_eq!(received, offered + unmatched + missed, "{report}");
    assert!(delivered > 800, "{report}");
}
