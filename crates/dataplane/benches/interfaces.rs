//! Throughput of a chain between two kernel interfaces: packet sockets of our own, and DPDK's `net_af_packet` on the same
//! veth pairs.
//!
//! `cargo bench -p tailwater-dataplane --features dpdk --bench interfaces`, as root, prints one JSON line per figure:
//! `ports/interface/forward/SIZE/100` and `ports/net_af_packet/forward/SIZE/100`, in Mpps, and `ports/interface/forward/SIZE/100/ratio`,
//! their quotient in consecutive runs. Another core sends as fast as it can, through a packet socket; the rows are
//! run in turn, after a warm-up. `PORT/.../lost` is the share of sent packets that did not leave: where it is small, the
//! sender was the limit, and not the port. All happens in a network namespace of the program's own.

use serde::Serialize;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use tailwater_api::{PortName, PortSetup, PortsSpec};
use tailwater_dataplane::clock::Clock;
use tailwater_dataplane::cores::{available, default_core, pin_to};
use tailwater_dataplane::dpdk::{DpdkConfig, DpdkPorts, HugePages};
use tailwater_dataplane::interfaces::{InterfaceConfig, InterfacePorts};
use tailwater_dataplane::port::Port;
use tailwater_dataplane::{Packets, RunConfig, RunControl, RunPlan, run};
use tailwater_functions::spec::ChainSpec;
use tailwater_net::builder::FrameBuilder;
use tailwater_net::{FlowKey, Nanos, protocol};

/// Number of runs per row, after a warm-up.
const RUNS: usize = 7;
/// Time for which packets are sent.
const DURATION: Duration = Duration::from_millis(500);
/// Time for which they are received.
const RECEPTION: Nanos = Nanos::from_millis(900);
const FLOWS: u16 = 100;

#[derive(Serialize)]
struct Figure {
    name: String,
    value: f64,
    unit: &'static str,
    min: f64,
    max: f64,
    runs: usize,
}

fn print(name: String, unit: &'static str, mut values: Vec<f64>) {
    values.sort_by(f64::total_cmp);
    let rounded = |value: f64| (value * 1000.0).round() / 1000.0;
    let figure = Figure {
        name,
        value: rounded(values[values.len() / 2]),
        unit,
        min: rounded(values[0]),
        max: rounded(values[values.len() - 1]),
        runs: values.len(),
    };
    println!("{}", serde_json::to_string(&figure).expect("numbers"));
}

/// Runs `ip`. Returns `true` on success.
fn ip(line: &str) -> bool {
    let output = Command::new("ip").args(line.split(' ')).output();
    output.is_ok_and(|output| output.status.success())
}

/// Two veth pairs, `in0` and `in1`, `out0` and `out1`, in a network namespace of this process.
fn set_up() -> bool {
    // SAFETY: no other thread runs yet; the texts end with a zero byte, and null is permitted for the others.
    let alone = unsafe {
        let (none, no_data) = (std::ptr::null(), std::ptr::null());
        libc::unshare(libc::CLONE_NEWNET | libc::CLONE_NEWNS) == 0
            && libc::mount(none, c"/".as_ptr(), none, libc::MS_REC | libc::MS_SLAVE, no_data) == 0
            // DPDK finds interfaces there, of this network namespace.
            && libc::mount(c"sysfs".as_ptr(), c"/sys".as_ptr(), c"sysfs".as_ptr(), 0, no_data) == 0
    };
    if !alone {
        return false;
    }
    let quiet = ["all", "default"].map(|of| format!("/proc/sys/net/ipv6/conf/{of}/disable_ipv6"));
    quiet.iter().for_each(|file| drop(std::fs::write(file, "1")));
    ["in", "out"].iter().all(|pair| {
        ip(&format!("link add {pair}0 type veth peer name {pair}1"))
            && (0..2).all(|end| ip(&format!("link set {pair}{end} up")))
    })
}

/// Sends frames by `in0` for some time. Returns their number.
fn send(frames: &[Vec<u8>], core: usize) -> u64 {
    pin_to(core).expect("a core of this machine");
    // SAFETY: the name ends with a zero byte; the structures hold only integers and pointers, for which all zeros is
    // valid; all values outlive the calls that read them.
    unsafe {
        let socket = libc::socket(libc::AF_PACKET, libc::SOCK_RAW | libc::SOCK_CLOEXEC, 0);
        assert!(socket >= 0, "a packet socket");
        let socket = OwnedFd::from_raw_fd(socket);
        let one: libc::c_int = 1;
        let size = size_of_val(&one) as libc::socklen_t;
        let fd = socket.as_raw_fd();
        libc::setsockopt(
            fd,
            libc::SOL_PACKET,
            libc::PACKET_QDISC_BYPASS,
            (&raw const one).cast(),
            size,
        );
        let mut to: libc::sockaddr_ll = std::mem::zeroed();
        to.sll_family = libc::AF_PACKET as u16;
        to.sll_ifindex = libc::if_nametoindex(c"in0".as_ptr()) as libc::c_int;
        let mut pieces: Vec<libc::iovec> = frames
            .iter()
            .map(|frame| libc::iovec {
                iov_base: frame.as_ptr().cast_mut().cast(),
                iov_len: frame.len(),
            })
            .collect();
        let mut messages: Vec<libc::mmsghdr> = pieces
            .iter_mut()
            .map(|piece| {
                let mut message: libc::mmsghdr = std::mem::zeroed();
                message.msg_hdr.msg_name = (&raw mut to).cast();
                message.msg_hdr.msg_namelen = size_of_val(&to) as libc::socklen_t;
                message.msg_hdr.msg_iov = piece;
                message.msg_hdr.msg_iovlen = 1;
                message
            })
            .collect();
        let (began, mut count) = (Instant::now(), 0);
        while began.elapsed() < DURATION {
            let sent = libc::sendmmsg(fd, messages.as_mut_ptr(), messages.len() as libc::c_uint, 0);
            count += sent.max(0) as u64;
        }
        count
    }
}

/// Runs the chain on a port. Returns its throughput in Mpps while packets are sent, and the share of them that is lost.
fn measured(mut port: Box<dyn Port>, clock: Clock, frames: &Arc<Vec<Vec<u8>>>, sender: usize) -> [f64; 2] {
    let text = "apiVersion: tailwater.dev/v1alpha1\nkind: Chain\nmetadata: {name: forward}\nspec:\n  \
                slo: {latency: 100ms}\n  functions: [{forward: {}}]\n";
    let spec = ChainSpec::parse(text, "forward", Path::new(".")).unwrap_or_else(|error| panic!("{error}"));
    let config = RunConfig::new(vec![default_core()]);
    let plan = RunPlan::new(spec, config).unwrap_or_else(|error| panic!("{error}"));
    let frames = Arc::clone(frames);
    let sends = std::thread::spawn(move || {
        // The port is open, and the worker polls.
        std::thread::sleep(Duration::from_millis(200));
        send(&frames, sender)
    });
    let stop = AtomicBool::new(false);
    let packets = Packets::Port {
        port: &mut *port,
        clock,
    };
    let report = run(&plan, packets, RunControl::new(&stop)).unwrap_or_else(|error| panic!("{error}"));
    stop.store(true, Ordering::Relaxed);
    let sent = sends.join().expect("the sender") as f64;
    let delivered = report.packets.delivered as f64;
    [delivered / DURATION.as_secs_f64() / 1e6, 1.0 - delivered / sent]
}

fn ports(entry: &str, exit: &str) -> PortsSpec {
    let name = |text: &str| text.parse::<PortName>().unwrap_or_else(|error| panic!("{error}"));
    PortsSpec {
        entry: name(entry),
        exit: Some(name(exit)),
        set_up: PortSetup::default(),
    }
}

fn interface() -> (Box<dyn Port>, Clock) {
    let config = InterfaceConfig {
        ports: ports("interface=in1", "interface=out1"),
        ring: None,
        duration: Some(RECEPTION),
        naps: None,
    };
    let clock = Clock::start();
    let port = InterfacePorts::find(config, clock.clone()).unwrap_or_else(|error| panic!("{error}"));
    (Box::new(port), clock)
}

/// The same by DPDK. Its devices have names of their own in each run.
fn af_packet(run: usize) -> (Box<dyn Port>, Clock) {
    let device = |interface: &str, number: usize| format!("net_af_packet{run}{number},iface={interface}");
    let config = DpdkConfig {
        ports: ports(&device("in1", 0), &device("out1", 1)),
        ring: None,
        duration: Some(RECEPTION),
        huge_pages: HugePages::No,
        cores: vec![default_core()],
        naps: None,
        checksums: true,
    };
    let clock = Clock::start();
    let port = DpdkPorts::find(config, clock.clone()).unwrap_or_else(|error| panic!("{error}"));
    (Box::new(port), clock)
}

fn main() {
    let sender = available().into_iter().find(|core| *core != default_core());
    let Some(sender) = sender else {
        eprintln!("ports/interface: left out: this needs two cores");
        return;
    };
    if !set_up() {
        eprintln!("ports/interface: left out: no veth pairs can be set up (root is needed)");
        return;
    }
    let mut number = 0;
    for (size, bytes) in [("64B", 64usize), ("1024B", 1024)] {
        let frames = (0..FLOWS).map(|flow| {
            let key = FlowKey::v4(
                [10, 0, 0, 1].into(),
                [192, 0, 2, 80].into(),
                protocol::UDP,
                4000 + flow,
                53,
            );
            // Without its headers and the frame check sequence.
            let payload = vec![0; bytes - 46];
            FrameBuilder::new(&key)
                .payload(&payload)
                .to_vec()
                .expect("a short frame")
        });
        let frames = Arc::new(frames.collect::<Vec<_>>());
        let mut rows: [Vec<[f64; 2]>; 2] = Default::default();
        for run in 0..=RUNS {
            number += 1;
            let (port, clock) = interface();
            let own = measured(port, clock, &frames, sender);
            let (port, clock) = af_packet(number);
            let dpdk = measured(port, clock, &frames, sender);
            eprintln!("{size} run {run}: {own:.3?} by packet sockets, {dpdk:.3?} by net_af_packet (Mpps, lost)");
            if run > 0 {
                rows[0].push(own);
                rows[1].push(dpdk);
            }
        }
        let ratios = rows[0].iter().zip(&rows[1]).map(|([own, _], [dpdk, _])| own / dpdk);
        let ratios = ratios.collect();
        for (port, row) in ["interface", "net_af_packet"].iter().zip(&rows) {
            let name = format!("ports/{port}/forward/{size}/{FLOWS}");
            print(name.clone(), "Mpps", row.iter().map(|[rate, _]| *rate).collect());
            print(
                format!("{name}/lost"),
                "%",
                row.iter().map(|[_, lost]| 100.0 * lost).collect(),
            );
        }
        print(format!("ports/interface/forward/{size}/{FLOWS}/ratio"), "", ratios);
    }
}
