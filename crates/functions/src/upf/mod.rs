//! `Upf`: user plane function of a mobile network. UEs' packets go through GTP-U tunnels (3GPP TS 29.281), in both
//! directions. Each session has its own rules, rates and counters (TS 23.501, TS 29.244). The function's page lists its
//! limits.
//!
//! A session is found by the packet's TEID or by the UE's address: one lookup per packet, in an index that workers read
//! while sessions are added and removed.

pub(crate) mod answer;
pub mod api;
mod capsule;
mod direction;
mod due;
mod fields;
mod filter;
mod function;
pub mod gtp;
mod host;
mod index;
mod kind;
pub mod language;
mod lines;
mod peers;
mod reasons;
mod records;
mod replace;
mod services;
mod session;
mod spec;
mod table;
mod usage;

pub use direction::LinkDirection;
pub use filter::{FilterError, Flows, parse as parse_flows};
pub use function::Upf;
pub use kind::KIND;
pub use peers::MAX_PEERS;
pub use records::Usage;
pub use replace::{AppliedSessions, Prepared};
pub use services::{Services, UpfError, start};
pub use session::{
    MAX_ADDRESSES, MAX_PROFILES, MAX_RATES, MAX_RULES, MAX_SESSIONS, Profile, Role, Rule, Session, Treatment, Tunnel,
};
pub use spec::UpfConfig;
pub use table::{Options, Owner, SessionChange, SessionError, UpfTable};

#[cfg(test)]
mod tests;
