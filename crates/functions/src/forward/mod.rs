//! Forwards every packet, optionally with other MAC addresses.

mod function;
mod kind;
mod spec;

pub use function::{Forward, Mac};
pub use kind::KIND;
pub use spec::ForwardConfig;
pub(crate) use spec::unicast;
