//! Properties on random servers.

use super::{OBJECTIVE, Server, broker, us};
use proptest::prelude::*;
use tailwater_policy::broker::{ChainNumber, CoreUse, LeastSlackBroker};

/// State of one chain in a step: drain, deadline and time to wake in µs, cores it can use, overload.
type Step = (u64, u64, u64, u16, bool);

fn step() -> impl Strategy<Value = Step> {
    (0..2_000_u64, 0..400_u64, 1..60_u64, 0..8_u16, any::<bool>())
}

/// Servers of two nodes, with reserved cores, and steps of all chains.
fn servers() -> impl Strategy<Value = (Server, Vec<Vec<Step>>)> {
    (1..6_usize, 0..10_usize, 0..3_usize).prop_flat_map(|(chains, pool, reserved)| {
        let nodes = proptest::collection::vec(0..2_u16, chains + pool);
        let weights = proptest::collection::vec(1..4_u32, chains);
        let steps = proptest::collection::vec(proptest::collection::vec(step(), chains), 1..12);
        (nodes, weights, steps).prop_map(move |(nodes, weights, steps)| {
            let mut server = Server::new(chains, pool);
            for (core, node) in server.cores.iter_mut().zip(nodes) {
                core.node = node;
            }
            for (chain, weight) in server.chains.iter_mut().zip(weights) {
                chain.weight = weight;
            }
            for core in server.cores.iter_mut().skip(chains).take(reserved) {
                core.usage = CoreUse::Reserved;
            }
            (server, steps)
        })
    })
}

/// Applies a step.
fn apply(server: &mut Server, step: &[Step]) {
    for (chain, &(drain, deadline, wake, wants, overloaded)) in step.iter().enumerate() {
        server.backlog(chain as ChainNumber, drain, deadline, wants).wake = us(wake);
        server.chains[chain].short = if overloaded { 10.0 } else { 0.5 };
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    /// `Server::lend` checks that a core has one lease at a time, and only ended or free ones are lent.
    #[test]
    fn leases_are_exclusive_and_end((mut server, steps) in servers()) {
        let reserved = server.cores.clone();
        let mut broker = broker();
        for step in &steps {
            apply(&mut server, step);
            server.now += us(70);
            server.lend(&mut broker);
            for (core, before) in server.cores.iter().zip(&reserved) {
                prop_assert_eq!(core.usage == CoreUse::Reserved, before.usage == CoreUse::Reserved);
                prop_assert_eq!(
                    matches!(core.usage, CoreUse::Dedicated(_)),
                    matches!(before.usage, CoreUse::Dedicated(_))
                );
                if let CoreUse::Lent(lease) = core.usage {
                    prop_assert!(lease.until > server.now);
                    prop_assert!(lease.until <= server.now + OBJECTIVE + OBJECTIVE);
                }
            }
            // The same state again changes nothing, but for backlogs that can use still more cores.
            server.queues.iter_mut().for_each(|queue| queue.wants = 0);
            let again = server.lend(&mut broker);
            prop_assert!(again.end.is_empty() && again.lend.is_empty(), "{:?}", again);
        }
        // Without requests, all leases end.
        server.queues.clear();
        server.now += us(10_000);
        server.lend(&mut broker);
        prop_assert!(server.lent().iter().all(Option::is_none));
    }

    /// After each decision, no chain in overload holds a core that an urgent one without overload can use.
    #[test]
    fn an_urgent_chain_gets_what_overloaded_ones_hold((mut server, steps) in servers()) {
        let mut broker = broker();
        for step in &steps {
            apply(&mut server, step);
            server.now += us(70);
            let before = server.clone();
            server.lend(&mut broker);
            let overloaded = |chain: usize| step[chain].4;
            let holds = (0..step.len()).any(|chain| overloaded(chain) && server.held(chain as ChainNumber) > 0);
            for (chain, &(drain, deadline, wake, wants, is_overloaded)) in step.iter().enumerate() {
                let gains = drain > wake && wants > 0;
                let is_urgent = (deadline as i64) - (drain as i64) < 50;
                if is_overloaded || !gains || !is_urgent || !holds {
                    continue;
                }
                let chain = chain as ChainNumber;
                let unexpired = before.cores.iter().filter(|core| {
                    matches!(core.usage, CoreUse::Lent(lease) if lease.chain == chain && lease.until > server.now)
                });
                prop_assert!(server.held(chain) > unexpired.count(), "chain {chain} got none of {:?}", server.lent());
            }
        }
    }

    /// No core is lent to one node while one of the same node is free.
    #[test]
    fn cores_of_the_own_node_come_first((mut server, steps) in servers()) {
        let mut broker = broker();
        for step in &steps {
            apply(&mut server, step);
            server.now += us(1_000);
            let plan = server.lend(&mut broker);
            for lease in plan.lend {
                let node = server.cores[usize::from(lease.dispatcher)].node;
                if server.cores[usize::from(lease.core)].node == node {
                    continue;
                }
                let near = server.cores.iter().find(|core| core.node == node && core.usage == CoreUse::Free);
                prop_assert!(near.is_none(), "{:?} while {:?} is free", lease, near);
            }
        }
    }

    /// Nothing stays unused while a chain without overload can use it.
    #[test]
    fn no_core_idles_while_it_is_needed((server, steps) in servers()) {
        for step in &steps {
            // Each from the start: what a lease already brings is not in these backlogs.
            let mut fresh = server.clone();
            apply(&mut fresh, step);
            fresh.lend(&mut LeastSlackBroker::default());
            let idles = fresh.lent().iter().any(Option::is_none);
            for (chain, &(drain, _, wake, wants, overloaded)) in step.iter().enumerate() {
                let needs = drain > wake && !overloaded && fresh.held(chain as ChainNumber) < usize::from(wants);
                prop_assert!(!(needs && idles), "chain {chain}: {:?}", fresh.lent());
            }
        }
    }
}
