//! Dedicated cores, and chains that take turns.

use super::{Server, broker, us};
use tailwater_net::Nanos;
use tailwater_policy::broker::{
    ChainCores, ChainNumber, CoreBroker, CoreNumber, CorePlan, CoreUse, LeastSlackBroker, ResizeView,
};

/// Periods until cores are given back, or chains are light.
const PATIENCE: usize = 8;

/// Server that enacts plans about dedicated cores.
struct Sized {
    server: Server,
    chains: Vec<ChainCores>,
    broker: LeastSlackBroker,
}

impl Sized {
    fn new(chains: usize, pool: usize, load: f64) -> Sized {
        let server = Server::new(chains, pool);
        let chain = |load: &tailwater_policy::broker::ChainLoad| ChainCores {
            load: *load,
            batch: us(5),
            idle_turn: Nanos(100),
            ..ChainCores::default()
        };
        let chains = server.chains.iter().map(chain).collect();
        let mut sized = Sized {
            server,
            chains,
            broker: broker(),
        };
        (0..sized.chains.len()).for_each(|chain| sized.load(chain, load));
        sized
    }

    fn load(&mut self, chain: usize, cores: f64) {
        let load = &mut self.chains[chain].load;
        (load.long, load.short) = (cores, cores);
        load.planned = 6.4;
    }

    fn period(&mut self) -> CorePlan {
        let mut plan = CorePlan::default();
        self.server.now += self.broker.period();
        let view = ResizeView {
            now: self.server.now,
            cores: &self.server.cores,
            chains: &self.chains,
        };
        self.broker.resize(&view, &mut plan);
        for change in &plan.remove {
            let usage = &mut self.server.cores[usize::from(change.core)].usage;
            assert_eq!(*usage, CoreUse::Dedicated(change.chain));
            *usage = CoreUse::Free;
        }
        let shared: Vec<CoreNumber> = plan.shared.iter().map(|shared| shared.core).collect();
        for (number, core) in self.server.cores.iter_mut().enumerate() {
            match shared.contains(&(number as CoreNumber)) {
                true => core.usage = CoreUse::Turns,
                false if core.usage == CoreUse::Turns => core.usage = CoreUse::Free,
                false => {}
            }
        }
        for chain in &mut self.chains {
            chain.turns_on = None;
        }
        for shared in &plan.shared {
            assert!(shared.turn >= us(5) && shared.chains.len() > 1, "{shared:?}");
            for chain in &shared.chains {
                let turns_on = self.chains[usize::from(*chain)].turns_on.replace(shared.core);
                assert_eq!(turns_on, None, "chain {chain} is on two cores");
            }
        }
        for change in &plan.add {
            let usage = &mut self.server.cores[usize::from(change.core)].usage;
            assert!(
                matches!(usage, CoreUse::Free | CoreUse::Lent(_)),
                "{change:?}: {usage:?}"
            );
            *usage = CoreUse::Dedicated(change.chain);
        }
        for chain in 0..self.chains.len() {
            let has = self.dedicated(chain);
            assert_eq!(
                has == 0,
                self.chains[chain].turns_on.is_some(),
                "chain {chain} has {has}"
            );
        }
        plan
    }

    fn dedicated(&self, chain: usize) -> usize {
        let is_its =
            |core: &&tailwater_policy::broker::BrokerCore| core.usage == CoreUse::Dedicated(chain as ChainNumber);
        self.server.cores.iter().filter(is_its).count()
    }
}

#[test]
fn cores_follow_the_mean_load_up_at_once_and_down_with_patience() {
    let mut sized = Sized::new(1, 7, 0.5);
    assert_eq!(sized.period(), CorePlan::default());
    sized.load(0, 2.6);
    sized.period();
    assert_eq!(sized.dedicated(0), 3);
    sized.load(0, 0.5);
    for _ in 1..PATIENCE {
        assert_eq!(sized.period(), CorePlan::default());
    }
    // One per period from then on.
    assert_eq!(sized.period().remove.len(), 1);
    assert_eq!(sized.period().remove.len(), 1);
    assert_eq!(sized.period(), CorePlan::default());
    assert_eq!(sized.dedicated(0), 1);
}

#[test]
fn a_load_that_swings_changes_nothing() {
    let mut sized = Sized::new(1, 7, 1.5);
    sized.period();
    for period in 0..40 {
        sized.load(0, if period % PATIENCE == 0 { 1.5 } else { 0.5 });
        assert_eq!(sized.period(), CorePlan::default(), "{period}");
    }
}

#[test]
fn the_request_of_a_server_mapper_takes_precedence_over_the_load() {
    let mut sized = Sized::new(1, 7, 0.5);
    sized.load(0, 1.5);
    sized.chains[0].wanted = Some(1);
    assert_eq!(sized.period(), CorePlan::default());
    sized.chains[0].wanted = Some(2);
    sized.period();
    assert_eq!(sized.dedicated(0), 2);
    // But not by far.
    sized.chains[0].wanted = Some(7);
    sized.period();
    assert_eq!(sized.dedicated(0), 3);
}

#[test]
fn as_many_auxiliary_cores_remain_as_bursts_needed() {
    let mut sized = Sized::new(2, 6, 0.5);
    sized.server.backlog(1, 900, 10, 4);
    sized.server.lend(&mut sized.broker);
    assert_eq!(sized.server.held(1), 4);
    sized.load(0, 5.0);
    sized.period();
    assert_eq!((sized.dedicated(0), sized.server.lent().len()), (3, 4));
    // Without a burst, one remains once that is long ago.
    (0..PATIENCE).for_each(|_| drop(sized.period()));
    assert_eq!((sized.dedicated(0), sized.server.lent().len()), (6, 1));
}

#[test]
fn a_chain_in_overload_keeps_to_its_share() {
    let mut sized = Sized::new(2, 8, 0.5);
    sized.load(0, 20.0);
    sized.period();
    assert_eq!(sized.dedicated(0), 5);
    // It had more before, and the other chain needs a core that is not there.
    let mut sized = Sized::new(2, 8, 0.5);
    sized.load(0, 6.5);
    sized.period();
    assert_eq!(sized.dedicated(0), 8);
    sized.load(0, 20.0);
    sized.load(1, 2.5);
    (0..3).for_each(|_| drop(sized.period()));
    assert_eq!((sized.dedicated(0), sized.dedicated(1)), (6, 3));
}

#[test]
fn cores_of_the_own_node_come_first() {
    let mut sized = Sized::new(1, 5, 0.5);
    sized.chains[0].node = 1;
    for core in [0, 4, 5] {
        sized.server.cores[core].node = 1;
    }
    sized.server.cores[4].usage = CoreUse::Reserved;
    sized.load(0, 1.5);
    assert_eq!(sized.period().add[0].core, 5);
    sized.load(0, 2.5);
    assert_eq!(sized.period().add[0].core, 1);
    // The far one is given back first.
    sized.load(0, 1.5);
    let mut removed = (0..PATIENCE).flat_map(|_| sized.period().remove);
    assert_eq!(removed.next().map(|change| change.core), Some(1));
}

#[test]
fn sixty_four_idle_chains_take_turns_on_few_cores() {
    let mut sized = Sized::new(64, 2, 0.002);
    for _ in 1..PATIENCE {
        assert_eq!(sized.period(), CorePlan::default());
    }
    let plan = sized.period();
    assert_eq!(plan.shared.len(), 1);
    assert_eq!(plan.shared[0].chains.len(), 64);
    // A quarter of 200 us, less 64 looks of 100 ns, for two turns.
    assert_eq!(plan.shared[0].turn, Nanos((50_000 - 6_400) / 2));
    // Nothing changes any more.
    let again = sized.period();
    assert_eq!((again.add, again.remove, again.shared.len()), (vec![], vec![], 1));
    // One that is no longer light gets a core, and returns with patience.
    sized.load(7, 0.5);
    sized.period();
    assert_eq!(sized.dedicated(7), 1);
    sized.load(7, 0.002);
    for _ in 1..PATIENCE {
        sized.period();
        assert_eq!(sized.dedicated(7), 1);
    }
    sized.period();
    assert_eq!(sized.dedicated(7), 0);
}

#[test]
fn a_load_between_the_limits_of_light_changes_nothing() {
    let mut sized = Sized::new(2, 2, 0.2);
    (0..2 * PATIENCE).for_each(|_| assert_eq!(sized.period(), CorePlan::default()));
    (0..2).for_each(|chain| sized.load(chain, 0.1));
    (0..PATIENCE).for_each(|_| drop(sized.period()));
    assert!(sized.chains[0].turns_on.is_some());
    (0..2).for_each(|chain| sized.load(chain, 0.25));
    (0..PATIENCE).for_each(|_| drop(sized.period()));
    assert!(sized.chains[0].turns_on.is_some());
    sized.load(0, 0.31);
    sized.period();
    // The last one keeps the core for itself.
    assert_eq!((sized.dedicated(0), sized.dedicated(1)), (1, 1));
}

#[test]
fn chains_share_a_core_up_to_a_load_and_a_round() {
    let mut sized = Sized::new(6, 2, 0.12);
    (0..PATIENCE).for_each(|_| drop(sized.period()));
    let members =
        |sized: &Sized, core: Option<CoreNumber>| sized.chains.iter().filter(|chain| chain.turns_on == core).count();
    // Four of 0.12 are 0.48.
    let first = sized.chains[0].turns_on;
    assert!(first.is_some());
    assert_eq!(members(&sized, first), 4);
    // An objective in which not even two batches fit a quarter.
    let mut sized = Sized::new(2, 2, 0.01);
    sized.chains[1].load.objective = us(36);
    (0..PATIENCE).for_each(|_| drop(sized.period()));
    assert!(sized.chains.iter().all(|chain| chain.turns_on.is_none()));
}
