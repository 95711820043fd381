//! Kind `wasm` of functions.

use crate::kind::{AnyConfig, Context, FunctionKind};
use tailwater_api::error::SpecError;
use tailwater_api::located::Located;

/// Kind `wasm`.
pub static KIND: FunctionKind = FunctionKind {
    name: super::spec::NAME,
    summary: "Function compiled to WebAssembly, in a sandbox",
    fields: &super::spec::FIELDS,
    parse,
};

#[cfg(feature = "wasm")]
fn parse(node: &Located<'_>, context: &Context<'_>) -> Result<AnyConfig, SpecError> {
    Ok(super::WasmConfig::parse(node, context)?.into())
}

#[cfg(not(feature = "wasm"))]
fn parse(node: &Located<'_>, _: &Context<'_>) -> Result<AnyConfig, SpecError> {
    Err(node.error("this program was built without the feature `wasm`; `make build` builds one with it"))
}
