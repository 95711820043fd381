//! The `Firewall` network function.

use super::connection::{
    ANSWERED, BY_EXIT, Connection, DENIED, ECHO, FORBIDDEN, HALF_OPEN, Kind, LISTED, NONE, OPENING, OTHER, REJECTED,
    REVERSED, TCP, UDP, millis,
};
use super::explain::{explain, explain_message};
use super::fragment::FragmentPosition;
use super::options::Fragments;
use super::rule_set::RuleSet;
use super::rules::{Action, State};
use super::shared_tables::FirstFragment;
use super::table::{FirewallTable, is_icmp};
use super::tcp::{Phase, Segment, SegmentVerdict, Tcp};
use bytemuck::Zeroable;
use std::sync::Arc;
use tailwater_chain::batch::{Batch, MAX_BATCH, Packet, Verdict};
use tailwater_chain::function::{
    DurableState, Explanation, FlowEnds, FlowStates, FunctionProperties, Lifetimes, NetworkFunction, NewFlow,
    TracedPacket,
};
use tailwater_chain::live::Version;
use tailwater_chain::region::write_in_order;
use tailwater_net::icmp::{quoted, v4, v6};
use tailwater_net::parse::{Fragment, Headers, Network};
use tailwater_net::tcp::{TcpOption, TcpView};
use tailwater_net::{FlowKey, protocol};

/// Drop reason: an index into [`DROP_REASONS`].
type Reason = u8;
const RULES_DENY: Reason = 0;
const RULES_REJECT: Reason = 1;
const NO_CONNECTION: Reason = 2;
const TCP_FLAGS: Reason = 3;
const OUT_OF_WINDOW: Reason = 4;
const RESET_OUT_OF_WINDOW: Reason = 5;
const ICMP_UNRELATED: Reason = 6;
const HALF_OPEN_LIMIT: Reason = 7;
const FRAGMENT: Reason = 8;
const FRAGMENT_UNKNOWN: Reason = 9;
const FRAGMENT_OVERLAP: Reason = 10;

const DROP_REASONS: &[&str] = &[
    "denied",
    "rejected",
    "no-connection",
    "tcp-flags",
    "out-of-window",
    "reset-out-of-window",
    "icmp-unrelated",
    "half-open-limit",
    "fragment",
    "fragment-unknown",
    "fragment-overlap",
];

const COUNTERS: &[&str] = &[
    "opened",
    "related",
    "out-of-window-passed",
    "tolerated",
    "not-listed",
    "ended-by-rules",
];
const NOTED_OPENED: usize = 0;
const NOTED_RELATED: usize = 1;
const NOTED_OUT_OF_WINDOW: usize = 2;
const NOTED_TOLERATED: usize = 3;
const NOTED_NOT_LISTED: usize = 4;
const NOTED_ENDED: usize = 5;

/// Bytes of a frame that are available without its payload. An ICMP error's quoted header must end within them.
const HEAD: usize = 128;

/// Stateful firewall: allows or drops connections by rules between zones, and tracks their packets.
#[derive(Debug)]
pub struct Firewall {
    pub(super) table: Arc<FirewallTable>,
    cached_rules: Arc<Version<RuleSet>>,
    /// Action for each packet whose flow is new, by index in the batch.
    by_index: Box<[Action; MAX_BATCH]>,
    counters: [u64; COUNTERS.len()],
}

impl Firewall {
    /// Creates a worker's instance.
    pub fn new(table: Arc<FirewallTable>) -> Firewall {
        Firewall {
            cached_rules: table.rules.current(),
            table,
            by_index: Box::new([Action::Deny; MAX_BATCH]),
            counters: [0; COUNTERS.len()],
        }
    }
}

/// Returns the drop reason of an action that does not allow packets.
fn outcome(action: Action) -> Result<(), Reason> {
    match action {
        Action::Allow => Ok(()),
        Action::Deny => Err(RULES_DENY),
        Action::Reject => Err(RULES_REJECT),
    }
}

/// Extracts the fields of a TCP segment that the state machine uses.
#[inline]
fn segment_of(frame: &[u8], headers: &Headers) -> Option<Segment> {
    let view = TcpView::new(headers.transport(frame)).ok()?;
    let flags = view.flags();
    let shift = if flags.contains(tailwater_net::tcp::TcpFlags::SYN) {
        view.options().find_map(|option| match option {
            Ok(TcpOption::WindowScale(shift)) => Some(shift),
            _ => None,
        })
    } else {
        None
    };
    Some(Segment {
        flags,
        sequence: view.sequence(),
        acknowledgment: view.acknowledgment(),
        window: view.window(),
        length: u32::from(headers.end - headers.payload_offset),
        shift,
    })
}

/// Returns `true` for an echo request.
fn is_echo_request(frame: &[u8], headers: &Headers) -> bool {
    let kind = headers.transport(frame).first().copied();
    matches!(
        (headers.network, kind),
        (Network::V4, Some(v4::ECHO_REQUEST)) | (Network::V6, Some(v6::ECHO_REQUEST))
    )
}

/// Returns `true` for an ICMP message other than an echo request or reply.
fn is_message(frame: &[u8], headers: &Headers) -> bool {
    if !is_icmp(headers.key.protocol()) {
        return false;
    }
    let kind = headers.transport(frame).first().copied().unwrap_or(u8::MAX);
    match (headers.network, headers.key.protocol()) {
        (Network::V4, protocol::ICMP) => !v4::is_echo(kind),
        (Network::V6, protocol::ICMPV6) => !v6::is_echo(kind),
        // ICMP of the other IP version is treated as any other protocol.
        _ => false,
    }
}

/// Returns `true` for neighbour discovery and multicast listener messages (RFC 4861, 2710, 3810). Their hop limit shows
/// that they come from the link itself.
fn is_of_link(frame: &[u8], headers: &Headers) -> bool {
    let (datagram, message) = (headers.datagram(frame), headers.transport(frame));
    let (Some(hops), [kind, code, ..]) = (datagram.get(7), message) else {
        return false;
    };
    let discovery = matches!(kind, 133..=137) && *hops == 255 && *code == 0;
    let listeners = matches!(kind, 130..=132 | 143) && *hops == 1;
    headers.network == Network::V6 && (discovery || listeners)
}

impl Firewall {
    /// Decides on a packet that belongs to no connection: it is dropped, unless a rule about the state `invalid` allows
    /// it.
    fn invalid(&self, packet: &Packet, reason: Reason) -> Result<(), Reason> {
        let rules = &self.cached_rules.value;
        if !rules.is_about(State::Invalid) {
            return Err(reason);
        }
        let key = packet.headers.key;
        match rules.find(&key, packet.entry, State::Invalid) {
            Some(action) => outcome(action),
            None => Err(reason),
        }
    }

    /// Processes a packet of a connection, or the first packet of a new one.
    #[inline]
    fn connection(&mut self, packet: &Packet, frame: &[u8], state: &mut Connection) -> Result<(), Reason> {
        let now = millis(packet.arrival);
        if state.is_tracked() && state.is_over(now, &self.table.options.timeouts) {
            self.end(packet, state);
        }
        let side = state.side(packet.is_reversed());
        match state.kind {
            TCP => return self.segment(packet, frame, (state, side), now),
            UDP | OTHER => {}
            ECHO if is_echo_request(frame, &packet.headers) == (side == 0) => {}
            ECHO => return self.invalid(packet, NO_CONNECTION),
            // The rules have decided on this very packet, unless the process was killed in between.
            OPENING if side == 0 && state.has(BY_EXIT) == (packet.entry != 0) => {
                return self.open(packet, frame, state, Some(Action::Allow));
            }
            DENIED | REJECTED if side == 0 && !state.is_over(now, &self.table.options.timeouts) => {
                return Err(if state.kind == DENIED { RULES_DENY } else { RULES_REJECT });
            }
            _ => return self.open(packet, frame, state, None),
        }
        if state.has(FORBIDDEN[side]) {
            return Err(RULES_DENY);
        }
        state.last = now;
        state.flags |= [0, ANSWERED][side];
        Ok(())
    }

    /// Processes a segment of a TCP connection.
    #[inline]
    fn segment(
        &mut self,
        packet: &Packet,
        frame: &[u8],
        (state, side): (&mut Connection, usize),
        now: u32,
    ) -> Result<(), Reason> {
        let Some(segment) = segment_of(frame, &packet.headers) else {
            return Err(TCP_FLAGS);
        };
        let allowed = |state: &Connection| match state.has(FORBIDDEN[side]) {
            true => Err(RULES_DENY),
            false => Ok(()),
        };
        let reason = match state.tcp.take(side, &segment) {
            SegmentVerdict::Fits => {
                state.last = now;
                state.flags |= [0, ANSWERED][side];
                let phase = state.tcp.phase();
                if state.has(HALF_OPEN) && !matches!(phase, Phase::SynSent | Phase::SynReceived) {
                    state.flags &= !HALF_OPEN;
                    let (key, _) = packet.headers.key.of_connection();
                    let destination = state.initiators(&key).destination();
                    self.table.handshakes.end(destination);
                }
                return allowed(state);
            }
            SegmentVerdict::Tolerated => {
                self.counters[NOTED_TOLERATED] += 1;
                return allowed(state);
            }
            SegmentVerdict::Reopens => {
                self.end(packet, state);
                return self.open(packet, frame, state, None);
            }
            SegmentVerdict::OutOfWindow if self.table.options.liberal => {
                self.counters[NOTED_OUT_OF_WINDOW] += 1;
                return allowed(state);
            }
            SegmentVerdict::OutOfWindow => OUT_OF_WINDOW,
            SegmentVerdict::ResetOutOfWindow => RESET_OUT_OF_WINDOW,
            SegmentVerdict::Flags => TCP_FLAGS,
        };
        self.invalid(packet, reason)
    }

    /// Processes the first packet of a connection. `decided` is the rules' action if it is already known.
    #[cold]
    fn open(
        &mut self,
        packet: &Packet,
        frame: &[u8],
        state: &mut Connection,
        decided: Option<Action>,
    ) -> Result<(), Reason> {
        state.clear();
        let headers = &packet.headers;
        let key = headers.key;
        let (kind, tcp): (Kind, Tcp) = match key.protocol() {
            protocol::TCP => {
                let Some(segment) = segment_of(frame, headers) else {
                    return Err(TCP_FLAGS);
                };
                let tcp = match segment.opens() {
                    true => Tcp::opened(&segment),
                    false if !segment.makes_sense() => return self.invalid(packet, TCP_FLAGS),
                    false if segment.continues() && self.table.options.midstream => Tcp::picked_up(&segment),
                    false => return self.invalid(packet, NO_CONNECTION),
                };
                (TCP, tcp)
            }
            protocol::UDP => (UDP, Tcp::zeroed()),
            other if is_icmp(other) && is_echo_request(frame, headers) => (ECHO, Tcp::zeroed()),
            other if is_icmp(other) => return self.invalid(packet, NO_CONNECTION),
            _ => (OTHER, Tcp::zeroed()),
        };
        let rules = &self.cached_rules.value;
        let action = decided.unwrap_or_else(|| rules.decide(&key, packet.entry));
        state.last = millis(packet.arrival);
        state.flags = if packet.is_reversed() { REVERSED } else { 0 };
        if let Err(reason) = outcome(action) {
            state.kind = refusal(action);
            return Err(reason);
        }
        if kind == TCP && tcp.phase() == Phase::SynSent {
            // Set before the counter is incremented. So a killed process leaves the counter one too low at most, not
            // one too high forever.
            state.flags |= HALF_OPEN;
            write_in_order();
            if !self.table.handshakes.begin(key.destination()) {
                state.clear();
                return Err(HALF_OPEN_LIMIT);
            }
        }
        let (connection, _) = key.of_connection();
        if self.table.connections.insert(&connection) {
            state.flags |= LISTED;
        } else {
            self.counters[NOTED_NOT_LISTED] += 1;
        }
        self.counters[NOTED_OPENED] += 1;
        state.kind = kind;
        state.tcp = tcp;
        state.flags |= forbidden(rules, &key, packet.entry);
        match state.has(FORBIDDEN[0]) {
            true => Err(RULES_DENY),
            false => Ok(()),
        }
    }

    /// Ends a connection.
    #[cold]
    fn end(&self, packet: &Packet, state: &mut Connection) {
        let (key, _) = packet.headers.key.of_connection();
        self.table.remove_connection(&key, state);
        state.clear();
    }

    /// Processes an ICMP message other than an echo.
    #[cold]
    fn message(&mut self, packet: &Packet, frame: &[u8]) -> Result<(), Reason> {
        let headers = &packet.headers;
        let (key, rules) = (&headers.key, &self.cached_rules.value);
        if self.table.options.neighbour_discovery && is_of_link(frame, headers) {
            return Ok(());
        }
        let kind = headers.transport(frame).first().copied().unwrap_or(u8::MAX);
        let error = match headers.network {
            Network::V4 => v4::is_error(kind),
            _ => v6::is_error(kind),
        };
        if !error {
            return outcome(rules.decide(key, packet.entry));
        }
        let head = &frame[..frame.len().min(HEAD)];
        let mut of_head = *headers;
        of_head.end = of_head.end.min(head.len() as u16);
        // The receiver of the error must be the sender of the quoted packet.
        let quoted = quoted(head, &of_head)
            .filter(|quoted| quoted.key.source() == key.destination())
            .filter(|quoted| quoted.fragment != Fragment::Later);
        let related = quoted.is_some_and(|quoted| {
            let (connection, _) = quoted.key.of_connection();
            self.table.connections.contains(&connection)
        });
        if !related {
            return self.invalid(packet, ICMP_UNRELATED);
        }
        if rules.is_about(State::Related)
            && let Some(action) = rules.find(key, packet.entry, State::Related)
        {
            outcome(action)?;
        }
        self.counters[NOTED_RELATED] += 1;
        Ok(())
    }

    /// Processes a fragment.
    #[cold]
    fn fragment(&self, packet: &Packet, frame: &[u8]) -> Result<(), Reason> {
        match self.table.options.fragments {
            Fragments::Drop => return Err(FRAGMENT),
            Fragments::Pass => return Ok(()),
            Fragments::FirstDecides => {}
        }
        let headers = &packet.headers;
        let key = headers.key.of_whole();
        let Some(place) = FragmentPosition::of(frame, headers) else {
            return Err(FRAGMENT_UNKNOWN);
        };
        let (now, datagrams) = (packet.arrival, &self.table.datagrams);
        let datagram = (&key, place.identification);
        if headers.fragment == Fragment::First {
            let (connection, _) = key.of_connection();
            let outcome = match self.table.connections.contains(&connection) {
                true => Ok(()),
                // TCP connections begin with unfragmented packets.
                false if key.protocol() == protocol::TCP => Err(NO_CONNECTION),
                false => outcome(self.cached_rules.value.decide(&key, packet.entry)),
            };
            let first = FirstFragment {
                passed: outcome.is_ok(),
                length: place.length,
            };
            datagrams.record_first(datagram, now, first);
            return outcome;
        }
        match datagrams.find(&key, place.identification, now) {
            None => Err(FRAGMENT_UNKNOWN),
            Some(FirstFragment { passed: false, .. }) => Err(RULES_DENY),
            Some(first) if place.offset < first.length => {
                // The fragment would overwrite data on which the decision was based: drop the rest of the datagram.
                let none = FirstFragment { passed: false, ..first };
                datagrams.record_first(datagram, now, none);
                Err(FRAGMENT_OVERLAP)
            }
            Some(_) => Ok(()),
        }
    }
}

/// Returns the kind under which a decision is stored in the flow.
fn refusal(action: Action) -> Kind {
    match action {
        Action::Allow => OPENING,
        Action::Deny => DENIED,
        Action::Reject => REJECTED,
    }
}

/// Returns the [`FORBIDDEN`] flags that rules about established connections set for the initiator and the responder.
/// `key` and `entry` are those of the initiator's packets.
fn forbidden(rules: &RuleSet, key: &FlowKey, entry: u8) -> u8 {
    if !rules.is_about(State::Established) {
        return 0;
    }
    let forbids = |key: &FlowKey, entry| {
        let action = rules.find(key, entry, State::Established);
        action.is_some_and(|action| action != Action::Allow)
    };
    // The responder's packets arrive on the port to which the initiator's packets leave.
    let ways = [(*key, entry), (key.reversed(), 1 - entry.min(1))];
    let flags = ways.iter().zip(FORBIDDEN);
    flags.fold(0, |flags, ((key, entry), flag)| match forbids(key, *entry) {
        true => flags | flag,
        false => flags,
    })
}

impl NetworkFunction for Firewall {
    fn kind(&self) -> &'static str {
        "Firewall"
    }

    fn drop_reasons(&self) -> &'static [&'static str] {
        DROP_REASONS
    }

    fn is_loss(&self, reason: u8) -> bool {
        reason == HALF_OPEN_LIMIT
    }

    fn counters(&self) -> &'static [&'static str] {
        COUNTERS
    }

    fn counter_values(&self) -> &[u64] {
        &self.counters
    }

    fn state_bytes(&self) -> usize {
        size_of::<Connection>()
    }

    fn properties(&self) -> FunctionProperties {
        FunctionProperties {
            tracks_connections: true,
            ..FunctionProperties::HEADERS_ONLY
        }
    }

    fn version(&self) -> u32 {
        self.table.rules.number()
    }

    fn prepare(&mut self, batch: &Batch, new: &[u16]) {
        self.table.rules.refresh(&mut self.cached_rules);
        let mut keys = [FlowKey::default(); MAX_BATCH];
        let mut entries = [0; MAX_BATCH];
        let mut actions = [Action::Deny; MAX_BATCH];
        for ((key, entry), at) in keys.iter_mut().zip(&mut entries).zip(new) {
            let packet = batch.packet(usize::from(*at));
            (*key, *entry) = (packet.headers.key, packet.entry);
        }
        let count = new.len();
        let rules = &self.cached_rules.value;
        rules.decide_new(&keys[..count], &entries[..count], &mut actions[..count]);
        for (action, at) in actions.iter().zip(new) {
            self.by_index[usize::from(*at)] = *action;
        }
    }

    fn new_flow(&mut self, packet: &Packet, frame: &[u8], flow: &mut NewFlow<'_>) -> Verdict {
        let headers = &packet.headers;
        if headers.fragment != Fragment::Whole || is_message(frame, headers) {
            return Verdict::Forward;
        }
        let place = flow.batch_index();
        let state = flow.state::<Connection>();
        if state.is_tracked() {
            // The rules were replaced: evaluate them as if the connection began now.
            let (key, _) = headers.key.of_connection();
            let initiators = state.initiators(&key);
            let entry = match state.side(packet.is_reversed()) {
                0 => packet.entry,
                _ => 1 - packet.entry.min(1),
            };
            let rules = &self.cached_rules.value;
            let action = rules.decide(&initiators, entry);
            if action != Action::Allow {
                let flags = state.flags & REVERSED;
                self.end(packet, state);
                state.flags = flags;
                state.kind = refusal(action);
                state.last = millis(packet.arrival);
                self.counters[NOTED_ENDED] += 1;
                return Verdict::Forward;
            }
            let kept = !(FORBIDDEN[0] | FORBIDDEN[1]);
            state.flags = state.flags & kept | forbidden(rules, &initiators, entry);
            return Verdict::Forward;
        }
        // The rules have just been evaluated for this packet. An earlier decision no longer applies.
        state.clear();
        let action = self.by_index[place];
        state.kind = refusal(action);
        state.flags = if packet.is_reversed() { REVERSED } else { 0 };
        if action != Action::Allow {
            state.last = millis(packet.arrival);
        } else if packet.entry != 0 {
            state.flags |= BY_EXIT;
        }
        Verdict::Forward
    }

    fn process(&mut self, batch: &mut Batch, flows: &mut FlowStates<'_>) {
        self.table.rules.refresh(&mut self.cached_rules);
        batch.for_each(|packet, frame| {
            let headers = &packet.headers;
            let outcome = if headers.fragment != Fragment::Whole {
                self.fragment(packet, frame)
            } else if is_message(frame, headers) {
                self.message(packet, frame)
            } else {
                let state = flows.state::<Connection>(packet);
                if state.is_torn() {
                    // The connection's state is unknown. The rules are evaluated anew.
                    self.end(packet, state);
                }
                debug_assert!(state.kind != NONE || state.flags == 0, "nothing is known");
                state.change(|state| self.connection(packet, frame, state))
            };
            if let Err(reason) = outcome {
                packet.verdict = Verdict::Drop(reason);
            }
        });
    }

    fn explain(&self, traced: &TracedPacket<'_>, flows: &mut FlowStates<'_>, text: &mut Explanation) {
        let rules = &self.cached_rules.value;
        if traced.packet().headers.fragment == Fragment::Whole && is_message(traced.frame(), &traced.packet().headers) {
            return explain_message(rules, traced, text);
        }
        let by_rules = match traced.packet().verdict {
            Verdict::Drop(reason) => matches!(reason, RULES_DENY | RULES_REJECT),
            Verdict::Forward | Verdict::Bypass => true,
        };
        explain((rules, by_rules), traced, flows, text);
    }

    fn flow_ends(&mut self) -> Option<&mut dyn FlowEnds> {
        Some(self)
    }

    fn lifetimes(&self) -> Option<Arc<dyn Lifetimes>> {
        Some(Arc::clone(&self.table) as Arc<dyn Lifetimes>)
    }

    // Not `durable`: connections of another machine have passed another firewall's rules.
    fn portable(&mut self) -> Option<&mut dyn DurableState> {
        Some(self)
    }
}

impl FlowEnds for Firewall {
    fn flow_ended(&mut self, key: &FlowKey, state: &[u8]) {
        let connection: Connection = bytemuck::pod_read_unaligned(&state[..size_of::<Connection>()]);
        self.table.remove_connection(key, &connection);
    }
}
