//! Worker of a case: it sends batches through the isolated chain and compares with the model.

use crate::case::Case;
use crate::core;
use crate::honest::{DENIED, POLICY};
use crate::packets::{Running, Sent, frames, is_as_in_model, is_unchanged, model, pool, sightings};
use crate::run::{BACK_WITHIN, Check, DEADLINE, HUNG, Outcome};
use crate::script::{Step, Verb};
use rustix::thread::{CpuSet, sched_setaffinity};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::sleep;
use std::time::{Duration, Instant};
use tailwater_confine::{Confinement, ContainerRuntime};
use tailwater_functions::build::Requirements;
use tailwater_handover::priority::Priority;
use tailwater_isolation::server::{Confined, Isolation, IsolationConfig, Launch, PRIORITY, Program};
use tailwater_net::Nanos;
use tailwater_net::parse::parse;

/// Time in which a chain must work again after the behaviours: the longest pause before a restart, and some.
const RECOVERED_WITHIN: Duration = Duration::from_secs(8);
/// Time in which all processes must have ended. Removing namespaces is slow on a busy machine.
const ENDED_WITHIN: Duration = Duration::from_secs(20);
/// Interruptions of a case before the behaviours stop: restarts are delayed more each time.
const MOST_OUTAGES: u32 = 4;

/// State of a worker, for its supervisor.
pub(crate) struct Progress {
    base: Instant,
    /// Time since `base` by which the work under way must be done, nanoseconds; 0 for none.
    due: AtomicU64,
    stopped: AtomicBool,
}

impl Progress {
    pub(crate) fn new() -> Progress {
        Progress {
            base: Instant::now(),
            due: AtomicU64::new(0),
            stopped: AtomicBool::new(false),
        }
    }

    /// Returns `true` if the worker should have returned by now.
    pub(crate) fn is_late(&self) -> bool {
        match self.due.load(Ordering::Relaxed) {
            0 => false,
            due => self.base.elapsed() > Duration::from_nanos(due),
        }
    }

    pub(crate) fn stop(&self) {
        self.stopped.store(true, Ordering::Relaxed);
    }

    fn is_stopped(&self) -> bool {
        self.stopped.load(Ordering::Relaxed)
    }

    /// Runs something that must return within `bound`. Returns its result and time.
    fn time<T>(&self, bound: Duration, run: impl FnOnce() -> T) -> (T, Duration) {
        let began = self.base.elapsed();
        self.due.store((began + bound).as_nanos() as u64, Ordering::Relaxed);
        let result = run();
        self.due.store(0, Ordering::Relaxed);
        (result, self.base.elapsed() - began)
    }
}

fn programs(case: &Case, container: &Option<ContainerRuntime>, arguments: &[String; 2]) -> Vec<Program> {
    let [honest, hostile] = arguments;
    let program = |k: usize| {
        let (config, words) = match case.at(k) {
            Some(it) => (format!("honest {it}"), vec![honest.into()]),
            None => (
                format!("behaviours {}", case.script),
                vec!["raw".into(), hostile.into()],
            ),
        };
        Program {
            function: format!("f{k}"),
            launch: Launch {
                program: env!("CARGO_BIN_EXE_tailwater-hostile-function").into(),
                arguments: words,
            },
            config: format!("\"{config}\""),
            single_instance: false,
            demands: Requirements::default(),
            on_failure: Default::default(),
            joins: None,
            confined: Some(Confined {
                confinement: Confinement::full(),
                container: container.clone(),
            }),
        }
    };
    (0..case.functions()).map(program).collect()
}

/// Chain and model, with the results so far.
struct Work<'a> {
    case: &'a Case,
    progress: &'a Progress,
    chain: Running,
    model: Running,
    outcome: Outcome,
}

/// Runs a case on the last core, for `longest` at most. `arguments` mark the processes.
pub(crate) fn work(
    case: &Case,
    container: &Option<ContainerRuntime>,
    arguments: &[String; 2],
    progress: &Progress,
    longest: Duration,
) -> Outcome {
    let on = core().expect("a core");
    // A search of all memory takes long in a debug build, and must not exceed the budget that follows from this.
    let searches = |(_, steps): &(u32, Vec<Step>)| steps.iter().any(|step| step.verb == Verb::Search);
    let objective = match case.script.phases.iter().any(searches) {
        true => Nanos::from_millis(40),
        false => Nanos::from_micros(200),
    };
    let mut config = IsolationConfig::new(programs(case, container, arguments), objective);
    config.deadline = DEADLINE;
    let mut isolation = Isolation::start(config, &[on.into()]).expect("a chain that starts");
    let pool = pool();
    let attached = isolation.attach(pool.memory().buffer_bytes(), None, None);
    attached.expect("a chain that is attached");
    let mut work = Work {
        case,
        progress,
        chain: Running::new(isolation.functions(0), pool),
        model: model(case),
        outcome: Outcome::default(),
    };
    {
        let mut cores = CpuSet::new();
        cores.set(on);
        sched_setaffinity(None, &cores).expect("the last core");
        let _priority = Priority::fifo(PRIORITY).expect("real-time priority");
        work.behave(longest);
    }
    let Work { chain, mut outcome, .. } = work;
    outcome.gone = chain.gone();
    let (report, _) = progress.time(ENDED_WITHIN, || {
        chain.drain();
        isolation.finish()
    });
    assert!(report.real_time, "functions without real-time priority");
    outcome.functions = report.functions;
    judge(case, &mut outcome, &report.failures);
    outcome
}

impl Work<'_> {
    /// Sends the batches of the case, then some in which the hostile function pauses.
    fn behave(&mut self, longest: Duration) {
        let began = Instant::now();
        let mut outages = 0;
        for n in 0..self.case.batches {
            if self.progress.is_stopped() || began.elapsed() > longest || outages > MOST_OUTAGES {
                break;
            }
            self.outcome.batches += 1;
            let [sent, due] = self.send(n, true);
            if sent < due {
                outages += u32::from(sent == 0);
                if !self.recover(n) {
                    return;
                }
            }
        }
        self.recover(u32::MAX);
    }

    /// Sends batches in which the hostile function pauses until one is as in the model. Returns `true` if there was
    /// one.
    fn recover(&mut self, n: u32) -> bool {
        let began = Instant::now();
        for other in 0.. {
            if self.progress.is_stopped() {
                break;
            }
            let [sent, due] = self.send(n.wrapping_add(other), false);
            // A batch of denied packets shows nothing.
            if sent == due && due > 0 {
                return true;
            }
            if began.elapsed() > RECOVERED_WITHIN {
                let what = || format!("batch {n}: {sent} of {due} packets");
                self.outcome.violate(Check::NotRecovered, what);
                return false;
            }
            sleep(Duration::from_millis(1));
        }
        false
    }

    /// Sends a batch. Returns the numbers of packets that left it, and the model.
    fn send(&mut self, n: u32, live: bool) -> [usize; 2] {
        let frames = frames(self.case, n, live);
        let model = self.model.send(&frames);
        let chain = &mut self.chain;
        let (sent, took) = self.progress.time(HUNG, || chain.send(&frames));
        let outcome = &mut self.outcome;
        outcome.packets[0] += frames.len() as u64;
        outcome.packets[1] += sent.len() as u64;
        outcome.worst = outcome.worst.max(took);
        outcome.slow += u64::from(took > 2 * DEADLINE);
        if took > BACK_WITHIN {
            outcome.violate(Check::Late, || format!("batch {n} took {took:?}"));
        }
        self.compare(n, &frames, &sent, &model);
        [sent.len(), model.len()]
    }

    fn compare(&mut self, n: u32, frames: &[Vec<u8>], sent: &[Sent], model: &[Sent]) {
        let (case, outcome) = (self.case, &mut self.outcome);
        let whole = case.loses_nothing();
        if whole && sent.len() < model.len() {
            let what = || format!("batch {n}: {} of {} packets", sent.len(), model.len());
            outcome.violate(Check::Lost, what);
        }
        let mut expected = model.iter();
        for (i, frame) in sent {
            let what = || format!("batch {n}, packet {i} of {}: {} bytes", frames.len(), frame.len());
            if parse(frame).is_err() {
                outcome.violate(Check::Invalid, what);
                continue;
            }
            // The last honest function may be followed by the hostile one, which may change frames.
            if !case.is_last() && !is_unchanged(case, frame) {
                outcome.violate(Check::Changed, what);
            }
            if case.denies_behind() && frame.get(POLICY) == Some(&DENIED) {
                outcome.violate(Check::Changed, || format!("{}: denied", what()));
            }
            if case.denies_in_front() && frames[*i][POLICY] == DENIED {
                outcome.violate(Check::OtherThanModel, || format!("{}: denied in front", what()));
            }
            if let Some([secrets, early]) = sightings(frame) {
                if secrets > 0 {
                    outcome.violate(Check::Leaked, || format!("{}: {secrets} sightings", what()));
                }
                if early > 0 {
                    outcome.violate(Check::Early, || format!("{}: {early} sightings", what()));
                }
            }
            if case.changes_no_frame() {
                let expected = expected.find(|(at, _)| at == i);
                if !expected.is_some_and(|(_, model)| is_as_in_model(case, frame, model)) {
                    outcome.violate(Check::OtherThanModel, what);
                }
            }
        }
    }
}

/// Checks the reports.
fn judge(case: &Case, outcome: &mut Outcome, failures: &[String]) {
    let gone = std::mem::take(&mut outcome.gone);
    let sum: u64 = gone.iter().map(|(_, count)| count).sum();
    let [sent, delivered] = outcome.packets;
    if sent != delivered + sum {
        outcome.violate(Check::Unaccounted, || {
            format!("{sent} sent, {delivered} delivered, {gone:?}")
        });
    }
    for (name, count) in &gone {
        let function = name.split_once('/').and_then(|(function, reason)| {
            let k = function.strip_prefix('f')?.parse::<usize>().ok()?;
            Some((k, reason))
        });
        match function {
            Some((k, _)) if k == case.hostile => {}
            Some((_, "changed")) => outcome.violate(Check::Changed, || format!("{name}: {count} packets")),
            Some((_, "refused")) => {}
            // A round out of order is lost at the first function that is not done. Nobody is accused.
            Some((_, "process-failed")) => {}
            // The hostile function left no packet, or a short one.
            Some((k, _)) if k > case.hostile => {}
            _ => outcome.violate(Check::Changed, || format!("{name}: {count} packets")),
        }
    }
    for (k, report) in std::mem::take(&mut outcome.functions).into_iter().enumerate() {
        if k != case.hostile && report.restarts.total() > 0 {
            outcome.violate(Check::Accused, || {
                format!("f{k}: {:?} {:?}", report.restarts, report.ends)
            });
        }
        if k == case.hostile && case.is_harmless() && report.restarts.total() > 0 {
            outcome.violate(Check::Lost, || format!("f{k}: {:?} {:?}", report.restarts, report.ends));
        }
        if k == case.hostile && case.hogs() && outcome.batches >= 100 && report.restarts.total() == 0 {
            let batches = outcome.batches;
            outcome.violate(Check::Hogged, || format!("{batches} batches"));
        }
        outcome.functions.push(report);
    }
    for failure in failures {
        if !failure.starts_with(&format!("f{}:", case.hostile)) {
            outcome.violate(Check::Accused, || failure.clone());
        }
    }
    outcome.gone = gone;
}
