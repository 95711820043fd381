//! The rack simulator: the policies of the live data plane, in virtual time, at the scale of a rack.
//!
//! - A [`Rack`] consists of servers behind a switch.
//! - A [`ChainModel`] gives the core time of a chain's packets, from a measured [profile](ChainModel::from_profile) or
//!   set by hand.
//! - A [`Workload`] is any traffic, streamed or [recorded](Recording).
//! - A [`RackPolicy`] is the code that also decides live, selected by name.
//!
//! [`simulate`] runs until all packets have left or are lost, and returns a [`SimReport`]. Equal arguments give
//! byte-identical reports on any machine.
//!
//! ```
//! use std::sync::Arc;
//! use tailwater_net::Nanos;
//! use tailwater_policy::capacity::{CapacityProfile, EpochFrontier, RateFrontier, ServiceCosts};
//! use tailwater_policy::server::IngressConfig;
//! use tailwater_sim::{
//!     ChainModel, ChainRun, FlowOptions, Objective, Rack, RackPolicy, Recording, RunOptions, Workload,
//!     simulate,
//! };
//! use tailwater_traffic::generate::preset;
//!
//! // A chain of two million packets a second on a core, 200 us for 99 % of them.
//! let slo = Nanos::from_micros(200);
//! let profile = CapacityProfile {
//!     chain: "example".to_owned(),
//!     epoch: Nanos::from_micros(80),
//!     frontier: EpochFrontier::constant(128),
//!     rates: RateFrontier::constant(1.7e6),
//!     costs: Some(ServiceCosts { batch: 320.0, packet: 490.0, byte: 0.0, new_flow: 200.0 }),
//!     ..CapacityProfile::default()
//! };
//!
//! // 20 ms of bursty traffic, recorded once for both policies.
//! let source = preset("bursty")?.scaled(5.0).with(1, Nanos::from_millis(20)).arrivals()?;
//! let traffic = Arc::new(Recording::load(source, FlowOptions::default(), 1 << 30)?);
//!
//! let rack = Rack::of_one(8);
//! for name in ["static", "tailwater"] {
//!     let model = ChainModel::from_profile(&profile)?;
//!     let objective = Objective {
//!         slo,
//!         profile: &profile,
//!         packet: Nanos(model.packet_nanos(900.0) as u64),
//!         ingress: IngressConfig {
//!             prefix_v4: 16,
//!             prefix_v6: 32,
//!             threshold: 6,
//!             table: 2000,
//!             flow_hash: true,
//!             rebalance: false,
//!             scale_in: false,
//!         },
//!     };
//!     let policy = RackPolicy::named(name, &objective)?;
//!     let workload = Workload::from(Arc::clone(&traffic));
//!     let chain = ChainRun { model, slo, policy, workload };
//!     let report = simulate(&rack, vec![chain], &RunOptions::default())?;
//!     let result = &report.chains[0];
//!     println!("{name}: p99 {} us, {:.2} cores", result.latency_us.p99, report.cores.average);
//!     assert_eq!(result.packets.offered, result.packets.delivered + result.packets.lost);
//! }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Simulated components
//!
//! | part | model |
//! |---|---|
//! | switch | destination prefixes to servers ([`IngressMapper`](tailwater_policy::server::IngressMapper)), or rows of a table or single flows to cores; rows take time to write, packets wait for them; each server's link has a rate and a bounded buffer |
//! | NIC | a ring per core; 512 RSS buckets; a new table is in force after a delay |
//! | core with a queue | the live worker's iteration: up to 2,048 packets received and looked up while more wait, a decision, offloading, a batch processed |
//! | auxiliary core | sleeps, is woken, processes offloaded packets, sends receipts; if it is overloaded, its flows are parked and move to other cores |
//! | migrating buckets and flows | the new core buffers packets until the old one has completed all earlier ones |
//! | controllers | get delayed signals, and their decisions take effect with a delay ([`ControlLoop`](tailwater_policy::flows::ControlLoop)) |
//! | several chains | each has its share of every server's cores for queues, and auxiliary cores are shared; or a core broker lends and dedicates them ([`CoreSharing`]) |
//!
//! [`RunOptions::check`] checks every packet: order within a flow, one owner at a time for each part of a chain, an
//! owner for every bucket, and a counter for every loss.
//!
//! # Lower bound for all policies
//!
//! [`oracle`](mod@oracle) bounds the cores that any policy needs for the same packets, with proofs.
//!
//! # Racks for hours
//!
//! [`flow_level`] simulates the same mappers with rates and backlogs instead of packets, [`cluster`] the decisions of a
//! rack's controller on a thousand servers.
//!
//! # Not simulated
//!
//! - Caches and memory, beyond the effects contained in the costs.
//! - Preemption of cores by the operating system for longer than [pauses](ChainModel::pauses).
//! - Effects of functions on packets: no function drops any.
//! - Mappers on auxiliary cores, which do not exist live either: the dispatching core decides when an auxiliary core
//!   sheds flows.
//!
//! # Memory
//!
//! A streamed run holds 8,192 packets, the contents of rings and queues, and flows. Each flow takes 32 bytes in the
//! table that numbers them, and 2 to 24 in the engine. Silent flows are removed, and their numbers reused, once none of
//! their packets is in the system. A [`Recording`] holds 16 bytes per packet.
//!
//! # Speed
//!
//! There is no event per packet: see `engine`. `cargo bench -p tailwater-sim --bench engine` prints packets per second
//! of wall time on one core. These results are from a core of 2.95 GHz, with recorded packets of which 16 million
//! arrive per second (`-- --runs 2 --packets 4000000`). They are medians of four, which differ by less than 1 %, of the
//! best of two, in millions:
//!
//! | | |
//! |---|---|
//! | static RSS on a server of 8 cores (10 million arrive), of 64 | 52, 47 |
//! | `rss++` on four servers of 64 cores | 41 |
//! | `netblaze` there, all its mappers on, each server with 6 queues at first, with 3 | 17.3, 12.5 |
//! | `tailwater` there, the same | 10.5, 11.8 |
//!
//! Instructions are the bottleneck: a packet takes about 1,000 with `tailwater`, at four per cycle. Most belong to
//! iterations of dispatching cores. Such an iteration lasts some 300 ns of virtual time, so there are 0.6 of them per
//! packet.

#![forbid(unsafe_code)]

mod chain;
pub mod cluster;
mod engine;
pub mod flow_level;
pub mod oracle;
mod pauses;
pub mod policies;
pub mod rack;
pub mod report;
mod simulation;
pub mod spec;
pub mod traffic;

pub use chain::{ChainError, ChainModel, Jitter, MOST_BATCH, SplitCost};
pub use oracle::{BoundedChain, ChainBound, OracleReport, RackBound, oracle, oracle_with};
pub use policies::{Objective, RackPolicy};
pub use rack::{CoreSharing, Interruption, Rack, Server, SpeedProfile, Switch, Timing};
pub use report::{ChainReport, SimReport};
pub use simulation::{ChainRun, LONGEST_RUN, RunOptions, SHORTEST_WINDOW, SimError, simulate, simulate_with};
pub use traffic::{FlowOptions, Recording, Workload};
