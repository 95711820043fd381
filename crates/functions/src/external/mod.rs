//! External programs that are unaware of Tailwater, behind ports.

mod kind;
mod spec;

pub use kind::KIND;
pub use spec::{Changes, ExternalConfig, Missing};
