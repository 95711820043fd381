//! Modules that are checked and translated for the interpreter.

use super::error::WasmError;
use std::fmt;
use std::hash::{DefaultHasher, Hash, Hasher};
use wasmi::{CompilationMode, Config, Engine, ExternType, Module, RefType, ValType};

/// Maximum size of a module in bytes.
pub const MAX_MODULE: usize = 4 << 20;

/// Export with the description of the function: its address.
pub(super) const FUNCTION: &str = "tailwater_function";
/// Export with the memory.
pub(super) const MEMORY: &str = "memory";
/// Export with the functions that pointers refer to.
pub(super) const TABLE: &str = "__indirect_function_table";

const MAGIC: &[u8] = b"\0asm";

/// Module, ready to make instances. Clones share it.
#[derive(Clone)]
pub struct Program {
    pub(super) module: Module,
    /// Hash of the file.
    content: u64,
}

impl Program {
    /// Checks and translates a module. The time and memory are in proportion to its size.
    ///
    /// # Errors
    /// The bytes are no valid module, or one that lacks an export or imports something.
    pub fn parse(bytes: &[u8]) -> Result<Program, WasmError> {
        if bytes.len() > MAX_MODULE {
            let found = format!("{} bytes: expected at most {MAX_MODULE}", bytes.len());
            return Err(WasmError::Invalid(found));
        }
        match bytes.get(4..8) {
            _ if !bytes.starts_with(MAGIC) => return Err(WasmError::NotWasm(kind_of_file(bytes).to_owned())),
            None => return Err(WasmError::Invalid("the file is cut off".to_owned())),
            Some([1, 0, 0, 0]) => {}
            Some([_, _, 1, 0]) => return Err(WasmError::NotWasm("a component: expected a core module".to_owned())),
            Some(version) => return Err(WasmError::NotWasm(format!("version {version:?} of the format"))),
        }
        let module = Module::new(&engine(), bytes).map_err(|error| WasmError::Invalid(one_line(&error)))?;
        if let Some(import) = module.imports().next() {
            return Err(WasmError::Import(format!("{}.{}", import.module(), import.name())));
        }
        check_export(&module, MEMORY, "a memory", |found| {
            matches!(found, ExternType::Memory(_))
        })?;
        check_export(
            &module,
            FUNCTION,
            "an address (linked with --export=tailwater_function)",
            |found| matches!(found, ExternType::Global(global) if global.content() == ValType::I32),
        )?;
        let table = "a table of functions (linked with --export-table)";
        let is_table =
            |found: &ExternType| matches!(found, ExternType::Table(table) if table.element() == RefType::Func);
        check_export(&module, TABLE, table, is_table)?;
        let mut hasher = DefaultHasher::new();
        bytes.hash(&mut hasher);
        Ok(Program {
            module,
            content: hasher.finish(),
        })
    }
}

/// Engine that counts instructions. Of WebAssembly it supports version 1, with what current compilers use by default.
fn engine() -> Engine {
    let mut config = Config::default();
    config
        .consume_fuel(true)
        // No call translates code, so that the same calls always take the same instructions.
        .compilation_mode(CompilationMode::Eager)
        .ignore_custom_sections(true)
        .wasm_multi_memory(false)
        .set_max_cached_stacks(1);
    Engine::new(&config)
}

/// Checks that an export is there, and its type.
fn check_export(
    module: &Module,
    export: &'static str,
    expected: &'static str,
    is_right: impl Fn(&ExternType) -> bool,
) -> Result<(), WasmError> {
    let found = module.get_export(export);
    if found.as_ref().is_some_and(is_right) {
        return Ok(());
    }
    let found = match found {
        None => "no export of that name",
        Some(ExternType::Global(_)) => "a global of another type",
        Some(ExternType::Func(_)) => "a function",
        Some(ExternType::Memory(_)) => "a memory",
        Some(ExternType::Table(_)) => "a table of another type",
    };
    Err(WasmError::Export {
        export,
        expected,
        found: found.to_owned(),
    })
}

/// Description of a file that is no module.
fn kind_of_file(bytes: &[u8]) -> &'static str {
    match bytes {
        [] => "an empty file",
        [0x7f, b'E', b'L', b'F', ..] => "an ELF file, such as a library or program",
        [b'!', b'<', b'a', b'r', ..] => "an archive",
        _ if std::str::from_utf8(&bytes[..bytes.len().min(64)]).is_ok() => "text",
        _ => "another file",
    }
}

/// Text of an engine's error, in a line.
fn one_line(error: &wasmi::Error) -> String {
    let text = error.to_string();
    let words: Vec<&str> = text.split_whitespace().collect();
    words.join(" ")
}

/// Measured profiles are recognised by this text, so it depends on the file's bytes.
impl fmt::Debug for Program {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Program").field("content", &self.content).finish()
    }
}

/// Compares the files' contents.
impl PartialEq for Program {
    fn eq(&self, other: &Program) -> bool {
        self.content == other.content
    }
}

impl Eq for Program {}
