//! Stand-in for the Prometheus endpoint in a program without the feature `metrics`: `--metrics` and `spec.metrics` are
//! refused.

use crate::error::CliError;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use tailwater_api::Slo;
use tailwater_dataplane::core_host::CoreHost;
use tailwater_dataplane::run::Progress;
use tailwater_dataplane::shared_port::SharedPort;
use tailwater_server::Snapshot;
use tailwater_server::live::Figures;

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

/// Page of a run, which nobody serves.
#[derive(Debug)]
pub struct RunPage;

impl RunPage {
    /// Creates the page.
    pub fn new(_: Chain) -> RunPage {
        RunPage
    }

    /// Never called.
    pub fn update(&self, _: &Progress) {}
}

/// Sources of a server's figures.
#[derive(Clone, Debug)]
#[allow(dead_code, reason = "nobody reads it without an endpoint")]
pub struct ServerSources {
    /// Chains that run.
    pub figures: Figures,
    /// Ports that they share.
    pub ports: Vec<Arc<SharedPort>>,
    /// Cores that they share.
    pub host: Arc<CoreHost>,
    /// Latest state of the server.
    pub snapshot: Arc<Mutex<Snapshot>>,
    /// Counts of exported records, if there is an export.
    pub exported: Option<Arc<crate::telemetry::Counts>>,
}

/// Page of a server, which nobody serves.
#[derive(Debug)]
pub struct ServerPage;

impl ServerPage {
    /// Creates the page.
    pub fn new(_: ServerSources) -> ServerPage {
        ServerPage
    }
}

/// Page of an ingress, which nobody serves.
#[cfg(feature = "cluster")]
#[derive(Debug)]
pub struct IngressPage;

#[cfg(feature = "cluster")]
impl IngressPage {
    /// Creates the page.
    pub fn new(_: tailwater_cluster::ingress::SoftwareFigures) -> IngressPage {
        IngressPage
    }
}

/// Bound address: no value of this type exists.
#[derive(Debug)]
pub enum Endpoint {}

impl Endpoint {
    /// Returns the error that the feature is missing.
    pub fn bind(option: &str, _: SocketAddr) -> Result<Endpoint, CliError> {
        Err(CliError::built_without(option, "metrics"))
    }

    /// Never called.
    pub fn serve<P>(self, page: P) -> Result<Serving<P>, CliError> {
        let _ = page;
        match self {}
    }
}

/// Endpoint that is being served: no value of this type exists.
#[derive(Debug)]
pub struct Serving<P> {
    page: P,
    never: Endpoint,
}

impl<P> Serving<P> {
    /// Never called.
    pub fn page(&self) -> &P {
        &self.page
    }
}

/// Ends the endpoint's thread in a program that has one.
impl<P> Drop for Serving<P> {
    fn drop(&mut self) {
        match self.never {}
    }
}
