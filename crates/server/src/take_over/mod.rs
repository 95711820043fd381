//! Take-over of a running server by another process: a new version of the program.
//!
//! ```text
//! new                                       running
//!  |-- hello ------------------------------->|  same user or root
//!  |<------------------------------ offer ---|  generation, ports, functions and their state formats, and the
//!  |                                         |  descriptors of ports' sockets
//!  |  builds all chains, with paused ports   |  goes on
//!  |-- commit ------------------------------>|  pauses its ports, chains process what they have
//!  |<----------------- flows, positions -----|  a memory file, whose descriptor is passed
//!  |  imports them                           |  everything is still there
//!  |-- taken ------------------------------->|  forgets the flows, ends, reports
//!  |  polls                                  |
//!  |<----------------------------- counts ---|
//! ```
//!
//! A port of kernel interfaces passes over with its sockets: both processes have the receive rings mapped, and one
//! of them reads. In `positions` is the slot at which the other one goes on. So the kernel notices nothing, and packets
//! that arrive meanwhile wait in the rings.
//!
//! Until `taken` arrives, the running server has lost nothing: if the connection ends, it goes on. The new one polls
//! only after `taken` was sent. A connection that the other side has closed takes no `taken` any more, so that never
//! both poll.

mod error;
pub mod fields;
#[cfg(feature = "control")]
mod giving;
mod refusal;
#[cfg(feature = "control")]
mod taking;
#[cfg(feature = "control")]
mod wire;

pub use error::TakeOverError;
#[cfg(feature = "control")]
pub use giving::Successor;
#[cfg(feature = "control")]
pub(crate) use giving::TakeOverSocket;
pub use refusal::differences;
#[cfg(feature = "control")]
pub use taking::Predecessor;
#[cfg(feature = "control")]
pub use wire::{MOST_MESSAGE, Message, PROTOCOL};

use std::path::{Path, PathBuf};

/// Socket for take-overs of the server with this control socket.
pub fn socket_of(control: &Path) -> PathBuf {
    let mut path = control.as_os_str().to_owned();
    path.push(".take-over");
    path.into()
}

/// Path of a folder without links, as far as it exists.
#[cfg(feature = "control")]
fn without_links(folder: &Path) -> PathBuf {
    std::fs::canonicalize(folder).unwrap_or_else(|_| folder.to_owned())
}
