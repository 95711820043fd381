//! An SLO against a cluster: which instances, with how much cache on which servers, keep it.

use crate::cluster::{Cluster, ServerKind};
use crate::slo::{ISOLATED, Slo, Target};
use tailwater_net::Nanos;

/// The size of an instance on a kind of servers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Slot {
    /// The kind, by number.
    pub kind: usize,
    /// Ways of cache.
    pub ways: u16,
    /// Cores.
    pub cores: u16,
}

/// What an instance does on a kind of servers.
#[derive(Clone, Debug, PartialEq)]
pub struct Offer {
    /// The kind, by number.
    pub kind: usize,
    /// Cores of an instance.
    pub cores: u16,
    /// Packets per second with 1, 2, 3 ... ways, of which no more than the latency allows are counted, and
    /// less what isolation leaves out; 0 where so little cache was not measured.
    pub rates: Vec<f64>,
}

/// Why no server of a cluster can hold an instance.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Unfit {
    /// Nothing was measured on any machine of the cluster.
    NoCurves {
        /// The machines that it was measured on.
        measured: Vec<String>,
    },
    /// Latency is above the target at any load; this is the least there is.
    Latency {
        /// The least.
        least: Nanos,
    },
    /// One instance takes more cores, or more cache, than a NUMA node has.
    Size {
        /// Its cores.
        cores: u16,
        /// The least cache that was measured, in bytes.
        bytes: u64,
    },
}

/// What must be placed for an SLO.
#[derive(Clone, Debug, PartialEq)]
pub struct Demand {
    /// Packets per second of all instances together; of an on-demand SLO the least number above 0.
    pub need: f64,
    /// What instances do, by kind of servers; at least one.
    pub offers: Vec<Offer>,
}

impl Demand {
    /// What an SLO takes on a cluster.
    ///
    /// # Errors
    /// No server can hold an instance that counts.
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

    /// What instances do on a kind of servers.
    pub fn on(&self, kind: usize) -> Option<&Offer> {
        self.offers.iter().find(|offer| offer.kind == kind)
    }

    /// Packets per second of an instance of a size; 0 of one that cannot be.
    pub fn rate(&self, kind: usize, ways: u16) -> f64 {
        self.on(kind).map_or(0.0, |offer| offer.rate(ways))
    }

    /// Whether instances that do this together are enough. A part in 10^12 is rounding.
    pub fn is_met(&self, rate: f64) -> bool {
        rate >= self.need * (1.0 - 1e-12)
    }
}

impl Offer {
    /// Packets per second of an instance with so many ways.
    pub fn rate(&self, ways: u16) -> f64 {
        let index = usize::from(ways).checked_sub(1);
        index.and_then(|i| self.rates.get(i)).copied().unwrap_or(0.0)
    }

    /// The fewest ways with which an instance does anything.
    pub fn least_ways(&self) -> u16 {
        self.rates.partition_point(|&rate| rate <= 0.0) as u16 + 1
    }

    /// An instance of this size.
    pub fn slot(&self, ways: u16) -> Slot {
        Slot {
            kind: self.kind,
            ways,
            cores: self.cores,
        }
    }
}

/// What instances do on a kind of servers; `None` if nothing was measured there.
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
