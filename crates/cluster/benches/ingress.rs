//! Packets per second of the ingress's software data plane on one core, and of Open vSwitch's userspace datapath with
//! the same rules, in turn.
//!
//! `cargo bench -p tailwater-cluster --bench ingress`, as root, prints one JSON line: medians in Mpps, and the median
//! of the ratios of consecutive runs. One core sends 60-byte packets of 4,096 flows to 256 prefixes as fast as it can;
//! the other one forwards them from veth pair to veth pair with a new destination address. Packets that arrive at the
//! far end are counted by the kernel; `sent` are those that the sender could send meanwhile. Open vSwitch's kernel
//! datapath does not run on a core of its own: it forwards within the sender's calls, and is not compared.

#[path = "../tests/ingress/ovs.rs"]
#[allow(dead_code, reason = "shared with tests")]
mod ovs;

use ovs::{Ovs, skipped};
use std::fs::File;
use std::net::Ipv4Addr;
use std::os::fd::AsFd;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};
use tailwater_api::{PortSetup, PortsSpec};
use tailwater_chain::batch::Batch;
use tailwater_cluster::Notices;
use tailwater_cluster::ingress::openflow::{FlowCommand, FlowMod};
use tailwater_cluster::ingress::{
    Action, FlowMatch, FlowRule, MaskedAddress, SoftwareConfig, SoftwareSwitch, Switch, SwitchCommand, SwitchEvent,
};
use tailwater_dataplane::clock::Clock;
use tailwater_dataplane::cores::{available, pin_to, restrict_to};
use tailwater_dataplane::interfaces::{InterfaceConfig, InterfacePorts};
use tailwater_dataplane::port::{Port, PortRequirements};
use tailwater_net::Nanos;
use tailwater_net::toeplitz::SYMMETRIC_KEY;

const RUNS: usize = 5;
/// Time of a run that is measured, after a time in which caches fill.
const RUN: Duration = Duration::from_secs(1);
const BEFORE: Duration = Duration::from_millis(500);
const PORTS: [&str; 2] = ["u0", "s1"];
const MAC: [u8; 6] = [2, 0, 0, 0, 0, 1];
const PREFIXES: u8 = 255;

fn ip(line: &str) -> String {
    let output = Command::new("ip").args(line.split(' ')).output();
    let output = output.unwrap_or_else(|error| panic!("ip {line}: {error}"));
    assert!(
        output.status.success(),
        "ip {line}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Network namespace, which this process enters.
struct Namespace(String);

impl Namespace {
    fn enter() -> Namespace {
        let name = format!("tw-ingress-bench-{}", std::process::id());
        ip(&format!("netns add {name}"));
        let own = Namespace(name);
        let file = File::open(format!("/run/netns/{}", own.0)).expect("the namespace was made");
        rustix::thread::move_into_link_name_space(file.as_fd(), None).expect("root may enter it");
        let quiet = ["all", "default"].map(|of| format!("/proc/sys/net/ipv6/conf/{of}/disable_ipv6"));
        quiet.iter().for_each(|file| drop(std::fs::write(file, "1")));
        for (port, far) in [("u0", "u1"), ("s1", "r1")] {
            ip(&format!("link add {port} type veth peer name {far}"));
            ip(&format!("link set {port} up"));
            ip(&format!("link set {far} up"));
        }
        own
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        let _ = Command::new("ip").args(["netns", "del", &self.0]).output();
    }
}

/// Frame of a flow.
fn frame(number: usize) -> Vec<u8> {
    let mut frame = vec![
        2, 0, 0, 0, 0, 0xfe, 2, 0, 0, 0, 0, 0xff, 8, 0, 0x45, 0, 0, 46, 0, 0, 0, 0, 64, 17, 0, 0,
    ];
    frame.extend([192, 0, 2, (number / 256 % 16) as u8, 10, 1, (number % 256) as u8, 1]);
    frame.extend([0, 7, 0, 9, 0, 26, 0, 0]);
    frame.resize(60, 0);
    frame
}

/// Sends on `u1` from a core until the flag is set.
fn send(core: usize, stop: Arc<AtomicBool>) -> JoinHandle<()> {
    thread::spawn(move || {
        pin_to(core).expect("a core of this machine");
        let clock = Clock::start();
        let config = InterfaceConfig {
            ports: PortsSpec {
                entry: "interface=u1".parse().expect("a port"),
                exit: None,
                set_up: PortSetup::default(),
            },
            ring: Some(64),
            duration: None,
            naps: None,
        };
        let mut port = InterfacePorts::find(config, clock).unwrap_or_else(|error| panic!("{error}"));
        let need = PortRequirements {
            workers: 1,
            auxiliary: 0,
            buffers: 4096,
            rss_key: SYMMETRIC_KEY,
        };
        let mut pool = port.open(&need).unwrap_or_else(|error| panic!("{error}")).remove(0);
        let mut queue = port.queues(Nanos::ZERO).remove(0);
        let mut batch = Batch::new(&pool, 64);
        let frames: Vec<Vec<u8>> = (0..4096).map(frame).collect();
        for part in frames.chunks(64).cycle() {
            if stop.load(Ordering::Relaxed) {
                return;
            }
            for frame in part {
                batch.push(&mut pool, frame, Nanos::ZERO, 0);
            }
            queue.transmit(&mut batch);
            batch.release(&mut pool);
        }
    })
}

/// Packets that `u1` has sent, and that have arrived at `r1`.
fn counters() -> [u64; 2] {
    [("u1", "tx"), ("r1", "rx")].map(|(port, way)| {
        let shown = ip(&format!("-s -j link show dev {port}"));
        let shown: serde_json::Value = serde_json::from_str(&shown).expect("JSON");
        shown[0]["stats64"][way]["packets"].as_u64().expect("a counter")
    })
}

/// Returns the packets per second, in millions, that one core sends and that arrive.
fn measured(sender: usize) -> [f64; 2] {
    let stop = Arc::new(AtomicBool::new(false));
    let sending = send(sender, Arc::clone(&stop));
    thread::sleep(BEFORE);
    let (before, began) = (counters(), Instant::now());
    thread::sleep(RUN);
    let (after, seconds) = (counters(), began.elapsed().as_secs_f64());
    stop.store(true, Ordering::Relaxed);
    sending.join().expect("the sender does not fail");
    [0, 1].map(|at| (after[at] - before[at]) as f64 / seconds / 1e6)
}

fn software([sender, core]: [usize; 2]) -> [f64; 2] {
    let config = SoftwareConfig {
        ports: PORTS
            .map(|port| format!("interface={port}").parse().expect("a port"))
            .into(),
        cores: vec![core],
        nap: None,
        state: None,
        max_rules: 1000,
    };
    let notices = Notices::new(|line| eprintln!("{line}"));
    let mut switch = SoftwareSwitch::start(config, notices).unwrap_or_else(|error| panic!("{error}"));
    let changes = (0..=PREFIXES).map(|prefix| FlowMod {
        command: FlowCommand::Add,
        rule: FlowRule {
            cookie: 0,
            priority: 1000,
            matching: FlowMatch {
                eth_type: Some(0x0800),
                destination: Some(MaskedAddress::V4 {
                    value: Ipv4Addr::new(10, 1, prefix, 0).to_bits(),
                    mask: 0xffff_ff00,
                }),
                ..FlowMatch::default()
            },
            action: Action::Server { mac: MAC, port: 2 },
        },
    });
    let bundles = vec![changes.collect()];
    switch
        .command(SwitchCommand::Write { id: 1, bundles })
        .expect("no command waits");
    let runtime = tokio::runtime::Builder::new_current_thread()
        .build()
        .expect("a runtime");
    runtime.block_on(async {
        while let Some(event) = switch.event().await {
            if matches!(event, SwitchEvent::Written { .. }) {
                return;
            }
        }
    });
    measured(sender)
}

fn open_vswitch([sender, core]: [usize; 2]) -> [f64; 2] {
    // Its threads stay on the core.
    let before = available();
    restrict_to(&[core]).expect("a core of this machine");
    let ovs = Ovs::new("netdev", &PORTS, None);
    restrict_to(&before).expect("the cores of this machine");
    let rows: String = (0..=PREFIXES)
        .map(|prefix| format!("ip,nw_dst=10.1.{prefix}.0/24,actions=set_field:02:00:00:00:00:01->eth_dst,output:2\n"))
        .collect();
    let file = std::env::temp_dir().join(format!("tailwater-rows-{}", std::process::id()));
    std::fs::write(&file, rows).expect("a temporary file");
    ovs.ofctl("add-flows", &file.display().to_string());
    let _ = std::fs::remove_file(&file);
    measured(sender)
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    (values[values.len() / 2] * 1000.0).round() / 1000.0
}

fn main() {
    let cores = available();
    let (&[first, .., last], false) = (&*cores, skipped(&["ip"])) else {
        eprintln!("ingress: left out: two cores, Open vSwitch and ip are needed");
        return;
    };
    let _namespace = Namespace::enter();
    let (mut own, mut other) = (Vec::new(), Vec::new());
    for run in 0..=RUNS {
        let rates = [software([first, last]), open_vswitch([first, last])];
        eprintln!(
            "run {run}: {:.3?} by software, {:.3?} by Open vSwitch (Mpps sent, arrived)",
            rates[0], rates[1]
        );
        if run > 0 {
            own.push(rates[0]);
            other.push(rates[1]);
        }
    }
    let ratios = own
        .iter()
        .zip(&other)
        .map(|([_, own], [_, other])| own / other)
        .collect();
    let of = |rates: &[[f64; 2]], at: usize| median(rates.iter().map(|rate| rate[at]).collect());
    let figure = serde_json::json!({
        "name": "ingress/forward/60B", "unit": "Mpps", "runs": RUNS, "ratio": median(ratios),
        "software": of(&own, 1), "software_sent": of(&own, 0),
        "open_vswitch_netdev": of(&other, 1), "open_vswitch_netdev_sent": of(&other, 0),
    });
    println!("{figure}");
}
