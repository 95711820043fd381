//! Mutual exclusion between bursts and drivers whose interrupt handler unmaps memory that a burst uses.
//!
//! When the peer of a shared-memory device (`net_memif`) disconnects, the driver unmaps the shared rings in DPDK's
//! interrupt thread. It does not check whether a queue is receiving or sending. A worker in the middle of a burst would
//! then access unmapped memory, and the process would crash. So the interrupt thread handles events only in turns in
//! which no worker is in a burst of such a device. A worker that starts a burst during a turn waits for its end, some
//! microseconds. A turn starts when a peer's control message arrives, and ten times a second for all other interrupts.
//!
//! One of the few modules with `unsafe` code. Bursts and turns exclude each other as in Dekker's algorithm: each side
//! sets its own flag, then reads the other's, with a full fence between.

use crate::error::{DpdkError, last_lines};
use crate::ffi;
use std::ffi::c_void;
use std::sync::atomic::{AtomicBool, Ordering, fence};
use std::sync::{Arc, Mutex, PoisonError};
use tailwater_api::PortName;

/// Flag: the queue's worker is in a burst. Padded to its own cache lines.
#[derive(Debug, Default)]
#[repr(align(128))]
struct BurstFlag(AtomicBool);

/// Set during a turn of the interrupt thread.
static TURN: AtomicBool = AtomicBool::new(false);
/// Burst flags of all passes.
static PLACES: Mutex<Vec<Arc<BurstFlag>>> = Mutex::new(Vec::new());
/// Set once the interrupt thread calls [`turn`].
static STARTED: Mutex<bool> = Mutex::new(false);

/// Polls before a worker yields its core to others, such as the interrupt thread.
const LOOKS: u32 = 1000;

/// Handle a queue needs for its bursts if its driver is one of these.
#[derive(Debug)]
pub(crate) struct Pass(Arc<BurstFlag>);

/// Guard of a burst in progress.
pub(crate) struct Burst<'p>(&'p BurstFlag);

impl Pass {
    /// Returns a pass for a queue of the port, or `None` if its driver needs none.
    ///
    /// # Errors
    /// If DPDK's interrupt thread cannot be hooked.
    pub(crate) fn of(port: &PortName) -> Result<Option<Pass>, DpdkError> {
        if port.driver() != Some("net_memif") {
            return Ok(None);
        }
        let mut started = STARTED.lock().unwrap_or_else(PoisonError::into_inner);
        if !*started {
            // SAFETY: the environment runs, for there is a port; `turn` may be called at any time, by one thread.
            let code = unsafe { ffi::tw_interrupts_gate(turn) };
            if code != 0 {
                return Err(DpdkError::Port {
                    port: port.to_string(),
                    problem: format!("its interrupts cannot be masked: {}", last_lines(&ffi::said())),
                });
            }
            *started = true;
        }
        Ok(Some(Pass::new()))
    }

    fn new() -> Pass {
        let place = Arc::new(BurstFlag::default());
        let mut places = PLACES.lock().unwrap_or_else(PoisonError::into_inner);
        places.push(Arc::clone(&place));
        Pass(place)
    }

    /// Begins a burst, after the current turn, if any.
    #[inline]
    pub(crate) fn burst(&self) -> Burst<'_> {
        let BurstFlag(within) = &*self.0;
        loop {
            within.store(true, Ordering::Relaxed);
            fence(Ordering::SeqCst);
            if !TURN.load(Ordering::Acquire) {
                return Burst(&self.0);
            }
            within.store(false, Ordering::Release);
            wait_while(&TURN);
        }
    }
}

impl Drop for Burst<'_> {
    #[inline]
    fn drop(&mut self) {
        self.0.0.store(false, Ordering::Release);
    }
}

#[cold]
fn wait_while(flag: &AtomicBool) {
    let mut looks = 0;
    while flag.load(Ordering::Acquire) {
        looks += 1;
        match looks % LOOKS {
            0 => std::thread::yield_now(),
            _ => std::hint::spin_loop(),
        }
    }
}

/// Ends the interrupt thread's current turn and returns once the next one has begun. Runs in the interrupt thread,
/// which handles its events between two calls, that is, within its turn.
extern "C" fn turn(_: *mut c_void) {
    end_turn();
    // SAFETY: the call only waits, and accesses none of our memory.
    unsafe { ffi::tw_await_control() };
    begin_turn();
}

fn end_turn() {
    TURN.store(false, Ordering::Release);
}

fn begin_turn() {
    TURN.store(true, Ordering::Relaxed);
    fence(Ordering::SeqCst);
    let mut places = PLACES.lock().unwrap_or_else(PoisonError::into_inner);
    // Flags of dropped passes have no other holder.
    places.retain(|place| Arc::strong_count(place) > 1);
    places.iter().for_each(|place| wait_while(&place.0));
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicU64;

    #[test]
    fn no_burst_is_on_in_a_turn() {
        static SHARED: AtomicU64 = AtomicU64::new(0);
        static OVER: AtomicBool = AtomicBool::new(false);
        let workers: Vec<_> = (0..2)
            .map(|_| {
                let pass = Pass::new();
                std::thread::spawn(move || {
                    let mut bursts = 0u64;
                    while !OVER.load(Ordering::Relaxed) || bursts == 0 {
                        let burst = pass.burst();
                        let before = SHARED.load(Ordering::Relaxed);
                        std::hint::black_box(&pass);
                        assert_eq!(SHARED.load(Ordering::Relaxed), before, "a turn in a burst");
                        drop(burst);
                        bursts += 1;
                    }
                })
            })
            .collect();
        for _ in 0..2000 {
            begin_turn();
            SHARED.fetch_add(1, Ordering::Relaxed);
            end_turn();
        }
        OVER.store(true, Ordering::Relaxed);
        workers.into_iter().for_each(|worker| worker.join().unwrap());
        begin_turn();
        end_turn();
        assert!(PLACES.lock().unwrap().is_empty());
    }

    #[test]
    fn other_drivers_need_no_pass() {
        for port in ["net_ring0", "net_af_packet0,iface=veth0", "0000:3b:00.0"] {
            assert!(Pass::of(&port.parse().unwrap()).unwrap().is_none());
        }
    }
}
