//! What to measure next, and when it is enough: decisions only, without clock, machine or randomness.
//!
//! - [`Bisection`] samples a curve where it bends (ResQ, section 5.2);
//! - [`Repeats`] says how sure a figure is that was measured several times;
//! - [`RateSearch`] finds the highest rates that keep promises: no loss, little loss, a latency.

mod bisection;
mod rates;
mod repeats;

pub use bisection::{Bisection, BisectionRule, Point};
pub use rates::{Goal, RateSearch, Trial};
pub use repeats::{Measured, RepeatRule, Repeats};
