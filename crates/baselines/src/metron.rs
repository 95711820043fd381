//! Scaling as in Metron (Katsikas et al., NSDI 2018), which knows no latency objective.
//!
//! What NetBlaze (section 4.1) says of it: the switch steers traffic classes to cores; overloaded
//! cores are detected by reading loss counters periodically; an overloaded core's traffic class is
//! split in two, and one half moves to a new core; rewriting the switch's tables takes hundreds of
//! milliseconds. Classes of cores that are little used are merged again.
//!
//! Not published there, and chosen here: the counters are read every 500 ms; a table takes 200 ms;
//! one lost packet is an overload; a class is a core's rows of the table, and its halves are the
//! lower and the upper rows; two classes merge, a pair in a period, when their cores are together
//! busy for no more than half of a core; and a core's counters do not count until those after its
//! last change have been read. The algorithm looks at losses only, so a core that queues without
//! losing is left alone.

use super::classes::{Classes, Signals, Thresholds};
use tailwater_net::Nanos;
use tailwater_policy::server::{Move, ServerMapper, ServerView};

/// When Metron splits and merges.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MetronConfig {
    /// Time between two readings of the counters.
    pub period: Nanos,
    /// How long the switch's tables take to be rewritten.
    pub enforcement_delay: Nanos,
    /// Packets lost in a period that make a core overloaded.
    pub lost: u64,
    /// Two cores that are together busy for at most this share of a core are merged.
    pub merge_below: f64,
}

impl Default for MetronConfig {
    fn default() -> Self {
        MetronConfig {
            period: Nanos::from_millis(500),
            enforcement_delay: Nanos::from_millis(200),
            lost: 1,
            merge_below: 0.5,
        }
    }
}

impl MetronConfig {
    pub(super) fn thresholds(&self) -> Thresholds {
        Thresholds {
            lost: self.lost.max(1),
            merge_below: self.merge_below,
            settle: self.enforcement_delay + self.period,
        }
    }
}

/// Splits and merges traffic classes.
#[derive(Clone, Debug)]
pub struct Metron {
    config: MetronConfig,
    classes: Classes,
}

impl Metron {
    /// With nothing known.
    pub fn new(config: MetronConfig) -> Metron {
        Metron {
            config,
            classes: Classes::default(),
        }
    }
}

impl ServerMapper for Metron {
    fn period(&self) -> Nanos {
        self.config.period
    }

    fn enforcement_delay(&self) -> Nanos {
        self.config.enforcement_delay
    }

    fn remap(&mut self, view: &ServerView<'_>, moves: &mut Vec<Move>) {
        let owner = view.buckets.iter().map(|bucket| bucket.core);
        let cores = view.cores.iter().map(|core| Signals {
            active: core.dedicated,
            busy: core.busy,
            lost: core.lost,
        });
        self.classes
            .plan(self.config.thresholds(), view.now, owner, cores, moves);
    }
}
