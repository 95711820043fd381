//! One chain on its servers: steps, control, results.

use super::ingress::Ingress;
use super::limits::{STEP, ServerShare};
use super::meter::Meter;
use super::model::Model;
use super::queue::{Actions, CoreCounts, Queue, Surroundings, Train};
use super::random::Draws;
use super::source::{Burst, Source};
use crate::policies::{RackPolicy, Steered};
use crate::rack::Rack;
use crate::report::Decisions;
use tailwater_net::Nanos;
use tailwater_net::toeplitz::BUCKETS;
use tailwater_policy::server::{BucketLoad, CoreLoad, Move, ServerCounters, ServerMapper, ServerView};

/// Number of late packets below which none counts for a server mapper, as live.
const FEW_LATE: f64 = 64.0;
/// Epoch in which a server mapper's active flows are counted, in nanoseconds.
const COUNTED: f64 = 100e3;

/// Cores between which a server mapper moves buckets: those of a server, or of the rack.
struct Section {
    cores: Vec<Queue>,
    dedicated: Vec<bool>,
    /// Owner of each bucket, and packets since the mapper last ran.
    table: Box<[u16; BUCKETS]>,
    packets: Box<[f32; BUCKETS]>,
    mapper: Option<Box<dyn ServerMapper>>,
    /// Time of the mapper's last call, and moves that are not yet in force.
    called: f64,
    decided: Option<(f64, Vec<Move>)>,
    /// Cores that can become auxiliary.
    free: u32,
    delay: f64,
    active: bool,
}

/// A chain in progress.
pub(super) struct Chain {
    model: Model,
    pub meter: Meter,
    source: Source,
    sections: Vec<Section>,
    ingress: Option<Ingress>,
    draws: Draws,
    start_cores: usize,
    /// Correlation of the rates of two steps, and their variance as a multiple of the number of packets.
    keep: f64,
    dispersion: f64,
    bursts: Vec<Burst>,
    /// Trains that start in a step: section, core, train.
    starting: Vec<(u32, u32, Train)>,
    of_core: Vec<Train>,
    loads: Vec<BucketLoad>,
    core_loads: Vec<CoreLoad>,
    moves: Vec<Move>,
    pub decisions: Decisions,
    /// Sum over time of dedicated cores, in total and in the window.
    pub dedicated: f64,
    window_cores: f64,
    window_auxiliary: f64,
}

impl Chain {
    pub fn new(
        model: Model,
        meter: Meter,
        source: impl FnOnce(usize) -> Source,
        policy: RackPolicy,
        servers: &[ServerShare],
        rack: &Rack,
        seed: u64,
    ) -> Chain {
        let section = |cores: usize, mapper, delay: Nanos| Section {
            cores: vec![Queue::default(); cores],
            dedicated: vec![false; cores],
            table: Box::new([0; BUCKETS]),
            packets: Box::new([0.0; BUCKETS]),
            mapper,
            called: 0.0,
            decided: None,
            free: cores as u32,
            delay: delay.0 as f64,
            active: false,
        };
        let mut start_cores = policy.start_cores.map(usize::from);
        let (sections, ingress) = match policy.steered {
            Steered::Servers { ingress, make } => {
                let sections: Vec<_> = servers
                    .iter()
                    .map(|server| section(server.cores, Some(make()), server.reta_delay))
                    .collect();
                let cores: Vec<usize> = servers.iter().map(|server| server.cores).collect();
                let ingress = Ingress::new(ingress, &cores, rack);
                (sections, ingress)
            }
            Steered::Rack(mapper) => {
                let cores = servers.iter().map(|server| server.cores).sum();
                (vec![section(cores, mapper, rack.switch.rule_latency)], None)
            }
            Steered::Flows(_) => unreachable!("the model has no such policy"),
        };
        let all = sections.iter().map(|section| section.cores.len()).max();
        let start_cores = start_cores.take().unwrap_or(all.unwrap_or(1));
        let source = source(sections.len());
        let [_, one, two] = source.statistics.dispersion;
        let mut chain = Chain {
            model,
            meter,
            sections,
            ingress,
            draws: Draws::new(crate::chain::random(seed, 1)),
            start_cores,
            keep: (two / one - 1.0).clamp(0.0, 0.99),
            dispersion: one,
            source,
            bursts: Vec::new(),
            starting: Vec::new(),
            of_core: Vec::new(),
            loads: Vec::new(),
            core_loads: Vec::new(),
            moves: Vec::new(),
            decisions: Decisions::default(),
            dedicated: 0.0,
            window_cores: 0.0,
            window_auxiliary: 0.0,
        };
        if chain.ingress.is_none() {
            chain.source.levels[0].share = 1.0;
            chain.activate(0, start_cores, 0.0);
        }
        chain
    }

    /// Returns the bytes of the chain's state, the histograms and tables included.
    pub fn state_bytes(&self) -> usize {
        let section = |section: &Section| {
            section.cores.len() * (size_of::<Queue>() + 64) + BUCKETS * (2 + 4) + size_of::<Section>()
        };
        let levels = self.source.levels.len() * (BUCKETS * 4 * 4 + 1024);
        let ingress = self.ingress.as_ref().map_or(0, Ingress::state_bytes);
        self.sections.iter().map(section).sum::<usize>() + levels + ingress + 2 * (30 << 10) + size_of::<Chain>()
    }

    /// Takes a section into use with this many cores, unless it is.
    fn activate(&mut self, number: usize, start: usize, now: f64) {
        let section = &mut self.sections[number];
        if std::mem::replace(&mut section.active, true) {
            return;
        }
        let count = start.clamp(1, section.cores.len());
        section.dedicated[..count].fill(true);
        section.free -= count as u32;
        section
            .table
            .iter_mut()
            .enumerate()
            .for_each(|(bucket, core)| *core = (bucket % count) as u16);
        section.called = now;
        if let Some(ingress) = &mut self.ingress {
            ingress.reported(number, count as u16);
        }
    }

    /// Advances by a step.
    pub fn step(&mut self, now: f64) {
        let end = now + STEP;
        self.see_destinations(end);
        if let Some(Ingress::Balanced(ingress)) = &mut self.ingress
            && ingress.complete(now, &mut self.source)
        {
            self.source.retick();
        }
        let mut changed = self.source.tick(now);
        changed |= self.enforce(now);
        if changed {
            self.spread();
        }
        self.collect(end);
        self.meter.window.flows += self.source.flows() * STEP / 1e9;
        let mut next = 0;
        for (number, section) in self.sections.iter_mut().enumerate() {
            if !section.active {
                continue;
            }
            for core in 0..section.cores.len() {
                if !section.dedicated[core] {
                    continue;
                }
                self.of_core.clear();
                while let Some((s, c, train)) = self.starting.get(next)
                    && (*s as usize, *c as usize) == (number, core)
                {
                    self.of_core.push(*train);
                    next += 1;
                }
                let queue = &mut section.cores[core];
                queue.state = queue.state * self.keep + self.draws.normal() * libm::sqrt(1.0 - self.keep * self.keep);
                let mut surroundings = Surroundings {
                    model: &self.model,
                    meter: &mut self.meter,
                    free: &mut section.free,
                };
                queue.advance((now, end), &self.of_core, &mut surroundings);
                self.dedicated += STEP;
                self.window_cores += STEP;
            }
        }
        self.control(end);
        self.rebalance(end);
    }

    /// Reports the servers' counters to an ingress whose rows move, and takes the servers of its moves into use.
    fn rebalance(&mut self, now: f64) {
        let Some(Ingress::Balanced(ingress)) = &mut self.ingress else {
            return;
        };
        if now % ingress.interval() >= STEP {
            return;
        }
        let packet = self.model.packet;
        let counters = self.sections.iter().map(|section| section.counters(packet));
        let moves = ingress.report(now, counters, &self.source, &mut self.decisions);
        let mut loads: Vec<(usize, f64)> = Vec::new();
        for planned in moves {
            let to = usize::from(planned.to);
            match loads.iter_mut().find(|load| load.0 == to) {
                Some(load) => load.1 += planned.load,
                None => loads.push((to, planned.load)),
            }
        }
        for (to, load) in loads {
            // A server in use keeps its cores.
            self.activate(to, libm::ceil(load) as usize, now);
        }
    }

    /// Steers destinations that are seen for the first time.
    fn see_destinations(&mut self, end: f64) {
        let mut steered = false;
        while let Some((first, address, share)) = self.source.unseen.last().copied()
            && first < end
        {
            self.source.unseen.pop();
            let Some(ingress) = &mut self.ingress else {
                continue;
            };
            let (levels, mut sections) = (&mut self.source.levels, Vec::new());
            ingress.steer((address, share), &mut self.decisions, |section, share| {
                levels[section].share += share;
                if !sections.contains(&section) {
                    sections.push(section);
                }
            });
            for section in sections {
                self.activate(section, self.start_cores, first);
            }
            steered = true;
        }
        if steered {
            // The rates of the sections change at once.
            self.source.retick();
        }
    }

    /// Sets each core's rate to that of its buckets.
    fn spread(&mut self) {
        for (section, levels) in self.sections.iter_mut().zip(&self.source.levels) {
            if !section.active {
                continue;
            }
            section.cores.iter_mut().for_each(|core| core.rate = 0.0);
            for (owner, rate) in section.table.iter().zip(levels.rates.iter()) {
                section.cores[usize::from(*owner)].rate += f64::from(*rate);
            }
            for core in &mut section.cores {
                core.deviation = libm::sqrt(self.dispersion / (core.rate * STEP).max(1e-3));
            }
        }
    }

    /// Assigns the bursts of a step to cores.
    fn collect(&mut self, end: f64) {
        self.bursts.clear();
        self.starting.clear();
        self.source.bursts(end, &mut self.bursts);
        for burst in &self.bursts {
            let Burst {
                at,
                starts,
                lasts,
                packets,
            } = *burst;
            let train = |packets: f64, new: f64| Train {
                starts,
                ends: starts + lasts,
                packets: packets / lasts,
                work: packets * (self.model.packet + new) / lasts,
            };
            if let Some((section, bucket)) = at {
                let of = &mut self.sections[section];
                of.packets[bucket] += packets as f32;
                self.starting
                    .push((section as u32, of.table[bucket].into(), train(packets, 0.0)));
                continue;
            }
            self.meter.window.flows += packets;
            for (number, section) in self.sections.iter_mut().enumerate() {
                let packets = packets * self.source.levels[number].share;
                if packets <= 0.0 {
                    continue;
                }
                let each = packets / BUCKETS as f64;
                section.packets.iter_mut().for_each(|packets| *packets += each as f32);
                let mut buckets = vec![0_u32; section.cores.len()];
                section.table.iter().for_each(|core| buckets[usize::from(*core)] += 1);
                for (core, buckets) in buckets.into_iter().enumerate().filter(|(_, buckets)| *buckets > 0) {
                    let mean = each * f64::from(buckets);
                    let drawn = f64::from(self.draws.poisson(mean));
                    self.starting
                        .push((number as u32, core as u32, train(drawn, self.model.new)));
                }
            }
        }
        self.starting
            .sort_by(|a, b| (a.0, a.1).cmp(&(b.0, b.1)).then(a.2.starts.total_cmp(&b.2.starts)));
    }

    /// Applies moves that are due. Returns `true` if there are any.
    fn enforce(&mut self, now: f64) -> bool {
        let mut any = false;
        for (number, section) in self.sections.iter_mut().enumerate() {
            let Some((_, moves)) = section.decided.take_if(|(due, _)| *due <= now) else {
                continue;
            };
            any = true;
            self.decisions.buckets_moved += moves.len() as u64;
            for &Move { bucket, to } in &moves {
                section.table[usize::from(bucket)] = to;
            }
            section.dedicate();
            if let Some(ingress) = &mut self.ingress {
                let count = section.dedicated.iter().filter(|dedicated| **dedicated).count();
                ingress.reported(number, count as u16);
            }
        }
        any
    }

    /// Runs the server mappers that are due.
    fn control(&mut self, now: f64) {
        for number in 0..self.sections.len() {
            let section = &mut self.sections[number];
            let Some(mapper) = section
                .mapper
                .as_mut()
                .filter(|_| section.active && section.decided.is_none())
            else {
                continue;
            };
            let is_due = now >= section.called + mapper.period().0 as f64;
            let epoch = Nanos((self.model.slo / 2.0) as u64);
            let is_behind = |lasting: Nanos| {
                let since = now - lasting.0 as f64;
                since >= section.called
                    && section
                        .cores
                        .iter()
                        .any(|core| core.behind_since.is_some_and(|b| b <= since))
            };
            if !is_due && !mapper.on_backlog_of(epoch).is_some_and(is_behind) {
                continue;
            }
            let elapsed = (now - section.called).max(1.0);
            section.called = now;
            self.loads.clear();
            let rates = self.source.levels[number].rates.iter();
            let buckets = section.table.iter().zip(section.packets.iter_mut()).zip(rates);
            self.loads.extend(buckets.map(|((core, packets), rate)| {
                let packets = f64::from(std::mem::take(packets));
                // The rate of this tick stands for those of the period.
                let rate = f64::from(*rate) + packets / elapsed;
                BucketLoad {
                    // Base packets of an epoch are of nearly as many flows.
                    flows: rate * COUNTED,
                    rate: rate * 1e9,
                    core: *core,
                }
            }));
            let (mut packets, mut late) = (0.0, 0.0);
            self.core_loads.clear();
            for (core, dedicated) in section.cores.iter_mut().zip(&section.dedicated) {
                let counts = std::mem::take(&mut core.counts);
                packets += counts.packets;
                late += counts.late + counts.lost;
                self.core_loads
                    .push(core_load(*dedicated, counts, elapsed, &self.model));
            }
            let view = ServerView {
                now: Nanos(now as u64),
                buckets: &self.loads,
                cores: &self.core_loads,
                late: if late < FEW_LATE { 0.0 } else { late / packets },
            };
            self.moves.clear();
            mapper.remap(&view, &mut self.moves);
            self.decisions.remaps += 1;
            if !self.moves.is_empty() {
                let due = now + section.delay + mapper.enforcement_delay().0 as f64;
                section.decided = Some((due, std::mem::take(&mut self.moves)));
            }
        }
    }

    fn cores(&self) -> impl Iterator<Item = &Queue> {
        self.sections.iter().flat_map(|section| &section.cores)
    }

    /// Returns the sum over time of active auxiliary cores so far.
    pub fn auxiliary(&self) -> f64 {
        self.cores().map(|core| core.auxiliary).sum()
    }

    /// Returns the time that cores spent on packets so far.
    pub fn busy(&self) -> f64 {
        self.cores().map(|core| core.busy).sum()
    }

    /// Adds up the actions of the core mappers.
    pub fn decided(&mut self) {
        let mut all = Actions::default();
        for core in self.cores() {
            all.activated += core.actions.activated;
            all.released += core.actions.released;
            all.boosts += core.actions.boosts;
            all.offloaded += core.actions.offloaded;
        }
        self.decisions.activated = all.activated;
        self.decisions.released = all.released;
        self.decisions.boosts = all.boosts;
        self.decisions.packets_handed = all.offloaded as u64;
    }

    /// Ends a window of `length` nanoseconds.
    pub fn roll(&mut self, start: Nanos, length: f64) {
        let auxiliary = self.auxiliary();
        let cores = std::mem::take(&mut self.window_cores) + auxiliary - self.window_auxiliary;
        self.window_auxiliary = auxiliary;
        let dedicated = self.sections.iter().flat_map(|section| &section.dedicated);
        let dedicated = dedicated.filter(|dedicated| **dedicated).count();
        self.meter.roll(start, cores / length, dedicated as u32);
    }

    /// Ends the warm-up: all counts begin anew.
    pub fn restart(&mut self) {
        self.meter.restart();
        self.decisions = Decisions::default();
        (self.dedicated, self.window_cores, self.window_auxiliary) = (0.0, 0.0, 0.0);
        for core in self.sections.iter_mut().flat_map(|section| &mut section.cores) {
            (core.auxiliary, core.busy, core.actions) = (0.0, 0.0, Actions::default());
        }
    }
}

impl Section {
    /// Returns the counters of a server since the start of the run. `packet` is the time of a packet.
    fn counters(&self, packet: f64) -> ServerCounters {
        let [mut offered, mut processed, mut late, mut busy] = [0.0; 4];
        for core in &self.cores {
            let sums = &core.sums;
            offered += sums.packets;
            processed += sums.packets - sums.lost - core.waiting() / packet;
            late += sums.late + sums.lost;
            busy += sums.spent;
        }
        ServerCounters {
            offered: offered as u64,
            processed: processed as u64,
            busy: Nanos(busy as u64),
            late: late as u64,
        }
    }

    /// Dedicates the cores that own buckets, and gives back the others.
    fn dedicate(&mut self) {
        let mut owns = vec![false; self.cores.len()];
        self.table.iter().for_each(|core| owns[usize::from(*core)] = true);
        let heir = owns.iter().position(|owns| *owns);
        for (core, owns) in owns.into_iter().enumerate() {
            if owns == self.dedicated[core] {
                continue;
            }
            self.dedicated[core] = owns;
            if owns {
                self.take_free();
                continue;
            }
            let mut gone = std::mem::take(&mut self.cores[core]);
            gone.retire(heir.map(|heir| &mut self.cores[heir]), &mut self.free);
            self.cores[core] = gone;
            self.free += 1;
        }
    }

    /// Takes a core that is not dedicated, an auxiliary one if there is no other.
    fn take_free(&mut self) {
        if self.free == 0
            && let Some(most) = self.cores.iter_mut().max_by_key(|core| core.active())
        {
            most.give_back(&mut self.free);
        }
        self.free = self.free.saturating_sub(1);
    }
}

fn core_load(dedicated: bool, counts: CoreCounts, elapsed: f64, model: &Model) -> CoreLoad {
    CoreLoad {
        dedicated,
        busy: (counts.busy / elapsed).min(1.0),
        lost: counts.lost as u64,
        batch_p99: Nanos((2.0 * model.batch).min(counts.longest * model.packet + model.calm.alone) as u64),
        longest_queue: counts.longest as u32,
        worst_delay: Nanos((counts.longest * model.packet + model.calm.alone) as u64),
    }
}
