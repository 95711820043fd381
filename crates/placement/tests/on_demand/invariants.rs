//! Invariants of every tick, for any observations.

use crate::rig::{Groups, Noise, cache, tenant};
use proptest::prelude::*;
use std::collections::BTreeMap;
use tailwater_net::Nanos;
use tailwater_placement::on_demand::{
    Allocation, Cache, CacheAllocator, Config, Decision, Kind, Observed, OnDemand, Reserved, Situation, steps,
};
use tailwater_placement::published::{LPM, SNORT, STATS, WAY_BYTES};

/// Input of a tick: ways, reserved instances (by number and ways), on-demand instances (by number), and a random seed.
type Tick = (u16, Vec<(u8, u16)>, Vec<u8>, u64);

fn ticks() -> impl Strategy<Value = Vec<Tick>> {
    let reserved = prop::collection::vec((0u8..6, 1u16..5), 0..5);
    let on_demand = prop::collection::vec(0u8..10, 0..8);
    // A situation lasts for several ticks, so that the loop can adapt to it.
    let situation = (0u16..20, reserved, on_demand, any::<u64>(), 1usize..12);
    prop::collection::vec(situation, 1..12).prop_map(|situations| {
        let long = |(ways, reserved, on_demand, seed, ticks): (u16, Vec<_>, Vec<_>, u64, usize)| {
            let tick = move |i: usize| (ways, reserved.clone(), on_demand.clone(), seed.wrapping_add(i as u64));
            (0..ticks).map(tick)
        };
        situations.into_iter().flat_map(long).collect()
    })
}

fn reserved(wanted: &[(u8, u16)]) -> Vec<Reserved> {
    let wanted: BTreeMap<u8, u16> = wanted.iter().copied().collect();
    let instance = |(number, ways): (u8, u16)| Reserved {
        name: format!("reserved-{number}"),
        ways,
        tasks: vec![1000 + u32::from(number)],
    };
    wanted.into_iter().map(instance).collect()
}

fn seen(numbers: &[u8], seed: u64) -> Vec<Observed> {
    let mut noise = Noise(seed);
    let mut any = || (noise.next() + 1.0) / 2.0;
    let mut numbers = numbers.to_vec();
    numbers.sort_unstable();
    numbers.dedup();
    let functions = [STATS, LPM, SNORT];
    let one = |&number: &u8| {
        let known = number % 2 == 0;
        let tenant = tenant(&functions[usize::from(number) % 3], "", 0.5, known);
        Observed {
            name: format!("instance-{number}"),
            tasks: vec![u32::from(number), 100 + u32::from(number)],
            latency: (any() > 0.1).then(|| Nanos((tenant.objective.0 as f64 * (0.5 + any())) as u64)),
            objective: tenant.objective,
            offered: tenant.offered * 2.0 * any(),
            occupancy: (number % 5 != 4).then(|| (any() * 10.0 * WAY_BYTES as f64) as u64),
            misses: (number % 7 != 6).then(|| any() * 0.2),
            curves: known.then_some(tenant.curves),
            instances: 1,
            most: 1 + u16::from(number % 2),
        }
    };
    numbers.iter().map(one).collect()
}

fn sound(
    cache: &Cache,
    before: &Allocation,
    situation: &Situation<'_>,
    decision: &Decision,
) -> Result<(), TestCaseError> {
    let now = &decision.allocation;
    let (mut taken, mut on_demand) = (0, 0);
    for class in &now.classes {
        prop_assert_eq!(taken & class.mask.bits(), 0, "{:?}", now);
        prop_assert_eq!(class.mask.bits() & !cache.usable(), 0);
        taken |= class.mask.bits();
        if class.kind != Kind::Reserved {
            on_demand += class.mask.ways();
            prop_assert!(class.mask.ways() >= cache.least);
        }
    }
    prop_assert!(on_demand <= situation.ways, "{on_demand} ways of {}", situation.ways);
    prop_assert!(now.classes.len() <= usize::from(cache.classes));
    for reserved in situation.reserved {
        let class = now.class(&reserved.name);
        let refused = decision.refused.contains(&reserved.name);
        prop_assert_eq!(class.is_none(), refused, "{}", &reserved.name);
        prop_assert!(class.is_none_or(|class| class.mask.ways() == reserved.ways));
        // It stays where it is, unless another class must be inserted.
        let was = before.class(&reserved.name);
        let came = situation.reserved.iter().any(|other| {
            before
                .class(&other.name)
                .is_none_or(|class| class.mask.ways() != other.ways)
        });
        if let (Some(class), Some(was), false) = (class, was, came) {
            prop_assert_eq!(class.mask, was.mask);
        }
    }
    for (instance, share) in situation.on_demand.iter().zip(&decision.shares) {
        let classes = now
            .classes
            .iter()
            .filter(|class| class.instances.contains(&instance.name));
        let classes: Vec<_> = classes.collect();
        prop_assert_eq!(classes.len(), usize::from(share.class.is_some()));
        if let Some(class) = classes.first() {
            prop_assert_eq!(Some(&class.name), share.class.as_ref());
            prop_assert!(instance.tasks.iter().all(|task| class.tasks.contains(task)));
        }
        prop_assert!(share.share >= 0.0 && share.demand > 0.0);
    }
    // No instance is without ways as long as there are any.
    let free = cache.usable() & !now.bits(&[Kind::Reserved]);
    let least = (1 << cache.least) - 1;
    let stretch = (0..cache.ways).any(|first| free & (least << first) == least << first);
    let reserved = now.classes.iter().filter(|class| class.kind == Kind::Reserved).count();
    let room = stretch && situation.ways >= cache.least && reserved < usize::from(cache.classes);
    if room && !situation.on_demand.is_empty() {
        prop_assert!(decision.shares.iter().all(|share| share.class.is_some()), "{:?}", now);
    }
    for policing in &decision.policing {
        prop_assert!(policing.rate >= 1 && policing.burst >= 1);
        let instance = situation.on_demand.iter().find(|i| i.name == policing.name);
        prop_assert!(instance.is_some_and(|i| i.instances >= i.most));
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn every_allocation_is_sound_and_so_is_the_way_there(ticks in ticks(), classes in 1u16..10, least in 1u16..3) {
        let cache = Cache { classes, least, ..cache() };
        let mut policy = OnDemand::new(Config::new(cache), Allocation::default());
        let mut groups = Groups { most: classes.into(), usable: cache.usable(), ..Groups::default() };
        let mut before = Allocation::default();
        for (i, (ways, wanted, numbers, seed)) in ticks.iter().enumerate() {
            let (reserved, on_demand) = (reserved(wanted), seen(numbers, *seed));
            let situation = Situation {
                now: Nanos::from_millis(100 * i as u64),
                ways: *ways,
                reserved: &reserved,
                on_demand: &on_demand,
            };
            let decision = policy.tick(&situation);
            sound(&cache, &before, &situation, &decision)?;
            // Each intermediate step leaves a valid allocation.
            let steps = steps(&before, &decision.allocation);
            let done = groups.apply(&steps);
            prop_assert!(done.is_ok(), "{:?}: {:?}", done, steps);
            prop_assert!(groups.is(&decision.allocation), "{:?}", steps);
            before = decision.allocation;
        }
    }

    /// The same inputs give the same decisions: a run can be replayed.
    #[test]
    fn decisions_are_functions_of_what_was_seen(ticks in ticks()) {
        let run = || {
            let mut policy = OnDemand::new(Config::new(cache()), Allocation::default());
            let decide = |(i, (ways, wanted, numbers, seed)): (usize, &Tick)| {
                policy.tick(&Situation {
                    now: Nanos::from_millis(100 * i as u64),
                    ways: *ways,
                    reserved: &reserved(wanted),
                    on_demand: &seen(numbers, *seed),
                })
            };
            ticks.iter().enumerate().map(decide).collect::<Vec<_>>()
        };
        prop_assert_eq!(run(), run());
    }
}
