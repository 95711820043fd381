//! Fields of `wasm`.

use tailwater_api::schema::{FILE, Field, Map, Type};

/// Name of the kind.
pub(super) const NAME: &str = "wasm";
/// Highest number of instructions for a packet, as for `xdp`.
pub(super) const MAX_INSTRUCTIONS: u64 = 1_000_000;
/// Memory of a module, and the least that it can be limited to: a page.
pub(super) const MEMORY: std::ops::RangeInclusive<u64> = 64 << 10..=1 << 30;

/// Fields of the configuration.
pub(super) static FIELDS: Map = Map {
    fields: &[
        Field::new(
            "file",
            Type::Text(&FILE),
            "WebAssembly module, relative to the spec's folder.",
        )
        .required()
        .example("./limit.wasm"),
        Field::new(
            "config",
            Type::Object,
            "The function's own configuration: any map, which it reads as JSON.",
        )
        .otherwise("none")
        .example("{packetsPerSecond: 2000}"),
        Field::new(
            "readOnly",
            Type::Bool,
            "The function changes no byte of a frame; changes are not copied back.",
        )
        .or("false"),
        Field::new(
            "instructionLimit",
            Type::Whole(1, MAX_INSTRUCTIONS),
            "Instructions that a call may take for each of its packets; the packets of one that takes more are dropped \
             as `wasm-limit`.",
        )
        .or("65536"),
        Field::new("memoryLimit", Type::size(&MEMORY), "Memory of each worker's instance.").or("16MiB"),
    ],
    ..Map::PLAIN
};
