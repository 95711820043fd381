//! Kernel interfaces as ports, without DPDK: veth pairs, or any NIC with its kernel driver.
//!
//! Each core has a packet socket of each interface on which packets arrive, with a ring of its own. The kernel
//! distributes packets to the sockets by a symmetric hash of the flow (`PACKET_FANOUT_HASH`), so that a flow stays in
//! one ring, in order. In a run, workers forward packets to their bucket's owner, as at any device without a RETA. The
//! pollers of a [shared port](crate::shared_port) need not: their chains' workers do.
//!
//! **Deleted and made again.** Sockets of an interface that was made again with the same name replace those of the old
//! one, see `packet_socket::renewal`.
//!
//! **Take-over.** Another process gets the sockets' descriptors, and maps the same rings. Nothing changes for the
//! kernel: packets wait in the rings, in order, and the next process reads on at the slot at which the one before it
//! has stopped. With fewer cores, each reads several rings. With more, some read none: another socket would move flows
//! whose packets wait in a ring to another one.

mod buffers;
mod passing;
mod queue;

use crate::clock::Clock;
use crate::device::{DeviceQueue, Steering};
use crate::packet_socket::monitor::InterfaceMonitor;
use crate::packet_socket::renewal::{MOST_PATIENCE, Renewal, RingExchange};
use crate::packet_socket::ring::{RingLayout, RxRing};
use crate::packet_socket::socket::PacketSocket;
use crate::packet_socket::{InterfaceError, MOST_HEADERS, Problem};
use crate::port::{
    OpenError, PassedSockets, Port, PortQueue, PortRequirements, PortSender, QueuePosition, Reta, RetaError,
    TrafficIdentity, round_robin,
};
use crate::report::PortReport;
use buffers::{BufferStock, CACHED, QueueBuffers};
use queue::{CountedSocket, RingReceiver, SocketRing, SocketSender};
use std::io;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;
use tailwater_api::{PortName, PortsSpec};
use tailwater_chain::batch::MAX_BATCH;
use tailwater_chain::buffer::{BufferPool, MAX_FRAME};
use tailwater_net::Nanos;
use tailwater_net::toeplitz::RssHasher;

/// Slots of a receive ring, unless the user says otherwise, and its size in bytes at most. Longer frames have fewer.
/// They hold what arrives while a core is busy, or while another process takes over.
const RING: usize = 8192;
const MOST_BYTES: usize = 16 << 20;
/// Most bytes of a ring of the user's choice.
const MOST_WANTED: usize = 256 << 20;

/// Size of the forwarding ring between two workers. Packets beyond it are lost, as with a NIC's ring.
const BETWEEN: usize = 1024;

/// Time until a new bucket table takes effect.
const RETA_DELAY: Nanos = Nanos::from_micros(50);

/// Time after which a run ends whose interfaces have all disappeared.
const PATIENCE: Duration = Duration::from_secs(2);

/// Configuration of the ports.
#[derive(Clone, Debug)]
pub struct InterfaceConfig {
    /// Interfaces to use.
    pub ports: PortsSpec,
    /// Slots of each receive ring, if set by the user.
    pub ring: Option<u16>,
    /// Time for which packets are received, or `None` to run until stopped.
    pub duration: Option<Nanos>,
    /// Sleep time of idle workers, if they may sleep.
    pub naps: Option<Nanos>,
}

impl InterfaceConfig {
    fn names(&self) -> impl Iterator<Item = &PortName> {
        std::iter::once(&self.ports.entry).chain(&self.ports.exit)
    }

    /// Packets of both interfaces pass the chain, or there is one interface only.
    fn is_both_ways(&self) -> bool {
        self.ports.set_up.both_ways || self.ports.exit.is_none()
    }
}

/// Interface that is not used yet.
#[derive(Debug)]
struct FoundInterface {
    /// One, or all that another process has passed.
    sockets: Vec<PacketSocket>,
    /// Sizes of the rings that another process has passed.
    rings: Option<RingLayout>,
}

/// Entry interface and exit interface, or one that is both.
#[derive(Debug)]
pub struct InterfacePorts {
    config: InterfaceConfig,
    clock: Clock,
    traffic: String,
    /// Empty once the port is open.
    found: Vec<FoundInterface>,
    /// The sockets were those of another process.
    is_adopted: bool,
    /// Set while the sockets are this process's to read.
    is_owner: Arc<AtomicBool>,
    monitors: Vec<(InterfaceMonitor, Option<RingLayout>)>,
    /// One for all workers, or one for each poller of a shared port.
    steering: Vec<Steering>,
    /// Queues by worker.
    queues: Vec<(Vec<RingReceiver>, SocketSender)>,
    /// Senders of auxiliary cores, or of chains.
    senders: Vec<SocketSender>,
    /// Opened for pollers.
    is_shared: bool,
}

/// Interface in use.
struct OpenInterface {
    sockets: Vec<CountedSocket>,
    rings: Vec<RxRing>,
    /// Senders' counters, by sender.
    senders: Vec<CountedSocket>,
}

impl InterfacePorts {
    /// Opens the interfaces. Packets arrive only from [`open`](Port::open) on. Times are on `clock`.
    ///
    /// # Errors
    /// An interface is missing, down, in use or not permitted, or has too small an MTU.
    pub fn find(config: InterfaceConfig, clock: Clock) -> Result<InterfacePorts, InterfaceError> {
        let open = |name: &PortName| {
            let socket = PacketSocket::open(name.interface().unwrap_or_default())?;
            match config.ports.set_up.mtu {
                Some(wanted) if usize::from(wanted) > socket.mtu() => Err(socket.error(Problem::Mtu {
                    wanted,
                    found: socket.mtu(),
                })),
                _ => Ok(FoundInterface {
                    sockets: vec![socket],
                    rings: None,
                }),
            }
        };
        let found = config.names().map(open).collect::<Result<_, _>>()?;
        Ok(InterfacePorts::of(config, clock, found, false))
    }

    /// Takes over the sockets of another process. Nothing is received until the queues are
    /// [polled](PortQueue::catch_up) for the first time.
    ///
    /// # Errors
    /// They are of other interfaces.
    pub fn adopt(
        config: InterfaceConfig,
        mut passed: PassedSockets,
        clock: Clock,
    ) -> Result<InterfacePorts, InterfaceError> {
        let names: Vec<&str> = config.names().filter_map(PortName::interface).collect();
        let theirs: Vec<&str> = passed.interfaces.iter().map(|own| own.name()).collect();
        if names != theirs {
            let problem = Problem::Passed(format!("they are of {}", theirs.join(", ")));
            return Err(InterfaceError::new(&names.join(", "), problem));
        }
        let adopt = passed.interfaces.iter().map(|interface| {
            Ok(FoundInterface {
                sockets: PacketSocket::adopt(interface, &mut passed.descriptors)?,
                rings: interface.ring(),
            })
        });
        let found = adopt.collect::<Result<_, _>>()?;
        Ok(InterfacePorts::of(config, clock, found, true))
    }

    fn of(config: InterfaceConfig, clock: Clock, found: Vec<FoundInterface>, is_adopted: bool) -> InterfacePorts {
        let PortsSpec { entry, exit, set_up } = &config.ports;
        let traffic = match (exit, set_up.both_ways) {
            (None, _) => entry.to_string(),
            (Some(exit), false) => format!("{entry} -> {exit}"),
            (Some(exit), true) => format!("{entry} <-> {exit}"),
        };
        InterfacePorts {
            config,
            clock,
            traffic,
            found,
            is_adopted,
            is_owner: Arc::new(AtomicBool::new(!is_adopted)),
            monitors: Vec::new(),
            steering: Vec::new(),
            queues: Vec::new(),
            senders: Vec::new(),
            is_shared: false,
        }
    }

    /// Rings of an interface's sockets: one for each worker, or those of another process. Otherwise reception starts.
    fn rings(&self, found: &mut FoundInterface, workers: u16, frame_bytes: usize) -> Result<Vec<RxRing>, OpenError> {
        let device = |error: InterfaceError| OpenError::Device(error.to_string());
        let first = &found.sockets[0];
        let failed = |error: io::Error| device(first.error(Problem::Ring(error)));
        if self.is_adopted {
            let Some(layout) = found.rings else {
                let problem = Problem::Passed("expected sockets with rings".to_owned());
                return Err(device(first.error(problem)));
            };
            let rings = found
                .sockets
                .iter()
                .map(|socket| socket.map_ring(layout).map_err(failed));
            return rings.collect();
        }
        let layout = match self.config.ring {
            Some(slots) => RingLayout::new(frame_bytes, usize::from(slots), MOST_WANTED),
            None => RingLayout::new(frame_bytes, RING, MOST_BYTES),
        };
        let others = (1..workers).map(|_| first.another().map_err(device));
        let others: Vec<PacketSocket> = others.collect::<Result<_, _>>()?;
        let all: Vec<&PacketSocket> = std::iter::once(first).chain(&others).collect();
        let rings = all.iter().map(|socket| socket.create_ring(layout));
        let rings = rings.collect::<io::Result<_>>().map_err(failed)?;
        let promiscuous = self.config.ports.set_up.promiscuous;
        PacketSocket::start(&all, promiscuous).map_err(failed)?;
        found.sockets.extend(others);
        Ok(rings)
    }

    /// Opens an interface for `senders` senders, and for reception by `workers` workers if there are any.
    fn open_interface(
        &self,
        mut found: FoundInterface,
        [workers, senders]: [u16; 2],
        frame_bytes: usize,
    ) -> Result<OpenInterface, OpenError> {
        let rings = match workers {
            0 => Vec::new(),
            _ => self.rings(&mut found, workers, frame_bytes)?,
        };
        let counted = |socket: &Arc<PacketSocket>| CountedSocket {
            socket: Arc::clone(socket),
            counters: Arc::default(),
        };
        let sockets: Vec<Arc<PacketSocket>> = found.sockets.into_iter().map(Arc::new).collect();
        let senders = sockets.iter().cycle().take(usize::from(senders)).map(counted).collect();
        Ok(OpenInterface {
            sockets: sockets.iter().map(counted).collect(),
            rings,
            senders,
        })
    }

    fn open_all(&mut self, need: &PortRequirements, is_shared: bool) -> Result<Vec<BufferPool>, OpenError> {
        let found = std::mem::take(&mut self.found);
        let both_ways = self.config.is_both_ways();
        let mtu = found.iter().map(|interface| interface.sockets[0].mtu()).max();
        let frame_bytes = (mtu.unwrap_or(1500) + MOST_HEADERS).min(MAX_FRAME);
        let (workers, senders) = (need.workers, need.workers + need.auxiliary);
        let last = found.len() - 1;
        let mut open = Vec::new();
        for (number, interface) in found.into_iter().enumerate() {
            let receivers = if both_ways || number == 0 { workers } else { 0 };
            let senders = if both_ways || number == last { senders } else { 0 };
            open.push(self.open_interface(interface, [receivers, senders], frame_bytes)?);
        }
        let forwards = workers > 1 && !is_shared;
        let (pools, mut buffers) = match forwards {
            false => {
                let pools = match is_shared {
                    true => BufferPool::sharing(workers.into(), need.buffers * u32::from(workers), frame_bytes)?,
                    false => vec![BufferPool::new(need.buffers, frame_bytes)?],
                };
                (pools, None)
            }
            true => {
                let (pools, stock, count) = shared_pools(need, open.len(), frame_bytes)?;
                (pools, Some((stock, count)))
            }
        };
        let mut make_buffers = || match &mut buffers {
            None => QueueBuffers::Own,
            Some((stock, count)) => QueueBuffers::sharing(stock, *count),
        };
        let mut received: Vec<Vec<RingReceiver>> = (0..workers).map(|_| Vec::with_capacity(2)).collect();
        let mut sent: Vec<Vec<CountedSocket>> = (0..senders).map(|_| Vec::with_capacity(2)).collect();
        for (number, interface) in open.into_iter().enumerate() {
            let layout = interface.rings.first().map(RxRing::layout);
            let slots = layout.map_or(0, |layout| layout.slots);
            let sockets = interface.sockets.iter();
            let sockets = sockets.map(|own| (Arc::clone(&own.socket), Arc::clone(&own.counters)));
            let senders = interface.senders.iter().map(|own| Arc::clone(&own.counters));
            let monitor =
                InterfaceMonitor::new(sockets.collect(), senders.collect(), slots, Arc::clone(&self.is_owner));
            let set_up = &self.config.ports.set_up;
            let exchanges: Vec<Arc<RingExchange>> = interface.rings.iter().map(|_| Arc::default()).collect();
            let monitor = monitor.renewed_by(Renewal {
                promiscuous: set_up.promiscuous,
                mtu: set_up.mtu,
                layout,
                exchanges: exchanges.clone(),
                // A server's other chains and ports go on.
                patience: if is_shared { MOST_PATIENCE } else { PATIENCE },
            });
            self.monitors.push((monitor, layout));
            let rings = interface.rings.into_iter().zip(exchanges).zip(interface.sockets);
            let rings = rings.map(|((ring, renewed), from)| SocketRing { ring, renewed, from });
            if let Some(of_queues) = passing::divide(rings.collect(), received.len()) {
                for (receivers, rings) in received.iter_mut().zip(of_queues) {
                    let source = (number as u8, make_buffers());
                    receivers.push(RingReceiver::new(rings, source, Arc::clone(&self.is_owner)));
                }
            }
            for (ways, socket) in sent.iter_mut().zip(interface.senders) {
                ways.push(socket);
            }
        }
        let mut sent = sent.into_iter().map(SocketSender::new);
        self.queues = received.into_iter().zip(&mut sent).collect();
        self.senders = sent.collect();
        let rss = || RssHasher::new(&need.rss_key);
        let of = |workers: u16| {
            let size = (workers, BETWEEN);
            let steering = Steering::new(rss(), size, &round_robin(workers), RETA_DELAY, self.clock.clone());
            steering.map_err(|error| OpenError::Device(error.to_string()))
        };
        self.steering = match is_shared {
            true => (0..workers).map(|_| of(1)).collect::<Result<_, _>>()?,
            false => vec![of(workers)?],
        };
        self.is_shared = is_shared;
        Ok(pools)
    }
}

/// Pools of workers that forward packets to each other, with their stock and its number of buffers.
fn shared_pools(
    need: &PortRequirements,
    interfaces: usize,
    frame_bytes: usize,
) -> Result<(Vec<BufferPool>, Arc<BufferStock>, usize), OpenError> {
    let workers = usize::from(need.workers);
    // At a worker, on their way back, in caches, and in forwarding rings.
    let of_worker = 2 * need.buffers as usize + interfaces * (CACHED + MAX_BATCH) + (workers - 1) * BETWEEN;
    let count = (workers * of_worker).min(crate::scaling::MOST_BUFFERS as usize);
    let mut whole = BufferPool::new(count as u32, frame_bytes)?;
    let memory = whole.memory().clone();
    let stock = BufferStock::new(&mut whole);
    let pools = (0..workers).map(|_| BufferPool::lent(memory.clone(), need.buffers as usize));
    Ok((pools.collect(), stock, count))
}

impl Port for InterfacePorts {
    fn traffic(&self) -> &str {
        &self.traffic
    }

    fn duration(&self) -> Option<Nanos> {
        self.config.duration
    }

    fn goes_back(&self) -> bool {
        self.config.is_both_ways()
    }

    fn open(&mut self, need: &PortRequirements) -> Result<Vec<BufferPool>, OpenError> {
        self.open_all(need, false)
    }

    fn open_shared(&mut self, need: &PortRequirements) -> Result<Vec<BufferPool>, OpenError> {
        self.open_all(need, true)
    }

    fn queues(&mut self, start: Nanos) -> Vec<Box<dyn PortQueue>> {
        let mut queues = std::mem::take(&mut self.queues);
        let end = self.config.duration.map_or(Nanos::MAX, |duration| start + duration);
        let boxed = |queue: DeviceQueue<RingReceiver, SocketSender>| Box::new(queue) as Box<dyn PortQueue>;
        let each = queues.len() / self.steering.len().max(1);
        let of = self.steering.iter().flat_map(|steering| {
            let own = queues.drain(..each).collect();
            steering.queues(own, start, end)
        });
        of.map(boxed).collect()
    }

    fn sender(&mut self) -> Box<dyn PortSender> {
        let (Some(steering), Some(sender)) = (self.steering.first(), self.senders.pop()) else {
            unreachable!("the port was opened for so many senders");
        };
        Box::new(steering.sender(sender))
    }

    fn reta_delay(&self) -> Option<Nanos> {
        // The kernel delivers packets to workers without a bucket, too: none may sleep.
        Some(Nanos::ZERO)
    }

    fn naps(&self) -> Option<Nanos> {
        self.config.naps
    }

    fn set_reta(&self, reta: &Reta) -> Result<Nanos, RetaError> {
        match &self.steering[..] {
            [all] => all.set_reta(reta),
            _ => Err(RetaError::NotPaced),
        }
    }

    fn monitor(&self, tell: &mut dyn FnMut(String)) {
        let mut exists = false;
        for (monitor, _) in &self.monitors {
            let check = monitor.poll(tell);
            if let Some(first) = self.steering.first() {
                first.add_missed(check.missed);
            }
            exists |= check.exists;
        }
        if !exists {
            self.steering.iter().for_each(Steering::end);
        }
    }

    fn identity(&self) -> Option<TrafficIdentity> {
        self.is_shared.then(|| TrafficIdentity {
            name: self.traffic.clone(),
            packets: 0,
            bytes: 0,
            duration: 0,
            queues: self.steering.len() as u16,
            renumber_bits: 0,
        })
    }

    fn divide(&self, positions: Vec<QueuePosition>) -> Option<Vec<QueuePosition>> {
        let receiving = self.monitors.iter().filter(|(_, layout)| layout.is_some());
        let sockets: Vec<usize> = receiving.map(|(monitor, _)| monitor.sockets().count()).collect();
        passing::regroup(&positions, &sockets, self.steering.len())
    }

    fn sockets(&self) -> io::Result<PassedSockets> {
        let mut all = PassedSockets::default();
        for (monitor, layout) in &self.monitors {
            let sockets: Vec<&PacketSocket> = monitor.sockets().collect();
            let (interface, descriptors) = PacketSocket::pass(&sockets, *layout)?;
            all.interfaces.push(interface);
            all.descriptors.extend(descriptors);
        }
        Ok(all)
    }

    fn report(&self) -> Vec<PortReport> {
        self.monitors.iter().map(|(monitor, _)| monitor.report()).collect()
    }
}
