//! Link state of a port.

use std::fs;
use std::path::Path;

/// Link state of a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Link {
    /// The link is up.
    pub up: bool,
    /// Speed in Mbit/s, if known.
    pub mbps: Option<u32>,
}

/// Link state of a kernel interface from sysfs. An interface set down has no link.
pub(super) fn link_of_interface(name: &str) -> Link {
    let told = |file: &str| {
        let text = fs::read_to_string(Path::new("/sys/class/net").join(name).join(file)).ok()?;
        text.trim().parse::<u32>().ok()
    };
    Link {
        up: told("carrier") == Some(1),
        mbps: told("speed").filter(|mbps| *mbps > 0),
    }
}
