//! Leases of auxiliary cores.

use super::choice::{auxiliary, is_overloaded, nearest, share, usable};
use super::config::BrokerConfig;
use super::{CoreNumber, CoreUse, Lease, LendPlan, LendView, QueueBacklog};
use tailwater_net::Nanos;

/// Most cores that one backlog requests in a call: what one call leaves, the next one lends.
const MOST_WANTED: u16 = 64;

/// Request for one core.
#[derive(Clone, Copy, Debug)]
struct Request {
    /// Index in [`LendView::queues`], and the queue's chain.
    queue: usize,
    chain: usize,
    /// Slack without the core, in nanoseconds.
    slack: i64,
    preferred: Option<CoreNumber>,
}

/// State of a chain during a call.
#[derive(Clone, Copy, Debug, Default)]
struct Chain {
    overloaded: bool,
    /// It has a lease or a request.
    contends: bool,
    /// Slack below which a backlog is urgent.
    urgent: i64,
    /// Share of the auxiliary cores among those that contend, rounded up.
    share: usize,
    /// Cores lent to it.
    held: usize,
}

/// Memory of the lending, reused.
#[derive(Debug, Default)]
pub(super) struct Lending {
    chains: Vec<Chain>,
    requests: Vec<Request>,
    /// By core: can be lent in this call.
    free: Vec<bool>,
    /// By core: its lease after this call.
    lent: Vec<Option<Lease>>,
    /// Most cores lent at one time to chains without overload: in the period that began then, and in the one before.
    peak: usize,
    last_peak: usize,
    peak_since: Nanos,
}

impl Lending {
    /// Decides about all auxiliary cores. Returns the number of those that are then lent to chains without overload.
    pub fn lend(&mut self, config: &BrokerConfig, view: &LendView<'_>, plan: &mut LendPlan) -> usize {
        self.see(config, view);
        let spare = self.spare(config, view);
        while let Some(number) = self.next(spare) {
            let request = self.requests.swap_remove(number);
            let queue = &view.queues[request.queue];
            let node = node_of(view, queue.core);
            if let Some(core) = nearest(view.cores, node, request.preferred, |core| self.free[core]) {
                self.free[core] = false;
                self.give(config, view, queue, core, plan);
            }
        }
        self.take_back(config, view, plan);
        self.end_expired(view, plan);
        let lent = self.regular();
        if view.now.saturating_sub(self.peak_since) >= config.period {
            self.last_peak = std::mem::take(&mut self.peak);
            self.peak_since = view.now;
        }
        self.peak = self.peak.max(lent);
        lent
    }

    /// Returns the number of cores that are lent to chains without overload.
    fn regular(&self) -> usize {
        let is_counted = |lease: &&Lease| !self.chains[usize::from(lease.chain)].overloaded;
        self.lent.iter().flatten().filter(is_counted).count()
    }

    /// Reads the view: chains, free cores, requests.
    fn see(&mut self, config: &BrokerConfig, view: &LendView<'_>) {
        let weights = |chains: &mut dyn Iterator<Item = usize>| -> u64 {
            chains.map(|chain| u64::from(view.chains[chain].weight.max(1))).sum()
        };
        let all = weights(&mut (0..view.chains.len()));
        let cores = usable(view.cores);
        self.chains.clear();
        self.chains.extend(view.chains.iter().map(|chain| Chain {
            overloaded: is_overloaded(chain, share(cores, chain.weight, all)),
            urgent: part(chain.objective, config.urgent_percent),
            ..Chain::default()
        }));
        self.free.clear();
        self.lent.clear();
        for core in view.cores {
            let held = match core.usage {
                CoreUse::Lent(lease) if lease.until > view.now => Some(lease),
                _ => None,
            };
            let is_free = matches!(core.usage, CoreUse::Free | CoreUse::Lent(_)) && held.is_none();
            if let Some(lease) = held {
                let chain = &mut self.chains[usize::from(lease.chain)];
                (chain.held, chain.contends) = (chain.held + 1, true);
            }
            self.free.push(is_free);
            self.lent.push(held);
        }
        self.request(view);
        let contenders = weights(&mut (0..view.chains.len()).filter(|chain| self.chains[*chain].contends));
        let pool = auxiliary(view.cores.iter().map(|core| core.usage));
        for (chain, load) in self.chains.iter_mut().zip(view.chains) {
            chain.share = share(pool, load.weight, contenders).ceil() as usize;
        }
    }

    /// Lists the requests: of each queue one per core that it can use, the expired leases among them first.
    fn request(&mut self, view: &LendView<'_>) {
        self.requests.clear();
        for (number, queue) in view.queues.iter().enumerate() {
            let expired = view.cores.iter().filter_map(|core| match core.usage {
                CoreUse::Lent(lease) if lease.until <= view.now && lease.dispatcher == queue.core => Some(lease.core),
                _ => None,
            });
            let wanted = std::iter::once(queue.preferred).chain(std::iter::repeat(None));
            let wanted = wanted.take(usize::from(queue.wants.min(MOST_WANTED)));
            let mut drain = queue.drain.0;
            // Each core takes its part of the packets that are left when it is awake.
            for (with, preferred) in (2_u64..).zip(expired.map(Some).chain(wanted)) {
                let drained = queue.wake.0 + queue.drain.0.saturating_sub(queue.wake.0) / with;
                if drained >= drain {
                    break;
                }
                self.chains[usize::from(queue.chain)].contends = true;
                self.requests.push(Request {
                    queue: number,
                    chain: usize::from(queue.chain),
                    slack: signed(queue.deadline.0) - signed(drain),
                    preferred,
                });
                drain = drained;
            }
        }
    }

    /// Returns the number of free cores that chains in overload leave to the others: a part of all auxiliary cores, and
    /// what the others recently needed at one time beyond what they have. A core that is taken back later has packets.
    fn spare(&self, config: &BrokerConfig, view: &LendView<'_>) -> usize {
        if self.chains.iter().all(|chain| chain.overloaded) {
            return 0;
        }
        let part = auxiliary(view.cores.iter().map(|core| core.usage)) * config.spare_percent as usize / 100;
        let peak = self.peak.max(self.last_peak);
        part.max(1).max(peak.saturating_sub(self.regular()))
    }

    /// Returns the request to serve next, as an index, if there is a free core for it.
    fn next(&self, spare: usize) -> Option<usize> {
        let left = self.free.iter().filter(|free| **free).count();
        let is_pressing = |request: &Request| {
            let chain = &self.chains[request.chain];
            !chain.overloaded && request.slack < chain.urgent && chain.held < chain.share
        };
        let is_pressed = self.requests.iter().any(is_pressing);
        let key = |number: &usize| {
            let request = &self.requests[*number];
            let chain = &self.chains[request.chain];
            let beyond = is_pressed && chain.held >= chain.share;
            (chain.overloaded, beyond, request.slack, request.queue)
        };
        let first = (0..self.requests.len()).min_by_key(key)?;
        let most = match self.chains[self.requests[first].chain].overloaded {
            true => left.saturating_sub(spare),
            false => left,
        };
        (most > 0).then_some(first)
    }

    /// Lends a core to a queue.
    fn give(
        &mut self,
        config: &BrokerConfig,
        view: &LendView<'_>,
        queue: &QueueBacklog,
        core: usize,
        plan: &mut LendPlan,
    ) {
        let chain = usize::from(queue.chain);
        let length = part(view.chains[chain].objective, config.lease_percent).max(1) as u64;
        let lease = Lease {
            core: core as CoreNumber,
            chain: queue.chain,
            dispatcher: queue.core,
            until: Nanos(view.now.0.saturating_add(length)),
        };
        self.chains[chain].held += 1;
        self.lent[core] = Some(lease);
        plan.lend.push(lease);
    }

    /// Takes cores from others for urgent requests that no free core was left for.
    fn take_back(&mut self, config: &BrokerConfig, view: &LendView<'_>, plan: &mut LendPlan) {
        let chains = &self.chains;
        self.requests.retain(|request| {
            let chain = &chains[request.chain];
            !chain.overloaded && request.slack < chain.urgent
        });
        self.requests
            .sort_unstable_by_key(|request| (request.slack, request.queue));
        for number in 0..self.requests.len() {
            let request = self.requests[number];
            let Some(core) = self.victim(view, request) else {
                continue;
            };
            if let Some(lease) = self.lent[core].take() {
                self.chains[usize::from(lease.chain)].held -= 1;
                plan.end.push(lease);
            }
            self.give(config, view, &view.queues[request.queue], core, plan);
        }
    }

    /// Returns the core to take for an urgent request: one that a chain in overload has, else one of a chain above its
    /// share that is less urgent, if the requesting chain is below its own share. Cores of the requester's node come
    /// first, then those of the backlog with the most slack.
    fn victim(&self, view: &LendView<'_>, request: Request) -> Option<usize> {
        let me = &self.chains[request.chain];
        let queue = &view.queues[request.queue];
        let node = node_of(view, queue.core);
        let candidate = |(core, lease): (usize, &Option<Lease>)| {
            let lease = lease.as_ref()?;
            let holder = &self.chains[usize::from(lease.chain)];
            let slack = slack_of(view, lease.dispatcher);
            let was_held = matches!(view.cores[core].usage, CoreUse::Lent(before) if before == *lease);
            let exceeds = holder.held > holder.share && me.held < me.share && slack > request.slack;
            // A lease of this call has not begun: it would not have been given to a less urgent request.
            (was_held && (holder.overloaded || exceeds)).then_some((
                !holder.overloaded,
                view.cores[core].node != node,
                std::cmp::Reverse(slack),
                core,
            ))
        };
        let least = self.lent.iter().enumerate().filter_map(candidate).min()?;
        Some(least.3)
    }

    /// Ends leases that have expired and were not extended.
    fn end_expired(&self, view: &LendView<'_>, plan: &mut LendPlan) {
        for (core, now) in view.cores.iter().zip(&self.lent) {
            if let CoreUse::Lent(lease) = core.usage
                && lease.until <= view.now
                && now.is_none_or(|now| (now.chain, now.dispatcher) != (lease.chain, lease.dispatcher))
            {
                plan.end.push(lease);
            }
        }
    }
}

/// Returns a part of a time, in percent.
fn part(time: Nanos, percent: u32) -> i64 {
    signed(time.0 / 100 * u64::from(percent))
}

fn signed(nanos: u64) -> i64 {
    i64::try_from(nanos).unwrap_or(i64::MAX)
}

/// Returns the node of a dedicated core.
fn node_of(view: &LendView<'_>, core: CoreNumber) -> u16 {
    view.cores.get(usize::from(core)).map_or(0, |core| core.node)
}

/// Returns the slack of a dedicated core's backlog, with the cores that it has. One without a backlog has any.
fn slack_of(view: &LendView<'_>, core: CoreNumber) -> i64 {
    let queue = view.queues.iter().find(|queue| queue.core == core);
    queue.map_or(i64::MAX, |queue| signed(queue.deadline.0) - signed(queue.drain.0))
}
