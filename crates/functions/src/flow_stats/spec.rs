//! Configuration of `flowStats`.

use crate::flow_stats::{MESSAGE_BYTES, Options, Outlet, Transport};
use crate::kind::Context;
use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::path::PathBuf;
use tailwater_api::error::SpecError;
use tailwater_api::located::Located;
use tailwater_api::schema::{ADDRESS_AND_PORT, Field, Map, Rule, Type};
use tailwater_api::values::{Throughput, duration, throughput};
use tailwater_net::Nanos;

/// Maximum number of collectors and files.
const MAX_OUTLETS: usize = 4;
/// Range of timeouts: a flow's counters can hold one hour.
const TIMEOUT: RangeInclusive<Nanos> = Nanos::from_millis(100)..=Nanos::from_secs(3600);
/// Range of template refresh intervals.
const REFRESH: RangeInclusive<Nanos> = Nanos::from_secs(1)..=Nanos::from_secs(86_400);
/// Default active timeout.
const ACTIVE: Nanos = Nanos::from_secs(60);
const IDLE: Nanos = Nanos::from_secs(15);
const REFRESHED: Nanos = Nanos::from_secs(60);
const DATAGRAM: u64 = 1400;
const SEGMENTED: u64 = 16 << 10;
const BITS_PER_SECOND: u64 = 100_000_000;
/// Minimum rate in bits per second: a message of maximum size takes half a second.
const LEAST_BITS: u64 = 1_000_000;

const FILE: &str = "the name of a file";
const COLLECTOR: &str = "the address and port of a collector such as 192.0.2.9:4739 or \"[2001:db8::9]:4739\"";

/// Fields of the configuration.
pub(super) static FIELDS: Map = Map {
    fields: &[
        Field::new(
            "activeTimeout",
            Type::duration(&TIMEOUT),
            "A continuing flow is exported after this time, and counted anew.",
        )
        .or("60s"),
        Field::new(
            "idleTimeout",
            Type::duration(&TIMEOUT),
            "A flow without packets for this time is exported.",
        )
        .or("15s"),
        Field::new(
            "sampling",
            Type::Whole(1, 1_000_000),
            "One of so many packets of a core is counted; collectors receive the rate.",
        )
        .or("1"),
        Field::new(
            "observationDomain",
            Type::Whole(0, u32::MAX as u64),
            "Distinguishes these flows from others of the same exporter.",
        )
        .or("0"),
        Field::new(
            "export",
            Type::List(&Type::Map(&OUTLET), 1, MAX_OUTLETS),
            "Collectors and files; without any, records are only counted.",
        )
        .otherwise("none"),
    ],
    nullable: true,
    ..Map::PLAIN
};
static OUTLET: Map = Map {
    fields: &[
        Field::new(
            "collector",
            Type::Text(&ADDRESS_AND_PORT),
            "Address and port: IPv4, or IPv6 in brackets and quotes.",
        )
        .example("192.0.2.9:4739"),
        Field::new("transport", Type::Words(&["udp", "tcp"]), "Transport protocol.")
            .or("udp")
            .only_with("collector"),
        Field::new(
            "messageBytes",
            Type::whole(&MESSAGE_BYTES),
            "Longest message; leave room for IP and UDP headers.",
        )
        .otherwise("1400; with TCP 16384")
        .only_with("collector"),
        Field::new(
            "templateRefresh",
            Type::duration(&REFRESH),
            "Interval of templates (UDP) and loss reports.",
        )
        .or("60s")
        .only_with("collector"),
        Field::new(
            "rate",
            Type::BitRate,
            "Send limit that protects the collector, 1Mbps or more.",
        )
        .or("100Mbps")
        .only_with("collector"),
        Field::new(
            "file",
            Type::Text(&tailwater_api::schema::FILE),
            "File, which is overwritten.",
        )
        .example("flows.ipfix"),
    ],
    rules: &[Rule::ExactlyOne(&["collector", "file"])],
    ..Map::PLAIN
};

/// Packets and bytes of each flow, exported to collectors.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FlowStatsConfig {
    /// Counting and export options.
    pub options: Options,
}

impl FlowStatsConfig {
    pub(super) fn parse(node: &Located<'_>, _: &Context<'_>) -> Result<Self, SpecError> {
        let fields = node.fields_of(&FIELDS)?;
        let timeout = |name, usual| match fields.optional(name) {
            None => Ok(usual),
            Some(node) => duration(&node, TIMEOUT),
        };
        let number = |name, usual, range| match fields.optional(name) {
            None => Ok(usual),
            Some(node) => node.whole(range).map(|number| number as u32),
        };
        let mut outlets: Vec<Outlet> = Vec::new();
        if let Some(list) = fields.optional("export") {
            for node in list.list("collectors and files", MAX_OUTLETS)? {
                let outlet = outlet(&node)?;
                let same = outlets.iter().position(|other| other.name() == outlet.name());
                if let Some(other) = same {
                    let message = format!("expected each collector or file once, found that of item {other} again");
                    return Err(node.error(message));
                }
                outlets.push(outlet);
            }
        }
        Ok(FlowStatsConfig {
            options: Options {
                active: timeout("activeTimeout", ACTIVE)?,
                idle: timeout("idleTimeout", IDLE)?,
                sampling: number("sampling", 1, 1..=1_000_000)?,
                domain: number("observationDomain", 0, 0..=u32::MAX.into())?,
                outlets,
            },
        })
    }

    /// Iterates over the files that records are written to.
    pub fn files(&self) -> impl Iterator<Item = &PathBuf> {
        self.options.outlets.iter().filter_map(|outlet| match outlet {
            Outlet::File(file) => Some(file),
            Outlet::Collector { .. } => None,
        })
    }
}

fn outlet(node: &Located<'_>) -> Result<Outlet, SpecError> {
    let fields = node.fields_of(&OUTLET)?;
    let given = |name| fields.optional(name);
    match (given("collector"), given("file")) {
        (Some(collector), None) => {
            let address = collector.text(COLLECTOR)?.parse::<SocketAddr>();
            let address = address
                .ok()
                .filter(|address| address.port() != 0 && !address.ip().is_unspecified());
            let transport = match given("transport") {
                None => Transport::Udp,
                Some(node) => node.word(&[("udp", Transport::Udp), ("tcp", Transport::Tcp)])?,
            };
            Ok(Outlet::Collector {
                address: address.ok_or_else(|| collector.expected(COLLECTOR))?,
                transport,
                message_bytes: match (given("messageBytes"), transport) {
                    (Some(node), _) => node.whole(MESSAGE_BYTES)?,
                    (None, Transport::Udp) => DATAGRAM,
                    (None, Transport::Tcp) => SEGMENTED,
                } as usize,
                refresh: match given("templateRefresh") {
                    None => REFRESHED,
                    Some(node) => duration(&node, REFRESH)?,
                },
                bits_per_second: match given("rate") {
                    None => BITS_PER_SECOND,
                    Some(node) => match throughput(&node)? {
                        Throughput::BitsPerSecond(bits) if bits >= LEAST_BITS => bits,
                        _ => return Err(node.expected("a rate in bits of at least 1Mbps")),
                    },
                },
            })
        }
        (None, Some(file)) => {
            let idle = OUTLET.fields.iter().filter(|field| field.name != "file");
            if let Some(idle) = idle.filter_map(|field| given(field.name)).next() {
                return Err(idle.error("expected no other field with file"));
            }
            let path = PathBuf::from(file.string(FILE)?);
            match path.file_name() {
                Some(_) => Ok(Outlet::File(path)),
                None => Err(file.expected(FILE)),
            }
        }
        _ => Err(fields.error("expected either a collector or a file")),
    }
}
