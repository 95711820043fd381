//! External functions, which are unaware of Tailwater: packets go out to them through a port, and come back.
//!
//! A returned packet is identified by its [`Fingerprint`], which covers the fields that such functions do not change.
//! The [`Matcher`] finds the outstanding packet it belongs to, and times out packets. Both do no I/O. An [`Attachment`]
//! transports the packets: [kernel interfaces](kernel), or DPDK ports. Each worker of such a chain counts each of its
//! packets once, whatever a function does.

pub(crate) mod attachment;
mod fingerprint;
pub mod kernel;
pub(crate) mod marks;
mod matcher;
pub(crate) mod own_buckets;
pub(crate) mod parts;
pub(crate) mod stage;
mod table;
pub(crate) mod with_externals;
pub(crate) mod worker;

pub use attachment::{Attached, Attachment, Direction};
pub use fingerprint::{Fingerprint, Fingerprints};
pub use matcher::{Back, Matcher, Outside};
pub use with_externals::{Functions, WithExternals};
