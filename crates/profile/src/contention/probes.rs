//! Probes: a vector of contention metrics without hardware counters.

use super::loops::{Loops, Times};
use super::source::{MetricSource, Reading, Scene, SourceError};
use crate::cache::Caches;
use crate::interference::Steal;
use std::collections::BTreeMap;
use std::sync::Arc;
use tailwater_dataplane::cores::pin_to;
use tailwater_predict::Schema;

/// Loops on a free core whose slowdown beside programs is the vector of these programs: a value of 0.2 means that an
/// operation took 20 % longer than while nothing ran.
///
/// A probe is a co-runner itself. It slows the programs that it observes, and they press less on it for that: its
/// vector is that of programs beside one more. Its loops touch memory as fast as a core can, so that another program
/// is slowed less than they are.
pub struct Probes {
    loops: Loops,
    schema: Arc<Schema>,
    /// Times of the loops while nothing ran, by core.
    at_rest: BTreeMap<usize, Vec<f64>>,
}

impl Probes {
    /// Prepares probes for programs under the last-level cache of `core`.
    ///
    /// # Errors
    /// The kernel does not describe the caches, or there is no memory.
    pub fn new(core: usize) -> Result<Probes, SourceError> {
        let caches = Caches::of(core).ok_or(SourceError::Caches { core })?;
        let loops = Loops::new(&caches)?;
        Ok(Probes {
            schema: Arc::new(loops.schema()?),
            loops,
            at_rest: BTreeMap::new(),
        })
    }

    /// Returns the times of the loops at rest on a core that was prepared, nanoseconds, in the order of the metrics.
    pub fn at_rest(&self, core: usize) -> Option<&[f64]> {
        self.at_rest.get(&core).map(Vec::as_slice)
    }

    /// Runs the loops on a core.
    fn pass(&mut self, core: usize) -> Result<Times, SourceError> {
        let loops = &mut self.loops;
        let steal = Steal::watch(core);
        let times = std::thread::scope(|scope| {
            let prober = scope.spawn(move || {
                pin_to(core)?;
                Ok::<_, SourceError>(loops.pass())
            });
            let times = prober.join();
            times.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })?;
        Ok(Times {
            is_disturbed: times.is_disturbed || steal.is_beyond_limit(),
            ..times
        })
    }
}

impl MetricSource for Probes {
    fn schema(&self) -> &Arc<Schema> {
        &self.schema
    }

    fn prepare(&mut self, free: usize) -> Result<bool, SourceError> {
        let times = self.pass(free)?;
        self.at_rest.insert(free, times.nanos);
        Ok(times.is_disturbed)
    }

    fn observe(&mut self, scene: Scene<'_>) -> Result<Reading, SourceError> {
        let times = self.pass(scene.free)?;
        let core = scene.free;
        let at_rest = self.at_rest.get(&core).ok_or(SourceError::Unprepared { core })?;
        Ok(reading(&times, at_rest))
    }
}

/// Returns the added time of each loop as a share of its time at rest; 0 if it was not slower.
fn reading(times: &Times, at_rest: &[f64]) -> Reading {
    let added = times.nanos.iter().zip(at_rest);
    let added = added.map(|(beside, rest)| Some((beside / rest - 1.0).max(0.0)).filter(|added| added.is_finite()));
    Reading {
        values: added.collect(),
        is_disturbed: times.is_disturbed,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_vector_is_the_added_time() {
        let times = Times {
            nanos: vec![120.0, 9.0, 50.0],
            is_disturbed: true,
        };
        let reading = reading(&times, &[100.0, 10.0, 0.0]);
        let [first, second, third] = reading.values[..] else {
            panic!("{reading:?}");
        };
        assert!((first.unwrap() - 0.2).abs() < 1e-9);
        // Noise below 0 would be outside of the range of a model whose least value is 0.
        assert_eq!((second, third), (Some(0.0), None));
        assert!(reading.is_disturbed);
    }

    #[test]
    fn probes_observe_after_their_preparation() {
        let core = tailwater_dataplane::cores::default_core();
        let mut probes = match Probes::new(core) {
            Ok(probes) => probes,
            Err(error) => return eprintln!("skipped: {error}"),
        };
        let scene = Scene {
            subjects: &[],
            free: core,
        };
        let error = probes.observe(scene).unwrap_err();
        assert!(matches!(error, SourceError::Unprepared { .. }), "{error}");
        probes.prepare(core).unwrap();
        assert!(probes.at_rest(core).unwrap().iter().all(|nanos| *nanos > 0.0));
        let reading = probes.observe(scene).unwrap();
        assert_eq!(reading.values.len(), probes.schema().metrics().len());
        assert!(
            reading
                .values
                .iter()
                .all(|value| value.is_some_and(|value| value >= 0.0))
        );
    }
}
