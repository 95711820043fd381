//! DPDK ports: NICs, virtual functions, virtual devices.

mod external;
mod port_monitor;

use crate::clock::Clock;
use crate::cores::{AvoidCores, format_list, node_of};
use crate::ddio::{Cache, Sizing};
use crate::device::ticks::ClockView;
use crate::device::{DeviceQueue, Receiver, Sender, Steering};
use crate::port::{OpenError, Port, PortQueue, PortRequirements, PortSender, Refused, Reta, RetaError, round_robin};
use crate::report::PortReport;
pub use external::ExternalPorts;
use port_monitor::PortMonitor;
use std::fs;
use std::sync::{Mutex, PoisonError};
use tailwater_api::{DdioSpec, PortName, PortsSpec};
use tailwater_chain::batch::{Arrived, Batch};
use tailwater_chain::buffer::BufferPool;
use tailwater_dpdk::{Device, DpdkError, Eal, EalConfig, Mempool, PortConfig, RxQueue, TxQueue};
use tailwater_net::Nanos;
use tailwater_net::toeplitz::{BUCKETS, RssHasher};

pub use tailwater_dpdk::HugePages;

/// Default descriptors per queue, if they fit the cache.
const RING: u64 = 1024;

/// Size of the forwarding ring between two workers. Packets beyond it are lost, as with a NIC's ring.
const BETWEEN: usize = 1024;

/// Time a NIC takes to apply a new RETA.
const NIC_DELAY: Nanos = Nanos::from_millis(2);

/// Frame bytes beyond the MTU: Ethernet header, two VLAN tags, frame check sequence.
const BESIDES_MTU: usize = 14 + 2 * 4 + 4;

/// Configuration of the ports.
#[derive(Clone, Debug)]
pub struct DpdkConfig {
    /// Ports to use.
    pub ports: PortsSpec,
    /// Descriptors per queue, if set by the user.
    pub ring: Option<u16>,
    /// Time for which packets are received, or `None` to run until stopped.
    pub duration: Option<Nanos>,
    /// Page size of the buffer memory.
    pub huge_pages: HugePages,
    /// Cores of the workers. DPDK's own threads avoid them if there are others.
    pub cores: Vec<usize>,
    /// Sleep time of idle workers, if they may sleep.
    pub naps: Option<Nanos>,
    /// Drop packets whose checksum the device finds wrong.
    pub checksums: bool,
}

/// Receive queue, with the clock of a device that timestamps packets.
#[derive(Debug)]
struct Receives {
    queue: RxQueue,
    clock: Option<ClockView>,
}

impl Receiver for Receives {
    #[inline]
    fn receive(&mut self, pool: &mut BufferPool, most: usize) -> usize {
        self.queue.receive(pool, most)
    }

    #[inline]
    fn packets(&mut self) -> impl ExactSizeIterator<Item = (Arrived, Option<Nanos>)> {
        self.queue.packets().map(|packet| (packet, None))
    }

    #[inline]
    fn arrivals(&mut self, between: [Nanos; 2], into: &mut Vec<Nanos>) -> bool {
        let Some(clock) = &mut self.clock else {
            return false;
        };
        let stamps = self.queue.stamps();
        stamps.is_some_and(|stamps| clock.arrivals(stamps, between, into))
    }

    #[inline]
    fn refused(&mut self) -> Refused {
        let [in_pieces, damaged] = self.queue.take_refused();
        Refused { in_pieces, damaged }
    }

    fn ring(&self) -> usize {
        self.queue.ring()
    }
}

impl Sender for TxQueue {
    #[inline]
    fn transmit(&mut self, batch: &mut Batch) -> usize {
        TxQueue::transmit(self, batch)
    }

    fn transmit_back(&mut self, batch: &mut Batch) -> usize {
        TxQueue::transmit_back(self, batch)
    }
}

/// Entry port and exit port, or one port that is both.
#[derive(Debug)]
pub struct DpdkPorts {
    config: DpdkConfig,
    eal: Eal,
    clock: Clock,
    traffic: String,
    /// Empty once the ports are open.
    devices: Vec<Device>,
    ports: Vec<PortMonitor>,
    /// `Some` once the ports are open.
    mempool: Option<Mempool>,
    steering: Option<Steering>,
    /// Queues by worker.
    queues: Vec<(Vec<Receives>, TxQueue)>,
    /// Transmit queues of auxiliary cores.
    senders: Vec<TxQueue>,
    /// Messages for the user about the configuration of the ports.
    notices: Mutex<Vec<String>>,
}

impl DpdkPorts {
    /// Starts DPDK and probes the ports. Times are on `clock`.
    ///
    /// # Errors
    /// If DPDK does not start or a port is unusable. The error includes the remedy.
    pub fn find(config: DpdkConfig, clock: Clock) -> Result<DpdkPorts, DpdkError> {
        let PortsSpec { entry, exit, set_up } = &config.ports;
        let names: Vec<_> = [Some(entry), exit.as_ref()].into_iter().flatten().collect();
        names.iter().try_for_each(|name| Device::check(name))?;
        let pci = names.iter().filter(|name| name.is_pci());
        let elsewhere = AvoidCores::new(&config.cores);
        let eal = Eal::start(&EalConfig {
            huge_pages: config.huge_pages,
            memory: memory(&config),
            pci: pci.map(|name| name.device().to_owned()).collect(),
            drivers: Vec::new(),
        })?;
        drop(elsewhere);
        let devices = names.iter().map(|name| Device::find(eal, name));
        let devices = devices.collect::<Result<Vec<_>, _>>()?;
        let traffic = match (exit, set_up.both_ways) {
            (None, _) => entry.to_string(),
            (Some(exit), false) => format!("{entry} -> {exit}"),
            (Some(exit), true) => format!("{entry} <-> {exit}"),
        };
        Ok(DpdkPorts {
            config,
            eal,
            clock,
            traffic,
            devices,
            ports: Vec::new(),
            mempool: None,
            steering: None,
            queues: Vec::new(),
            senders: Vec::new(),
            notices: Mutex::default(),
        })
    }

    /// Buffer pool, once the ports are open.
    pub(crate) fn mempool(&self) -> Option<&Mempool> {
        self.mempool.as_ref()
    }

    /// Descriptors per queue, and a message for the user on how they fit the cache.
    fn descriptors(&self, queues: u64, frame_bytes: usize) -> (u16, Option<String>) {
        let wanted = self.config.ring.map(u64::from);
        let ddio = &self.config.ports.set_up.ddio;
        let Some(cache) = Cache::of_machine_or(ddio) else {
            return (wanted.unwrap_or(RING) as u16, None);
        };
        let frame_bytes = frame_bytes as u64;
        let sizing = match wanted {
            Some(descriptors) => Sizing {
                queues,
                descriptors,
                frame_bytes,
                cache,
            },
            None => Sizing::fit(queues, RING, frame_bytes, cache),
        };
        let line = match sizing.fits() {
            false => Some("packet buffers exceed the cache: DMA writes reach memory"),
            // A user who set DDIO parameters gets the result.
            true if *ddio != DdioSpec::default() => Some("packet buffers fit the cache"),
            true => None,
        };
        let line = line.map(|line| format!("{line}: {sizing}"));
        (sizing.descriptors as u16, line)
    }

    /// Programs the devices' RETAs, as far as they have one. Workers do the rest.
    fn program(&self, reta: &Reta) {
        for tended in self.ports.iter().filter(|tended| tended.receives()) {
            let port = tended.port();
            if let Some(table) = device_table(reta, port.info().reta_size, port.rx_queues()) {
                // If a device refuses, packets keep going to the old queues, and workers forward them.
                let _ = port.set_reta(&table);
            }
        }
    }
}

/// Device RETA of `size` entries derived from ours, or `None` if the device has none or too few queues. An entry that
/// covers buckets of several workers goes to the one with most of them.
fn device_table(reta: &Reta, size: u16, queues: u16) -> Option<Vec<u16>> {
    let size = usize::from(size);
    let workers = usize::from(*reta.iter().max()?) + 1;
    if size == 0 || !size.is_power_of_two() || usize::from(queues) < workers {
        return None;
    }
    let mut counts = vec![0; workers];
    let entries = (0..size).map(|entry| {
        counts.fill(0);
        let buckets = (entry % BUCKETS..BUCKETS).step_by(size.min(BUCKETS));
        buckets.for_each(|bucket| counts[usize::from(reta[bucket])] += 1);
        let most = (0..workers).rev().max_by_key(|&worker| counts[worker]);
        most.unwrap_or(0) as u16
    });
    Some(entries.collect())
}

/// Message for the user if cores that process the packets of a port are on another NUMA node than the port. `node_of`
/// returns a core's node.
fn far_cores(
    port: &PortName,
    node: Option<u16>,
    cores: &[usize],
    node_of: impl Fn(usize) -> Option<usize>,
) -> Option<String> {
    let node = usize::from(node?);
    let far = |core: &usize| node_of(*core).is_some_and(|of_core| of_core != node);
    let far: Vec<usize> = cores.iter().copied().filter(far).collect();
    (!far.is_empty()).then(|| {
        format!(
            "port {port} is on NUMA node {node}, cores {} are not: every packet crosses between processors; the node's \
             cores are in /sys/devices/system/node/node{node}/cpulist",
            format_list(&far)
        )
    })
}

/// Memory for DPDK's start, before the devices are known, in bytes: twice a full pool of buffers for the longest frames
/// known so far.
fn memory(config: &DpdkConfig) -> u64 {
    let PortsSpec { entry, exit, set_up } = &config.ports;
    let of_interface = |name: &str| {
        let mtu = fs::read_to_string(format!("/sys/class/net/{name}/mtu")).ok()?;
        mtu.trim().parse::<usize>().ok()
    };
    let interfaces = [Some(entry), exit.as_ref()].into_iter().flatten();
    let mtus = interfaces.filter_map(|name| of_interface(name.interface()?));
    let mtu = mtus.chain(set_up.mtu.map(usize::from)).fold(1500, usize::max);
    2 * Mempool::bytes(MOST_BUFFERS, mtu + BESIDES_MTU)
}

/// Maximum number of buffers in a run's pool: packets in flight have 16-bit numbers.
const MOST_BUFFERS: u32 = crate::scaling::MOST_BUFFERS;

impl Port for DpdkPorts {
    fn traffic(&self) -> &str {
        &self.traffic
    }

    fn duration(&self) -> Option<Nanos> {
        self.config.duration
    }

    fn goes_back(&self) -> bool {
        self.config.ports.set_up.both_ways || self.config.ports.exit.is_none()
    }

    fn open(&mut self, need: &PortRequirements) -> Result<Vec<BufferPool>, OpenError> {
        let refused = |error: DpdkError| OpenError::Device(error.to_string());
        let devices = std::mem::take(&mut self.devices);
        let set_up = self.config.ports.set_up;
        let both_ways = set_up.both_ways || devices.len() == 1;
        let mtu = |device: &Device| set_up.mtu.unwrap_or(device.info().mtu);
        let mtu = devices.iter().map(mtu).max().unwrap_or(1500);
        let frame_bytes = usize::from(mtu) + BESIDES_MTU;
        let (workers, senders) = (need.workers, need.workers + need.auxiliary);
        // Queues of the workers in each direction used. An unused direction gets one queue, which drivers require.
        let used = |port: usize| (both_ways || port == 0, both_ways || port == devices.len() - 1);
        let queues_of = |port: usize| {
            let (receives, sends) = used(port);
            let info = devices[port].info();
            let [rx, tx] = [info.max_rx_queues, info.max_tx_queues].map(|queues| queues.max(1));
            let rx = if receives { workers.min(rx) } else { 1 };
            [rx, if sends { senders.min(tx) } else { 1 }]
        };
        let queues: Vec<[u16; 2]> = (0..devices.len()).map(queues_of).collect();
        let count = queues.iter().flatten().map(|queues| u64::from(*queues)).sum();
        let (ring, line) = self.descriptors(count, frame_bytes);
        let mut lines = Vec::from_iter(line);
        // In descriptors, at workers, in forwarding rings, and in the threads' mempool caches.
        let between = u64::from(workers) * u64::from(workers - 1) * BETWEEN as u64;
        let cached = u64::from(senders) * Mempool::CACHED;
        let held = u64::from(workers) * u64::from(need.buffers);
        let in_queues = devices.iter().zip(&queues).map(|(device, [rx, tx])| {
            let of_rx = u64::from(device.info().held_by_rx_queue(ring));
            u64::from(*rx) * of_rx + u64::from(*tx) * u64::from(ring)
        });
        let buffers = in_queues.sum::<u64>() + held + between + cached;
        let buffers = buffers.min(u64::from(MOST_BUFFERS)) as u32;
        let node = devices.iter().find_map(|device| device.info().node);
        let node = node.map_or(-1, i32::from);
        let mempool = Mempool::new(self.eal, buffers, frame_bytes, node).map_err(refused)?;
        self.mempool = Some(mempool.clone());
        let (mut received, mut sent) = (Vec::new(), Vec::new());
        let cores = &self.config.cores;
        let used: Vec<_> = (0..devices.len()).map(used).collect();
        for (number, ((device, [rx_queues, tx_queues]), (receives, sends))) in
            devices.into_iter().zip(queues).zip(used).enumerate()
        {
            let config = PortConfig {
                rx_queues,
                tx_queues,
                // All threads that send through the port. They share queues if there are too few.
                senders: if sends { senders } else { 1 },
                rx_ring: ring,
                tx_ring: ring,
                mtu: set_up.mtu,
                promiscuous: set_up.promiscuous,
                checksums: self.config.checksums,
                timestamps: receives,
                hash_key: need.rss_key,
            };
            let far = far_cores(device.name(), device.info().node, cores, node_of);
            let (port, rx, tx) = device.start(&config, &mempool).map_err(refused)?;
            let tended = PortMonitor::new(port, receives).timed(&self.clock);
            let of_entry = |queue: RxQueue| Receives {
                queue: queue.of_entry(number as u8),
                clock: tended.view(),
            };
            received.push(if receives {
                rx.into_iter().map(of_entry).collect()
            } else {
                Vec::new()
            });
            self.ports.push(tended);
            sent.push(if sends { tx } else { Vec::new() });
            lines.extend(far);
        }
        let ports = &self.ports;
        let mut sent = sent.into_iter();
        let first = sent.next().unwrap_or_default();
        let ways: Vec<TxQueue> = match sent.next() {
            None => first,
            // Packets from the exit port leave through the entry port.
            Some(exit) if both_ways => {
                let pairs = exit.into_iter().zip(first);
                pairs.map(|(exit, entry)| exit.join(ports[1].port(), entry)).collect()
            }
            Some(exit) => exit,
        };
        let mut ways = ways.into_iter();
        let mut received: Vec<_> = received.into_iter().map(Vec::into_iter).collect();
        self.queues = (0..workers)
            .zip(&mut ways)
            .map(|(_, way)| (received.iter_mut().filter_map(Iterator::next).collect(), way))
            .collect();
        self.senders = ways.collect();
        let tables = self.ports.iter().any(|tended| tended.port().info().reta_size > 0);
        let delay = if tables { NIC_DELAY } else { Nanos::from_micros(50) };
        let (reta, clock) = (round_robin(workers), self.clock.clone());
        let steering = Steering::new(RssHasher::new(&need.rss_key), (workers, BETWEEN), &reta, delay, clock);
        self.steering = Some(steering.map_err(|error| OpenError::Device(error.to_string()))?);
        self.program(&reta);
        if let Ok(notices) = self.notices.get_mut() {
            notices.extend(lines);
        }
        Ok((0..workers).map(|_| mempool.part(need.buffers as usize)).collect())
    }

    fn queues(&mut self, start: Nanos) -> Vec<Box<dyn PortQueue>> {
        let queues = std::mem::take(&mut self.queues);
        let end = self.config.duration.map_or(Nanos::MAX, |duration| start + duration);
        let boxed = |queue: DeviceQueue<Receives, TxQueue>| Box::new(queue) as Box<dyn PortQueue>;
        self.steering.as_ref().map_or_else(Vec::new, |steering| {
            let queues = steering.queues(queues, start, end);
            queues.into_iter().map(boxed).collect()
        })
    }

    fn sender(&mut self) -> Box<dyn PortSender> {
        let (Some(steering), Some(sender)) = (&self.steering, self.senders.pop()) else {
            unreachable!("the port was opened for so many helpers");
        };
        Box::new(steering.sender(sender))
    }

    fn reta_delay(&self) -> Option<Nanos> {
        // A device without a RETA delivers packets to workers without a bucket, too: none may sleep.
        Some(Nanos::ZERO)
    }

    fn naps(&self) -> Option<Nanos> {
        self.config.naps
    }

    fn set_reta(&self, reta: &Reta) -> Result<Nanos, RetaError> {
        let Some(steering) = &self.steering else {
            return Err(RetaError::NotPaced);
        };
        self.program(reta);
        steering.set_reta(reta)
    }

    fn monitor(&self, tell: &mut dyn FnMut(String)) {
        let mut notices = self.notices.lock().unwrap_or_else(PoisonError::into_inner);
        notices.drain(..).for_each(&mut *tell);
        let mut left = false;
        for tended in &self.ports {
            let (lost, there) = tended.poll(tell);
            if let Some(steering) = self.steering.as_ref().filter(|_| tended.receives()) {
                steering.add_missed(lost);
            }
            left |= there;
        }
        if let Some(steering) = self.steering.as_ref().filter(|_| !left) {
            steering.end();
        }
    }

    fn report(&self) -> Vec<PortReport> {
        self.ports.iter().map(PortMonitor::report).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::ArrivalTimes;
    use tailwater_api::PortSetup;

    #[test]
    fn cores_of_other_nodes_are_told() {
        let port = "0000:3b:00.0".parse().unwrap();
        let node_of = |core| (core < 8).then_some(core % 2);
        let told = |node, cores: &[usize]| far_cores(&port, node, cores, node_of);
        assert_eq!(told(Some(1), &[1, 3, 5]), None);
        assert_eq!(told(None, &[0, 1]), None);
        // The kernel reports no node for these.
        assert_eq!(told(Some(1), &[8, 9]), None);
        let line = told(Some(1), &[1, 2, 3, 4]).unwrap();
        let expected = "port 0000:3b:00.0 is on NUMA node 1, cores 2,4 are not: ";
        assert!(line.starts_with(expected), "{line}");
    }

    /// Test with the only virtual device that has a RETA.
    #[test]
    fn a_device_has_the_table_that_was_last_set() {
        let config = DpdkConfig {
            ports: PortsSpec {
                entry: "net_null0".parse().unwrap(),
                exit: None,
                set_up: PortSetup::default(),
            },
            ring: Some(256),
            duration: None,
            huge_pages: HugePages::No,
            cores: vec![0, 1],
            checksums: true,
            naps: None,
        };
        let mut ports = DpdkPorts::find(config, Clock::start()).unwrap();
        let need = PortRequirements {
            workers: 2,
            auxiliary: 1,
            buffers: 64,
            rss_key: *RssHasher::default().key(),
        };
        assert_eq!(ports.open(&need).unwrap().len(), 2);
        let table = |ports: &DpdkPorts| ports.report()[0].reta.clone().unwrap();
        let size = table(&ports).len();
        let dealt: Vec<u16> = (0..size).map(|i| (i % 2) as u16).collect();
        assert_eq!(table(&ports), dealt);
        // All but one bucket to the first worker, then a table as a mapper might make.
        let mut one = [0; BUCKETS];
        one[5] = 1;
        for reta in [one, std::array::from_fn(|bucket| (bucket % 3 % 2) as u16)] {
            ports.set_reta(&reta).unwrap();
            let expected = device_table(&reta, size as u16, 2).unwrap();
            assert_eq!(table(&ports), expected);
            assert_ne!(table(&ports), dealt);
        }
        assert!(ports.set_reta(&[2; BUCKETS]).is_err());
        let report = &ports.report()[0];
        assert_eq!(report.arrival_times, ArrivalTimes::Software);
        assert_eq!((report.queues, report.send_queues), (2, 3));
        assert_eq!(ports.queues(Nanos::ZERO).len(), 2);
        drop(ports.sender());
    }

    #[test]
    fn a_devices_table_follows_ours() {
        let mut reta = round_robin(2);
        for size in [128, 512, 2048] {
            let table = device_table(&reta, size, 2).unwrap();
            assert_eq!(table.len(), usize::from(size));
            assert!((0..usize::from(size)).all(|i| table[i] == (i % 2) as u16));
        }
        // An entry for four buckets follows most of them.
        reta[0] = 1;
        assert_eq!(device_table(&reta, 128, 2).unwrap()[0], 0);
        (0..3).for_each(|i| reta[128 * i] = 1);
        assert_eq!(device_table(&reta, 128, 2).unwrap()[0], 1);
        assert_eq!(device_table(&reta, 0, 2), None);
        assert_eq!(device_table(&reta, 128, 1), None);
    }
}
