//! Observer of kept packets, beside their files.

use std::fmt;
use std::sync::Arc;
use tailwater_net::Nanos;

/// Packet that was late, lost or dropped, and is kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeptRecord<'r> {
    /// Chain.
    pub chain: &'r str,
    /// Core that has sent or dropped it.
    pub core: u32,
    /// `late`, `lost` or `dropped`.
    pub verdict: &'r str,
    /// Cause or reason, in the names of reports.
    pub reason: &'r str,
    /// Arrival, beginning of its batch in the chain, and departure or drop: times since the Unix epoch.
    pub times: [Nanos; 3],
    /// Length of the frame.
    pub length: u16,
    /// First bytes of the frame.
    pub frame: &'r [u8],
}

/// Function that gets each packet that matters, on the thread that writes the files: it must not wait.
#[derive(Clone)]
pub struct KeptObserver(Arc<dyn Fn(&KeptRecord<'_>) + Send + Sync>);

impl KeptObserver {
    /// Observer that calls `f`.
    pub fn new(f: impl Fn(&KeptRecord<'_>) + Send + Sync + 'static) -> KeptObserver {
        KeptObserver(Arc::new(f))
    }

    pub(super) fn observe(&self, record: &KeptRecord<'_>) {
        (self.0)(record);
    }
}

impl fmt::Debug for KeptObserver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("KeptObserver")
    }
}

impl PartialEq for KeptObserver {
    fn eq(&self, other: &KeptObserver) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for KeptObserver {}
