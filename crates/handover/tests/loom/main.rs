//! Model checks: every interleaving, and every stale value that the memory model allows.
//!
//! ```sh
//! RUSTFLAGS="--cfg loom" cargo test -p tailwater-handover --profile loom --test loom \
//!     --target-dir target/loom
//! ```
//!
//! Models of three cores take most of the time: `LOOM_MAX_PREEMPTIONS` bounds them instead of the usual two
//! preemptions, which `make test` sets to one.
#![cfg(loom)]

mod helping;
#[path = "../model/mod.rs"]
mod model;
mod ownership;
mod parking;
mod rings;
mod stacks;

use loom::model::Builder;

/// Checks all interleavings of three cores.
fn check_three(body: impl Fn() + Sync + Send + 'static) {
    // Loom reads the variable.
    check(Builder::new().preemption_bound.unwrap_or(2), body);
}

/// Checks all interleavings with at most `preemptions` preemptions.
fn check(preemptions: usize, body: impl Fn() + Sync + Send + 'static) {
    let mut builder = Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.max_branches = 20_000;
    builder.check(body);
}
