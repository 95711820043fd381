//! Flows' keys and positions, which pass to a process that takes over from this one. They are not stored externally.

use super::Encrypt;
use super::function::FlowCipher;
use crate::kind::StateFormat;
use tailwater_chain::function::DurableState;

/// Version of the state's portable form.
const FORMAT_VERSION: u32 = 1;

/// Portable form of the state, made without an instance.
pub(super) fn state_format() -> StateFormat {
    StateFormat::as_it_is(FORMAT_VERSION, size_of::<FlowCipher>())
}

impl DurableState for Encrypt {
    fn format_version(&self) -> u32 {
        FORMAT_VERSION
    }
}
