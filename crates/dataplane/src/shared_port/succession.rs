//! Succession of one chain by another on the same port: its functions and flows pass from worker to worker.
//!
//! From the moment at which packets go to the successor, the predecessor gets none. Each of its workers processes those
//! that it has, and leaves its instance of the chain in its [estate](Estate). The successor's worker of the same
//! number, which has the same RSS buckets, waits for that; its packets wait in its ring meanwhile. So each packet
//! passes one of the two chains, in the order of its flow. The two workers may be on different cores.
//!
//! With different numbers of workers, a worker's buckets come from several, and those of one go to several. Then the
//! estate is divided: each worker waits until all whose buckets it gets have ended, and takes its buckets' flows.

use super::ChainRequests;
use crate::port::{Reta, round_robin};
use crate::worker::flags::WorkerFlags;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};
use tailwater_chain::chain::{Chain, DividedChain, FlowShare};
use tailwater_functions::build::KeptFunction;
use tailwater_net::Nanos;

/// Time after which a worker waits for its predecessor no more.
pub(crate) const LONGEST_WAIT: Nanos = Nanos::from_secs(2);

/// Place where a worker leaves its chain for its successor.
pub(crate) struct Estate {
    /// Names of the functions that the successor keeps.
    kept: Vec<String>,
    /// Number of the successor's workers that share the chain; `None` if one takes it as a whole.
    shared_by: Option<u16>,
    is_left: AtomicBool,
    chain: Mutex<Left>,
}

/// Flows that were left.
#[derive(Default)]
enum Left {
    /// Nothing, or nothing any more.
    #[default]
    Nothing,
    Whole(Box<Chain>),
    /// Chain that others share, and the number of those that have not taken theirs.
    Divided(Box<DividedChain>, u16),
}

/// Inheritance of a worker.
pub(crate) enum Inherited {
    Nothing,
    /// Chain of a worker with the same RSS buckets.
    Chain(Box<Chain>),
    /// Flows of the worker's RSS buckets.
    Flows(Box<FlowShare>),
}

impl fmt::Debug for Estate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Estate")
            .field("kept", &self.kept)
            .field("is_left", &self.is_left)
            .finish_non_exhaustive()
    }
}

impl Estate {
    /// Returns `true` if the successor can take this chain.
    pub(crate) fn suits(&self, chain: &Chain) -> bool {
        self.shared_by.is_none() || chain.is_plain()
    }

    /// Leaves a chain, or nothing if the worker died.
    pub(crate) fn leave(&self, chain: Option<Chain>) {
        let left = match (chain, self.shared_by) {
            (None, _) | (_, Some(0)) => Left::Nothing,
            (Some(chain), None) => Left::Whole(Box::new(chain)),
            (Some(chain), Some(workers)) => Left::Divided(Box::new(chain.divide()), workers),
        };
        *self.chain.lock().unwrap_or_else(PoisonError::into_inner) = left;
        // Release: the chain is there before the flag is seen.
        self.is_left.store(true, Ordering::Release);
    }

    fn is_left(&self) -> bool {
        self.is_left.load(Ordering::Acquire)
    }

    /// Ends the flows that nobody took.
    fn end(&self) {
        let left = std::mem::take(&mut *self.chain.lock().unwrap_or_else(PoisonError::into_inner));
        if let Left::Whole(chain) = left {
            chain.drain();
        }
    }

    /// Takes the whole chain, if it was left.
    fn take(&self) -> Inherited {
        let mut left = self.chain.lock().unwrap_or_else(PoisonError::into_inner);
        match std::mem::take(&mut *left) {
            Left::Whole(chain) => Inherited::Chain(chain),
            divided => {
                *left = divided;
                Inherited::Nothing
            }
        }
    }

    /// Takes the flows of the RSS buckets of one of the workers that share the chain.
    fn take_share(&self, owns: impl Fn(u16) -> bool) -> Option<FlowShare> {
        let mut left = self.chain.lock().unwrap_or_else(PoisonError::into_inner);
        let Left::Divided(chain, takers) = &mut *left else {
            return None;
        };
        let share = chain.share(owns);
        *takers = takers.saturating_sub(1);
        if *takers == 0 {
            *left = Left::Nothing;
        }
        Some(share)
    }
}

impl Drop for Estate {
    /// Ends the flows of a chain that was left after its successor's end.
    fn drop(&mut self) {
        self.end();
    }
}

/// Owners of the RSS buckets before and after a succession.
#[derive(Debug)]
struct Owners {
    before: Reta,
    after: Reta,
}

impl Owners {
    /// Returns `true` if a bucket passes from one worker to another.
    fn pass(&self, from: usize, to: usize) -> bool {
        let mut owners = self.before.iter().zip(self.after.iter());
        owners.any(|(before, after)| (usize::from(*before), usize::from(*after)) == (from, to))
    }
}

/// Estates of a chain's workers, by their number.
pub(crate) type Estates = Arc<[Arc<Estate>]>;

/// Estates for a successor, once there is one.
pub(crate) type Heir = Arc<OnceLock<Estates>>;

/// Flags of a run's workers, their number once it is known, and their heir.
#[derive(Clone, Debug, Default)]
pub(crate) struct RunEnds {
    pub(crate) flags: Arc<WorkerFlags>,
    pub(crate) workers: Arc<OnceLock<u16>>,
    pub(crate) heir: Heir,
    /// Requests to each worker, once their number is known.
    requests: Arc<OnceLock<Box<[Arc<ChainRequests>]>>>,
}

impl RunEnds {
    /// Notes the number of workers.
    pub(crate) fn set_workers(&self, workers: u16) {
        // A run has one number.
        let _ = self.workers.set(workers);
        let _ = self
            .requests
            .set((0..workers).map(|_| Arc::<ChainRequests>::default()).collect());
    }

    /// Requests to a worker; `None` if the run has no such worker yet.
    pub(crate) fn requests_to(&self, worker: usize) -> Option<Arc<ChainRequests>> {
        self.requests.get()?.get(worker).cloned()
    }

    /// Names of the functions that a successor keeps.
    pub(crate) fn kept(heir: Option<&Heir>) -> &[String] {
        let estates = heir.and_then(|heir| heir.get());
        estates
            .and_then(|estates| estates.first())
            .map_or(&[], |estate| &estate.kept)
    }
}

/// Inheritance of a chain.
#[derive(Clone, Debug)]
pub(crate) struct Succession {
    pub(crate) estates: Estates,
    pub(crate) kept: Vec<KeptFunction>,
    /// Owners of buckets whose number differs; `None` if each worker follows the one of its number.
    owners: Option<Arc<Owners>>,
}

impl Succession {
    /// Inheritance of a chain with this number of workers, from one with `before`.
    pub(crate) fn new(kept: Vec<KeptFunction>, workers: u16, before: u16) -> Succession {
        let owners = (workers != before && before > 0).then(|| Owners {
            before: round_robin(before),
            after: round_robin(workers),
        });
        let names: Vec<String> = kept.iter().map(|function| function.name().to_owned()).collect();
        let estate = |worker: u16| {
            let sharing = owners.as_ref().map(|owners| {
                let gets = |to: &u16| owners.pass(usize::from(worker), usize::from(*to));
                (0..workers).filter(gets).count() as u16
            });
            Arc::new(Estate {
                kept: names.clone(),
                shared_by: sharing,
                is_left: AtomicBool::default(),
                chain: Mutex::default(),
            })
        };
        Succession {
            estates: (0..before).map(estate).collect(),
            kept,
            owners: owners.map(Arc::new),
        }
    }

    /// Ends the flows that no worker took, since it died before. To be called while what instances of the functions
    /// `kept` share is still there: they report these flows. With `waits`, waits for predecessors that have not ended.
    pub(crate) fn end_what_is_left(&self, waits: bool) {
        let until = Instant::now() + Duration::from_nanos(LONGEST_WAIT.0);
        for estate in self.estates.iter() {
            while waits && !estate.is_left() && Instant::now() < until {
                std::thread::sleep(Duration::from_millis(1));
            }
            estate.end();
        }
    }

    /// Inheritance of the worker of this number.
    pub(crate) fn of(&self, worker: usize) -> Inheritance {
        Inheritance {
            estates: Arc::clone(&self.estates),
            worker,
            owners: self.owners.clone(),
        }
    }
}

/// Inheritance of one worker.
#[derive(Debug)]
pub(crate) struct Inheritance {
    estates: Estates,
    worker: usize,
    owners: Option<Arc<Owners>>,
}

impl Inheritance {
    /// Takes what was left: `None` before those from which it comes have ended.
    #[inline]
    pub(crate) fn take(&self) -> Option<Inherited> {
        match &self.owners {
            Some(owners) => self.take_shares(owners),
            None => {
                let Some(own) = self.estates.get(self.worker) else {
                    return Some(Inherited::Nothing);
                };
                own.is_left().then(|| own.take())
            }
        }
    }

    /// Takes the flows of this worker's buckets from all that have some, once all of these have ended.
    fn take_shares(&self, owners: &Owners) -> Option<Inherited> {
        let givers = || {
            let estates = self.estates.iter().enumerate();
            estates.filter(|(from, _)| owners.pass(*from, self.worker))
        };
        if !givers().all(|(_, estate)| estate.is_left()) {
            return None;
        }
        let owns = |bucket: u16| usize::from(owners.after[usize::from(bucket)]) == self.worker;
        let shares = givers().filter_map(|(_, estate)| estate.take_share(owns));
        let all = shares.reduce(|mut all, share| {
            all.merge(share);
            all
        });
        Some(all.map_or(Inherited::Nothing, |all| Inherited::Flows(Box::new(all))))
    }

    /// Names of the functions that are kept.
    pub(crate) fn kept(&self) -> &[String] {
        self.estates.first().map_or(&[], |estate| &estate.kept)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::sync::atomic::AtomicUsize;
    use tailwater_api::PacketAction;
    use tailwater_chain::batch::Batch;
    use tailwater_chain::chain::InputPolicy;
    use tailwater_chain::function::{FlowStates, NetworkFunction, RunEnd};

    fn owners(before: u16, after: u16) -> Owners {
        Owners {
            before: round_robin(before),
            after: round_robin(after),
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(24))]

        /// Each bucket passes from its one owner to its one owner, and a worker waits for those of its buckets only.
        #[test]
        fn every_bucket_has_one_owner_before_and_after(before in 1u16..=64, after in 1u16..=64) {
            let owners = owners(before, after);
            for (bucket, from) in owners.before.iter().enumerate() {
                let to = owners.after[bucket];
                prop_assert!(*from < before && to < after);
                prop_assert!(owners.pass(usize::from(*from), usize::from(to)));
            }
            let pairs = (0..before).flat_map(|from| (0..after).map(move |to| (from, to)));
            for (from, to) in pairs {
                let is_owned = |bucket: usize| owners.before[bucket] == from && owners.after[bucket] == to;
                let passes = (0..owners.before.len()).any(is_owned);
                prop_assert_eq!(owners.pass(usize::from(from), usize::from(to)), passes);
            }
        }
    }

    /// Function that counts its ends.
    struct Ends(Arc<AtomicUsize>);

    impl NetworkFunction for Ends {
        fn kind(&self) -> &'static str {
            "ends"
        }
        fn process(&mut self, _: &mut Batch, _: &mut FlowStates<'_>) {}
        fn run_end(&mut self) -> Option<&mut dyn RunEnd> {
            Some(self)
        }
    }

    impl RunEnd for Ends {
        fn drain(&mut self) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// They ended only when the last handle of the succession was dropped, after what they share with others.
    #[test]
    fn kept_functions_end_with_the_run_whose_worker_died_before_it_inherited() {
        let input = InputPolicy {
            malformed: PacketAction::Drop,
            non_ip: PacketAction::Drop,
        };
        for (before, after) in [(1, 1), (1, 2)] {
            let succession = Succession::new(Vec::new(), after, before);
            let ends = Arc::<AtomicUsize>::default();
            let functions: Vec<(String, Box<dyn NetworkFunction>)> =
                vec![("ends".to_owned(), Box::new(Ends(Arc::clone(&ends))))];
            let chain = Chain::new(functions, None, input);
            let (leaving, end) = (succession.clone(), succession.clone());
            let leaves = std::thread::spawn(move || leaving.estates[0].leave(Some(chain)));
            end.end_what_is_left(true);
            assert_eq!(ends.load(Ordering::Relaxed), 1, "{before} to {after}");
            leaves.join().unwrap();
            drop((succession, end));
            assert_eq!(ends.load(Ordering::Relaxed), 1, "{before} to {after}");
        }
    }

    /// A worker waits for all whose buckets it gets, and for no other.
    #[test]
    fn workers_wait_for_those_whose_buckets_they_get() {
        let leave = |succession: &Succession, worker: usize| succession.estates[worker].leave(None);
        let halves = Succession::new(Vec::new(), 4, 2);
        let workers: Vec<_> = (0..4).map(|worker| halves.of(worker)).collect();
        assert!(workers.iter().all(|worker| worker.take().is_none()));
        leave(&halves, 1);
        let ready: Vec<bool> = workers.iter().map(|worker| worker.take().is_some()).collect();
        assert_eq!(ready, [false, true, false, true]);
        leave(&halves, 0);
        assert!(workers.iter().all(|worker| worker.take().is_some()));
        let fewer = Succession::new(Vec::new(), 1, 3);
        for worker in 0..3 {
            assert!(fewer.of(0).take().is_none());
            leave(&fewer, worker);
        }
        assert!(fewer.of(0).take().is_some());
        let same = Succession::new(Vec::new(), 2, 2);
        leave(&same, 1);
        assert!(same.of(0).take().is_none() && same.of(1).take().is_some());
    }
}
