//! Stand-in for the Prometheus endpoint in a program without the feature `metrics`: `--metrics` is refused.

use crate::error::CliError;
use std::net::SocketAddr;
use tailwater_api::Slo;
use tailwater_dataplane::run::Progress;

/// Properties of a chain that do not change while it runs.
#[derive(Clone, Debug)]
#[allow(dead_code, reason = "nobody reads it without an endpoint")]
pub struct Chain {
    /// The chain's name.
    pub name: String,
    /// The traffic's name.
    pub traffic: String,
    /// The objective.
    pub slo: Slo,
}

/// Bound address: no value of this type exists.
#[derive(Debug)]
pub enum Endpoint {}

impl Endpoint {
    /// Returns the error that the feature is missing.
    pub fn bind(_: SocketAddr) -> Result<Endpoint, CliError> {
        Err(CliError::built_without("--metrics", "metrics"))
    }

    /// Never called.
    pub fn serve(self, _: Chain) -> Result<Endpoint, CliError> {
        Ok(self)
    }

    /// Never called.
    pub fn update(&self, _: &Progress) {
        match *self {}
    }
}

/// Ends the endpoint's thread in a program that has one.
impl Drop for Endpoint {
    fn drop(&mut self) {
        match *self {}
    }
}
