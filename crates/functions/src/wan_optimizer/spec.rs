//! Configuration of `wanOptimizer`.

use crate::kind::Context;
use crate::wan_optimizer::{
    Fingerprints, LEAST_CACHE, MAX_DESTINATIONS, MAX_STREAMS, MOST_CACHE, Options, PERIODS, Sampling,
};
use ipnet::IpNet;
use std::net::IpAddr;
use tailwater_api::error::SpecError;
use tailwater_api::located::{Fields, Located};
use tailwater_api::schema::{ADDRESS as ADDRESS_FORM, Field, Map, PREFIX, Type};
use tailwater_api::values::{prefix, size};

const ADDRESS: &str = "an IP address such as 192.0.2.1";
const SIZE: &str = "a power of two from 256KiB to 1GiB, such as 16MiB";
/// Default port, in the range that is not assigned (RFC 6335).
const PORT: u16 = 49_664;

/// Fields of the configuration.
pub(super) static FIELDS: Map = Map {
    fields: &[
        Field::new("local", Type::Text(&ADDRESS_FORM), "Address of this end.")
            .required()
            .example("192.0.2.1"),
        Field::new(
            "remote",
            Type::Text(&ADDRESS_FORM),
            "Address of the other end, of the same IP version.",
        )
        .required()
        .example("192.0.2.2"),
        Field::new(
            "destinations",
            Type::List(&Type::Text(&PREFIX), 1, MAX_DESTINATIONS),
            "Packets to these enter the tunnel.",
        )
        .otherwise("none"),
        Field::new(
            "port",
            Type::Whole(1, 65_534),
            "UDP port of both ends; the `streams` ports from it on must be free, too.",
        )
        .or("49664"),
        Field::new(
            "streams",
            Type::Whole(1, MAX_STREAMS as u64),
            "Streams; equal at both ends.",
        )
        .or("16"),
        Field::new(
            "cache",
            Type::Size(LEAST_CACHE, MOST_CACHE),
            "Cache of each stream, a power of two; equal at both ends.",
        )
        .or("16MiB"),
        Field::new(
            "fingerprints",
            Type::Words(&["sample-byte", "max-p"]),
            "Choice of positions: bytes of eight common values, or local maxima.",
        )
        .or("sample-byte"),
        Field::new(
            "period",
            Type::Whole(PERIODS[0] as u64, PERIODS[1] as u64),
            "Mean distance of positions: fewer bytes find more and cost more.",
        )
        .or("32"),
        Field::new(
            "minimum",
            Type::Whole(0, 1500),
            "Packets with less payload pass unchanged; the shortest reference.",
        )
        .or("64"),
        Field::new("mtu", Type::Whole(576, 65_535), "Longest outer IP packet.").or("1500"),
        Field::new("ttl", Type::Whole(1, 255), "Time to live of outer packets.").or("64"),
    ],
    nullable: true,
    ..Map::PLAIN
};

/// End of a tunnel that removes redundant data.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WanOptimizerConfig {
    /// Options of this end.
    pub options: Options,
    /// Destinations behind the other end.
    pub destinations: Vec<IpNet>,
}

impl WanOptimizerConfig {
    pub(super) fn parse(node: &Located<'_>, _: &Context<'_>) -> Result<Self, SpecError> {
        let fields = node.fields_of(&FIELDS)?;
        let local = host(&fields.required("local", "the local IP address")?)?;
        let node = fields.required("remote", "the remote IP address")?;
        let remote = host(&node)?;
        if local.is_ipv4() != remote.is_ipv4() || local == remote {
            return Err(node.expected("an address other than local, of the same IP version"));
        }
        let destinations = match fields.optional("destinations") {
            None => Vec::new(),
            Some(node) => {
                let list = node.list("prefixes", MAX_DESTINATIONS)?;
                list.iter().map(prefix).collect::<Result<_, _>>()?
            }
        };
        let whole = |name, usual, range| match fields.optional(name) {
            None => Ok(usual),
            Some(node) => node.whole(range),
        };
        let streams = whole("streams", 16, 1..=MAX_STREAMS.into())? as u8;
        let last = u64::from(u16::MAX - u16::from(streams));
        let options = Options {
            local,
            remote,
            port: whole("port", PORT.into(), 1..=last)? as u16,
            streams,
            cache: cache(&fields)?,
            minimum: whole("minimum", 64, 0..=1500)? as u16,
            fingerprints: fingerprints(&fields)?,
            mtu: whole("mtu", 1500, 576..=65_535)? as u16,
            ttl: whole("ttl", 64, 1..=255)? as u8,
        };
        Ok(WanOptimizerConfig { options, destinations })
    }
}

fn host(node: &Located<'_>) -> Result<IpAddr, SpecError> {
    let address = node.text(ADDRESS)?.parse::<IpAddr>();
    let host = address
        .ok()
        .filter(|address| !address.is_unspecified() && !address.is_multicast());
    host.ok_or_else(|| node.expected(ADDRESS))
}

fn cache(fields: &Fields<'_>) -> Result<u64, SpecError> {
    let Some(node) = fields.optional("cache") else {
        return Ok(16 << 20);
    };
    let bytes = size(&node, LEAST_CACHE..=MOST_CACHE, SIZE)?;
    match bytes.is_power_of_two() {
        true => Ok(bytes),
        false => Err(node.expected(SIZE)),
    }
}

fn fingerprints(fields: &Fields<'_>) -> Result<Fingerprints, SpecError> {
    let sampling = match fields.optional("fingerprints") {
        None => Sampling::SampleByte,
        Some(node) => node.word(&[("sample-byte", Sampling::SampleByte), ("max-p", Sampling::MaxP)])?,
    };
    let [least, most] = PERIODS.map(u64::from);
    let period = match fields.optional("period") {
        None => 32,
        Some(node) => node.whole(least..=most)? as u16,
    };
    Ok(Fingerprints { sampling, period })
}
