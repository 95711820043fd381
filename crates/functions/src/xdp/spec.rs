//! Configuration of `xdp`.

use super::{MAX_OBJECT, Program, parse_object};
use crate::kind::Context;
use std::path::PathBuf;
use std::sync::Arc;
use tailwater_api::error::SpecError;
use tailwater_api::files::read_bytes_up_to;
use tailwater_api::located::Located;
use tailwater_api::schema::{FILE, Field, Map, Type};

/// Instructions that a packet may take unless the spec says otherwise.
const DEFAULT_LIMIT: u64 = 65_536;
/// Highest value of that limit, as in the kernel.
const MAX_LIMIT: u64 = 1_000_000;
/// Maximum length of the name of a section or function.
const MAX_NAME: usize = 128;

/// Fields of the configuration.
pub(super) static FIELDS: Map = Map {
    fields: &[
        Field::new(
            "file",
            Type::Text(&FILE),
            "Object, relative to the spec's folder, as `clang -O2 -g -target bpf -c` compiles it.",
        )
        .required()
        .example("./filter.o"),
        Field::new(
            "section",
            Type::Any(MAX_NAME),
            "Section with the program, as `SEC` names it.",
        )
        .or("xdp"),
        Field::new(
            "function",
            Type::Any(MAX_NAME),
            "Name of the program's function, if the section has several.",
        )
        .otherwise("the only one"),
        Field::new(
            "readOnly",
            Type::Bool,
            "The program changes no byte of a frame; a packet for which it does is dropped as `xdp-aborted`.",
        )
        .or("false"),
        Field::new(
            "instructionLimit",
            Type::Whole(1, MAX_LIMIT),
            "Instructions that a packet may take; one that takes more is dropped as `xdp-aborted`.",
        )
        .or("65536"),
    ],
    ..Map::PLAIN
};

/// XDP program in user space.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct XdpConfig {
    /// File that it was read from.
    pub file: PathBuf,
    /// Verified program.
    pub program: Arc<Program>,
    /// `true` if it may change no frame.
    pub read_only: bool,
    /// Instructions that a packet may take.
    pub limit: u32,
}

impl XdpConfig {
    pub(super) fn parse(node: &Located<'_>, context: &Context<'_>) -> Result<Self, SpecError> {
        let fields = node.fields_of(&FIELDS)?;
        let file = fields.required("file", "the name of an object, such as ./filter.o")?;
        let text = |name: &str, what: &str| -> Result<Option<String>, SpecError> {
            let Some(node) = fields.optional(name) else {
                return Ok(None);
            };
            let text = node.string(what)?;
            match text.len() <= MAX_NAME {
                true => Ok(Some(text.to_owned())),
                false => Err(node.error(format!("expected a name of at most {MAX_NAME} bytes"))),
            }
        };
        let section = text("section", "the name of a section, such as xdp")?;
        let function = text("function", "the name of a function")?;
        let read_only = fields.optional("readOnly");
        let read_only = read_only
            .map(|node| node.word(&[("true", true), ("false", false)]))
            .transpose()?;
        let limit = fields.optional("instructionLimit");
        let limit = limit.map(|node| node.whole(1..=MAX_LIMIT)).transpose()?;
        let path = context.file(file.string("the name of an object, such as ./filter.o")?);
        let name = path.display().to_string();
        let bytes = read_bytes_up_to(&path, &name, MAX_OBJECT);
        let bytes = bytes.map_err(|error| file.error(format!("{name} {}", error.message)))?;
        let program = parse_object(&bytes, section.as_deref().unwrap_or("xdp"), function.as_deref());
        let program = program.map_err(|refused| file.error(format!("{name}: {refused}")))?;
        let read_only = read_only.unwrap_or(false);
        if let Some(helper) = program.frame_writer().filter(|_| read_only) {
            return Err(file.error(format!(
                "{name}: it calls {helper}, which changes frames: expected readOnly: false"
            )));
        }
        Ok(XdpConfig {
            file: path,
            program: Arc::new(program),
            read_only,
            limit: limit.unwrap_or(DEFAULT_LIMIT) as u32,
        })
    }
}
