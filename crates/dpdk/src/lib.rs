//! DPDK ports behind a safe API: the only crate that links DPDK, and only with its feature `dpdk`.
//!
//! DPDK's data path is inline code in C headers. A small shim (`csrc/shim.c`) makes plain functions of
//! it, a burst a call; all that is unsafe is in the modules that call them.
//!
//! - [`Eal`]: DPDK's environment, started once in a process;
//! - [`Mempool`]: buffers that are DPDK's mbufs and Tailwater's [`Buffer`](tailwater_chain::buffer::Buffer)s
//!   at once, so that packets pass a chain where the device put them;
//! - [`Port`]: a device, configured and started; [`RxQueue`] and [`TxQueue`]: what a worker has of it;
//! - [`Peer`]: what is at the other end of a virtual device, for tests and measurements.
//!
//! Receiving and sending a burst allocates nothing and takes no lock. A buffer is either with DPDK (free, in a
//! descriptor ring, on its way out) or held by a worker, who has its only handle.
// Without the feature nothing is here that could be linked to.
#![cfg_attr(not(feature = "dpdk"), allow(rustdoc::broken_intra_doc_links))]
#![cfg(feature = "dpdk")]

mod claim;
mod eal;
mod error;
mod ffi;
mod gate;
mod mbuf;
mod mempool;
mod peer;
mod port;
mod queue;

pub use eal::{Eal, EalConfig, HugePages, version};
pub use error::DpdkError;
pub use mempool::Mempool;
pub use peer::{Frames, Peer, forward};
pub use port::{Device, Link, Port, PortConfig, PortInfo, PortStats, QueueStats};
pub use queue::{RxQueue, TxQueue};
