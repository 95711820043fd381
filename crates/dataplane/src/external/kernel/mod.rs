//! External functions behind kernel interfaces, by packet sockets (AF_PACKET): without DPDK, and on several cores.
//!
//! Each worker has interfaces of its own. So a returned packet arrives at the worker that sent it, whatever the
//! function has rewritten. An interface that is deleted and made again is used again, as ports are.

mod attachment;

use super::attachment::{Attached, Attachment};
use super::with_externals::Functions;
use crate::packet_socket::monitor::InterfaceMonitor;
use crate::packet_socket::renewal::{MOST_PATIENCE, Renewal};
use crate::packet_socket::ring::RingLayout;
use crate::packet_socket::socket::PacketSocket;
use crate::packet_socket::{InterfaceError, MOST_HEADERS, Problem};
use crate::port::OpenError;
use crate::report::PortReport;
use attachment::{End, Ends};
use std::io;
use std::sync::Arc;
use tailwater_api::PortName;
use tailwater_chain::batch::MAX_BATCH;
use tailwater_chain::buffer::{BufferPool, MAX_FRAME};
use tailwater_functions::spec::ChainSpec;

/// Slots of a ring, and its size in bytes at most. Longer frames have fewer slots.
const SLOTS: usize = 1024;
const MOST_BYTES: usize = 16 << 20;

/// Kernel interfaces of a chain's external functions.
#[derive(Debug)]
pub struct KernelPorts {
    /// Sockets by worker, function and port, until they receive.
    sockets: Vec<Vec<Vec<PacketSocket>>>,
    monitors: Vec<InterfaceMonitor>,
}

impl KernelPorts {
    /// Opens the interfaces of all `workers` workers. Packets arrive only from [`open`](Functions::open) on.
    ///
    /// # Errors
    /// An interface is missing, down, in use or not permitted, or several workers would share one.
    pub fn find(spec: &ChainSpec, workers: u16) -> Result<KernelPorts, InterfaceError> {
        let of_worker = |worker| {
            let functions = spec.externals();
            let functions = functions.map(|(_, external)| {
                let ports = external.ports();
                ports.map(|port| interface(port, worker, workers)).collect()
            });
            functions.collect::<Result<_, _>>()
        };
        Ok(KernelPorts {
            sockets: (0..workers).map(of_worker).collect::<Result<_, _>>()?,
            monitors: Vec::new(),
        })
    }

    /// Longest frame of any interface, in bytes.
    fn frame_bytes(&self) -> usize {
        let sockets = self.sockets.iter().flatten().flatten();
        let mtu = sockets.map(PacketSocket::mtu).max();
        (mtu.unwrap_or(1500) + MOST_HEADERS).min(MAX_FRAME)
    }

    /// Starts reception at an interface.
    fn end(&mut self, socket: PacketSocket, frame_bytes: usize) -> Result<End, OpenError> {
        let failed = |error: io::Error| OpenError::Device(socket.error(Problem::Ring(error)).to_string());
        let layout = RingLayout::new(frame_bytes, SLOTS, MOST_BYTES);
        let ring = socket.create_ring(layout).map_err(failed)?;
        socket.receive_all(true).map_err(failed)?;
        let socket = Arc::new(socket);
        let (end, monitor, exchange) = End::new(socket, ring);
        self.monitors.push(monitor.renewed_by(Renewal {
            promiscuous: true,
            mtu: None,
            layout: Some(layout),
            exchanges: vec![exchange],
            // The chain's other packets go on.
            patience: MOST_PATIENCE,
        }));
        Ok(end)
    }
}

/// Opens a worker's interface of a port.
fn interface(port: &PortName, worker: u16, workers: u16) -> Result<PacketSocket, InterfaceError> {
    let Some(name) = port.interface_of(worker) else {
        return Err(InterfaceError::new(&port.to_string(), Problem::Dpdk));
    };
    if workers > 1 && !port.is_numbered() {
        return Err(InterfaceError::new(&name, Problem::Shared { workers }));
    }
    PacketSocket::open(&name)
}

impl<P> Functions<P> for KernelPorts {
    fn open(&mut self, _: &P) -> Result<Vec<Attached>, OpenError> {
        let frame_bytes = self.frame_bytes();
        let mut all = Vec::new();
        for functions in std::mem::take(&mut self.sockets) {
            let mut attachments: Vec<Box<dyn Attachment>> = Vec::new();
            for sockets in functions {
                let ends = sockets.into_iter().map(|socket| self.end(socket, frame_bytes));
                attachments.push(Box::new(Ends::new(ends.collect::<Result<_, _>>()?)));
            }
            all.push(Attached {
                attachments,
                pool: BufferPool::new(2 * MAX_BATCH as u32, frame_bytes)?,
            });
        }
        Ok(all)
    }

    fn monitor(&self, tell: &mut dyn FnMut(String)) {
        for interface in &self.monitors {
            interface.poll(tell);
        }
    }

    fn report(&self) -> Vec<PortReport> {
        let report = |interface: &InterfaceMonitor| {
            interface.take_missed();
            interface.report()
        };
        self.monitors.iter().map(report).collect()
    }
}
