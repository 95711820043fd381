//! Handing packets between cores.
//!
//! - [`ring`]: a bounded queue from one core to one other;
//! - [`park`]: where a worker sleeps that has nothing to do, and how it is woken;
//! - [`owner`]: which core may touch a flow, and when the flow may move to another;
//! - [`agreed`]: a time from which on something holds, for all cores, without waiting;
//! - [`priority`]: real-time priority for a worker.
//!
//! Everything lock-free is in this crate, so that all of it can be checked in one place. Nothing
//! here knows what a packet is, and nothing allocates, locks or makes a system call per packet;
//! only falling asleep and waking a sleeper are system calls.
//!
//! # Why it is right
//!
//! A flow's state is plain memory that one core after the other writes. It goes from the
//! dispatcher to a helper and back with the flow's packets:
//!
//! 1. The dispatcher writes the flow's state, then pushes a packet: a release store to the
//!    ring's tail. The helper pops it by an acquire load of that tail. What the dispatcher wrote
//!    before the store, the helper sees after the load.
//! 2. The helper writes the state, then pushes the packet into its return ring, and does not touch
//!    the state again unless another packet of the flow is in its ring.
//! 3. The dispatcher pops the returned packet, and so sees what the helper wrote. It has counted
//!    ([`owner::Owner`]) how many of the flow's packets it pushed and how many came back; when as many
//!    came back, the helper has no cause to touch the state, and the dispatcher may write it, or
//!    hand the flow to another helper by step 1.
//!
//! The count is the dispatcher's alone, so the whole argument rests on the rings' release and acquire
//! pairs ([`ring`] says why they suffice for the slots) and on the exchange that wakes a sleeper
//! ([`park`]).
//!
//! # How it is checked
//!
//! By [loom](https://docs.rs/loom), which runs small programs in every order of their steps and
//! with every stale value that the memory model lets a load return:
//!
//! ```sh
//! RUSTFLAGS="--cfg loom" cargo test -p tailwater-handover --release --test loom \
//!     --target-dir target/loom
//! ```
//!
//! `tests/loom.rs` checks the ring, the sleeping place, the agreement on a time, and the whole protocol of a dispatcher and
//! its helpers, with this crate's code and not a copy of it; `tests/threads.rs` runs the same
//! protocol with real threads and many packets. loom does not try loads that take their value from
//! a store later in program order (load buffering); no processor we know does so across a
//! release store.
//!
//! ```
//! use tailwater_handover::{park, ring};
//! use std::time::Duration;
//!
//! let (mut to_helper, mut from_dispatcher) = ring::ring::<u64>(64);
//! let (mut sleeper, waker) = park::park(park::Mode::SpinThenSleep(Duration::from_micros(5)));
//! let helper = std::thread::spawn(move || {
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
//! assert_eq!(helper.join().unwrap(), 6);
//! ```

#![deny(unsafe_code)]

pub mod agreed;
pub mod owner;
pub mod park;
#[expect(unsafe_code)]
pub mod priority;
#[expect(unsafe_code)]
pub mod ring;
mod sync;
