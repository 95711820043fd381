//! System calls that are not a function's work.

use crate::{Neighbour, PACKETS, Rig, core, frame, program, ways};
use std::time::Duration;
use tailwater_confine::{Confinement, ContainerRuntime};
use tailwater_isolation::server::FunctionReport;

/// Sends one batch through a good function, the hostile one and another good one: how many packets came through, and
/// what is told of the three.
fn one_batch(
    attack: &str,
    confinement: &Confinement,
    container: &Option<ContainerRuntime>,
) -> (usize, Vec<FunctionReport>) {
    let good = program("nothing", &Confinement::full(), container);
    let hostile = program(attack, confinement, container);
    let deadline = match attack {
        "spin" => Duration::from_millis(50),
        _ => Duration::from_secs(10),
    };
    let mut rig = Rig::new(vec![good.clone(), hostile, good], deadline);
    let through = rig.send(&vec![frame(); PACKETS]).len();
    (through, rig.finish())
}

/// Its name and argument, what is told of its end, and what switches off the defence that is in its way.
type Attack = (String, &'static str, fn(&mut Confinement));

#[test]
fn what_a_hostile_function_tries_ends_it_and_nobody_else() {
    let neighbour = Neighbour::new();
    let other_core = core(1);
    let mut attacks: Vec<Attack> = vec![
        (
            "open".into(),
            "it called openat, which functions may not",
            |it| it.filter = false,
        ),
        ("thread".into(), "which functions may not", |it| {
            it.filter = false;
            it.limits.processes = None;
            it.groups.processes = None;
        }),
        (
            "socket".into(),
            "it called socket, which functions may not",
            |it| it.filter = false,
        ),
        (
            format!("kill {}", neighbour.0.id()),
            "it called kill, which functions may not",
            |it| it.filter = false,
        ),
        (
            format!("allocate {}", 96 << 20),
            "it used more memory than it may",
            |it| it.groups.memory = None,
        ),
    ];
    if let Some(core) = other_core {
        attacks.push((
            format!("leave-core {core}"),
            "it called sched_setaffinity, which functions may not",
            |it| it.filter = false,
        ));
    }
    for container in ways() {
        for (attack, told, switch_off) in &attacks {
            let mut confinement = Confinement::full();
            confinement.groups.memory = Some(48 << 20);
            let (through, reports) = one_batch(attack, &confinement, &container);
            assert_eq!(through, 0, "{attack}");
            let ends = &reports[1].ends;
            assert!(
                ends.iter().any(|how| how.contains(told)),
                "{attack}: {:?}",
                reports[1]
            );
            for good in [&reports[0], &reports[2]] {
                assert_eq!(good.restarts.total(), 0, "{attack}: {:?}", good.ends);
            }

            switch_off(&mut confinement);
            let (through, reports) = one_batch(attack, &confinement, &container);
            assert_eq!(through, PACKETS, "{attack} without its defence");
            assert_eq!(
                reports[1].restarts.total(),
                0,
                "{attack}: {:?}",
                reports[1].ends
            );
        }
    }
}

#[test]
fn one_that_never_yields_is_overdue_however_it_is_confined() {
    for container in ways() {
        let (through, reports) = one_batch("spin", &Confinement::full(), &container);
        assert_eq!(through, 0);
        assert_eq!(reports[1].restarts.overdue, 1, "{:?}", reports[1]);
    }
}
