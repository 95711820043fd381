//! Clusters whose last-level caches are shared by all instances of a node, as on machines without partitions.

use crate::cluster::{Cluster, ClusterError, MAX_WAYS, ServerKind};
use crate::curve::{CacheCurve, CurveError};
use crate::slo::{ChainProfile, Curves, Slo};
use std::collections::HashMap;
use std::sync::Arc;

/// Cluster, SLOs and chains without cache partitions.
#[derive(Clone, Debug)]
pub struct Shared {
    /// The cluster. An instance takes one way of a size without meaning, of as many as there are cores.
    pub cluster: Cluster,
    /// The SLOs.
    pub slos: Vec<Slo>,
    /// The chains, whose throughput is that with the whole cache.
    pub chains: Vec<Arc<ChainProfile>>,
}

/// Mistake in a cluster or a curve.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SharedError {
    /// The cluster.
    #[error(transparent)]
    Cluster(#[from] ClusterError),
    /// A curve.
    #[error(transparent)]
    Curve(#[from] CurveError),
}

/// Returns a cluster on which an instance has the whole cache of its node, less what others take, which a predictor
/// says. `alone` is the predictor's throughput of a chain alone on a machine; of it and the curve, the lower one
/// counts. Chains lose machines on which they were measured only with more cache than a node has.
///
/// # Errors
/// A value is no valid cluster or curve.
pub fn shared(
    cluster: &Cluster,
    slos: &[Slo],
    chains: &[Arc<ChainProfile>],
    alone: impl Fn(&str, &str) -> Option<f64>,
) -> Result<Shared, SharedError> {
    let mut caches: HashMap<&str, u64> = HashMap::new();
    for kind in cluster.kinds() {
        let bytes = u64::from(kind.ways) * kind.way_bytes;
        let least = caches.entry(&kind.machine).or_insert(bytes);
        *least = bytes.min(*least);
    }
    let kinds = cluster.kinds().iter().map(|kind| {
        let instances = kind.cores.min(MAX_WAYS);
        ServerKind {
            ways: instances,
            way_bytes: 1,
            classes: instances,
            ..kind.clone()
        }
    });
    let cluster = Cluster::new(kinds.collect(), cluster.servers().to_vec())?;
    let whole = |chain: &ChainProfile| {
        let mut curves = Vec::new();
        for of in &chain.curves {
            let Some(&bytes) = caches.get(&*of.machine) else {
                curves.push(of.clone());
                continue;
            };
            let rate = of.cache.rate(bytes);
            if rate > 0.0 {
                let rate = alone(&chain.name, &of.machine).map_or(rate, |alone| rate.min(alone));
                let cache = CacheCurve::new(vec![(1, rate)])?;
                curves.push(Curves { cache, ..of.clone() });
            }
        }
        Ok::<_, SharedError>(Arc::new(ChainProfile {
            curves,
            ..chain.clone()
        }))
    };
    let mut known: HashMap<&str, Arc<ChainProfile>> = HashMap::new();
    for chain in chains {
        known.insert(&chain.name, whole(chain)?);
    }
    let mut changed = Vec::new();
    for slo in slos {
        let chain = match known.get(&*slo.chain.name) {
            Some(chain) => chain.clone(),
            None => whole(&slo.chain)?,
        };
        changed.push(Slo { chain, ..slo.clone() });
    }
    Ok(Shared {
        cluster,
        slos: changed,
        chains: chains
            .iter()
            .filter_map(|chain| known.get(&*chain.name).cloned())
            .collect(),
    })
}
