//! Queues of kernel interfaces, over veth pairs in a network namespace of the test's own. Requires root.

use std::collections::HashMap;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::process::Command;
use tailwater_api::{PortSetup, PortsSpec};
use tailwater_chain::batch::{Batch, MAX_BATCH};
use tailwater_chain::buffer::BufferPool;
use tailwater_dataplane::clock::Clock;
use tailwater_dataplane::interfaces::{InterfaceConfig, InterfacePorts};
use tailwater_dataplane::port::{Port, PortQueue, PortRequirements};
use tailwater_net::builder::FrameBuilder;
use tailwater_net::toeplitz::RssHasher;
use tailwater_net::{FlowKey, Nanos, protocol};

/// Runs a task in a thread with a network namespace of its own, in which `in0` and `in1` are a pair, as are `out0` and
/// `out1`. Prints the reason if that is not possible here.
fn within_namespace(task: impl FnOnce() + Send + 'static) {
    let thread = std::thread::spawn(move || {
        // SAFETY: the call passes no memory, and concerns this thread only.
        if unsafe { libc::unshare(libc::CLONE_NEWNET) } != 0 {
            return println!("skipped: network namespaces need root");
        }
        // Nothing but the test's packets: no IPv6.
        let ip = |line: &str| {
            let output = Command::new("ip").args(line.split(' ')).output();
            output.is_ok_and(|output| output.status.success())
        };
        let quiet = |of: &str| {
            let line = format!("net.ipv6.conf.{of}.disable_ipv6=1");
            Command::new("sysctl").args(["-q", "-w", &line]).output().is_ok()
        };
        let made = ["in", "out"].iter().all(|pair| {
            quiet("all")
                && quiet("default")
                && ip(&format!("link add {pair}0 type veth peer name {pair}1"))
                && (0..2).all(|end| ip(&format!("link set {pair}{end} up")))
        });
        match made {
            true => task(),
            false => println!("skipped: there is no ip, or no veth pair"),
        }
    });
    thread.join().unwrap();
}

/// An odd number, so that a flow's packets would not alternate as sockets do.
const FLOWS: u32 = 39;

/// Frame of a flow, with its number.
fn frame(number: u32) -> Vec<u8> {
    let flow = (number % FLOWS) as u16;
    let key = FlowKey::v4(
        [10, 0, 0, 1].into(),
        [192, 0, 2, 80].into(),
        protocol::UDP,
        4000 + flow,
        53,
    );
    FrameBuilder::new(&key).payload(&number.to_be_bytes()).to_vec().unwrap()
}

fn send(numbers: std::ops::Range<u32>) {
    // SAFETY: the name ends with a zero byte; the other calls pass values that outlive them, with their sizes.
    unsafe {
        let socket = libc::socket(libc::AF_PACKET, libc::SOCK_RAW | libc::SOCK_CLOEXEC, 0);
        assert!(socket >= 0);
        let socket = OwnedFd::from_raw_fd(socket);
        let mut to: libc::sockaddr_ll = std::mem::zeroed();
        to.sll_family = libc::AF_PACKET as u16;
        to.sll_ifindex = libc::if_nametoindex(c"in0".as_ptr()) as libc::c_int;
        for number in numbers {
            let (frame, size) = (frame(number), size_of_val(&to) as libc::socklen_t);
            let (bytes, address) = (frame.as_ptr().cast(), (&raw const to).cast());
            let sent = libc::sendto(socket.as_raw_fd(), bytes, frame.len(), 0, address, size);
            assert_eq!(sent, frame.len() as isize);
        }
    }
}

fn config(ring: Option<u16>) -> InterfaceConfig {
    InterfaceConfig {
        ports: PortsSpec {
            entry: "interface=in1".parse().unwrap(),
            exit: Some("interface=out1".parse().unwrap()),
            set_up: PortSetup::default(),
        },
        ring,
        duration: None,
        naps: None,
    }
}

fn need(workers: u16) -> PortRequirements {
    PortRequirements {
        workers,
        auxiliary: 0,
        buffers: 4096,
        rss_key: *RssHasher::default().key(),
    }
}

struct Worker {
    queue: Box<dyn PortQueue>,
    pool: BufferPool,
    batch: Batch,
}

impl Worker {
    fn all(queues: Vec<Box<dyn PortQueue>>, pools: Vec<BufferPool>) -> Vec<Worker> {
        let pairs = queues.into_iter().zip(pools);
        let worker = |(queue, pool)| Worker {
            batch: Batch::new(&pool, MAX_BATCH),
            queue,
            pool,
        };
        pairs.map(worker).collect()
    }

    /// Receives and sends what is there. Returns the numbers of the packets, and those that were offered and lost.
    fn poll(&mut self, clock: &Clock, numbers: &mut Vec<u32>) -> [u64; 2] {
        let Worker { queue, pool, batch } = self;
        let received = queue.receive(clock.now(), pool, batch);
        batch.for_each(|_, frame| numbers.push(u32::from_be_bytes(frame[42..46].try_into().unwrap())));
        assert_eq!(queue.transmit(batch), 0);
        batch.release(pool);
        [received.offered, received.lost_ring_full]
    }
}

fn port(ring: Option<u16>) -> (InterfacePorts, Clock) {
    let clock = Clock::start();
    let port = InterfacePorts::find(config(ring), clock.clone());
    (port.unwrap_or_else(|error| panic!("{error}")), clock)
}

/// Packets that wait while another process takes over are received there, in order, and those that did not fit are
/// counted there, each once. The process before it counts none of them.
#[test]
fn packets_wait_for_the_next_process_in_order() {
    within_namespace(|| {
        let (mut first, clock) = port(Some(64));
        let pools = first.open_shared(&need(1)).unwrap();
        let mut old = Worker::all(first.queues(Nanos::ZERO), pools).remove(0);
        let (mut numbers, mut offered) = (Vec::new(), 0);
        // Not at the first slot.
        for part in 0..3 {
            send(part * 30..(part + 1) * 30);
            offered += old.poll(&clock, &mut numbers)[0];
        }
        assert!(
            offered == 90 && numbers.iter().copied().eq(0..90),
            "{offered} {numbers:?}"
        );
        let passed = first.sockets().unwrap();
        assert_eq!(passed.interfaces.len(), 2);
        // Two sockets, and the locks of both interfaces.
        assert_eq!(passed.descriptors.len(), 4);
        let mut next = InterfacePorts::adopt(config(Some(64)), passed, clock.clone()).unwrap();
        let pools = next.open_shared(&need(1)).unwrap();
        assert_eq!(next.identity(), first.identity());
        let mut new = Worker::all(next.queues(Nanos::ZERO), pools).remove(0);
        // Six do not fit.
        send(90..160);
        let position = old.queue.position().expect("a position");
        // It does not read the kernel's counters before it polls.
        next.monitor(&mut |_| ());
        assert!(new.queue.continue_at(&position));
        new.queue.catch_up(Nanos::MAX);
        assert_eq!(old.queue.discard(&mut |_, _| ()), 0);
        first.monitor(&mut |_| ());
        let mut wrong = position.clone();
        wrong.rings = vec![64];
        assert!(!old.queue.continue_at(&wrong));
        drop((old, first));
        next.monitor(&mut |_| ());
        numbers.clear();
        let [offered, lost] = new.poll(&clock, &mut numbers);
        assert_eq!([offered, lost], [70, 6]);
        assert!(numbers.iter().copied().eq(90..154), "{numbers:?}");
        send(160..170);
        assert_eq!(new.poll(&clock, &mut numbers), [10, 0]);
        assert_eq!(numbers.last(), Some(&169));
        let reports = next.report();
        assert_eq!((reports[0].received, reports[0].missed, reports[1].sent), (74, 6, 74));
        // The interface is this process's until the last owner ends.
        let refused = InterfacePorts::find(config(None), clock.clone()).unwrap_err();
        assert!(refused.to_string().contains("in use by another tailwater"), "{refused}");
        drop((new, next));
        assert!(InterfacePorts::find(config(None), clock).is_ok());
    });
}

/// Each flow comes in order to the worker of its bucket, whichever socket the kernel chose. After a warm-up, nothing is
/// allocated.
#[test]
fn flows_come_in_order_to_their_buckets_worker_without_an_allocation() {
    within_namespace(|| {
        let (mut port, clock) = port(None);
        let pools = port.open(&need(2)).unwrap();
        let mut workers = Worker::all(port.queues(Nanos::ZERO), pools);
        let mut numbers = [0, 1].map(|_| Vec::with_capacity(20_000));
        let (mut sent, mut offered) = (0, 0);
        for round in 0..20 {
            send(sent..sent + 500);
            sent += 500;
            let counted = allocation_counter::measure(|| {
                for _ in 0..12 {
                    for (worker, numbers) in workers.iter_mut().zip(&mut numbers) {
                        offered += worker.poll(&clock, numbers)[0];
                    }
                }
            });
            assert!(round < 3 || counted.count_total == 0, "{counted:?} in round {round}");
        }
        assert_eq!(offered, 10_000);
        assert_eq!(numbers.iter().map(Vec::len).sum::<usize>(), 10_000);
        let mut owners = HashMap::new();
        for (worker, numbers) in numbers.iter().enumerate() {
            let mut last = HashMap::new();
            for number in numbers {
                assert_eq!(*owners.entry(number % FLOWS).or_insert(worker), worker);
                let before = last.insert(number % FLOWS, *number);
                assert!(
                    before.is_none_or(|before| before + FLOWS == *number),
                    "{before:?} {number}"
                );
            }
        }
        let reports = port.report();
        let by_queue: Vec<_> = reports[0].by_queue.iter().map(|queue| queue.received).collect();
        assert!(by_queue.iter().all(|count| *count > Some(0)), "{by_queue:?}");
        assert_eq!((reports[0].received, reports[1].sent), (10_000, 10_000));
    });
}
