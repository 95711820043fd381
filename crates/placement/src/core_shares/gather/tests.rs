//! Chains that are moved together: promises at every step, and the cores that become free.

use super::super::Claim;
use super::*;
use crate::curve::{CacheCurve, LoadCurve};
use crate::slo::{Curves, ISOLATED};
use proptest::prelude::*;
use std::sync::Arc;
use tailwater_net::Nanos;

fn server(cores: u32) -> SharedCores {
    SharedCores {
        cores: (1..=cores).collect(),
        cache_bytes: 1000,
        headroom: 0.1,
    }
}

/// Chain with one core of which it takes this share in percent, at 1 us a packet; without a promise at 0.
fn chain(name: usize, core: u32, share: u32, latency: u64) -> Occupant {
    let load = vec![
        (0.3, Nanos::from_micros(10)),
        (0.9, Nanos::from_micros(50)),
        (1.0, Nanos::from_micros(1000)),
    ];
    let claim = || {
        Arc::new(Claim {
            throughput: f64::from(share) * 1e4,
            latency: Nanos::from_micros(latency),
            curves: Arc::new(Curves {
                machine: "m".into(),
                cores: 1,
                cache: CacheCurve::new(vec![(10, 1e6 / ISOLATED)]).expect("a curve"),
                load: LoadCurve::new(load).expect("a curve"),
            }),
        })
    };
    Occupant {
        name: format!("c{name}"),
        cores: vec![core],
        claim: (share > 0).then(claim),
    }
}

fn targets(all: &[(usize, u32)]) -> BTreeMap<String, u32> {
    all.iter().map(|(name, core)| (format!("c{name}"), *core)).collect()
}

#[test]
fn moves_that_break_a_promise_or_free_nothing_are_left_out() {
    let chains = [
        chain(0, 1, 40, 1000),
        chain(1, 2, 40, 1000),
        chain(2, 3, 60, 1000),
        chain(3, 4, 0, 0),
    ];
    let gathering = |wanted: &[(usize, u32)]| server(4).gathering(&chains, &targets(wanted));
    let moved = |chain: &str, from, to| CoreMove {
        chain: chain.to_owned(),
        from,
        to,
    };
    let one = gathering(&[(1, 1)]);
    assert_eq!((one.moves, one.freed), (vec![moved("c1", 2, 1)], vec![2]));
    // There is no room for 60 %; the chain without a promise stays, and no core has the number 9.
    assert_eq!(gathering(&[(2, 1), (3, 1), (1, 9)]), Gathering::default());
    // Exchanged places free nothing: no chain moves first, as there is no room for both.
    assert_eq!(gathering(&[(0, 3), (2, 1)]), Gathering::default());
    // The first move is of no use.
    let useful = gathering(&[(0, 4), (1, 4)]);
    assert_eq!(useful.freed, [1, 2]);
    let strict = [chain(0, 1, 20, 30), chain(1, 2, 20, 1000)];
    // One batch of the other chain takes 32 us.
    assert_eq!(server(2).gathering(&strict, &targets(&[(1, 1)])), Gathering::default());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    /// Whatever moves are wanted: after each that is made, all promises are kept that were kept before, the others stay
    /// where they are, and what is said to be free is.
    #[test]
    fn every_step_keeps_what_was_kept(
        chains in prop::collection::vec((1u32..=5, 0u32..70, prop::sample::select(vec![40u64, 80, 1000])), 1..12),
        wanted in prop::collection::vec((0usize..12, 1u32..=6), 0..12),
    ) {
        let server = server(5);
        let chains: Vec<Occupant> = chains
            .iter()
            .enumerate()
            .map(|(name, (core, share, latency))| chain(name, *core, *share, *latency))
            .collect();
        let plan = server.gathering(&chains, &targets(&wanted));
        let mut now = chains.clone();
        let mut broken = server.broken(&now);
        for step in &plan.moves {
            let chain = now.iter_mut().find(|chain| chain.name == step.chain).expect("a chain");
            prop_assert!(chain.claim.is_some());
            prop_assert_eq!(&chain.cores, &vec![step.from]);
            chain.cores = vec![step.to];
            let then = server.broken(&now);
            prop_assert!(then.is_subset(&broken), "{then:?} after {step:?}");
            broken = then;
        }
        for core in &server.cores {
            let is_used = |chains: &[Occupant]| chains.iter().any(|chain| chain.cores.contains(core));
            prop_assert_eq!(plan.freed.contains(core), is_used(&chains) && !is_used(&now));
        }
    }
}

/// The solver's plans: as few cores as the shares need, where latencies allow it.
#[cfg(feature = "milp")]
mod solved {
    use super::*;
    use crate::milp::Effort;

    const EFFORT: Effort = Effort {
        time: std::time::Duration::from_secs(20),
        threads: 1,
        gap: 0.0,
        part: 1000,
    };

    #[test]
    fn chains_are_packed_on_the_fewest_cores() {
        // 50 + 40, 45 + 45, 30 + 30 + 30: three cores of 90 % each.
        let shares = [50, 45, 45, 40, 30, 30, 30];
        let chains = shares
            .iter()
            .zip(1..)
            .map(|(share, core)| chain(core as usize, core, *share, 1000));
        let mut chains: Vec<_> = chains.collect();
        let server = server(8);
        let plan = |chains: &[Occupant], fixed: &[&str]| {
            let fixed = fixed.iter().map(|name| (*name).to_owned()).collect();
            let targets = server.solved(chains, &fixed, EFFORT).expect("a plan");
            server.gathering(chains, &targets)
        };
        assert_eq!(plan(&chains, &[]).freed.len(), 4);
        // With two that stay, five chains on five cores: 50 + 40, 30 + 45.
        let fixed = plan(&chains, &["c3", "c7"]);
        assert!(fixed.moves.iter().all(|step| step.chain != "c3" && step.chain != "c7"));
        assert_eq!(fixed.freed.len(), 2);
        // Nothing to do.
        chains.truncate(1);
        assert_eq!(plan(&chains, &[]), Gathering::default());
    }
}
