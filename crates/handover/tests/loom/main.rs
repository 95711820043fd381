//! Model checks: every interleaving, and every stale value that the memory model allows.
//!
//! ```sh
//! RUSTFLAGS="--cfg loom" cargo test -p tailwater-handover --release --test loom \
//!     --target-dir target/loom
//! ```
#![cfg(loom)]

mod helping;
#[path = "../model/mod.rs"]
mod model;
mod ownership;
mod parking;
mod rings;
mod stacks;

use loom::model::Builder;

/// Checks all interleavings with at most `preemptions` preemptions.
fn check(preemptions: usize, body: impl Fn() + Sync + Send + 'static) {
    let mut builder = Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.max_branches = 20_000;
    builder.check(body);
}
