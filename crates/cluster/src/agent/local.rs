//! The server that an agent configures.

use crate::resources::InstanceFigures;
use tailwater_net::Nanos;
use tailwater_policy::server::{ClassLoad, ServerCounters};

/// A server's chains can be changed and read.
///
/// Calls block: a change until it is done, which may include measurements of a chain.
pub trait LocalServer: Send {
    /// Applies a chain: its name on the server, its manifest, and the files of its profiles. Nothing changes if it is
    /// the same as before.
    ///
    /// # Errors
    /// The server refuses it, or cannot be reached.
    fn apply(&mut self, name: &str, manifest: &str, profiles: &[String], force: bool) -> Result<(), LocalError>;

    /// Removes a chain after its last packet. One that does not exist has been removed.
    ///
    /// # Errors
    /// The server refuses, or cannot be reached.
    fn delete(&mut self, name: &str) -> Result<(), LocalError>;

    /// Returns the load of all chains that run. Called often; none if the server does not measure it.
    ///
    /// # Errors
    /// The server cannot be reached.
    fn loads(&mut self) -> Result<Vec<LocalLoad>, LocalError> {
        Ok(Vec::new())
    }

    /// Returns all chains.
    ///
    /// # Errors
    /// The server cannot be reached.
    fn list(&mut self) -> Result<Vec<LocalChain>, LocalError>;
}

/// Error of a server.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LocalError {
    /// The server refuses the change, for this reason.
    #[error("{0}")]
    Refused(String),
    /// The server cannot be reached.
    #[error("{0}")]
    Unreachable(String),
}

/// Phase of a chain on its server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LocalPhase {
    /// Being built.
    #[default]
    Starting,
    /// Processes packets.
    Running,
    /// Processes its last packets, or has done so.
    Draining,
    /// Does not run, against the configuration.
    Failed,
}

/// Condition of a chain on its server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LocalCondition {
    /// Name, such as `ObjectiveMet`.
    pub name: String,
    /// It holds; `None` if there is nothing to tell it by.
    pub holds: Option<bool>,
    /// One word for programs.
    pub reason: String,
    /// One line for people.
    pub message: String,
}

/// Chain of a server.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LocalChain {
    /// Name on the server.
    pub name: String,
    /// Phase.
    pub phase: LocalPhase,
    /// Reason of the phase: one line, possibly empty.
    pub reason: String,
    /// Conditions.
    pub conditions: Vec<LocalCondition>,
    /// Its cores.
    pub cores: Vec<u32>,
    /// Latency at the objective's percentile in the last window, if packets left.
    pub latency: Option<Nanos>,
    /// Its figures, once a window has ended.
    pub figures: Option<InstanceFigures>,
    /// Why its flows cannot leave the server with all of their state, if they cannot: one line.
    pub bound_state: Option<String>,
}

/// Load of a chain of a server.
#[derive(Clone, Debug, PartialEq)]
pub struct LocalLoad {
    /// Name on the server.
    pub name: String,
    /// Time of the measurement, since the chain's start.
    pub measured: Nanos,
    /// Counters since the chain's start.
    pub counters: ServerCounters,
    /// Recent packets by class of flows.
    pub classes: Vec<ClassLoad>,
}
