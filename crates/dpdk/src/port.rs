//! Ports: probing, configuring, starting and monitoring devices.
//!
//! One of the few modules with `unsafe` code. DPDK synchronises a device's control functions, except start and close. A
//! port is started where it is created, and closed when its last holder is dropped.

mod link;
mod system;

pub use link::Link;

use crate::eal::Eal;
use crate::error::{DpdkError, of_device};
use crate::ffi;
use crate::gate::Pass;
use crate::interface_lock::InterfaceLock;
use crate::mbuf::Stamp;
use crate::mempool::Mempool;
use crate::open_port::{OpenPort, used};
use crate::queue::{DeviceQueue, RxOptions, RxQueue, Turns, TxQueue};
use link::link_of_interface;
use std::ffi::{CString, c_int};
use std::io;
use std::sync::Arc;
use system::{check, interface_number, of_refusal, refused};
use tailwater_api::PortName;
use tailwater_net::toeplitz::{MICROSOFT_KEY, RssKey};

/// Configuration of a port.
#[derive(Clone, Debug)]
pub struct PortConfig {
    /// Receive queues requested. A port with fewer provides fewer.
    pub rx_queues: u16,
    /// Transmit queues requested. A port with fewer provides fewer.
    pub tx_queues: u16,
    /// Number of threads that send through the port. They share queues if there are fewer of those.
    pub senders: u16,
    /// Descriptors requested per receive queue.
    pub rx_ring: u16,
    /// Descriptors requested per transmit queue.
    pub tx_ring: u16,
    /// MTU in bytes, or `None` to leave it unchanged.
    pub mtu: Option<u16>,
    /// Receive frames for other MAC addresses, too.
    pub promiscuous: bool,
    /// Key of the RSS hash, if the device has RSS.
    pub hash_key: RssKey,
    /// Verify checksums in the device if it can, and refuse packets with a wrong one.
    pub checksums: bool,
    /// Let the device timestamp received packets, if it can.
    pub timestamps: bool,
}

impl Default for PortConfig {
    fn default() -> Self {
        PortConfig {
            rx_queues: 1,
            tx_queues: 1,
            senders: 1,
            rx_ring: 1024,
            tx_ring: 1024,
            mtu: None,
            hash_key: MICROSOFT_KEY,
            promiscuous: true,
            checksums: false,
            timestamps: false,
        }
    }
}

/// Properties and capabilities of a port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortInfo {
    /// Name of the driver.
    pub driver: String,
    /// Maximum number of receive queues.
    pub max_rx_queues: u16,
    /// Maximum number of transmit queues.
    pub max_tx_queues: u16,
    /// Entries of the redirection table (RETA), which maps hashes to queues. 0 if there is none.
    pub reta_size: u16,
    /// The device spreads packets over queues by a hash of addresses and ports (RSS).
    pub rss: bool,
    /// The device reports that hash with each packet.
    pub gives_hash: bool,
    /// Current MTU in bytes.
    pub mtu: u16,
    /// NUMA node of the device, if known.
    pub node: Option<u16>,
    /// MAC address.
    pub mac: [u8; 6],
    /// Descriptors per receive queue.
    pub rx_ring: u16,
    /// Descriptors per transmit queue.
    pub tx_ring: u16,
    /// The device verifies checksums of received packets.
    pub checksums: bool,
    /// The device timestamps received packets with a clock that [`Port::read_clock`] reads.
    pub timestamps: bool,
}

impl PortInfo {
    /// Buffers held by a receive queue of `ring` descriptors. The AF_XDP driver always gives the kernel 2,048, whatever
    /// size is configured, and does not start with fewer (DPDK 22.11, `xdp_umem_configure` and `xsk_configure`).
    pub fn held_by_rx_queue(&self, ring: u16) -> u32 {
        const OF_XDP: u32 = 2048;
        let least = if self.driver == "net_af_xdp" { OF_XDP } else { 0 };
        least.max(ring.into())
    }
}

/// Device counters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PortStats {
    /// Packets received.
    pub received: u64,
    /// Packets sent.
    pub sent: u64,
    /// Packets lost because no descriptor was free: the queue was not polled in time.
    pub missed: u64,
    /// Packets received with errors.
    pub receive_errors: u64,
    /// Packets lost because no buffer was free.
    pub no_buffer: u64,
    /// Packets accepted for sending but not sent.
    pub send_errors: u64,
}

/// Counters of one queue, as far as the device has them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QueueStats {
    /// Packets received.
    pub received: Option<u64>,
    /// Packets received with errors, or missed.
    pub receive_errors: Option<u64>,
    /// Packets sent.
    pub sent: Option<u64>,
}

/// Started port.
#[derive(Debug)]
pub struct Port {
    shared: Arc<OpenPort>,
    info: PortInfo,
    rx_queues: u16,
    tx_queues: u16,
    /// Index of the kernel interface, where there is one.
    interface: Option<String>,
}

/// Probed device that is not configured yet.
#[derive(Debug)]
pub struct Device {
    id: u16,
    name: PortName,
    info: PortInfo,
    /// Length of the RSS key, in bytes.
    key_bytes: usize,
    /// Close the device on drop.
    closes: bool,
    claim: Option<InterfaceLock>,
}

impl Drop for Device {
    fn drop(&mut self) {
        if self.closes {
            // SAFETY: found by `tw_probe`, and no queue of it has been set up.
            unsafe { ffi::tw_port_close(self.id) };
            used().retain(|used| *used != self.name);
        }
    }
}

impl Device {
    /// Checks without DPDK, as far as possible, that the device exists and is not used by another process. Changes
    /// nothing.
    ///
    /// # Errors
    /// If the device is missing or in use. The error includes the remedy.
    pub fn check(name: &PortName) -> Result<(), DpdkError> {
        check(name).map_err(|problem| DpdkError::Port {
            port: name.to_string(),
            problem,
        })
    }

    /// Probes a device.
    ///
    /// # Errors
    /// If it is in use or unusable. The error includes the remedy.
    pub fn find(_eal: Eal, name: &PortName) -> Result<Device, DpdkError> {
        let problem = |problem: String| DpdkError::Port {
            port: name.to_string(),
            problem,
        };
        Device::check(name)?;
        let claim = {
            let mut used = used();
            if let Some(other) = used.iter().find(|other| other.conflicts(name)) {
                return Err(problem(format!("the same device is in use as {other}")));
            }
            let claim = InterfaceLock::of(name).map_err(problem)?;
            used.push(name.clone());
            claim
        };
        let found = probe(name);
        if found.is_err() {
            used().retain(|used| used != name);
        }
        let (id, info, key_bytes) = found?;
        Ok(Device {
            id,
            name: name.clone(),
            info,
            key_bytes,
            closes: true,
            claim,
        })
    }

    /// Properties of the device. Its ring sizes are not known yet and are 0.
    pub fn info(&self) -> &PortInfo {
        &self.info
    }

    /// Name of the device.
    pub fn name(&self) -> &PortName {
        &self.name
    }

    /// Configures and starts the device, with buffers of `mempool`.
    ///
    /// # Errors
    /// If the device refuses the configuration or does not start.
    pub fn start(
        mut self,
        config: &PortConfig,
        mempool: &Mempool,
    ) -> Result<(Port, Vec<RxQueue>, Vec<TxQueue>), DpdkError> {
        let refused = |what: &str, code: i32| refused(&self.name, what, code);
        let rx_queues = config.rx_queues.clamp(1, self.info.max_rx_queues.max(1));
        let tx_queues = config.tx_queues.clamp(1, self.info.max_tx_queues.max(1));
        // Key bytes beyond ours cover addresses longer than IPv6's, so zeros do.
        let mut key = vec![0; self.key_bytes.max(config.hash_key.len())];
        let known = key.len().min(config.hash_key.len());
        key[..known].copy_from_slice(&config.hash_key[..known]);
        let mut raw = ffi::Config {
            rx_queues,
            tx_queues,
            rx_ring: config.rx_ring,
            tx_ring: config.tx_ring,
            hash_key_bytes: key.len() as u16,
            checksums: u16::from(config.checksums),
            timestamps: u16::from(config.timestamps),
            timestamp_offset: 0,
            hash_key: key.as_ptr(),
            timestamp_flag: 0,
        };
        let mtu = config.mtu.unwrap_or(0);
        // SAFETY: the port exists and none of its queues is in use; the key lives through the call; the pool lives as
        // long as the port, which holds a reference to it.
        let code = unsafe { ffi::tw_port_configure(self.id, &mut raw, mtu, mempool.as_ptr()) };
        match (code, config.mtu) {
            (0, mtu) => self.info.mtu = mtu.unwrap_or(self.info.mtu),
            (code, None) => return Err(refused("it cannot be set up", code)),
            (code, Some(mtu)) => {
                let what = format!("it cannot be set up with an MTU of {mtu}");
                return Err(refused(&what, code));
            }
        }
        self.info.rx_ring = raw.rx_ring;
        self.info.tx_ring = raw.tx_ring;
        self.info.checksums = raw.checksums != 0;
        // SAFETY: the port has been configured.
        let code = unsafe { ffi::tw_port_start(self.id) };
        if code != 0 {
            return Err(refused("it does not start", code));
        }
        // Timestamps are usable only if their clock can be read.
        let stamp = (raw.timestamps != 0 && read_clock(self.id).is_some())
            .then(|| Stamp::new(raw.timestamp_offset, raw.timestamp_flag))
            .flatten();
        self.info.timestamps = stamp.is_some();
        // SAFETY: the port runs. Devices with only one mode refuse, and receive everything anyway.
        unsafe { ffi::tw_port_promiscuous(self.id, c_int::from(config.promiscuous)) };
        self.closes = false;
        let (name, claim) = (self.name.clone(), self.claim.take());
        let shared = Arc::new(OpenPort::new(self.id, name, mempool.clone(), claim));
        let options = RxOptions {
            ring: usize::from(raw.rx_ring),
            checksums: config.checksums,
            stamp,
        };
        let rx = (0..rx_queues).map(|queue| {
            let (port, pass) = (Arc::clone(&shared), Pass::of(&self.name)?);
            Ok(RxQueue::new(port, queue, options, mempool.clone(), pass))
        });
        let rx = rx.collect::<Result<Vec<_>, DpdkError>>()?;
        let senders = config.senders.max(tx_queues);
        let turns: Vec<Turns> = (0..tx_queues)
            .map(|queue| Turns::of_queue(senders, tx_queues, queue))
            .collect();
        let tx = (0..senders).map(|sender| {
            let queue = sender % tx_queues;
            let queue = DeviceQueue {
                port: Arc::clone(&shared),
                queue,
                pass: Pass::of(&self.name)?,
                turns: turns[usize::from(queue)].clone(),
            };
            Ok(TxQueue::new(mempool.clone(), queue))
        });
        let tx = tx.collect::<Result<Vec<_>, DpdkError>>()?;
        let port = Port {
            shared,
            interface: self.name.interface().and_then(interface_number),
            info: self.info.clone(),
            rx_queues,
            tx_queues,
        };
        Ok((port, rx, tx))
    }
}

impl Port {
    /// Name of the port.
    pub fn name(&self) -> &PortName {
        self.shared.name()
    }

    /// Properties of the port.
    pub fn info(&self) -> &PortInfo {
        &self.info
    }

    /// DPDK's port number, which is also the input port of packets received here.
    pub fn id(&self) -> u16 {
        self.shared.id()
    }

    /// Number of receive queues.
    pub fn rx_queues(&self) -> u16 {
        self.rx_queues
    }

    /// Number of transmit queues.
    pub fn tx_queues(&self) -> u16 {
        self.tx_queues
    }

    /// Link state, or `None` if the device does not report one.
    pub fn link(&self) -> Option<Link> {
        // Drivers of kernel interfaces always report the link as up.
        if let Some(interface) = self.name().interface() {
            return Some(link_of_interface(interface));
        }
        let mut link = ffi::Link::default();
        // SAFETY: the port runs, and `link` is written.
        let code = unsafe { ffi::tw_port_link(self.shared.id(), &mut link) };
        (code == 0).then_some(Link {
            up: link.up != 0,
            mbps: (link.mbps != 0).then_some(link.mbps),
        })
    }

    /// Current time of the device's clock, in device ticks. `None` if there is no readable clock.
    pub fn read_clock(&self) -> Option<u64> {
        read_clock(self.shared.id())
    }

    /// Device counters since the start, or `None` if the device has none.
    pub fn stats(&self) -> Option<PortStats> {
        let mut stats = ffi::Stats::default();
        // SAFETY: the port runs, and `stats` is written.
        let code = unsafe { ffi::tw_port_stats(self.shared.id(), &mut stats) };
        (code == 0).then_some(PortStats {
            received: stats.received,
            sent: stats.sent,
            missed: stats.missed,
            receive_errors: stats.receive_errors,
            no_buffer: stats.no_buffer,
            send_errors: stats.send_errors,
        })
    }

    /// Counters of one queue, as far as the device has them.
    pub fn queue_stats(&self, queue: u16) -> QueueStats {
        let count = |way: &str, what: &str| {
            let name = CString::new(format!("{way}_q{queue}_{what}")).ok()?;
            let mut value = 0;
            // SAFETY: the port runs, `name` is a string, and `value` is written.
            let code = unsafe { ffi::tw_port_xstat(self.shared.id(), name.as_ptr(), &mut value) };
            (code == 0).then_some(value)
        };
        QueueStats {
            received: count("rx", "packets"),
            receive_errors: count("rx", "errors"),
            sent: count("tx", "packets"),
        }
    }

    /// Writes the RETA, a table of [`reta_size`](PortInfo::reta_size) entries. Entry `i` holds the queue for hashes
    /// that are `i` modulo the size.
    ///
    /// # Errors
    /// If the device refuses, or has no RETA.
    pub fn set_reta(&self, queues: &[u16]) -> io::Result<()> {
        let size = self.reta_size(queues.len())?;
        // SAFETY: the port runs; `size` entries are read, as many as there are.
        let code = unsafe { ffi::tw_port_set_reta(self.shared.id(), queues.as_ptr(), size) };
        answer(code)
    }

    /// Reads the RETA from the device.
    ///
    /// # Errors
    /// If the device refuses, or has no RETA.
    pub fn reta(&self) -> io::Result<Vec<u16>> {
        let mut queues = vec![0; usize::from(self.info.reta_size)];
        let size = self.reta_size(queues.len())?;
        // SAFETY: the port runs; `size` entries are written, as many as there is room for.
        let code = unsafe { ffi::tw_port_reta(self.shared.id(), queues.as_mut_ptr(), size) };
        answer(code).map(|()| queues)
    }

    fn reta_size(&self, entries: usize) -> io::Result<u16> {
        match self.info.reta_size {
            0 => Err(io::ErrorKind::Unsupported.into()),
            size if usize::from(size) != entries => Err(io::ErrorKind::InvalidInput.into()),
            size => Ok(size),
        }
    }

    /// Returns `true` if the device is gone: unplugged, or its kernel interface deleted.
    pub fn has_gone(&self) -> bool {
        let removed = self.shared.is_removed();
        let interface = self.name().interface().zip(self.interface.as_ref());
        removed || interface.is_some_and(|(name, number)| interface_number(name).is_none_or(|now| now != *number))
    }
}

impl TxQueue {
    /// Routes packets received on the port `from` through `other`, and all others through this queue.
    ///
    /// # Panics
    /// If the two use different pools.
    pub fn join(self, from: &Port, other: TxQueue) -> TxQueue {
        self.join_from(from.id(), other)
    }
}

fn read_clock(port: u16) -> Option<u64> {
    let mut ticks = 0;
    // SAFETY: the port runs, and `ticks` is written.
    let code = unsafe { ffi::tw_port_read_clock(port, &mut ticks) };
    (code == 0).then_some(ticks)
}

fn answer(code: i32) -> io::Result<()> {
    match code {
        0 => Ok(()),
        code => Err(io::Error::from_raw_os_error(-code)),
    }
}

/// Probes a device through DPDK.
fn probe(name: &PortName) -> Result<(u16, PortInfo, usize), DpdkError> {
    let problem = |problem: String| DpdkError::Port {
        port: name.to_string(),
        problem,
    };
    let text = CString::new(name.to_string()).map_err(|error| problem(error.to_string()))?;
    let mut id = 0;
    let _ = ffi::said();
    // SAFETY: the environment runs; `text` is a string, and `id` is written if the call succeeds.
    let code = unsafe { ffi::tw_probe(text.as_ptr(), &mut id) };
    if code != 0 {
        let said = ffi::said();
        if let Some(driver) = name.driver()
            && said.contains("failed to parse device")
        {
            return Err(problem(format!(
                "DPDK has no driver \"{driver}\": check its name, and that it is installed, on Debian in a package \
                 such as librte-{}23",
                driver.replace('_', "-")
            )));
        }
        return Err(of_refusal(name, "DPDK cannot use it", code, &said));
    }
    let mut raw = ffi::Info::default();
    // SAFETY: the port exists, and `raw` is written.
    let code = unsafe { ffi::tw_port_info(id, &mut raw) };
    if code != 0 {
        return Err(of_device(name, "it reports no device information", code, &ffi::said()));
    }
    let driver = raw.driver.split(|byte| *byte == 0).next().unwrap_or(&[]);
    let info = PortInfo {
        driver: String::from_utf8_lossy(driver).into_owned(),
        max_rx_queues: raw.max_rx_queues,
        max_tx_queues: raw.max_tx_queues,
        reta_size: raw.reta_size,
        rss: raw.rss_types != 0,
        gives_hash: raw.gives_hash != 0,
        mtu: raw.mtu,
        node: u16::try_from(raw.socket).ok(),
        mac: raw.mac,
        rx_ring: 0,
        tx_ring: 0,
        checksums: false,
        timestamps: false,
    };
    Ok((id, info, usize::from(raw.hash_key_bytes)))
}
