//! Independent check of a plan against its curves. It shares only two things with the code that made the plan: reading
//! a curve between its points ([`curve`](crate::curve)) and the discount for isolation. Free resources, rates and the
//! locations of instances are recomputed.

use crate::cluster::Cluster;
use crate::plan::Placed;
use crate::slo::{ISOLATED, Target};
use std::collections::HashMap;
use tailwater_net::Nanos;

/// Violation found in a plan.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum Violation {
    /// An instance is on a server or node that does not exist, or on a machine that its chain was not measured on.
    #[error("{slo}: instance {instance} is not placed")]
    Nowhere {
        /// Name of the SLO.
        slo: String,
        /// Number of the instance.
        instance: usize,
    },
    /// More cores, ways or classes of a node are assigned than it has.
    #[error("server {server}, node {node}: {given} {what} assigned, {has} available")]
    Overcommitted {
        /// Number of the server.
        server: usize,
        /// NUMA node.
        node: u16,
        /// Resource.
        what: &'static str,
        /// Assigned amount.
        given: u32,
        /// Available amount.
        has: u32,
    },
    /// The instances together do not reach the target rate.
    #[error("{slo}: {rate:.0} packets per second of {target:.0}")]
    Throughput {
        /// Name of the SLO.
        slo: String,
        /// Actual packets per second.
        rate: f64,
        /// Target packets per second.
        target: f64,
    },
    /// Packets are late at the load of an instance.
    #[error("{slo}: {latency} at its load, of {target}")]
    Latency {
        /// Name of the SLO.
        slo: String,
        /// Actual latency.
        latency: Nanos,
        /// Target latency.
        target: Nanos,
    },
    /// Instances with an anti-affinity rule are on one server.
    #[error("{slo}: shares server {server} with an SLO that it must be apart from")]
    Together {
        /// Name of the SLO.
        slo: String,
        /// Number of the server.
        server: usize,
    },
    /// An SLO has no instances, or more than allowed.
    #[error("{slo}: {found} instances")]
    Instances {
        /// Name of the SLO.
        slo: String,
        /// Number of instances.
        found: usize,
    },
}

/// Returns all violations of SLOs and their instances on a cluster.
pub fn check<'a>(cluster: &Cluster, placed: impl IntoIterator<Item = &'a Placed>) -> Vec<Violation> {
    let mut violations = Vec::new();
    // By server and node: assigned cores, ways and classes.
    let mut given: HashMap<(usize, u16), [u32; 3]> = HashMap::new();
    let mut groups: HashMap<(&str, usize), &str> = HashMap::new();
    for Placed { slo, instances, .. } in placed {
        let mut rate = 0.0;
        for (number, instance) in instances.iter().enumerate() {
            let server = cluster.servers().get(instance.server);
            let kind = server.map(|server| &cluster.kinds()[server.kind]);
            let found = kind
                .filter(|kind| instance.node < kind.nodes)
                .and_then(|kind| Some((kind, slo.chain.on(&kind.machine)?)));
            let Some((kind, curves)) = found else {
                violations.push(Violation::Nowhere {
                    slo: slo.name.clone(),
                    instance: number,
                });
                continue;
            };
            let sums = given.entry((instance.server, instance.node)).or_default();
            sums[0] += u32::from(curves.cores);
            sums[1] += u32::from(instance.ways);
            sums[2] += 1;
            let bytes = u64::from(instance.ways) * kind.way_bytes;
            let within = curves.load.load_within(slo.latency);
            rate += curves.cache.rate(bytes) * within * ISOLATED;
            let latency = curves.load.latency(within);
            // One nanosecond is tolerated as a rounding error.
            if within <= 0.0 || latency.0 > slo.latency.0 + 1 {
                violations.push(Violation::Latency {
                    slo: slo.name.clone(),
                    latency,
                    target: slo.latency,
                });
            }
            let before = &instances[..number];
            let same = slo.spread && before.iter().any(|other| other.server == instance.server);
            let group = slo.apart.as_deref().and_then(|group| {
                let holder = groups.entry((group, instance.server)).or_insert(&slo.name);
                (*holder != slo.name).then_some(())
            });
            if same || group.is_some() {
                violations.push(Violation::Together {
                    slo: slo.name.clone(),
                    server: instance.server,
                });
            }
        }
        let most = match slo.target {
            Target::Reserved { throughput } => {
                if rate < throughput * (1.0 - 1e-9) {
                    violations.push(Violation::Throughput {
                        slo: slo.name.clone(),
                        rate,
                        target: throughput,
                    });
                }
                usize::MAX
            }
            Target::OnDemand { most } => {
                // Even an on-demand SLO requires a positive rate.
                if rate <= 0.0 && !instances.is_empty() {
                    violations.push(Violation::Throughput {
                        slo: slo.name.clone(),
                        rate,
                        target: 1.0,
                    });
                }
                usize::from(most)
            }
        };
        if instances.is_empty() || instances.len() > most {
            violations.push(Violation::Instances {
                slo: slo.name.clone(),
                found: instances.len(),
            });
        }
    }
    let mut given: Vec<_> = given.into_iter().collect();
    given.sort_unstable();
    for ((server, node), sums) in given {
        let kind = cluster.kind_of(server);
        let has = [kind.cores, kind.ways, kind.classes].map(u32::from);
        for ((what, given), has) in ["cores", "ways", "classes"].into_iter().zip(sums).zip(has) {
            if given > has {
                violations.push(Violation::Overcommitted {
                    server,
                    node,
                    what,
                    given,
                    has,
                });
            }
        }
    }
    violations
}
