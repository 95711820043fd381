//! Ports: devices found, configured, started, watched.
//!
//! One of the few modules with `unsafe` code. DPDK guards a device's control functions itself, except
//! for starting and closing it: a port is started where it is made, and closed when nobody has it any more.

mod system;

use crate::claim::Claim;
use crate::eal::Eal;
use crate::error::{DpdkError, of_device};
use crate::ffi;
use crate::gate::Pass;
use crate::mbuf::Stamp;
use crate::mempool::Mempool;
use crate::queue::{RxQueue, Turns, TxQueue};
use std::ffi::{CString, c_int};
use std::io;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use system::{check, interface_number, link_of_interface, of_refusal, refused};
use tailwater_api::PortName;
use tailwater_net::toeplitz::{MICROSOFT_KEY, RssKey};

/// How a port is set up.
#[derive(Clone, Debug)]
pub struct PortConfig {
    /// Receive queues wanted; a port that has fewer gets fewer.
    pub rx_queues: u16,
    /// Transmit queues wanted; a port that has fewer gets fewer.
    pub tx_queues: u16,
    /// How many send by the port, if more than there are queues: these are shared.
    pub senders: u16,
    /// Descriptors of a receive queue wanted.
    pub rx_ring: u16,
    /// Descriptors of a transmit queue wanted.
    pub tx_ring: u16,
    /// The longest payload of a frame, if it is to be changed.
    pub mtu: Option<u16>,
    /// Whether frames for other MAC addresses are received, too.
    pub promiscuous: bool,
    /// The key of the hash by which it spreads packets, if it does.
    pub hash_key: RssKey,
    /// Whether the device is to look at checksums, if it can, and packets with a wrong one are refused.
    pub checksums: bool,
    /// Whether the device is to give packets the time at which they came, if it can.
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

/// What a port can, and what it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortInfo {
    /// Its driver.
    pub driver: String,
    /// The most receive queues.
    pub max_rx_queues: u16,
    /// The most transmit queues.
    pub max_tx_queues: u16,
    /// Entries of the table that maps hashes to queues (RETA); 0 if there is none.
    pub reta_size: u16,
    /// Whether it spreads packets over queues by a hash of addresses and ports.
    pub rss: bool,
    /// Whether it puts that hash on packets.
    pub gives_hash: bool,
    /// The longest payload of a frame now.
    pub mtu: u16,
    /// The NUMA node it is on, if that is known.
    pub node: Option<u16>,
    /// Its MAC address.
    pub mac: [u8; 6],
    /// Descriptors of a receive queue.
    pub rx_ring: u16,
    /// Descriptors of a transmit queue.
    pub tx_ring: u16,
    /// Whether it looks at the checksums of what comes.
    pub checksums: bool,
    /// Whether it gives packets the time at which they came, on a clock that [`Port::read_clock`] reads.
    pub timestamps: bool,
}

impl PortInfo {
    /// Buffers that a receive queue of `ring` descriptors holds. The driver of AF_XDP gives the kernel 2,048 whatever it is
    /// asked for, and does not start with fewer (DPDK 22.11, `xdp_umem_configure` and `xsk_configure`).
    pub fn held_by_rx_queue(&self, ring: u16) -> u32 {
        const OF_XDP: u32 = 2048;
        let least = if self.driver == "net_af_xdp" { OF_XDP } else { 0 };
        least.max(ring.into())
    }
}

/// A port's link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Link {
    /// Whether there is one.
    pub up: bool,
    /// Its speed in Mbit/s, if it is known.
    pub mbps: Option<u32>,
}

/// What a device counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PortStats {
    /// Packets received.
    pub received: u64,
    /// Packets sent.
    pub sent: u64,
    /// Packets lost because no descriptor was free: nobody received them in time.
    pub missed: u64,
    /// Packets that came damaged.
    pub receive_errors: u64,
    /// Packets lost because no buffer was free.
    pub no_buffer: u64,
    /// Packets that were taken and not sent.
    pub send_errors: u64,
}

/// What a device counted at a queue, as far as it says.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QueueStats {
    /// Packets received.
    pub received: Option<u64>,
    /// Packets that came damaged, or were missed.
    pub receive_errors: Option<u64>,
    /// Packets sent.
    pub sent: Option<u64>,
}

/// What everybody holds of a port who uses it. The last one closes it.
#[derive(Debug)]
pub(crate) struct Shared {
    id: u16,
    name: PortName,
    /// Written by DPDK when the device goes.
    removed: Box<AtomicU8>,
    /// What is received lies there.
    _mempool: Mempool,
    _claim: Option<Claim>,
}

impl Shared {
    #[inline]
    pub(crate) fn id(&self) -> u16 {
        self.id
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        // SAFETY: nobody uses the port any more; `removed` is what was registered, and still there.
        unsafe {
            ffi::tw_port_unwatch(self.id, self.removed.as_ptr());
            ffi::tw_port_close(self.id);
        }
        used().retain(|used| *used != self.name);
    }
}

/// A port that runs.
#[derive(Debug)]
pub struct Port {
    shared: Arc<Shared>,
    info: PortInfo,
    rx_queues: u16,
    tx_queues: u16,
    /// The number of the kernel's interface, where there is one.
    interface: Option<String>,
}

/// Names of devices that this process uses.
static USED: Mutex<Vec<PortName>> = Mutex::new(Vec::new());

fn used() -> std::sync::MutexGuard<'static, Vec<PortName>> {
    USED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A device that DPDK has found and that is not set up yet.
#[derive(Debug)]
pub struct Device {
    id: u16,
    name: PortName,
    info: PortInfo,
    /// Bytes of the hash's key.
    key_bytes: usize,
    /// Whether it is to be closed when this is dropped.
    closes: bool,
    claim: Option<Claim>,
}

impl Drop for Device {
    fn drop(&mut self) {
        if self.closes {
            // SAFETY: found by `tw_probe`, and nobody has queues of it.
            unsafe { ffi::tw_port_close(self.id) };
            used().retain(|used| *used != self.name);
        }
    }
}

impl Device {
    /// Looks whether a device is there, and not somebody else's, as far as that can be seen without DPDK: before
    /// anything is touched.
    ///
    /// # Errors
    /// What is wrong, and what to do about it.
    pub fn check(name: &PortName) -> Result<(), DpdkError> {
        check(name).map_err(|problem| DpdkError::Port {
            port: name.to_string(),
            problem,
        })
    }

    /// Finds a device.
    ///
    /// # Errors
    /// If it is in use or cannot be used, with what to do about it.
    pub fn find(_eal: Eal, name: &PortName) -> Result<Device, DpdkError> {
        let problem = |problem: String| DpdkError::Port {
            port: name.to_string(),
            problem,
        };
        Device::check(name)?;
        let claim = {
            let mut used = used();
            if let Some(other) = used.iter().find(|other| other.conflicts(name)) {
                return Err(problem(format!(
                    "{other} is the same device, and in use: a port can be used once"
                )));
            }
            let claim = Claim::of(name).map_err(problem)?;
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

    /// What it is. Its rings are not known yet: 0.
    pub fn info(&self) -> &PortInfo {
        &self.info
    }

    /// Its name.
    pub fn name(&self) -> &PortName {
        &self.name
    }

    /// Sets the device up and starts it, with buffers of `mempool`.
    ///
    /// # Errors
    /// If the device refuses.
    pub fn start(
        mut self,
        config: &PortConfig,
        mempool: &Mempool,
    ) -> Result<(Port, Vec<RxQueue>, Vec<TxQueue>), DpdkError> {
        let refused = |what: &str, code: i32| refused(&self.name, what, code);
        let rx_queues = config.rx_queues.clamp(1, self.info.max_rx_queues.max(1));
        let tx_queues = config.tx_queues.clamp(1, self.info.max_tx_queues.max(1));
        // A longer key's end is for longer addresses than IPv6 has.
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
        // SAFETY: the port is there and nobody has queues of it; the key lives through the call; the pool
        // lives as long as the port, which holds on to it.
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
        // Times are good for something only if the clock they are on can be read.
        let stamp = (raw.timestamps != 0 && read_clock(self.id).is_some())
            .then(|| Stamp::new(raw.timestamp_offset, raw.timestamp_flag))
            .flatten();
        self.info.timestamps = stamp.is_some();
        // SAFETY: the port runs. Devices that know only one way refuse, and receive everything anyway.
        unsafe { ffi::tw_port_promiscuous(self.id, c_int::from(config.promiscuous)) };
        let removed = Box::new(AtomicU8::new(0));
        // SAFETY: `removed` stays where it is until the last holder of `Shared` has unregistered it. A
        // device that cannot be unplugged refuses, and is never seen to go.
        unsafe { ffi::tw_port_watch(self.id, removed.as_ptr()) };
        self.closes = false;
        let shared = Arc::new(Shared {
            id: self.id,
            name: self.name.clone(),
            removed,
            _mempool: mempool.clone(),
            _claim: self.claim.take(),
        });
        let ring = usize::from(raw.rx_ring);
        let rx = (0..rx_queues).map(|queue| {
            let (port, pass) = (Arc::clone(&shared), Pass::of(&self.name)?);
            let kind = (ring, config.checksums, stamp);
            Ok(RxQueue::new(port, queue, kind, mempool.clone(), pass))
        });
        let rx = rx.collect::<Result<Vec<_>, DpdkError>>()?;
        let senders = config.senders.max(tx_queues);
        let turns: Vec<Turns> = (0..tx_queues)
            .map(|queue| Turns::of_queue(senders, tx_queues, queue))
            .collect();
        let tx = (0..senders).map(|sender| {
            let (port, pass) = (Arc::clone(&shared), Pass::of(&self.name)?);
            let queue = sender % tx_queues;
            let turns = turns[usize::from(queue)].clone();
            Ok(TxQueue::new(mempool.clone(), port, queue, (pass, turns)))
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
    /// Its name.
    pub fn name(&self) -> &PortName {
        &self.shared.name
    }

    /// What it is.
    pub fn info(&self) -> &PortInfo {
        &self.info
    }

    /// Its number with DPDK, which packets that came from it bear.
    pub fn id(&self) -> u16 {
        self.shared.id
    }

    /// How many receive queues it has.
    pub fn rx_queues(&self) -> u16 {
        self.rx_queues
    }

    /// How many transmit queues it has.
    pub fn tx_queues(&self) -> u16 {
        self.tx_queues
    }

    /// Its link; `None` if the device does not say.
    pub fn link(&self) -> Option<Link> {
        // Drivers of the kernel's interfaces say that all is well, whatever is.
        if let Some(interface) = self.name().interface() {
            return Some(link_of_interface(interface));
        }
        let mut link = ffi::Link::default();
        // SAFETY: the port runs, and `link` is written.
        let code = unsafe { ffi::tw_port_link(self.shared.id, &mut link) };
        (code == 0).then_some(Link {
            up: link.up != 0,
            mbps: (link.mbps != 0).then_some(link.mbps),
        })
    }

    /// The time on the device's clock, in its ticks; `None` if it has none that can be read.
    pub fn read_clock(&self) -> Option<u64> {
        read_clock(self.shared.id)
    }

    /// What the device counted since it was started; `None` if it does not count.
    pub fn stats(&self) -> Option<PortStats> {
        let mut stats = ffi::Stats::default();
        // SAFETY: the port runs, and `stats` is written.
        let code = unsafe { ffi::tw_port_stats(self.shared.id, &mut stats) };
        (code == 0).then_some(PortStats {
            received: stats.received,
            sent: stats.sent,
            missed: stats.missed,
            receive_errors: stats.receive_errors,
            no_buffer: stats.no_buffer,
            send_errors: stats.send_errors,
        })
    }

    /// What the device counted at a queue, as far as it says.
    pub fn queue_stats(&self, queue: u16) -> QueueStats {
        let count = |way: &str, what: &str| {
            let name = CString::new(format!("{way}_q{queue}_{what}")).ok()?;
            let mut value = 0;
            // SAFETY: the port runs, `name` is a string, and `value` is written.
            let code = unsafe { ffi::tw_port_xstat(self.shared.id, name.as_ptr(), &mut value) };
            (code == 0).then_some(value)
        };
        QueueStats {
            received: count("rx", "packets"),
            receive_errors: count("rx", "errors"),
            sent: count("tx", "packets"),
        }
    }

    /// Has hashes mapped to queues: entry `i` is for hashes that end in `i`, in a table of
    /// [`reta_size`](PortInfo::reta_size) entries.
    ///
    /// # Errors
    /// If the device refuses, or has no such table.
    pub fn set_reta(&self, queues: &[u16]) -> io::Result<()> {
        let size = self.reta_size(queues.len())?;
        // SAFETY: the port runs; as many entries are read as there are.
        let code = unsafe { ffi::tw_port_set_reta(self.shared.id, queues.as_ptr(), size) };
        answer(code)
    }

    /// The table as the device has it.
    ///
    /// # Errors
    /// If the device refuses, or has no such table.
    pub fn reta(&self) -> io::Result<Vec<u16>> {
        let mut queues = vec![0; usize::from(self.info.reta_size)];
        let size = self.reta_size(queues.len())?;
        // SAFETY: the port runs; as many entries are written as there is room for.
        let code = unsafe { ffi::tw_port_reta(self.shared.id, queues.as_mut_ptr(), size) };
        answer(code).map(|()| queues)
    }

    fn reta_size(&self, entries: usize) -> io::Result<u16> {
        match self.info.reta_size {
            0 => Err(io::ErrorKind::Unsupported.into()),
            size if usize::from(size) != entries => Err(io::ErrorKind::InvalidInput.into()),
            size => Ok(size),
        }
    }

    /// Whether the device has gone: unplugged, or its kernel interface deleted.
    pub fn has_gone(&self) -> bool {
        let removed = self.shared.removed.load(Ordering::Relaxed) != 0;
        let interface = self.name().interface().zip(self.interface.as_ref());
        removed || interface.is_some_and(|(name, number)| interface_number(name).is_none_or(|now| now != *number))
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

/// Has DPDK find a device.
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
                "DPDK has no driver \"{driver}\": is it spelled so, and installed? On Debian it is in a package \
                 such as librte-{}23",
                driver.replace('_', "-")
            )));
        }
        return Err(of_refusal(name, "DPDK cannot use it", code, &said));
    }
    let mut raw = ffi::Info::default();
    // SAFETY: the port is there, and `raw` is written.
    let code = unsafe { ffi::tw_port_info(id, &mut raw) };
    if code != 0 {
        return Err(of_device(name, "it does not say what it is", code, &ffi::said()));
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
