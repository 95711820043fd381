//! Consolidation: SLOs of a plan are placed again together, on fewer servers.
//!
//! A scheduler places one SLO after the other, and an early one may take the room that a later one with an
//! anti-affinity rule requires. The search removes all SLOs of a server, and those of some others, and places them
//! again with that server closed. Every plan on the way meets all SLOs, and none has more servers than the one before.
//! The search is deterministic, ends at the [lower bound](Plan::least_servers), and is limited by its work, not by a
//! clock.

use crate::bound::{Shares, Weights};
use crate::plan::{Placed, Plan};
use crate::schedule::{Request, Scheduler};
use std::collections::{BTreeMap, BTreeSet};

/// Maximum number of instances tried in nodes, of all attempts together: about a second.
const MOST_WORK: u64 = 200_000_000;
/// Maximum number of attempts in a row without a better plan.
const PATIENCE: u32 = 400;
/// Maximum number of other servers whose SLOs are placed again with those of a closed one.
const MOST_OTHERS: usize = 4;

/// Places SLOs named in `movable` again where that saves servers. The others stay where they are.
pub fn consolidate(plan: &mut Plan, movable: &BTreeSet<String>, scheduler: &dyn Scheduler) {
    let target = plan.least_servers();
    if plan.active() <= target {
        return;
    }
    let mut requests = BTreeMap::new();
    for name in movable {
        let Some(placed) = plan.get(name) else {
            continue;
        };
        if let Ok(request) = Request::new(placed.slo.clone(), plan.cluster()) {
            requests.insert(name.clone(), request);
        }
    }
    let idle = (0..plan.cluster().servers().len()).filter(|&server| !plan.is_active(server));
    let idle: BTreeSet<usize> = idle.collect();
    idle.iter().for_each(|&server| plan.set_closed(server, true));
    let mut search = Search {
        weights: plan.cheapest().weights(),
        groups: groups(&requests),
        random: 0x9e37_79b9_7f4a_7c15,
        work: 0,
        plan,
        requests,
        scheduler,
        idle,
    };
    search.run(target);
    let Search { plan, idle, .. } = search;
    idle.iter().for_each(|&server| plan.set_closed(server, false));
}

/// Returns the number of SLOs of each anti-affinity group.
fn groups(requests: &BTreeMap<String, Request>) -> BTreeMap<String, usize> {
    let mut groups = BTreeMap::new();
    for group in requests.values().filter_map(|request| request.slo.apart.as_ref()) {
        *groups.entry(group.clone()).or_default() += 1;
    }
    groups
}

/// Order in which SLOs are placed again.
#[derive(Clone, Copy, PartialEq)]
enum Order {
    /// Those with the strictest anti-affinity rules first.
    Separated,
    /// The most expensive ones first.
    Expensive,
    /// Roughly by cost.
    Shuffled,
}

/// SLOs to be placed again, and the servers available to them.
struct Attempt {
    /// Servers whose SLOs are placed again; empty for all.
    servers: Vec<usize>,
    /// The first of these servers is closed.
    closing: bool,
    /// Idle server that is opened.
    opened: Option<usize>,
    order: Order,
}

struct Search<'a> {
    plan: &'a mut Plan,
    requests: BTreeMap<String, Request>,
    groups: BTreeMap<String, usize>,
    scheduler: &'a dyn Scheduler,
    weights: Weights,
    /// Servers without instances. They are closed.
    idle: BTreeSet<usize>,
    random: u64,
    work: u64,
}

impl Search<'_> {
    fn run(&mut self, target: usize) {
        for order in [Order::Separated, Order::Expensive] {
            self.attempt(&Attempt {
                servers: Vec::new(),
                closing: false,
                opened: None,
                order,
            });
        }
        let mut best = self.score();
        let (mut turn, mut in_vain) = (0, 0);
        while self.plan.active() > target && in_vain < PATIENCE && self.work < MOST_WORK {
            let attempt = self.next_attempt(turn);
            turn += 1;
            in_vain += 1;
            if self.attempt(&attempt) {
                let score = self.score();
                if is_better(score, best) {
                    (best, in_vain) = (score, 0);
                }
            }
        }
    }

    fn next_attempt(&mut self, turn: usize) -> Attempt {
        // Those with the fewest instances' resources first, which are chosen most often.
        let mut loads = self.loads();
        loads.sort_by(|a, b| a.1.total_cmp(&b.1));
        let number = loads.len() as u64;
        let (a, b) = (self.below(number), self.below(number));
        let mut servers = vec![loads[(a * b / number) as usize].0];
        for _ in 0..turn % (MOST_OTHERS + 1) {
            let other = loads[self.below(number) as usize].0;
            if !servers.contains(&other) {
                servers.push(other);
            }
        }
        // An idle server of another kind may take the place of several.
        let opened = (turn % 5 == 4 && !self.idle.is_empty()).then(|| {
            let number = self.below(self.idle.len() as u64) as usize;
            self.idle.iter().nth(number).copied()
        });
        Attempt {
            closing: turn % 3 != 2,
            servers,
            opened: opened.flatten(),
            order: [Order::Separated, Order::Shuffled, Order::Shuffled, Order::Expensive][turn % 4],
        }
    }

    /// Makes an attempt. Returns `true` if the plan is no worse than before, otherwise restores it.
    fn attempt(&mut self, attempt: &Attempt) -> bool {
        let before = self.score();
        let mut names = self.names_on(&attempt.servers);
        self.sort(&mut names, attempt.order);
        let removed: Vec<Placed> = names.iter().filter_map(|name| self.plan.remove(name)).collect();
        let closing = attempt.closing.then(|| attempt.servers.first().copied()).flatten();
        // A server with other SLOs cannot be closed.
        let closing = closing.filter(|&server| !self.plan.is_active(server));
        let can_begin = attempt.closing == closing.is_some();
        closing.iter().for_each(|&server| self.plan.set_closed(server, true));
        attempt
            .opened
            .iter()
            .for_each(|&server| self.plan.set_closed(server, false));
        if can_begin && names.iter().all(|name| self.place(name)) && !is_better(before, self.score()) {
            self.close_idle();
            return true;
        }
        for name in &names {
            self.plan.remove(name);
        }
        closing.iter().for_each(|&server| self.plan.set_closed(server, false));
        for placed in removed {
            let restored = self.plan.restore(placed);
            debug_assert_eq!(restored, Ok(()), "it was there before");
        }
        attempt
            .opened
            .iter()
            .for_each(|&server| self.plan.set_closed(server, true));
        false
    }

    fn place(&mut self, name: &str) -> bool {
        let Some(request) = self.requests.get(name) else {
            return false;
        };
        let slots: usize = request.choices.list.iter().map(Vec::len).sum();
        self.work += (slots * self.plan.rooms().len()) as u64;
        let instances = self.scheduler.place(self.plan, request);
        instances.is_some_and(|instances| self.plan.put(request, instances).is_ok())
    }

    /// Closes servers that are idle now.
    fn close_idle(&mut self) {
        self.idle.clear();
        for server in 0..self.plan.cluster().servers().len() {
            if !self.plan.is_active(server) {
                self.plan.set_closed(server, true);
                self.idle.insert(server);
            }
        }
    }

    /// Returns the movable SLOs with instances on any of these servers, or all if there are none.
    fn names_on(&self, servers: &[usize]) -> Vec<String> {
        let placed = self.plan.placed().filter(|placed| {
            let mut instances = placed.instances.iter();
            self.requests.contains_key(&placed.slo.name)
                && (servers.is_empty() || instances.any(|instance| servers.contains(&instance.server)))
        });
        placed.map(|placed| placed.slo.name.clone()).collect()
    }

    fn sort(&mut self, names: &mut [String], order: Order) {
        let mut keys: BTreeMap<String, (usize, f64)> = BTreeMap::new();
        for name in names.iter() {
            let request = &self.requests[name];
            let group = request.slo.apart.as_ref().and_then(|group| self.groups.get(group));
            let spread = request.choices.list.iter().map(Vec::len).min();
            let spread = spread.filter(|_| request.slo.spread);
            let cost = request.cheapest.servers();
            let key = match order {
                Order::Separated => (group.copied().unwrap_or(0).max(spread.unwrap_or(0)), cost),
                Order::Expensive => (0, cost),
                Order::Shuffled => (0, cost * (0.5 + self.below(1024) as f64 / 1024.0)),
            };
            keys.insert(name.clone(), key);
        }
        names.sort_by(|a, b| {
            let (a, b) = (keys[a], keys[b]);
            b.0.cmp(&a.0).then(b.1.total_cmp(&a.1))
        });
    }

    /// Returns the active servers, each with the share of its price that is in use.
    fn loads(&self) -> Vec<(usize, f64)> {
        let mut loads: Vec<(usize, f64)> = Vec::new();
        for room in self.plan.rooms() {
            let server = room.server as usize;
            if !self.plan.is_active(server) {
                continue;
            }
            let kind = self.plan.cluster().kind_of(server);
            let free = Shares::new(kind, room.cores, room.ways, room.classes).price(self.weights);
            match loads.last_mut() {
                Some((last, load)) if *last == server => *load -= free,
                _ => loads.push((server, 1.0 - free)),
            }
        }
        loads
    }

    /// Returns the number of servers, and how unevenly they are used: an almost empty one is closed more easily.
    fn score(&self) -> (usize, f64) {
        let loads = self.loads();
        let squares = loads.iter().map(|(_, load)| load * load);
        (loads.len(), squares.sum())
    }

    /// Returns a pseudo-random number below `limit` (xorshift64).
    fn below(&mut self, limit: u64) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random % limit.max(1)
    }
}

/// Returns `true` if the first score is better: fewer servers, or as many, used less evenly.
fn is_better(score: (usize, f64), than: (usize, f64)) -> bool {
    score.0 < than.0 || (score.0 == than.0 && score.1 > than.1 + 1e-9)
}
