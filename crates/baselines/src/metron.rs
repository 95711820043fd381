//! Scaling as in Metron (Katsikas et al., NSDI 2018), which has no latency objective.
//!
//! NetBlaze (section 4.1) describes it so: the switch steers traffic classes to cores. Overloaded cores are detected by
//! reading loss counters periodically. An overloaded core's traffic class is split in two, and one half moves to a new
//! core. Rewriting the switch's tables takes hundreds of milliseconds. Classes of little-used cores are merged again.
//!
//! The following is not published and was chosen here:
//!
//! - The counters are read every 500 ms, and rewriting a table takes 200 ms.
//! - One lost packet is an overload.
//! - A class is a core's rows of the table. Its halves are the lower and the upper rows.
//! - Two classes merge, one pair per period, when their cores are together busy for no more than half of a core.
//! - A core's counters are ignored until those after its last change have been read.
//!
//! The algorithm reads losses only, so a core that queues without losing is left alone.
//!
//! On one server ([`MetronConfig::on_one_server`]) the classes are rows of the NIC's RSS table, its buckets.

use super::classes::{Classes, Signals, Thresholds};
use tailwater_net::Nanos;
use tailwater_policy::server::{Move, ServerMapper, ServerView};

/// Thresholds and delays of [`Metron`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MetronConfig {
    /// Time between two readings of the counters.
    pub period: Nanos,
    /// Time to rewrite the switch's tables.
    pub enforcement_delay: Nanos,
    /// Packets lost in one period that make a core overloaded.
    pub lost: u64,
    /// Two cores whose busy shares add up to at most this are merged.
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
    /// Returns the same thresholds without the time to rewrite a switch's tables: the NIC's own delay applies.
    pub fn on_one_server() -> MetronConfig {
        MetronConfig {
            enforcement_delay: Nanos::ZERO,
            ..MetronConfig::default()
        }
    }

    pub(super) fn thresholds(&self) -> Thresholds {
        Thresholds {
            lost: self.lost.max(1),
            merge_below: self.merge_below,
            settle: self.enforcement_delay + self.period,
        }
    }
}

/// Server mapper that splits and merges traffic classes.
#[derive(Clone, Debug)]
pub struct Metron {
    config: MetronConfig,
    classes: Classes,
}

impl Metron {
    /// Creates a mapper without any observation.
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
