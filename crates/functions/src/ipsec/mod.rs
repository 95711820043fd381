//! `Ipsec`: ESP in tunnel mode (RFC 4303), both ways. See the function's page for what it does not do.

mod association;
mod cipher;
mod function;
pub(crate) mod headers;
#[cfg(feature = "ipsec")]
mod sealer;
#[cfg(not(feature = "ipsec"))]
#[path = "no_sealer.rs"]
mod sealer;
mod sequence;
mod spi_table;
mod table;

pub(crate) use association::Identity;
pub use association::{
    Association, DontFragment, Inbound, IpsecRules, MAX_ASSOCIATIONS, MAX_POLICIES, MAX_WINDOW, Outbound, Policy,
    PolicyAction, UdpPorts, WINDOW,
};
pub use cipher::{Cipher, Keying};
pub use function::Ipsec;
pub use table::{IpsecError, IpsecTable};

#[cfg(all(test, feature = "ipsec"))]
mod tests;
