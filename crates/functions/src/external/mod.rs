//! External programs that are unaware of Tailwater, behind ports.

mod kind;

pub use kind::KIND;
pub use tailwater_api::external::{Changes, ExternalConfig, Missing};
