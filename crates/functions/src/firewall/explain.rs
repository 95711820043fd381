//! Explanations of the firewall's decisions on traced packets.

use super::connection::{ANSWERED, Connection, FORBIDDEN, TCP};
use super::rule_set::RuleSet;
use super::rules::State;
use super::tcp::Phase;
use tailwater_chain::function::{Explanation, FlowStates, TracedPacket};
use tailwater_net::parse::Fragment;

/// Explains an ICMP message other than an echo.
pub(super) fn explain_message(rules: &RuleSet, traced: &TracedPacket<'_>, text: &mut Explanation) {
    text.add(format_args!("ICMP message"));
    rules.explain(&traced.key, traced.packet().entry, State::New, text);
}

/// Explains any other packet, by its connection and the rules as they are now. `by_rules`: it passed, or was dropped by
/// rules.
pub(super) fn explain(
    (rules, by_rules): (&RuleSet, bool),
    traced: &TracedPacket<'_>,
    flows: &mut FlowStates<'_>,
    text: &mut Explanation,
) {
    let packet = traced.packet();
    let (key, entry) = (&traced.key, packet.entry);
    if packet.headers.fragment != Fragment::Whole {
        return text.add(format_args!("fragment"));
    }
    let state = flows.state::<Connection>(packet);
    if !state.is_tracked() {
        if by_rules {
            return rules.explain(key, entry, State::New, text);
        }
        return text.add(format_args!("no connection"));
    }
    let side = state.side(packet.is_reversed());
    text.add(format_args!("connection "));
    match (state.kind, state.has(ANSWERED)) {
        (TCP, _) => text.add(format_args!(
            "{}",
            match state.tcp.phase() {
                Phase::SynSent => "SYN sent",
                Phase::SynReceived => "SYN received",
                Phase::Established => "established",
                Phase::Closing => "closing",
                Phase::TimeWait => "in time wait",
                Phase::Closed => "closed",
            }
        )),
        (_, true) => text.add(format_args!("answered")),
        (_, false) => text.add(format_args!("not answered")),
    }
    text.add_part(format_args!("from its {}", ["initiator", "responder"][side]));
    // The rules as they are now, about the connection as its first packet opened it.
    let (initiator, entry) = match side {
        0 => (*key, entry),
        _ => (key.reversed(), 1 - entry.min(1)),
    };
    rules.explain(&initiator, entry, State::New, text);
    if state.has(FORBIDDEN[side]) {
        let (key, entry) = (traced.key, packet.entry);
        text.add_part(format_args!("established packets"));
        rules.explain(&key, entry, State::Established, text);
    }
}
