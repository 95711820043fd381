//! Functions that know nothing of Tailwater: packets go out to them by a port, and come back.
//!
//! A packet that comes back is known again by its [`Fingerprint`], what such functions leave as it is; the [`Matcher`]
//! says which of those outside it is, and gives up what is outside for too long. Both do no I/O. An [`Attachment`] is how
//! packets get there; the worker of such a chain counts each packet once, whatever a function does.

mod attachment;
mod beside;
mod fingerprint;
mod matcher;
mod station;
mod table;
mod worker;

pub use attachment::{Attached, Attachment, Way};
pub use beside::{Beside, Functions};
pub use fingerprint::{Fingerprint, Fingerprints};
pub use matcher::{Back, Matcher, Outside};
pub(crate) use station::{DETAINED, Station};
pub(crate) use worker::{ExternalWorker, Parts};
