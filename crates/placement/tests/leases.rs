//! Leases, model-checked: every order of events in a small world, with worst-case clocks.

use std::collections::HashSet;
use tailwater_net::Nanos;
use tailwater_placement::lease::{Amount, Grant, LeaseClient, LeaseServer, Request, Terms};

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
    client: LeaseClient,
    server: LeaseServer,
    epoch: u64,
    incarnation: u64,
    requests: Vec<Request>,
    grants: Vec<Grant>,
}

/// Speeds of both clocks, and the drift that both sides assume.
#[derive(Clone, Copy)]
struct Clocks {
    client: u64,
    server: u64,
    terms: Terms,
}

impl World {
    fn new(clocks: &Clocks) -> Self {
        World {
            steps: 0,
            client: LeaseClient::new(clocks.terms, 1, Amount::NONE),
            server: LeaseServer::new(clocks.terms, 1, ALL),
            epoch: 1,
            incarnation: 1,
            requests: Vec::new(),
            grants: Vec::new(),
        }
    }

    /// Returns all possible next worlds.
    fn next(&self, clocks: &Clocks) -> Vec<World> {
        let client_now = |steps: u64| Nanos(100 + steps * clocks.client);
        let server_now = Nanos(7 + self.steps * clocks.server);
        let now = client_now(self.steps);
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
                let allowed = world.client.allowed(client_now(world.steps));
                let less = world.client.in_use().min(allowed);
                world
                    .client
                    .set_in_use(client_now(world.steps), less)
                    .expect("less may always be");
            });
        }
        // The agent uses everything allowed, or releases everything not allowed.
        add(&|world| {
            let allowed = world.client.allowed(now);
            world.client.set_in_use(now, allowed).expect("it is allowed");
        });
        if self.requests.len() < MESSAGES {
            add(&|world| world.requests.push(world.client.request(now, ALL)));
        }
        for request in &self.requests {
            if self.grants.len() < MESSAGES {
                add(&|world| {
                    let grant = world.server.receive(server_now, request);
                    world.grants.push(grant);
                });
            }
        }
        for grant in &self.grants {
            add(&|world| {
                world.client.receive(now, grant);
            });
        }
        for offer in [ALL, ONE] {
            add(&|world| world.server.offer(offer));
        }
        add(&|world| {
            let _ = world.server.reserve(server_now, ONE);
        });
        if self.server.reserved() != Amount::NONE {
            add(&|world| world.server.free_reserved(ONE));
        }
        if self.epoch == 1 && self.incarnation == 1 {
            add(&|world| {
                world.epoch = 2;
                let reserved = world.server.reserved();
                world.server = LeaseServer::after_restart(clocks.terms, 2, ALL, reserved, server_now);
            });
        }
        if self.incarnation == 1 && self.epoch == 1 {
            add(&|world| {
                world.incarnation = 2;
                world.client = LeaseClient::new(clocks.terms, 2, world.client.in_use());
            });
        }
        found
    }

    fn is_given_twice(&self) -> bool {
        !self.client.in_use().and(self.server.reserved()).is_within(ALL)
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
    for (client, server) in [(SLOW, FAST), (FAST, SLOW)] {
        let clocks = Clocks {
            client,
            server,
            terms: terms(250_000),
        };
        let (worlds, twice) = explore(&clocks);
        assert!(!twice, "agent {client}, controller {server}");
        eprintln!("{worlds} worlds");
        assert!(worlds > 10_000, "{worlds}");
    }
}

#[test]
fn clocks_beyond_the_drift_that_is_known_are_found_out() {
    let clocks = Clocks {
        client: SLOW,
        server: FAST,
        terms: terms(0),
    };
    assert!(explore(&clocks).1);
}

fn pair() -> (LeaseClient, LeaseServer) {
    let capacity = Amount { cores: 4, ways: 10 };
    let terms = Terms::DEFAULT;
    (
        LeaseClient::new(terms, 9, Amount::NONE),
        LeaseServer::new(terms, 1, capacity),
    )
}

const WANTS: Amount = Amount { cores: 2, ways: 8 };

#[test]
fn a_lease_is_used_renewed_and_ends_without_the_controller() {
    let (mut client, mut server) = pair();
    let second = Nanos::from_secs;
    for at in [0, 9, 18] {
        let grant = server.receive(second(1000 + at), &client.request(second(at), WANTS));
        assert!(client.receive(second(at + 1), &grant));
        assert_eq!(client.allowed(second(at + 1)), WANTS);
        client.set_in_use(second(at + 1), WANTS).expect("it is leased");
    }
    // The last request was sent at 18: 30 s, of which two are for the release.
    assert_eq!(client.allowed(second(45)), WANTS);
    assert_eq!(client.allowed(second(46)), Amount::NONE);
    let more = WANTS.and(ONE);
    assert!(client.set_in_use(second(45), more).is_err());
    assert_eq!(client.in_use(), WANTS);
    // The controller counts slightly longer, as clocks differ.
    assert_eq!(server.leased(second(1048)), WANTS);
    assert_eq!(server.leased(second(1049)), Amount::NONE);
}

#[test]
fn what_is_offered_no_more_comes_back_when_the_agent_has_let_go() {
    let (mut client, mut server) = pair();
    let second = Nanos::from_secs;
    let grant = server.receive(second(0), &client.request(second(0), WANTS));
    assert!(client.receive(second(0), &grant));
    client.set_in_use(second(0), WANTS).expect("it is leased");
    let reserved = Amount { cores: 1, ways: 5 };
    let error = server.reserve(second(1), reserved).expect_err("it is leased");
    assert_eq!(error.free, Amount { cores: 2, ways: 2 });
    server.offer(Amount { cores: 2, ways: 5 });
    let shrunk = server.receive(second(2), &client.request(second(2), WANTS));
    assert!(client.receive(second(2), &shrunk));
    assert!(!client.receive(second(2), &grant), "an earlier grant");
    // It still uses its resources: the controller must not assume otherwise.
    server.receive(second(3), &client.request(second(3), WANTS));
    assert!(server.reserve(second(3), reserved).is_err());
    client.set_in_use(second(4), client.allowed(second(4))).expect("less");
    let granted = server.receive(second(4), &client.request(second(4), WANTS));
    assert_eq!(server.reserve(second(4), reserved), Ok(()));
    assert_eq!(granted.amount, Amount { cores: 2, ways: 5 });
}

#[test]
fn a_new_controller_takes_nothing_from_the_agent_and_gives_nothing_twice() {
    let (mut client, mut old) = pair();
    let second = Nanos::from_secs;
    let request = client.request(second(0), WANTS);
    let grant = old.receive(second(0), &request);
    assert!(client.receive(second(0), &grant));
    let used = Amount { cores: 1, ways: 6 };
    client.set_in_use(second(0), used).expect("it is leased");
    let capacity = Amount { cores: 4, ways: 10 };
    let reserved = Amount { cores: 2, ways: 2 };
    let mut new = LeaseServer::after_restart(Terms::DEFAULT, 2, capacity, reserved, second(5));
    assert_eq!(new.free(second(5)), Amount::NONE);
    let first = new.receive(second(6), &client.request(second(6), WANTS));
    assert_eq!(first.amount, WANTS);
    assert_eq!(new.free(second(6)), Amount::NONE);
    // The old controller still runs, but its grants are refused.
    let late = old.receive(second(6), &request);
    assert!(client.receive(second(7), &first));
    assert!(!client.receive(second(7), &late));
    let next = new.receive(second(8), &client.request(second(8), WANTS));
    assert_eq!(next.amount, WANTS);
    assert_eq!(new.free(second(8)), Amount { cores: 0, ways: 0 });
}
