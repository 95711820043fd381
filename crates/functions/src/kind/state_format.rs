//! Portable form of an isolated function's flow state, which the server converts without the function's processes.

use std::fmt;
use std::sync::Arc;
use tailwater_chain::shared_counters::SharedCounters;
use tailwater_net::{FlowKey, Nanos};

/// Flow state of an isolated function that can pass to another process of the server.
#[derive(Clone, Debug, Default)]
pub enum StateTransfer {
    /// It does not, or only with the help of the function.
    #[default]
    None,
    /// State of a built-in function that is portable as it is, in the version that its program states.
    AsItIs,
    /// The same, of a third-party function.
    ThirdParty,
    /// State of a built-in function that is converted.
    Converted(StateFormat),
}

/// Conversion of a copy of a flow's state, in place, at this wall-clock time of the run's start. The bytes come from a
/// process that is not trusted: any are allowed.
pub type StateConversion = Arc<dyn Fn(&mut [u8], Nanos) + Send + Sync>;

/// Opens what belongs to an imported flow of this key, and may change its state.
pub type OpenImported = Arc<dyn Fn(&FlowKey, &mut [u8]) + Send + Sync>;

/// Access to the tables in the counters that a function's processes share.
pub type OpenTables = Arc<dyn Fn(&SharedCounters) -> OpenImported + Send + Sync>;

/// Portable form of a function's flow state, the same as the function's own
/// [`DurableState`](tailwater_chain::function::DurableState) makes.
#[derive(Clone)]
pub struct StateFormat {
    /// Version of the portable form.
    pub version: u32,
    /// Size of the state in bytes, which is that of its portable form.
    pub bytes: usize,
    /// Conversion to the portable form.
    pub to_durable: StateConversion,
    /// Conversion from the portable form.
    pub restore_durable: StateConversion,
    /// Access to tables in the counters that the function's processes share, if its flows have entries there.
    pub tables: Option<OpenTables>,
}

impl StateFormat {
    /// State of this version and size, with the conversions to and from its portable form.
    pub fn converted(
        (version, bytes): (u32, usize),
        to_durable: impl Fn(&mut [u8], Nanos) + Send + Sync + 'static,
        restore_durable: impl Fn(&mut [u8], Nanos) + Send + Sync + 'static,
    ) -> StateFormat {
        StateFormat {
            version,
            bytes,
            to_durable: Arc::new(to_durable),
            restore_durable: Arc::new(restore_durable),
            tables: None,
        }
    }

    /// State that is portable as it is.
    pub fn as_it_is(version: u32, bytes: usize) -> StateFormat {
        StateFormat::converted((version, bytes), |_, _| (), |_, _| ())
    }
}

impl fmt::Debug for StateFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StateFormat")
            .field("version", &self.version)
            .field("bytes", &self.bytes)
            .finish_non_exhaustive()
    }
}
