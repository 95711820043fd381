//! Leases, model-checked: every order of events in a small world, with worst-case clocks.

use std::collections::HashSet;
use tailwater_net::Nanos;
use tailwater_placement::lease::{Amount, Grant, Holder, LeaseServer, Request, Terms};

/// Ways available for leases and reservations.
const ALL: Amount = Amount { cores: 0, ways: 2 };
const ONE: Amount = Amount { cores: 0, ways: 1 };
/// Units that a clock advances in a step of real time, and the nominal number.
const SLOW: u64 = 3;
const FAST: u64 = 5;
/// Limits on steps of real time, on requests and grants in flight, and on restarts.
const STEPS: u64 = 3;
const MESSAGES: usize = 2;

/// Terms with a lease of two steps. Clocks run at three quarters to five quarters of real time.
fn terms(drift: u32) -> Terms {
    Terms {
        duration: Nanos(8),
        drift,
        release: Nanos::ZERO,
    }
}

/// State of everything, including messages in flight. Messages remain: they may arrive again at any time, or never.
#[derive(Clone, PartialEq, Eq, Hash)]
struct World {
    steps: u64,
    holder: Holder,
    lessor: LeaseServer,
    epoch: u64,
    incarnation: u64,
    requests: Vec<Request>,
    grants: Vec<Grant>,
}

/// Speeds of both clocks, and the drift that both sides assume.
#[derive(Clone, Copy)]
struct Clocks {
    holder: u64,
    lessor: u64,
    terms: Terms,
}

impl World {
    fn new(clocks: &Clocks) -> Self {
        World {
            steps: 0,
            holder: Holder::new(clocks.terms, 1, Amount::NONE),
            lessor: LeaseServer::new(clocks.terms, 1, ALL),
            epoch: 1,
            incarnation: 1,
            requests: Vec::new(),
            grants: Vec::new(),
        }
    }

    /// Returns all possible next worlds.
    fn next(&self, clocks: &Clocks) -> Vec<World> {
        let holder_now = |steps: u64| Nanos(100 + steps * clocks.holder);
        let lessor_now = Nanos(7 + self.steps * clocks.lessor);
        let now = holder_now(self.steps);
        let mut found = Vec::new();
        let mut add = |change: &dyn Fn(&mut World)| {
            let mut world = self.clone();
            change(&mut world);
            found.push(world);
        };
        if self.steps < STEPS {
            add(&|world| {
                world.steps += 1;
                // The agent releases in time, as required.
                let allowed = world.holder.allowed(holder_now(world.steps));
                let less = world.holder.in_use().min(allowed);
                world
                    .holder
                    .set_in_use(holder_now(world.steps), less)
                    .expect("less may always be");
            });
        }
        // The agent uses everything allowed, or releases everything not allowed.
        add(&|world| {
            let allowed = world.holder.allowed(now);
            world.holder.set_in_use(now, allowed).expect("it is allowed");
        });
        if self.requests.len() < MESSAGES {
            add(&|world| world.requests.push(world.holder.request(now, ALL)));
        }
        for request in &self.requests {
            if self.grants.len() < MESSAGES {
                add(&|world| {
                    let grant = world.lessor.receive(lessor_now, request);
                    world.grants.push(grant);
                });
            }
        }
        for grant in &self.grants {
            add(&|world| {
                world.holder.receive(now, grant);
            });
        }
        for offer in [ALL, ONE] {
            add(&|world| world.lessor.offer(offer));
        }
        add(&|world| {
            let _ = world.lessor.reserve(lessor_now, ONE);
        });
        if self.lessor.reserved() != Amount::NONE {
            add(&|world| world.lessor.free_reserved(ONE));
        }
        if self.epoch == 1 && self.incarnation == 1 {
            add(&|world| {
                world.epoch = 2;
                let reserved = world.lessor.reserved();
                world.lessor = LeaseServer::after_restart(clocks.terms, 2, ALL, reserved, lessor_now);
            });
        }
        if self.incarnation == 1 && self.epoch == 1 {
            add(&|world| {
                world.incarnation = 2;
                world.holder = Holder::new(clocks.terms, 2, world.holder.in_use());
            });
        }
        found
    }

    fn is_given_twice(&self) -> bool {
        !self.holder.in_use().and(self.lessor.reserved()).is_within(ALL)
    }
}

/// Visits all worlds. Returns their number, and `true` if anything is assigned twice in any.
fn explore(clocks: &Clocks) -> (usize, bool) {
    let first = World::new(clocks);
    let mut seen = HashSet::from([first.clone()]);
    let mut open = vec![first];
    while let Some(world) = open.pop() {
        if world.is_given_twice() {
            return (seen.len(), true);
        }
        for next in world.next(clocks) {
            if !seen.contains(&next) {
                seen.insert(next.clone());
                open.push(next);
            }
        }
    }
    (seen.len(), false)
}

#[test]
fn nothing_is_given_twice_in_any_order_of_events() {
    for (holder, lessor) in [(SLOW, FAST), (FAST, SLOW)] {
        let clocks = Clocks {
            holder,
            lessor,
            terms: terms(250_000),
        };
        let (worlds, twice) = explore(&clocks);
        assert!(!twice, "agent {holder}, controller {lessor}");
        eprintln!("{worlds} worlds");
        assert!(worlds > 10_000, "{worlds}");
    }
}

#[test]
fn clocks_beyond_the_drift_that_is_known_are_found_out() {
    let clocks = Clocks {
        holder: SLOW,
        lessor: FAST,
        terms: terms(0),
    };
    assert!(explore(&clocks).1);
}

fn pair() -> (Holder, LeaseServer) {
    let capacity = Amount { cores: 4, ways: 10 };
    let terms = Terms::DEFAULT;
    (
        Holder::new(terms, 9, Amount::NONE),
        LeaseServer::new(terms, 1, capacity),
    )
}

const WANTS: Amount = Amount { cores: 2, ways: 8 };

#[test]
fn a_lease_is_used_renewed_and_ends_without_the_controller() {
    let (mut holder, mut lessor) = pair();
    let second = Nanos::from_secs;
    for at in [0, 9, 18] {
        let grant = lessor.receive(second(1000 + at), &holder.request(second(at), WANTS));
        assert!(holder.receive(second(at + 1), &grant));
        assert_eq!(holder.allowed(second(at + 1)), WANTS);
        holder.set_in_use(second(at + 1), WANTS).expect("it is leased");
    }
    // The last request was sent at 18: 30 s, of which two are for the release.
    assert_eq!(holder.allowed(second(45)), WANTS);
    assert_eq!(holder.allowed(second(46)), Amount::NONE);
    let more = WANTS.and(ONE);
    assert!(holder.set_in_use(second(45), more).is_err());
    assert_eq!(holder.in_use(), WANTS);
    // The controller counts slightly longer, as clocks differ.
    assert_eq!(lessor.leased(second(1048)), WANTS);
    assert_eq!(lessor.leased(second(1049)), Amount::NONE);
}

#[test]
fn what_is_offered_no_more_comes_back_when_the_agent_has_let_go() {
    let (mut holder, mut lessor) = pair();
    let second = Nanos::from_secs;
    let grant = lessor.receive(second(0), &holder.request(second(0), WANTS));
    assert!(holder.receive(second(0), &grant));
    holder.set_in_use(second(0), WANTS).expect("it is leased");
    let reserved = Amount { cores: 1, ways: 5 };
    let error = lessor.reserve(second(1), reserved).expect_err("it is leased");
    assert_eq!(error.free, Amount { cores: 2, ways: 2 });
    lessor.offer(Amount { cores: 2, ways: 5 });
    let shrunk = lessor.receive(second(2), &holder.request(second(2), WANTS));
    assert!(holder.receive(second(2), &shrunk));
    assert!(!holder.receive(second(2), &grant), "an earlier grant");
    // It still uses its resources: the controller must not assume otherwise.
    lessor.receive(second(3), &holder.request(second(3), WANTS));
    assert!(lessor.reserve(second(3), reserved).is_err());
    holder.set_in_use(second(4), holder.allowed(second(4))).expect("less");
    let kept = lessor.receive(second(4), &holder.request(second(4), WANTS));
    assert_eq!(lessor.reserve(second(4), reserved), Ok(()));
    assert_eq!(kept.amount, Amount { cores: 2, ways: 5 });
}

#[test]
fn a_new_controller_takes_nothing_from_the_agent_and_gives_nothing_twice() {
    let (mut holder, mut old) = pair();
    let second = Nanos::from_secs;
    let request = holder.request(second(0), WANTS);
    let grant = old.receive(second(0), &request);
    assert!(holder.receive(second(0), &grant));
    let used = Amount { cores: 1, ways: 6 };
    holder.set_in_use(second(0), used).expect("it is leased");
    let capacity = Amount { cores: 4, ways: 10 };
    let reserved = Amount { cores: 2, ways: 2 };
    let mut new = LeaseServer::after_restart(Terms::DEFAULT, 2, capacity, reserved, second(5));
    assert_eq!(new.free(second(5)), Amount::NONE);
    let first = new.receive(second(6), &holder.request(second(6), WANTS));
    assert_eq!(first.amount, WANTS);
    assert_eq!(new.free(second(6)), Amount::NONE);
    // The old controller still runs, but its grants are refused.
    let late = old.receive(second(6), &request);
    assert!(holder.receive(second(7), &first));
    assert!(!holder.receive(second(7), &late));
    let next = new.receive(second(8), &holder.request(second(8), WANTS));
    assert_eq!(next.amount, WANTS);
    assert_eq!(new.free(second(8)), Amount { cores: 0, ways: 0 });
}
