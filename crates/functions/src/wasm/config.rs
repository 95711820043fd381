//! Configuration of `wasm`, and instances made from it.

use super::function::{Loaded, Wasm};
use super::machine::{Limits, Machine, SETUP_INSTRUCTIONS};
use super::program::{MAX_MODULE, Program};
use super::spec::{FIELDS, MAX_INSTRUCTIONS, MEMORY, NAME};
use super::{Description, WasmError};
use crate::kind::{BuildContext, Context, FunctionConfig, FunctionError, FunctionFactory, Requirements, StateTransfer};
use std::path::PathBuf;
use std::sync::Arc;
use tailwater_api::error::SpecError;
use tailwater_api::files::read_bytes_up_to;
use tailwater_api::located::Located;
use tailwater_api::values::size;
use tailwater_chain::function::NetworkFunction;

/// Instructions for a packet unless the spec says otherwise, as for `xdp`.
const DEFAULT_INSTRUCTIONS: u64 = 65_536;
/// Memory of an instance unless the spec says otherwise, in bytes.
const DEFAULT_MEMORY: u64 = 16 << 20;

/// Function compiled to WebAssembly.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WasmConfig {
    /// File that it was read from.
    pub file: PathBuf,
    /// Checked module.
    pub program: Program,
    /// Description of the function.
    pub description: Description,
    /// Configuration as JSON.
    pub config: String,
    /// `true` if it may change no frame.
    pub read_only: bool,
    /// Limits of its instances.
    pub limits: Limits,
    /// Instructions of creating an instance, with the time of clearing its memory.
    pub setup_cost: u64,
}

impl WasmConfig {
    pub(super) fn parse(node: &Located<'_>, context: &Context<'_>) -> Result<Self, SpecError> {
        const MODULE: &str = "the name of a WebAssembly module, such as ./limit.wasm";
        let fields = node.fields_of(&FIELDS)?;
        let file = fields.required("file", MODULE)?;
        let given = fields.optional("config");
        let config = match &given {
            None => "{}".to_owned(),
            Some(node) if !node.is_map() => return Err(node.expected("a map")),
            Some(node) => node.json()?,
        };
        let read_only = fields.optional("readOnly");
        let read_only = read_only.map(|node| node.word(&[("true", true), ("false", false)]));
        let read_only = read_only.transpose()?.unwrap_or(false);
        let instructions = fields.optional("instructionLimit");
        let instructions = instructions.map(|node| node.whole(1..=MAX_INSTRUCTIONS)).transpose()?;
        let memory = fields.optional("memoryLimit");
        let memory = memory.map(|node| size(&node, MEMORY, "a size from 64KiB to 1GiB, such as 16MiB"));
        let limits = Limits {
            instructions: instructions.unwrap_or(DEFAULT_INSTRUCTIONS) as u32,
            memory: memory.transpose()?.unwrap_or(DEFAULT_MEMORY) as usize,
            setup: SETUP_INSTRUCTIONS,
        };
        let path = context.file(file.string(MODULE)?);
        let name = path.display().to_string();
        let bytes = read_bytes_up_to(&path, &name, MAX_MODULE);
        let bytes = bytes.map_err(|error| file.error(format!("{name} {}", error.message)))?;
        let program = Program::parse(&bytes);
        let described = program.and_then(|program| {
            // Tries the set-up, so that every error is one of the spec.
            let (machine, description) = Machine::new(&program, &config, &limits)?;
            Ok((program, description, machine.setup_cost()))
        });
        let (program, description, setup_cost) = described.map_err(|refused| match refused {
            WasmError::Config { field, message } => match &given {
                Some(node) => node.descendant(&field).error(message),
                None => fields.error(format!("config: {message}")),
            },
            other => file.error(format!("{name}: {other}")),
        })?;
        Ok(WasmConfig {
            file: path,
            program,
            description,
            config,
            read_only,
            limits,
            setup_cost,
        })
    }
}

impl FunctionConfig for WasmConfig {
    fn kind(&self) -> &'static str {
        NAME
    }

    fn default_name(&self) -> &str {
        self.description.name
    }

    /// Only its operator knows what it does, and the spec says so.
    fn can_be_bypassed(&self) -> bool {
        true
    }

    fn reads_only(&self) -> bool {
        self.read_only
    }

    /// The module's sandbox holds in the host's process, too.
    fn may_stay(&self) -> bool {
        true
    }

    fn requirements(&self, _capacity: usize) -> Requirements {
        Requirements {
            reads_only: self.read_only,
            private_bytes: self.limits.memory as u64,
            transfer: StateTransfer::AsItIs,
            ..Requirements::default()
        }
    }

    fn build(&self, _context: &BuildContext<'_>) -> Result<Box<dyn FunctionFactory>, FunctionError> {
        let loaded = Loaded {
            program: self.program.clone(),
            description: self.description.clone(),
            config: self.config.clone(),
            read_only: self.read_only,
            limits: self.limits,
            setup_cost: self.setup_cost,
        };
        Ok(Box::new(WasmFactory(Arc::new(loaded))))
    }

    fn remove_sources(&mut self) {
        self.file = PathBuf::new();
    }
}

/// Module that all instances share. Each has memory of its own.
struct WasmFactory(Arc<Loaded>);

impl FunctionFactory for WasmFactory {
    fn instance(&self) -> Box<dyn NetworkFunction> {
        Box::new(Wasm::new(Arc::clone(&self.0)))
    }
}
