//! Configuration of `mirror`.

use crate::bpf_filter::Instruction;
use crate::bpf_filter::{EXPRESSION, PROGRAM_FILE, program};
use crate::kind::Context;
use crate::mirror::{Options, Outlet, Sampling};
use std::ops::RangeInclusive;
use std::path::PathBuf;
use tailwater_api::error::SpecError;
use tailwater_api::located::Located;
use tailwater_api::schema::{Field, Map, Rule, Text, Type};
use tailwater_api::values::size;
use tailwater_net::pcap::MAX_FRAME;

/// Range of file sizes in bytes: the minimum holds any packet.
const FILE_BYTES: RangeInclusive<u64> = 128 << 10..=1 << 40;
const USUAL_FILE_BYTES: u64 = 1 << 30;
const MAX_FILES: u64 = 100;
/// Range of sizes of each worker's ring in bytes.
const BUFFER: RangeInclusive<u64> = 64 << 10..=1 << 30;
const USUAL_BUFFER: u64 = 4 << 20;
/// Minimum snap length in bytes: IPv6 and TCP headers behind two VLAN tags fit.
const LEAST_SNAP: u64 = 96;
const MAX_EVERY: u64 = 1_000_000;
/// Maximum length of an interface name.
const MAX_NAME: usize = 15;

const TO: &str = "a destination of copies: {file: NAME} or {interface: NAME}";
const FILE: &str = "the name of a file";
const INTERFACE: &str = "the name of a network interface, of at most 15 bytes";

/// Fields of the configuration.
pub(super) static FIELDS: Map = Map {
    fields: &[
        Field::new("to", Type::Map(&OUTLET), "Destination of copies.")
            .required()
            .example("{file: copies.pcap}"),
        EXPRESSION,
        PROGRAM_FILE,
        Field::new("sample", Type::Map(&SAMPLE), "Sampling of the packets that match.").otherwise("all packets"),
        Field::new(
            "snap",
            Type::Whole(LEAST_SNAP, MAX_FRAME as u64),
            "Longest copy in bytes.",
        )
        .otherwise("whole packets"),
        Field::new(
            "buffer",
            Type::size(&BUFFER),
            "Ring for copies, per core; rounded up to a power of two.",
        )
        .or("4MiB"),
    ],
    rules: &[Rule::AtMostOne(&["expression", "programFile"])],
    nullable: true,
};
static INTERFACE_NAME: Text = Text {
    what: "the name of a network interface",
    pattern: "^[^/ \\t\\n\\r]+$",
    most: MAX_NAME,
    example: "veth0",
    whole: None,
};
static OUTLET: Map = Map {
    fields: &[
        Field::new(
            "file",
            Type::Text(&tailwater_api::schema::FILE),
            "Nanosecond pcap file, overwritten, relative to the program's working directory.",
        )
        .example("copies.pcap"),
        Field::new("maxBytes", Type::size(&FILE_BYTES), "Maximum file size.")
            .or("1GiB")
            .only_with("file"),
        Field::new(
            "files",
            Type::Whole(1, MAX_FILES),
            "1: a full file ends the copying. More: a full file becomes `NAME.1`, the earlier one `NAME.2`, and so on.",
        )
        .or("1")
        .only_with("file"),
        Field::new(
            "interface",
            Type::Text(&INTERFACE_NAME),
            "Kernel interface (veth, TAP, NIC); requires `CAP_NET_RAW`, no DPDK.",
        )
        .example("veth0"),
    ],
    rules: &[Rule::ExactlyOne(&["file", "interface"])],
    ..Map::PLAIN
};
static SAMPLE: Map = Map {
    fields: &[
        Field::new(
            "every",
            Type::Whole(1, MAX_EVERY),
            "One of so many matching packets is copied.",
        )
        .required()
        .example("100"),
        Field::new(
            "by",
            Type::Words(&["packet", "flow"]),
            "`packet`: every n-th on each core. `flow`: all packets of one flow in n, by RSS hash.",
        )
        .or("packet"),
    ],
    ..Map::PLAIN
};

/// Port mirroring: copies of packets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MirrorConfig {
    /// Destination of the copies.
    pub options: Options,
    /// Verified BPF program that selects packets to copy; `None` selects all.
    pub program: Option<Vec<Instruction>>,
    /// Sampling of the selected packets.
    pub sampling: Sampling,
    /// Maximum length of a copy in bytes.
    pub snap: usize,
}

impl MirrorConfig {
    pub(super) fn parse(node: &Located<'_>, context: &Context<'_>) -> Result<Self, SpecError> {
        let fields = node.fields_of(&FIELDS)?;
        let to = outlet(&fields.required("to", TO)?)?;
        let filtered = ["expression", "programFile"];
        let filtered = filtered.iter().any(|name| fields.optional(name).is_some());
        // This function is never isolated, so libpcap may be loaded.
        let program = filtered.then(|| program(&fields, context)).transpose()?;
        let sampling = fields.optional("sample");
        let snap = fields.optional("snap");
        let buffer = fields.optional("buffer");
        let buffer = buffer.map_or(Ok(USUAL_BUFFER), |node| {
            size(&node, BUFFER, "a size between 64KiB and 1GiB such as 4MiB")
        })?;
        Ok(MirrorConfig {
            options: Options {
                to: Some(to),
                buffer: buffer.next_power_of_two() as usize,
            },
            program,
            sampling: sampling.map_or(Ok(Sampling::All), |node| sample(&node))?,
            snap: snap.map_or(Ok(u64::from(MAX_FRAME)), |node| {
                node.whole(LEAST_SNAP..=MAX_FRAME.into())
            })? as usize,
        })
    }

    /// Returns the capture files, including the names that full ones are renamed to; empty if copies go elsewhere.
    pub fn files(&self) -> Vec<PathBuf> {
        let files = self.options.to.as_ref().map(Outlet::files);
        files.unwrap_or_default()
    }
}

fn outlet(node: &Located<'_>) -> Result<Outlet, SpecError> {
    let fields = node.fields_of(&OUTLET)?;
    let given = |name| fields.optional(name);
    match (given("file"), given("interface")) {
        (Some(file), None) => {
            let path = PathBuf::from(file.string(FILE)?);
            if path.file_name().is_none() {
                return Err(file.expected(FILE));
            }
            let max_bytes = given("maxBytes").map_or(Ok(USUAL_FILE_BYTES), |node| {
                size(&node, FILE_BYTES, "a size between 128KiB and 1024GiB such as 1GiB")
            })?;
            let files = given("files").map_or(Ok(1), |node| node.whole(1..=MAX_FILES))? as u32;
            Ok(Outlet::File { path, max_bytes, files })
        }
        (None, Some(interface)) => {
            let of_files = ["maxBytes", "files"].into_iter().filter_map(given).next();
            if let Some(idle) = of_files {
                return Err(idle.error("expected maxBytes and files only with file"));
            }
            let name = interface.string(INTERFACE)?;
            let wrong = |c: char| c == '/' || c.is_whitespace() || c.is_control();
            if name.is_empty() || name.len() > MAX_NAME || name.contains(wrong) {
                return Err(interface.expected(INTERFACE));
            }
            Ok(Outlet::Interface(name.to_owned()))
        }
        _ => Err(fields.error("expected either a file or an interface")),
    }
}

fn sample(node: &Located<'_>) -> Result<Sampling, SpecError> {
    let fields = node.fields_of(&SAMPLE)?;
    let every = fields.required("every", "a number N: one packet or flow in N is copied")?;
    let every = every.whole(1..=MAX_EVERY)? as u32;
    let words = [("packet", Sampling::Packets(every)), ("flow", Sampling::Flows(every))];
    let by = fields.optional("by");
    let by = by.map_or(Ok(words[0].1), |node| node.word(&words))?;
    Ok(if every == 1 { Sampling::All } else { by })
}
