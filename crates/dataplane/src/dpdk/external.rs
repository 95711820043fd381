//! External functions behind DPDK ports.

use super::port_monitor::PortMonitor;
use super::{BESIDES_MTU, DpdkPorts, HugePages, MOST_BUFFERS};
use crate::external::{Attached, Attachment, Direction, Functions};
use crate::port::OpenError;
use crate::report::PortReport;
use crate::trace_nic::TraceNic;
use std::fs;
use tailwater_api::PortName;
use tailwater_chain::batch::{Batch, MAX_BATCH};
use tailwater_chain::buffer::{BufferPool, HEADROOM};
use tailwater_dpdk::{Device, DpdkError, Eal, EalConfig, Mempool, PortConfig, RxQueue, TxQueue};
use tailwater_functions::spec::ChainSpec;
use tailwater_net::Nanos;
use tailwater_net::toeplitz::RssHasher;

/// Descriptors per queue.
const RING: u16 = 1024;

/// Bytes of a sent frame beyond the MTU: Ethernet header, one VLAN tag.
const HEADERS: usize = 14 + 4;

/// Ports of a chain's external functions.
#[derive(Debug)]
pub struct ExternalPorts {
    eal: Eal,
    /// RSS hash of the chain.
    rss: RssHasher,
    /// Devices of each function, until they are opened: the one that packets go to, and the one they come back from if
    /// it is another.
    devices: Vec<(Device, Option<Device>)>,
    ports: Vec<PortMonitor>,
}

impl ExternalPorts {
    /// Starts DPDK and probes the ports. `own` are the chain's own ports, which DPDK must probe, too.
    ///
    /// # Errors
    /// If DPDK does not start or a port is unusable. The error includes the remedy.
    pub fn find(spec: &ChainSpec, own: &[PortName], huge_pages: HugePages) -> Result<ExternalPorts, DpdkError> {
        let externals = || spec.externals().map(|(_, external)| external);
        let names = || externals().flat_map(|external| external.ports());
        names().try_for_each(Device::check)?;
        let all = || names().chain(own);
        let pci = all().filter(|name| name.is_pci());
        let mtu = all().filter_map(|name| mtu_of(name.interface()?));
        let mtu = mtu.fold(1500, usize::max);
        let eal = Eal::start(&EalConfig {
            huge_pages,
            // One pool, for the chain's own ports or for these, and as much memory again.
            memory: 2 * Mempool::bytes(MOST_BUFFERS, mtu + BESIDES_MTU),
            pci: pci.map(|name| name.device().to_owned()).collect(),
            drivers: Vec::new(),
        })?;
        let devices = externals().map(|external| {
            let port = Device::find(eal, &external.port)?;
            let return_port = external.return_port.as_ref();
            let return_port = return_port.map(|name| Device::find(eal, name));
            Ok((port, return_port.transpose()?))
        });
        Ok(ExternalPorts {
            eal,
            rss: spec.rss(),
            devices: devices.collect::<Result<_, DpdkError>>()?,
            ports: Vec::new(),
        })
    }

    /// Length of the longest frame of any port.
    fn frame_bytes(&self) -> usize {
        let devices = self.devices.iter();
        let devices = devices.flat_map(|(port, back)| [Some(port), back.as_ref()]);
        let mtus = devices.flatten().map(|device| device.info().mtu);
        usize::from(mtus.max().unwrap_or(1500)) + BESIDES_MTU
    }

    /// Opens the ports, with buffers of this pool.
    fn attach(&mut self, mempool: &Mempool) -> Result<Vec<Attached>, DpdkError> {
        let config = PortConfig {
            rx_queues: 1,
            tx_queues: 1,
            senders: 1,
            rx_ring: RING,
            tx_ring: RING,
            mtu: None,
            promiscuous: true,
            // Functions may leave checksums to offloads, as the kernel does.
            checksums: false,
            // The arrival at the chain counts.
            timestamps: false,
            hash_key: *self.rss.key(),
        };
        let mut attachments: Vec<Box<dyn Attachment>> = Vec::new();
        for (device, back) in std::mem::take(&mut self.devices) {
            let mut ends = Vec::new();
            for device in [Some(device), back].into_iter().flatten() {
                let longest = usize::from(device.info().mtu) + HEADERS;
                let (port, mut received, mut sent) = device.start(&config, mempool)?;
                let (Some(receives), Some(sends)) = (received.pop(), sent.pop()) else {
                    unreachable!("a port has the queues that were asked for");
                };
                self.ports.push(PortMonitor::new(port, false));
                ends.push(End {
                    receives,
                    sends,
                    longest,
                });
            }
            attachments.push(Box::new(Ports {
                ends,
                mempool: mempool.clone(),
                unsent: Vec::with_capacity(MAX_BATCH),
            }));
        }
        // A device has one queue, and so one worker.
        Ok(vec![Attached {
            attachments,
            pool: mempool.part(2 * MAX_BATCH),
        }])
    }

    /// Buffers needed by these ports and by packets a worker processes.
    fn needed(&self) -> u32 {
        let ports = self.devices.iter();
        let ports = ports.flat_map(|(port, back)| [Some(port), back.as_ref()]);
        let held = |device: &Device| device.info().held_by_rx_queue(RING) + u32::from(RING);
        let in_queues: u32 = ports.flatten().map(held).sum();
        in_queues + 2 * MAX_BATCH as u32 + Mempool::CACHED as u32
    }
}

/// Length of the longest frame that fits the pool's buffers.
fn longest_in(mempool: &Mempool) -> usize {
    mempool.memory().buffer_bytes() - HEADROOM
}

fn mtu_of(interface: &str) -> Option<usize> {
    let mtu = fs::read_to_string(format!("/sys/class/net/{interface}/mtu")).ok()?;
    mtu.trim().parse().ok()
}

fn refused(error: DpdkError) -> OpenError {
    OpenError::Device(error.to_string())
}

/// With a trace: packets are copied into DPDK buffers on their way to the first function.
impl Functions<TraceNic> for ExternalPorts {
    fn open(&mut self, _: &TraceNic) -> Result<Vec<Attached>, OpenError> {
        let (count, bytes) = (self.needed(), self.frame_bytes());
        let mempool = Mempool::new(self.eal, count, bytes, -1).map_err(refused)?;
        self.attach(&mempool).map_err(refused)
    }

    fn monitor(&self, tell: &mut dyn FnMut(String)) {
        self.ports.iter().for_each(|port| {
            port.poll(tell);
        });
    }

    fn report(&self) -> Vec<PortReport> {
        self.ports.iter().map(PortMonitor::report).collect()
    }
}

/// With DPDK ports: all share the same buffers, without copies.
impl Functions<DpdkPorts> for ExternalPorts {
    fn buffers(&self) -> u32 {
        self.needed()
    }

    fn open(&mut self, own: &DpdkPorts) -> Result<Vec<Attached>, OpenError> {
        let Some(mempool) = own.mempool() else {
            unreachable!("the chain's ports are open");
        };
        let (longest, room) = (self.frame_bytes(), longest_in(mempool));
        if longest > room {
            return Err(OpenError::Device(format!(
                "an external function may return frames of {longest} bytes, but the chain's ports have buffers \
                 for {room}: give all of them the same MTU"
            )));
        }
        self.attach(mempool).map_err(refused)
    }

    fn monitor(&self, tell: &mut dyn FnMut(String)) {
        Functions::<TraceNic>::monitor(self, tell);
    }

    fn report(&self) -> Vec<PortReport> {
        Functions::<TraceNic>::report(self)
    }
}

/// One port of a function.
#[derive(Debug)]
struct End {
    receives: RxQueue,
    sends: TxQueue,
    longest: usize,
}

/// One or two ports of a function.
#[derive(Debug)]
struct Ports {
    ends: Vec<End>,
    mempool: Mempool,
    /// Indexes of packets that were not accepted.
    unsent: Vec<u16>,
}

impl Attachment for Ports {
    fn has_two_ports(&self) -> bool {
        self.ends.len() > 1
    }

    fn longest(&self) -> usize {
        let longest = self.ends.iter().map(|end| end.longest).min();
        longest.unwrap_or(0).min(longest_in(&self.mempool))
    }

    fn ring(&self) -> usize {
        let rings = self.ends.iter().map(|end| end.receives.ring());
        rings.max().unwrap_or(0)
    }

    fn send(&mut self, way: Direction, batch: &mut Batch) -> usize {
        let sends = match (way, &mut *self.ends) {
            (Direction::Forward, [first, ..]) => &mut first.sends,
            (Direction::Backward, [.., last]) => &mut last.sends,
            (_, []) => unreachable!("a function has a port"),
        };
        if batch.memory().is(self.mempool.memory()) {
            return sends.transmit(batch);
        }
        let (mut next, packets) = (0, batch.len());
        let sent = sends.inject(packets, || {
            next += 1;
            (batch.frame(next - 1), 0)
        });
        if sent < packets {
            self.unsent.clear();
            self.unsent.extend(sent as u16..packets as u16);
            batch.remove_unsent(&self.unsent);
        }
        packets - sent
    }

    fn receive(&mut self, way: Direction, now: Nanos, pool: &mut BufferPool, batch: &mut Batch) -> usize {
        let receives = match (way, &mut *self.ends) {
            (Direction::Forward, [.., last]) => &mut last.receives,
            (Direction::Backward, [first, ..]) => &mut first.receives,
            (_, []) => unreachable!("a function has a port"),
        };
        let most = batch.room().min(pool.available());
        let count = receives.receive(pool, most);
        let packets = receives.packets().map(|packet| (packet, 0));
        batch.receive_all(packets, now);
        count
    }
}
