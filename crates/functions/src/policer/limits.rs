//! Limits, and outcomes for packets beyond them.

use super::bucket::Meter;
use ipnet::IpNet;
use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tailwater_net::FlowKey;

/// Largest number of limits per function; they are scanned linearly for each new flow.
pub const MAX_LIMITS: usize = 1024;

/// Outcome for a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExceedAction {
    /// Forward.
    Pass,
    /// Forward with this DSCP, below 64.
    Mark(u8),
    /// Drop.
    Drop,
}

/// Sharing of a limit's bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// All matching packets on all cores share one bucket.
    All,
    /// Each flow has its own bucket.
    Flow,
}

/// Limit; a packet must match every field that is given.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limit {
    /// Source prefix.
    pub source: Option<IpNet>,
    /// Destination prefix.
    pub destination: Option<IpNet>,
    /// IP protocol.
    pub protocol: Option<u8>,
    /// Sharing of the bucket.
    pub scope: Scope,
    /// Meter of the committed rate.
    pub committed: Meter,
    /// Meter of the peak rate, if packets between the two are distinguished (RFC 2698, colour-blind mode).
    pub peak: Option<Meter>,
    /// Outcome for packets within both rates.
    pub conforming: ExceedAction,
    /// Outcome for packets beyond the committed rate and within the peak.
    pub exceeding: ExceedAction,
    /// Outcome for packets beyond the peak; without one, beyond the committed rate.
    pub violating: ExceedAction,
}

impl Limit {
    /// Returns `true` if a flow with this key matches.
    pub fn matches(&self, key: &FlowKey) -> bool {
        let holds = |prefix: Option<IpNet>, address: IpAddr| prefix.is_none_or(|prefix| prefix.contains(&address));
        holds(self.source, key.source())
            && holds(self.destination, key.destination())
            && self.protocol.is_none_or(|protocol| protocol == key.protocol())
    }

    /// Returns the fields that identify the matched packets, and whether they share a bucket.
    fn packets(&self) -> (Option<IpNet>, Option<IpNet>, Option<u8>, bool) {
        let shared = self.scope == Scope::All;
        (self.source, self.destination, self.protocol, shared)
    }

    /// Returns `true` if every packet matches.
    fn is_for_all(&self) -> bool {
        self.source.is_none() && self.destination.is_none() && self.protocol.is_none()
    }
}

/// Buckets shared by all packets of a limit, full at the start, in a cache line of their own.
#[derive(Debug, Default)]
#[repr(align(64))]
pub(super) struct SharedBuckets {
    pub(super) committed: AtomicU64,
    pub(super) peak: AtomicU64,
}

/// Ordered limits with their shared buckets; all workers share one value.
#[derive(Debug)]
pub struct PolicerRules {
    limits: Vec<Limit>,
    pub(super) shared: Vec<Arc<SharedBuckets>>,
    /// Outcome for packets that match no limit.
    pub(super) default: ExceedAction,
    /// `true` if functions started with these limits, or earlier versions, look flows up.
    of_flows: bool,
}

impl PolicerRules {
    /// Builds the rules; the first matching limit applies. Limits beyond [`MAX_LIMITS`] are ignored.
    pub fn new(mut limits: Vec<Limit>, default: ExceedAction) -> PolicerRules {
        limits.truncate(MAX_LIMITS);
        // Limits after one that matches everything are unreachable.
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

    /// Builds the next version. A limit on the same packets keeps its bucket: unchanged if the rates are the same,
    /// otherwise with the tokens taken so far, up to the new burst.
    #[must_use]
    pub fn next_version(&self, limits: Vec<Limit>, default: ExceedAction) -> PolicerRules {
        let mut next = PolicerRules::new(limits, default);
        next.of_flows = self.of_flows;
        // Among limits on the same packets only the first applies.
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

    /// Returns the reachable limits, in order.
    pub fn limits(&self) -> &[Limit] {
        &self.limits
    }

    /// Returns `true` if the limits need per-flow buckets but functions started with the first version do not look
    /// flows up.
    pub fn need_missing_flow_state(&self) -> bool {
        !self.of_flows && self.limits.iter().any(|limit| limit.scope == Scope::Flow)
    }

    /// Returns `true` if flows are looked up.
    pub(super) fn are_of_flows(&self) -> bool {
        self.of_flows
    }

    /// Returns `true` if one bucket covers all packets, so that nothing depends on the flow.
    pub(super) fn is_one_for_all(&self) -> bool {
        is_one_for_all(&self.limits)
    }

    /// Returns the index of the first limit that matches.
    pub(super) fn find(&self, key: &FlowKey) -> Option<usize> {
        self.limits.iter().position(|limit| limit.matches(key))
    }
}

fn is_one_for_all(limits: &[Limit]) -> bool {
    matches!(limits, [limit] if limit.is_for_all() && limit.scope == Scope::All)
}
