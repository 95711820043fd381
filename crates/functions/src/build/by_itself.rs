//! Functions of a chain by themselves, each in a process of its own.

use super::{BuildError, Shared, check_mixed_flows};
use crate::accounting::{ExportError, Exported};
use crate::encrypt::PacketNumbers;
use crate::firewall::FirewallTable;
use crate::ipsec::IpsecTable;
use crate::spec::{FunctionConfig, FunctionSpec};
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use tailwater_chain::branches::Ways;
use tailwater_chain::commons::Commons;
use tailwater_chain::function::{Lifetimes, NetworkFunction};
use tailwater_chain::live::Live;
use tailwater_net::toeplitz::RssHasher;

/// Where the flow records of a function [by itself](by_itself) go, if it writes any.
pub struct Records(Shared);

impl Records {
    /// Waits until all are in their file. The function must have been dropped, or this waits for ever.
    ///
    /// # Errors
    /// The file is not complete.
    pub fn finish(&self) -> Result<Vec<Exported>, ExportError> {
        self.0.finish_exports()
    }
}

/// What a function [by itself](by_itself) has around it.
#[derive(Debug)]
pub struct Surroundings {
    /// The hash of the port that the chain runs on.
    pub rss: RssHasher,
    /// Of how many processes of the function this is which: the first number is below the second.
    pub part: [u16; 2],
    /// What these processes share, of [so many bytes](Demands::shared_bytes), and nothing else.
    pub commons: Commons,
    /// The flow table's capacity.
    pub capacity: usize,
}

/// What who has a function run [by itself](by_itself) has to know of it. The spec says so: no process is asked.
#[derive(Clone, Debug, Default)]
pub struct Demands {
    /// The bytes of [`Commons`] that its processes share.
    pub shared_bytes: usize,
    /// Whether [packets of one flow may leave it in several](NetworkFunction::mixes_flows).
    pub mixes_flows: bool,
    /// Whether [flows are connections](NetworkFunction::tracks_connections).
    pub tracks_connections: bool,
    /// How long flows are kept, if the function decides, by so many bytes of its state.
    pub lifetimes: Option<(Arc<dyn Lifetimes>, usize)>,
}

impl Demands {
    /// Those of a function with this configuration, in a chain whose flow table has this capacity.
    pub fn of(config: &FunctionConfig, capacity: usize) -> Demands {
        let tracks_connections = config.tracks_connections();
        match config {
            FunctionConfig::Firewall(firewall) => Demands {
                shared_bytes: FirewallTable::shared_bytes(capacity),
                tracks_connections,
                lifetimes: Some((Arc::new(firewall.options.timeouts), FirewallTable::STATE_BYTES)),
                ..Demands::default()
            },
            FunctionConfig::Ipsec(ipsec) => Demands {
                shared_bytes: IpsecTable::shared_bytes(&ipsec.rules),
                mixes_flows: !ipsec.rules.inbound.is_empty(),
                ..Demands::default()
            },
            FunctionConfig::Upf(_) | FunctionConfig::WanOptimizer(_) => Demands {
                mixes_flows: true,
                ..Demands::default()
            },
            _ => Demands {
                tracks_connections,
                ..Demands::default()
            },
        }
    }
}

/// That functions which are made elsewhere go together. Of each, in the chain's order: its name, whether it
/// [mixes flows](Demands::mixes_flows), and whether it has state of them.
///
/// # Errors
/// As [`ChainBuilder::new`](super::ChainBuilder::new).
pub fn check_apart<'f>(functions: impl Iterator<Item = (&'f str, [bool; 2])>) -> Result<(), BuildError> {
    // In a line: there are no branches between processes.
    check_mixed_flows(functions, |_, _| true)
}

/// Prepares a function of a chain and makes its instance, for a process of its own.
///
/// # Errors
/// As [`ChainBuilder::new`](super::ChainBuilder::new), and where a function cannot be so.
///
/// # Panics
/// If what processes share is too little.
pub fn by_itself(
    function: &FunctionSpec,
    surroundings: Surroundings,
) -> Result<(Box<dyn NetworkFunction>, Records), BuildError> {
    let Surroundings {
        rss,
        part: [part, of],
        commons,
        capacity,
    } = surroundings;
    // Of one process all is in one place.
    let guards = matches!(function.config, FunctionConfig::DnsGuard(_));
    if let Some(what) = function.config.shares().filter(|_| of > 1 || !guards) {
        let function = function.name.clone();
        return Err(BuildError::Shares { function, what });
    }
    let seed = RandomState::new().hash_one(&function.name);
    let line = (&[][..], &Ways::of_line());
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
        // Of the others none has to do with the flow table's size and key.
        config => match Shared::new(&function.name, config, &rss, (0, seed), line)? {
            Shared::Encrypt(rules, _) => Shared::Encrypt(rules, Arc::new(PacketNumbers::among(part, of))),
            shared => shared,
        },
    };
    let function = shared.instance();
    Ok((function, Records(shared)))
}
