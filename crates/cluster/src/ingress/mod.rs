//! Ingress of a rack: steers destination prefixes of chains to servers by the rules of an OpenFlow 1.3 switch, or of a
//! software data plane of its own.
//!
//! | to | use |
//! |---|---|
//! | run an ingress | [`run`] with an [`OpenFlowSwitch`], or a [`SoftwareSwitch`] |
//! | drive it without sockets and clock, as tests do | [`Steering`] |
//! | tell the class of a flow for a server's report | [`class_of`] |
//! | speak OpenFlow | [`openflow`] |
//!
//! The decisions are those of the simulator: [`IngressBalancer`](tailwater_policy::server::IngressBalancer) and
//! [`IngressMapper`](tailwater_policy::server::IngressMapper). Design: `docs/explanation/ingress.md`.

mod connection;
mod diff;
pub mod openflow;
mod rows;
mod rule;
mod run;
mod session;
mod software;
mod steering;
mod switch;

pub use connection::{Endpoint, NoEndpoint, OpenFlowSwitch};

pub(crate) use rows::{MAX_PARTS, Ranks, chain_identity, parts_of};
pub use rows::{Row, SOURCE_BITS, class_of};
pub use rule::{Action, FlowMatch, FlowRule, MacAddress, MaskedAddress, PortNumber};
pub use run::run;
pub use session::{Session, SessionConfig};
pub use software::{MOST_PORTS, SoftwareConfig, SoftwareError, SoftwareFigures, SoftwareSwitch, StoreError};
pub use steering::{
    ChainReport, ChainRoute, FromServers, Input, LossCause, MoveCause, Output, PortReference, Readiness, Server,
    ServerReport, SteeredMove, Steering, SteeringConfig, SteeringProblem, Step, SwitchLimits, Unmatched,
};
pub use switch::{Busy, Switch, SwitchCommand, SwitchEvent, SwitchState};
