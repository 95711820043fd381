//! Interface between a server and the policy that maps its RSS buckets to dedicated cores, with Tailwater's mapper and
//! ingress mappers.
//!
//! A *bucket* is a row of the NIC's RSS table (RETA), with all flows that hash there. It has exactly one owner, a
//! dedicated core. A policy moves whole buckets. A rack can be modelled as one large server: its buckets are then rows
//! of the switch's table, and its cores those of all servers.
//!
//! | to | use |
//! |---|---|
//! | map buckets to as few cores as hold the load, all equally full | [`TailwaterServerMapper`] |
//! | map them as NetBlaze or another system does | `tailwater-baselines` |
//! | steer destination prefixes to servers, and rebalance them | [`IngressBalancer`] |
//! | steer them as NetBlaze does | [`IngressMapper`] |

mod balance;
mod ingress;
mod tailwater;

pub use balance::{
    ClassLoad, FlowClass, FlowClassCounts, IngressBalancer, Membership, RowMatch, RowMove, ServerCounters,
};
pub use ingress::{IngressConfig, IngressMapper, ServerNumber, Steering};
pub use tailwater::{TailwaterServerConfig, TailwaterServerMapper};

use std::sync::Arc;
use tailwater_net::Nanos;

/// Core of the server, as an index in [`ServerView::cores`].
pub type CoreNumber = u16;

/// Load of one RSS bucket in the last period.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct BucketLoad {
    /// Active flows, on average over the period's epochs.
    pub flows: f64,
    /// Packets per second, lost ones included.
    pub rate: f64,
    /// Dedicated core that owns the bucket.
    pub core: CoreNumber,
}

/// Signals of a core that can be dedicated to the chain.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct CoreLoad {
    /// `true` if the core is dedicated now. Otherwise it owns no bucket, and can be dedicated.
    pub dedicated: bool,
    /// Share of the period in which it processed packets, 0 to 1.
    pub busy: f64,
    /// Packets lost in the period because its ring was full.
    pub lost: u64,
    /// 99th percentile of the batch time.
    pub batch_p99: Nanos,
    /// Maximum length of its receive ring in the period, in packets.
    pub longest_queue: u32,
    /// Longest delay of a packet that it processed, waiting included.
    pub worst_delay: Nanos,
}

/// State of a server at a period's end.
#[derive(Clone, Copy, Debug)]
pub struct ServerView<'a> {
    /// Current time.
    pub now: Nanos,
    /// All RSS buckets, by number. Their number does not change during a run.
    pub buckets: &'a [BucketLoad],
    /// All cores that may be dedicated. Their number does not change during a run.
    pub cores: &'a [CoreLoad],
    /// Share of the packets since the last call that were late or lost, 0 to 1, on auxiliary cores, too, for causes
    /// that more cores can remedy: behind others, in a full ring, or while an auxiliary core woke. 0 if they were few.
    pub late: f64,
}

/// Change of a bucket's owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Move {
    /// Bucket.
    pub bucket: u16,
    /// New owner, dedicated from now on.
    pub to: CoreNumber,
}

/// Decides which dedicated core owns which RSS bucket. Cores left without any are reclaimed.
///
/// No implementation allocates in steady state.
pub trait ServerMapper: Send {
    /// Returns the time from a [`remap`](ServerMapper::remap) to the next. Called after each, as some policies change
    /// it.
    fn period(&self) -> Nanos;

    /// Returns the time for which a core's backlog must have lasted for `remap` to be called between two periods, or
    /// `None` for never. Epochs, half the objective, take `epoch`. The view then covers the time since the last call.
    fn on_backlog_of(&self, epoch: Nanos) -> Option<Nanos> {
        let _ = epoch;
        None
    }

    /// Returns the time from a decision until the policy's own control path has written the tables. The NIC's time is
    /// added to this.
    fn enforcement_delay(&self) -> Nanos {
        Nanos::ZERO
    }

    /// Appends the buckets to move to `moves`, which is empty. At most one move per bucket, and none to the core that
    /// it is on.
    ///
    /// # Panics
    /// If a bucket's owner is no index in [`ServerView::cores`].
    fn remap(&mut self, view: &ServerView<'_>, moves: &mut Vec<Move>);
}

/// Makes a server mapper for each run.
pub type MakeServerMapper = Arc<dyn Fn() -> Box<dyn ServerMapper> + Send + Sync>;
