//! A hostile function between good ones that ends its turns in any way: late, early, never, or more than once.

use crate::turns::{MARK, SEEN, UNSEEN, Worker};
use crate::{Rig, frame, loot, program, raw, ways};
use std::time::{Duration, Instant};
use tailwater_confine::{Confinement, ContainerRuntime};
use tailwater_isolation::server::FunctionReport;

const DEADLINE: Duration = Duration::from_millis(50);

/// Offset in a frame of the lower half of its destination port, by which `drop-odd` identifies packets to drop.
const PORT: usize = 37;

/// Returns eight frames with even ports.
fn frames() -> Vec<Vec<u8>> {
    vec![frame(); 8]
}

/// Chain of a hostile function, and two good ones behind it, the first of which drops odd packets.
fn rig(attack: &str, container: &Option<ContainerRuntime>) -> Rig {
    let good = |name| program(name, &Confinement::full(), container);
    let hostile = raw(attack, &Confinement::full(), container);
    Rig::new(vec![hostile, good("drop-odd"), good("nothing")], DEADLINE)
}

/// Returns the number of packets that the chain dropped or lost.
fn gone(rig: &Rig) -> u64 {
    rig.chain.reason_counts().sum()
}

/// Asserts that the hostile function was ended for `cause`, and no other one was ended.
fn assert_guilty(attack: &str, reports: &[FunctionReport], cause: impl Fn(&FunctionReport) -> u64) {
    assert!(cause(&reports[0]) > 0, "{attack}: {:?}", reports[0]);
    for good in &reports[1..] {
        assert_eq!(good.restarts.total(), 0, "{attack}: {good:?}");
    }
}

/// Sends batches until the hostile function was ended for `cause`, and then until a batch is delivered again.
fn until_ended(attack: &str, container: &Option<ContainerRuntime>, cause: impl Fn(&FunctionReport) -> u64) {
    let mut rig = rig(attack, container);
    let (mut sent, mut delivered) = (0, 0);
    {
        let _worker = Worker::new();
        // Budgets begin after some turns.
        let until = Instant::now() + Duration::from_millis(if attack == "slow" { 1_500 } else { 500 });
        while Instant::now() < until {
            delivered += rig.send(&frames()).len() as u64;
            sent += frames().len() as u64;
            std::thread::sleep(Duration::from_micros(100));
        }
    }
    assert_eq!(sent, delivered + gone(&rig), "{attack}");
    assert_guilty(attack, &rig.finish(), cause);
}

/// It reports its turn as done, and spins. Before, its worker hung, and the function behind it was accused.
#[test]
fn one_that_is_done_and_spins_is_ended_and_not_its_neighbour() {
    for container in ways() {
        until_ended("done-and-spin", &container, |it| it.restarts.overdue);
        // No round is under way, and the worker sleeps.
        until_ended("spin-between-rounds", &container, |it| it.restarts.overdue);
    }
}

#[test]
fn one_that_yields_for_ever_starves_nobody() {
    for container in ways().into_iter().take(1) {
        until_ended("yield-for-ever", &container, |it| it.restarts.overdue);
    }
}

/// Its turns stay below the deadline.
#[test]
fn one_that_exceeds_its_budget_is_ended() {
    for container in ways().into_iter().take(1) {
        until_ended("slow", &container, |it| it.restarts.over_budget);
    }
}

#[test]
fn one_that_sleeps_in_its_turns_is_ended() {
    for container in ways().into_iter().take(1) {
        until_ended("sleep-in-turn", &container, |it| it.restarts.lied);
    }
}

/// The function behind it would process the next round's packets too early.
#[test]
fn one_that_is_done_before_its_turn_is_ended() {
    for container in ways().into_iter().take(1) {
        until_ended("done-ahead", &container, |it| it.restarts.lied);
    }
}

/// Sends batches through a function that changes packets or masks whenever it runs. Asserts that no changed packet gets
/// past the function behind it that drops such packets, and that nobody else is ended.
fn rewritten(attack: &str, batches: usize, container: &Option<ContainerRuntime>) {
    let mut rig = rig(attack, container);
    let (mut sent, mut delivered, mut odd) = (0, 0, 0);
    {
        let _worker = Worker::new();
        for _ in 0..batches {
            let through = rig.send(&frames());
            odd += through.iter().filter(|frame| frame[PORT] % 2 == 1).count();
            delivered += through.len() as u64;
            sent += frames().len() as u64;
        }
    }
    assert_eq!(sent, delivered + gone(&rig));
    let reports = rig.finish();
    for good in &reports[1..] {
        assert_eq!(good.restarts.total(), 0, "{reports:?}");
    }
    assert_eq!(odd, 0, "packets got past the function that drops them: {reports:?}");
}

/// It sleeps until it is queued behind the others, and rewrites packets that they have read. Before, a fifth of the
/// packets got past the function that drops them.
#[test]
fn no_packet_is_rewritten_after_a_turn() {
    for container in ways() {
        rewritten("rewrite", 2_000, &container);
    }
}

/// It rewrites the masks that the function behind it has read. Before, that one was accused of responding invalidly.
#[test]
fn no_mask_is_rewritten_after_a_turn() {
    for container in ways() {
        rewritten("rewrite-masks", 2_000, &container);
    }
}

/// Frames of the last function are checked as any other's.
#[test]
fn a_last_function_sends_no_frames_that_are_none() {
    for container in ways() {
        let good = program("nothing", &Confinement::full(), &container);
        let last = raw("one-byte", &Confinement::full(), &container);
        let mut rig = Rig::new(vec![good, last], DEADLINE);
        let sent = rig.send(&frames());
        assert!(sent.iter().all(|sent| sent[..42] == frame()[..42]));
        assert_eq!((sent.len(), gone(&rig)), (7, 1));
        rig.finish();
    }
}

/// The function behind marks packets. The one in front finds no marks of earlier rounds, whatever the sizes of frames
/// and batches.
#[test]
fn remains_of_packets_are_wiped() {
    for container in ways() {
        let good = |name| program(name, &Confinement::full(), &container);
        let peep = raw("peep", &Confinement::full(), &container);
        let mut rig = Rig::new(vec![peep, good("mark"), good("nothing")], DEADLINE);
        let (mut marked, mut saw) = (0, 0);
        let _worker = Worker::new();
        for n in 0..200u64 {
            let mut long = frame();
            long.resize(64 + (n % 5) as usize * 100, 0);
            long[MARK..MARK + 8].copy_from_slice(UNSEEN);
            let mut short = frame();
            short.truncate(MARK);
            let count = 1 + (n * 7 % 23) as usize;
            let kinds = (0..count).map(|i| if i % 3 == 0 { &short } else { &long });
            let batch: Vec<_> = kinds.cloned().collect();
            // The functions have the core meanwhile.
            std::thread::sleep(Duration::from_micros(if n % 10 == 0 { 500 } else { 0 }));
            let sent = rig.send(&batch);
            marked += sent.iter().filter(|it| it.get(MARK..MARK + 8) == Some(SEEN)).count();
            saw = sent.first().map_or(saw, |first| u64::from_ne_bytes(loot(first)));
        }
        let reports = rig.finish();
        assert!(marked > 1_000, "{marked} {reports:?}");
        assert_eq!(saw, 0, "remains of packets");
        assert!(reports.iter().all(|it| it.restarts.total() == 0), "{reports:?}");
    }
}
