//! Packets of new prefixes: they wait for their rows, and go out behind them.

use super::chain::Index;
use super::{Mark, Steering, Step, WaitingPacket};
use crate::ingress::openflow::PacketIn;
use crate::ingress::rows::{parts_of, rules_of_row};
use crate::ingress::rule::Action;
use crate::ingress::switch::SwitchCommand;
use tailwater_net::parse::{Network, parse};

/// Packets, and bytes of them, that wait for their rows at most. Others are dropped.
pub(super) const WAITING_PACKETS: usize = 1024;
const WAITING_BYTES: usize = 1 << 20;

impl Steering {
    /// Takes a packet that a rule sent here: its prefix is new.
    pub(super) fn packet_in(&mut self, packet: PacketIn) {
        let PacketIn { cookie, frame, .. } = packet;
        let Some(Mark::Row { chain: identity, .. }) = Mark::of(cookie, self.config.owner) else {
            return;
        };
        let headers = parse(&frame).ok();
        let Some(headers) = headers.filter(|headers| headers.network != Network::NotIp) else {
            self.dropped += 1;
            return;
        };
        let destination = headers.key.destination();
        let room = self.room();
        let chain = self.chains.values_mut().find(|chain| chain.identity == identity);
        let Some(chain) = chain else { return };
        let parts = parts_of(&chain.route.matching);
        // Rows are counted with the most rules that they can take until the next write.
        chain.set_room(room / parts);
        let Some((server, new)) = chain.steer(destination) else {
            self.dropped += 1;
            return;
        };
        if let Some(row) = new {
            self.writing.is_due = true;
            self.writing.unwritten += rules_of_row(&chain.route.matching, row);
        }
        let is_written = !self.writing.is_due && self.writing.in_flight.is_none();
        if is_written {
            return self.send_packet(server, frame);
        }
        let bytes = frame.len();
        if self.waiting.len() >= WAITING_PACKETS || self.waiting_bytes + bytes > WAITING_BYTES {
            self.dropped += 1;
            return;
        }
        self.waiting_bytes += bytes;
        let write = self.writing.covering_id();
        self.waiting.push_back(WaitingPacket {
            server,
            cookie,
            frame,
            write,
        });
    }

    pub(super) fn send_packet(&mut self, server: Index, frame: Vec<u8>) {
        let state = &self.servers[server];
        if let Some(port) = state.port {
            let mac = state.server.mac;
            let action = Action::Server { mac, port };
            self.steps
                .push_back(Step::Switch(SwitchCommand::PacketOut { action, frame }));
        }
    }
}
