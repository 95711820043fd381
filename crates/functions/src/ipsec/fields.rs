//! Fields of the configuration of `ipsec`.

use super::{MAX_ASSOCIATIONS, MAX_POLICIES, MAX_WINDOW};
use crate::acl::rule_list::{DESTINATION, DESTINATION_PORTS, IP_PROTOCOL, SOURCE, SOURCE_PORTS};
use crate::policer::CODE_POINT_OR_COPY;
use tailwater_api::schema::{ADDRESS, FILE, Field, KEY, LABEL, Map, Rule, Text, Type};
use tailwater_api::values::PacketAction;

/// Fields of the configuration.
pub(super) static FIELDS: Map = Map {
    fields: &[
        Field::new(
            "outbound",
            Type::List(&Type::Map(&OUTBOUND), 1, MAX_ASSOCIATIONS),
            "Security associations for sending.",
        )
        .otherwise("none"),
        Field::new(
            "inbound",
            Type::List(&Type::Map(&INBOUND), 1, MAX_ASSOCIATIONS),
            "Security associations for receiving, each `spi` once.",
        )
        .otherwise("none")
        .example(
            "[{name: a, spi: 4097, cipher: aes-128-gcm, key: 00112233445566778899aabbccddeeff00112233, \
             destination: 192.0.2.1}]",
        ),
        Field::new(
            "policies",
            Type::List(&Type::Map(&POLICY), 1, MAX_POLICIES),
            "Policies in order; the first that matches decides.",
        )
        .otherwise("none"),
        Field::new("default", PacketAction::TYPE, "Packets that no policy matches.").or("drop"),
        Field::new("mtu", Type::Whole(576, 65_535), "Longest outer IP packet.").or("1500"),
        Field::new(
            "ike",
            PacketAction::TYPE,
            "Key-exchange packets on ESP's UDP port (four zero bytes first).",
        )
        .or("pass"),
        Field::new("keepAlives", PacketAction::TYPE, "NAT keep-alives (one byte, 0xff).").or("drop"),
    ],
    rules: &[Rule::AtLeastOne(&["outbound", "inbound"])],
    nullable: true,
};

static SPI_FORM: Text = Text {
    what: "an index from 256 to 4294967295, decimal, or hexadecimal with 0x",
    pattern: "^(0x[0-9a-fA-F]{1,16}|[0-9]{3,10})$",
    most: 18,
    example: "0x1001",
    whole: Some((256, u32::MAX as u64)),
};
const NAME: Field = Field::new("name", Type::Text(&LABEL), "Name, for policies and errors; unique.")
    .required()
    .example("north");
const SPI: Field = Field::new("spi", Type::Text(&SPI_FORM), "Security parameters index.")
    .required()
    .example("4097");
const CIPHER: Field = Field::new(
    "cipher",
    Type::Words(&["aes-128-gcm", "aes-256-gcm", "chacha20-poly1305"]),
    "Cipher (RFC 4106, RFC 7634), with check values of 16 bytes.",
)
.required()
.example("aes-128-gcm");
const KEY_DIGITS: Field = Field::new(
    "key",
    Type::Text(&KEY),
    "The key and 4 bytes of salt, as for `ip xfrm`: 40, 72, 72 hexadecimal digits.",
);
const KEY_FILE: Field = Field::new(
    "keyFile",
    Type::Text(&FILE),
    "File with the digits, relative to the spec's folder. A world-readable file gives a warning.",
);
const ESN: Field = Field::new(
    "esn",
    Type::Bool,
    "64-bit sequence numbers, of which 32 bits are sent; equal at both ends.",
)
.or("false");
const FIRST_SEQUENCE: Field = Field::new(
    "firstSequence",
    Type::Whole(1, u64::MAX >> 1),
    "The first packet's number, equal at both ends; below 2^32 without `esn`.",
)
.or("1");

/// Fields of an outbound association.
pub(super) static OUTBOUND: Map = Map {
    fields: &[
        NAME,
        SPI,
        CIPHER,
        KEY_DIGITS,
        KEY_FILE,
        ESN,
        Field::new(
            "source",
            Type::Text(&ADDRESS),
            "Source of the outer header; IPv4 or IPv6, independent of the inside.",
        )
        .required()
        .example("192.0.2.1"),
        Field::new(
            "destination",
            Type::Text(&ADDRESS),
            "Destination of the outer header: the other end.",
        )
        .required()
        .example("192.0.2.2"),
        Field::new(
            "udp",
            Type::OneOf(&UDP_OUT),
            "ESP in UDP (RFC 3948): `true` for ports 4500, or a map of ports.",
        )
        .or("false"),
        Field::new("ttl", Type::Whole(1, 255), "Time to live, hop limit.").or("64"),
        Field::new(
            "dscp",
            Type::Text(&CODE_POINT_OR_COPY),
            "Code point of the outer header, or `copy`.",
        )
        .or("copy"),
        Field::new(
            "df",
            Type::Words(&["copy", "set", "clear"]),
            "\"Don't fragment\" of an outer IPv4 header; with IPv6 inside, `copy` sets it.",
        )
        .or("copy"),
        FIRST_SEQUENCE,
    ],
    rules: &[Rule::ExactlyOne(&["key", "keyFile"])],
    ..Map::PLAIN
};
static UDP_OUT: [Type; 2] = [Type::Bool, Type::Map(&UDP_PORTS)];
/// Fields of UDP ports.
pub(super) static UDP_PORTS: Map = Map {
    fields: &[
        Field::new("source", Type::Whole(1, 65_535), "Source port.").or("4500"),
        Field::new("destination", Type::Whole(1, 65_535), "Destination port.").or("4500"),
    ],
    ..Map::PLAIN
};

/// Fields of an inbound association.
pub(super) static INBOUND: Map = Map {
    fields: &[
        NAME,
        SPI,
        CIPHER,
        KEY_DIGITS,
        KEY_FILE,
        ESN,
        Field::new(
            "destination",
            Type::Text(&ADDRESS),
            "Destination of the outer header: this end.",
        )
        .required()
        .example("192.0.2.1"),
        Field::new(
            "udp",
            Type::OneOf(&UDP_IN),
            "ESP arrives in UDP on this port, and only so; `true` stands for 4500.",
        )
        .or("false"),
        Field::new(
            "replayWindow",
            Type::Text(&WINDOW_OR_NONE),
            "Packets of the anti-replay window, or `none`; required with `esn`.",
        )
        .or("1024"),
        FIRST_SEQUENCE,
        Field::new(
            "allow",
            Type::List(&Type::Map(&ALLOWED), 1, MAX_POLICIES),
            "Permitted inner packets.",
        )
        .otherwise("everything"),
    ],
    rules: &[Rule::ExactlyOne(&["key", "keyFile"])],
    ..Map::PLAIN
};
static UDP_IN: [Type; 2] = [Type::Bool, Type::Whole(1, 65_535)];
static WINDOW_OR_NONE: Text = Text {
    what: "a number of packets, or none",
    pattern: "^none$",
    most: 4,
    example: "none",
    whole: Some((32, MAX_WINDOW as u64)),
};

/// Fields of a policy.
pub(super) static POLICY: Map = Map {
    fields: &[
        Field::new("protect", Type::Text(&LABEL), "Outbound association that encapsulates."),
        Field::new("action", Type::Words(&["pass", "drop"]), "Passes unchanged, or drops.").example("pass"),
        SOURCE,
        DESTINATION,
        SOURCE_PORTS,
        DESTINATION_PORTS,
        IP_PROTOCOL,
    ],
    rules: &[Rule::ExactlyOne(&["action", "protect"])],
    ..Map::PLAIN
};
/// Fields of permitted packets.
pub(super) static ALLOWED: Map = Map {
    fields: &[SOURCE, DESTINATION, SOURCE_PORTS, DESTINATION_PORTS, IP_PROTOCOL],
    ..Map::PLAIN
};
