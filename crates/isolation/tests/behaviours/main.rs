//! Fuzzer of behaviours: a hostile function that follows a random script, at any position of a chain of honest ones, in
//! processes and in containers.
//!
//! It may change its packets in its turn, and lose them. Everything else is a violation: a packet that was changed
//! outside a turn leaves, an innocent function is accused, the worker does not get its core back, packets are
//! unaccounted for, it sees bytes that functions behind it wrote, the chain does not recover, something is left behind.
//! The model is the chain of the honest functions in this process.
//!
//! `cargo test` runs a few seeds and all holes that were found. `make chaos MINUTES=5` runs new seeds for so long in
//! each isolation mode: `CHAOS_SECONDS` is the time, `CHAOS_SEED` the first seed. `CHAOS_SEED` alone repeats that seed.

mod case;
mod holes;
#[path = "../../hostile/honest.rs"]
mod honest;
mod leftovers;
mod packets;
mod run;
#[path = "../../hostile/script.rs"]
mod script;
mod worker;

use case::Case;
use holes::{KNOWN_HOLES, holes};
use run::{Check, Outcome, run};
use script::{Random, Script, Verb};
use std::collections::BTreeMap;
use std::fs;
use std::fs::File;
use std::os::fd::OwnedFd;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use tailwater_confine::ContainerRuntime;

/// Seeds of the short form, in processes and in containers.
const SEEDS: [std::ops::Range<u64>; 2] = [1..9, 101..103];
/// Longest time of a case in the short form, and in the long form.
const LONGEST: [Duration; 2] = [Duration::from_millis(1_500), Duration::from_secs(10)];
/// Number of times that a case is repeated that took too long.
const AGAIN: u32 = 2;
/// Times that a case of the long form takes the batches of the short form.
const LONGER: u32 = 8;
/// Time for finding a shorter case that fails.
const SHRINK_FOR: Duration = Duration::from_secs(60);
/// Runs of a shorter case, which may fail only sometimes.
const SHRINK_RUNS: u32 = 3;

/// Returns the last core that this process may use.
fn core() -> Option<usize> {
    let cores = rustix::thread::sched_getaffinity(None).ok()?;
    (0..1024).rev().find(|core| cores.is_set(*core))
}

/// Serialises tests whose chains take turns on one core, and discards what their functions write to standard error.
struct Alone {
    errors: OwnedFd,
    _alone: MutexGuard<'static, ()>,
}

impl Alone {
    fn new() -> Alone {
        static ALONE: Mutex<()> = Mutex::new(());
        let alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
        let errors = rustix::io::dup(std::io::stderr()).expect("standard error");
        let nowhere = File::options().write(true).open("/dev/null").expect("/dev/null");
        rustix::stdio::dup2_stderr(nowhere).expect("standard error");
        Alone { errors, _alone: alone }
    }
}

impl Drop for Alone {
    fn drop(&mut self) {
        let _ = rustix::stdio::dup2_stderr(&self.errors);
    }
}

/// Returns the isolation modes of this machine. Prints the reason if there is none.
fn ways() -> Vec<(&'static str, Option<ContainerRuntime>)> {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    if !status.contains("Uid:\t0\t0\t0\t0") {
        println!("skipped: confining programs needs root");
        return Vec::new();
    }
    let mut ways = vec![("process", None)];
    match ContainerRuntime::find() {
        Some(runtime) => ways.push(("container", Some(runtime))),
        None => println!("skipped in containers: no crun (apt-get install crun)"),
    }
    ways
}

fn variable(name: &str) -> Option<u64> {
    let given = std::env::var(name).ok().filter(|given| !given.is_empty());
    given.map(|given| given.parse().unwrap_or_else(|_| panic!("{name} is a number")))
}

/// Removes behaviours one at a time while the case still violates one of these checks.
fn shrink(case: &Case, container: &Option<ContainerRuntime>, outcome: &Outcome, longest: Duration) -> Case {
    let mut smallest = case.clone();
    let until = Instant::now() + SHRINK_FOR;
    'smaller: loop {
        for shorter in smallest.shrunk() {
            for _ in 0..SHRINK_RUNS {
                if Instant::now() > until {
                    return smallest;
                }
                let again = run(&shorter, container, longest);
                if !again.checks().is_disjoint(&outcome.checks()) {
                    smallest = shorter;
                    continue 'smaller;
                }
            }
        }
        return smallest;
    }
}

/// Describes a violation.
fn describe(case: &Case, way: &str, outcome: &Outcome) -> String {
    let violations = outcome.violations.iter();
    let violations: Vec<String> = violations
        .map(|(check, (how, times))| format!("  {check:?}, {times} times, first {how}"))
        .collect();
    let ends = outcome
        .functions
        .iter()
        .map(|it| format!("{} {:?} {:?}", it.name, it.restarts, it.ends));
    format!(
        "in a {way}, {case}\n{}\n  lost: {:?}; {}; longest batch {:?}",
        violations.join("\n"),
        outcome.gone,
        ends.collect::<Vec<_>>().join("; "),
        outcome.worst
    )
}

/// Sums of a run of many cases.
#[derive(Default)]
struct Totals {
    cases: u64,
    turns: [u64; 2],
    packets: [u64; 2],
    gone: BTreeMap<String, u64>,
    restarts: u64,
    behaviours: BTreeMap<Verb, u64>,
    worst: Duration,
    slow: u64,
    failed: Vec<String>,
}

impl Totals {
    fn add(&mut self, case: &Case, outcome: &Outcome) {
        self.cases += 1;
        for (sum, more) in self.turns.iter_mut().zip(outcome.turns(case)) {
            *sum += more;
        }
        for (sum, more) in self.packets.iter_mut().zip(outcome.packets) {
            *sum += more;
        }
        for (name, count) in &outcome.gone {
            let who = match name.split_once('/') {
                Some((function, reason)) if function == format!("f{}", case.hostile) => format!("hostile/{reason}"),
                Some((_, reason)) => format!("honest/{reason}"),
                None => name.clone(),
            };
            *self.gone.entry(who).or_default() += count;
        }
        self.restarts += outcome.functions.get(case.hostile).map_or(0, |it| it.restarts.total());
        for n in 0..outcome.batches {
            for step in case.script.steps(n) {
                *self.behaviours.entry(step.verb).or_default() += 1;
            }
        }
        self.worst = self.worst.max(outcome.worst);
        self.slow += outcome.slow;
    }

    fn print(&self, way: &str) {
        let Totals {
            cases,
            restarts,
            worst,
            slow,
            ..
        } = self;
        let [hostile, all] = self.turns;
        let [sent, delivered] = self.packets;
        println!(
            "{way}: {cases} cases, {hostile} turns of hostile functions, {all} of all; {restarts} restarts of hostile \
             functions; {sent} packets sent, {delivered} delivered, others {:?}; longest batch {worst:?}, {slow} above \
             twice the deadline; {} failed",
            self.gone,
            self.failed.len()
        );
        let behaviours = self
            .behaviours
            .iter()
            .map(|(verb, count)| format!("{} {count}", verb.name()));
        println!("{way}: behaviours: {}", behaviours.collect::<Vec<_>>().join(", "));
    }
}

/// Runs random cases from `seed` on: until a time is over, or only this one. Returns descriptions of those that failed.
fn search(seed: u64, seconds: Option<u64>) -> Vec<String> {
    let mut failed = Vec::new();
    for (way, container) in ways() {
        let until = Instant::now() + Duration::from_secs(seconds.unwrap_or(0));
        let mut totals = Totals::default();
        for seed in seed.. {
            let case = Case::of_seed(seed, LONGER);
            let outcome = run(&case, &container, LONGEST[1]);
            totals.add(&case, &outcome);
            if seconds.is_none() {
                println!("{}", describe(&case, way, &outcome));
            }
            if !outcome.violations.is_empty() {
                println!("CHAOS_SEED={seed} fails {}", describe(&case, way, &outcome));
                let smallest = shrink(&case, &container, &outcome, LONGEST[1]);
                println!("smallest that fails: {smallest}");
                totals
                    .failed
                    .push(format!("{way}: seed {seed}: {:?}: {smallest}", outcome.checks()));
            }
            if totals.cases % 50 == 0 {
                totals.print(way);
            }
            if Instant::now() >= until {
                break;
            }
        }
        totals.print(way);
        failed.extend(totals.failed);
    }
    failed
}

/// Runs a case that must pass. Returns its description if it fails and is no known hole.
fn fails(case: &Case, way: &str, container: &Option<ContainerRuntime>) -> Option<String> {
    let began = Instant::now();
    let mut outcome = run(case, container, LONGEST[0]);
    println!("{way}, {}: {:?} in {:?}", case.name, outcome.checks(), began.elapsed());
    // The machine may be busy otherwise.
    for _ in 0..AGAIN {
        if outcome.violations.is_empty() || !outcome.checks().iter().all(|check| *check == Check::Late) {
            break;
        }
        outcome = run(case, container, LONGEST[0]);
        println!("{way}, {} again: {:?}", case.name, outcome.checks());
    }
    let known = KNOWN_HOLES.contains(&&*case.name);
    match (outcome.violations.is_empty(), known) {
        (true, false) => None,
        (true, true) => {
            println!("known hole, passed this time: in a {way}: {}", case.name);
            None
        }
        (false, true) => {
            println!("known hole: {:?} {}", outcome.checks(), describe(case, way, &outcome));
            None
        }
        (false, false) => Some(describe(case, way, &outcome)),
    }
}

/// Random behaviours change no packet outside a turn, accuse nobody else, and hang nothing.
#[test]
fn behaviours_of_a_hostile_function_affect_only_its_own_turns() {
    let alone = Alone::new();
    let failed: Vec<String> = match (variable("CHAOS_SECONDS"), variable("CHAOS_SEED")) {
        (None, None) => {
            let ways = ways();
            let all = ways.iter().zip(SEEDS).flat_map(|((way, container), seeds)| {
                seeds.filter_map(move |seed| fails(&Case::of_seed(seed, 1), way, container))
            });
            all.collect()
        }
        (seconds, seed) => {
            let now = SystemTime::now()
                .duration_since(UNIX_EPOCH)
                .map_or(0, |now| now.as_secs());
            let seed = seed.unwrap_or(now);
            println!("behaviours: CHAOS_SEED={seed}");
            search(seed, seconds)
        }
    };
    drop(alone);
    assert!(failed.is_empty(), "{}", failed.join("\n"));
}

/// Holes that were found stay closed.
#[test]
fn holes_that_were_found_stay_closed() {
    let alone = Alone::new();
    let mut failed = Vec::new();
    for (way, container) in ways() {
        failed.extend(holes(container.is_some()).filter_map(|case| fails(&case, way, &container)));
    }
    drop(alone);
    assert!(failed.is_empty(), "{}", failed.join("\n"));
}

/// A known hole that does not exist would never be noticed.
#[test]
fn known_holes_exist() {
    for name in KNOWN_HOLES {
        let seeds = SEEDS.into_iter().flatten().map(|seed| format!("seed {seed}"));
        assert!(
            holes(false).map(|case| case.name).chain(seeds).any(|it| it == *name),
            "{name}"
        );
    }
}

#[test]
fn a_script_is_read_as_it_is_written() {
    for seed in 0..2_000 {
        let case = Case::of_seed(seed, 1);
        let text = case.script.to_string();
        assert_eq!(text.parse::<Script>(), Ok(case.script), "{text}");
    }
    let case = Case::written("", "deny hostile grow shift", "1", 1, 1);
    for honest in (0..case.functions()).filter_map(|k| case.at(k)) {
        assert_eq!(honest::Honest::parse(&honest.to_string()), Some(honest));
    }
    for text in ["", "x", "2|0", "2|0=none", "2|x=done", "2|0=spin:x"] {
        assert!(text.parse::<Script>().is_err(), "{text}");
    }
    let verbs = Verb::ALL.iter().enumerate();
    assert!(
        verbs.into_iter().all(|(at, (verb, name, class))| {
            *verb as usize == at && verb.name() == *name && verb.class() == *class
        })
    );
}

/// Every behaviour occurs, at every position of chains of every length.
#[test]
fn seeds_cover_all_behaviours_and_positions() {
    let cases: Vec<Case> = (0..3_000).map(|seed| Case::of_seed(seed, 1)).collect();
    for (verb, name, _) in Verb::ALL {
        let has = |case: &Case| {
            case.script
                .phases
                .iter()
                .any(|(_, steps)| steps.iter().any(|it| it.verb == *verb))
        };
        assert!(cases.iter().any(has), "{name}");
    }
    for functions in 2..=honest::MOST_FUNCTIONS {
        for hostile in 0..functions {
            assert!(
                cases
                    .iter()
                    .any(|case| case.functions() == functions && case.hostile == hostile)
            );
        }
    }
    assert!(cases.iter().any(Case::is_harmless) && cases.iter().any(Case::hogs));
    assert!(Random(1).next() != Random(2).next());
}

/// The checks notice what they are for.
#[test]
fn a_changed_frame_is_noticed() {
    let case = Case::written("changed", "stamp hostile shift", "1", 8, 1);
    let frames = packets::frames(&case, 0, true);
    let sent = packets::model(&case).send(&frames);
    assert_eq!(sent.len(), frames.len());
    for (i, frame) in sent {
        assert!(packets::is_unchanged(&case, &frame));
        assert!(packets::is_as_in_model(&case, &frame, &frame) && packets::sightings(&frame).is_none());
        for at in 0..frame.len() {
            let mut changed = frame.clone();
            changed[at] ^= 1;
            assert!(!packets::is_unchanged(&case, &changed), "packet {i}, byte {at}");
        }
        assert!(!packets::is_unchanged(&case, &frame[..frame.len() - 1]));
    }
    assert_ne!(Check::Changed, Check::Hung);
}
