//! Static RSS: the table is filled once, as a NIC does it, and never changes.

use crate::server::{Move, ServerMapper, ServerView};
use tailwater_net::Nanos;

/// Server mapper that never moves a bucket and never takes or gives back a core.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StaticRss;

impl ServerMapper for StaticRss {
    fn period(&self) -> Nanos {
        Nanos::from_secs(1)
    }

    fn remap(&mut self, _: &ServerView<'_>, _: &mut Vec<Move>) {}
}
