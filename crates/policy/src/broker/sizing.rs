//! Dedicated cores, and chains that take turns.

use super::choice::{auxiliary, is_overloaded, share, usable};
use super::config::BrokerConfig;
use super::turns::{TurnChain, turn_length};
use super::{ChainCores, ChainNumber, CoreChange, CoreNumber, CorePlan, CoreUse, ResizeView, SharedCore};
use std::collections::VecDeque;
use tailwater_net::Nanos;

/// Multiple of the load for which a server mapper gets dedicated cores.
const HEADROOM: f64 = 1.5;
/// Part of the server's cores that bursts can keep from being dedicated, as a divisor: mean load comes before them.
const MOST_POOL: usize = 2;

/// History of a chain.
#[derive(Clone, Debug, Default)]
struct History {
    /// Dedicated cores that the last periods needed.
    needed: VecDeque<u16>,
    /// Periods in a row in which it was light.
    light: u32,
}

/// State of the slow loop.
#[derive(Debug, Default)]
pub(super) struct Sizing {
    chains: Vec<History>,
    /// Largest number of cores lent at one time to chains without overload: in this period, and in the last ones.
    lent: usize,
    peaks: VecDeque<usize>,
    /// Time of the last call that began a period. Calls before the next one refine its values.
    period_began: Option<Nanos>,
    /// By core: its use after this call.
    uses: Vec<CoreUse>,
    /// By chain: its dedicated cores after this call.
    dedicated: Vec<u16>,
}

impl Sizing {
    /// Records the number of cores that are lent to chains without overload.
    pub fn lent(&mut self, cores: usize) {
        self.lent = self.lent.max(cores);
    }

    /// Decides about all dedicated cores.
    pub fn resize(&mut self, config: &BrokerConfig, view: &ResizeView<'_>, plan: &mut CorePlan) {
        self.see(config, view);
        self.share_cores(config, view, plan);
        let order = self.order(view);
        for &chain in &order {
            self.shrink(config, view, chain, plan);
        }
        let peak = self.peaks.iter().copied().max().unwrap_or(0);
        let pool = peak.clamp(1, (usable(view.cores) / MOST_POOL).max(1));
        for &chain in &order {
            self.grow(view, chain, pool, plan);
        }
    }

    /// Updates the histories.
    fn see(&mut self, config: &BrokerConfig, view: &ResizeView<'_>) {
        let periods = config.patience.max(1) as usize;
        let is_early = self
            .period_began
            .is_some_and(|began| view.now.saturating_sub(began) < config.period);
        if !is_early {
            self.period_began = Some(view.now);
        }
        let lent = std::mem::take(&mut self.lent);
        match self.peaks.back_mut().filter(|_| is_early) {
            Some(peak) => *peak = lent.max(*peak),
            None => self.peaks.push_back(lent),
        }
        while self.peaks.len() > periods {
            self.peaks.pop_front();
        }
        self.uses.clear();
        self.uses.extend(view.cores.iter().map(|core| core.usage));
        self.dedicated.clear();
        self.dedicated.resize(view.chains.len(), 0);
        for core in view.cores {
            if let CoreUse::Dedicated(chain) = core.usage {
                self.dedicated[usize::from(chain)] += 1;
            }
        }
        self.chains.resize(view.chains.len(), History::default());
        for (history, chain) in self.chains.iter_mut().zip(view.chains) {
            let needed = needed(config, chain);
            if let Some(now) = history.needed.back_mut().filter(|_| is_early) {
                *now = needed;
                continue;
            }
            history.needed.push_back(needed);
            while history.needed.len() > periods {
                history.needed.pop_front();
            }
            let is_light = chain.load.long.max(chain.load.short) <= config.light.0 && chain.wanted.unwrap_or(1) <= 1;
            history.light = match is_light {
                true => history.light.saturating_add(1),
                false => 0,
            };
        }
    }

    /// Returns the chains in the order in which they get cores: those without overload first, then by weight.
    fn order(&self, view: &ResizeView<'_>) -> Vec<usize> {
        let mut order: Vec<usize> = (0..view.chains.len()).collect();
        order.sort_by_key(|&chain| {
            let weight = view.chains[chain].load.weight;
            (overloaded(view, chain), std::cmp::Reverse(weight), chain)
        });
        order
    }

    /// Gives cores back that a chain has not needed for a while: one per period. Those of a chain in overload beyond
    /// its share are given back at once if another chain has no core to grow.
    fn shrink(&mut self, config: &BrokerConfig, view: &ResizeView<'_>, chain: usize, plan: &mut CorePlan) {
        let history = &self.chains[chain];
        let has = self.dedicated[chain];
        let needed = history.needed.iter().copied().max().unwrap_or(1);
        let is_patient = history.needed.len() >= config.patience.max(1) as usize;
        let unneeded = is_patient && needed < has;
        let most = share_of(view, chain).floor().max(1.0);
        let unfair = overloaded(view, chain) && f64::from(has) > most && self.is_short(view, chain);
        if (unneeded || unfair) && has > 1 {
            self.remove(view, chain, plan);
        }
    }

    /// Returns `true` if a chain without overload needs more cores than it has, and no auxiliary core is left for it.
    fn is_short(&self, view: &ResizeView<'_>, except: usize) -> bool {
        let lacks = |chain: usize| {
            let needed = self.chains[chain].needed.back().copied().unwrap_or(1);
            chain != except && !overloaded(view, chain) && needed > self.dedicated[chain]
        };
        auxiliary(self.uses.iter().copied()) <= 1 && (0..view.chains.len()).any(lacks)
    }

    /// Removes the chain's core that is farthest from its node.
    fn remove(&mut self, view: &ResizeView<'_>, chain: usize, plan: &mut CorePlan) {
        let is_its = |core: &usize| self.uses[*core] == CoreUse::Dedicated(chain as ChainNumber);
        let node = view.chains[chain].node;
        let far = (0..self.uses.len())
            .filter(is_its)
            .max_by_key(|&core| (view.cores[core].node != node, core));
        if let Some(core) = far {
            self.uses[core] = CoreUse::Free;
            self.dedicated[chain] -= 1;
            plan.remove.push(change(chain, core));
        }
    }

    /// Gives a chain the cores that it needs, as far as `pool` auxiliary cores remain. The first core is due to all.
    fn grow(&mut self, view: &ResizeView<'_>, chain: usize, pool: usize, plan: &mut CorePlan) {
        if plan
            .shared
            .iter()
            .any(|shared| shared.chains.contains(&(chain as ChainNumber)))
        {
            return;
        }
        let needed = self.chains[chain].needed.back().copied().unwrap_or(1).max(1);
        let most = match overloaded(view, chain) {
            true => needed.min(share_of(view, chain).floor().max(1.0) as u16),
            false => needed,
        };
        while self.dedicated[chain] < most {
            let first = self.dedicated[chain] == 0;
            if !first && auxiliary(self.uses.iter().copied()) <= pool {
                break;
            }
            let node = view.chains[chain].node;
            let is = |kind: fn(&CoreUse) -> bool| {
                let uses = &self.uses;
                // From the lowest number up: auxiliary cores are used from the highest down.
                let cores = (0..uses.len()).filter(move |core| kind(&uses[*core]));
                cores.min_by_key(|core| (view.cores[*core].node != node, *core))
            };
            let free = is(|usage| *usage == CoreUse::Free);
            let Some(core) = free.or_else(|| is(|usage| matches!(usage, CoreUse::Lent(_)))) else {
                break;
            };
            self.uses[core] = CoreUse::Dedicated(chain as ChainNumber);
            self.dedicated[chain] += 1;
            plan.add.push(change(chain, core));
        }
    }

    /// Puts light chains together on shared cores, and takes those apart that are no longer light.
    fn share_cores(&mut self, config: &BrokerConfig, view: &ResizeView<'_>, plan: &mut CorePlan) {
        self.keep_shared(config, view, plan);
        let mut joining: Vec<usize> = (0..view.chains.len())
            .filter(|&chain| {
                view.chains[chain].turns_on.is_none() && self.chains[chain].light >= config.patience.max(1)
            })
            .collect();
        joining.sort_by_key(|&chain| (view.chains[chain].load.objective, chain));
        let mut alone: Option<usize> = None;
        for chain in joining {
            let fits = plan.shared.iter().position(|shared| {
                let near = view.cores[usize::from(shared.core)].node == view.chains[chain].node;
                near && self.turn_with(config, view, &shared.chains, chain).is_some()
            });
            if let Some(shared) = fits {
                plan.shared[shared].chains.push(chain as ChainNumber);
                self.leave_dedicated(view, chain, plan);
                continue;
            }
            match alone {
                Some(other)
                    if view.chains[other].node == view.chains[chain].node
                        && self.turn_with(config, view, &[other as ChainNumber], chain).is_some() =>
                {
                    alone = None;
                    self.begin_shared(view, (other, chain), plan);
                }
                _ => alone = Some(chain),
            }
        }
        for shared in &mut plan.shared {
            let chains = shared
                .chains
                .iter()
                .map(|chain| turn_chain(&view.chains[usize::from(*chain)]));
            shared.turn = turn_length(chains, config.round_percent).unwrap_or_default();
        }
    }

    /// Lists the shared cores, without the chains that leave them. The last chain of a core keeps it for itself.
    fn keep_shared(&mut self, config: &BrokerConfig, view: &ResizeView<'_>, plan: &mut CorePlan) {
        for core in 0..view.cores.len() {
            if view.cores[core].usage != CoreUse::Turns {
                continue;
            }
            let is_here = |chain: &usize| view.chains[*chain].turns_on == Some(core as CoreNumber);
            let mut chains: Vec<usize> = (0..view.chains.len()).filter(is_here).collect();
            chains.retain(|&chain| {
                let load = &view.chains[chain].load;
                load.long.max(load.short) <= config.light.1 && view.chains[chain].wanted.unwrap_or(1) <= 1
            });
            let load = |chain: &usize| view.chains[*chain].load.long;
            let fits = |chains: &[usize]| {
                let turns = chains.iter().map(|chain| turn_chain(&view.chains[*chain]));
                chains.iter().map(load).sum::<f64>() <= config.shared_fill.1
                    && turn_length(turns, config.round_percent).is_some()
            };
            while chains.len() > 1 && !fits(&chains) {
                let heaviest = (0..chains.len()).max_by(|&a, &b| load(&chains[a]).total_cmp(&load(&chains[b])));
                chains.remove(heaviest.unwrap_or(0));
            }
            match chains[..] {
                [] => self.uses[core] = CoreUse::Free,
                [chain] => {
                    self.uses[core] = CoreUse::Dedicated(chain as ChainNumber);
                    self.dedicated[chain] += 1;
                    plan.add.push(change(chain, core));
                }
                _ => plan.shared.push(SharedCore {
                    core: core as CoreNumber,
                    chains: chains.iter().map(|chain| *chain as ChainNumber).collect(),
                    ..SharedCore::default()
                }),
            }
        }
    }

    /// Returns the turn of a shared core with one more chain, if it fits.
    fn turn_with(
        &self,
        config: &BrokerConfig,
        view: &ResizeView<'_>,
        chains: &[ChainNumber],
        more: usize,
    ) -> Option<Nanos> {
        let all = || {
            let chains = chains.iter().map(|chain| usize::from(*chain));
            chains.chain([more]).map(|chain| turn_chain(&view.chains[chain]))
        };
        let load: f64 = all().map(|chain| chain.load).sum();
        (load <= config.shared_fill.0).then(|| turn_length(all(), config.round_percent))?
    }

    /// Puts two chains together on a core of the first.
    fn begin_shared(&mut self, view: &ResizeView<'_>, (first, second): (usize, usize), plan: &mut CorePlan) {
        let is_its = |core: &usize| self.uses[*core] == CoreUse::Dedicated(first as ChainNumber);
        let Some(core) = (0..self.uses.len()).find(is_its) else {
            return;
        };
        plan.shared.push(SharedCore {
            core: core as CoreNumber,
            chains: vec![first as ChainNumber, second as ChainNumber],
            ..SharedCore::default()
        });
        self.uses[core] = CoreUse::Turns;
        self.dedicated[first] -= 1;
        plan.remove.push(change(first, core));
        self.leave_dedicated(view, first, plan);
        self.leave_dedicated(view, second, plan);
    }

    /// Removes all dedicated cores of a chain that takes turns from now on.
    fn leave_dedicated(&mut self, view: &ResizeView<'_>, chain: usize, plan: &mut CorePlan) {
        while self.dedicated[chain] > 0 {
            self.remove(view, chain, plan);
        }
    }
}

/// Returns the dedicated cores that a chain needs. A server mapper that sees many late packets requests more than the
/// load justifies, at most all cores.
fn needed(config: &BrokerConfig, chain: &ChainCores) -> u16 {
    let cores = |load: f64| (load / config.fill).ceil().clamp(1.0, f64::from(u16::MAX)) as u16;
    let most = cores(chain.load.long * HEADROOM);
    chain
        .wanted
        .map_or(cores(chain.load.long), |wanted| wanted.clamp(1, most))
}

fn turn_chain(chain: &ChainCores) -> TurnChain {
    TurnChain {
        objective: chain.load.objective,
        load: chain.load.long,
        batch: chain.batch,
        idle_turn: chain.idle_turn,
    }
}

/// Returns a chain's share of the server's cores by weight.
fn share_of(view: &ResizeView<'_>, chain: usize) -> f64 {
    let weights = view
        .chains
        .iter()
        .map(|chain| u64::from(chain.load.weight.max(1)))
        .sum();
    share(usable(view.cores), view.chains[chain].load.weight, weights)
}

fn overloaded(view: &ResizeView<'_>, chain: usize) -> bool {
    is_overloaded(&view.chains[chain].load, share_of(view, chain))
}

fn change(chain: usize, core: usize) -> CoreChange {
    CoreChange {
        chain: chain as ChainNumber,
        core: core as CoreNumber,
    }
}
