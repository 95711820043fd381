//! `FlowStats`: packets and bytes of each flow, told while it lasts and when it is over, as IPFIX (RFC 7011).

mod export;
mod function;
mod ipfix;
mod record;
mod retry;
mod session;

pub use export::{FlowStatsTable, Options, Outlet, Transport};
pub use function::FlowStats;
pub use ipfix::MESSAGE_BYTES;
pub use record::{EndReason, FlowRecord};
