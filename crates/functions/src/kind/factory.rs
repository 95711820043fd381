//! State that the instances of a function share, and the instances made from it.

use super::update::{ConfigUpdate, PreparedUpdate, UpdateError};
use crate::accounting::{ExportError, Exported};
use std::any::Any;
use std::error::Error;
use std::sync::Arc;
use tailwater_chain::branches::{Branch, PathTable};
use tailwater_chain::function::NetworkFunction;
use tailwater_chain::shared_counters::SharedCounters;
use tailwater_net::toeplitz::RssHasher;

/// Error that prevents a function with a valid configuration from running. The function's name is added to it.
pub type FunctionError = Box<dyn Error + Send + Sync>;

/// Table that the instances of a function share.
pub type SharedTable = Arc<dyn Any + Send + Sync>;

/// Context in which a function is built.
#[derive(Clone, Copy, Debug)]
pub struct BuildContext<'a> {
    /// Name of the function.
    pub name: &'a str,
    /// RSS hash of the port that feeds the chain.
    pub rss: &'a RssHasher,
    /// Capacity of the chain's flow table.
    pub capacity: usize,
    /// Key for hashes.
    pub seed: u64,
    /// Branches of the chain.
    pub branches: &'a [Branch],
    /// Paths through the branches.
    pub paths: &'a PathTable,
}

/// Context that the host gives an [isolated](crate::build::build_isolated) function.
#[derive(Debug)]
pub struct IsolationContext {
    /// RSS hash of the port that feeds the chain.
    pub rss: RssHasher,
    /// Index of this process, and the number of processes of the function.
    pub part: [u16; 2],
    /// Counters that these processes share, [sized as required](super::Requirements::shared_bytes). They share nothing
    /// else.
    pub shared_counters: SharedCounters,
    /// Capacity of the flow table.
    pub capacity: usize,
}

/// State that the instances of all workers share, ready to create instances.
pub trait FunctionFactory: Send + Sync {
    /// Creates an instance for a worker.
    fn instance(&self) -> Box<dyn NetworkFunction>;

    /// Builds the version for a changed configuration, off the data path. Nothing takes effect before it is applied.
    ///
    /// # Errors
    /// If the new configuration is invalid, or differs in settings that cannot change while the chain runs.
    fn prepare_update(&self, _update: &ConfigUpdate<'_>) -> Result<PreparedUpdate, UpdateError> {
        Err(UpdateError::Fixed("this function"))
    }

    /// Waits until the output of all instances, which have finished, is in its files and sent to collectors.
    ///
    /// # Errors
    /// If a file is incomplete.
    fn finish_exports(&self) -> Result<Vec<Exported>, ExportError> {
        Ok(Vec::new())
    }

    /// Table that the instances share, if it can be changed or read while they run.
    fn table(&self) -> Option<SharedTable> {
        None
    }
}
