//! Static RSS: the table is filled once, as a NIC does it, and never changes.

use tailwater_net::Nanos;
use tailwater_policy::server::{Move, ServerMapper, ServerView};

/// Server mapper that never moves a bucket and never takes or gives back a core.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StaticRss;

impl ServerMapper for StaticRss {
    fn period(&self) -> Nanos {
        Nanos::from_secs(1)
    }

    fn remap(&mut self, _: &ServerView<'_>, _: &mut Vec<Move>) {}
}
