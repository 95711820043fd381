//! Tailwater's ingress mapper: rows of the switch's table to servers, moved when a server is overloaded.
//!
//! The table begins with one row, the *default row*, which sends everything to the first server. No packet ever waits
//! for a row of its own: a row is only written for flows that leave the server of the row that matched them before. So
//! the table is small, and the default row carries what is new.
//!
//! **Headroom.** Servers report counters a thousand times a second. The cores that a server's load takes are its
//! offered packets times the core time that it measures for one: no profile is needed, and slow cores show. How full a
//! server may be depends on how bursty the traffic is, on the chain's worst packets and on the machine. So the *limit*
//! is learnt, for each server, as the server mapper learns how full a core may be: where packets are late or lost
//! though the load is within the limit, it falls to less than the load; after a while without, it grows again. A
//! server that is taken into use begins with the lowest limit learnt so far.
//!
//! **When.** A server is overloaded if its mean load of a period is above the limit, or if more packets were late than
//! its *credit* covers: late packets beyond the tolerated share add up, and others pay off. After a start there is no
//! mean yet, and what has been measured since counts, with a margin that is the larger the shorter the time: a new
//! ingress in front of a full load needs a few milliseconds, not periods. After moves, a new period begins when the
//! backlogs are gone.
//!
//! **What.** The fewest rows that bring the server within its limit, to the servers with most room; unused ones are
//! taken if the load exceeds the limits of those in use. Since one row can as well carry more as less, it is chosen
//! such that both servers get equally full. Candidates are all prefixes from the default row's to the configured
//! length; one too large for any server is divided further, down to a single destination, and then by the flow hash if
//! the switch can. One flow that exceeds a server stays.
//!
//! **Order.** The mapper decides, and its caller moves: the new server is in use before the row is written, and packets
//! that arrive by the new row wait until the old server has none of the row's and has sent their flows' state. Nothing
//! is decided meanwhile.
//!
//! **Lost servers.** A server that sends no report three times in a row is lost. All its rows go to others, whole
//! or divided, as soon as no move is in progress; unused servers are taken if the others' limits do not suffice. There
//! is no state to wait for: the flows begin anew. Then loads are judged as after a start.
//!
//! **Drained servers.** A server that is draining gets no rows, and all that it has go to others in one plan.
//!
//! **Scale-in**, if configured. If the load has fitted the limits of one server fewer, with a margin, for longer than
//! limits take to grow, the least loaded server is emptied: all its rows move, and it is unused. The time doubles if a
//! server is overloaded not long after that, so that a load to and fro moves few rows.

mod classes;
mod membership;
mod plan;
mod rack;
mod row;
mod spare;

pub use classes::FlowClassCounts;
pub use membership::Membership;
pub use plan::{ClassLoad, RowMove};
pub use row::{FlowClass, RowMatch};

use super::ingress::{IngressConfig, ServerNumber};
use plan::{Planner, Server};
use spare::SpareTime;
use std::collections::HashMap;
use tailwater_net::Nanos;

/// Interval at which servers report.
const REPORT: Nanos = Nanos::from_millis(1);
/// Period of the mean load.
const PERIOD: Nanos = Nanos::from_millis(250);
/// Time of which the load is unknown by its burstiness: over a period as long, it can be twice the mean.
const UNSURE: Nanos = Nanos::from_micros(300);
/// Time after moves in which backlogs are processed, and nothing is measured.
const SETTLE: Nanos = Nanos::from_millis(10);
/// Delays of reports in a period, at least: what was measured before it has little influence.
const DELAYS: u64 = 4;
/// Share of its cores up to which a server is filled before anything has been learnt.
const FIRST_LIMIT: f64 = 0.85;
/// Least and highest limit, as shares of a server's cores.
const LIMITS: std::ops::RangeInclusive<f64> = 0.1..=0.97;
/// Tolerated share of late packets: half of what an objective of 99 % allows.
const TOLERATED: f64 = 0.005;
/// Seconds of the server's packets that may be late beyond the tolerated share.
const CREDIT: f64 = 0.001;
/// Late packets below which none counts.
const FEW_LATE: u64 = 64;
/// Share of late packets above which the limit was far too high.
const MANY: f64 = 4.0 * TOLERATED;
/// New limit as a part of the load at which packets were late, if many or few were.
const MUCH_LESS: f64 = 0.75;
const LESS: f64 = 0.9;
/// Growth of a limit after a time without late packets.
const MORE: f64 = 1.03;
/// Shortest and longest such time, in periods. It doubles with each failure.
const HOLD: std::ops::RangeInclusive<u32> = 4..=64;
/// Missing reports in a row after which a server counts as lost.
const MISSING: u32 = 3;
/// Share of the limits of one server fewer up to which the load fits there.
const SPARE_FILL: f64 = 0.8;

/// Counters of a server since the start of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ServerCounters {
    /// Packets steered to it.
    pub offered: u64,
    /// Packets processed.
    pub processed: u64,
    /// Core time spent.
    pub busy: Nanos,
    /// Packets late or lost for causes that more cores can remedy.
    pub late: u64,
}

impl ServerCounters {
    /// Returns the difference to earlier counters.
    fn since(&self, earlier: &ServerCounters) -> ServerCounters {
        ServerCounters {
            offered: self.offered.saturating_sub(earlier.offered),
            processed: self.processed.saturating_sub(earlier.processed),
            busy: self.busy.saturating_sub(earlier.busy),
            late: self.late.saturating_sub(earlier.late),
        }
    }
}

/// What is known of a server.
#[derive(Clone, Debug)]
struct ServerState {
    cores: f64,
    used: bool,
    /// Reports missing in a row, and whether it counts as lost.
    missing: u32,
    lost: bool,
    membership: Membership,
    /// `true` if its counters began before it was known: the next ones are the first that count.
    rebases: bool,
    /// Share of its cores to which it may be filled, and how long until it grows.
    limit: f64,
    hold: u32,
    next_hold: u32,
    /// Counters at the start of the period, and of the last report.
    begin: ServerCounters,
    last: ServerCounters,
    /// Late packets in excess.
    excess: f64,
    /// Core time of a packet, in seconds, as last measured.
    packet: f64,
    /// Load in the period, in cores.
    load: f64,
    sheds: bool,
}

/// Tailwater's ingress mapper.
#[derive(Clone, Debug)]
pub struct IngressBalancer {
    config: IngressConfig,
    servers: Vec<ServerState>,
    /// Servers of rows other than the default row.
    rows: HashMap<RowMatch, ServerNumber>,
    default: ServerNumber,
    /// Lengths of rows in the table, as a bit map.
    lengths: u128,
    /// Start of the period.
    since: Nanos,
    /// `true` until a whole period has been measured.
    is_new: bool,
    /// Moves that are not complete.
    moving: Vec<RowMove>,
    /// Completed some time ago, or `None`.
    settles: bool,
    /// Server that is being emptied, and when one can be.
    emptying: Option<usize>,
    spare: SpareTime,
    /// Age of reports.
    delay: Nanos,
    /// Highest limit of a server.
    most_fill: f64,
}

impl IngressBalancer {
    /// Creates a mapper for servers with these numbers of cores. Everything goes to the first.
    ///
    /// # Panics
    /// If there is no server, or a prefix is longer than an address.
    pub fn new(config: IngressConfig, cores: impl IntoIterator<Item = u16>) -> IngressBalancer {
        config.check();
        let mut servers: Vec<ServerState> = cores.into_iter().map(ServerState::new).collect();
        assert!(!servers.is_empty(), "a rack has servers");
        servers[0].used = true;
        IngressBalancer {
            config,
            servers,
            rows: HashMap::new(),
            default: 0,
            lengths: 0,
            since: Nanos::ZERO,
            is_new: true,
            moving: Vec::new(),
            settles: false,
            emptying: None,
            spare: SpareTime::default(),
            delay: Nanos::ZERO,
            most_fill: *LIMITS.end(),
        }
    }

    /// Returns the interval at which servers report.
    pub const fn report_interval(&self) -> Nanos {
        REPORT
    }

    /// Returns the row in force for a class of flows, and its server.
    pub fn steer(&self, class: FlowClass) -> (RowMatch, ServerNumber) {
        let mut lengths = self.lengths;
        while lengths != 0 {
            let length = lengths.ilog2();
            let row = RowMatch::of(class, length as u8);
            if let Some(server) = self.rows.get(&row) {
                return (row, *server);
            }
            lengths &= !(1 << length);
        }
        (RowMatch::DEFAULT, self.default)
    }

    /// Returns the number of rows in use, without the default row.
    pub fn rows(&self) -> usize {
        self.rows.len()
    }

    /// Returns the share of a server's cores to which it may be filled.
    ///
    /// # Panics
    /// If there is no such server.
    pub fn limit(&self, server: ServerNumber) -> f64 {
        self.servers[usize::from(server)].limit
    }

    /// Returns `true` if a server has rows, or is about to.
    ///
    /// # Panics
    /// If there is no such server.
    pub fn is_used(&self, server: ServerNumber) -> bool {
        self.servers[usize::from(server)].used
    }

    /// Returns `true` if a server counts as lost: its last reports are missing.
    ///
    /// # Panics
    /// If there is no such server.
    pub fn is_lost(&self, server: ServerNumber) -> bool {
        self.servers[usize::from(server)].lost
    }

    /// Returns `true` if moves are not complete.
    pub fn is_moving(&self) -> bool {
        !self.moving.is_empty()
    }

    /// Takes the servers' counters as of `now`, of unused ones, too. `None` stands for a report that did not come.
    /// Returns `true` if rows are to move, and [`plan`](Self::plan) is due.
    ///
    /// # Panics
    /// If the length of `counters` is not the number of servers.
    pub fn report(&mut self, now: Nanos, counters: &[Option<ServerCounters>]) -> bool {
        assert_eq!(counters.len(), self.servers.len(), "one report a server");
        for (server, counters) in self.servers.iter_mut().zip(counters) {
            server.note(counters.is_some());
            if let Some(counters) = counters
                && std::mem::take(&mut server.rebases)
            {
                (server.begin, server.last) = (*counters, *counters);
            }
        }
        let elapsed = now.saturating_sub(self.since);
        if self.is_moving() {
            self.begin(now, counters);
            return false;
        }
        if self.has_rows_of_closed() {
            self.begin(now, counters);
            self.servers.iter_mut().for_each(|server| server.sheds = false);
            return true;
        }
        if self.settles && elapsed < SETTLE + self.delay {
            self.begin(self.since, counters);
            return false;
        }
        if std::mem::take(&mut self.settles) {
            self.begin(now, counters);
            return false;
        }
        if elapsed == Nanos::ZERO {
            return false;
        }
        let is_period = elapsed >= PERIOD.max(Nanos(DELAYS * self.delay.0));
        let judged = is_period || self.is_new;
        let mut any = false;
        for (server, counters) in self.servers.iter_mut().zip(counters) {
            let Some(counters) = counters else {
                server.sheds = false;
                continue;
            };
            server.sheds = server.used && server.measure(counters, elapsed, judged);
            any |= server.sheds;
            if is_period && !server.sheds {
                server.grow(self.most_fill);
            }
        }
        if is_period {
            self.begin(now, counters);
            self.is_new = false;
        }
        if !self.config.scale_in {
            return any;
        }
        if any {
            self.spare.too_much();
        } else if is_period {
            self.emptying = self.not_needed();
        }
        any || self.emptying.is_some()
    }

    /// Returns `true` if a lost or draining server has rows that can move to another.
    fn has_rows_of_closed(&self) -> bool {
        let is_closed = |server: &ServerNumber| self.servers[usize::from(*server)].is_closed();
        self.servers.iter().any(ServerState::is_closed)
            && self.servers.iter().any(|server| !server.is_closed())
            && (is_closed(&self.default) || self.rows.values().any(is_closed))
    }

    /// Counts a period in which no server had too much. Returns the server to empty, if the others have sufficed for
    /// long enough.
    fn not_needed(&mut self) -> Option<usize> {
        let used = || (0..self.servers.len()).filter(|number| self.servers[*number].used);
        let load = |number: &usize| self.servers[*number].load;
        let least = used().min_by(|a, b| load(a).total_cmp(&load(b)).then(b.cmp(a)));
        let others = used().filter(|number| Some(*number) != least);
        let room: f64 = others
            .map(|number| self.servers[number].limit * self.servers[number].cores)
            .sum();
        let fits = used().map(|number| load(&number)).sum::<f64>() <= SPARE_FILL * room;
        // A limit that fell not long ago is not known well.
        let holds = used().map(|number| self.servers[number].next_hold).max();
        let has_others = room > 0.0 && used().all(|number| !self.servers[number].is_closed());
        let is_due = self.spare.period(fits && has_others, 2 * holds.unwrap_or(0));
        least.filter(|_| is_due)
    }

    /// Begins a period.
    fn begin(&mut self, now: Nanos, counters: &[Option<ServerCounters>]) {
        self.since = now;
        for (server, counters) in self.servers.iter_mut().zip(counters) {
            if let Some(counters) = counters {
                (server.begin, server.last) = (*counters, *counters);
            }
            server.excess = 0.0;
        }
    }

    /// Appends the moves to `moves`, which is empty: those that relieve servers with too much, and those of all rows of
    /// servers that are lost or to be emptied. `classes` has the load of each class of flows. The rows are to be
    /// written, followed by [`rows_written`](Self::rows_written).
    pub fn plan(&mut self, classes: &[ClassLoad], moves: &mut Vec<RowMove>) {
        let used = || self.servers.iter().filter(|server| server.used);
        let learnt = used()
            .map(|server| server.limit)
            .fold(FIRST_LIMIT.min(self.most_fill), f64::min);
        let closed = |number: usize| self.servers[number].is_closed() || self.emptying == Some(number);
        let all_rows = self.rows.iter().map(|(row, server)| (*row, *server));
        let all_rows = all_rows.chain([(RowMatch::DEFAULT, self.default)]);
        let leaving: Vec<_> = all_rows.filter(|(_, server)| closed(usize::from(*server))).collect();
        let servers = self.servers.iter().enumerate().map(|(number, server)| Server {
            usable: server.used && !closed(number),
            closed: closed(number),
            cores: server.cores,
            load: if server.used { server.load } else { 0.0 },
            limit: server.cores * if server.used { server.limit } else { learnt },
            sheds: server.sheds,
        });
        let rows_left = self.config.table.saturating_sub(self.rows.len());
        let row_of = |class| self.steer(class);
        let fits = Planner::new(&self.config, servers.collect(), classes, row_of, rows_left).run(leaving, moves);
        if self.emptying.is_some() && (moves.is_empty() || !fits) {
            // Its rows are too large for the room that the others have.
            moves.clear();
            self.emptying = None;
        }
        for planned in moves.iter() {
            let from = &mut self.servers[usize::from(planned.from)];
            // Until it is measured again, a load is what the plan made it.
            from.load = (from.load - planned.load).max(0.0);
            if from.is_closed() {
                from.used = false;
                self.is_new |= from.lost;
            }
            let to = &mut self.servers[usize::from(planned.to)];
            to.load += planned.load;
            if !std::mem::replace(&mut to.used, true) {
                to.limit = learnt;
                to.load = planned.load;
            }
        }
        self.moving.clone_from(moves);
    }

    /// Reports that the planned rows are in force. Their packets go to the new servers.
    pub fn rows_written(&mut self) {
        for planned in std::mem::take(&mut self.moving) {
            if planned.row == RowMatch::DEFAULT {
                self.default = planned.to;
            } else {
                self.rows.insert(planned.row, planned.to);
            }
            self.moving.push(planned);
        }
        self.remove_redundant();
    }

    /// Removes rows that say the same as the next shorter one.
    fn remove_redundant(&mut self) {
        let mut rows: Vec<(RowMatch, ServerNumber)> = self.rows.iter().map(|(row, server)| (*row, *server)).collect();
        // Shorter rows stand behind longer ones that they cover.
        rows.sort_unstable_by_key(|(row, _)| (row.length(), *row));
        for number in 0..rows.len() {
            let (row, server) = rows[number];
            let covering = rows[..number].iter().rev();
            let next = covering
                .filter(|(other, _)| other.covers(row) && self.rows.contains_key(other))
                .map(|(_, server)| *server)
                .next();
            if next.unwrap_or(self.default) == server {
                self.rows.remove(&row);
            }
        }
        let bits = self.rows.keys().map(|row| 1_u128 << row.length());
        self.lengths = bits.fold(0, |lengths, bit| lengths | bit);
    }

    /// Reports that a move is complete: the old server has no packet of the row's, and the new one has the flows'
    /// state.
    pub fn moved(&mut self, row: RowMatch) {
        self.moving.retain(|moving| moving.row != row);
        self.settles = true;
        if self.moving.is_empty()
            && let Some(emptied) = self.emptying.take()
        {
            (self.servers[emptied].used, self.servers[emptied].load) = (false, 0.0);
            self.spare.emptied();
        }
    }
}

impl ServerState {
    /// Server that is not in use.
    fn new(cores: u16) -> ServerState {
        ServerState {
            cores: f64::from(cores),
            used: false,
            missing: 0,
            lost: false,
            membership: Membership::Open,
            rebases: false,
            limit: FIRST_LIMIT,
            hold: 0,
            next_hold: *HOLD.start(),
            begin: ServerCounters::default(),
            last: ServerCounters::default(),
            excess: 0.0,
            packet: 0.0,
            load: 0.0,
            sheds: false,
        }
    }

    /// Counts missing reports. A server that reports again is as a new one.
    fn note(&mut self, has_reported: bool) {
        self.missing = if has_reported {
            0
        } else {
            self.missing.saturating_add(1)
        };
        self.lost = self.missing >= MISSING || self.membership == Membership::Lost;
    }

    /// Takes counters of a time `elapsed` since the period began. Returns `true` if the server is overloaded. Its mean
    /// load counts if `judged`.
    fn measure(&mut self, counters: &ServerCounters, elapsed: Nanos, judged: bool) -> bool {
        let step = counters.since(&self.last);
        let whole = counters.since(&self.begin);
        self.last = *counters;
        self.excess = (self.excess + step.late as f64 - TOLERATED * step.offered as f64).max(0.0);
        if whole.processed > 0 {
            self.packet = whole.busy.as_secs_f64() / whole.processed as f64;
        }
        let rate = whole.offered as f64 / elapsed.as_secs_f64();
        self.load = rate * self.packet;
        let full = self.load / self.cores;
        let is_late = whole.late >= FEW_LATE && self.excess > CREDIT * rate;
        if is_late && full <= self.limit {
            let share = whole.late as f64 / whole.offered.max(1) as f64;
            let less = if share > MANY { MUCH_LESS } else { LESS };
            self.limit = (full * less).max(LIMITS.start().min(self.limit));
            self.hold = self.next_hold;
            self.next_hold = (2 * self.next_hold).min(*HOLD.end());
            // The next excess is another failure.
            self.excess = 0.0;
        }
        let unsure = UNSURE.as_secs_f64() / elapsed.as_secs_f64();
        is_late || judged && full > self.limit * (1.0 + unsure)
    }

    /// Lets the limit grow after a period within it.
    fn grow(&mut self, most: f64) {
        if self.hold > 0 {
            self.hold -= 1;
        } else if self.limit < most {
            self.limit = (self.limit * MORE).min(most);
            self.hold = *HOLD.start();
        } else {
            self.next_hold = *HOLD.start();
        }
    }
}

#[cfg(test)]
mod tests;
