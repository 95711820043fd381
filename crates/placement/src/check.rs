//! Whether a plan keeps what it promises, added up anew from its curves. With what made the plan it shares only how
//! a curve is read between its points ([`curve`](crate::curve)) and the discount for isolation; what is left on
//! servers, what instances do and who is where is not believed but counted.

use crate::cluster::Cluster;
use crate::plan::Placed;
use crate::slo::{ISOLATED, Target};
use std::collections::HashMap;
use tailwater_net::Nanos;

/// What is wrong with a plan.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum Violation {
    /// An instance is on no server, on no node, or on a machine that its chain was not measured on.
    #[error("{slo}: instance {instance} is nowhere")]
    Nowhere {
        /// The SLO.
        slo: String,
        /// The instance, by number.
        instance: usize,
    },
    /// A node gives more cores, ways or classes than it has.
    #[error("server {server}, node {node}: {given} {what} given, of {has}")]
    Overcommitted {
        /// The server, by number.
        server: usize,
        /// Its node.
        node: u16,
        /// Of what.
        what: &'static str,
        /// How much is given.
        given: u32,
        /// How much there is.
        has: u32,
    },
    /// Instances together do less than was promised.
    #[error("{slo}: {rate:.0} packets per second of {target:.0}")]
    Throughput {
        /// The SLO.
        slo: String,
        /// Packets per second.
        rate: f64,
        /// What was promised.
        target: f64,
    },
    /// Packets are late at the load that an instance has.
    #[error("{slo}: {latency} at its load, of {target}")]
    Latency {
        /// The SLO.
        slo: String,
        /// How late.
        latency: Nanos,
        /// What was promised.
        target: Nanos,
    },
    /// Instances that must be apart are on one server.
    #[error("{slo}: on server {server} with what it must be apart from")]
    Together {
        /// The SLO.
        slo: String,
        /// The server, by number.
        server: usize,
    },
    /// An SLO has more instances than it may have, or none.
    #[error("{slo}: {found} instances")]
    Instances {
        /// The SLO.
        slo: String,
        /// How many there are.
        found: usize,
    },
}

/// Everything that is wrong with SLOs and their instances on a cluster.
pub fn check<'a>(cluster: &Cluster, placed: impl IntoIterator<Item = &'a Placed>) -> Vec<Violation> {
    let mut violations = Vec::new();
    // By server and node: cores, ways and classes given.
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
            // A nanosecond is rounding.
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
                // However little is promised, it is more than nothing.
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
