//! Reports of agents to the ingress: gRPC over mutual TLS.
//!
//! An agent keeps one call open and sends a message at short intervals, whether anything has changed or not. The
//! ingress knows by their absence that a server is lost. Nothing is acknowledged: a lost report is followed by the next
//! one.

mod client;
#[allow(missing_docs, clippy::all, reason = "generated")]
pub mod generated;
mod rare;
mod server;
mod tls;

pub use client::send;
pub use generated::{AgentReport, FlowClass, InstanceReport};
pub use server::{ReportLimits, serve};
pub use tls::{Security, TlsError};

#[cfg(test)]
mod tests;
