//! Choice of the rows to move: the fewest that relieve the servers with too much.

use super::row::{FlowClass, RowMatch};
use super::{IngressConfig, ServerNumber};

/// Most rows moved at a time. Half of the excess or more goes with each, unless single flow classes are larger.
const MOST_MOVES: usize = 64;
/// Part of the wanted amount below which a move is not worth its cost.
const LEAST: f64 = 0.05;
/// Multiple of the wanted amount up to which a row is preferred to two smaller ones.
const ABOVE: f64 = 1.1;

/// Load of a class of flows.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ClassLoad {
    /// The class.
    pub class: FlowClass,
    /// Its packets, relative to those of other classes.
    pub packets: u32,
}

/// Row to write, for a server that others' flows move to.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RowMove {
    /// Match of the row.
    pub row: RowMatch,
    /// Server that its flows leave.
    pub from: ServerNumber,
    /// Their next server.
    pub to: ServerNumber,
    /// Load that moves, in cores.
    pub load: f64,
}

/// Server as the plan sees it. All loads are in cores.
#[derive(Clone, Copy, Debug)]
pub(super) struct Server {
    /// `true` if it can have rows: it is in use, or is to be.
    pub usable: bool,
    /// `true` if all its rows are to leave: it is lost, or to be emptied. Then it is not usable.
    pub closed: bool,
    pub cores: f64,
    pub load: f64,
    /// Load up to which it keeps the objective.
    pub limit: f64,
    /// `true` if it is overloaded.
    pub sheds: bool,
}

/// A class with its row and server.
#[derive(Clone, Copy, Debug)]
struct Placed {
    row: RowMatch,
    server: ServerNumber,
    class: FlowClass,
    load: f64,
    /// A move of this plan has it.
    has_moved: bool,
}

/// Plan in progress.
pub(super) struct Planner<'a> {
    config: &'a IngressConfig,
    servers: Vec<Server>,
    classes: Vec<Placed>,
    /// Rows that can still be added.
    rows_left: usize,
}

/// Candidate for a move: a row, and how far its load is from the wanted one.
#[derive(Clone, Copy, Debug)]
struct Choice {
    row: RowMatch,
    load: f64,
    distance: f64,
}

impl<'a> Planner<'a> {
    /// Begins a plan. `row_of` returns the row and server of a class.
    pub fn new(
        config: &'a IngressConfig,
        servers: Vec<Server>,
        classes: &[ClassLoad],
        row_of: impl Fn(FlowClass) -> (RowMatch, ServerNumber),
        rows_left: usize,
    ) -> Planner<'a> {
        let mut packets = vec![0.0; servers.len()];
        let placed = classes.iter().filter(|class| class.packets > 0).map(|class| {
            let (row, server) = row_of(class.class);
            packets[usize::from(server)] += f64::from(class.packets);
            Placed {
                row,
                server,
                class: class.class,
                load: f64::from(class.packets),
                has_moved: false,
            }
        });
        let mut classes: Vec<Placed> = placed.collect();
        for placed in &mut classes {
            let server = usize::from(placed.server);
            placed.load *= servers[server].load / packets[server];
        }
        classes.sort_unstable_by_key(|placed| (placed.server, placed.row, placed.class));
        Planner {
            config,
            servers,
            classes,
            rows_left,
        }
    }

    /// Appends the moves of all rows in `leaving`, those of closed servers, and the moves that relieve servers with
    /// too much. Returns `true` if no server that got rows exceeds its limit.
    pub fn run(mut self, leaving: Vec<(RowMatch, ServerNumber)>, moves: &mut Vec<RowMove>) -> bool {
        let level = self.level(!leaving.is_empty());
        for from in 0..self.servers.len() {
            if leaving.iter().any(|(_, server)| usize::from(*server) == from) {
                self.close(from, level, &leaving, moves);
            }
        }
        for from in 0..self.servers.len() {
            if self.servers[from].sheds && !self.servers[from].closed {
                self.relieve(from, level, moves);
            }
        }
        moves.iter().all(|planned| {
            let server = &self.servers[usize::from(planned.to)];
            server.load <= server.limit
        })
    }

    /// Takes as many unused servers as the load requires, and one if there is none and rows are `leaving` others.
    /// Returns the share of the cores that it fills if all servers in use are equally full.
    fn level(&mut self, leaving: bool) -> f64 {
        let load: f64 = self.servers.iter().map(|server| server.load).sum();
        let sum = |servers: &[Server], of: fn(&Server) -> f64| -> f64 {
            servers.iter().filter(|server| server.usable).map(of).sum()
        };
        let is_short = |limits: f64| limits < load || leaving && limits == 0.0;
        while is_short(sum(&self.servers, |server| server.limit)) {
            let unused = |server: &Server| !server.usable && !server.closed;
            let Some(next) = self.servers.iter().position(unused) else {
                break;
            };
            self.servers[next].usable = true;
        }
        load / sum(&self.servers, |server| server.cores).max(f64::MIN_POSITIVE)
    }

    /// Moves all rows off a closed server.
    fn close(&mut self, from: usize, level: f64, leaving: &[(RowMatch, ServerNumber)], moves: &mut Vec<RowMove>) {
        (self.servers[from].limit, self.servers[from].cores) = (0.0, 0.0);
        let before = moves.len();
        // The load goes to the servers with room for it, in parts where it must.
        self.relieve(from, level, moves);
        let has_moved = |row: RowMatch| moves[before..].iter().any(|planned| planned.row == row);
        let mut left: Vec<(f64, RowMatch)> = Vec::new();
        for (row, server) in leaving {
            if usize::from(*server) != from || has_moved(*row) {
                continue;
            }
            let stay = |placed: &&Placed| usize::from(placed.server) == from && placed.row == *row;
            let load: f64 = self.classes.iter().filter(stay).map(|placed| placed.load).sum();
            left.push((load, *row));
        }
        // Then the rest by whole rows, those without packets, too.
        left.sort_unstable_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
        for (load, row) in left {
            let Some(to) = self.most_room(from, level) else { return };
            for placed in &mut self.classes {
                if usize::from(placed.server) == from && placed.row == row {
                    (placed.server, placed.has_moved) = (to as ServerNumber, true);
                }
            }
            self.servers[from].load -= load;
            self.servers[to].load += load;
            moves.push(RowMove {
                row,
                from: from as ServerNumber,
                to: to as ServerNumber,
                load,
            });
        }
        self.classes
            .sort_unstable_by_key(|placed| (placed.server, placed.row, placed.class));
    }

    /// Returns the usable server with most room, other than `from`.
    fn most_room(&self, from: usize, level: f64) -> Option<usize> {
        let room = |server: &Server| level * server.cores - server.load;
        let others = (0..self.servers.len()).filter(|other| *other != from && self.servers[*other].usable);
        others.max_by(|a, b| {
            let (x, y) = (room(&self.servers[*a]), room(&self.servers[*b]));
            x.total_cmp(&y).then(b.cmp(a))
        })
    }

    /// Moves rows off a server until it is within its limit, or until no move helps.
    fn relieve(&mut self, from: usize, level: f64, moves: &mut Vec<RowMove>) {
        while moves.len() < MOST_MOVES {
            let Server { load, limit, cores, .. } = self.servers[from];
            // Where all are full, all are to be equally full. Else moves go on until it is about as full as others:
            // that is a row more at most, and leaves room.
            let mean = level * cores;
            let target = if mean > limit { mean } else { limit.min(mean * ABOVE) };
            if load - target <= LEAST * load && load <= limit.max(target) {
                return;
            }
            let Some(to) = self.most_room(from, level) else { return };
            let other = self.servers[to];
            let wanted = (load - mean).min(level * other.cores - other.load);
            let all = match self.servers[from].closed {
                // The sum of its classes' loads is rounded.
                true => load * ABOVE,
                false => load - limit.min(mean) / 2.0,
            };
            let most = (other.limit.max(level * other.cores * ABOVE) - other.load).min(all);
            if wanted <= LEAST * load {
                return;
            }
            let Some(choice) = self.choose(from, wanted, most) else {
                return;
            };
            let (row, to_number) = (choice.row, to as ServerNumber);
            let mut is_new = false;
            for placed in &mut self.classes {
                if usize::from(placed.server) == from && placed.row.covers(row) && row.matches(placed.class) {
                    is_new |= placed.row != row;
                    (placed.row, placed.server, placed.has_moved) = (row, to_number, true);
                }
            }
            self.rows_left = self.rows_left.saturating_sub(usize::from(is_new));
            self.servers[from].load -= choice.load;
            self.servers[to].load += choice.load;
            self.classes
                .sort_unstable_by_key(|placed| (placed.server, placed.row, placed.class));
            moves.push(RowMove {
                row,
                from: from as ServerNumber,
                to: to_number,
                load: choice.load,
            });
        }
    }

    /// Returns the row on a server with the load closest to `wanted`, and at most `most`.
    fn choose(&self, from: usize, wanted: f64, most: f64) -> Option<Choice> {
        let begin = self.classes.partition_point(|placed| usize::from(placed.server) < from);
        let end = self
            .classes
            .partition_point(|placed| usize::from(placed.server) <= from);
        let mut best: Option<Choice> = None;
        for group in self.classes[begin..end].chunk_by(|a, b| a.row == b.row) {
            let row = group[0].row;
            // The old server of flows that move on is none of the two in the row.
            if group[0].has_moved {
                continue;
            }
            self.descend(group, row.length(), (wanted, most), &mut best);
        }
        best
    }

    /// Compares the row of `length` bits that matches all of `classes`, and all longer ones, with the best so far.
    fn descend(&self, classes: &[Placed], length: u8, (wanted, most): (f64, f64), best: &mut Option<Choice>) {
        let (Some(first), Some(last)) = (classes.first(), classes.last()) else {
            return;
        };
        let load: f64 = classes.iter().map(|placed| placed.load).sum();
        if load < LEAST * wanted {
            return;
        }
        let row = RowMatch::of(first.class, length);
        let distance = (load - wanted).abs();
        let has_row = row == first.row || self.rows_left > 0;
        if load <= most && has_row && best.is_none_or(|best| distance < best.distance) {
            *best = Some(Choice { row, load, distance });
        }
        // Prefixes of the length that is configured are split only where one is too large.
        let coarse = first.class.length_of(self.config.prefix_v4, self.config.prefix_v6);
        let common = match classes.len() {
            1 => 128,
            _ => first.class.common(last.class),
        };
        let is_divisible = common < first.class.longest(self.config.flow_hash);
        if !is_divisible || common >= coarse && load <= most {
            return;
        }
        let middle = classes.partition_point(|placed| placed.class.common(first.class) > common);
        for part in [&classes[..middle], &classes[middle..]] {
            self.descend(part, common + 1, (wanted, most), best);
        }
    }
}
