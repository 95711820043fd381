//! From a chain spec to chains that run: one instance for each worker.

use crate::accounting::{Accounting, AccountingTable, ExportError, Exported};
use crate::acl::classifier::ClassifierError;
use crate::acl::{Acl, AclTable};
use crate::chain::{Chain, Cuts, InputPolicy, kept_state_bytes, state_bytes_with_cuts};
use crate::encrypt::{Encrypt, EncryptRules, PacketNumbers};
use crate::firewall::{Firewall, FirewallTable, RuleSetError, RulesFile};
use crate::flow_table::{FlowTable, FlowTableConfig, Partition};
use crate::forward::Forward;
use crate::function::NetworkFunction;
use crate::ip_forward::function::ForwardOptions;
use crate::ip_forward::{IpForward, RouteTable};
use crate::ipsec::{Ipsec, IpsecError, IpsecTable};
use crate::library::LibraryFunction;
use crate::load_balancer::{LoadBalancer, LoadBalancerTable, TableError};
use crate::nat::{Nat, NatRules, NatTable};
use crate::policer::{Policer, PolicerRules};
use crate::reload::{Reload, Reloads};
use crate::spec::{ChainSpec, Fate, FunctionConfig, FunctionSpec, OwnFunction};
use crate::tunnel::{Action, Tunnel, TunnelRules};
use crate::url_filter::{FilterTable, UrlFilter};
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};
use tailwater_net::Nanos;
use tailwater_net::toeplitz::RssHasher;

/// Why a checked spec still cannot be run.
#[derive(Debug, thiserror::Error)]
pub enum BuildError {
    /// An access list is too large.
    #[error("function {function}: {source}")]
    Classifier {
        /// The function's name.
        function: String,
        /// What is too large.
        source: ClassifierError,
    },
    /// The services of a load balancer are out of range.
    #[error("function {function}: {source}")]
    LoadBalancer {
        /// The function's name.
        function: String,
        /// What is out of range.
        source: TableError,
    },
    /// Routes do not make a table.
    #[error("function {function}: {source}")]
    Routes {
        /// The function's name.
        function: String,
        /// What is too large.
        source: crate::ip_forward::TableError,
    },
    /// Flow records cannot be written.
    #[error("function {function}: {source}")]
    Export {
        /// The function's name.
        function: String,
        /// Why not.
        source: ExportError,
    },
    /// Rules of a firewall take too much memory.
    #[error("function {function}: {source}")]
    Firewall {
        /// The function's name.
        function: String,
        /// What is too much.
        source: RuleSetError,
    },
    /// Patterns of URLs take too much memory.
    #[error("function {function}: {source}")]
    UrlPatterns {
        /// The function's name.
        function: String,
        /// What is too much.
        source: crate::url_filter::TableError,
    },
    /// A function is beyond a port.
    #[error("function {function}: an external function has ports, which only `tailwater run` has")]
    External {
        /// The function's name.
        function: String,
    },
    /// Associations or policies cannot be applied.
    #[error("function {function}: {source}")]
    Ipsec {
        /// The function's name.
        function: String,
        /// Why not.
        source: IpsecError,
    },
    /// A function with state of flows is behind one whose packets may be of any flow.
    #[error(
        "function {function} keeps state for each flow, and cannot be behind {behind}: the packets that come out there \
         are not of the flows that were looked up; put it into a chain of its own, or set what it has of cache to none"
    )]
    MixedFlows {
        /// The function with state.
        function: String,
        /// The function in front.
        behind: String,
    },
    /// A function's instances must share what instances in several processes cannot.
    #[error(
        "function {function} gives sequence numbers and initialisation vectors once for the whole chain, which it cannot do \
         from a process of its own"
    )]
    NotByItself {
        /// The function's name.
        function: String,
    },
    /// There is not enough memory for the flow table.
    #[error(
        "there is no memory for a flow table of {capacity} flows ({source}): lower spec.flows.capacity"
    )]
    FlowTable {
        /// The flows asked for.
        capacity: usize,
        /// What the system says.
        source: io::Error,
    },
}

/// What all workers' instances of a function share, ready to make one.
enum Shared {
    /// The rules, and whether decisions are kept with flows.
    Acl(Arc<AclTable>, bool),
    Nat(Arc<NatTable>),
    LoadBalancer(Arc<LoadBalancerTable>),
    Accounting(Arc<AccountingTable>),
    Encrypt(EncryptRules, Arc<PacketNumbers>),
    UrlFilter(Arc<FilterTable>),
    Forward(Forward),
    IpForward(Arc<RouteTable>, ForwardOptions),
    Tunnel(Arc<TunnelRules>, bool),
    Policer(Arc<PolicerRules>),
    Ipsec(Arc<IpsecTable>),
    /// The table, and the file that its rules are in.
    Firewall(Arc<FirewallTable>, Option<PathBuf>),
    Library(LibraryFunction),
    Own(OwnFunction),
}

impl Shared {
    fn new(
        name: &str,
        config: &FunctionConfig,
        rss: &RssHasher,
        (capacity, seed): (usize, u64),
    ) -> Result<Shared, BuildError> {
        Ok(match config {
            FunctionConfig::Acl(acl) => {
                let table = AclTable::new(&acl.rules, acl.default).map_err(|source| {
                    BuildError::Classifier {
                        function: name.to_owned(),
                        source,
                    }
                })?;
                Shared::Acl(Arc::new(table), acl.cached)
            }
            FunctionConfig::Nat(nat) => {
                let rules = NatRules {
                    external: nat.external.iter().flat_map(addresses).collect(),
                    internal: nat.internal.clone(),
                    ports: nat.ports.clone(),
                    drop_others: nat.other_protocols == Fate::Drop,
                    drop_inbound: nat.inbound == Fate::Drop,
                };
                Shared::Nat(Arc::new(NatTable::new(rules, rss.clone())))
            }
            FunctionConfig::LoadBalancer(config) => {
                let drop_others = config.no_service == Fate::Drop;
                let table =
                    LoadBalancerTable::new(&config.services, config.table_size, drop_others);
                Shared::LoadBalancer(Arc::new(table.map_err(|source| {
                    BuildError::LoadBalancer {
                        function: name.to_owned(),
                        source,
                    }
                })?))
            }
            FunctionConfig::Accounting(config) => {
                let table = match &config.export {
                    None => AccountingTable::new(),
                    Some(export) => AccountingTable::with_export(&export.file, export.format)
                        .map_err(|source| BuildError::Export {
                            function: name.to_owned(),
                            source,
                        })?,
                };
                Shared::Accounting(Arc::new(table))
            }
            FunctionConfig::UrlFilter(config) => {
                let table = FilterTable::new(&config.patterns, config.filter.clone());
                Shared::UrlFilter(Arc::new(table.map_err(|source| {
                    BuildError::UrlPatterns {
                        function: name.to_owned(),
                        source,
                    }
                })?))
            }
            FunctionConfig::Encrypt(config) => {
                let numbers = Arc::new(PacketNumbers::starting_now());
                Shared::Encrypt(config.rules.clone(), numbers)
            }
            FunctionConfig::Forward(forward) => {
                Shared::Forward(Forward::new(forward.source_mac, forward.destination_mac))
            }
            FunctionConfig::IpForward(config) => {
                let (routes, default) = (&config.routes, config.default);
                let table = RouteTable::new(routes, default, &config.next_hops, config.source_mac);
                let table = table.map_err(|source| BuildError::Routes {
                    function: name.to_owned(),
                    source,
                })?;
                let options = ForwardOptions {
                    pass_local: config.local == Fate::Pass,
                    in_flow: config.cached,
                };
                Shared::IpForward(Arc::new(table), options)
            }
            FunctionConfig::Tunnel(config) => {
                let default = match config.default {
                    Fate::Pass => Action::Pass,
                    Fate::Drop => Action::Drop,
                };
                let rules = TunnelRules::new(&config.rules, default);
                Shared::Tunnel(Arc::new(rules), config.cached)
            }
            FunctionConfig::Policer(config) => {
                let rules = PolicerRules::new(config.limits.clone(), config.default);
                Shared::Policer(Arc::new(rules))
            }
            FunctionConfig::Ipsec(config) => {
                let table = IpsecTable::new(&config.rules);
                Shared::Ipsec(Arc::new(table.map_err(|source| BuildError::Ipsec {
                    function: name.to_owned(),
                    source,
                })?))
            }
            FunctionConfig::Firewall(config) => {
                let rules = (&config.zones[..], &config.rules[..], config.default);
                let table = FirewallTable::new(rules, config.options, capacity, seed);
                let table = table.map_err(|source| BuildError::Firewall {
                    function: name.to_owned(),
                    source,
                })?;
                Shared::Firewall(Arc::new(table), config.source.clone())
            }
            FunctionConfig::Library(library) => Shared::Library(library.function.clone()),
            FunctionConfig::External(_) => {
                return Err(BuildError::External {
                    function: name.to_owned(),
                });
            }
            FunctionConfig::Own(own) => Shared::Own(own.clone()),
        })
    }

    fn instance(&self) -> Box<dyn NetworkFunction> {
        match self {
            Shared::Acl(table, true) => Box::new(Acl::new(Arc::clone(table))),
            Shared::Acl(table, false) => Box::new(Acl::without_flows(Arc::clone(table))),
            Shared::Nat(table) => Box::new(Nat::new(Arc::clone(table))),
            Shared::LoadBalancer(table) => Box::new(LoadBalancer::new(Arc::clone(table))),
            Shared::Accounting(table) => Box::new(Accounting::new(Arc::clone(table))),
            Shared::UrlFilter(table) => Box::new(UrlFilter::new(Arc::clone(table))),
            Shared::Encrypt(rules, numbers) => {
                Box::new(Encrypt::new(rules.clone(), Arc::clone(numbers)))
            }
            Shared::Forward(forward) => Box::new(forward.clone()),
            Shared::IpForward(table, options) => {
                Box::new(IpForward::new(Arc::clone(table), *options))
            }
            Shared::Tunnel(rules, in_flow) => Box::new(Tunnel::new(Arc::clone(rules), *in_flow)),
            Shared::Policer(rules) => Box::new(Policer::new(Arc::clone(rules))),
            Shared::Ipsec(table) => Box::new(Ipsec::new(Arc::clone(table))),
            Shared::Firewall(table, _) => Box::new(Firewall::new(Arc::clone(table))),
            Shared::Library(function) => Box::new(function.instance()),
            Shared::Own(own) => own.instance(),
        }
    }
}

/// That no function with state of flows is behind one that mixes them.
fn check_mixed_flows(functions: &[(String, Box<dyn NetworkFunction>)]) -> Result<(), BuildError> {
    let mixes = functions
        .iter()
        .position(|(_, function)| function.mixes_flows());
    let Some((before, behind)) = mixes.and_then(|at| functions.split_at_checked(at + 1)) else {
        return Ok(());
    };
    let stateful = behind
        .iter()
        .find(|(_, function)| function.state_bytes() > 0);
    match (stateful, before.last()) {
        (Some((function, _)), Some((mixing, _))) => Err(BuildError::MixedFlows {
            function: function.clone(),
            behind: mixing.clone(),
        }),
        _ => Ok(()),
    }
}

/// The time since 1970, as far as the clock is right.
fn now_of_the_world() -> Nanos {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    Nanos(since.map_or(0, |since| since.as_nanos() as u64))
}

/// Where the flow records of a function [by itself](by_itself) go, if it writes any.
pub struct Records(Option<Arc<AccountingTable>>);

impl Records {
    /// Waits until all are in their file. The function must have been dropped, or this waits for ever.
    ///
    /// # Errors
    /// The file is not complete.
    pub fn finish(&self) -> Result<Option<Exported>, ExportError> {
        match &self.0 {
            Some(table) => table.finish(),
            None => Ok(None),
        }
    }
}

/// Prepares a function of a chain and makes its instance, for a process of its own. There are `of` such
/// processes, which share nothing, and this is `part`, below `of`. `rss` is the hash of the port that the chain
/// runs on.
///
/// # Errors
/// As [`ChainBuilder::new`], and where a function cannot be so.
pub fn by_itself(
    function: &FunctionSpec,
    rss: &RssHasher,
    [part, of]: [u16; 2],
) -> Result<(Box<dyn NetworkFunction>, Records), BuildError> {
    // Functions that decide about connections, for which the table's size and key are, are refused before.
    let shared = match Shared::new(&function.name, &function.config, rss, (0, 0))? {
        Shared::Encrypt(rules, _) => {
            Shared::Encrypt(rules, Arc::new(PacketNumbers::among(part, of)))
        }
        // Two that share nothing would use a nonce twice; one that begins anew would take replays.
        Shared::Ipsec(_) => {
            let function = function.name.clone();
            return Err(BuildError::NotByItself { function });
        }
        shared => shared,
    };
    let function = shared.instance();
    Ok(match shared {
        Shared::Accounting(table) => (function, Records(Some(table))),
        _ => (function, Records(None)),
    })
}

/// Every address of a prefix: a NAT may use the first and the last, too.
fn addresses(prefix: &ipnet::Ipv4Net) -> impl Iterator<Item = std::net::Ipv4Addr> + use<> {
    let (first, last) = (prefix.network().to_bits(), prefix.broadcast().to_bits());
    (first..=last).map(std::net::Ipv4Addr::from_bits)
}

/// A chain that workers can be given instances of.
pub struct ChainBuilder {
    functions: Vec<(String, Shared)>,
    input: InputPolicy,
    cuts: Cuts,
    /// With flow state that is kept outside: when the run's clock began, on the clock of the world.
    origin: Option<Nanos>,
    /// The flow table's first view, and the partitions nobody holds yet.
    flows: Option<(FlowTable, Vec<Partition>)>,
}

impl ChainBuilder {
    /// Prepares what all instances share. `rss` is the hash of the port the chain will run on;
    /// `seed` keys the flow table's hash.
    ///
    /// # Errors
    /// If an access list or the flow table is too large, or functions do not go together.
    pub fn new(spec: &ChainSpec, rss: &RssHasher, seed: u64) -> Result<ChainBuilder, BuildError> {
        ChainBuilder::with_cuts(spec, rss, seed, Cuts::NONE)
    }

    /// As [`new`](ChainBuilder::new), for a chain that may be cut so, where a flow is too much for one
    /// core. Each cut may cost each flow a cache line.
    ///
    /// # Errors
    /// As [`new`](ChainBuilder::new).
    pub fn with_cuts(
        spec: &ChainSpec,
        rss: &RssHasher,
        seed: u64,
        cuts: Cuts,
    ) -> Result<ChainBuilder, BuildError> {
        let flows = (spec.flows.capacity as usize, seed);
        let functions = spec
            .functions
            .iter()
            .map(|function| {
                let shared = Shared::new(&function.name, &function.config, rss, flows)?;
                Ok((function.name.clone(), shared))
            })
            .collect::<Result<Vec<_>, BuildError>>()?;
        let mut builder = ChainBuilder {
            functions,
            input: InputPolicy {
                malformed: spec.packets.malformed,
                non_ip: spec.packets.non_ip,
            },
            cuts,
            origin: None,
            flows: None,
        };
        let instances = builder.instances();
        check_mixed_flows(&instances)?;
        let state_bytes = match &spec.state {
            Some(_) if instances.iter().any(|(_, f)| f.durable().is_some()) => {
                builder.origin = Some(now_of_the_world());
                kept_state_bytes(&instances)
            }
            _ => state_bytes_with_cuts(&instances, cuts),
        };
        drop(instances);
        builder.make_flows(spec, state_bytes, seed)?;
        Ok(builder)
    }

    /// As [`new`](ChainBuilder::new), for a chain whose functions are made elsewhere, and given with each
    /// [instance](ChainBuilder::instance_of). These are like them.
    ///
    /// # Errors
    /// As [`new`](ChainBuilder::new).
    pub fn of_others(
        spec: &ChainSpec,
        functions: &[(String, Box<dyn NetworkFunction>)],
        seed: u64,
    ) -> Result<ChainBuilder, BuildError> {
        check_mixed_flows(functions)?;
        let mut builder = ChainBuilder {
            functions: Vec::new(),
            input: InputPolicy {
                malformed: spec.packets.malformed,
                non_ip: spec.packets.non_ip,
            },
            cuts: Cuts::NONE,
            origin: None,
            flows: None,
        };
        builder.make_flows(spec, state_bytes_with_cuts(functions, Cuts::NONE), seed)?;
        Ok(builder)
    }

    /// Makes the flow table, if the chain needs one.
    fn make_flows(
        &mut self,
        spec: &ChainSpec,
        state_bytes: usize,
        seed: u64,
    ) -> Result<(), BuildError> {
        if state_bytes > 0 || spec.flows.always {
            let config = FlowTableConfig {
                capacity: spec.flows.capacity as usize,
                timeouts: spec.flows.idle_timeout,
                when_full: spec.flows.when_full,
                state_bytes,
                seed,
            };
            let flows = FlowTable::create(&config).map_err(|source| BuildError::FlowTable {
                capacity: config.capacity,
                source,
            })?;
            self.flows = Some(flows);
        }
        Ok(())
    }

    fn instances(&self) -> Vec<(String, Box<dyn NetworkFunction>)> {
        self.functions
            .iter()
            .map(|(name, shared)| (name.clone(), shared.instance()))
            .collect()
    }

    /// The table of the load balancer of that name, to change its backends while workers run.
    pub fn load_balancer(&self, name: &str) -> Option<Arc<LoadBalancerTable>> {
        self.functions
            .iter()
            .find_map(|(function, shared)| match shared {
                Shared::LoadBalancer(table) if function == name => Some(Arc::clone(table)),
                _ => None,
            })
    }

    /// What the accounting function of that name shares: its totals.
    pub fn accounting(&self, name: &str) -> Option<Arc<AccountingTable>> {
        self.functions
            .iter()
            .find_map(|(function, shared)| match shared {
                Shared::Accounting(table) if function == name => Some(Arc::clone(table)),
                _ => None,
            })
    }

    /// The table of the firewall of that name, to change its rules while workers run.
    pub fn firewall(&self, name: &str) -> Option<Arc<FirewallTable>> {
        self.functions
            .iter()
            .find_map(|(function, shared)| match shared {
                Shared::Firewall(table, _) if function == name => Some(Arc::clone(table)),
                _ => None,
            })
    }

    /// Files that may be read again while workers run.
    pub fn reloads(&self) -> Reloads {
        let functions = self.functions.iter();
        let files = functions.filter_map(|(name, shared)| match shared {
            Shared::Firewall(table, Some(path)) => {
                let file = RulesFile::new(Arc::clone(table), path.clone());
                Some((name.clone(), Arc::new(file) as Arc<dyn Reload>))
            }
            _ => None,
        });
        files.collect()
    }

    /// Waits until all flow records are in their files. Every [`instance`](Self::instance) must
    /// have [finished](Chain::finish), or this waits for ever.
    ///
    /// # Errors
    /// The first file that is not complete.
    pub fn finish_exports(&self) -> Result<Vec<Exported>, ExportError> {
        let tables = self
            .functions
            .iter()
            .filter_map(|(_, shared)| match shared {
                Shared::Accounting(table) => Some(table),
                _ => None,
            });
        // All of them, also after an error: no thread stays behind.
        let finished: Vec<_> = tables.map(|table| table.finish()).collect();
        finished.into_iter().filter_map(Result::transpose).collect()
    }

    /// Says when the run's clock began, on the clock of the world, should flow state be kept outside: before the first
    /// [`instance`](Self::instance).
    pub fn set_origin(&mut self, origin: Nanos) {
        self.origin = self.origin.map(|_| origin);
    }

    /// Whether the chain looks flows up.
    pub fn has_flows(&self) -> bool {
        self.flows.is_some()
    }

    /// Bytes of the flow table, all workers' together; 0 if there is none.
    pub fn flow_memory_bytes(&self) -> usize {
        self.flows
            .as_ref()
            .map_or(0, |(table, _)| table.memory_bytes())
    }

    /// An instance for the worker that owns the buckets for which `owns` says so. No bucket may be
    /// given twice: the second worker would not get it.
    pub fn instance(&mut self, owns: impl Fn(u16) -> bool) -> Chain {
        self.instance_of(self.instances(), owns)
    }

    /// As [`instance`](ChainBuilder::instance), of functions that were made elsewhere.
    ///
    /// # Panics
    /// If they have more state than those that the builder was [told of](ChainBuilder::of_others).
    pub fn instance_of(
        &mut self,
        functions: Vec<(String, Box<dyn NetworkFunction>)>,
        owns: impl Fn(u16) -> bool,
    ) -> Chain {
        let Some((table, free)) = &mut self.flows else {
            return Chain::with_cuts(functions, None, self.input, self.cuts);
        };
        let mut view = table.sharing();
        free.extract_if(.., |partition| owns(partition.bucket()))
            .for_each(|partition| view.adopt(partition));
        if let Some(origin) = self.origin {
            return Chain::keeping(functions, Some(view), self.input, origin);
        }
        Chain::with_cuts(functions, Some(view), self.input, self.cuts)
    }

    /// An instance for a core that is handed packets which another instance has
    /// [looked up](Chain::look_up).
    ///
    /// # Safety
    /// While a packet is run in it from one of the [segments](Chain::segments) on, no other instance runs
    /// a packet of the same flow through these segments, and what other instances did with the flow
    /// there happened before. The flow is [active](Chain::activate) with the instance that looked it up.
    pub unsafe fn helper_instance(&self) -> Chain {
        let table = self.flows.as_ref();
        // SAFETY: the caller's word.
        let table = table.map(|(table, _)| unsafe { table.of_handed_flows() });
        Chain::with_cuts(self.instances(), table, self.input, self.cuts)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    fn spec(functions: &str) -> ChainSpec {
        let text = format!(
            "apiVersion: tailwater.dev/v1alpha1\nkind: Chain\nmetadata: {{name: test}}\n\
             spec:\n  slo: {{latency: 200us}}\n  functions: {functions}\n"
        );
        ChainSpec::parse(&text, "test", Path::new(".")).unwrap()
    }

    fn builder(functions: &str) -> ChainBuilder {
        ChainBuilder::new(&spec(functions), &RssHasher::default(), 1).unwrap()
    }

    #[test]
    fn chains_without_state_look_no_flow_up() {
        let mut builder = builder("[{forward: {}}]");
        assert_eq!(builder.flow_memory_bytes(), 0);
        assert!(!builder.instance(|_| true).has_flows());
    }

    /// Packets that come out of a tunnel are not of the tunnel's flow.
    #[test]
    fn no_function_with_state_is_behind_a_tunnels_end() {
        let key = "cipher: aes-128-gcm, key: '000102030405060708090a0b0c0d0e0f10111213'";
        let inbound = format!(
            "{{ipsec: {{inbound: [{{name: a, spi: 256, {key}, destination: 192.0.2.1}}]}}}}"
        );
        let outbound = format!(
            "{{ipsec: {{outbound: [{{name: a, spi: 256, {key}, source: 192.0.2.2, destination: 192.0.2.1}}], \
             policies: [{{protect: a}}]}}}}"
        );
        let (nat, acl) = (
            "{nat: {external: [203.0.113.1]}}",
            "{acl: {rules: [{action: deny}]}}",
        );
        let uncached = acl.replace("{acl: {", "{acl: {cache: none, ");
        for functions in [
            format!("[{nat}, {inbound}]"),
            format!("[{inbound}, {uncached}, {{forward: {{}}}}]"),
            format!("[{nat}, {outbound}, {acl}]"),
        ] {
            builder(&functions);
        }
        for function in &spec(&format!("[{inbound}, {{forward: {{}}}}]")).functions {
            let refused = by_itself(function, &RssHasher::default(), [0, 1]).is_err();
            assert_eq!(refused, function.name == "ipsec");
        }
        for (functions, wrong) in [
            (format!("[{inbound}, {{forward: {{}}}}, {nat}]"), "nat"),
            (format!("[{inbound}, {acl}]"), "acl"),
        ] {
            let error = ChainBuilder::new(&spec(&functions), &RssHasher::default(), 1)
                .err()
                .unwrap();
            let expected =
                format!("function {wrong} keeps state for each flow, and cannot be behind ipsec");
            assert!(error.to_string().starts_with(&expected), "{error}");
        }
    }

    #[test]
    fn every_bucket_goes_to_one_worker() {
        let mut builder = builder("[{nat: {external: [203.0.113.1]}}]");
        let even = builder.instance(|bucket| bucket % 2 == 0);
        let rest = builder.instance(|_| true);
        let none = builder.instance(|_| true);
        assert_eq!([&even, &rest, &none].map(Chain::buckets), [256, 256, 0]);
    }
}
