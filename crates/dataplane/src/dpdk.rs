//! Ports of DPDK's: NICs, their virtual functions, virtual devices.

use crate::clock::Clock;
use crate::cores::KeepOff;
use crate::ddio::{Cache, Sizing};
use crate::device::{DeviceQueue, Receiver, Sender, Steering};
use crate::port::{Need, OpenError, Port, PortQueue, PortSender, Reta, RetaError, round_robin};
use crate::report::PortReport;
use std::fs;
use std::sync::Mutex;
use std::sync::PoisonError;
pub use tailwater_dpdk::HugePages;
use tailwater_dpdk::{
    Device, DpdkError, Eal, EalConfig, Mempool, Port as Running, PortConfig, PortStats, RxQueue,
    TxQueue,
};
use tailwater_net::Nanos;
use tailwater_net::toeplitz::{BUCKETS, RssHasher};
use tailwater_nf::batch::{Arrived, Batch};
use tailwater_nf::buffer::BufferPool;
use tailwater_nf::spec::PortsSpec;

/// Descriptors of a queue, if they fit the cache.
const RING: u64 = 1024;

/// Packets that wait between two workers; what finds no room is lost, as in a NIC's ring.
const BETWEEN: usize = 1024;

/// How long a NIC takes to go by a new table of its own.
const NIC_DELAY: Nanos = Nanos::from_millis(2);

/// What a frame has besides the MTU: Ethernet header, two VLAN tags, check sequence.
const BESIDES_MTU: usize = 14 + 2 * 4 + 4;

/// How ports are set up.
#[derive(Clone, Debug)]
pub struct DpdkConfig {
    /// Which ports.
    pub ports: PortsSpec,
    /// Descriptors of each queue, if the user says so.
    pub ring: Option<u16>,
    /// For how long packets are received, if not until the run is stopped.
    pub duration: Option<Nanos>,
    /// What pages buffers lie in.
    pub huge_pages: HugePages,
    /// The workers' cores, which DPDK's own threads leave alone if there are others.
    pub cores: Vec<usize>,
}

impl Receiver for RxQueue {
    #[inline]
    fn receive(&mut self, pool: &mut BufferPool, most: usize) -> usize {
        RxQueue::receive(self, pool, most)
    }

    #[inline]
    fn packets(&mut self) -> impl ExactSizeIterator<Item = Arrived> {
        RxQueue::packets(self)
    }

    fn ring(&self) -> usize {
        RxQueue::ring(self)
    }
}

impl Sender for TxQueue {
    #[inline]
    fn transmit(&mut self, batch: &mut Batch) -> usize {
        TxQueue::transmit(self, batch)
    }
}

/// A port that runs, and what is known of it so far.
#[derive(Debug)]
struct Tended {
    port: Running,
    /// Whether packets are received from it.
    receives: bool,
    known: Mutex<Known>,
}

#[derive(Debug, Default)]
struct Known {
    missed: u64,
    /// By field of [`PortStats`].
    counts: [Count; 6],
    gone: bool,
    /// Whether the link was up.
    up: Option<bool>,
}

impl Known {
    /// What a device counted since the run began; nothing newer if it does not answer.
    fn counted(&mut self, now: Option<PortStats>) -> PortStats {
        let [
            received,
            sent,
            missed,
            receive_errors,
            no_buffer,
            send_errors,
        ] = &mut self.counts;
        PortStats {
            received: received.total(now.map(|now| now.received)),
            sent: sent.total(now.map(|now| now.sent)),
            missed: missed.total(now.map(|now| now.missed)),
            receive_errors: receive_errors.total(now.map(|now| now.receive_errors)),
            no_buffer: no_buffer.total(now.map(|now| now.no_buffer)),
            send_errors: send_errors.total(now.map(|now| now.send_errors)),
        }
    }
}

/// A device's count, which goes on when the device forgets it, as memif does when its peer goes.
#[derive(Debug, Default)]
struct Count {
    /// Until the device last forgot it.
    before: u64,
    last: u64,
}

impl Count {
    fn total(&mut self, now: Option<u64>) -> u64 {
        let now = now.unwrap_or(self.last);
        if now < self.last {
            self.before += self.last;
        }
        self.last = now;
        self.before + now
    }
}

/// An entry port and an exit port, or one that is both.
#[derive(Debug)]
pub struct DpdkPorts {
    config: DpdkConfig,
    eal: Eal,
    clock: Clock,
    traffic: String,
    /// Until they are opened.
    devices: Vec<Device>,
    ports: Vec<Tended>,
    steering: Option<Steering>,
    /// By worker.
    queues: Vec<(Vec<RxQueue>, TxQueue)>,
    /// Of helpers.
    senders: Vec<TxQueue>,
    /// Lines for the user about how the ports were set up.
    notices: Mutex<Vec<String>>,
}

impl DpdkPorts {
    /// Starts DPDK and finds the ports. Times are on `clock`.
    ///
    /// # Errors
    /// If a port cannot be used, with what to do about it.
    pub fn find(config: DpdkConfig, clock: Clock) -> Result<DpdkPorts, DpdkError> {
        let PortsSpec {
            entry,
            exit,
            both_ways,
            ..
        } = &config.ports;
        let names: Vec<_> = [Some(entry), exit.as_ref()].into_iter().flatten().collect();
        names.iter().try_for_each(|name| Device::check(name))?;
        let pci = names.iter().filter(|name| name.is_pci());
        let elsewhere = KeepOff::new(&config.cores);
        let eal = Eal::start(&EalConfig {
            huge_pages: config.huge_pages,
            memory: memory(&config),
            pci: pci.map(|name| name.device().to_owned()).collect(),
            drivers: Vec::new(),
        })?;
        drop(elsewhere);
        let devices = names.iter().map(|name| Device::find(eal, name));
        let devices = devices.collect::<Result<Vec<_>, _>>()?;
        let traffic = match (exit, both_ways) {
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
            steering: None,
            queues: Vec::new(),
            senders: Vec::new(),
            notices: Mutex::default(),
        })
    }

    /// Descriptors of each queue, and a line if they are more than fit the cache.
    fn descriptors(&self, queues: u64, frame_bytes: usize) -> (u16, Option<String>) {
        let wanted = self.config.ring.map(u64::from);
        let Some(cache) = Cache::of_machine() else {
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
        let warning = (!sizing.fits()).then(|| {
            format!("packet buffers do not fit the cache, so that DMA leaks to memory: {sizing}")
        });
        (sizing.descriptors as u16, warning)
    }

    /// Has the devices spread packets by the table, as far as they can: what they cannot, workers do.
    fn program(&self, reta: &Reta) {
        for Tended { port, .. } in self.ports.iter().filter(|tended| tended.receives) {
            if let Some(table) = device_table(reta, port.info().reta_size, port.rx_queues()) {
                // A device that refuses leaves packets where they went; workers hand them over.
                let _ = port.set_reta(&table);
            }
        }
    }
}

/// A device's table of `size` entries after ours; `None` if the device has none or too few queues. An entry that
/// stands for buckets of several workers goes to the one with most of them.
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

/// Memory to start DPDK with, before it is known what the devices are: buffers for the longest frames that they
/// are known to have, and as many again.
fn memory(config: &DpdkConfig) -> u64 {
    let PortsSpec {
        entry, exit, mtu, ..
    } = &config.ports;
    let of_interface = |name: &str| {
        let mtu = fs::read_to_string(format!("/sys/class/net/{name}/mtu")).ok()?;
        mtu.trim().parse::<usize>().ok()
    };
    let interfaces = [Some(entry), exit.as_ref()].into_iter().flatten();
    let mtus = interfaces.filter_map(|name| of_interface(name.interface()?));
    let mtu = mtus.chain(mtu.map(usize::from)).fold(1500, usize::max);
    2 * Mempool::bytes(MOST_BUFFERS, mtu + BESIDES_MTU)
}

/// The most buffers of a run's pool: numbers of packets under way have 16 bits.
const MOST_BUFFERS: u32 = crate::scaling::MOST_BUFFERS;

impl Port for DpdkPorts {
    fn traffic(&self) -> &str {
        &self.traffic
    }

    fn duration(&self) -> Option<Nanos> {
        self.config.duration
    }

    fn open(&mut self, need: &Need) -> Result<Vec<BufferPool>, OpenError> {
        let refused = |error: DpdkError| OpenError::Device(error.to_string());
        let devices = std::mem::take(&mut self.devices);
        let both_ways = self.config.ports.both_ways || devices.len() == 1;
        let mtu = |device: &Device| self.config.ports.mtu.unwrap_or(device.info().mtu);
        let mtu = devices.iter().map(mtu).max().unwrap_or(1500);
        let frame_bytes = usize::from(mtu) + BESIDES_MTU;
        let (workers, senders) = (need.workers, need.workers + need.helpers);
        // The workers of each direction, and one queue each way that nobody uses, which drivers want.
        let used = |port: usize| {
            (
                both_ways || port == 0,
                both_ways || port == devices.len() - 1,
            )
        };
        let queues_of = |port: usize| {
            let (receives, sends) = used(port);
            let available = devices[port].info().max_rx_queues.max(1);
            let rx = if receives { workers.min(available) } else { 1 };
            [rx, if sends { senders } else { 1 }]
        };
        let queues: Vec<[u16; 2]> = (0..devices.len()).map(queues_of).collect();
        let count = queues
            .iter()
            .flatten()
            .map(|queues| u64::from(*queues))
            .sum();
        let (ring, warning) = self.descriptors(count, frame_bytes);
        // In descriptors, at workers, on the way between them, and in the caches of threads.
        let between = u64::from(workers) * u64::from(workers - 1) * BETWEEN as u64;
        let cached = u64::from(senders) * Mempool::CACHED;
        let held = u64::from(workers) * u64::from(need.buffers);
        let buffers = count * u64::from(ring) + held + between + cached;
        let buffers = buffers.min(u64::from(MOST_BUFFERS)) as u32;
        let node = devices.iter().find_map(|device| device.info().node);
        let node = node.map_or(-1, i32::from);
        let mempool = Mempool::new(self.eal, buffers, frame_bytes, node).map_err(refused)?;
        let (mut received, mut sent) = (Vec::new(), Vec::new());
        let names: Vec<_> = devices.iter().map(|device| device.name().clone()).collect();
        for ((number, device), [rx_queues, tx_queues]) in
            devices.into_iter().enumerate().zip(queues)
        {
            let config = PortConfig {
                rx_queues,
                tx_queues,
                rx_ring: ring,
                tx_ring: ring,
                mtu: self.config.ports.mtu,
                promiscuous: true,
                hash_key: need.rss_key,
            };
            let (port, rx, tx) = device.start(&config, &mempool).map_err(refused)?;
            let last = number == names.len() - 1;
            self.ports.push(Tended {
                port,
                receives: both_ways || number == 0,
                known: Mutex::default(),
            });
            received.push(if both_ways || number == 0 {
                rx
            } else {
                Vec::new()
            });
            sent.push(if both_ways || last { tx } else { Vec::new() });
        }
        let ports = &self.ports;
        let mut sent = sent.into_iter();
        let first = sent.next().unwrap_or_default();
        let ways: Vec<TxQueue> = match sent.next() {
            None => first,
            // What came from the exit port goes out by the entry port.
            Some(exit) if both_ways => {
                let pairs = exit.into_iter().zip(first);
                pairs
                    .map(|(exit, entry)| exit.join(&ports[1].port, entry))
                    .collect()
            }
            Some(exit) => exit,
        };
        let mut ways = ways.into_iter();
        let mut received: Vec<_> = received.into_iter().map(Vec::into_iter).collect();
        self.queues = (0..workers)
            .zip(&mut ways)
            .map(|(_, way)| {
                (
                    received.iter_mut().filter_map(Iterator::next).collect(),
                    way,
                )
            })
            .collect();
        self.senders = ways.collect();
        let tables = self
            .ports
            .iter()
            .any(|tended| tended.port.info().reta_size > 0);
        let delay = if tables {
            NIC_DELAY
        } else {
            Nanos::from_micros(50)
        };
        let (reta, clock) = (round_robin(workers), self.clock.clone());
        let steering = Steering::new(
            RssHasher::new(&need.rss_key),
            (workers, BETWEEN),
            &reta,
            delay,
            clock,
        );
        self.steering = Some(steering.map_err(|error| OpenError::Device(error.to_string()))?);
        self.program(&reta);
        if let Ok(notices) = self.notices.get_mut() {
            notices.extend(warning);
        }
        Ok((0..workers)
            .map(|_| mempool.part(need.buffers as usize))
            .collect())
    }

    fn queues(&mut self, start: Nanos) -> Vec<Box<dyn PortQueue>> {
        let queues = std::mem::take(&mut self.queues);
        let end = self
            .config
            .duration
            .map_or(Nanos::MAX, |duration| start + duration);
        let boxed = |queue: DeviceQueue<RxQueue, TxQueue>| Box::new(queue) as Box<dyn PortQueue>;
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
        // A device without a table gives packets to workers that have no bucket: none may rest.
        Some(Nanos::ZERO)
    }

    fn set_reta(&self, reta: &Reta) -> Result<Nanos, RetaError> {
        let Some(steering) = &self.steering else {
            return Err(RetaError::NotPaced);
        };
        self.program(reta);
        steering.set_reta(reta)
    }

    fn tend(&self, tell: &mut dyn FnMut(String)) {
        let mut notices = self.notices.lock().unwrap_or_else(PoisonError::into_inner);
        notices.drain(..).for_each(&mut *tell);
        let mut left = false;
        for tended in &self.ports {
            let (name, mut known) = (tended.port.name(), tended.known());
            let stats = known.counted(tended.port.stats());
            if let Some(steering) = self.steering.as_ref().filter(|_| tended.receives) {
                let lost = stats.missed + stats.no_buffer;
                steering.add_missed(lost - known.missed);
                known.missed = lost;
            }
            if !known.gone && tended.port.has_gone() {
                known.gone = true;
                tell(format!("port {name} has gone while it was in use"));
            }
            let up = tended.port.link().map(|link| link.up);
            if !known.gone && up.is_some() && known.up != up {
                if up == Some(false) || known.up.is_some() {
                    let state = if up == Some(true) { "up" } else { "down" };
                    tell(format!("port {name}: the link is {state}"));
                }
                known.up = up;
            }
            left |= !known.gone;
        }
        if let Some(steering) = self.steering.as_ref().filter(|_| !left) {
            steering.end();
        }
    }

    fn report(&self) -> Vec<PortReport> {
        let reports = self.ports.iter().map(|tended| {
            let (port, mut known) = (&tended.port, tended.known());
            let stats = known.counted(port.stats());
            PortReport {
                port: port.name().to_string(),
                driver: port.info().driver.clone(),
                queues: u64::from(port.rx_queues()),
                received: stats.received,
                sent: stats.sent,
                missed: stats.missed,
                receive_errors: stats.receive_errors,
                no_buffer: stats.no_buffer,
                send_errors: stats.send_errors,
                gone: known.gone,
            }
        });
        reports.collect()
    }
}

impl Tended {
    fn known(&self) -> std::sync::MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_device_forgets_stays_counted() {
        let mut known = Known::default();
        let mut received = |now: Option<u64>| {
            let now = now.map(|received| PortStats {
                received,
                ..PortStats::default()
            });
            known.counted(now).received
        };
        let seen = [Some(3), Some(10), None, Some(0), Some(4), Some(4), Some(1)];
        assert_eq!(seen.map(&mut received), [3, 10, 10, 10, 14, 14, 15]);
    }

    #[test]
    fn a_devices_table_follows_ours() {
        let mut reta = round_robin(2);
        for size in [128, 512, 2048] {
            let table = device_table(&reta, size, 2).unwrap();
            assert_eq!(table.len(), usize::from(size));
            assert!((0..usize::from(size)).all(|i| table[i] == (i % 2) as u16));
        }
        // An entry for four buckets goes with most of them.
        reta[0] = 1;
        assert_eq!(device_table(&reta, 128, 2).unwrap()[0], 0);
        (0..3).for_each(|i| reta[128 * i] = 1);
        assert_eq!(device_table(&reta, 128, 2).unwrap()[0], 1);
        assert_eq!(device_table(&reta, 0, 2), None);
        assert_eq!(device_table(&reta, 128, 1), None);
    }
}
