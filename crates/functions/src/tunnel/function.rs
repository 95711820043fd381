//! The `Tunnel` network function.

use super::rules::{Action, TunnelRules};
use std::sync::Arc;
use tailwater_chain::batch::{Batch, Packet, Verdict};
use tailwater_chain::function::{Explanation, FlowStates, NetworkFunction, NewFlow, TracedPacket};
use tailwater_chain::live::{Live, Version};
use tailwater_net::vlan::{MAX_VLAN_TAGS, TAG, VlanTag};

/// Bytes of an Ethernet header, and of its two addresses.
const ETHERNET: usize = 14;
const ADDRESSES: usize = 12;

const NO_RULE: u8 = 0;
const TOO_MANY_TAGS: u8 = 1;
const NO_ROOM: u8 = 2;

/// Network function that pushes and pops VLAN tags by the first matching rule.
pub struct Tunnel {
    rules: Arc<Live<TunnelRules>>,
    cached_rules: Arc<Version<TunnelRules>>,
    /// `true` if decisions are kept in the flow state.
    in_flow: bool,
}

/// A flow's decision: an encoded [`Action`].
type Decided = u32;

impl Tunnel {
    /// Creates a worker's instance. With `in_flow` the decision is made on a flow's first packet. Rules that [depend on
    /// the VLAN](TunnelRules::depend_on_vlan) are still applied to each packet, also if they replace rules that do not.
    pub fn new(rules: Arc<Live<TunnelRules>>, in_flow: bool) -> Tunnel {
        let held = rules.current();
        let in_flow = in_flow && !held.value.depend_on_vlan();
        Tunnel {
            rules,
            cached_rules: held,
            in_flow,
        }
    }
}

/// Returns the number of VLAN tags of a packet.
#[inline(always)]
fn tags(packet: &Packet) -> usize {
    usize::from(packet.headers.network_offset).saturating_sub(ETHERNET) / TAG
}

/// Returns the VLAN identifier of the outer tag.
#[inline(always)]
pub(crate) fn outer_vlan(packet: &Packet, frame: &[u8]) -> Option<u16> {
    match (tags(packet), frame.get(ETHERNET..ETHERNET + 2)) {
        (1.., Some(&[high, low])) => Some(u16::from_be_bytes([high, low]) & 0x0fff),
        _ => None,
    }
}

/// Returns a tag's bytes in a frame.
#[inline(always)]
fn bytes_of(tag: VlanTag) -> [u8; TAG] {
    let (kind, control) = (tag.ethertype.to_be_bytes(), tag.control().to_be_bytes());
    [kind[0], kind[1], control[0], control[1]]
}

#[inline(always)]
fn push(batch: &mut Batch, i: usize, tag: [u8; TAG]) {
    let (packet, _) = batch.packet_mut(i);
    // With one more tag the parser could not read the frame.
    if tags(packet) >= MAX_VLAN_TAGS {
        packet.verdict = Verdict::Drop(TOO_MANY_TAGS);
        return;
    }
    match batch.grow_front(i, TAG) {
        Some((_, frame)) => {
            if let Some(head) = frame.first_chunk_mut::<{ TAG + ADDRESSES }>() {
                head.copy_within(TAG.., 0);
                head[ADDRESSES..].copy_from_slice(&tag);
            }
        }
        None => batch.packet_mut(i).0.verdict = Verdict::Drop(NO_ROOM),
    }
}

#[inline(always)]
fn pop(batch: &mut Batch, i: usize) {
    let (packet, frame) = batch.packet_mut(i);
    if tags(packet) == 0 {
        return;
    }
    if let Some(head) = frame.first_chunk_mut::<{ TAG + ADDRESSES }>() {
        head.copy_within(..ADDRESSES, TAG);
        // A tag precedes the network header, so the frame has these bytes.
        let _ = batch.shrink_front(i, TAG);
    }
}

#[inline(always)]
fn apply(batch: &mut Batch, i: usize, action: Action) {
    match action {
        Action::Push(tag) => push(batch, i, bytes_of(tag)),
        Action::Pop => pop(batch, i),
        Action::Pass => {}
        Action::Drop => batch.packet_mut(i).0.verdict = Verdict::Drop(NO_RULE),
    }
}

/// Encodes an action in 32 bits.
fn encoded(action: Action) -> Decided {
    match action {
        Action::Pass => 0,
        Action::Pop => 1,
        Action::Drop => 2,
        // The tag's type is at least 0x8100, so these numbers differ from the other actions'.
        Action::Push(tag) => u32::from_be_bytes(bytes_of(tag)),
    }
}

impl NetworkFunction for Tunnel {
    fn kind(&self) -> &'static str {
        "Tunnel"
    }

    fn can_restart(&self) -> bool {
        true
    }

    fn drop_reasons(&self) -> &'static [&'static str] {
        &["no-rule", "too-many-tags", "no-room"]
    }

    fn is_loss(&self, reason: u8) -> bool {
        reason == NO_ROOM
    }

    fn state_bytes(&self) -> usize {
        match self.in_flow {
            true => size_of::<Decided>(),
            false => 0,
        }
    }

    fn version(&self) -> u32 {
        self.rules.number()
    }

    fn new_flow(&mut self, packet: &Packet, frame: &[u8], flow: &mut NewFlow<'_>) -> Verdict {
        self.rules.refresh(&mut self.cached_rules);
        let vlan = outer_vlan(packet, frame);
        *flow.state::<Decided>() = encoded(self.cached_rules.value.find(&packet.headers.key, vlan));
        Verdict::Forward
    }

    fn process(&mut self, batch: &mut Batch, flows: &mut FlowStates<'_>) {
        // Decisions in flow state are self-contained, whichever version made them.
        self.rules.refresh(&mut self.cached_rules);
        let rules = &self.cached_rules.value;
        if self.in_flow && !rules.depend_on_vlan() {
            for i in 0..batch.len() {
                match *flows.state::<Decided>(batch.packet_mut(i).0) {
                    0 => {}
                    1 => pop(batch, i),
                    2 => apply(batch, i, Action::Drop),
                    tag => push(batch, i, tag.to_be_bytes()),
                }
            }
            return;
        }
        match rules.constant() {
            Some(Action::Push(tag)) => {
                let tag = bytes_of(tag);
                (0..batch.len()).for_each(|i| push(batch, i, tag));
            }
            Some(action) => (0..batch.len()).for_each(|i| apply(batch, i, action)),
            None => {
                for i in 0..batch.len() {
                    let (packet, frame) = batch.packet_mut(i);
                    let vlan = outer_vlan(packet, frame);
                    let action = rules.find(&packet.headers.key, vlan);
                    apply(batch, i, action);
                }
            }
        }
    }

    fn explain(&self, traced: &TracedPacket<'_>, flows: &mut FlowStates<'_>, text: &mut Explanation) {
        let rules = &self.cached_rules.value;
        let decided = match (self.in_flow && !rules.depend_on_vlan(), rules.constant()) {
            (true, _) => *flows.state::<Decided>(traced.packet()),
            (false, Some(action)) => encoded(action),
            // The tag by which such rules decide may be gone.
            (false, None) => return text.add(format_args!("rules by VLAN")),
        };
        match decided {
            0 => text.add(format_args!("pass")),
            1 => text.add(format_args!("pop the outer tag")),
            2 => text.add(format_args!("drop")),
            tag => text.add(format_args!("push the tag of VLAN {}", tag & 0x0fff)),
        }
    }
}
