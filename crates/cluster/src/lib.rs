//! A rack of servers on Kubernetes: the custom resources, the controller that places chains on servers, the agent of a
//! server, and the ingress that steers packets to servers.
//!
//! - [`resources`]: custom resources, and their definitions;
//! - [`leader`]: one of several controllers leads;
//! - [`controller`]: from chains, servers and reports to instances;
//! - [`agent`]: instances of a server are applied to its data plane, and their state is reported;
//! - [`ingress`]: prefixes and flows to instances, by an OpenFlow switch. Without Kubernetes;
//! - [`reports`]: signs of life and counters from agents to the ingress;
//! - [`rack_ingress`]: the ingress with chains and instances from the API server.

#![forbid(unsafe_code)]

pub mod agent;
pub mod controller;
mod figures;
pub mod ingress;
pub mod leader;
mod notices;
pub mod rack_ingress;
pub mod reports;
pub mod resources;
mod watching;

pub use kube::Client;
pub use notices::Notices;
