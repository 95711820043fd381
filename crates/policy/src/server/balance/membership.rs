//! Parts of servers in a rack.

/// Part that a server has in the rack, as its owner decides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Membership {
    /// It can have rows.
    Open,
    /// It gets no rows, and those that it has leave it with their flows' state.
    Draining,
    /// It gets no rows, and those that it has leave it without state. Also for servers that the chain does not run on.
    Lost,
}
