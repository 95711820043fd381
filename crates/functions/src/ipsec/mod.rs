//! `Ipsec`: ESP in tunnel mode (RFC 4303), both directions. The function's page lists its limits.

mod association;
mod cipher;
mod fields;
mod function;
pub(crate) mod headers;
mod kind;
#[cfg(feature = "ipsec")]
mod sealer;
#[cfg(not(feature = "ipsec"))]
#[path = "no_sealer.rs"]
mod sealer;
mod sequence;
mod spec;
mod spi_table;
mod table;

pub(crate) use association::Identity;
pub use association::{
    Association, DontFragment, Inbound, IpsecRules, MAX_ASSOCIATIONS, MAX_POLICIES, MAX_WINDOW, Outbound, Policy,
    PolicyAction, UdpPorts, WINDOW,
};
pub use cipher::{Cipher, Keying};
pub use function::Ipsec;
pub use kind::KIND;
pub use spec::IpsecConfig;
pub use table::{IpsecError, IpsecTable};

#[cfg(all(test, feature = "ipsec"))]
mod tests;
