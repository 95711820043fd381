//! A modelled processor socket: cores with private caches, a way-partitioned last-level cache into which devices write
//! (DDIO), and memory whose latency grows with its load. It stands for servers with more cores, and with counters and
//! partitions, than the machine at hand has.
//!
//! - [`SocketConfig`] gives sizes, latencies, partitions (CAT).
//! - [`Workload`] is the load of one core: touches of cache lines per packet. [`recorded`] has those recorded from
//!   chains, for any number of flows; [`Competitor`] is a tunable one.
//! - [`co_run`] runs workloads beside each other and returns [`Counters`] per core. Equal arguments give equal
//!   counters.
//!
//! ```
//! use tailwater_socket::{Competitor, SocketConfig, co_run};
//!
//! let config = SocketConfig::broadwell_e5_2620_v4();
//! let competitor = Competitor {
//!     descriptors: 256,
//!     reads: 10.0,
//!     writes: 2.0,
//!     bytes: 4 << 20,
//!     packets_per_second: None,
//!     frame_bytes: 64,
//! };
//! let workload = competitor.workload();
//! let alone = co_run(&config, &[&workload], 1)?[0];
//! let beside = co_run(&config, &[&workload; 8], 1)?[0];
//! assert!(beside.packets_per_second < alone.packets_per_second);
//! # Ok::<(), tailwater_socket::SocketError>(())
//! ```
//!
//! # Model
//!
//! Time of a packet = instructions / IPC with all data in the first-level cache + for each touched line the latency of
//! the level that has it / number of misses that proceed in parallel. Replacement is least recently used. The core
//! furthest behind in virtual time runs next, a packet at a time. Every 10 µs the latency of memory follows from the
//! traffic of all cores and devices.
//!
//! One in 16 cache sets is simulated, with one in 16 lines of every region and packet
//! ([`SocketConfig::sample`]).
//!
//! # Not modelled
//!
//! Hardware prefetchers (streams get a high number of parallel misses instead), TLBs, hyper-threads, several sockets,
//! adaptive replacement, power and thermal limits, the on-chip network, and popularity of flows: packets belong to
//! all flows alike.

#![forbid(unsafe_code)]

mod cache;
mod config;
mod core;
mod counters;
mod hierarchy;
mod pattern;
mod run;
mod synthetic;
mod tail;
mod workload;

pub use config::{Dram, LINE_BYTES, LastLevelCache, MAX_CORES, PrivateCache, SocketConfig, SocketError};
pub use counters::Counters;
pub use pattern::{Pattern, PatternRegion, Scenario, recorded, recorded_names};
pub use run::co_run;
pub use synthetic::Competitor;
pub use workload::{MAX_PARALLEL_MISSES, Order, PacketIo, Region, Workload};
