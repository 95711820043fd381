//! Servers that come and go, and rows that a new ingress finds in the switch.

use super::super::ingress::ServerNumber;
use super::membership::Membership;
use super::row::RowMatch;
use super::{FIRST_LIMIT, IngressBalancer, LIMITS, ServerState};
use tailwater_net::Nanos;

impl IngressBalancer {
    /// Adds a server with this number of cores, which is not in use, and returns its number.
    ///
    /// # Panics
    /// If there are 65,535 servers.
    pub fn add_server(&mut self, cores: u16) -> ServerNumber {
        let number = ServerNumber::try_from(self.servers.len()).expect("fewer than 65,536 servers");
        self.servers.push(ServerState {
            rebases: true,
            limit: FIRST_LIMIT.min(self.most_fill),
            ..ServerState::new(cores)
        });
        number
    }

    /// Sets a server's number of cores.
    ///
    /// # Panics
    /// If there is no such server.
    pub fn set_cores(&mut self, server: ServerNumber, cores: u16) {
        self.servers[usize::from(server)].cores = f64::from(cores);
    }

    /// Sets a server's part in the rack. Its rows leave by the next [`report`](Self::report) and plan.
    ///
    /// # Panics
    /// If there is no such server.
    pub fn set_membership(&mut self, server: ServerNumber, membership: Membership) {
        let state = &mut self.servers[usize::from(server)];
        state.rebases |= state.lost && membership != Membership::Lost;
        state.membership = membership;
        state.missing = 0;
        state.lost = membership == Membership::Lost;
    }

    /// Sets the number of usable rows of the switch's table. Rows beyond it stay.
    pub fn set_table(&mut self, rows: usize) {
        self.config.table = rows;
    }

    /// Sets the time that reports are behind: they show what was measured so long ago. Loads are judged that much later
    /// after moves, and over longer periods. Zero at first.
    pub fn set_report_delay(&mut self, delay: Nanos) {
        self.delay = delay;
    }

    /// Sets the share of its cores to which a server may be filled at most, up to 0.97 as at first.
    pub fn set_most_fill(&mut self, share: f64) {
        self.most_fill = share.clamp(0.0, *LIMITS.end());
        for server in &mut self.servers {
            server.limit = server.limit.min(self.most_fill);
        }
    }

    /// Takes over rows that the switch has, and the server of the default row. Loads are judged as after a start.
    ///
    /// # Panics
    /// If there is no such server, or a move is not complete.
    pub fn restore(
        &mut self,
        default: ServerNumber,
        rows: impl IntoIterator<Item = (RowMatch, ServerNumber)>,
        now: Nanos,
    ) {
        assert!(self.moving.is_empty(), "no move is in progress");
        self.default = default;
        self.rows = rows.into_iter().filter(|(row, _)| *row != RowMatch::DEFAULT).collect();
        for server in &mut self.servers {
            (server.used, server.rebases) = (false, true);
        }
        for server in self.rows.values().copied().chain([default]) {
            self.servers[usize::from(server)].used = true;
        }
        (self.since, self.is_new) = (now, true);
        self.remove_redundant();
    }

    /// Returns all rows, in no order, with the default row.
    pub fn table(&self) -> impl Iterator<Item = (RowMatch, ServerNumber)> {
        let rows = self.rows.iter().map(|(row, server)| (*row, *server));
        rows.chain([(RowMatch::DEFAULT, self.default)])
    }

    /// Reports that a planned row will not be written: its flows stay where they are.
    pub fn cancel(&mut self, row: RowMatch) {
        self.moving.retain(|moving| moving.row != row);
        self.emptying = None;
    }
}

impl ServerState {
    /// Returns `true` if all rows are to leave the server.
    pub(super) fn is_closed(&self) -> bool {
        self.lost || self.membership != Membership::Open
    }
}
