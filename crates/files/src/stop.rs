//! Flag that ends reading and writing of streams.

use std::sync::atomic::AtomicBool;
use std::sync::{Arc, OnceLock};

/// Flag that ends blocked reads and writes of streams within a fraction of a second. The handlers of signals set it.
pub fn stop_requested() -> &'static Arc<AtomicBool> {
    static STOP: OnceLock<Arc<AtomicBool>> = OnceLock::new();
    STOP.get_or_init(Arc::default)
}
