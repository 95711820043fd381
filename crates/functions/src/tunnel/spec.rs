//! Configuration of `tunnel`.

use crate::kind::Context;
use crate::tunnel::rules::{Action, MAX_RULES, Rule, VlanMatch};
use tailwater_api::error::{SpecError, nearest};
use tailwater_api::located::Located;
use tailwater_api::schema::{Field, Map, PREFIX, PROTOCOL, Rule as Condition, Text, Type};
use tailwater_api::values::{PacketAction, prefix, protocol};
use tailwater_net::protocol::ethertype;
use tailwater_net::vlan::VlanTag;

/// Maximum VLAN identifier (IEEE 802.1Q: 4095 is reserved).
const MAX_VLAN: u64 = 4094;

/// Fields of the configuration.
pub(super) static FIELDS: Map = Map {
    fields: &[
        Field::new(
            "rules",
            Type::List(&Type::Map(&RULE), 1, MAX_RULES),
            "Rules in order; the first that matches decides.",
        )
        .required()
        .example("[{pop: true}]"),
        Field::new(
            "default",
            PacketAction::TYPE,
            "Packets that no rule matches: unchanged, or dropped (`no-rule`).",
        )
        .or("pass"),
        Field::new(
            "cache",
            Type::Words(&["none", "flow"]),
            "Whether the decision is kept with the flow; not with rules that match on `vlan`.",
        )
        .or("none"),
    ],
    nullable: true,
    ..Map::PLAIN
};
static RULE: Map = Map {
    fields: &[
        Field::new("match", Type::Map(&MATCH), "Packets that the rule applies to.").otherwise("all"),
        Field::new("push", Type::Map(&TAG), "Tag that is pushed.").example("{vlan: 7}"),
        Field::new("pop", Type::True, "Removes the outer tag.").example("true"),
    ],
    rules: &[Condition::ExactlyOne(&["push", "pop"])],
    ..Map::PLAIN
};
static MATCH: Map = Map {
    fields: &[
        Field::new(
            "source",
            Type::Text(&PREFIX),
            "Source addresses; of the IP version of `destination`.",
        )
        .otherwise("any"),
        Field::new(
            "destination",
            Type::Text(&PREFIX),
            "Destination addresses; of the IP version of `source`.",
        )
        .otherwise("any"),
        Field::new("protocol", Type::Text(&PROTOCOL), "IP protocol.").otherwise("any"),
        Field::new(
            "vlan",
            Type::Text(&VLAN_OR_UNTAGGED),
            "VLAN identifier of the outer tag.",
        )
        .otherwise("any"),
    ],
    ..Map::PLAIN
};
/// VLAN identifier, or none.
pub(crate) static VLAN_OR_UNTAGGED: Text = Text {
    what: "a VLAN identifier, or untagged",
    pattern: "^untagged$",
    most: 8,
    example: "untagged",
    whole: Some((0, MAX_VLAN)),
};
static TAG: Map = Map {
    fields: &[
        Field::new(
            "vlan",
            Type::Whole(0, MAX_VLAN),
            "VLAN identifier; 0 is a priority tag.",
        )
        .required()
        .example("7"),
        Field::new("priority", Type::Whole(0, 7), "Priority code point.").or("0"),
        Field::new("dropEligible", Type::Bool, "Drop eligible indicator.").or("false"),
        Field::new(
            "tpid",
            Type::Text(&TPID),
            "EtherType of the tag: 802.1Q, 802.1ad service tag, or that of older switches.",
        )
        .or("\"0x8100\""),
    ],
    ..Map::PLAIN
};

/// EtherTypes of tags. Some readers of YAML turn them into decimal numbers.
const TPIDS: [(&str, u16); 3] = [
    ("0x8100", ethertype::VLAN),
    ("0x88a8", ethertype::QINQ),
    ("0x9100", ethertype::QINQ_OLD),
];
static TPID: Text = Text {
    what: "0x8100, 0x88a8 or 0x9100",
    pattern: "^0x(8100|88a8|9100)$",
    most: 6,
    example: "0x8100",
    whole: Some((ethertype::VLAN as u64, ethertype::QINQ_OLD as u64)),
};

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
        let fields = node.fields_of(&FIELDS)?;
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
    let fields = node.fields_of(&RULE)?;
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
    let fields = conditions.fields_of(&MATCH)?;
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
    let fields = node.fields_of(&TAG)?;
    let vlan = fields.required("vlan", "a VLAN identifier")?;
    let priority = fields.optional("priority");
    let drop_eligible = fields.optional("dropEligible");
    let tpid = fields.optional("tpid");
    Ok(VlanTag {
        id: vlan.whole(0..=MAX_VLAN)? as u16,
        priority: priority.map_or(Ok(0), |node| node.whole(0..=7))? as u8,
        drop_eligible: drop_eligible.map_or(Ok(false), |node| node.word(&[("true", true), ("false", false)]))?,
        ethertype: tpid.map_or(Ok(ethertype::VLAN), |node| ethertype_of(&node))?,
    })
}

fn ethertype_of(node: &Located<'_>) -> Result<u16, SpecError> {
    let number = node.whole(0..=u16::MAX.into()).unwrap_or(0);
    match TPIDS.iter().find(|(_, tpid)| u64::from(*tpid) == number) {
        Some((_, tpid)) => Ok(*tpid),
        None => node.word(&TPIDS),
    }
}
