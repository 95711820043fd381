//! Configuration of `forward`.

use crate::kind::Context;
use tailwater_api::error::SpecError;
use tailwater_api::located::Located;
use tailwater_api::schema::{Field, MAC, Map, Type};
use tailwater_api::values::mac;

/// Fields of the configuration.
pub(super) static FIELDS: Map = Map {
    fields: &[
        Field::new(
            "sourceMac",
            Type::Text(&MAC),
            "Ethernet source set in each packet; unicast.",
        )
        .otherwise("unchanged")
        .example("02:00:00:00:00:01"),
        Field::new(
            "destinationMac",
            Type::Text(&MAC),
            "Ethernet destination set in each packet.",
        )
        .otherwise("unchanged")
        .example("02:00:00:00:00:02"),
    ],
    nullable: true,
    ..Map::PLAIN
};

/// Forwarding with these Ethernet addresses.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ForwardConfig {
    /// Source address to set; `None` keeps the packet's own.
    pub source_mac: Option<[u8; 6]>,
    /// Destination address to set; `None` keeps the packet's own.
    pub destination_mac: Option<[u8; 6]>,
}

impl ForwardConfig {
    pub(super) fn parse(node: &Located<'_>, _: &Context<'_>) -> Result<Self, SpecError> {
        let fields = node.fields_of(&FIELDS)?;
        let source_mac = fields.optional("sourceMac");
        let destination_mac = fields.optional("destinationMac");
        Ok(ForwardConfig {
            source_mac: source_mac.map(|node| unicast(&node)).transpose()?,
            destination_mac: destination_mac.map(|node| mac(&node)).transpose()?,
        })
    }
}

/// Parses a MAC address that is valid as a source (IEEE 802: the group bit is zero).
pub(crate) fn unicast(node: &Located<'_>) -> Result<[u8; 6], SpecError> {
    let address = mac(node)?;
    if address[0] & 1 != 0 {
        return Err(node.expected("a unicast MAC address, as a source must have"));
    }
    Ok(address)
}
