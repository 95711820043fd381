//! Passing packets between cores.
//!
//! - [`ring`]: bounded single-producer, single-consumer queue.
//! - [`park`]: sleeping and waking of an idle worker.
//! - [`owner`]: ownership of a flow by a core, and the condition for moving it.
//! - [`route`]: the auxiliary cores of a flow whose chain is divided over several, and how that changes.
//! - [`helping`]: offers of polling cores to process packets of others.
//! - [`scheduled_switch`]: a switch that all cores apply at the same time, without waiting.
//! - [`partition`]: sorting of items into those that stay and those that leave.
//! - [`priority`]: real-time priority of a worker.
//!
//! All lock-free code is in this crate, so it can be checked in one place. The crate has no notion of a packet. Nothing
//! here allocates, locks or makes a system call per packet. Only falling asleep and waking a sleeper are system calls.
//!
//! # Correctness
//!
//! A flow's state is plain memory that one core after the other writes. It passes from the dispatcher to an auxiliary
//! core and back with the flow's packets:
//!
//! 1. The dispatcher writes the flow's state, then pushes a packet: a release store to the ring's tail. The auxiliary
//!    core pops it after an acquire load of that tail. It therefore sees all that the dispatcher wrote before the
//!    store.
//! 2. The auxiliary core writes the state, then pushes the packet into its return ring. It does not access the state
//!    again unless another packet of the flow is in its ring.
//! 3. The dispatcher pops the returned packet, and so sees the auxiliary core's writes. It counts ([`owner::Owner`])
//!    the flow's packets pushed and returned. When the counts are equal, the auxiliary core has no packet left to
//!    process. The dispatcher may then write the state, or pass the flow to another auxiliary core by step 1.
//!
//! A flow whose chain is divided over several auxiliary cores passes from core to core through the dispatcher, by the
//! same steps. [`route::Route`] explains why the last of a core's segments can pass to another core with packets in
//! flight.
//!
//! Only the dispatcher accesses the counts. So the argument rests on the rings' release and acquire pairs and on the
//! exchange that wakes a sleeper ([`park`]). [`ring`] explains why the pairs suffice for the slots.
//!
//! # Verification
//!
//! [loom](https://docs.rs/loom) runs small programs in every interleaving of their steps, and with every stale value
//! that the memory model lets a load return:
//!
//! ```sh
//! RUSTFLAGS="--cfg loom" cargo test -p tailwater-handover --release --test loom \
//!     --target-dir target/loom
//! ```
//!
//! `tests/loom.rs` checks the ring, parking, offers of help, the scheduled switch, and the whole protocol between a
//! dispatcher and its auxiliary cores. It uses this crate's code, not a copy. `tests/threads.rs` runs the same protocol
//! with real threads and many packets. loom does not explore loads that return the value of a store later in program
//! order (load buffering). No processor we know of does so across a release store.
//!
//! ```
//! use tailwater_handover::{park, ring};
//! use std::time::Duration;
//!
//! let (mut to_helper, mut from_dispatcher) = ring::ring::<u64>(64);
//! let (mut sleeper, waker) = park::park(park::Mode::SpinThenSleep(Duration::from_micros(5)));
//! let auxiliary = std::thread::spawn(move || {
//!     let (mut sum, mut batch) = (0, [0; 32]);
//!     loop {
//!         // In this order: what was pushed before the ring was closed is popped.
//!         let closed = from_dispatcher.is_closed();
//!         let count = from_dispatcher.pop_slice(&mut batch);
//!         sum += batch[..count].iter().sum::<u64>();
//!         if count == 0 && closed {
//!             return sum;
//!         }
//!         if count == 0 {
//!             sleeper.wait(Duration::from_millis(10), || {
//!                 !from_dispatcher.is_empty() || from_dispatcher.is_closed()
//!             });
//!         }
//!     }
//! });
//! assert_eq!(to_helper.push_slice(&[1, 2, 3]), 3);
//! waker.wake();
//! drop(to_helper);
//! waker.wake();
//! assert_eq!(auxiliary.join().unwrap(), 6);
//! ```

#![deny(unsafe_code)]

pub mod helping;
pub mod owner;
pub mod park;
#[expect(unsafe_code)]
pub mod partition;
#[expect(unsafe_code)]
pub mod priority;
#[expect(unsafe_code)]
pub mod ring;
pub mod route;
pub mod scheduled_switch;
mod sync;
