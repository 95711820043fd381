//! Builds runnable chains from a chain spec, one instance for each worker.

mod error;
mod isolated;
mod kept;
mod reconfigure;

pub use crate::kind::{IsolationContext, Requirements};
pub use error::BuildError;
pub use isolated::{Records, build_isolated, check_apart};
pub use kept::KeptFunction;
pub use reconfigure::{AppliedUpdate, PendingUpdates, Reconfigure};

use crate::accounting::{ExportError, Exported};
use crate::kind::{BuildContext, FunctionFactory};
use crate::spec::{ChainSpec, places};
use std::any::Any;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};
use tailwater_chain::branches::{BranchSet, PathTable, can_follow, of_classifier, routes};
use tailwater_chain::chain::{
    Chain, Cuts, DurableFunction, InputPolicy, durable_functions, state_bytes_with_cuts, state_bytes_with_persistence,
};
use tailwater_chain::flow_table::{FlowTable, FlowTableConfig, FlowTableMemory, Partition};
use tailwater_chain::function::NetworkFunction;
use tailwater_net::Nanos;
use tailwater_net::toeplitz::RssHasher;

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

/// Returns `true` if the function, or the isolated function for which it is the proxy, has flow state.
fn has_state(function: &dyn NetworkFunction) -> bool {
    match function.remote() {
        Some(remote) => remote.has_state(),
        None => function.state_bytes() > 0,
    }
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
            .find(|((_, function), route)| has_state(&**function) && route.within.and(route.gone).meets(branches));
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

/// Factory of a chain's instances for workers.
pub struct ChainBuilder {
    functions: Vec<(String, Arc<dyn FunctionFactory>)>,
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
    /// Flows are connections: both directions are found under one key.
    connections: bool,
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
        ChainBuilder::make((spec, Vec::new()), rss, seed, (cuts, &[]))
    }

    /// Same as [`with_cuts`](ChainBuilder::with_cuts), for a chain that takes the place of another one, whose factories
    /// `kept` it [keeps](Reconfigure::kept_by).
    ///
    /// # Errors
    /// Same as [`new`](ChainBuilder::new).
    pub fn succeeding(
        spec: &ChainSpec,
        rss: &RssHasher,
        seed: u64,
        cuts: Cuts,
        kept: &[KeptFunction],
    ) -> Result<ChainBuilder, BuildError> {
        ChainBuilder::make((spec, Vec::new()), rss, seed, (cuts, kept))
    }

    fn make(
        (spec, others): (&ChainSpec, Named),
        rss: &RssHasher,
        seed: u64,
        (cuts, kept): (Cuts, &[KeptFunction]),
    ) -> Result<ChainBuilder, BuildError> {
        let branches = &spec.branches[..];
        let paths = PathTable::new(branches, &places(&spec.functions)).ok_or(BuildError::PathTable)?;
        let functions = spec
            .functions
            .iter()
            .filter(|function| others.iter().all(|(other, _)| *other != function.name))
            .map(|function| {
                if let Some(kept) = kept.iter().find(|kept| kept.name() == function.name) {
                    return Ok(kept.function.clone());
                }
                let context = BuildContext {
                    name: &function.name,
                    rss,
                    capacity: spec.flows.capacity as usize,
                    seed,
                    branches,
                    paths: &paths,
                };
                match function.config.build(&context) {
                    Ok(factory) => Ok((function.name.clone(), Arc::from(factory))),
                    Err(source) => Err(BuildError::Function {
                        function: function.name.clone(),
                        source,
                    }),
                }
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
            connections: false,
        };
        let mut instances = builder.instances(others);
        let mut functions = instances.iter();
        builder.connections = functions.any(|(_, function)| function.properties().tracks_connections);
        if let Some(kept) = kept.iter().find(|kept| kept.connections != builder.connections) {
            return Err(BuildError::OtherKeys {
                function: kept.name().to_owned(),
            });
        }
        let places = places(&spec.functions);
        let has = instances.iter().map(|(name, function)| {
            let has_state = function.state_bytes() > 0;
            (&**name, [function.properties().mixes_flows, has_state])
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
        ChainBuilder::make((spec, others), rss, seed, (Cuts::NONE, &[]))
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
        let own = own.map(|(name, factory)| (name.clone(), factory.instance()));
        let mut all: Vec<_> = own.chain(others).collect();
        let functions = &self.read.functions;
        all.sort_by_key(|(name, _)| functions.iter().position(|it| it.name == *name));
        all
    }

    /// Table that the instances of the named function share, if it has type `T`. It can be read and changed while
    /// workers run.
    pub fn table<T: Any + Send + Sync>(&self, name: &str) -> Option<Arc<T>> {
        let mut functions = self.functions.iter();
        let (_, factory) = functions.find(|(function, _)| function == name)?;
        factory.table()?.downcast().ok()
    }

    /// Waits until all flow records and alerts are in their files, but for those of functions that a successor has
    /// `kept`. Every [`instance`](Self::instance) of the others must have [drained](Chain::drain), or the call never
    /// returns.
    ///
    /// # Errors
    /// If a file is incomplete: the error names the first one.
    pub fn finish_exports(&self, kept: &[String]) -> Result<Vec<Exported>, ExportError> {
        let functions = self.functions.iter().filter(|(name, _)| !kept.contains(name));
        // Finishes all of them even after an error, so that no thread remains.
        let finished: Vec<_> = functions.map(|(_, factory)| factory.finish_exports()).collect();
        let finished = finished.into_iter().collect::<Result<Vec<_>, _>>()?;
        Ok(finished.into_iter().flatten().collect())
    }

    /// Sets the wall-clock time at which the run's clock started, for flow state kept in Redis. Must precede the first
    /// [`instance`](Self::instance).
    pub fn set_origin(&mut self, origin: Nanos) {
        self.origin = self.origin.map(|_| origin);
    }

    /// Functions whose state is kept in Redis, and the size of a row in bytes; `None` if there are none.
    pub fn durable_functions(&self) -> Option<(Vec<DurableFunction>, usize)> {
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

    /// Memory of the flow table, over all workers; `None` if there is none.
    pub fn flow_memory(&self) -> Option<FlowTableMemory> {
        self.flows.as_ref().map(|(table, _)| table.memory())
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
    /// up](Chain::look_up), or packets of buckets that it has lent.
    ///
    /// # Safety
    /// While this instance runs a packet from one of the [segments](Chain::segments) on, no other instance runs a
    /// packet of the same flow through these segments. Earlier accesses of other instances to the flow there happened
    /// before. The flow is [active](Chain::activate) in the instance that looked it up.
    ///
    /// With `lent_buckets`, packets arrive that were not looked up, too. While this instance has one, every other
    /// instance that holds its bucket has [lent](Chain::lend) it. Earlier uses of the bucket happened before.
    pub unsafe fn auxiliary_instance(&self, lent_buckets: bool) -> Chain {
        // SAFETY: guaranteed by the caller.
        unsafe { self.auxiliary_instance_of(Vec::new(), lent_buckets) }
    }

    /// Same as [`auxiliary_instance`](ChainBuilder::auxiliary_instance), with these functions, which were created
    /// elsewhere.
    ///
    /// # Safety
    /// Same as [`auxiliary_instance`](ChainBuilder::auxiliary_instance).
    pub unsafe fn auxiliary_instance_of(&self, others: Named, lent_buckets: bool) -> Chain {
        let table = self.flows.as_ref();
        let table = table.map(|(table, _)| match lent_buckets {
            // SAFETY: guaranteed by the caller.
            true => unsafe { table.for_lent_buckets() },
            // SAFETY: guaranteed by the caller.
            false => unsafe { table.for_migrated_flows() },
        });
        if let (Some(origin), Some(_), true) = (self.origin, &table, lent_buckets) {
            return Chain::with_external_state(self.instances(others), table, self.input, origin);
        }
        self.branching(Chain::with_cuts(self.instances(others), table, self.input, self.cuts))
    }
}

#[cfg(test)]
mod tests;
