//! What is limited, and what becomes of packets beyond a limit.

use super::bucket::Meter;
use ipnet::IpNet;
use std::net::IpAddr;
use std::sync::atomic::AtomicU64;
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
        let holds = |prefix: Option<IpNet>, address: IpAddr| {
            prefix.is_none_or(|prefix| prefix.contains(&address))
        };
        holds(self.source, key.source())
            && holds(self.destination, key.destination())
            && self
                .protocol
                .is_none_or(|protocol| protocol == key.protocol())
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
    pub(super) shared: Vec<SharedBuckets>,
    /// What becomes of packets that no limit matches.
    pub(super) default: Outcome,
}

impl PolicerRules {
    /// The first limit that matches counts. Of more than [`MAX_LIMITS`], those beyond are not applied.
    pub fn new(mut limits: Vec<Limit>, default: Outcome) -> PolicerRules {
        limits.truncate(MAX_LIMITS);
        // What is behind one that matches everything is never reached.
        if let Some(last) = limits.iter().position(Limit::is_for_all) {
            limits.truncate(last + 1);
        }
        PolicerRules {
            shared: limits.iter().map(|_| SharedBuckets::default()).collect(),
            limits,
            default,
        }
    }

    /// The limits that can be reached, in order.
    pub fn limits(&self) -> &[Limit] {
        &self.limits
    }

    /// Whether one bucket is for all packets, so that nothing depends on the flow.
    pub(super) fn is_one_for_all(&self) -> bool {
        matches!(&*self.limits, [limit] if limit.is_for_all() && limit.scope == Scope::All)
    }

    /// The place of the first limit that matches.
    pub(super) fn find(&self, key: &FlowKey) -> Option<usize> {
        self.limits.iter().position(|limit| limit.matches(key))
    }
}
