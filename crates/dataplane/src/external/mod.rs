//! External functions, which are unaware of Tailwater: packets go out to them through a port, and come back.
//!
//! A returned packet is identified by its [`Fingerprint`], which covers the fields that such functions do not change.
//! The [`Matcher`] finds the outstanding packet it belongs to, and times out packets. Both do no I/O. An [`Attachment`]
//! transports the packets. The worker of such a chain counts each packet once, whatever a function does.

mod attachment;
mod fingerprint;
mod marks;
mod matcher;
mod parts;
mod stage;
mod table;
mod with_externals;
mod worker;

pub use attachment::{Attached, Attachment, Direction};
pub use fingerprint::{Fingerprint, Fingerprints};
pub(crate) use marks::DETAINED;
pub use matcher::{Back, Matcher, Outside};
pub(crate) use parts::Parts;
pub(crate) use stage::ExternalStage;
pub use with_externals::{Functions, WithExternals};
pub(crate) use worker::ExternalWorker;
