//! The server agent's on-demand loop (ResQ §5.3), run: what [`OnDemand`](tailwater_placement::on_demand::OnDemand) decides
//! is done to a cache, by `resctrl` or to a model of one, tick after tick.
//!
//! - [`Agent`] joins the policy, whatever cuts the cache ([`Cut`]) and the lease. Before each tick it looks what the
//!   cache is really cut into; what was refused is tried again, and where classes of service have run out the policy
//!   is told so and has instances share. No clock, no thread; I/O is the allocator's.
//! - [`Partitions`] cuts a cache by `resctrl`.
//! - [`Memory`] cuts nothing: it remembers. For simulation, and for telling what would be done.
//! - [`run`] goes on until it is told to end, with measurements, clock and controller as traits, and then gives
//!   everything back.

#![forbid(unsafe_code)]

mod agent;
mod cut;
mod drive;
mod lease;
mod memory;
mod partitions;

pub use agent::{Agent, Refusal, Seen, Settings, Tick, Watched};
pub use cut::{Cut, Found, Refused, Usage, Why};
pub use drive::{Clock, Controller, Source, run};
pub use lease::Local;
pub use memory::Memory;
pub use partitions::{Partitions, Refusing};
