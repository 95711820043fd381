//! Destinations of a chain to its sections: NetBlaze's ingress mapper, or Tailwater's, which moves rows.

use super::limits::STEP;
use super::source::Source;
use crate::rack::Rack;
use crate::report::Decisions;
use std::net::IpAddr;
use tailwater_net::Nanos;
use tailwater_net::toeplitz::BUCKETS;
use tailwater_policy::server::{
    ClassLoad, FlowClass, IngressBalancer, IngressConfig, IngressMapper, RowMove, ServerCounters,
    Steering as Destination,
};

/// Parts of a destination's flows that rows can tell apart by hash.
const PARTS: usize = 16;
/// Destinations with at least one part in so many of a server's flows are divided: smaller ones fit anywhere. So at
/// most as many times the number of servers are.
const DIVIDED: f64 = 64.0;
/// Packets of the whole chain, in weights of classes.
const WHOLE: f64 = (1_u32 << 31) as f64;
/// Seconds for which a server remembers flows.
const REMEMBERED: f64 = 10.0;

/// Ingress of a chain with a server mapper on each of its servers.
pub(super) enum Ingress {
    /// Prefixes keep their servers.
    Fixed {
        mapper: IngressMapper,
        /// Dedicated cores of each server, as last reported.
        reported: Vec<u16>,
    },
    /// Rows move.
    Balanced(Box<Balanced>),
}

/// Flows that a row can single out.
#[derive(Clone, Copy, Debug)]
struct Class {
    class: FlowClass,
    section: usize,
    share: f64,
}

/// Ingress whose rows move.
pub(super) struct Balanced {
    mapper: IngressBalancer,
    config: IngressConfig,
    classes: Vec<Class>,
    counters: Vec<Option<ServerCounters>>,
    /// Moves that are decided, and when their flows are with the new servers.
    planned: Vec<RowMove>,
    due: f64,
    /// Time from a report to new rows, and of a call, in nanoseconds; time for a flow's state.
    rows: f64,
    call: f64,
    flow: f64,
}

impl Ingress {
    /// Creates the ingress for servers with these numbers of cores, or none if there is nothing to steer.
    pub fn new(config: IngressConfig, cores: &[usize], rack: &Rack) -> Option<Ingress> {
        if !config.rebalance {
            return Some(Ingress::Fixed {
                mapper: IngressMapper::new(config, cores.len() as u16),
                reported: vec![0; cores.len()],
            });
        }
        (cores.len() > 1).then(|| {
            let timing = &rack.timing;
            Ingress::Balanced(Box::new(Balanced {
                mapper: IngressBalancer::new(config, cores.iter().map(|cores| *cores as u16)),
                config,
                classes: Vec::new(),
                counters: vec![None; cores.len()],
                planned: Vec::new(),
                due: 0.0,
                rows: (timing.rpc + rack.switch.rule_latency).0 as f64,
                call: timing.rpc.0 as f64,
                flow: timing.flow_transfer.0 as f64,
            }))
        })
    }

    /// Takes the number of dedicated cores of a server.
    pub fn reported(&mut self, section: usize, cores: u16) {
        if let Ingress::Fixed { reported, .. } = self {
            reported[section] = cores;
        }
    }

    /// Steers a new destination with this share of the flows. Calls `add` with sections and their shares of it.
    pub fn steer(
        &mut self,
        (address, share): (IpAddr, f64),
        decisions: &mut Decisions,
        mut add: impl FnMut(usize, f64),
    ) {
        match self {
            Ingress::Fixed { mapper, reported } => {
                let steered = mapper.steer(address, reported);
                if let Destination::Install { .. } = steered {
                    decisions.rules += 1;
                }
                add(usize::from(steered.server()), share);
            }
            Ingress::Balanced(balanced) => balanced.open(address, share, add),
        }
    }

    /// Returns the bytes of its state, without the tables of rows.
    pub fn state_bytes(&self) -> usize {
        match self {
            Ingress::Fixed { reported, .. } => reported.len() * 2,
            Ingress::Balanced(balanced) => {
                let servers = balanced.counters.len() * (size_of::<Option<ServerCounters>>() + 256);
                size_of::<Balanced>() + balanced.classes.capacity() * size_of::<Class>() + servers
            }
        }
    }
}

impl Balanced {
    fn open(&mut self, address: IpAddr, share: f64, mut add: impl FnMut(usize, f64)) {
        let servers = self.counters.len() as f64;
        let parts = match self.config.flow_hash && share * servers * DIVIDED >= 1.0 {
            true => PARTS,
            false => 1,
        };
        for part in 0..parts {
            let class = FlowClass::new(address, (part * BUCKETS / PARTS) as u16);
            let section = usize::from(self.mapper.steer(class).1);
            let share = share / parts as f64;
            self.classes.push(Class { class, section, share });
            add(section, share);
        }
    }

    /// Returns the interval at which servers report, in nanoseconds.
    pub fn interval(&self) -> f64 {
        self.mapper.report_interval().0 as f64
    }

    /// Takes the servers' counters as of `now`, and lets the mapper decide. Returns the decided moves. `source` has the
    /// traffic's statistics.
    pub fn report(
        &mut self,
        now: f64,
        counters: impl Iterator<Item = ServerCounters>,
        source: &Source,
        decisions: &mut Decisions,
    ) -> &[RowMove] {
        self.counters.clear();
        self.counters.extend(counters.map(Some));
        if !self.mapper.report(Nanos(now as u64), &self.counters) {
            return &[];
        }
        let classes = self.classes.iter().map(|class| ClassLoad {
            class: class.class,
            // Flows to all destinations are alike: a class has its share of the packets.
            packets: ((class.share * WHOLE) as u32).max(1),
        });
        let classes: Vec<ClassLoad> = classes.collect();
        self.mapper.plan(&classes, &mut self.planned);
        let moves = self.planned.len() as u64;
        decisions.rules += moves;
        decisions.rows_moved += moves;
        // All rows are written at the same time, so the move with most flows is complete last.
        let remembered = source.statistics.flows * (now / 1e9).min(REMEMBERED);
        let flows = |planned: &RowMove| -> f64 {
            let leaves =
                |class: &&Class| class.section == usize::from(planned.from) && planned.row.matches(class.class);
            self.classes.iter().filter(leaves).map(|class| class.share).sum()
        };
        let most = self.planned.iter().map(flows).fold(0.0, f64::max);
        let transfer = self.call + most * remembered * self.flow;
        self.due = now + self.rows + transfer;
        decisions.longest_row_move_ns = decisions
            .longest_row_move_ns
            .max(if moves > 0 { transfer as u64 } else { 0 });
        &self.planned
    }

    /// Completes the moves if they are due at `now`: their flows' rate goes to the new sections. Returns `true` if any
    /// is.
    pub fn complete(&mut self, now: f64, source: &mut Source) -> bool {
        if self.planned.is_empty() || now + STEP / 2.0 < self.due {
            return false;
        }
        self.mapper.rows_written();
        let mut shifts: Vec<(usize, usize, f64)> = Vec::new();
        for class in &mut self.classes {
            let to = usize::from(self.mapper.steer(class.class).1);
            let from = std::mem::replace(&mut class.section, to);
            if from == to {
                continue;
            }
            match shifts.iter_mut().find(|shift| (shift.0, shift.1) == (from, to)) {
                Some(shift) => shift.2 += class.share,
                None => shifts.push((from, to, class.share)),
            }
        }
        for (from, to, share) in shifts {
            source.shift(from, to, share);
        }
        for planned in self.planned.drain(..) {
            self.mapper.moved(planned.row);
        }
        true
    }
}
