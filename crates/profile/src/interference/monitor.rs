//! Measurement of the conditions beside runs.

use super::host::stolen;
use super::reference::Loops;
use super::{Conditions, Speed, most_stolen, slowdown};
use crate::error::TrainError;
use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::Instant;
use tailwater_dataplane::cores::{CoreError, pin_to};
use tailwater_net::Nanos;

/// Attempts of the loops before and after a run: a core that was idle reaches its clock after some milliseconds, and a
/// single preemption says little.
const TRIES: usize = 4;

/// Situations, each with a best speed of its own: a core, and `true` if another core of ours is busy, which may lower
/// the clock.
type Situation = (usize, bool);

/// Best speeds of this process.
static BEST: Mutex<BTreeMap<Situation, Speed>> = Mutex::new(BTreeMap::new());

/// Watches runs on a core.
pub(crate) struct Monitor {
    situation: Situation,
    loops: Loops,
}

/// State before a run.
pub(crate) struct Before {
    speed: Speed,
    stolen: Nanos,
}

/// Watches the time that the hypervisor takes from a core.
pub(crate) struct Steal {
    core: usize,
    stolen: Nanos,
    start: Instant,
}

impl Steal {
    /// Starts to watch a core.
    pub(crate) fn watch(core: usize) -> Steal {
        Steal {
            core,
            stolen: stolen(core),
            start: Instant::now(),
        }
    }

    /// Returns `true` if the hypervisor took more than is tolerated since the start.
    pub(crate) fn is_beyond_limit(&self) -> bool {
        let length = Nanos(self.start.elapsed().as_nanos() as u64);
        stolen(self.core).saturating_sub(self.stolen) > most_stolen(length)
    }
}

impl Monitor {
    /// Prepares to watch `core`; `beside` if another core is kept busy meanwhile.
    pub(crate) fn new(core: usize, beside: bool) -> Monitor {
        Monitor {
            situation: (core, beside),
            loops: Loops::of(core),
        }
    }

    /// Returns the core's best speed so far.
    pub(crate) fn best(&self) -> Option<Speed> {
        let best = BEST.lock().unwrap_or_else(PoisonError::into_inner);
        best.get(&self.situation).copied()
    }

    /// Call before a run.
    ///
    /// # Errors
    /// The core cannot be used.
    pub(crate) fn begin(&self) -> Result<Before, TrainError> {
        Ok(Before {
            speed: self.measure()?,
            stolen: stolen(self.situation.0),
        })
    }

    /// Call after a run. Returns its conditions, without those that its report has.
    ///
    /// # Errors
    /// The core cannot be used.
    pub(crate) fn end(&self, before: &Before) -> Result<Conditions, TrainError> {
        let stolen = stolen(self.situation.0).saturating_sub(before.stolen);
        Ok(Conditions {
            speed: Speed::worst_of(Some(before.speed), Some(self.measure()?)),
            stolen,
            ..Conditions::default()
        })
    }

    /// Measures the core's speed, again while it is slow. If every attempt was preempted, the core has no speed worth
    /// the name, and any best speed is better.
    fn measure(&self) -> Result<Speed, TrainError> {
        let (core, beside) = self.situation;
        let loops = &self.loops;
        let best = self.best();
        let measured = std::thread::scope(|scope| {
            let reader = scope.spawn(move || {
                pin_to(core)?;
                let mut fastest = None;
                for _ in 0..TRIES {
                    let speed = loops.measure().map(|speed| Speed {
                        private: speed.private.filter(|_| !beside),
                        ..speed
                    });
                    fastest = Speed::best_of(fastest, speed);
                    let is_fast = |speed: Speed| best.is_none_or(|best| slowdown(speed, best).is_none());
                    if best.is_some() && fastest.is_some_and(is_fast) {
                        break;
                    }
                }
                Ok::<_, CoreError>(fastest)
            });
            let read = reader.join();
            read.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        });
        let measured = measured.map_err(|error| TrainError::Run(error.into()))?;
        let mut best = BEST.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(better) = Speed::best_of(best.get(&self.situation).copied(), measured) {
            best.insert(self.situation, better);
        }
        let preempted = Speed {
            compute: f64::INFINITY,
            private: None,
        };
        Ok(measured.unwrap_or(preempted))
    }
}
