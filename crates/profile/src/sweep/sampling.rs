//! Choice of the runs and points of a curve, with replacement of runs that had interference.

use super::SweepError;
use super::runs::Sweep;
use crate::curve::{Attempts, Bisection, MOST_DISTURBED, Measured};
use crate::interference::Conditions;

impl Sweep<'_> {
    /// Adds runs to a value until it is complete.
    pub(super) fn go_on(
        &self,
        attempts: &mut Attempts,
        mut run: impl FnMut() -> Result<(f64, Conditions), SweepError>,
    ) -> Result<(), SweepError> {
        // Runs without a figure do not count; the loop bounds their number.
        for _ in 0..2 * (attempts.most() + MOST_DISTURBED) {
            if attempts.enough(self.watch.best(), self.watch.may_repeat()) {
                break;
            }
            let (figure, conditions) = run()?;
            self.spend_if_disturbed(&conditions);
            attempts.tell(figure, conditions);
        }
        Ok(())
    }

    /// Spends the time of a run that has to be replaced. Returns `true` if it has interference.
    pub(super) fn spend_if_disturbed(&self, conditions: &Conditions) -> bool {
        let is_disturbed = conditions.interference(self.watch.best()).is_some();
        if is_disturbed {
            self.watch.spend(conditions.length);
        }
        is_disturbed
    }

    /// Returns the value of the runs that count.
    pub(super) fn outcome(&self, attempts: &Attempts) -> Result<Measured, SweepError> {
        let measured = attempts.outcome(self.watch.best());
        measured.ok_or(SweepError::Nothing(self.run_time))
    }

    /// Samples a curve. `measure` is called with a position and the reason; it returns `None` if there is no value.
    /// Afterwards it is called for all points, whose runs may have turned out to be slow.
    pub(super) fn sample(
        &self,
        curve: &mut Bisection,
        mut measure: impl FnMut(u32, Purpose) -> Result<Option<Measured>, SweepError>,
    ) -> Result<(), SweepError> {
        loop {
            let again = curve.again().filter(|_| self.watch.may_repeat());
            if let Some(at) = again {
                match measure(at, Purpose::HiddenBend)? {
                    Some(measured) => curve.tell_again(at, measured),
                    // The value so far stays, and so does the doubt.
                    None => curve.give_up(at),
                }
                continue;
            }
            let Some(at) = curve.next() else {
                break;
            };
            let measured = measure(at, Purpose::First)?;
            curve.tell(at, measured);
        }
        for point in curve.points() {
            if let Some(measured) = measure(point.at, Purpose::Review)? {
                curve.replace(point.at, measured);
            }
        }
        Ok(())
    }
}

/// Reason for measuring a point.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Purpose {
    First,
    /// Its noise hides a bend.
    HiddenBend,
    /// All points are measured, and the core's best speed is known.
    Review,
}
