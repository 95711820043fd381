//! Functions that know nothing of Tailwater: packets go out to them by a port, and come back.

mod fingerprint;
mod matcher;
mod table;

pub use fingerprint::{Fingerprint, Fingerprints};
pub use matcher::{Back, Matcher, Outside};
