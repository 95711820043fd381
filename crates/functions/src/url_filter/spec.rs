//! Configuration of `urlFilter`.

use crate::kind::Context;
use crate::url_filter::pattern::{MAX_PATTERN_BYTES, MAX_PATTERNS, MAX_TEXT_BYTES};
use crate::url_filter::{Action, FilterConfig, Pattern, Ports, Rest, parse_list};
use std::path::PathBuf;
use tailwater_api::error::SpecError;
use tailwater_api::files::read_text;
use tailwater_api::located::{Fields, Located};
use tailwater_api::schema::{FILE, Field, Map, PORTS, Rule, Type};
use tailwater_api::values::{PacketAction, ports};

/// Maximum number of ports and ranges in a list.
const MAX_PORTS: usize = 64;
/// Maximum memory in bytes of the buffers that all workers share.
const MAX_MEMORY: u64 = 4 << 30;

const PATTERN: Type = Type::Any(MAX_PATTERN_BYTES);
const PORT_LIST: Type = Type::OneOf(&PORT_LISTS);
static PORT_LISTS: [Type; 2] = [Type::Text(&PORTS), Type::List(&Type::Text(&PORTS), 1, MAX_PORTS)];
/// Fields of the configuration.
pub(super) static FIELDS: Map = Map {
    fields: &[
        Field::new(
            "patterns",
            Type::List(&PATTERN, 1, MAX_PATTERNS),
            "Patterns such as `example.com`, `example.com/path` or `*text*`.",
        )
        .example("[example.com]"),
        Field::new(
            "patternsFile",
            Type::Text(&FILE),
            "File with a pattern per line, relative to the spec's folder; UTF-8, up to 16 MiB.",
        ),
        Field::new(
            "action",
            Type::Words(&["drop", "alert"]),
            "`alert` counts a match and passes it.",
        )
        .or("drop"),
        Field::new(
            "restOfFlow",
            PacketAction::TYPE,
            "Later packets of a blocked flow. With `pass` only packets with the byte that completed the match \
             are dropped.",
        )
        .or("drop")
        .only_unless_changed("action", "drop"),
        Field::new("httpPorts", PORT_LIST, "Destination ports inspected for HTTP.").or("any"),
        Field::new("tlsPorts", PORT_LIST, "Destination ports inspected for TLS.").or("any"),
        Field::new(
            "streams",
            Type::Whole(1, 1_000_000),
            "Streams with buffered data at once, of all workers.",
        )
        .or("4096"),
        Field::new(
            "bufferBytes",
            Type::Whole(1024, 32_768),
            "Longest request line, and largest reordering distance; a power of two.",
        )
        .or("4096"),
        Field::new("onOverflow", PacketAction::TYPE, "Packets that cannot be inspected.").or("pass"),
        Field::new(
            "fragments",
            PacketAction::TYPE,
            "IP fragments of TCP segments, which are not inspected.",
        )
        .or("pass"),
    ],
    rules: &[Rule::AtLeastOne(&["patterns", "patternsFile"])],
    nullable: true,
};

/// Filtering by host and URL of HTTP requests, and by server name of TLS ClientHellos.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UrlFilterConfig {
    /// Patterns to filter; at least one.
    pub patterns: Vec<Pattern>,
    /// Filter options.
    pub filter: FilterConfig,
    /// File that patterns were read from.
    pub source: Option<PathBuf>,
}

impl UrlFilterConfig {
    pub(super) fn parse(node: &Located<'_>, context: &Context<'_>) -> Result<Self, SpecError> {
        let fields = node.fields_of(&FIELDS)?;
        let (patterns, source) = patterns(&fields, context)?;
        let word = |name, words: &[_], default| {
            let node: Option<Located<'_>> = fields.optional(name);
            node.map_or(Ok(default), |node| node.word(words))
        };
        let action = word(
            "action",
            &[("drop", Action::Drop), ("alert", Action::Alert)],
            Action::Drop,
        )?;
        let rest = match fields.optional("restOfFlow") {
            None => Rest::Drop,
            Some(node) if action == Action::Alert => {
                return Err(node.error("expected restOfFlow only with action: drop"));
            }
            Some(node) => node.word(&[("drop", Rest::Drop), ("pass", Rest::Pass)])?,
        };
        let whole = |name, range, default| {
            let node = fields.optional(name);
            node.map_or(Ok(default), |node| node.whole(range))
        };
        let fate = |name| {
            let node = fields.optional(name);
            node.map_or(Ok(PacketAction::Pass), |node| PacketAction::parse(&node))
        };
        let filter = FilterConfig {
            action,
            rest,
            http_ports: port_list(fields.optional("httpPorts"))?,
            tls_ports: port_list(fields.optional("tlsPorts"))?,
            streams: whole("streams", 1..=1_000_000, 4096)? as usize,
            buffer_bytes: buffer_bytes(fields.optional("bufferBytes"))?,
            on_overflow: fate("onOverflow")?,
            fragments: fate("fragments")?,
        };
        let memory = filter.buffer_memory();
        if memory > MAX_MEMORY {
            let (memory, most) = (memory >> 20, MAX_MEMORY >> 20);
            return Err(fields.error(format!(
                "expected at most {most} MiB for streams and bufferBytes, found {memory} MiB"
            )));
        }
        Ok(UrlFilterConfig {
            patterns,
            filter,
            source,
        })
    }
}

/// Reads the patterns of the list and the file, at least one in total.
fn patterns(fields: &Fields<'_>, context: &Context<'_>) -> Result<(Vec<Pattern>, Option<PathBuf>), SpecError> {
    let mut patterns = Vec::new();
    let mut source = None;
    if let Some(node) = fields.optional("patternsFile") {
        let path = context.file(node.string("the name of a file")?);
        let name = path.display().to_string();
        let text = read_text(&path, &name).map_err(|mut error| {
            if error.path.is_empty() && error.line == 0 {
                error = error.in_field(node.path());
            }
            error
        })?;
        patterns = parse_list(&text)
            .map_err(|error| SpecError::whole_file(&name, error.error.to_string()).at(error.line, error.column))?;
        if patterns.is_empty() {
            let message = "expected one pattern per line, found none";
            return Err(SpecError::whole_file(&name, message));
        }
        source = Some(path);
    }
    if let Some(list) = fields.optional("patterns") {
        for item in list.list("patterns", MAX_PATTERNS)? {
            let text = item.string("a pattern such as example.com, in quotes if it has a star")?;
            let pattern = Pattern::parse(text).map_err(|error| item.error(error.to_string()))?;
            patterns.push(pattern);
        }
        let text_bytes: usize = patterns.iter().map(Pattern::text_bytes).sum();
        if patterns.len() > MAX_PATTERNS || text_bytes > MAX_TEXT_BYTES {
            return Err(list.error(format!(
                "expected at most {MAX_PATTERNS} patterns, and {MAX_TEXT_BYTES} bytes of *text* \
                 patterns, with those of the file; found more"
            )));
        }
    }
    if patterns.is_empty() {
        let message = "expected patterns, patternsFile or both, found neither";
        return Err(fields.error(message));
    }
    Ok((patterns, source))
}

/// Parses a list of ports and ranges, a single one, or `any`.
fn port_list(node: Option<Located<'_>>) -> Result<Ports, SpecError> {
    match node {
        None => Ok(Ports::any()),
        Some(node) if node.is_list() => {
            let items = node.list("ports", MAX_PORTS)?;
            Ok(Ports(items.iter().map(ports).collect::<Result<_, _>>()?))
        }
        Some(node) => Ok(Ports(vec![ports(&node)?])),
    }
}

fn buffer_bytes(node: Option<Located<'_>>) -> Result<usize, SpecError> {
    let Some(node) = node else {
        return Ok(4096);
    };
    let bytes = node.whole(1024..=32_768)?;
    if !bytes.is_power_of_two() {
        return Err(node.expected("a power of two from 1024 to 32768"));
    }
    Ok(bytes as usize)
}
