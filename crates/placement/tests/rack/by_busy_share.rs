//! Chains without a promise follow their load: a rack that is simulated second by second.

use crate::world::*;
use tailwater_placement::rack::*;

fn rack(least: u16, most: u16) -> World<TailwaterScaling> {
    let chain = ChainView {
        promise: None,
        least,
        most,
        ..chain("a", 0.0)
    };
    let servers = (0..12).map(|number| server(&format!("s{number}"), 1)).collect();
    World::new(options(), TailwaterScaling::default(), servers, vec![chain])
}

/// Lets a second pass in which a load, in cores, is divided among the ready instances. Returns their number.
fn second(world: &mut World<TailwaterScaling>, load: f64) -> usize {
    let ready = |one: &InstanceView| one.phase == InstancePhase::Ready;
    let count = world.view.instances.iter().filter(|one| ready(one)).count();
    for instance in world.view.instances.iter_mut() {
        instance.load.busy = ready(instance).then_some((load / count.max(1) as f64).min(1.0));
    }
    world.step();
    world.of("a").iter().filter(|one| one.is_active()).count()
}

#[test]
fn instances_follow_a_load_up_at_once_and_down_after_a_while() {
    let mut world = rack(1, 8);
    for _ in 0..5 {
        second(&mut world, 0.3);
    }
    assert_eq!(world.of("a").len(), 1);
    // One core is full: twice as many, and twice again, until none is busier than 70 %.
    let rises: Vec<usize> = (0..12).map(|_| second(&mut world, 2.4)).collect();
    assert_eq!(rises.last(), Some(&4), "{rises:?}");
    assert!(rises.windows(2).all(|pair| pair[0] <= pair[1]), "{rises:?}");
    assert!(rises[8] == 4, "{rises:?}");
    // Up to its limit, and no further.
    let most: Vec<usize> = (0..12).map(|_| second(&mut world, 20.0)).collect();
    assert_eq!(most.last(), Some(&8), "{most:?}");
    // A pause that is shorter than `hold` (10 s) changes nothing.
    assert!((0..8).all(|_| second(&mut world, 0.2) == 8));
    assert_eq!(second(&mut world, 5.0), 8);
    // A longer one does: all that is not needed goes.
    let falls: Vec<usize> = (0..30).map(|_| second(&mut world, 1.2)).collect();
    assert_eq!((falls[5], falls[29]), (8, 3), "{falls:?}");
}

#[test]
fn a_load_around_a_limit_does_not_flap() {
    for center in [0.5, 0.7, 1.0, 1.4, 2.1] {
        let mut world = rack(1, 8);
        let mut counts = Vec::new();
        for at in 0..400_u32 {
            // A tenth up and down, with a period of seven seconds.
            let load = center * (1.0 + 0.1 * f64::from(at % 7) / 3.0 - 0.1);
            counts.push(second(&mut world, load));
        }
        let changes = counts[40..].windows(2).filter(|pair| pair[0] != pair[1]).count();
        assert!(changes == 0, "{center}: {changes} changes, {counts:?}");
    }
}

#[test]
fn instances_without_measurements_are_as_many_as_the_operator_says() {
    let mut world = rack(2, 8);
    world.settle();
    assert_eq!(world.of("a").len(), 2);
    // With measurements, the least number stays.
    assert!((0..30).all(|_| second(&mut world, 0.0) == 2));
}
