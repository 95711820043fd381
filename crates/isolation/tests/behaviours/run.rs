//! Run of a case: a worker with the isolated chain, a supervisor that ends a hang, and the checks.

use crate::case::Case;
use crate::leftovers::{Traces, kill_all};
use crate::worker::{Progress, work};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};
use tailwater_confine::ContainerRuntime;
use tailwater_handover::priority::Priority;
use tailwater_isolation::server::{FunctionReport, WATCH_PRIORITY};

/// Deadline of a turn.
pub(crate) const DEADLINE: Duration = Duration::from_millis(20);
/// Time after which the worker must have its core again. The slack is for a busy machine: the process is ended and
/// reaped meanwhile.
pub(crate) const BACK_WITHIN: Duration = Duration::from_millis(2 * 20 + 1_000);
/// Time after which a worker that does not return from a batch is helped.
pub(crate) const HUNG: Duration = Duration::from_secs(3);
/// Time after which a worker that was helped has no hope.
const HOPELESS: Duration = Duration::from_secs(60);

/// Checks of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Check {
    /// A packet was changed outside a turn.
    Changed,
    /// A packet left that the model does not send, or it left with other bytes.
    OtherThanModel,
    /// A frame left that is not well-formed.
    Invalid,
    /// An innocent function was accused.
    Accused,
    /// The worker did not get its core back.
    Hung,
    /// It got its core back too late.
    Late,
    /// Packets sent are not those delivered and counted under a reason.
    Unaccounted,
    /// Packets were lost though every behaviour was permitted.
    Lost,
    /// The hostile function saw bytes that functions behind it wrote.
    Leaked,
    /// The hostile function saw packets before its turn.
    Early,
    /// The chain did not recover after the behaviours.
    NotRecovered,
    /// The function took milliseconds in each turn and was not accused.
    Hogged,
    /// Something of it is left.
    LeftBehind,
    /// The test's worker panicked.
    Panicked,
}

/// Result of a run.
#[derive(Debug, Default)]
pub(crate) struct Outcome {
    /// Violations: the first of each check, and their number.
    pub(crate) violations: BTreeMap<Check, (String, u64)>,
    /// Batches in which the hostile function behaved.
    pub(crate) batches: u32,
    /// Packets sent and delivered.
    pub(crate) packets: [u64; 2],
    pub(crate) gone: Vec<(String, u64)>,
    /// Longest time of a batch.
    pub(crate) worst: Duration,
    /// Batches that took more than twice the deadline.
    pub(crate) slow: u64,
    /// Reports on the functions.
    pub(crate) functions: Vec<FunctionReport>,
}

impl Outcome {
    pub(crate) fn violate(&mut self, check: Check, how: impl FnOnce() -> String) {
        self.violations.entry(check).or_insert_with(|| (how(), 0)).1 += 1;
    }

    pub(crate) fn checks(&self) -> BTreeSet<Check> {
        self.violations.keys().copied().collect()
    }

    /// Returns the turns of the hostile function, and of all.
    pub(crate) fn turns(&self, case: &Case) -> [u64; 2] {
        let all = self.functions.iter().map(|it| it.turns).sum();
        [self.functions.get(case.hostile).map_or(0, |it| it.turns), all]
    }
}

/// Runs a case, in processes or in containers.
pub(crate) fn run(case: &Case, container: &Option<ContainerRuntime>, longest: Duration) -> Outcome {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    // Arguments by which the processes are found.
    let [honest, hostile] = ["honest", "hostile"].map(|who| format!("{who}-{}-{number}", std::process::id()));
    let arguments = [honest.clone(), hostile.clone()];
    let progress = Arc::new(Progress::new());
    let (tell, told) = channel();
    let worker = {
        let (case, container, progress) = (case.clone(), container.clone(), Arc::clone(&progress));
        thread::spawn(move || {
            let outcome = work(&case, &container, &arguments, &progress, longest);
            // The supervisor waits for it.
            let _ = tell.send(outcome);
        })
    };
    // Above the chain and its watchdog, which may have the only core.
    let _priority = Priority::fifo_or_ordinary(WATCH_PRIORITY + 1);
    let mut traces = Traces::default();
    let mut hung: Option<Instant> = None;
    let mut outcome = loop {
        match told.recv_timeout(Duration::from_millis(50)) {
            Ok(outcome) => break outcome,
            Err(RecvTimeoutError::Disconnected) => break Outcome::default(),
            Err(RecvTimeoutError::Timeout) => {}
        }
        [&honest, &hostile]
            .into_iter()
            .for_each(|argument| traces.look(argument));
        if progress.is_late() {
            hung.get_or_insert_with(Instant::now);
            progress.stop();
            kill_all(&hostile);
        }
        if hung.is_some_and(|since| since.elapsed() > HOPELESS) {
            // Nothing else would end the test.
            println!("the worker does not return, though the hostile processes were killed: {case}");
            std::process::abort();
        }
    };
    if let Err(panic) = worker.join() {
        let text = panic.downcast_ref::<String>().cloned();
        let text = text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()));
        outcome.violate(Check::Panicked, || text.unwrap_or_default());
    }
    if hung.is_some() {
        outcome.violate(Check::Hung, || format!("no return within {HUNG:?}"));
    }
    if let Some(left) = traces.left() {
        outcome.violate(Check::LeftBehind, || left);
    }
    outcome
}
