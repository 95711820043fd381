//! The same loop on a model of a server, in virtual time, with a lease that is granted and returned, and a cap.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use tailwater_cache_agent::{Agent, Clock, Local, Memory, Seen, Settings, Source, Tick, Watched, run};
use tailwater_net::Nanos;
use tailwater_placement::lease::Terms;
use tailwater_placement::on_demand::model::{Model, Tenant, TenantPerformance};
use tailwater_placement::on_demand::{AskKind, Cache};
use tailwater_placement::published::{ALL_WAYS, FIREWALL, SNORT, STATS, WAY_BYTES};

const EVERY: Nanos = Nanos::from_millis(100);
/// Ticks per phase.
const TICKS: usize = 100;

/// Loads in each phase, as shares of the maximum with all of the cache.
const PHASES: [[f64; 3]; 4] = [
    [0.3, 0.3, 0.3],
    // More than the server's own ways.
    [0.6, 0.62, 0.3],
    [0.2, 0.2, 0.2],
    // More than possible with any cache.
    [0.95, 0.3, 0.3],
];

struct Server {
    model: Model,
    fares: Rc<RefCell<Vec<Vec<TenantPerformance>>>>,
}

impl Source for Server {
    fn observe(&mut self, now: Nanos, last: Option<&Tick>) -> Seen {
        let phase = (now.0 / EVERY.0) as usize / TICKS;
        for (tenant, load) in self.model.tenants.iter_mut().zip(PHASES[phase]) {
            tenant.offered = load * tenant.curves.cache.most();
        }
        let fares = match last {
            Some(tick) => self.model.tick(&tick.in_force, &tick.decision.policing),
            None => self.model.tick(&self.model.together(0xf), &[]),
        };
        let observed = self.model.observed(&fares, || 0.0);
        self.fares.borrow_mut().push(fares);
        let watched = |seen| Watched { seen, references: None };
        Seen {
            reserved: Vec::new(),
            on_demand: observed.into_iter().map(watched).collect(),
        }
    }
}

struct Virtual(Nanos);

impl Clock for Virtual {
    fn now(&self) -> Nanos {
        self.0
    }

    fn wait(&mut self, until: Nanos) -> bool {
        self.0 = until;
        until < Nanos(EVERY.0 * (PHASES.len() * TICKS) as u64)
    }
}

#[test]
fn slos_that_fit_are_met_the_rest_is_policed_and_the_lease_follows() {
    let cache = Cache {
        ways: ALL_WAYS,
        way_bytes: WAY_BYTES,
        unusable: 0b11 << 18,
        classes: 15,
        least: 1,
    };
    let tenant = |function: tailwater_placement::published::Function| {
        let curves = function.profile().unwrap().curves[0].clone();
        Tenant {
            name: function.name.into(),
            objective: Nanos(curves.load.latency(0.8).0 + 1),
            curves: Arc::new(curves),
            known: true,
            references: function.references,
            offered: 0.0,
            instances: (1, 1),
        }
    };
    let fares = Rc::new(RefCell::new(Vec::new()));
    let mut server = Server {
        model: Model::new(cache, [SNORT, STATS, FIREWALL].map(tenant).to_vec()),
        fares: fares.clone(),
    };
    let settings = Settings {
        own: 4,
        terms: Terms::DEFAULT,
        incarnation: 1,
        config: None,
    };
    let mut agent = Agent::new(Memory::new(cache), &settings).unwrap();
    let mut controller = Local::new(Terms::DEFAULT, 10);
    let mut told: Vec<Tick> = Vec::new();
    let tell = |_, tick: Result<&Tick, _>| {
        told.push(tick.unwrap().clone());
        true
    };
    run(
        &mut agent,
        &mut server,
        &mut Virtual(Nanos::ZERO),
        &mut controller,
        EVERY,
        tell,
    )
    .unwrap();
    assert!(agent.in_force().classes.is_empty());
    let fares = fares.borrow();
    assert_eq!((told.len(), fares.len()), (400, 400));
    for tick in &told {
        assert!(tick.ways <= 14 && tick.leased <= 10);
    }
    // The last tick of each phase.
    let end = |phase: usize| (&told[TICKS * (phase + 1) - 1], &fares[TICKS * (phase + 1) - 1]);
    for phase in 0..3 {
        let (tick, fares) = end(phase);
        assert!(fares.iter().all(|fare| fare.on_time), "phase {phase}: {fares:?}");
        assert!(tick.decision.policing.is_empty() && tick.decision.asks.is_empty());
    }
    let ways = |phase| end(phase).0.ways;
    assert!(ways(1) > 4, "the lease grows: {}", ways(1));
    assert!(ways(2) < ways(1), "and shrinks: {} {}", ways(2), ways(1));
    // The excess load is policed down to the rate that meets the objective, and the controller was informed.
    let (tick, last) = end(3);
    let policed = &tick.decision.policing;
    assert!(policed.len() == 1 && policed[0].name == "snort", "{policed:?}");
    assert!(last.iter().all(|fare| fare.on_time), "{last:?}");
    assert!(last[0].admitted > 0.5 * server.model.tenants[0].offered);
    let asks = told[3 * TICKS..].iter().flat_map(|tick| &tick.decision.asks);
    let unmet = |kind: &AskKind| *kind == AskKind::Unmet;
    assert!(asks.map(|ask| ask.kind).any(|kind| unmet(&kind)));
}
