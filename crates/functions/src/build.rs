//! Builds runnable chains from a chain spec, one instance for each worker.

mod error;
mod isolated;
mod reconfigure;

pub use error::BuildError;
pub use isolated::{IsolationContext, Records, Requirements, build_isolated, check_apart};
pub use reconfigure::{Changes, Put, Reconfigure};

use crate::accounting::{Accounting, AccountingTable, ExportError, Exported};
use crate::acl::classifier::ClassifierError;
use crate::acl::{Acl, AclTable};
use crate::bpf_filter::{BpfFilter, BpfRules};
use crate::classifier::{Classifier, ClassifierRules, ClassifierTable};
use crate::count::{Count, CountTable, Counters};
use crate::dns_guard::{DnsGuard, DnsGuardTable};
use crate::encrypt::{Encrypt, EncryptRules, PacketNumbers};
use crate::firewall::{Firewall, FirewallTable};
use crate::flow_stats::{FlowStats, FlowStatsTable};
use crate::forward::Forward;
use crate::ids::{Ids, IdsTable};
use crate::ip_forward::function::ForwardOptions;
use crate::ip_forward::{IpForward, RouteTable};
use crate::ipsec::{Ipsec, IpsecTable};
use crate::library::LibraryFunction;
use crate::load_balancer::{LoadBalancer, LoadBalancerTable};
use crate::mirror::{Mirror, MirrorRules, MirrorTable};
use crate::nat::{Nat, NatRules, NatTable};
use crate::policer::{Policer, PolicerRules};
use crate::spec::{
    ChainSpec, ClassifierConfig, ForeignFunction, FunctionConfig, IpForwardConfig, MirrorConfig, NatConfig,
    OwnFunction, TunnelConfig, places,
};
use crate::synthetic::{Memory, Synthetic, Work, WorkingSet};
use crate::tunnel::{Action, Tunnel, TunnelRules};
use crate::upf::{Services, Upf, UpfTable};
use crate::url_filter::{FilterTable, UrlFilter};
use crate::wan_optimizer::{WanOptimizer, WanTable};
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};
use tailwater_api::PacketAction;
use tailwater_chain::branches::{Branch, BranchSet, PathTable, can_follow, of_classifier, routes};
use tailwater_chain::chain::{
    Chain, Cuts, DurableFunction, InputPolicy, durable_functions, state_bytes_with_cuts, state_bytes_with_persistence,
};
use tailwater_chain::flow_table::{FlowTable, FlowTableConfig, Partition};
use tailwater_chain::function::NetworkFunction;
use tailwater_chain::live::Live;
use tailwater_net::Nanos;
use tailwater_net::toeplitz::RssHasher;

/// State that all workers' instances of a function share, ready to create instances.
enum Shared {
    /// Rules, and `true` if decisions are cached with flows.
    Acl(Arc<AclTable>, bool),
    Nat(Arc<Live<NatTable>>, RssHasher),
    LoadBalancer(Arc<LoadBalancerTable>),
    Accounting(Arc<AccountingTable>),
    FlowStats(Arc<FlowStatsTable>),
    Mirror(Arc<MirrorTable>),
    Encrypt(Arc<Live<EncryptRules>>, Arc<PacketNumbers>),
    UrlFilter(Arc<FilterTable>),
    Forward(Forward),
    IpForward(Arc<Live<RouteTable>>, ForwardOptions),
    Tunnel(Arc<Live<TunnelRules>>, bool),
    Policer(Arc<Live<PolicerRules>>),
    DnsGuard(Arc<DnsGuardTable>),
    BpfFilter(Arc<Live<BpfRules>>),
    Count(Arc<CountTable>),
    Ipsec(Arc<Live<IpsecTable>>),
    Firewall(Arc<FirewallTable>),
    Ids(Arc<IdsTable>),
    /// Sessions, and the services that run in the background.
    Upf(Arc<UpfTable>, Services),
    Synthetic(Arc<Live<Work>>, Memory),
    WanOptimizer(Arc<WanTable>),
    /// Rules, and `true` if decisions are cached with flows.
    Classifier(Arc<ClassifierTable>, bool),
    Library(LibraryFunction),
    Own(OwnFunction),
}

impl Shared {
    fn new(
        name: &str,
        config: &FunctionConfig,
        rss: &RssHasher,
        (capacity, seed): (usize, u64),
        (branches, ways): (&[Branch], &PathTable),
    ) -> Result<Shared, BuildError> {
        Ok(match config {
            FunctionConfig::Acl(acl) => {
                let table = AclTable::new(&acl.rules, acl.default).map_err(|source| BuildError::Classifier {
                    function: name.to_owned(),
                    source,
                })?;
                Shared::Acl(Arc::new(table), acl.cached)
            }
            FunctionConfig::Nat(nat) => {
                let table = NatTable::new(nat_rules(nat), rss.clone());
                Shared::Nat(Arc::new(Live::new(table)), rss.clone())
            }
            FunctionConfig::LoadBalancer(config) => {
                let drop_others = config.no_service == PacketAction::Drop;
                let table = LoadBalancerTable::new(&config.services, config.table_size, drop_others);
                Shared::LoadBalancer(Arc::new(table.map_err(|source| BuildError::LoadBalancer {
                    function: name.to_owned(),
                    source,
                })?))
            }
            FunctionConfig::Accounting(config) => {
                let table = match &config.export {
                    None => AccountingTable::new(),
                    Some(export) => AccountingTable::with_export(&export.file, export.format).map_err(|source| {
                        BuildError::Export {
                            function: name.to_owned(),
                            source,
                        }
                    })?,
                };
                Shared::Accounting(Arc::new(table))
            }
            FunctionConfig::FlowStats(config) => {
                let table = FlowStatsTable::new(config.options.clone());
                Shared::FlowStats(Arc::new(table.map_err(|source| BuildError::Export {
                    function: name.to_owned(),
                    source,
                })?))
            }
            FunctionConfig::Mirror(config) => {
                let rules = mirror_rules(config).map_err(|source| BuildError::Mirror {
                    function: name.to_owned(),
                    source,
                })?;
                let table = MirrorTable::new(config.options.clone(), rules);
                Shared::Mirror(Arc::new(table.map_err(|source| BuildError::Export {
                    function: name.to_owned(),
                    source,
                })?))
            }
            FunctionConfig::UrlFilter(config) => {
                let table = FilterTable::new(&config.patterns, config.filter.clone());
                Shared::UrlFilter(Arc::new(table.map_err(|source| BuildError::UrlPatterns {
                    function: name.to_owned(),
                    source,
                })?))
            }
            FunctionConfig::Encrypt(config) => {
                let numbers = Arc::new(PacketNumbers::starting_now());
                Shared::Encrypt(Arc::new(Live::new(config.rules.clone())), numbers)
            }
            FunctionConfig::Forward(forward) => {
                Shared::Forward(Forward::new(forward.source_mac, forward.destination_mac))
            }
            FunctionConfig::IpForward(config) => {
                let table = route_table(config).map_err(|source| BuildError::Routes {
                    function: name.to_owned(),
                    source,
                })?;
                let options = ForwardOptions {
                    pass_local: config.local == PacketAction::Pass,
                    in_flow: config.cached,
                };
                Shared::IpForward(Arc::new(Live::new(table)), options)
            }
            FunctionConfig::Tunnel(config) => Shared::Tunnel(Arc::new(Live::new(tunnel_rules(config))), config.cached),
            FunctionConfig::Count(config) => {
                let counters = Counters::new(config.counters.clone());
                Shared::Count(Arc::new(CountTable::new(counters)))
            }
            FunctionConfig::Policer(config) => {
                let rules = PolicerRules::new(config.limits.clone(), config.default);
                Shared::Policer(Arc::new(Live::new(rules)))
            }
            FunctionConfig::BpfFilter(config) => {
                let rules = BpfRules::new(&config.rules, config.default);
                let rules = rules.map_err(|(rule, source)| BuildError::Program {
                    function: name.to_owned(),
                    rule: rule + 1,
                    source,
                })?;
                Shared::BpfFilter(Arc::new(Live::new(rules)))
            }
            FunctionConfig::DnsGuard(config) => {
                let table = DnsGuardTable::new(config.rules.clone(), config.sizes, seed);
                Shared::DnsGuard(Arc::new(table))
            }
            FunctionConfig::Ipsec(config) => {
                let table = IpsecTable::new(&config.rules).map_err(|source| BuildError::Ipsec {
                    function: name.to_owned(),
                    source,
                })?;
                Shared::Ipsec(Arc::new(Live::new(table)))
            }
            FunctionConfig::Firewall(config) => {
                let rules = (&config.zones[..], &config.rules[..], config.default);
                let table = FirewallTable::new(rules, config.options, capacity, seed);
                let table = table.map_err(|source| BuildError::Firewall {
                    function: name.to_owned(),
                    source,
                })?;
                Shared::Firewall(Arc::new(table))
            }
            FunctionConfig::Upf(config) => {
                let started = crate::upf::start(config, seed);
                let (table, services) = started.map_err(|source| BuildError::Upf {
                    function: name.to_owned(),
                    source,
                })?;
                Shared::Upf(table, services)
            }
            FunctionConfig::WanOptimizer(config) => {
                let table = WanTable::new(config.options.clone(), config.destinations.clone());
                Shared::WanOptimizer(Arc::new(table.map_err(|source| BuildError::Caches {
                    function: name.to_owned(),
                    source,
                })?))
            }
            FunctionConfig::Classifier(config) => {
                let rules = classifier_rules(config).map_err(|source| BuildError::Classifier {
                    function: name.to_owned(),
                    source,
                })?;
                let of_chain = |target: &str| {
                    let mut own = of_classifier(branches, name);
                    own.find(|(_, branch)| branch.name == target).map(|(at, _)| at)
                };
                let targets = config.names();
                let targets: Vec<_> = targets.iter().map(|(target, _)| (*target, of_chain(target))).collect();
                let table = ClassifierTable::new(rules, &targets, ways);
                Shared::Classifier(Arc::new(table), config.cached)
            }
            FunctionConfig::Synthetic(config) => {
                // Each instance allocates its own working set; the check here means that it cannot fail later.
                WorkingSet::new(&config.memory).map_err(|source| BuildError::WorkingSet {
                    function: name.to_owned(),
                    source,
                })?;
                Shared::Synthetic(Arc::new(Live::new(config.work)), config.memory)
            }
            FunctionConfig::Ids(config) => {
                let rules = (&config.sources, &config.loaded);
                let table = IdsTable::new(rules, &config.options, seed);
                Shared::Ids(Arc::new(table.map_err(|source| BuildError::Ids {
                    function: name.to_owned(),
                    source,
                })?))
            }
            FunctionConfig::Library(library) => Shared::foreign(name, library.foreign())?,
            FunctionConfig::Program(program) => Shared::foreign(name, program.foreign())?,
            FunctionConfig::External(_) => {
                return Err(BuildError::External {
                    function: name.to_owned(),
                });
            }
            FunctionConfig::Own(own) => Shared::Own(own.clone()),
        })
    }

    fn foreign(name: &str, foreign: &ForeignFunction) -> Result<Shared, BuildError> {
        let loaded = foreign.loaded.clone();
        let function = name.to_owned();
        let loaded = loaded.ok_or(BuildError::Apart { function })?;
        Ok(Shared::Library(loaded))
    }

    /// Waits until the output of all instances, which have finished, is in its files and sent to collectors.
    fn finish_exports(&self) -> Result<Vec<Exported>, ExportError> {
        let one = |exported: Option<Exported>| exported.into_iter().collect();
        match self {
            Shared::Accounting(table) => table.finish().map(one),
            Shared::FlowStats(table) => table.finish(),
            Shared::Mirror(table) => table.finish().map(one),
            Shared::Upf(_, services) => services.finish().map(one),
            Shared::Ids(table) => table.finish().map(one),
            _ => Ok(Vec::new()),
        }
    }

    fn instance(&self) -> Box<dyn NetworkFunction> {
        match self {
            Shared::Acl(table, true) => Box::new(Acl::new(Arc::clone(table))),
            Shared::Acl(table, false) => Box::new(Acl::without_flows(Arc::clone(table))),
            Shared::Nat(table, _) => Box::new(Nat::new(Arc::clone(table))),
            Shared::LoadBalancer(table) => Box::new(LoadBalancer::new(Arc::clone(table))),
            Shared::Accounting(table) => Box::new(Accounting::new(Arc::clone(table))),
            Shared::FlowStats(table) => Box::new(FlowStats::new(Arc::clone(table))),
            Shared::Mirror(table) => Box::new(Mirror::new(Arc::clone(table))),
            Shared::UrlFilter(table) => Box::new(UrlFilter::new(Arc::clone(table))),
            Shared::Encrypt(rules, numbers) => Box::new(Encrypt::new(Arc::clone(rules), Arc::clone(numbers))),
            Shared::Forward(forward) => Box::new(forward.clone()),
            Shared::IpForward(table, options) => Box::new(IpForward::new(Arc::clone(table), *options)),
            Shared::Tunnel(rules, in_flow) => Box::new(Tunnel::new(Arc::clone(rules), *in_flow)),
            Shared::Count(table) => Box::new(Count::new(Arc::clone(table))),
            Shared::Policer(rules) => Box::new(Policer::new(Arc::clone(rules))),
            Shared::BpfFilter(rules) => Box::new(BpfFilter::new(Arc::clone(rules))),
            Shared::DnsGuard(table) => Box::new(DnsGuard::new(Arc::clone(table))),
            Shared::Ipsec(table) => Box::new(Ipsec::new(Arc::clone(table))),
            Shared::Firewall(table) => Box::new(Firewall::new(Arc::clone(table))),
            Shared::Ids(table) => Box::new(Ids::new(Arc::clone(table))),
            Shared::Upf(table, _) => Box::new(Upf::new(Arc::clone(table))),
            Shared::Synthetic(work, memory) => Box::new(Synthetic::new(Arc::clone(work), memory)),
            Shared::WanOptimizer(table) => Box::new(WanOptimizer::new(Arc::clone(table))),
            Shared::Classifier(table, true) => Box::new(Classifier::new(Arc::clone(table))),
            Shared::Classifier(table, false) => Box::new(Classifier::without_flows(Arc::clone(table))),
            Shared::Library(function) => Box::new(function.instance()),
            Shared::Own(own) => own.instance(),
        }
    }
}

fn nat_rules(nat: &NatConfig) -> NatRules {
    NatRules {
        external: nat.external.iter().flat_map(addresses).collect(),
        internal: nat.internal.clone(),
        ports: nat.ports.clone(),
        drop_others: nat.other_protocols == PacketAction::Drop,
        drop_inbound: nat.inbound == PacketAction::Drop,
    }
}

fn route_table(config: &IpForwardConfig) -> Result<RouteTable, crate::ip_forward::TableError> {
    let (routes, default) = (&config.routes, config.default);
    RouteTable::new(routes, default, &config.next_hops, config.source_mac)
}

fn tunnel_rules(config: &TunnelConfig) -> TunnelRules {
    let default = match config.default {
        PacketAction::Pass => Action::Pass,
        PacketAction::Drop => Action::Drop,
    };
    TunnelRules::new(&config.rules, default)
}

fn mirror_rules(config: &MirrorConfig) -> Result<MirrorRules, crate::bpf_filter::VerifyError> {
    MirrorRules::new(config.program.as_deref(), config.sampling, config.snap)
}

/// Rules of a classifier, with their targets as indices into its [names](ClassifierConfig::names).
fn classifier_rules(config: &ClassifierConfig) -> Result<ClassifierRules, ClassifierError> {
    let names = config.names();
    let place = |target| names.iter().position(|(_, known)| *known == target);
    let place = |target| place(target).unwrap_or_default() as u8;
    let targets = config.targets.iter().map(|target| place(*target)).collect();
    ClassifierRules::new(&config.rules, targets, place(config.default), config.both)
}

/// Checks that no function with flow state follows one that mixes flows. `functions` yields each function's name,
/// whether it mixes flows, and whether it has state. `follow` returns `true` if packets can pass the first function and
/// then the second.
fn check_mixed_flows<'f>(
    functions: impl Iterator<Item = (&'f str, [bool; 2])>,
    follow: impl Fn(usize, usize) -> bool,
) -> Result<(), BuildError> {
    let mut mixing: Vec<(usize, &str)> = Vec::new();
    for (at, (name, [mixes, has_state])) in functions.enumerate() {
        let mut in_front = mixing.iter();
        let behind = in_front.find(|(before, _)| has_state && follow(*before, at));
        if let Some((_, behind)) = behind {
            return Err(BuildError::MixedFlows {
                function: name.to_owned(),
                behind: str::to_owned(behind),
            });
        }
        if mixes {
            mixing.push((at, name));
        }
    }
    Ok(())
}

/// Checks that a classifier caches its decision with the flow if only some functions with state see its packets.
fn check_cached_paths(spec: &ChainSpec, functions: &[(String, Box<dyn NetworkFunction>)]) -> Result<(), BuildError> {
    let routes = routes(&spec.branches, &places(&spec.functions));
    for (classifier, _) in functions.iter().filter(|(_, function)| function.state_bytes() == 0) {
        let branches = of_classifier(&spec.branches, classifier);
        let branches: BranchSet = branches.map(|(at, _)| BranchSet::with_branch(at)).collect();
        let decided = functions
            .iter()
            .zip(&routes)
            .find(|((_, function), route)| function.has_own_state() && route.within.and(route.gone).meets(branches));
        if let Some(((function, _), _)) = decided {
            return Err(BuildError::Uncached {
                function: function.clone(),
                classifier: classifier.clone(),
            });
        }
    }
    Ok(())
}

/// Wall-clock time since 1970.
fn wall_clock() -> Nanos {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    Nanos(since.map_or(0, |since| since.as_nanos() as u64))
}

/// Iterates over every address of a prefix; a NAT may use the first and the last as well.
fn addresses(prefix: &ipnet::Ipv4Net) -> impl Iterator<Item = std::net::Ipv4Addr> + use<> {
    let (first, last) = (prefix.network().to_bits(), prefix.broadcast().to_bits());
    (first..=last).map(std::net::Ipv4Addr::from_bits)
}

/// Factory of a chain's instances for workers.
pub struct ChainBuilder {
    functions: Vec<(String, Arc<Shared>)>,
    input: InputPolicy,
    cuts: Cuts,
    /// Spec that the chain was built from.
    read: ChainSpec,
    /// Wall-clock time at which the run's clock started, if flow state is kept in Redis.
    origin: Option<Nanos>,
    /// Functions whose state is kept in Redis, and the size of a row in bytes.
    kept: Option<(Vec<DurableFunction>, usize)>,
    /// First view of the flow table, and the partitions not assigned yet.
    flows: Option<(FlowTable, Vec<Partition>)>,
}

/// Functions with their names.
type Named = Vec<(String, Box<dyn NetworkFunction>)>;

impl ChainBuilder {
    /// Prepares the state that all instances share. `rss` is the hash of the port that feeds the chain; `seed` keys the
    /// flow table's hash.
    ///
    /// # Errors
    /// If an access list or the flow table is too large, or if functions cannot be combined.
    pub fn new(spec: &ChainSpec, rss: &RssHasher, seed: u64) -> Result<ChainBuilder, BuildError> {
        ChainBuilder::with_cuts(spec, rss, seed, Cuts::NONE)
    }

    /// Same as [`new`](ChainBuilder::new), for a chain that may be cut at these functions when a flow exceeds one core.
    /// Each cut may cost each flow a cache line.
    ///
    /// # Errors
    /// Same as [`new`](ChainBuilder::new).
    pub fn with_cuts(spec: &ChainSpec, rss: &RssHasher, seed: u64, cuts: Cuts) -> Result<ChainBuilder, BuildError> {
        ChainBuilder::make((spec, Vec::new()), rss, seed, cuts)
    }

    fn make(
        (spec, others): (&ChainSpec, Named),
        rss: &RssHasher,
        seed: u64,
        cuts: Cuts,
    ) -> Result<ChainBuilder, BuildError> {
        let flows = (spec.flows.capacity as usize, seed);
        let branches = &spec.branches[..];
        let ways = PathTable::new(branches, &places(&spec.functions)).ok_or(BuildError::Ways)?;
        let functions = spec
            .functions
            .iter()
            .filter(|function| others.iter().all(|(other, _)| *other != function.name))
            .map(|function| {
                let (name, config) = (&function.name, &function.config);
                let shared = Shared::new(name, config, rss, flows, (branches, &ways))?;
                Ok((function.name.clone(), Arc::new(shared)))
            })
            .collect::<Result<Vec<_>, BuildError>>()?;
        let mut builder = ChainBuilder {
            functions,
            input: InputPolicy {
                malformed: spec.packets.malformed,
                non_ip: spec.packets.non_ip,
            },
            cuts,
            read: spec.clone(),
            origin: None,
            kept: None,
            flows: None,
        };
        let mut instances = builder.instances(others);
        let places = places(&spec.functions);
        let has = instances.iter().map(|(name, function)| {
            let has_state = function.state_bytes() > 0;
            (&**name, [function.mixes_flows(), has_state])
        });
        check_mixed_flows(has, |before, behind| {
            can_follow(&spec.branches, &places, [before, behind])
        })?;
        check_cached_paths(spec, &instances)?;
        builder.make_flows_of(spec, &mut instances, seed)?;
        Ok(builder)
    }

    /// Same as [`new`](ChainBuilder::new), for a chain in which the functions of `others` are created elsewhere. Their
    /// instances are passed with each chain [instance](ChainBuilder::instance_of); the ones here are prototypes.
    ///
    /// # Errors
    /// Same as [`new`](ChainBuilder::new).
    pub fn with_others(
        spec: &ChainSpec,
        rss: &RssHasher,
        seed: u64,
        others: Vec<(String, Box<dyn NetworkFunction>)>,
    ) -> Result<ChainBuilder, BuildError> {
        ChainBuilder::make((spec, others), rss, seed, Cuts::NONE)
    }

    /// Creates the flow table if these functions need one.
    fn make_flows_of(
        &mut self,
        spec: &ChainSpec,
        functions: &mut [(String, Box<dyn NetworkFunction>)],
        seed: u64,
    ) -> Result<(), BuildError> {
        self.kept = spec.state.as_ref().and_then(|_| durable_functions(functions));
        self.origin = self.kept.as_ref().map(|_| wall_clock());
        let state_bytes = match self.kept {
            Some(_) => state_bytes_with_persistence(functions),
            None => state_bytes_with_cuts(functions, self.cuts),
        };
        self.make_flows(spec, state_bytes, seed)
    }

    /// Creates the flow table if the chain needs one.
    fn make_flows(&mut self, spec: &ChainSpec, state_bytes: usize, seed: u64) -> Result<(), BuildError> {
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

    /// Creates an instance of each function, in the chain's order, with `others` in place of those made elsewhere.
    fn instances(&self, others: Named) -> Named {
        let own = self.functions.iter();
        let own = own.map(|(name, shared)| (name.clone(), shared.instance()));
        let mut all: Vec<_> = own.chain(others).collect();
        let functions = &self.read.functions;
        all.sort_by_key(|(name, _)| functions.iter().position(|it| it.name == *name));
        all
    }

    /// Table of the named load balancer, to change its backends while workers run.
    pub fn load_balancer(&self, name: &str) -> Option<Arc<LoadBalancerTable>> {
        self.functions.iter().find_map(|(function, shared)| match &**shared {
            Shared::LoadBalancer(table) if function == name => Some(Arc::clone(table)),
            _ => None,
        })
    }

    /// Totals of the named accounting function, shared by its instances.
    pub fn accounting(&self, name: &str) -> Option<Arc<AccountingTable>> {
        self.functions.iter().find_map(|(function, shared)| match &**shared {
            Shared::Accounting(table) if function == name => Some(Arc::clone(table)),
            _ => None,
        })
    }

    /// Table of the named classifier, to change its rules while workers run.
    pub fn classifier(&self, name: &str) -> Option<Arc<ClassifierTable>> {
        self.functions.iter().find_map(|(function, shared)| match &**shared {
            Shared::Classifier(table, _) if function == name => Some(Arc::clone(table)),
            _ => None,
        })
    }

    /// Table of the named firewall, to change its rules while workers run.
    pub fn firewall(&self, name: &str) -> Option<Arc<FirewallTable>> {
        self.functions.iter().find_map(|(function, shared)| match &**shared {
            Shared::Firewall(table) if function == name => Some(Arc::clone(table)),
            _ => None,
        })
    }

    /// Table of the named IDS, to change its rules while workers run.
    pub fn ids(&self, name: &str) -> Option<Arc<IdsTable>> {
        self.functions.iter().find_map(|(function, shared)| match &**shared {
            Shared::Ids(table) if function == name => Some(Arc::clone(table)),
            _ => None,
        })
    }

    /// Table of the named user plane function, to change its sessions while workers run.
    pub fn upf(&self, name: &str) -> Option<Arc<UpfTable>> {
        self.functions.iter().find_map(|(function, shared)| match &**shared {
            Shared::Upf(table, _) if function == name => Some(Arc::clone(table)),
            _ => None,
        })
    }

    /// Waits until all flow records and alerts are in their files. Every [`instance`](Self::instance) must have
    /// [drained](Chain::drain), or the call never returns.
    ///
    /// # Errors
    /// If a file is incomplete: the error names the first one.
    pub fn finish_exports(&self) -> Result<Vec<Exported>, ExportError> {
        let functions = self.functions.iter();
        // Finishes all of them even after an error, so that no thread remains.
        let finished: Vec<_> = functions.map(|(_, shared)| shared.finish_exports()).collect();
        let finished = finished.into_iter().collect::<Result<Vec<_>, _>>()?;
        Ok(finished.into_iter().flatten().collect())
    }

    /// Sets the wall-clock time at which the run's clock started, for flow state kept in Redis. Must precede the first
    /// [`instance`](Self::instance).
    pub fn set_origin(&mut self, origin: Nanos) {
        self.origin = self.origin.map(|_| origin);
    }

    /// Functions whose state is kept in Redis, and the size of a row in bytes; `None` if there are none.
    pub fn kept_functions(&self) -> Option<(Vec<DurableFunction>, usize)> {
        self.kept.clone()
    }

    /// Wall-clock time at which the run's clock started, if flow state is kept in Redis.
    pub fn origin(&self) -> Option<Nanos> {
        self.origin
    }

    /// Returns `true` if the chain looks flows up.
    pub fn has_flows(&self) -> bool {
        self.flows.is_some()
    }

    /// Size of the flow table in bytes, over all workers; 0 if there is none.
    pub fn flow_memory_bytes(&self) -> usize {
        self.flows.as_ref().map_or(0, |(table, _)| table.memory_bytes())
    }

    /// Creates an instance for the worker that owns the buckets for which `owns` returns `true`. A bucket is assigned
    /// at most once: a second worker does not receive it.
    pub fn instance(&mut self, owns: impl Fn(u16) -> bool) -> Chain {
        self.instance_of(Vec::new(), owns)
    }

    /// Same as [`instance`](ChainBuilder::instance), with these functions, which were created elsewhere.
    ///
    /// # Panics
    /// If they have more state than their prototypes [given to the builder](ChainBuilder::with_others).
    pub fn instance_of(
        &mut self,
        others: Vec<(String, Box<dyn NetworkFunction>)>,
        owns: impl Fn(u16) -> bool,
    ) -> Chain {
        let functions = self.instances(others);
        let Some((table, free)) = &mut self.flows else {
            return self.branching(Chain::with_cuts(functions, None, self.input, self.cuts));
        };
        let mut view = table.sharing();
        free.extract_if(.., |partition| owns(partition.bucket()))
            .for_each(|partition| view.adopt(partition));
        if let Some(origin) = self.origin {
            return Chain::with_external_state(functions, Some(view), self.input, origin);
        }
        let chain = Chain::with_cuts(functions, Some(view), self.input, self.cuts);
        self.branching(chain)
    }

    /// Adds the spec's branches to the chain.
    fn branching(&self, chain: Chain) -> Chain {
        let functions = self.read.functions.iter();
        let within: Vec<_> = functions.map(|function| function.branch).collect();
        chain.with_branches(&self.read.branches, &within)
    }

    /// Creates an instance for an auxiliary core, which receives packets that another instance has [looked
    /// up](Chain::look_up).
    ///
    /// # Safety
    /// While this instance runs a packet from one of the [segments](Chain::segments) on, no other instance runs a
    /// packet of the same flow through these segments. Earlier accesses of other instances to the flow there happened
    /// before. The flow is [active](Chain::activate) in the instance that looked it up.
    pub unsafe fn helper_instance(&self) -> Chain {
        let table = self.flows.as_ref();
        // SAFETY: guaranteed by the caller.
        let table = table.map(|(table, _)| unsafe { table.for_migrated_flows() });
        self.branching(Chain::with_cuts(
            self.instances(Vec::new()),
            table,
            self.input,
            self.cuts,
        ))
    }
}

#[cfg(test)]
mod tests;
