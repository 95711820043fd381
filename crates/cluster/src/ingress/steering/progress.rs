//! Progress of writing, and of chains that wait.

use super::types::{ChainRoute, SwitchLimits};
use crate::ingress::openflow::FlowMod;
use std::collections::BTreeSet;
use tailwater_net::Nanos;

/// Write that the switch has not answered yet.
#[derive(Debug)]
pub(super) struct InFlight {
    pub id: u64,
    pub changes: Vec<FlowMod>,
    /// `true` if nothing is left to write after it.
    pub is_last: bool,
    pub since: Nanos,
}

/// State of writing.
#[derive(Debug, Default)]
pub(super) struct Writing {
    /// `true` if the wanted rules may differ from those of the switch.
    pub is_due: bool,
    pub in_flight: Option<InFlight>,
    /// Number of the last write.
    pub last_id: u64,
    /// Rules that are wanted, as of the last write, and rules that rows since then take.
    pub wanted: usize,
    pub unwritten: usize,
    /// The rules of the switch are being read, after the table was found full.
    pub is_reading: bool,
    pub is_table_full: bool,
    /// Time before which nothing is written, after a refusal.
    pub retry_at: Nanos,
    /// Limits of the switch, as reported.
    pub limits: SwitchLimits,
    /// Foreign rules in the place of wanted ones, as reported, and the last size that was too large.
    pub foreign: BTreeSet<(u16, u64)>,
    pub too_large: Option<usize>,
}

impl Writing {
    /// Returns the number of the write that has what is wanted now: the one in progress, or the next.
    pub fn covering_id(&self) -> u64 {
        self.last_id + u64::from(self.is_due)
    }
}

/// Route that could not be taken.
#[derive(Debug)]
pub(super) struct Refused {
    pub route: ChainRoute,
    pub why: String,
    pub is_told: bool,
}
