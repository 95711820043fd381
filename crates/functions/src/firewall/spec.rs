//! Configuration of `firewall`.

use crate::acl::shadowed_rules::{Idle, describe};
use crate::firewall::language::{self, Mistake};
use crate::firewall::{
    Action, Fragments, HalfOpen, MAX_RULES, MAX_ZONES, Options, Rule, ShadowedRules, Timeouts, Zone, ZonePort, shadowed,
};
use crate::kind::{ALLOW_EMPTY_RULES, Context, allows_empty, check_not_empty};
use ipnet::IpNet;
use std::collections::HashMap;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use tailwater_api::document::is_label;
use tailwater_api::error::SpecError;
use tailwater_api::files::read_text;
use tailwater_api::located::Located;
use tailwater_api::schema::{Entries, FILE, Field, LABEL, Map, PREFIX, Rule as Condition, Type};
use tailwater_api::values::{duration, prefix};
use tailwater_net::Nanos;

/// Maximum number of prefixes in a zone.
const MAX_PREFIXES: usize = 1024;
/// Range of idle timeouts of connections, limited by the flow table's clock.
const TIMEOUT: RangeInclusive<Nanos> = Nanos::from_secs(1)..=Nanos::from_secs(86_400);

const ACTION: Type = Type::Words(&["allow", "deny", "reject"]);
const RULE: Type = Type::Any(65_536);
/// Fields of the configuration.
pub(super) static FIELDS: Map = Map {
    fields: &[
        Field::new("zones", Type::Entries(&ZONES), "Zones by name; `any` is reserved.").otherwise("none"),
        Field::new(
            "rules",
            Type::List(&RULE, 1, MAX_RULES),
            "Rules in order; the first that matches decides.",
        )
        .example("[allow tcp ports 443]"),
        Field::new(
            "rulesFile",
            Type::Text(&FILE),
            "File with the rules, relative to the spec's folder.",
        ),
        Field::new("default", ACTION, "Connections that no rule matches.").or("deny"),
        Field::new("tcp", Type::Map(&TCP), "Checks of TCP."),
        Field::new(
            "fragments",
            Type::Words(&["drop", "pass", "firstDecides"]),
            "`firstDecides`: the first fragment, which has the ports, is decided about; the others follow it.",
        )
        .or("firstDecides"),
        Field::new(
            "halfOpen",
            Type::Map(&HALF_OPEN),
            "TCP handshakes in progress, of all cores.",
        )
        .otherwise("half of `flows.capacity`"),
        Field::new(
            "neighbourDiscovery",
            Type::Words(&["pass", "rules"]),
            "IPv6 neighbour discovery and multicast listener messages whose hop limit shows that they are on-link.",
        )
        .or("pass"),
        Field::new(
            "timeouts",
            Type::Map(&TIMEOUTS),
            "Lifetimes of connections without packets.",
        ),
        ALLOW_EMPTY_RULES,
    ],
    rules: &[Condition::ExactlyOne(&["rules", "rulesFile"])],
    nullable: true,
};
static ZONES: Entries = Entries {
    key: "NAME",
    keys: &LABEL,
    value: Type::Map(&ZONE),
    least: 1,
    most: MAX_ZONES,
};
static PREFIXES: [Type; 2] = [Type::Words(&["any"]), Type::List(&Type::Text(&PREFIX), 1, MAX_PREFIXES)];
static ZONE: Map = Map {
    fields: &[
        Field::new(
            "prefixes",
            Type::OneOf(&PREFIXES),
            "Prefixes, or `any`. An address belongs to the zone with the longest matching prefix.",
        )
        .example("[10.0.0.0/8]"),
        Field::new("port", Type::Words(&["entry", "exit"]), "Port in front of the zone.").otherwise("none"),
    ],
    rules: &[Condition::AtLeastOne(&["prefixes", "port"])],
    ..Map::PLAIN
};
static TCP: Map = Map {
    fields: &[
        Field::new(
            "windows",
            Type::Words(&["strict", "liberal"]),
            "Segments outside the window are dropped, or counted and passed.",
        )
        .or("strict"),
        Field::new(
            "midstream",
            Type::Words(&["drop", "allow"]),
            "Whether an allowed segment may pick up a connection that began before.",
        )
        .or("drop"),
    ],
    ..Map::PLAIN
};
const CONNECTIONS: Type = Type::Whole(1, 16_777_216);
static HALF_OPEN: Map = Map {
    fields: &[
        Field::new("total", CONNECTIONS, "Of all cores.")
            .required()
            .example("10000"),
        Field::new("perDestination", CONNECTIONS, "To one destination address.").otherwise("`total`"),
    ],
    ..Map::PLAIN
};
const LIFETIME: Type = Type::duration(&TIMEOUT);
static TIMEOUTS: Map = Map {
    fields: &[
        Field::new("handshake", LIFETIME, "TCP, until the handshake is complete.").or("30s"),
        Field::new("established", LIFETIME, "TCP, after the handshake.").or("7440s"),
        Field::new("closing", LIFETIME, "TCP, after the first FIN.").or("120s"),
        Field::new("timeWait", LIFETIME, "TCP, after both FINs.").or("60s"),
        Field::new("closed", LIFETIME, "TCP, after a reset.").or("10s"),
        Field::new("udp", LIFETIME, "UDP, in one direction.").or("30s"),
        Field::new("udpAnswered", LIFETIME, "UDP, in both directions.").or("180s"),
        Field::new("icmp", LIFETIME, "ICMP echo.").or("30s"),
        Field::new("other", LIFETIME, "Other protocols, in one direction.").or("60s"),
        Field::new("otherAnswered", LIFETIME, "Other protocols, in both directions.").or("600s"),
        Field::new("denied", LIFETIME, "Denied connections.").or("10s"),
    ],
    ..Map::PLAIN
};

/// Stateful connection filter, by rules from zone to zone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FirewallConfig {
    /// Zones, up to 16.
    pub zones: Vec<Zone>,
    /// Rules in order; the first that matches decides.
    pub rules: Vec<Rule>,
    /// Action for connections that no rule matches.
    pub default: Action,
    /// General options.
    pub options: Options,
    /// File that the rules were read from; `None` if they are in the spec.
    pub source: Option<PathBuf>,
}

const ACTIONS: [(&str, Action); 3] = [
    ("allow", Action::Allow),
    ("deny", Action::Deny),
    ("reject", Action::Reject),
];

impl FirewallConfig {
    pub(super) fn parse(node: &Located<'_>, context: &Context<'_>) -> Result<Self, SpecError> {
        let fields = node.fields_of(&FIELDS)?;
        let allow_empty = allows_empty(&fields, "rulesFile")?;
        let zones = fields.optional("zones");
        let zones = zones.map_or(Ok(Vec::new()), |node| zones_of(&node))?;
        let (rules, source) = match (fields.optional("rules"), fields.optional("rulesFile")) {
            (Some(_), Some(file)) => {
                return Err(file.error("expected either rules or rulesFile, found both"));
            }
            (None, None) => {
                return Err(fields.error("expected either rules or rulesFile, found neither"));
            }
            (Some(list), None) => (rules_of(&list, &zones)?, None),
            (None, Some(file)) => {
                let path = context.file(file.string("the name of a file")?);
                let rules = read_rules(&path, &file, &zones)?;
                if !allow_empty {
                    check_not_empty(&path.display().to_string(), "rule", rules.len())?;
                }
                (rules, Some(path))
            }
        };
        let default = fields.optional("default");
        Ok(FirewallConfig {
            zones,
            rules,
            default: default.map_or(Ok(Action::Deny), |node| node.word(&ACTIONS))?,
            options: options(&fields)?,
            source,
        })
    }

    /// Returns notices about shadowed rules, one line each.
    pub(super) fn shadowed_rules(&self) -> Vec<String> {
        let name = |action: Action| ACTIONS.iter().find(|(_, known)| *known == action);
        let name = |action| name(action).map_or(String::new(), |(name, _)| (*name).to_owned());
        let told = |shadowed: ShadowedRules| Idle {
            line: shadowed.line,
            by: shadowed.by,
            conflict: shadowed.conflict.map(|(a, b)| (name(a), name(b))),
        };
        let found = shadowed(&self.rules);
        let found = found.map(|found| found.into_iter().map(told).collect());
        describe(found, self.source.as_deref())
    }
}

fn zones_of(node: &Located<'_>) -> Result<Vec<Zone>, SpecError> {
    let entries = node.entries("a map of zones")?;
    if entries.is_empty() || entries.len() > MAX_ZONES {
        let found = entries.len();
        return Err(node.error(format!("expected 1 to {MAX_ZONES} zones, found {found}")));
    }
    let mut taken: HashMap<IpNet, String> = HashMap::new();
    let mut zones: Vec<Zone> = Vec::new();
    for (name, node) in entries {
        if !is_label(name) || name == "any" {
            let what = "a name of lower-case letters, digits and inner dashes, other than any";
            return Err(node.error(format!("expected as a zone's name {what}")));
        }
        let fields = node.fields_of(&ZONE)?;
        let port = fields.optional("port");
        let port = port.map(|node| {
            let port = node.word(&[("entry", ZonePort::Entry), ("exit", ZonePort::Exit)])?;
            match zones.iter().find(|zone| zone.port == Some(port)) {
                Some(other) => Err(node.expected(&format!("a port of one zone only (also in {})", other.name))),
                None => Ok(port),
            }
        });
        let port = port.transpose()?;
        let prefixes = match fields.optional("prefixes") {
            None if port.is_some() => Vec::new(),
            None => return Err(fields.error("expected prefixes, a port or both, found neither")),
            Some(node) if node.text("any").is_ok_and(|text| text == "any") => vec![
                IpNet::new_assert(Ipv4Addr::UNSPECIFIED.into(), 0),
                IpNet::new_assert(Ipv6Addr::UNSPECIFIED.into(), 0),
            ],
            Some(node) => {
                let items = node.list("IP prefixes", MAX_PREFIXES)?;
                items.iter().map(prefix).collect::<Result<_, _>>()?
            }
        };
        for prefix in &prefixes {
            if let Some(other) = taken.insert(*prefix, name.to_owned()) {
                let message = format!("expected each prefix in one zone, found {prefix} in {other} too");
                return Err(node.error(message));
            }
        }
        zones.push(Zone {
            name: name.to_owned(),
            prefixes,
            port,
        });
    }
    Ok(zones)
}

/// Reads the rules in the spec itself, and reports all errors.
fn rules_of(list: &Located<'_>, zones: &[Zone]) -> Result<Vec<Rule>, SpecError> {
    let (mut rules, mut errors) = (Vec::new(), Vec::new());
    for (i, item) in list.list("rules", MAX_RULES)?.iter().enumerate() {
        let rule = item.string("a rule such as \"allow tcp ports 443\"")?;
        match language::parse_rule(rule, zones) {
            Ok(rule) => rules.push(Rule {
                line: i as u32 + 1,
                ..rule
            }),
            Err(mistake) => errors.push(item.error(mistake.message).suggest(mistake.suggestion)),
        }
    }
    match SpecError::all(errors) {
        None => Ok(rules),
        Some(error) => Err(error),
    }
}

fn read_rules(path: &Path, node: &Located<'_>, zones: &[Zone]) -> Result<Vec<Rule>, SpecError> {
    let name = path.display().to_string();
    let text = read_text(path, &name).map_err(|error| match error.line {
        // The file does not exist: the error is in the spec.
        0 => node.error(format!("{name} {}", error.message)),
        _ => error,
    })?;
    parse_rules(&text, &name, zones)
}

/// Parses the rules in a file's text.
///
/// # Errors
/// If rules are invalid: all problems.
fn parse_rules(text: &str, name: &str, zones: &[Zone]) -> Result<Vec<Rule>, SpecError> {
    language::parse(text, zones).map_err(|(mistakes, more)| {
        let of_mistake = |mistake: Mistake| {
            SpecError::whole_file(name, mistake.message)
                .at(mistake.line, mistake.column)
                .suggest(mistake.suggestion)
        };
        let errors: Vec<_> = mistakes.into_iter().map(of_mistake).collect();
        let nothing = || SpecError::whole_file(name, "expected rules");
        SpecError::all_of_lines(errors, more).unwrap_or_else(nothing)
    })
}

fn options(fields: &tailwater_api::located::Fields<'_>) -> Result<Options, SpecError> {
    let mut options = Options::default();
    if let Some(node) = fields.optional("tcp") {
        let fields = node.fields_of(&TCP)?;
        if let Some(node) = fields.optional("windows") {
            options.liberal = node.word(&[("strict", false), ("liberal", true)])?;
        }
        if let Some(node) = fields.optional("midstream") {
            options.midstream = node.word(&[("drop", false), ("allow", true)])?;
        }
    }
    if let Some(node) = fields.optional("fragments") {
        options.fragments = node.word(&[
            ("drop", Fragments::Drop),
            ("pass", Fragments::Pass),
            ("firstDecides", Fragments::FirstDecides),
        ])?;
    }
    if let Some(node) = fields.optional("neighbourDiscovery") {
        options.neighbour_discovery = node.word(&[("pass", true), ("rules", false)])?;
    }
    if let Some(node) = fields.optional("halfOpen") {
        const MOST: RangeInclusive<u64> = 1..=16_777_216;
        let fields = node.fields_of(&HALF_OPEN)?;
        let total = fields
            .required("total", "the number of half-open connections")?
            .whole(MOST)?;
        let each = fields.optional("perDestination");
        let each = each.map_or(Ok(total), |node| node.whole(MOST))?;
        options.half_open = Some(HalfOpen {
            total: total as u32,
            per_destination: each as u32,
        });
    }
    if let Some(node) = fields.optional("timeouts") {
        options.timeouts = timeouts(&node)?;
    }
    Ok(options)
}

fn timeouts(node: &Located<'_>) -> Result<Timeouts, SpecError> {
    let mut timeouts = Timeouts::default();
    let fields = node.fields_of(&TIMEOUTS)?;
    for (name, timeout) in [
        ("handshake", &mut timeouts.handshake),
        ("established", &mut timeouts.established),
        ("closing", &mut timeouts.closing),
        ("timeWait", &mut timeouts.time_wait),
        ("closed", &mut timeouts.closed),
        ("udp", &mut timeouts.udp),
        ("udpAnswered", &mut timeouts.udp_answered),
        ("icmp", &mut timeouts.icmp),
        ("other", &mut timeouts.other),
        ("otherAnswered", &mut timeouts.other_answered),
        ("denied", &mut timeouts.denied),
    ] {
        if let Some(node) = fields.optional(name) {
            *timeout = duration(&node, TIMEOUT)?;
        }
    }
    Ok(timeouts)
}
