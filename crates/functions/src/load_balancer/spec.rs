//! Configuration of `loadBalancer`.

use crate::kind::Context;
use crate::load_balancer::{
    Backend, BackendState, DEFAULT_TABLE_SIZE, Destination, MAX_BACKENDS, MAX_SERVICES, MAX_WEIGHT, Service, is_prime,
    most_backends,
};
use ipnet::IpNet;
use std::net::IpAddr;
use std::ops::RangeInclusive;
use tailwater_api::error::SpecError;
use tailwater_api::located::Located;
use tailwater_api::schema::{ADDRESS, Field, MAC, Map, PORT_OR_ANY, PREFIX, Rule, Type};
use tailwater_api::values::{PacketAction, mac, prefix};

/// Range of look-up table sizes. The total over all services is bounded as well.
const TABLE_SIZE: RangeInclusive<u64> = 101..=10_000_019;
const MAX_PLACES: u64 = 1 << 27;

/// Fields of the configuration.
pub(super) static FIELDS: Map = Map {
    fields: &[
        Field::new(
            "services",
            Type::List(&Type::Map(&SERVICE), 1, MAX_SERVICES),
            "Services, none twice.",
        )
        .required()
        .example("[{address: 192.0.2.1, port: 80, protocol: tcp, backends: [{address: 10.0.0.1}]}]"),
        Field::new(
            "tableSize",
            Type::whole(&TABLE_SIZE),
            "Entries of each service's look-up table, a prime; at most 134,217,728 in all, of 2 bytes each.",
        )
        .or("65537"),
        Field::new("noService", PacketAction::TYPE, "Packets to none of the services.").or("pass"),
    ],
    nullable: true,
    ..Map::PLAIN
};
static SERVICE: Map = Map {
    fields: &[
        Field::new("address", Type::Text(&PREFIX), "Its addresses, IPv4 or IPv6.")
            .required()
            .example("192.0.2.1"),
        Field::new("port", Type::Text(&PORT_OR_ANY), "Its port, or `any`.")
            .required()
            .example("80"),
        Field::new("protocol", Type::Words(&["tcp", "udp"]), "Its protocol.")
            .required()
            .example("tcp"),
        Field::new(
            "mode",
            Type::Words(&["address", "mac"]),
            "Way of packets to a backend: with its address and port, or its MAC address, as their destination.",
        )
        .or("address"),
        Field::new(
            "backends",
            Type::List(&Type::Map(&BACKEND), 1, MAX_BACKENDS),
            "Backends, none twice; at most a hundredth of `tableSize`.",
        )
        .required()
        .example("[{address: 10.0.0.1}]"),
    ],
    ..Map::PLAIN
};
const BACKEND_ADDRESS: Field = Field::new(
    "address",
    Type::Text(&ADDRESS),
    "Its address, of the service's IP version; required in mode `address`.",
)
.example("10.0.0.1");
const BACKEND_PORT: Field = Field::new("port", Type::Whole(1, 65_535), "Its port.")
    .otherwise("the packet's own")
    .only_with("address");
const BACKEND_MAC: Field = Field::new(
    "mac",
    Type::Text(&MAC),
    "Its MAC address; unicast; required in mode `mac`.",
)
.example("02:00:00:00:00:02");
const WEIGHT: Field = Field::new(
    "weight",
    Type::Whole(1, MAX_WEIGHT as u64),
    "Relative share of new flows.",
)
.or("1");
const STATE: Field = Field::new(
    "state",
    Type::Words(&["up", "drain", "down"]),
    "`drain`: keeps its flows and gets no new ones. `down`: its flows move to others.",
)
.or("up");
/// Fields of a backend in either mode.
static BACKEND: Map = Map {
    fields: &[BACKEND_ADDRESS, BACKEND_PORT, BACKEND_MAC, WEIGHT, STATE],
    rules: &[Rule::ExactlyOne(&["address", "mac"])],
    ..Map::PLAIN
};
static BACKEND_BY_ADDRESS: Map = Map {
    fields: &[BACKEND_ADDRESS, BACKEND_PORT, WEIGHT, STATE],
    ..Map::PLAIN
};
static BACKEND_BY_MAC: Map = Map {
    fields: &[BACKEND_MAC, WEIGHT, STATE],
    ..Map::PLAIN
};

/// Load balancing: flows to virtual services go to one of their backends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoadBalancerConfig {
    /// Services: 1 to 1024.
    pub services: Vec<Service>,
    /// Number of slots in each service's look-up table; a prime.
    pub table_size: u32,
    /// Treatment of packets to none of the services.
    pub no_service: PacketAction,
}

/// Method of forwarding packets to a backend.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Mode {
    Address,
    Mac,
}

impl LoadBalancerConfig {
    pub(super) fn parse(node: &Located<'_>, _: &Context<'_>) -> Result<Self, SpecError> {
        let fields = node.fields_of(&FIELDS)?;
        let table_size = match fields.optional("tableSize") {
            None => DEFAULT_TABLE_SIZE,
            Some(node) => prime(&node)?,
        };
        let list = fields.required("services", "a list of services")?;
        let mut services: Vec<Service> = Vec::new();
        for item in list.list("services", MAX_SERVICES)? {
            let service = service(&item, table_size)?;
            let same = |other: &Service| {
                (other.address, other.port, other.protocol) == (service.address, service.port, service.protocol)
            };
            if let Some(other) = services.iter().position(same) {
                let what = format!("a service that is not services[{other}]");
                return Err(item.error(format!("expected {what}, found the same again")));
            }
            services.push(service);
        }
        if services.len() as u64 * u64::from(table_size) > MAX_PLACES {
            let message = format!(
                "expected at most {MAX_PLACES} slots in the tables of all services, found {} x {table_size}",
                services.len()
            );
            return Err(list.error(message));
        }
        let no_service = fields.optional("noService");
        Ok(LoadBalancerConfig {
            services,
            table_size,
            no_service: no_service.map_or(Ok(PacketAction::Pass), |node| PacketAction::parse(&node))?,
        })
    }
}

fn prime(node: &Located<'_>) -> Result<u32, SpecError> {
    let size = node.whole(TABLE_SIZE)? as u32;
    if !is_prime(size) {
        let next = (size..).find(|size| is_prime(*size));
        let suggestion = next.map(|size| size.to_string());
        return Err(node.expected("a prime").suggest(suggestion));
    }
    Ok(size)
}

fn service(node: &Located<'_>, table_size: u32) -> Result<Service, SpecError> {
    let fields = node.fields_of(&SERVICE)?;
    let address = prefix(&fields.required("address", "an IP address or prefix")?)?;
    let port = match fields.required("port", "a port from 1 to 65535, or any")? {
        node if node.text("").is_ok_and(|text| text == "any") => None,
        node => Some(port(&node)?),
    };
    let protocol = fields.required("protocol", "tcp or udp")?;
    let protocol = protocol.word(&[("tcp", 6), ("udp", 17)])?;
    let mode = match fields.optional("mode") {
        None => Mode::Address,
        Some(node) => node.word(&[("address", Mode::Address), ("mac", Mode::Mac)])?,
    };
    let list = fields.required("backends", "a list of backends")?;
    let mut backends: Vec<Backend> = Vec::new();
    let most = most_backends(table_size);
    let items = list.list("backends", MAX_BACKENDS)?;
    if items.len() > most {
        let message = format!(
            "expected at most {most} backends, a hundredth of tableSize, found {}",
            items.len()
        );
        return Err(list.error(message));
    }
    let mut seen = std::collections::HashMap::new();
    for (index, item) in items.iter().enumerate() {
        let backend = backend(item, mode, address)?;
        if let Some(other) = seen.insert(backend.destination, index) {
            let what = format!("a backend that is not backends[{other}]");
            return Err(item.error(format!("expected {what}, found the same again")));
        }
        backends.push(backend);
    }
    Ok(Service {
        address,
        port,
        protocol,
        backends,
    })
}

fn port(node: &Located<'_>) -> Result<u16, SpecError> {
    node.whole(1..=65_535).map(|port| port as u16)
}

fn backend(node: &Located<'_>, mode: Mode, service: IpNet) -> Result<Backend, SpecError> {
    let fields = node.fields_of(match mode {
        Mode::Address => &BACKEND_BY_ADDRESS,
        Mode::Mac => &BACKEND_BY_MAC,
    })?;
    let destination = match mode {
        Mode::Mac => {
            let node = fields.required("mac", "the backend's MAC address")?;
            let address = mac(&node)?;
            if address[0] & 1 != 0 {
                return Err(node.expected("a unicast MAC address"));
            }
            Destination::Mac(address)
        }
        Mode::Address => {
            let node = fields.required("address", "the backend's IP address")?;
            let version = if service.addr().is_ipv4() { 4 } else { 6 };
            let what = format!("an IPv{version} address, as the service's");
            let address: IpAddr = node
                .text(&what)?
                .parse()
                .ok()
                .filter(|address: &IpAddr| address.is_ipv4() == (version == 4))
                .ok_or_else(|| node.expected(&what))?;
            let port = fields.optional("port").map(|node| port(&node)).transpose()?;
            Destination::Address(address, port)
        }
    };
    Ok(Backend {
        destination,
        weight: match fields.optional("weight") {
            None => 1,
            Some(node) => node.whole(1..=u64::from(MAX_WEIGHT))? as u32,
        },
        state: match fields.optional("state") {
            None => BackendState::Up,
            Some(node) => node.word(&[
                ("up", BackendState::Up),
                ("drain", BackendState::Drain),
                ("down", BackendState::Down),
            ])?,
        },
    })
}
