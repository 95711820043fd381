//! What is limited, and what becomes of packets beyond a limit.

use super::bucket::Meter;
use ipnet::IpNet;
use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tailwater_net::FlowKey;

/// The most limits of one function: they are tried one after the other for each new flow.
pub const MAX_LIMITS: usize = 1024;

/// What becomes of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It passes.
    Pass,
    /// It passes with this differentiated services code point, below 64.
    Mark(u8),
    /// It is dropped.
    Drop,
}

/// Whose bucket it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// All packets that match, on all cores, share one.
    All,
    /// Each flow has its own.
    Flow,
}

/// A limit: a packet must match every field that is given.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limit {
    /// The source address is in this prefix.
    pub source: Option<IpNet>,
    /// The destination address is in this prefix.
    pub destination: Option<IpNet>,
    /// The IP protocol is this one.
    pub protocol: Option<u8>,
    /// Whose bucket it is.
    pub scope: Scope,
    /// The bucket of the rate that is committed to.
    pub committed: Meter,
    /// The bucket of the peak rate, if packets between the two are told apart (RFC 2698, colour-blind).
    pub peak: Option<Meter>,
    /// What becomes of packets within both.
    pub conforming: Outcome,
    /// Of packets beyond the committed rate and within the peak.
    pub exceeding: Outcome,
    /// Of packets beyond the peak; or, without one, beyond the committed rate.
    pub violating: Outcome,
}

impl Limit {
    /// Whether a flow with this key is limited by it.
    pub fn matches(&self, key: &FlowKey) -> bool {
        let holds = |prefix: Option<IpNet>, address: IpAddr| prefix.is_none_or(|prefix| prefix.contains(&address));
        holds(self.source, key.source())
            && holds(self.destination, key.destination())
            && self.protocol.is_none_or(|protocol| protocol == key.protocol())
    }

    /// What tells which packets it is for, and whether they share a bucket.
    fn packets(&self) -> (Option<IpNet>, Option<IpNet>, Option<u8>, bool) {
        let shared = self.scope == Scope::All;
        (self.source, self.destination, self.protocol, shared)
    }

    /// Whether every packet matches.
    fn is_for_all(&self) -> bool {
        self.source.is_none() && self.destination.is_none() && self.protocol.is_none()
    }
}

/// The buckets of a limit that all its packets share: full when the run starts. On a cache line of its own.
#[derive(Debug, Default)]
#[repr(align(64))]
pub(super) struct SharedBuckets {
    pub(super) committed: AtomicU64,
    pub(super) peak: AtomicU64,
}

/// Limits in order with their shared buckets; one value serves all workers.
#[derive(Debug)]
pub struct PolicerRules {
    limits: Vec<Limit>,
    pub(super) shared: Vec<Arc<SharedBuckets>>,
    /// What becomes of packets that no limit matches.
    pub(super) default: Outcome,
    /// Whether functions that began with these limits, or with those in front of them, look flows up.
    of_flows: bool,
}

impl PolicerRules {
    /// The first limit that matches counts. Of more than [`MAX_LIMITS`], those beyond are not applied.
    pub fn new(mut limits: Vec<Limit>, default: Outcome) -> PolicerRules {
        limits.truncate(MAX_LIMITS);
        // What is behind one that matches everything is never reached.
        if let Some(last) = limits.iter().position(Limit::is_for_all) {
            limits.truncate(last + 1);
        }
        let one_for_all = is_one_for_all(&limits);
        PolicerRules {
            of_flows: !one_for_all,
            shared: limits.iter().map(|_| Arc::default()).collect(),
            limits,
            default,
        }
    }

    /// The version that follows this one. A limit of the same packets keeps its bucket: as it is if its rates are the same,
    /// and else with what was taken from it, as far as the new burst goes.
    #[must_use]
    pub fn succeed(&self, limits: Vec<Limit>, default: Outcome) -> PolicerRules {
        let mut next = PolicerRules::new(limits, default);
        next.of_flows = self.of_flows;
        // Of limits for the same packets only the first counts.
        let mut before: HashMap<_, usize> = HashMap::new();
        for (at, limit) in self.limits.iter().enumerate() {
            before.entry(limit.packets()).or_insert(at);
        }
        for (limit, shared) in next.limits.iter().zip(&mut next.shared) {
            let Some(at) = before.get(&limit.packets()) else {
                continue;
            };
            let (old, buckets) = (&self.limits[*at], &self.shared[*at]);
            if (old.committed, old.peak) == (limit.committed, limit.peak) {
                *shared = Arc::clone(buckets);
                continue;
            }
            let taken = |meter: &Meter, old: &Meter, full: &AtomicU64| {
                AtomicU64::new(meter.take_over_from(old, full.load(Ordering::Relaxed)))
            };
            let peak = match (&limit.peak, &old.peak) {
                (Some(peak), Some(old)) => taken(peak, old, &buckets.peak),
                _ => AtomicU64::default(),
            };
            *shared = Arc::new(SharedBuckets {
                committed: taken(&limit.committed, &old.committed, &buckets.committed),
                peak,
            });
        }
        next
    }

    /// The limits that can be reached, in order.
    pub fn limits(&self) -> &[Limit] {
        &self.limits
    }

    /// Whether they need what functions that began with the first version do not have: flows have buckets of their own, and
    /// are not looked up.
    pub fn lack_flows(&self) -> bool {
        !self.of_flows && self.limits.iter().any(|limit| limit.scope == Scope::Flow)
    }

    /// Whether flows are looked up.
    pub(super) fn are_of_flows(&self) -> bool {
        self.of_flows
    }

    /// Whether one bucket is for all packets, so that nothing depends on the flow.
    pub(super) fn is_one_for_all(&self) -> bool {
        is_one_for_all(&self.limits)
    }

    /// The place of the first limit that matches.
    pub(super) fn find(&self, key: &FlowKey) -> Option<usize> {
        self.limits.iter().position(|limit| limit.matches(key))
    }
}

fn is_one_for_all(limits: &[Limit]) -> bool {
    matches!(limits, [limit] if limit.is_for_all() && limit.scope == Scope::All)
}
