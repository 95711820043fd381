//! Companions of flows that are looked up in another process.

use std::fmt::Debug;
use tailwater_net::FlowKey;

/// Error that prevents opening a companion flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoCompanion {
    /// A flow with this key exists already.
    #[error("the flow is already in the table")]
    Taken,
    /// The flows would be in two buckets, which can move to different cores.
    #[error("the flow belongs to another RSS bucket")]
    OtherBucket,
    /// The flow already has a companion; it can have only one.
    #[error("the flow already has a companion")]
    HasOne,
    /// The table is full.
    #[error("the flow table is full")]
    TableFull,
}

/// Opens companions of flows in the process that looks flows up.
pub trait Companions: Send + Debug {
    /// Opens a companion for the flow of the packet at batch index `at`, as
    /// [`NewFlow::open_companion`](crate::function::NewFlow::open_companion) does. Returns its index in the flow table
    /// and its generation.
    ///
    /// # Errors
    /// Same as [`NewFlow::open_companion`](crate::function::NewFlow::open_companion).
    fn open(&mut self, at: u16, key: &FlowKey, rss_hash: u32) -> Result<(u32, u64), NoCompanion>;

    /// Same as [`open`](Companions::open), except that an existing flow with that key becomes the companion if the
    /// function has not seen it ([`NewFlow::rejoin_companion`](crate::function::NewFlow::rejoin_companion)).
    ///
    /// # Errors
    /// Same as [`open`](Companions::open).
    fn rejoin(&mut self, at: u16, key: &FlowKey, rss_hash: u32) -> Result<(u32, u64), NoCompanion>;

    /// Returns `true` if no flow has the key in its RSS bucket.
    fn is_free(&self, key: &FlowKey, bucket: u16) -> bool;
}
