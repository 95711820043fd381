//! Configuration of `tunnel`.

use crate::kind::Context;
use crate::tunnel::rules::{Action, MAX_RULES, Rule, VlanMatch};
use tailwater_api::error::{SpecError, nearest};
use tailwater_api::located::Located;
use tailwater_api::values::{PacketAction, prefix, protocol};
use tailwater_net::protocol::ethertype;
use tailwater_net::vlan::VlanTag;

/// Maximum VLAN identifier (IEEE 802.1Q: 4095 is reserved).
const MAX_VLAN: u64 = 4094;

/// VLAN tags pushed and popped by rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TunnelConfig {
    /// Rules in order, at least one; each pushes or pops.
    pub rules: Vec<Rule>,
    /// Treatment of packets that no rule matches.
    pub default: PacketAction,
    /// `true` if the decision is cached with the flow; no rule matches on a VLAN then.
    pub cached: bool,
}

impl TunnelConfig {
    pub(super) fn parse(node: &Located<'_>, _: &Context<'_>) -> Result<Self, SpecError> {
        let fields = node.fields_or_none(&["rules", "default", "cache"])?;
        let list = fields.required("rules", "a list of rules")?;
        let items = list.list("rules", MAX_RULES)?;
        let rules = items.iter().map(rule).collect::<Result<Vec<_>, _>>()?;
        let default = fields.optional("default");
        let cached = match fields.optional("cache") {
            None => false,
            Some(node) => {
                let cached = node.word(&[("none", false), ("flow", true)])?;
                if cached && rules.iter().any(|rule| rule.vlan.is_some()) {
                    let message = "expected none where a rule matches on vlan, found flow: \
                                   a flow's packets may have different VLANs";
                    return Err(node.error(message));
                }
                cached
            }
        };
        Ok(TunnelConfig {
            rules,
            default: default.map_or(Ok(PacketAction::Pass), |node| PacketAction::parse(&node))?,
            cached,
        })
    }
}

fn rule(node: &Located<'_>) -> Result<Rule, SpecError> {
    let fields = node.fields(&["match", "push", "pop"])?;
    let action = match (fields.optional("push"), fields.optional("pop")) {
        (Some(node), None) => Action::Push(tag(&node)?),
        (None, Some(node)) => node.word(&[("true", Action::Pop)])?,
        (Some(_), Some(pop)) => {
            return Err(pop.error("expected either push or pop, found both"));
        }
        (None, None) => return Err(fields.error("expected either push or pop, found neither")),
    };
    let mut rule = Rule {
        source: None,
        destination: None,
        protocol: None,
        vlan: None,
        action,
    };
    let Some(conditions) = fields.optional("match") else {
        return Ok(rule);
    };
    let fields = conditions.fields(&["source", "destination", "protocol", "vlan"])?;
    let given = |name| fields.optional(name);
    rule.source = given("source").map(|node| prefix(&node)).transpose()?;
    rule.destination = given("destination").map(|node| prefix(&node)).transpose()?;
    rule.protocol = given("protocol").map(|node| protocol(&node)).transpose()?;
    rule.vlan = given("vlan").map(|node| vlan(&node)).transpose()?;
    match (rule.source, rule.destination) {
        (Some(source), Some(destination)) if source.addr().is_ipv4() != destination.addr().is_ipv4() => {
            let message = "expected source and destination of one IP version, found both versions";
            Err(conditions.error(message))
        }
        _ => Ok(rule),
    }
}

/// Parses `untagged` or a VLAN identifier.
pub(crate) fn vlan(node: &Located<'_>) -> Result<VlanMatch, SpecError> {
    let what = "a VLAN identifier from 0 to 4094, or untagged";
    let text = node.text(what)?;
    if text == "untagged" {
        return Ok(VlanMatch::Untagged);
    }
    match node.whole(0..=MAX_VLAN) {
        Ok(id) => Ok(VlanMatch::Id(id as u16)),
        Err(_) => Err(node.expected(what).suggest(nearest(text, ["untagged"]))),
    }
}

fn tag(node: &Located<'_>) -> Result<VlanTag, SpecError> {
    let fields = node.fields(&["vlan", "priority", "dropEligible", "tpid"])?;
    let vlan = fields.required("vlan", "a VLAN identifier")?;
    let priority = fields.optional("priority");
    let drop_eligible = fields.optional("dropEligible");
    let tpid = fields.optional("tpid");
    let tpids = [
        ("0x8100", ethertype::VLAN),
        ("0x88a8", ethertype::QINQ),
        ("0x9100", ethertype::QINQ_OLD),
    ];
    Ok(VlanTag {
        id: vlan.whole(0..=MAX_VLAN)? as u16,
        priority: priority.map_or(Ok(0), |node| node.whole(0..=7))? as u8,
        drop_eligible: drop_eligible.map_or(Ok(false), |node| node.word(&[("true", true), ("false", false)]))?,
        ethertype: tpid.map_or(Ok(ethertype::VLAN), |node| node.word(&tpids))?,
    })
}
