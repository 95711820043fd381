//! A port in use: shared by its queues and its control functions, and closed when the last of them is dropped.
//!
//! One of the few modules with `unsafe` code: it registers for the device's removal, and closes the port.

use crate::ffi;
use crate::interface_lock::InterfaceLock;
use crate::mempool::Mempool;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use tailwater_api::PortName;

/// Names of the devices this process uses.
static USED: Mutex<Vec<PortName>> = Mutex::new(Vec::new());

/// Returns the names of the devices this process uses.
pub(crate) fn used() -> MutexGuard<'static, Vec<PortName>> {
    USED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// State shared by all users of a port. The last one closes it.
#[derive(Debug)]
pub(crate) struct OpenPort {
    id: u16,
    name: PortName,
    /// Set by DPDK when the device is removed.
    removed: Box<AtomicU8>,
    /// Owns the memory the device receives into.
    _mempool: Mempool,
    _claim: Option<InterfaceLock>,
}

impl OpenPort {
    /// Takes over a port that has been started with buffers of `mempool`.
    pub(crate) fn new(id: u16, name: PortName, mempool: Mempool, claim: Option<InterfaceLock>) -> OpenPort {
        let removed = Box::new(AtomicU8::new(0));
        // SAFETY: `removed` stays at its address until the last holder of the port has unregistered it. A device that
        // cannot be unplugged refuses, and is never reported as removed.
        unsafe { ffi::tw_port_watch(id, removed.as_ptr()) };
        OpenPort {
            id,
            name,
            removed,
            _mempool: mempool,
            _claim: claim,
        }
    }

    #[inline]
    pub(crate) fn id(&self) -> u16 {
        self.id
    }

    /// Name of the port.
    pub(crate) fn name(&self) -> &PortName {
        &self.name
    }

    /// Returns `true` if DPDK has reported the device as removed.
    pub(crate) fn is_removed(&self) -> bool {
        self.removed.load(Ordering::Relaxed) != 0
    }
}

impl Drop for OpenPort {
    fn drop(&mut self) {
        // SAFETY: the port has no other user any more; `removed` is the address that was registered, and still valid.
        unsafe {
            ffi::tw_port_unwatch(self.id, self.removed.as_ptr());
            ffi::tw_port_close(self.id);
        }
        used().retain(|used| *used != self.name);
    }
}
