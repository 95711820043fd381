//! Benchmark of a server's cache divided among six on-demand instances with changing load. It reports the share of time
//! in which packets are late, for Tailwater's policy, an even split and one shared class, on the model of a server.
//!
//! `cargo bench -p tailwater-placement --bench on_demand [-- NAME]` prints one JSON line per figure whose name contains
//! NAME. No figure is a time measurement, so they are the same on any machine.

use std::sync::Arc;
use tailwater_net::Nanos;
use tailwater_placement::on_demand::model::{Model, Tenant};
use tailwater_placement::on_demand::{Allocation, Cache, Config, OnDemand, Policing, Situation};
use tailwater_placement::published::{ALL_WAYS, FIREWALL, IPSEC, LPM, MAZU_NAT, SNORT, STATS, WAY_BYTES};
use tailwater_placement::slo::ISOLATED;

/// Total ways of the six instances.
const WAYS: u16 = 14;
/// Share of an instance's rate at which latency reaches its objective.
const LOAD: f64 = 0.8;
/// Ticks between changes of load, number of changes, and ticks after which the policy should have settled.
const TICKS: u32 = 60;
const CHANGES: u32 = 100;
const SETTLED: u32 = 30;
/// Maximum relative error of measurements.
const NOISE: f64 = 0.03;

/// Deterministic pseudo-random numbers from 0 to 1 (SplitMix64).
struct Chance(u64);

impl Chance {
    fn next(&mut self) -> f64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) >> 11) as f64 / (1u64 << 53) as f64
    }
}

fn tenants(known: bool) -> Vec<Tenant> {
    let functions = [STATS, MAZU_NAT, LPM, SNORT, FIREWALL, IPSEC];
    let tenant = |function: tailwater_placement::published::Function| {
        let curves = function.profile().expect("published curves").curves[0].clone();
        Tenant {
            name: function.name.into(),
            objective: Nanos(curves.load.latency(LOAD).0 + 1),
            curves: Arc::new(curves),
            known,
            references: function.references,
            offered: 0.3 * function.rate(),
            instances: (1, 1),
        }
    };
    functions.map(tenant).to_vec()
}

/// Returns the loads of each change: arbitrary ones, or only loads for which all instances fit together.
fn loads(fits: bool, tenants: &[Tenant]) -> Vec<Vec<f64>> {
    let mut chance = Chance(1);
    let mut found = Vec::new();
    while found.len() < CHANGES as usize {
        let loads: Vec<f64> = tenants.iter().map(|_| 0.2 + 0.52 * chance.next()).collect();
        let ways = |(tenant, load): (&Tenant, &f64)| {
            let rate = |ways: u16| tenant.curves.cache.rate(u64::from(ways) * WAY_BYTES) * LOAD * ISOLATED;
            let need = load * tenant.curves.cache.most();
            (1..=WAYS).find(|&ways| rate(ways) >= need * 1.15).unwrap_or(WAYS + 1)
        };
        let all: u16 = tenants.iter().zip(&loads).map(ways).sum();
        if !fits || all <= WAYS {
            found.push(loads);
        }
    }
    found
}

#[derive(Clone, Copy, PartialEq)]
enum Division {
    Tailwater,
    EvenCat,
    OneClass,
}

/// Results of a run, over all ticks of all instances.
#[derive(Default)]
struct Outcome {
    late: u32,
    /// Those after a change should have settled.
    settled: u32,
    by_instance: Vec<u32>,
    /// Ticks in which masks changed.
    changes: u32,
}

fn run(way: Division, known: bool, loads: &[Vec<f64>]) -> Outcome {
    let cache = Cache {
        ways: ALL_WAYS,
        way_bytes: WAY_BYTES,
        unusable: 0b11 << 18,
        classes: 15,
        least: 1,
    };
    let mut model = Model::new(cache, tenants(known));
    let usable = (1 << WAYS) - 1;
    let mut policy = OnDemand::new(Config::new(cache), Allocation::default());
    let mut allocation = match way {
        Division::Tailwater | Division::OneClass => model.together(usable),
        Division::EvenCat => model.evenly(usable),
    };
    let mut policing: Vec<Policing> = Vec::new();
    let mut chance = Chance(2);
    let mut outcome = Outcome {
        by_instance: vec![0; model.tenants.len()],
        ..Outcome::default()
    };
    for (number, loads) in loads.iter().enumerate() {
        for (tenant, load) in model.tenants.iter_mut().zip(loads) {
            tenant.offered = load * tenant.curves.cache.most();
        }
        for tick in 0..TICKS {
            let fares = model.tick(&allocation, &policing);
            for (i, fare) in fares.iter().enumerate() {
                // Policed packets are not on time either.
                let late = !fare.on_time || fare.admitted < 0.99 * model.tenants[i].offered;
                outcome.late += u32::from(late);
                outcome.settled += u32::from(late && tick >= SETTLED);
                outcome.by_instance[i] += u32::from(late);
            }
            if way == Division::Tailwater {
                let observed = model.observed(&fares, || NOISE * (2.0 * chance.next() - 1.0));
                let now = number as u64 * u64::from(TICKS) + u64::from(tick);
                let decision = policy.tick(&Situation {
                    now: Nanos::from_millis(100 * now),
                    ways: WAYS,
                    reserved: &[],
                    on_demand: &observed,
                });
                outcome.changes += u32::from(decision.allocation != allocation);
                allocation = decision.allocation;
                policing = decision.policing;
            }
        }
    }
    outcome
}

fn main() {
    let wanted = std::env::args().skip(1).find(|argument| !argument.starts_with('-'));
    let print = |name: String, value: f64, unit: &str| {
        if wanted.as_deref().is_none_or(|part| name.contains(part)) {
            println!(r#"{{"name": "{name}", "value": {value:.2}, "unit": "{unit}"}}"#);
        }
    };
    for (mix, fits) in [("fits", true), ("crowded", false)] {
        let loads = loads(fits, &tenants(true));
        for (name, way, known) in [
            ("tailwater", Division::Tailwater, true),
            ("tailwater-without-curves", Division::Tailwater, false),
            ("even-cat", Division::EvenCat, true),
            ("one-class", Division::OneClass, true),
        ] {
            let outcome = run(way, known, &loads);
            let instances = outcome.by_instance.len() as u32;
            let percent = |count: u32, of: u32| 100.0 * f64::from(count) / f64::from(of);
            let all = CHANGES * TICKS;
            let name = |figure: &str| format!("placement/on-demand/{mix}/{name}/{figure}");
            print(name("late"), percent(outcome.late, all * instances), "%");
            let settled = CHANGES * (TICKS - SETTLED) * instances;
            print(name("late-settled"), percent(outcome.settled, settled), "%");
            let worst = outcome.by_instance.iter().max().copied().unwrap_or(0);
            print(name("late-worst-instance"), percent(worst, all), "%");
            if way == Division::Tailwater {
                let changes = f64::from(outcome.changes) / f64::from(CHANGES);
                print(name("changes"), changes, "ticks with new masks a change of load");
            }
        }
    }
}
