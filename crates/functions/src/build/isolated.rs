//! Isolated functions of a chain, each in a process of its own.

use super::{BuildError, Shared, check_mixed_flows};
use crate::accounting::{ExportError, Exported};
use crate::encrypt::PacketNumbers;
use crate::firewall::FirewallTable;
use crate::ipsec::IpsecTable;
use crate::spec::{FunctionConfig, FunctionSpec};
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use tailwater_chain::branches::PathTable;
use tailwater_chain::function::{Lifetimes, NetworkFunction};
use tailwater_chain::live::Live;
use tailwater_chain::shared_counters::SharedCounters;
use tailwater_net::toeplitz::RssHasher;

/// Output of an [isolated](build_isolated) function's flow records, if it writes any.
pub struct Records(Shared);

impl Records {
    /// Waits until all records are in their file. The function must have been dropped, or the call never returns.
    ///
    /// # Errors
    /// If the file is incomplete.
    pub fn finish(&self) -> Result<Vec<Exported>, ExportError> {
        self.0.finish_exports()
    }
}

/// Context that the host gives an [isolated](build_isolated) function.
#[derive(Debug)]
pub struct IsolationContext {
    /// RSS hash of the port that feeds the chain.
    pub rss: RssHasher,
    /// Index of this process, and the number of processes of the function.
    pub part: [u16; 2],
    /// Counters that these processes share, [sized as required](Requirements::shared_bytes). They share nothing else.
    pub commons: SharedCounters,
    /// Capacity of the flow table.
    pub capacity: usize,
}

/// Requirements of an [isolated](build_isolated) function, taken from its spec without querying its process.
#[derive(Clone, Debug, Default)]
pub struct Requirements {
    /// Size in bytes of the [`SharedCounters`] that its processes share.
    pub shared_bytes: usize,
    /// `true` if [packets of one flow can leave in several](NetworkFunction::mixes_flows).
    pub mixes_flows: bool,
    /// `true` if [flows are connections](NetworkFunction::tracks_connections).
    pub tracks_connections: bool,
    /// Source of idle timeouts, if the function decides on them, and the number of state bytes it receives.
    pub lifetimes: Option<(Arc<dyn Lifetimes>, usize)>,
}

impl Requirements {
    /// Returns the requirements of a function with this configuration, in a chain with this flow table capacity.
    pub fn of(config: &FunctionConfig, capacity: usize) -> Requirements {
        let tracks_connections = config.tracks_connections();
        match config {
            FunctionConfig::Firewall(firewall) => Requirements {
                shared_bytes: FirewallTable::shared_bytes(capacity),
                tracks_connections,
                lifetimes: Some((Arc::new(firewall.options.timeouts), FirewallTable::STATE_BYTES)),
                ..Requirements::default()
            },
            FunctionConfig::Ipsec(ipsec) => Requirements {
                shared_bytes: IpsecTable::shared_bytes(&ipsec.rules),
                mixes_flows: !ipsec.rules.inbound.is_empty(),
                ..Requirements::default()
            },
            FunctionConfig::Upf(_) | FunctionConfig::WanOptimizer(_) => Requirements {
                mixes_flows: true,
                ..Requirements::default()
            },
            _ => Requirements {
                tracks_connections,
                ..Requirements::default()
            },
        }
    }
}

/// Checks that functions created elsewhere can be combined. The iterator yields, in chain order, each function's name,
/// whether it [mixes flows](Requirements::mixes_flows), and whether it has flow state.
///
/// # Errors
/// If a function with flow state follows one that mixes flows.
pub fn check_apart<'f>(functions: impl Iterator<Item = (&'f str, [bool; 2])>) -> Result<(), BuildError> {
    // In line, since branches do not extend across processes.
    check_mixed_flows(functions, |_, _| true)
}

/// Prepares a function of a chain and creates its instance, for a process of its own.
///
/// # Errors
/// Same as [`ChainBuilder::new`](super::ChainBuilder::new), and if the function cannot be isolated.
///
/// # Panics
/// If the shared counters have too little room.
pub fn build_isolated(
    function: &FunctionSpec,
    surroundings: IsolationContext,
) -> Result<(Box<dyn NetworkFunction>, Records), BuildError> {
    let IsolationContext {
        rss,
        part: [part, of],
        commons,
        capacity,
    } = surroundings;
    // With a single process, all its data is in one place.
    let guards = matches!(function.config, FunctionConfig::DnsGuard(_));
    if let Some(what) = function.config.shares().filter(|_| of > 1 || !guards) {
        let function = function.name.clone();
        return Err(BuildError::Shares { function, what });
    }
    let seed = RandomState::new().hash_one(&function.name);
    let line = (&[][..], &PathTable::without_branches());
    let shared = match &function.config {
        FunctionConfig::Classifier(_) => {
            let function = function.name.clone();
            return Err(BuildError::Branches { function });
        }
        FunctionConfig::Ipsec(config) => {
            let table = IpsecTable::sharing(&config.rules, &commons);
            let table = table.map_err(|source| BuildError::Ipsec {
                function: function.name.clone(),
                source,
            })?;
            Shared::Ipsec(Arc::new(Live::new(table)))
        }
        FunctionConfig::Firewall(config) => {
            let rules = (&config.zones[..], &config.rules[..], config.default);
            let table = FirewallTable::sharing(rules, config.options, capacity, &commons);
            let table = table.map_err(|source| BuildError::Firewall {
                function: function.name.clone(),
                source,
            })?;
            Shared::Firewall(Arc::new(table))
        }
        // No other function depends on the flow table's size and key.
        config => match Shared::new(&function.name, config, &rss, (0, seed), line)? {
            Shared::Encrypt(rules, _) => Shared::Encrypt(rules, Arc::new(PacketNumbers::among(part, of))),
            shared => shared,
        },
    };
    let function = shared.instance();
    Ok((function, Records(shared)))
}
