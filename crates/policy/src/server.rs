//! The vocabulary between a server and the policy that maps its RSS buckets to dedicated cores.

use tailwater_net::Nanos;

/// A dedicated core of the server: a place in [`ServerView::cores`].
pub type CoreNumber = u16;

/// What one RSS bucket brought in the last period.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct BucketLoad {
    /// Active flows, on average over the period's epochs.
    pub flows: f64,
    /// Packets per second.
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
    /// All RSS buckets, by number.
    pub buckets: &'a [BucketLoad],
    /// All cores that may be dedicated.
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
pub trait ServerMapper: Send {
    /// How often it is asked.
    fn period(&self) -> Nanos;

    /// The buckets to move, into `moves`, which is empty. At most one move for a bucket.
    fn remap(&mut self, view: &ServerView<'_>, moves: &mut Vec<Move>);
}
