//! DPDK ports behind a safe API. This is the only crate that links DPDK, and only with its feature `dpdk`.
//!
//! DPDK's data path is inline code in C headers. A small shim (`csrc/shim.c`) wraps it in plain functions, one call per
//! burst. All `unsafe` code is in the modules that call the shim.
//!
//! - [`Eal`]: DPDK's environment, started once per process.
//! - [`Mempool`]: buffers that are DPDK mbufs and Tailwater [`Buffer`](tailwater_chain::buffer::Buffer)s at once, so
//!   packets pass a chain without being copied.
//! - [`Port`]: a device, configured and started, with one [`RxQueue`] and [`TxQueue`] per worker.
//! - [`Peer`]: the other end of a virtual device, for tests and measurements.
//!
//! Receiving and sending a burst allocates nothing and takes no lock. A buffer is owned either by DPDK (free, in a
//! descriptor ring, or being sent) or by a worker, which holds its only handle.
// Without the feature the items that the docs link to do not exist.
#![cfg_attr(not(feature = "dpdk"), allow(rustdoc::broken_intra_doc_links))]
#![cfg(feature = "dpdk")]

mod eal;
mod error;
mod ffi;
mod gate;
mod interface_lock;
mod mbuf;
mod mempool;
mod open_port;
mod peer;
mod port;
mod queue;

pub use eal::{Eal, EalConfig, HugePages, version};
pub use error::DpdkError;
pub use mempool::Mempool;
pub use peer::{Frames, Peer, forward};
pub use port::{Device, Link, Port, PortConfig, PortInfo, PortStats, QueueStats};
pub use queue::{RxQueue, TxQueue};
