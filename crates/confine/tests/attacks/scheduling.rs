//! Function that never yields, against a minimal enforcer: a function that does not respond in time is stopped.

use std::io::Read;
use std::thread;
use std::time::Duration;

use rustix::thread::{CpuSet, sched_setaffinity};
use tailwater_confine::{Confinement, Stopped};
use tailwater_handover::priority::Priority;

use crate::start_mode::{Attacker, Outcome, hostile, schedule, start, ways};

/// Time a function has to respond.
const DEADLINE: Duration = Duration::from_millis(200);
/// Real-time priority of the function. The enforcer has a higher one on the core that the function does not yield.
const FUNCTION: u8 = 10;
const ENFORCER: u8 = 20;

/// Lets the function run on the enforcer's own core and waits for its response. Without one, stops it if `enforced`.
/// Returns `true` if it responded.
fn one_turn(attacker: &mut Attacker, core: usize, enforced: bool) -> bool {
    thread::scope(|scope| {
        let enforcer = scope.spawn(|| {
            let mut cores = CpuSet::new();
            cores.set(core);
            sched_setaffinity(None, &cores).unwrap();
            let _raised = Priority::fifo(ENFORCER).unwrap();
            attacker.socket.set_read_timeout(Some(DEADLINE)).unwrap();
            attacker.let_go();
            let answered = attacker.socket.read_exact(&mut [0u8; 4]).is_ok();
            if !answered && enforced {
                attacker.child.kill(Stopped::Scheduler);
            }
            answered
        });
        enforcer.join().unwrap()
    })
}

fn last_core() -> usize {
    let cores = rustix::thread::sched_getaffinity(None).unwrap();
    (0..CpuSet::MAX_CPU).rfind(|core| cores.is_set(*core)).unwrap()
}

#[test]
fn who_never_yields_is_stopped_by_the_enforcer_and_nobody_else() {
    for way in ways() {
        let core = last_core();
        let begin = |attack: &str| {
            let attacker = start(&way, &Confinement::full(), &hostile(attack));
            attacker.child.seal();
            attacker.child.pin(core).unwrap();
            attacker.child.grant_priority(FUNCTION).unwrap();
            attacker
        };

        let mut spins = begin("spin");
        assert!(!one_turn(&mut spins, core, true));
        let outcome = spins.outcome();
        assert!(matches!(outcome, Outcome::Stopped(Stopped::Scheduler)), "{outcome}");

        // Without an enforcer it keeps the core, whatever its confinement.
        let mut spins = begin("spin");
        assert!(!one_turn(&mut spins, core, false));
        assert_eq!(spins.child.wait_for(Duration::ZERO), None);
        assert_eq!(schedule(spins.child.pid()), (1, FUNCTION.into()));
        drop(spins);

        // A function that responds is not stopped.
        let mut good = begin("nothing");
        assert!(one_turn(&mut good, core, true));
        assert!(matches!(good.outcome(), Outcome::Ended(_)));
    }
}
