//! Packet inspection: connection tracking, stream reassembly and rule evaluation, packet by packet.

use crate::alert::Alert;
use crate::connection::{BLOCKED, Connection, ENDED, ESTABLISHED, LOST, NUMBERED, PASSED, SEEN, STARTED};
use crate::detect::DNS_PORT;
use crate::dns;
use crate::follow::{Buffers, Stream};
use crate::packet::{Input, Subject};
use crate::phases::DEAD;
use crate::rule::{Anomalies, App, Direction};
use crate::rule_evaluator::{PacketOutcome, RuleEvaluator, counter, payload_unit};
use crate::ruleset::RuleSet;
use crate::signature::Hook;
use crate::slots::{Slots, split};
use crate::stream::Side;
use crate::threshold::Thresholds;
use crate::tunnels::InnerConnections;
use crate::unit::Unit;
use bytemuck::Zeroable;
use std::sync::Arc;
use tailwater_net::checksum::{Checksum, verify_transport};
use tailwater_net::parse::{Fragment, Network};
use tailwater_net::protocol;
use tailwater_net::tcp::TcpFlags;
use tailwater_net::tunnel::{self, MalformedTunnel};

pub use crate::settings::Settings;

const FIN: u8 = TcpFlags::FIN.0;
const SYN: u8 = TcpFlags::SYN.0;
const RST: u8 = TcpFlags::RST.0;
const ACK: u8 = TcpFlags::ACK.0;

/// Verdict on a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Forward.
    Pass,
    /// Drop, with the reason.
    Drop(Reason),
}

/// Drop reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Reason {
    /// A rule with action `drop` matched.
    Dropped,
    /// A rule with action `reject` matched.
    Rejected,
    /// A rule dropped an earlier packet of the connection.
    FlowBlocked,
    /// The packet cannot be inspected.
    Overflow,
}

/// Names of the drop reasons, in order.
pub const DROP_REASONS: &[&str] = &["dropped", "rejected", "flow-blocked", "overflow"];

/// Names of the counters of packets and streams.
const PLAIN_COUNTERS: [&str; counter::HTTP_ANOMALIES] = [
    "alerts",
    "alerts-lost",
    "budget-spent",
    "flowbits-full",
    "pending-full",
    "no-room",
    "gap",
    "overlap-conflict",
    "checksum-wrong",
    "fragments",
    "http-unclear",
    "tunnel-unclear",
    "http2-malformed",
    "http2-overflow",
];

/// Names of the counters: those of packets and streams, and one for each anomaly of HTTP messages.
pub const COUNTERS: [&str; counter::COUNT] = {
    let mut names = [""; counter::COUNT];
    let mut i = 0;
    while i < counter::COUNT {
        names[i] = match i.checked_sub(counter::HTTP_ANOMALIES) {
            None => PLAIN_COUNTERS[i],
            Some(anomaly) => Anomalies::NAMES[anomaly],
        };
        i += 1;
    }
    names
};

/// Inspects a worker's packets. Packets that match no rule cause no allocation.
#[derive(Debug)]
pub struct Inspector {
    evaluator: RuleEvaluator,
    buffers: Buffers,
    inner: InnerConnections,
    settings: Settings,
}

impl Inspector {
    /// Creates a worker's inspector with the current rule set and its version number.
    pub fn new((version, rules): (u32, Arc<RuleSet>), thresholds: Arc<Thresholds>, settings: Settings) -> Inspector {
        // Room for a message's buffers in lower case: its head several times, its body twice.
        let room = 8 * settings.window + settings.decoded + (1 << 16);
        Inspector {
            evaluator: RuleEvaluator::new((version, rules), thresholds, room),
            buffers: Buffers::new(&settings),
            inner: InnerConnections::new(),
            settings,
        }
    }

    /// Switches to a new rule set.
    pub fn renew(&mut self, version: u32, rules: Arc<RuleSet>) {
        self.evaluator.renew(version, rules);
    }

    /// Returns the version number of the current rule set.
    #[inline]
    pub fn version(&self) -> u32 {
        self.evaluator.version
    }

    /// Returns the alerts of the last packet.
    #[inline]
    pub fn alerts(&self) -> &[Alert] {
        &self.evaluator.alerts
    }

    /// Returns the counters, in the order of [`COUNTERS`].
    pub fn counters(&self) -> &[u64] {
        &self.evaluator.counters
    }

    /// Inspects a packet, and those inside it if it belongs to a tunnel.
    pub fn packet(&mut self, input: &Input<'_>, connection: &mut Connection, slots: &mut impl Slots) -> Verdict {
        self.evaluator.begin();
        self.packet_of(input, connection, slots);
        if tunnel::may_carry(input.headers) {
            self.tunnel(input, slots);
        }
        self.verdict()
    }

    /// Inspects the packets inside one that is not IP itself: in MPLS or PPPoE.
    pub fn non_ip(&mut self, input: &Input<'_>, slots: &mut impl Slots) -> Verdict {
        self.evaluator.begin();
        self.tunnel(input, slots);
        self.verdict()
    }

    /// Inspects the packets inside a tunnel's packet.
    #[cold]
    fn tunnel(&mut self, input: &Input<'_>, slots: &mut impl Slots) {
        let mut outer = *input.headers;
        for _ in 0..tunnel::MAX_TUNNELS {
            let headers = match tunnel::inner(input.frame, &outer) {
                Ok(Some(headers)) => headers,
                Ok(None) => return,
                Err(MalformedTunnel) => return self.evaluator.unclear(counter::TUNNEL),
            };
            if headers.network != Network::NotIp {
                let (key, reversed) = headers.key.of_connection();
                let (index, evicted) = self.inner.find(key, input.arrival);
                if let Some(mut evicted) = evicted {
                    Inspector::ended(&mut evicted, slots);
                }
                let mut connection = *self.inner.at(index);
                let input = Input {
                    headers: &headers,
                    reversed,
                    ..*input
                };
                self.packet_of(&input, &mut connection, slots);
                *self.inner.at(index) = connection;
            }
            outer = headers;
        }
    }

    /// Inspects a packet, without those inside it.
    fn packet_of(&mut self, input: &Input<'_>, connection: &mut Connection, slots: &mut impl Slots) {
        let headers = input.headers;
        let tcp = headers.key.protocol() == protocol::TCP && headers.fragment == Fragment::Whole;
        match input.segment() {
            Some(segment) if tcp => self.segment(input, segment, connection, slots),
            _ => self.datagram(input, connection),
        }
    }

    /// Handles the end of a connection: releases its streams' memory.
    pub fn ended(connection: &mut Connection, slots: &mut impl Slots) {
        if let Some(lease) = connection.lease()
            && slots.open(lease)
        {
            slots.release();
        }
        connection.set_lease(None);
    }

    /// Ends all connections inside tunnels, which the caller does not know.
    pub fn end_inner(&mut self, slots: &mut impl Slots) {
        self.inner
            .iter_mut()
            .for_each(|connection| Inspector::ended(connection, slots));
    }

    fn verdict(&self) -> Verdict {
        match self.evaluator.fate {
            PacketOutcome::Reject => Verdict::Drop(Reason::Rejected),
            PacketOutcome::Drop => Verdict::Drop(Reason::Dropped),
            PacketOutcome::Blocked => Verdict::Drop(Reason::FlowBlocked),
            PacketOutcome::Unclear if self.settings.strict && self.settings.drops => Verdict::Drop(Reason::Overflow),
            PacketOutcome::Unclear | PacketOutcome::Pass => Verdict::Pass,
        }
    }

    fn subject<'a>(&self, input: &'a Input<'a>, direction: Direction) -> Subject<'a> {
        Subject {
            input,
            key: input.headers.key,
            direction,
            drops: self.settings.drops,
        }
    }

    /// Evaluates the rules on a direction's first packet.
    #[inline]
    fn first(&mut self, subject: &Subject<'_>, connection: &mut Connection) {
        if !connection.has_for(STARTED, subject.direction) {
            connection.set_for(STARTED, subject.direction);
            self.evaluator
                .evaluate(Hook::FlowStart, &Unit::new(), subject, connection);
        }
    }

    /// Evaluates the rules on single packets.
    fn inspect_packet(&mut self, place: Hook, subject: &Subject<'_>, connection: &mut Connection) {
        let payload = subject.input.payload();
        if payload.is_empty() && !self.evaluator.rules.has_rules_without_payload(place, subject.flags()) {
            return;
        }
        let mut unit = Unit::new();
        if !payload.is_empty() {
            unit = payload_unit(payload);
        }
        self.evaluator.evaluate(place, &unit, subject, connection);
    }

    /// Inspects a packet that is not a whole TCP segment.
    fn datagram(&mut self, input: &Input<'_>, connection: &mut Connection) {
        if !connection.has(SEEN) {
            connection.begin(input.reversed, Direction::ToServer);
        }
        let direction = connection.direction(input.reversed);
        let subject = self.subject(input, direction);
        if direction == Direction::ToClient {
            connection.set(ESTABLISHED, true);
        }
        self.first(&subject, connection);
        let headers = input.headers;
        if headers.fragment != Fragment::Whole {
            // Fragments are not reassembled.
            self.evaluator.unclear(counter::FRAGMENT);
            return self.inspect_packet(Hook::PacketOther, &subject, connection);
        }
        match headers.key.protocol() {
            protocol::UDP => {
                let payload = input.payload();
                let asks = headers.key.destination_port() == DNS_PORT;
                let answers = headers.key.source_port() == DNS_PORT;
                let dns = (asks || answers) && dns::is_message(payload);
                if dns {
                    connection.set_app(Some(App::Dns));
                    self.evaluator.detected(&subject, connection);
                }
                self.inspect_packet(Hook::PacketUdp, &subject, connection);
                if dns && asks && !dns::is_answer(payload) {
                    let evaluator = &mut self.evaluator;
                    self.buffers.questions(payload, evaluator, &subject, connection);
                }
            }
            protocol::ICMP | protocol::ICMPV6 => {
                self.inspect_packet(Hook::PacketIcmp, &subject, connection);
            }
            _ => self.inspect_packet(Hook::PacketOther, &subject, connection),
        }
    }

    /// Inspects a TCP segment.
    fn segment(
        &mut self,
        input: &Input<'_>,
        (sequence, acknowledged, flags): (u32, u32, u8),
        connection: &mut Connection,
        slots: &mut impl Slots,
    ) {
        let payload = input.payload();
        let counts = !payload.is_empty() || flags & (SYN | FIN | RST) != 0;
        if self.settings.checksums && counts && verify_transport(input.frame, input.headers) == Checksum::Wrong {
            // The receiver discards it.
            self.evaluator.counters[counter::CHECKSUM] += 1;
            return;
        }
        if flags & SYN != 0 {
            self.opening(input, (sequence, acknowledged, flags), connection, slots);
        } else if !connection.has(SEEN) {
            connection.begin(input.reversed, Direction::ToServer);
        }
        if connection.has(BLOCKED) {
            self.evaluator.fate = self.evaluator.fate.max(PacketOutcome::Blocked);
            return;
        }
        if connection.has(PASSED) {
            return;
        }
        let direction = connection.direction(input.reversed);
        let subject = self.subject(input, direction);
        let size = &mut connection.sizes[direction.index()];
        *size = size.saturating_add(payload.len() as u32);
        if flags & SYN == 0 && !connection.has(ESTABLISHED) {
            // Either the handshake's last segment, or a connection that started earlier.
            let opened = connection.has_for(NUMBERED, Direction::ToServer);
            let answered = connection.has_for(NUMBERED, Direction::ToClient);
            let last = direction == Direction::ToServer && flags & ACK != 0;
            connection.set(ESTABLISHED, opened == answered && (last || !opened));
        }
        self.first(&subject, connection);
        self.inspect_packet(Hook::PacketTcp, &subject, connection);
        if !connection.has(LOST) && self.evaluator.rules.has_stream_rules() {
            // Data on a SYN starts one sequence number later (RFC 7413).
            let sequence = sequence.wrapping_add(u32::from(flags & SYN != 0));
            let segment = (sequence, acknowledged, flags);
            self.stream(&subject, segment, connection, slots);
        }
    }

    /// Handles a SYN, which starts or restarts a connection.
    fn opening(
        &mut self,
        input: &Input<'_>,
        (sequence, acknowledged, flags): (u32, u32, u8),
        connection: &mut Connection,
        slots: &mut impl Slots,
    ) {
        let first = sequence.wrapping_add(1);
        if flags & ACK == 0 {
            let client = connection.has(SEEN) && connection.direction(input.reversed) == Direction::ToServer;
            let again = client && connection.has_for(NUMBERED, Direction::ToServer) && connection.firsts[0] == first;
            // A receiver does not accept a SYN within a connection (RFC 5961 §4): only the server's SYN-ACK proves a
            // restart.
            let live = connection.has(ESTABLISHED)
                && !connection.has_for(ENDED, Direction::ToServer)
                && !connection.has_for(ENDED, Direction::ToClient)
                && !connection.has(BLOCKED | PASSED | LOST);
            if again || live {
                return;
            }
            Inspector::ended(connection, slots);
            connection.begin(input.reversed, Direction::ToServer);
            connection.firsts[0] = first;
            connection.set_for(NUMBERED, Direction::ToServer);
            return;
        }
        let again = connection.has_for(NUMBERED, Direction::ToClient);
        let opened = connection.has_for(NUMBERED, Direction::ToServer);
        // Data on the SYN that the server accepts (RFC 7413).
        let accepted = acknowledged.wrapping_sub(connection.firsts[0]);
        let with_data = opened && !again && accepted > 0 && accepted <= connection.sizes[0];
        let known = connection.has(SEEN)
            && connection.direction(input.reversed) == Direction::ToClient
            && (!opened || accepted == 0 || with_data);
        if known && with_data {
            connection.firsts[1] = first;
            connection.set_for(NUMBERED, Direction::ToClient);
            connection.set(ESTABLISHED, true);
            return;
        }
        if known && again && connection.firsts[1] == first {
            return;
        }
        if !known || again {
            // The server has accepted a connection other than the tracked one.
            let blocked = connection.has(BLOCKED);
            Inspector::ended(connection, slots);
            connection.begin(input.reversed, Direction::ToClient);
            connection.set(BLOCKED, blocked);
        }
        connection.firsts = [acknowledged, first];
        connection.set_for(NUMBERED, Direction::ToServer);
        connection.set_for(NUMBERED, Direction::ToClient);
    }

    /// Adds a segment to its stream and inspects the result.
    fn stream(
        &mut self,
        subject: &Subject<'_>,
        (sequence, acknowledged, flags): (u32, u32, u8),
        connection: &mut Connection,
        slots: &mut impl Slots,
    ) {
        let (input, direction) = (subject.input, subject.direction);
        let payload = input.payload();
        match connection.lease() {
            Some(lease) => {
                if !slots.open(lease) {
                    // The connection was idle for long, and its memory was reclaimed.
                    connection.set_lease(None);
                    return self.lost(connection);
                }
            }
            None if payload.is_empty() || connection.has_for(ENDED, direction) => return,
            None => {
                let Some(lease) = slots.take(input.arrival) else {
                    return self.evaluator.unclear(counter::OVERFLOW);
                };
                connection.set_lease(Some(lease));
                let Some(bytes) = slots.bytes() else {
                    return;
                };
                let (sides, _) = split(bytes);
                *sides = [Side::zeroed(); 2];
                for way in [Direction::ToServer, Direction::ToClient] {
                    if connection.has_for(NUMBERED, way) {
                        sides[way.index()].start(connection.firsts[way.index()]);
                    }
                }
            }
        }
        let Some(bytes) = slots.bytes() else {
            return;
        };
        let (sides, windows) = split(bytes);
        let [to_server, to_client] = sides;
        let [server_window, client_window] = windows;
        let (mut this, mut other) = match direction {
            Direction::ToServer => ((to_server, server_window), (to_client, client_window)),
            Direction::ToClient => ((to_client, client_window), (to_server, server_window)),
        };
        if flags & ACK != 0 && other.0.bytes.is_started() && other.0.skip_to(other.1, acknowledged) {
            self.evaluator.counters[counter::GAP] += 1;
            let mut stream = Stream::new(&mut other, self.settings.depth);
            stream.gap();
            let opposite = subject.opposite();
            self.buffers
                .follow(&mut stream, &mut self.evaluator, &opposite, connection);
        }
        if !this.0.bytes.is_started() && !payload.is_empty() {
            this.0.start(sequence);
        }
        if flags & SYN == 0 {
            // Data on the SYN, which waited for the handshake.
            let mut stream = Stream::new(&mut other, self.settings.depth);
            let opposite = subject.opposite();
            self.buffers
                .follow(&mut stream, &mut self.evaluator, &opposite, connection);
        } else if flags & ACK != 0 && acknowledged == connection.firsts[0] && other.0.bytes.is_started() {
            // The server has not accepted the data on the SYN, and the client sends it again.
            other.0.start(acknowledged);
        }
        let mut stream = Stream::new(&mut this, self.settings.depth);
        if flags & SYN != 0 && !payload.is_empty() {
            stream.side.bytes.insert(stream.window, sequence, payload);
        } else if !payload.is_empty() {
            self.add(&mut stream, sequence, subject, connection);
        } else {
            self.buffers
                .follow(&mut stream, &mut self.evaluator, subject, connection);
        }
        if flags & FIN != 0 && stream.side.bytes.is_started() {
            stream.side.bytes.fin(sequence.wrapping_add(payload.len() as u32));
        }
        let exact = !stream.side.bytes.is_started() || sequence == stream.side.bytes.next();
        if stream.side.bytes.is_over() && !connection.has_for(ENDED, direction) {
            connection.set_for(ENDED, direction);
            self.buffers
                .finish(&mut stream, &mut self.evaluator, subject, connection);
        }
        let mut over = stream.side.message.phase == DEAD;
        if flags & RST != 0 && exact {
            // The receiver accepts the RST (RFC 5961 §3): both directions have ended.
            self.buffers
                .finish(&mut stream, &mut self.evaluator, subject, connection);
            let mut stream = Stream::new(&mut other, self.settings.depth);
            let opposite = subject.opposite();
            self.buffers
                .finish(&mut stream, &mut self.evaluator, &opposite, connection);
            connection.set_for(ENDED, Direction::ToServer);
            connection.set_for(ENDED, Direction::ToClient);
        }
        over &= other.0.message.phase == DEAD;
        let ended = connection.has_for(ENDED, Direction::ToServer) && connection.has_for(ENDED, Direction::ToClient);
        if ended || over {
            slots.release();
            connection.set_lease(None);
            connection.set_for(ENDED, Direction::ToServer);
            connection.set_for(ENDED, Direction::ToClient);
        } else {
            slots.close(input.arrival);
        }
    }

    /// Inserts a segment's bytes into the stream, and inspects the new ones.
    fn add(&mut self, stream: &mut Stream<'_>, mut sequence: u32, subject: &Subject<'_>, connection: &mut Connection) {
        let mut data = subject.input.payload();
        if stream.side.message.phase == DEAD {
            return;
        }
        loop {
            let inserted = stream.side.bytes.insert(stream.window, sequence, data);
            if inserted.conflict {
                self.evaluator.unclear(counter::CONFLICT);
            }
            self.buffers.follow(stream, &mut self.evaluator, subject, connection);
            data = &data[inserted.taken..];
            sequence = sequence.wrapping_add(inserted.taken as u32);
            if data.is_empty() || stream.side.message.phase == DEAD {
                return;
            }
            if !self.buffers.make_room(stream, &mut self.evaluator, subject, connection) {
                return self.evaluator.unclear(counter::OVERFLOW);
            }
        }
    }

    /// Marks the streams as lost: they can no longer be followed.
    fn lost(&mut self, connection: &mut Connection) {
        connection.set(LOST, true);
        self.evaluator.unclear(counter::OVERFLOW);
    }
}
