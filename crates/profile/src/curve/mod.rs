//! Decisions on the next measurement and on its end; without clock, machine or randomness.
//!
//! - [`Bisection`] samples a curve where it bends (ResQ, section 5.2);
//! - [`Repeats`] estimates the noise of a value that is measured several times;
//! - `Attempts` replaces those runs that had [interference](crate::interference);
//! - [`RateSearch`] finds the highest rates that meet goals: no loss, little loss, a latency.

mod attempts;
mod bisection;
mod rates;
mod repeats;

pub(crate) use attempts::{Attempts, MOST_DISTURBED};
pub use bisection::{Bisection, BisectionRule, Point};
pub use rates::{Goal, RateSearch, Trial};
pub use repeats::{Measured, RepeatRule, Repeats};
