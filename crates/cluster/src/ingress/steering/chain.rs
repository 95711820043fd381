//! A chain of the ingress: its mapper, its rows, and its moves in progress.

use super::super::rows::{Row, chain_identity};
use super::playback::Playback;
use super::types::{ChainReport, ChainRoute, MoveCause};
use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use tailwater_net::Nanos;
use tailwater_policy::server::{
    ClassLoad, FlowClass, IngressBalancer, IngressMapper, Membership, RowMatch, RowMove, ServerCounters, ServerNumber,
    Steering as Destination,
};

/// Server, as an index into the steering loop's list.
pub(super) type Index = usize;

/// Classes of flows that are kept of a report; others are ignored.
const MAX_CLASSES: usize = 1 << 16;

/// The simulator's mappers.
#[derive(Debug)]
pub(super) enum Mapper {
    /// NetBlaze's: prefixes keep their servers.
    Fixed(IngressMapper),
    /// Tailwater's: rows move.
    Balanced(Box<IngressBalancer>),
}

/// Last report of a server on the chain.
#[derive(Clone, Debug, Default)]
pub(super) struct Reported {
    /// Counters since the first report.
    counters: Playback,
    pub dedicated: u16,
    classes: Vec<ClassLoad>,
}

/// Progress of a move.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    /// It waits for its turn.
    Waiting,
    /// The servers prepare, since this time.
    Preparing(Nanos),
    /// The row is to be written. The number is that of the write that has it, or 0.
    Writing(u64),
    /// The row is in force, since this time, and the flows' state is on its way.
    Transferring(Nanos),
    /// It is complete.
    Done,
}

/// Move of a row.
#[derive(Clone, Debug)]
pub(super) struct Move {
    pub row: Row,
    pub from: Index,
    pub to: Index,
    pub cause: MoveCause,
    pub stage: Stage,
}

impl Move {
    /// Returns `true` if the new row is wanted, or in force.
    pub fn is_begun(&self) -> bool {
        !matches!(self.stage, Stage::Waiting | Stage::Preparing(_))
    }
}

/// Chain whose traffic is steered.
#[derive(Debug)]
pub(super) struct Chain {
    pub route: ChainRoute,
    pub identity: u32,
    pub mapper: Mapper,
    /// Rows that are wanted in the switch, with their servers.
    pub rows: BTreeMap<Row, Index>,
    /// By server.
    pub reports: Vec<Reported>,
    pub memberships: Vec<Membership>,
    pub moves: Vec<Move>,
    /// `false` until there was a server that can have rows.
    pub is_started: bool,
    /// The fixed mapper's rows may differ from those that are wanted in the switch.
    differs: bool,
}

impl Chain {
    /// Creates a chain without rows for `servers` servers, none of which is usable yet.
    pub fn new(route: ChainRoute, servers: usize) -> Chain {
        let count = servers.max(1);
        let mut mapper = match route.mapping.rebalance {
            false => Mapper::Fixed(IngressMapper::new(route.mapping, count as ServerNumber)),
            true => Mapper::Balanced(Box::new(IngressBalancer::new(route.mapping, vec![0; count]))),
        };
        for server in 0..count {
            mapper.set_membership(server, Membership::Lost);
        }
        Chain {
            identity: chain_identity(&route.name),
            mapper,
            rows: BTreeMap::new(),
            reports: vec![Reported::default(); count],
            memberships: vec![Membership::Lost; count],
            moves: Vec::new(),
            is_started: false,
            differs: false,
            route,
        }
    }

    /// Adds servers up to this number of them.
    pub fn grow(&mut self, servers: usize) {
        while self.reports.len() < servers {
            let server = match &mut self.mapper {
                Mapper::Fixed(mapper) => mapper.add_server(),
                Mapper::Balanced(mapper) => mapper.add_server(0),
            };
            self.mapper.set_membership(usize::from(server), Membership::Lost);
            self.reports.push(Reported::default());
            self.memberships.push(Membership::Lost);
        }
    }

    /// Sets a server's part. Returns `true` if it has changed.
    pub fn set_membership(&mut self, server: Index, membership: Membership) -> bool {
        let has_changed = std::mem::replace(&mut self.memberships[server], membership) != membership;
        if has_changed {
            self.mapper.set_membership(server, membership);
        }
        has_changed
    }

    /// Returns `true` if a server has rows, or is about to.
    pub fn uses(&self, server: Index) -> bool {
        self.rows.values().any(|at| *at == server) || self.moves.iter().any(|planned| planned.to == server)
    }

    /// Takes a server's report.
    pub fn report(&mut self, server: Index, report: ChainReport, now: Nanos) {
        let reported = &mut self.reports[server];
        if !reported.counters.report(report.counters, report.measured, now) {
            return;
        }
        reported.dedicated = report.dedicated;
        reported.classes = report.classes;
        reported.classes.truncate(MAX_CLASSES);
        if let Mapper::Balanced(mapper) = &mut self.mapper {
            let of_members = self.reports.iter().zip(&self.memberships);
            let of_members = of_members.filter(|(_, membership)| **membership != Membership::Lost);
            let delays = of_members.map(|(reported, _)| reported.counters.delay());
            mapper.set_report_delay(delays.max().unwrap_or_default());
        }
    }

    /// Sets the share of its cores, in percent, to which the balancer fills a server at most.
    pub fn set_most_fill(&mut self, percent: u8) {
        if let Mapper::Balanced(mapper) = &mut self.mapper {
            mapper.set_most_fill(f64::from(percent) / 100.0);
        }
    }

    /// Returns the servers' numbers of dedicated cores.
    pub fn dedicated(&self) -> Vec<u16> {
        self.reports.iter().map(|report| report.dedicated).collect()
    }

    /// Returns the load of all classes.
    fn classes(&self) -> Vec<ClassLoad> {
        let mut sums: BTreeMap<FlowClass, u32> = BTreeMap::new();
        for load in self.reports.iter().flat_map(|report| &report.classes) {
            let sum = sums.entry(load.class).or_default();
            *sum = sum.saturating_add(load.packets);
        }
        sums.into_iter()
            .map(|(class, packets)| ClassLoad { class, packets })
            .collect()
    }

    /// Begins to steer with the rows that the switch has. Returns `false` if there is no row, and no server is usable.
    pub fn start(&mut self, found: &BTreeMap<Row, Index>, now: Nanos) -> bool {
        let is_open = |server: &Index| self.memberships[*server] == Membership::Open;
        let first = (0..self.memberships.len()).find(is_open);
        match &mut self.mapper {
            Mapper::Fixed(mapper) => {
                let rows = found
                    .iter()
                    .filter_map(|(row, server)| Some((row.destination?, *server as ServerNumber)));
                let full = found.get(&Row::DEFAULT).map(|server| *server as ServerNumber);
                mapper.restore(rows, full);
                self.rows.clone_from(found);
            }
            Mapper::Balanced(mapper) => {
                let Some(default) = found.get(&Row::DEFAULT).copied().or(first) else {
                    return false;
                };
                let rows = found
                    .iter()
                    .filter_map(|(row, server)| Some((row.to_row_match()?, *server as ServerNumber)));
                mapper.restore(default as ServerNumber, rows, now);
            }
        }
        self.is_started = true;
        self.take_rows();
        true
    }

    /// Sets the number of rows that the mapper can have.
    pub fn set_room(&mut self, rows: usize) {
        match &mut self.mapper {
            Mapper::Fixed(mapper) => mapper.set_table(mapper.rows() + rows),
            Mapper::Balanced(mapper) => mapper.set_table(mapper.rows() + rows),
        }
    }

    /// Returns the server of a destination whose packets the switch sent here, and the new row if it has none yet.
    /// Returns `None` if the chain's rows cannot change that way.
    pub fn steer(&mut self, destination: IpAddr) -> Option<(Index, Option<Row>)> {
        let dedicated = self.dedicated();
        let has_open = self.memberships.contains(&Membership::Open);
        let Mapper::Fixed(mapper) = &mut self.mapper else {
            return None;
        };
        if !self.is_started || !has_open {
            return None;
        }
        Some(match mapper.steer(destination, &dedicated) {
            Destination::Known(server) => (usize::from(server), None),
            Destination::Install { prefix, server } => {
                let row = Row::of_prefix(prefix);
                self.rows.insert(row, usize::from(server));
                (usize::from(server), Some(row))
            }
            Destination::Full(server) => {
                let server = usize::from(server);
                let is_new = self.rows.insert(Row::DEFAULT, server).is_none();
                (server, is_new.then_some(Row::DEFAULT))
            }
        })
    }

    /// Lets the mapper decide, if no move is in progress. Returns `true` if there are new moves.
    pub fn decide(&mut self, now: Nanos) -> bool {
        if !self.is_started || !self.moves.is_empty() {
            return false;
        }
        match &mut self.mapper {
            Mapper::Fixed(_) => self.vacate(),
            Mapper::Balanced(mapper) => {
                let counters: Vec<Option<ServerCounters>> = self
                    .memberships
                    .iter()
                    .zip(&self.reports)
                    .map(|(membership, report)| (*membership != Membership::Lost).then(|| report.counters.at(now)))
                    .collect();
                if !mapper.report(now, &counters) {
                    return false;
                }
                let classes = self.classes();
                let Mapper::Balanced(mapper) = &mut self.mapper else {
                    return false;
                };
                let mut planned: Vec<RowMove> = Vec::new();
                mapper.plan(&classes, &mut planned);
                for moved in planned {
                    self.plan(moved.row.into(), usize::from(moved.from), usize::from(moved.to));
                }
            }
        }
        !self.moves.is_empty()
    }

    /// Plans moves of all prefixes whose server is closed.
    fn vacate(&mut self) {
        let dedicated = self.dedicated();
        let Mapper::Fixed(mapper) = &mut self.mapper else {
            return;
        };
        for (server, membership) in self.memberships.iter().enumerate() {
            if *membership != Membership::Open && mapper.activated(server as ServerNumber) {
                mapper.vacate(server as ServerNumber, &dedicated);
                self.differs = true;
            }
        }
        if !std::mem::take(&mut self.differs) {
            return;
        }
        let (rows, full) = mapper.table();
        let rows = rows.map(|(prefix, server)| (Row::of_prefix(prefix), server));
        let wanted: BTreeMap<Row, ServerNumber> = rows.chain(full.map(|server| (Row::DEFAULT, server))).collect();
        for (row, to) in wanted {
            match self.rows.get(&row).copied() {
                Some(from) if from != usize::from(to) => self.plan(row, from, usize::from(to)),
                _ => {}
            }
        }
    }

    fn plan(&mut self, row: Row, from: Index, to: Index) {
        let cause = match self.memberships[from] {
            Membership::Open => MoveCause::Balance,
            Membership::Draining => MoveCause::Drained,
            Membership::Lost => MoveCause::Lost,
        };
        self.moves.push(Move {
            row,
            from,
            to,
            cause,
            stage: Stage::Waiting,
        });
    }

    /// Ends all moves: those whose row is wanted already are complete, others are off. Returns both. The mapper can
    /// then decide anew.
    pub fn abort(&mut self) -> (Vec<Move>, Vec<Move>) {
        let moves = std::mem::take(&mut self.moves);
        self.differs = true;
        let (begun, off): (Vec<Move>, Vec<Move>) = moves.into_iter().partition(Move::is_begun);
        if let Mapper::Balanced(mapper) = &mut self.mapper {
            let row_match = |planned: &Move| planned.row.to_row_match();
            off.iter().filter_map(row_match).for_each(|row| mapper.cancel(row));
            mapper.rows_written();
            begun.iter().filter_map(row_match).for_each(|row| mapper.moved(row));
            self.take_rows();
        }
        (begun, off)
    }

    /// Completes moves if all are. Returns `true` if rows may have become redundant.
    pub fn complete(&mut self) -> bool {
        if self.moves.is_empty() || self.moves.iter().any(|planned| planned.stage != Stage::Done) {
            return false;
        }
        let done: Vec<Move> = std::mem::take(&mut self.moves);
        if let Mapper::Balanced(mapper) = &mut self.mapper {
            mapper.rows_written();
            let rows: Vec<RowMatch> = done.iter().filter_map(|planned| planned.row.to_row_match()).collect();
            rows.into_iter().for_each(|row| mapper.moved(row));
            self.take_rows();
        }
        true
    }

    /// Takes the balancer's rows, when no move is in progress.
    fn take_rows(&mut self) {
        if let Mapper::Balanced(mapper) = &self.mapper {
            let rows = mapper
                .table()
                .map(|(row, server)| (Row::from(row), usize::from(server)));
            self.rows = rows.collect();
        }
    }

    /// Forgets rows that the switch refused: those for which `is_present` is `false`. Their prefixes go to the default
    /// server.
    pub fn forget(&mut self, is_present: impl Fn(Row) -> bool) {
        if let Mapper::Fixed(mapper) = &mut self.mapper {
            let missing: Vec<Row> = self.rows.keys().copied().filter(|row| !is_present(*row)).collect();
            for row in missing {
                if let Some(prefix) = row.destination {
                    mapper.forget(prefix);
                    self.rows.remove(&row);
                }
            }
        }
    }

    /// Returns the number of rows that each server has.
    pub fn rows_by_server(&self) -> HashMap<Index, usize> {
        let mut rows = HashMap::new();
        for server in self.rows.values() {
            *rows.entry(*server).or_default() += 1;
        }
        rows
    }
}

impl Mapper {
    fn set_membership(&mut self, server: Index, membership: Membership) {
        match self {
            Mapper::Fixed(mapper) => mapper.set_closed(server as ServerNumber, membership != Membership::Open),
            Mapper::Balanced(mapper) => mapper.set_membership(server as ServerNumber, membership),
        }
    }
}
