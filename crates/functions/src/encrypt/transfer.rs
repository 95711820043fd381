//! Flows' keys and positions, which pass to a process that takes over from this one. They are not stored externally.

use super::Encrypt;
use tailwater_chain::function::DurableState;

impl DurableState for Encrypt {
    fn format_version(&self) -> u32 {
        1
    }
}
