//! Demand of an SLO on a cluster: the instances, with their cache and kind of servers, that meet it.

use crate::cluster::{Cluster, ServerKind};
use crate::slo::{ISOLATED, Slo, Target};
use tailwater_net::Nanos;

/// Size of an instance on a kind of servers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Slot {
    /// Index of the kind.
    pub kind: usize,
    /// Ways of cache.
    pub ways: u16,
    /// Cores.
    pub cores: u16,
}

/// Rates of an instance on a kind of servers.
#[derive(Clone, Debug, PartialEq)]
pub struct Offer {
    /// Index of the kind.
    pub kind: usize,
    /// Cores of an instance.
    pub cores: u16,
    /// Packets per second with 1, 2, 3 ... ways, limited by the latency target and reduced by the isolation discount. 0
    /// for cache sizes below the measured range.
    pub rates: Vec<f64>,
}

/// Reason why no server of a cluster can hold an instance.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Unfit {
    /// Nothing was measured on any machine of the cluster.
    NoCurves {
        /// Machines with measurements.
        measured: Vec<String>,
    },
    /// Latency exceeds the target at any load.
    Latency {
        /// Lowest possible latency.
        least: Nanos,
    },
    /// One instance needs more cores, or more cache, than a NUMA node has.
    Size {
        /// Cores needed.
        cores: u16,
        /// Smallest measured cache, in bytes.
        bytes: u64,
    },
}

/// Resources that must be placed for an SLO.
#[derive(Clone, Debug, PartialEq)]
pub struct Demand {
    /// Packets per second of all instances together. For an on-demand SLO this is the smallest positive number.
    pub need: f64,
    /// Rates of instances by kind of servers. At least one entry.
    pub offers: Vec<Offer>,
}

impl Demand {
    /// Returns the demand of an SLO on a cluster.
    ///
    /// # Errors
    /// No server can hold a useful instance.
    pub fn new(slo: &Slo, cluster: &Cluster) -> Result<Self, Unfit> {
        let mut unfit = None;
        let mut offers = Vec::new();
        for (kind, server) in cluster.kinds().iter().enumerate() {
            match offer(slo, kind, server) {
                Ok(Some(offer)) => offers.push(offer),
                Ok(None) => {}
                Err(why) => unfit = unfit.or(Some(why)),
            }
        }
        if offers.is_empty() {
            let measured = slo.chain.curves.iter().map(|c| c.machine.clone());
            let measured = measured.collect();
            return Err(unfit.unwrap_or(Unfit::NoCurves { measured }));
        }
        let need = match slo.target {
            Target::Reserved { throughput } => throughput,
            Target::OnDemand { .. } => f64::MIN_POSITIVE,
        };
        Ok(Demand { need, offers })
    }

    /// Returns the rates of instances on a kind of servers.
    pub fn on(&self, kind: usize) -> Option<&Offer> {
        self.offers.iter().find(|offer| offer.kind == kind)
    }

    /// Returns the packets per second of an instance of a given size, or 0 if that is impossible.
    pub fn rate(&self, kind: usize, ways: u16) -> f64 {
        self.on(kind).map_or(0.0, |offer| offer.rate(ways))
    }

    /// Returns `true` if a total rate suffices. A deviation of 10^-12 is tolerated as rounding.
    pub fn is_met(&self, rate: f64) -> bool {
        rate >= self.need * (1.0 - 1e-12)
    }
}

impl Offer {
    /// Returns the packets per second of an instance with `ways` ways.
    pub fn rate(&self, ways: u16) -> f64 {
        let index = usize::from(ways).checked_sub(1);
        index.and_then(|i| self.rates.get(i)).copied().unwrap_or(0.0)
    }

    /// Returns the fewest ways with which an instance has a positive rate.
    pub fn least_ways(&self) -> u16 {
        self.rates.partition_point(|&rate| rate <= 0.0) as u16 + 1
    }

    /// Returns an instance of this size.
    pub fn slot(&self, ways: u16) -> Slot {
        Slot {
            kind: self.kind,
            ways,
            cores: self.cores,
        }
    }
}

/// Returns the rates of instances on a kind of servers, or `None` if nothing was measured there.
fn offer(slo: &Slo, kind: usize, server: &ServerKind) -> Result<Option<Offer>, Unfit> {
    let Some(curves) = slo.chain.on(&server.machine) else {
        return Ok(None);
    };
    let load = curves.load.load_within(slo.latency);
    if load <= 0.0 {
        let least = curves.load.least();
        return Err(Unfit::Latency { least });
    }
    let rates: Vec<f64> = (1..=u64::from(server.ways))
        .map(|ways| curves.cache.rate(ways * server.way_bytes) * load * ISOLATED)
        .collect();
    if curves.cores > server.cores || rates.iter().all(|&rate| rate <= 0.0) {
        let bytes = curves.cache.points()[0].0;
        return Err(Unfit::Size {
            cores: curves.cores,
            bytes,
        });
    }
    Ok(Some(Offer {
        kind,
        cores: curves.cores,
        rates,
    }))
}
