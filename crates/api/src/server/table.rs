//! Fields of a server's `spec`.

use super::admission::ADMISSION;
use super::cache::CACHE;
use super::paths::LONGEST_PATH;
use super::telemetry::TELEMETRY;
use crate::ports::PORTS;
use crate::schema::{CORES, DEVICE, FILE, Field, Kind, LABEL, METRICS, Map, Rule, Text, Type};
use std::ops::RangeInclusive;
use tailwater_net::Nanos;

/// `kind` of server specs.
pub(super) const KIND: &str = "Server";
/// Maximum number of entries of `chains`.
pub(super) const MAX_CHAINS: usize = 1024;
/// Longest name of a policy or group in bytes.
pub(super) const LONGEST_NAME: usize = 64;
pub(super) const BUFFERS: RangeInclusive<u64> = 1 << 20..=64 << 30;
/// Maximum number of ports of a server.
pub const MAX_PORTS: usize = 64;
/// Longest name of a file or preset in bytes.
pub(super) const LONGEST: usize = 4096;
/// Low bits of addresses that change when traffic is repeated.
pub(super) const RENUMBER_BITS: RangeInclusive<u64> = 0..=16;
pub(super) const DURATION: RangeInclusive<Nanos> = Nanos::from_millis(1)..=Nanos::from_secs(86_400);

/// Schema of the kind.
pub static SCHEMA: Kind = Kind {
    name: KIND,
    doc: "One machine that runs many chains: its resources, and the chains that it starts with.",
    spec: &FIELDS,
};

static GROUP: Text = Text {
    what: "the name or number of a group",
    pattern: "^[^:,\\n]+$",
    most: LONGEST_NAME,
    example: "operators",
    whole: Some((0, 4_294_967_295)),
};
static CONTROLS: [Type; 2] = [Type::Text(&FILE), Type::Map(&CONTROL)];

/// Fields of `spec`.
pub(super) static FIELDS: Map = Map {
    fields: &[
        Field::new(
            "cores",
            Type::Text(&CORES),
            "Cores that chains may have as dedicated ones.",
        )
        .required()
        .example("1-3"),
        Field::new(
            "auxiliary",
            Type::Text(&CORES),
            "Auxiliary cores that all chains share; none of `cores`.",
        )
        .otherwise("none")
        .example("4"),
        Field::new(
            "ports",
            Type::List(&Type::Map(&PORT), 1, MAX_PORTS),
            "Ports that the chains share.",
        )
        .required()
        .example("[{name: north, traffic: bursty}]"),
        Field::new(
            "packetBuffers",
            Type::size(&BUFFERS),
            "Memory for the packets of each port; at most 65,535 packets are used.",
        )
        .otherwise("54 MiB (32,768 packets)")
        .example("64MiB"),
        Field::new(
            "unmatched",
            Type::Words(&["drop", "forward"]),
            "Treatment of packets that no chain matches. `forward` requires an exit at each port.",
        )
        .or("drop"),
        Field::new(
            "chains",
            Type::List(&Type::Text(&FILE), 0, MAX_CHAINS),
            "Files and folders of chains, relative to the spec's folder. Of a folder: `*.yaml` and `*.yml` that do not \
             begin with a dot.",
        )
        .otherwise("none")
        .example("[chains/]"),
        Field::new("watch", Type::Bool, "Applies changes of the files of `chains`.").or("false"),
        Field::new("control", Type::OneOf(&CONTROLS), "Control socket: its path, or a map."),
        Field::new(
            "metrics",
            Type::Text(&METRICS),
            "Address of the metrics, and of `/healthz` and `/readyz`; a port alone means 127.0.0.1.",
        )
        .otherwise("none")
        .example("9100"),
        Field::new(
            "telemetry",
            Type::Map(&TELEMETRY),
            "Export of events and packet traces by OpenTelemetry's protocol (OTLP).",
        )
        .otherwise("none, unless `$OTEL_EXPORTER_OTLP_ENDPOINT` is set"),
        Field::new(
            "policy",
            Type::Any(LONGEST_NAME),
            "Policy by which chains use auxiliary cores: `tailwater`, `netblaze` or `static`.",
        )
        .otherwise("tailwater"),
        Field::new(
            "keepPackets",
            Type::Text(&FILE),
            "Folder to keep late, lost and dropped packets in, with a folder for each chain.",
        )
        .otherwise("none")
        .example("/var/lib/tailwater/kept"),
        Field::new(
            "stateDirectory",
            Type::Text(&FILE),
            "Folder of the applied configuration.",
        )
        .otherwise("`$XDG_STATE_HOME/tailwater/NAME`, or `/var/lib/tailwater/NAME`"),
        Field::new(
            "admission",
            Type::Map(&ADMISSION),
            "Admission of chains by their profiles.",
        )
        .otherwise("chains are not checked"),
        Field::new(
            "cache",
            Type::Map(&CACHE),
            "Division of the last-level cache among the cores; the map can be empty.",
        )
        .otherwise("the cache is not divided"),
    ],
    ..Map::PLAIN
};

/// Fields of `control`.
pub(super) static CONTROL: Map = Map {
    fields: &[
        Field::new("socket", Type::Text(&FILE), "Path of the socket, at most 107 bytes.")
            .otherwise("`$XDG_RUNTIME_DIR/tailwater/NAME.sock`, or `/run/tailwater/NAME.sock`"),
        Field::new(
            "readers",
            Type::Text(&GROUP),
            "Name or number of a group whose members may read.",
        )
        .otherwise("none"),
    ],
    ..Map::PLAIN
};

static DEVICES: [Type; 2] = [Type::Text(&DEVICE), Type::Map(&PORTS)];

/// Fields of a port.
pub(super) static PORT: Map = Map {
    fields: &[
        Field::new("name", Type::Text(&LABEL), "Name of the port, unique on the server.")
            .required()
            .example("north"),
        Field::new(
            "port",
            Type::OneOf(&DEVICES),
            "Devices: the entry alone, or the fields of a chain's `spec.ports`.",
        )
        .example("{entry: 0000:3b:00.0, exit: 0000:3b:00.1}"),
        Field::new(
            "traffic",
            Type::Any(LONGEST),
            "Traffic in place of devices: a preset, or a capture file relative to the spec's folder.",
        )
        .example("bursty"),
        Field::new("rate", Type::Rate, "Mean rate.")
            .otherwise("the traffic's own")
            .only_with("traffic"),
        Field::new("repeat", Type::Bool, "Starts again at the traffic's end.")
            .or("false")
            .only_with("traffic"),
        Field::new(
            "renumberBits",
            Type::whole(&RENUMBER_BITS),
            "Low bits of all addresses that are others each time the traffic starts again, so that flows are new; 0: \
             the same packets.",
        )
        .or("8")
        .only_with("traffic"),
        Field::new(
            "duration",
            Type::duration(&DURATION),
            "Time after which the traffic ends.",
        )
        .otherwise("all of it")
        .only_with("traffic"),
    ],
    rules: &[Rule::ExactlyOne(&["port", "traffic"])],
    ..Map::PLAIN
};
const _: () = assert!(LONGEST_PATH == FILE.most);
