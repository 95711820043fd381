//! Kinds `library` and `program` of functions.

use super::spec::{LibraryConfig, ProgramConfig};
use super::{Code, ForeignFunction, LibraryFunction};
use crate::kind::{BuildContext, FunctionConfig, FunctionError, FunctionFactory, FunctionKind};
use tailwater_chain::function::NetworkFunction;

/// Kind `library`.
pub static LIBRARY: FunctionKind = FunctionKind {
    name: "library",
    summary: "Function from a shared library",
    fields: &super::spec::LIBRARY_FIELDS,
    parse: |node, context| Ok(LibraryConfig::parse(node, context)?.into()),
};

/// Kind `program`.
pub static PROGRAM: FunctionKind = FunctionKind {
    name: "program",
    summary: "Function that runs as a separate program",
    fields: &super::spec::PROGRAM_FIELDS,
    parse: |node, context| Ok(ProgramConfig::parse(node, context)?.into()),
};

impl FunctionConfig for LibraryConfig {
    fn kind(&self) -> &'static str {
        LIBRARY.name
    }

    /// Only its operator knows what it does, and the spec says so.
    fn can_be_bypassed(&self) -> bool {
        true
    }

    fn reads_only(&self) -> bool {
        self.foreign().reads_only
    }

    fn build(&self, _context: &BuildContext<'_>) -> Result<Box<dyn FunctionFactory>, FunctionError> {
        build(self.foreign())
    }

    fn default_name(&self) -> &str {
        &self.foreign().name
    }

    fn third_party(&self) -> Option<(Code<'_>, &ForeignFunction)> {
        let foreign = self.foreign();
        Some((Code::Library(&foreign.file), foreign))
    }
}

impl FunctionConfig for ProgramConfig {
    fn kind(&self) -> &'static str {
        PROGRAM.name
    }

    /// Only its operator knows what it does, and the spec says so.
    fn can_be_bypassed(&self) -> bool {
        true
    }

    fn reads_only(&self) -> bool {
        self.foreign().reads_only
    }

    fn build(&self, _context: &BuildContext<'_>) -> Result<Box<dyn FunctionFactory>, FunctionError> {
        build(self.foreign())
    }

    fn default_name(&self) -> &str {
        &self.foreign().name
    }

    fn third_party(&self) -> Option<(Code<'_>, &ForeignFunction)> {
        let foreign = self.foreign();
        let code = match foreign.joins {
            None => Code::Program(&foreign.file),
            Some(_) => Code::Socket(&foreign.file),
        };
        Some((code, foreign))
    }
}

fn build(foreign: &ForeignFunction) -> Result<Box<dyn FunctionFactory>, FunctionError> {
    match &foreign.loaded {
        Some(loaded) => Ok(Box::new(loaded.clone())),
        None if foreign.joins.is_some() => Err(
            "its processes join a server, or a run with --isolation process, by the \
                                                socket"
                .into(),
        ),
        None => Err("its spec was read for isolated functions, so the library is not loaded in this process".into()),
    }
}

impl FunctionFactory for LibraryFunction {
    fn instance(&self) -> Box<dyn NetworkFunction> {
        Box::new(LibraryFunction::instance(self))
    }
}
