//! Configuration of `nat`.

use crate::kind::Context;
use ipnet::Ipv4Net;
use std::net::Ipv4Addr;
use std::ops::RangeInclusive;
use tailwater_api::error::SpecError;
use tailwater_api::located::Located;
use tailwater_api::schema::{Field, Map, PORTS, PREFIX_V4, Type};
use tailwater_api::values::{PacketAction, ports, prefix_v4};

/// Maximum number of external addresses.
const MAX_EXTERNAL: u64 = 4096;
/// Maximum number of prefixes in a list.
const MAX_PREFIXES: usize = 4096;
/// Minimum number of external ports: each of the 512 RSS buckets owns a share of them, so that a bucket that moves to
/// another core takes its bindings along.
const MIN_PORTS: usize = 512;
/// Default internal sources: private (RFC 1918) and shared (RFC 6598) address space.
const INTERNAL: [Ipv4Net; 4] = [
    Ipv4Net::new_assert(Ipv4Addr::new(10, 0, 0, 0), 8),
    Ipv4Net::new_assert(Ipv4Addr::new(172, 16, 0, 0), 12),
    Ipv4Net::new_assert(Ipv4Addr::new(192, 168, 0, 0), 16),
    Ipv4Net::new_assert(Ipv4Addr::new(100, 64, 0, 0), 10),
];

const PREFIXES: Type = Type::List(&Type::Text(&PREFIX_V4), 1, MAX_PREFIXES);
/// Fields of the configuration.
pub(super) static FIELDS: Map = Map {
    fields: &[
        Field::new(
            "external",
            PREFIXES,
            "External addresses: 1 to 4,096 unicast addresses, none twice, none internal. All addresses of a \
             prefix are used, the first and the last too.",
        )
        .required()
        .example("[198.51.100.0/28]"),
        Field::new("internal", PREFIXES, "Sources that are translated.")
            .or("[10.0.0.0/8, 172.16.0.0/12, 192.168.0.0/16, 100.64.0.0/10]"),
        Field::new(
            "ports",
            Type::Text(&PORTS),
            "External ports: at least 512 (one per RSS bucket), from 1 to 65535.",
        )
        .or("1024-65535"),
        Field::new(
            "otherProtocols",
            PacketAction::TYPE,
            "Packets of internal hosts that are neither TCP nor UDP, and fragments.",
        )
        .or("drop"),
        Field::new(
            "inbound",
            PacketAction::TYPE,
            "Packets to an external address without a binding.",
        )
        .or("drop"),
    ],
    nullable: true,
    ..Map::PLAIN
};

/// Network address and port translation (RFC 3022): internal sources share external addresses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NatConfig {
    /// External addresses: 1 to 4096, all different, none internal.
    pub external: Vec<Ipv4Net>,
    /// Source prefixes to translate.
    pub internal: Vec<Ipv4Net>,
    /// External ports: at least 512, none zero.
    pub ports: RangeInclusive<u16>,
    /// Treatment of internal hosts' packets that are neither TCP nor UDP, and of fragments.
    pub other_protocols: PacketAction,
    /// Treatment of packets to an external address without a binding.
    pub inbound: PacketAction,
}

impl NatConfig {
    pub(super) fn parse(node: &Located<'_>, _: &Context<'_>) -> Result<Self, SpecError> {
        let fields = node.fields_of(&FIELDS)?;
        let external_node = fields.required("external", "a list of IPv4 prefixes or addresses")?;
        let external = prefixes(&external_node)?;
        for (item, prefix) in &external {
            check_usable(item, *prefix)?;
        }
        let addresses: u64 = external.iter().map(|(_, prefix)| size(*prefix)).sum();
        if addresses > MAX_EXTERNAL {
            let message = format!("expected at most {MAX_EXTERNAL} addresses, found {addresses}");
            return Err(external_node.error(message));
        }
        check_disjoint(&external)?;
        let internal: Vec<Ipv4Net> = match fields.optional("internal") {
            None => INTERNAL.to_vec(),
            Some(node) => prefixes(&node)?.into_iter().map(|(_, prefix)| prefix).collect(),
        };
        for (item, prefix) in &external {
            if let Some(inside) = internal.iter().find(|inside| overlap(**inside, *prefix)) {
                let what = format!("an address outside of the internal prefix {inside}");
                return Err(item.expected(&what));
            }
        }
        let fate = |name, default| {
            let node = fields.optional(name);
            node.map_or(Ok(default), |node| PacketAction::parse(&node))
        };
        Ok(NatConfig {
            ports: match fields.optional("ports") {
                None => 1024..=u16::MAX,
                Some(node) => external_ports(&node)?,
            },
            other_protocols: fate("otherProtocols", PacketAction::Drop)?,
            inbound: fate("inbound", PacketAction::Drop)?,
            external: external.into_iter().map(|(_, prefix)| prefix).collect(),
            internal,
        })
    }
}

fn prefixes<'a>(node: &Located<'a>) -> Result<Vec<(Located<'a>, Ipv4Net)>, SpecError> {
    let items = node.list("IPv4 prefixes or addresses", MAX_PREFIXES)?;
    let prefix = |item: Located<'a>| prefix_v4(&item).map(|prefix| (item, prefix));
    items.into_iter().map(prefix).collect()
}

fn external_ports(node: &Located<'_>) -> Result<RangeInclusive<u16>, SpecError> {
    let ports = ports(node)?;
    if *ports.start() == 0 || ports.len() < MIN_PORTS {
        let what = format!("a range of at least {MIN_PORTS} ports from 1 to 65535");
        return Err(node.expected(&what));
    }
    Ok(ports)
}

/// Rejects addresses that packets cannot come from, or that return packets cannot reach.
fn check_usable(item: &Located<'_>, prefix: Ipv4Net) -> Result<(), SpecError> {
    const UNUSABLE: [(Ipv4Net, &str); 3] = [
        (Ipv4Net::new_assert(Ipv4Addr::UNSPECIFIED, 8), "\"this network\""),
        (Ipv4Net::new_assert(Ipv4Addr::new(127, 0, 0, 0), 8), "loopback"),
        (
            Ipv4Net::new_assert(Ipv4Addr::new(224, 0, 0, 0), 3),
            "multicast or reserved",
        ),
    ];
    match UNUSABLE.iter().find(|(unusable, _)| overlap(*unusable, prefix)) {
        None => Ok(()),
        Some((_, kind)) => Err(item.expected(&format!("unicast addresses, none of them {kind}"))),
    }
}

/// Rejects duplicate addresses, whose ports would be assigned twice.
fn check_disjoint(external: &[(Located<'_>, Ipv4Net)]) -> Result<(), SpecError> {
    let mut order: Vec<usize> = (0..external.len()).collect();
    order.sort_by_key(|&index| external[index].1);
    // Prefixes are disjoint or nested, so in sorted order an overlap shows between neighbours.
    for pair in order.windows(2) {
        let (first, second) = (pair[0].min(pair[1]), pair[0].max(pair[1]));
        let ((_, before), (item, prefix)) = (&external[first], &external[second]);
        if overlap(*before, *prefix) {
            return Err(item.expected(&format!("addresses outside of {before}, listed before")));
        }
    }
    Ok(())
}

fn overlap(a: Ipv4Net, b: Ipv4Net) -> bool {
    a.contains(&b) || b.contains(&a)
}

fn size(prefix: Ipv4Net) -> u64 {
    1 << (32 - prefix.prefix_len())
}
