//! Forwarding between two kernel interfaces: packet sockets of our own, and DPDK's `net_af_packet` on the same veth
//! pairs.
//!
//! `cargo bench -p tailwater-dataplane --features dpdk --bench interfaces`, as root, prints one JSON line per figure:
//! `ports/interface/io/SIZE` and `ports/net_af_packet/io/SIZE`, in Mpps of one core, and
//! `ports/interface/io/SIZE/ratio`, their quotient in consecutive runs. A ring is filled, and then its packets are
//! received and sent on, in batches of 32; only that is measured. It includes what the kernel does within the call that
//! sends. `PORT/.../lost` is the share of packets that were not sent on. Rows are run in turn, after a warm-up. All
//! happens in a network namespace of the program's own.

use serde::Serialize;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::process::Command;
use std::time::{Duration, Instant};
use tailwater_api::{PortName, PortSetup, PortsSpec};
use tailwater_chain::batch::{Batch, DEFAULT_BATCH};
use tailwater_dataplane::clock::Clock;
use tailwater_dataplane::cores::{default_core, pin_to};
use tailwater_dataplane::dpdk::{DpdkConfig, DpdkPorts, HugePages};
use tailwater_dataplane::interfaces::{InterfaceConfig, InterfacePorts};
use tailwater_dataplane::port::{Port, PortRequirements};
use tailwater_net::builder::FrameBuilder;
use tailwater_net::toeplitz::RssHasher;
use tailwater_net::{FlowKey, Nanos, protocol};

/// Number of runs per row, after a warm-up.
const RUNS: usize = 7;
/// Times that a ring is filled in a run.
const ROUNDS: usize = 40;
/// Slots of a ring, and packets that fill most of it.
const RING: u16 = 8192;
const PACKETS: u16 = 8000;

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

/// Sends frames by `in0`.
fn send(frames: &[Vec<u8>]) {
    // SAFETY: the name ends with a zero byte; the structures hold only integers and pointers, for which all zeros is
    // valid; all values outlive the calls that read them.
    unsafe {
        let socket = libc::socket(libc::AF_PACKET, libc::SOCK_RAW | libc::SOCK_CLOEXEC, 0);
        assert!(socket >= 0, "a packet socket");
        let socket = OwnedFd::from_raw_fd(socket);
        let mut to: libc::sockaddr_ll = std::mem::zeroed();
        to.sll_family = libc::AF_PACKET as u16;
        to.sll_ifindex = libc::if_nametoindex(c"in0".as_ptr()) as libc::c_int;
        let (to, size) = ((&raw const to).cast(), size_of_val(&to) as libc::socklen_t);
        for frame in frames {
            let sent = libc::sendto(socket.as_raw_fd(), frame.as_ptr().cast(), frame.len(), 0, to, size);
            assert_eq!(sent, frame.len() as isize);
        }
    }
}

/// Fills the port's ring several times, and forwards what is in it. Returns the throughput in Mpps while it does, and
/// the share of packets that is lost.
fn measured(port: &mut dyn Port, clock: &Clock, frames: &[Vec<u8>]) -> [f64; 2] {
    let need = PortRequirements {
        workers: 1,
        auxiliary: 0,
        buffers: 1024,
        rss_key: *RssHasher::default().key(),
    };
    let mut pool = port.open(&need).unwrap_or_else(|error| panic!("{error}")).remove(0);
    let mut queue = port.queues(Nanos::ZERO).remove(0);
    queue.leave_out_hashes();
    let mut batch = Batch::new(&pool, DEFAULT_BATCH);
    let (mut time, mut forwarded) = (Duration::ZERO, 0);
    for _ in 0..ROUNDS {
        send(frames);
        let (began, mut ended, mut count, mut idle) = (Instant::now(), Instant::now(), 0, 0);
        while count < frames.len() && idle < 10_000 {
            queue.receive(clock.now(), &mut pool, &mut batch);
            idle += 1;
            if batch.is_empty() {
                continue;
            }
            (count, idle) = (count + batch.len(), 0);
            forwarded += batch.len() - queue.transmit(&mut batch);
            batch.release(&mut pool);
            ended = Instant::now();
        }
        time += ended - began;
    }
    let sent = (ROUNDS * frames.len()) as f64;
    [
        forwarded as f64 / time.as_secs_f64() / 1e6,
        1.0 - forwarded as f64 / sent,
    ]
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
        ring: Some(RING),
        duration: None,
        naps: None,
    };
    let clock = Clock::start();
    let port = InterfacePorts::find(config, clock.clone()).unwrap_or_else(|error| panic!("{error}"));
    (Box::new(port), clock)
}

/// The same by DPDK. Its devices have names of their own in each run.
fn af_packet(run: usize) -> (Box<dyn Port>, Clock) {
    let more = format!("framecnt={RING},qdisc_bypass=1");
    let device = |interface: &str, number: usize| format!("net_af_packet{run}{number},iface={interface},{more}");
    let config = DpdkConfig {
        ports: ports(&device("in1", 0), &device("out1", 1)),
        ring: None,
        duration: None,
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
    if !set_up() {
        eprintln!("ports/interface: left out: no veth pairs can be set up (root is needed)");
        return;
    }
    pin_to(default_core()).expect("a core of this machine");
    let mut number = 0;
    for (size, bytes) in [("64B", 64usize), ("1024B", 1024)] {
        let frames = (0..PACKETS).map(|number| {
            let port = 4000 + number % 100;
            let key = FlowKey::v4([10, 0, 0, 1].into(), [192, 0, 2, 80].into(), protocol::UDP, port, 53);
            // Without its headers and the frame check sequence.
            let payload = vec![0; bytes - 46];
            FrameBuilder::new(&key)
                .payload(&payload)
                .to_vec()
                .expect("a short frame")
        });
        let frames: Vec<Vec<u8>> = frames.collect();
        let mut rows: [Vec<[f64; 2]>; 2] = Default::default();
        for run in 0..=RUNS {
            number += 1;
            let (mut port, clock) = interface();
            let own = measured(&mut *port, &clock, &frames);
            drop(port);
            let (mut port, clock) = af_packet(number);
            let dpdk = measured(&mut *port, &clock, &frames);
            eprintln!("{size} run {run}: {own:.3?} by packet sockets, {dpdk:.3?} by net_af_packet (Mpps, lost)");
            if run > 0 {
                rows[0].push(own);
                rows[1].push(dpdk);
            }
        }
        let ratios = rows[0].iter().zip(&rows[1]).map(|([own, _], [dpdk, _])| own / dpdk);
        let ratios = ratios.collect();
        for (port, row) in ["interface", "net_af_packet"].iter().zip(&rows) {
            let name = format!("ports/{port}/io/{size}");
            print(name.clone(), "Mpps", row.iter().map(|[rate, _]| *rate).collect());
            print(
                format!("{name}/lost"),
                "%",
                row.iter().map(|[_, lost]| 100.0 * lost).collect(),
            );
        }
        print(format!("ports/interface/io/{size}/ratio"), "", ratios);
    }
}
