//! Treatment of packets while an isolated function has no process.

use crate::error::SpecError;
use crate::located::Located;

/// Treatment of packets that arrive while an isolated function has no process, from its failure until its successor is
/// attached. The batch that the function held is lost in any case: its frames may be half changed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnFailure {
    /// They wait for the successor, in the receive queue.
    Hold,
    /// They skip the function.
    Bypass,
    /// They are lost.
    #[default]
    Drop,
}

impl OnFailure {
    /// Key in an item of a chain's list of functions.
    pub const KEY: &str = "onFailure";

    /// Reads the value of the key.
    ///
    /// # Errors
    /// If it is none of the words.
    pub fn parse(node: &Located<'_>) -> Result<OnFailure, SpecError> {
        node.word(&[
            ("hold", OnFailure::Hold),
            ("bypass", OnFailure::Bypass),
            ("drop", OnFailure::Drop),
        ])
    }
}
