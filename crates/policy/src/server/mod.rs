//! The vocabulary between a server and the policy that maps its RSS buckets to dedicated cores;
//! Tailwater's server mapper, and the ingress mapper.
//!
//! A *bucket* is a row of the NIC's RSS table, with all flows that hash there. It has exactly one
//! owner, a dedicated core; a policy moves whole buckets. A rack may be seen as one large server:
//! its buckets are then rows of the switch's table, and its cores those of all servers.
//!
//! | to | use |
//! |---|---|
//! | map buckets to as few cores as hold the load, all equally full | [`TailwaterServerMapper`] |
//! | map them as NetBlaze or another system does | `tailwater-baselines` |
//! | steer destination prefixes to servers | [`IngressMapper`] |

mod ingress;
mod tailwater;

pub use ingress::{IngressConfig, IngressMapper, ServerNumber, Steering};
pub use tailwater::{TailwaterServerConfig, TailwaterServerMapper};

use std::sync::Arc;
use tailwater_net::Nanos;

/// A core of the server: a place in [`ServerView::cores`].
pub type CoreNumber = u16;

/// What one RSS bucket brought in the last period.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct BucketLoad {
    /// Active flows, on average over the period's epochs.
    pub flows: f64,
    /// Packets per second, those that were lost included.
    pub rate: f64,
    /// The dedicated core that owns the bucket.
    pub core: CoreNumber,
}

/// What is known of a core that may be dedicated to the chain.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct CoreLoad {
    /// Whether it is dedicated now. One that is not owns no bucket, and may be taken.
    pub dedicated: bool,
    /// Share of the period in which it processed packets, 0 to 1.
    pub busy: f64,
    /// Packets that its ring had no room for in the period.
    pub lost: u64,
    /// The 99th percentile of the time that a batch took.
    pub batch_p99: Nanos,
    /// The longest that its receive ring was in the period, in packets.
    pub longest_queue: u32,
}

/// A server's situation at a period's end.
#[derive(Clone, Copy, Debug)]
pub struct ServerView<'a> {
    /// Now.
    pub now: Nanos,
    /// All RSS buckets, by number. Their number does not change during a run.
    pub buckets: &'a [BucketLoad],
    /// All cores that may be dedicated. Their number does not change during a run.
    pub cores: &'a [CoreLoad],
}

/// A bucket that is to change its owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Move {
    /// The bucket.
    pub bucket: u16,
    /// Its new owner, dedicated from now on.
    pub to: CoreNumber,
}

/// Decides which dedicated core owns which RSS bucket. Cores left without any are reclaimed.
///
/// No implementation allocates in steady state.
pub trait ServerMapper: Send {
    /// How long after a [`remap`](ServerMapper::remap) the next is due. Asked anew after each, as
    /// some policies change it.
    fn period(&self) -> Nanos;

    /// Whether it is also to be asked between two periods, as soon as a core's backlog has lasted
    /// several epochs. The view then covers the time since it was asked last.
    fn on_overload(&self) -> bool {
        false
    }

    /// How long the policy's own control path takes from a decision until the tables are written.
    /// What the NIC needs comes on top.
    fn enforcement_delay(&self) -> Nanos {
        Nanos::ZERO
    }

    /// The buckets to move, into `moves`, which is empty. At most one move for a bucket, and none
    /// to the core that it is on.
    ///
    /// # Panics
    /// If a bucket's owner is no place in [`ServerView::cores`].
    fn remap(&mut self, view: &ServerView<'_>, moves: &mut Vec<Move>);
}

/// Makes a server mapper for each run.
pub type MakeServerMapper = Arc<dyn Fn() -> Box<dyn ServerMapper> + Send + Sync>;
