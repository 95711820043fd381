//! Errors of reading modules, and of running them.

use std::fmt;
use tailwater_sdk::host::WrongFunction;

/// Reason why a module is refused. The text continues after the file's name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WasmError {
    /// The file holds something else.
    #[error("expected a WebAssembly module, as clang --target=wasm32 compiles it, found {0}")]
    NotWasm(String),
    /// The module is invalid, truncated, or of a WebAssembly version or proposal that is not supported.
    #[error("expected a valid WebAssembly module: {0}")]
    Invalid(String),
    /// The module imports something.
    #[error("expected a module without imports, found {0}: link it with -nostdlib, and without WASI")]
    Import(String),
    /// An export is missing or has another type.
    #[error("{export}: expected {expected}, found {found}")]
    Export {
        /// Name of the export.
        export: &'static str,
        /// Expected type, and how to get it.
        expected: &'static str,
        /// Type that was found.
        found: String,
    },
    /// `tailwater_function` is inconsistent, or of another version.
    #[error(transparent)]
    Function(#[from] WrongFunction),
    /// The module needs more memory than allowed.
    #[error("expected at most {most} bytes of memory (memoryLimit), found {found}")]
    Memory {
        /// Limit in bytes.
        most: usize,
        /// Memory with which the module starts, in bytes.
        found: usize,
    },
    /// A call during the set-up failed.
    #[error("{call}: {fault}")]
    Setup {
        /// Name of the call, as in the header.
        call: &'static str,
        /// Reason.
        fault: Fault,
    },
    /// The function rejects its configuration.
    #[error("{message}")]
    Config {
        /// Field, such as `limits[2].rate`; empty for the whole configuration.
        field: String,
        /// Message of the function.
        message: String,
    },
}

impl WasmError {
    /// Error in `tailwater_function`.
    pub(super) fn description(message: impl Into<String>) -> WasmError {
        WrongFunction::Description(message.into()).into()
    }
}

/// Reason why a call into a module was ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The call has executed as many instructions as it may.
    Limit,
    /// An access out of bounds, a division by zero, a stack overflow, or another trap: the engine's description.
    Trap(&'static str),
    /// The function reports that it cannot continue, with this code.
    Failed(i32),
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Fault::Limit => write!(f, "more instructions than allowed"),
            Fault::Trap(trap) => write!(f, "{trap}"),
            Fault::Failed(code) => write!(f, "failed (code {code})"),
        }
    }
}

impl From<wasmi::Error> for Fault {
    fn from(error: wasmi::Error) -> Fault {
        use wasmi::TrapCode;
        let Some(trap) = error.as_trap_code() else {
            return Fault::Trap("a call that is not allowed");
        };
        Fault::Trap(match trap {
            TrapCode::OutOfFuel => return Fault::Limit,
            TrapCode::UnreachableCodeReached => "trap (unreachable)",
            TrapCode::MemoryOutOfBounds => "access out of bounds of the memory",
            TrapCode::TableOutOfBounds => "access out of bounds of a table",
            TrapCode::IndirectCallToNull => "call of a null pointer",
            TrapCode::IntegerDivisionByZero => "division by zero",
            TrapCode::IntegerOverflow => "integer overflow",
            TrapCode::BadConversionToInteger => "conversion of a number that is no integer",
            TrapCode::StackOverflow => "stack overflow",
            TrapCode::BadSignature => "call of a function of another type",
            TrapCode::GrowthOperationLimited => "growth beyond the limit of memory",
            TrapCode::OutOfSystemMemory => "no memory in the system",
        })
    }
}
