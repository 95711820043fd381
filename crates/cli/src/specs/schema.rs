//! `tailwater schema`: JSON Schemas of the kinds.

use super::kinds::{KINDS, kind, unknown};
use crate::error::CliError;
use crate::output::{json, print};
use clap::Args;
use std::process::ExitCode;
use tailwater_api::schema::{Foreign, document_schema, structural_schema};
use tailwater_functions::registry;

/// Help text of `tailwater schema`.
pub const SCHEMA_EXAMPLES: &str = "\
Without a kind, lists the kinds. An editor with the YAML language server uses a schema by the first line of a spec:
  # yaml-language-server: $schema=chain.json

Examples:
  tailwater schema
  tailwater schema Chain > chain.json
  tailwater schema Chain --structural
      The schema of `spec` in a custom resource definition of Kubernetes.";

/// Arguments of `tailwater schema`.
#[derive(Debug, Args)]
pub struct SchemaArgs {
    /// Kind, such as Chain
    pub kind: Option<String>,
    /// Print the structural OpenAPI v3 schema of `spec`, as custom resource definitions of Kubernetes require it
    #[arg(long, requires = "kind")]
    pub structural: bool,
    /// Accept functions of other kinds, unchecked
    #[arg(long, requires = "structural")]
    pub foreign: bool,
}

/// Prints the schema of a kind, or the list of kinds.
///
/// # Errors
/// The kind is unknown, or the schema cannot be printed.
pub fn schema(args: &SchemaArgs) -> Result<ExitCode, CliError> {
    let Some(name) = &args.kind else {
        let lines = KINDS.map(|kind| format!("{:<8} {}\n", kind.name, kind.doc));
        print(&lines.concat())?;
        return Ok(ExitCode::SUCCESS);
    };
    let kind = kind(name).ok_or_else(|| unknown(name))?;
    let functions = registry::schemas();
    let schema = match (args.structural, args.foreign) {
        (false, _) => document_schema(kind, &functions),
        (true, false) => structural_schema(kind.spec, &functions, Foreign::Refused),
        (true, true) => structural_schema(kind.spec, &functions, Foreign::Allowed),
    };
    print(&json(&schema)?)?;
    Ok(ExitCode::SUCCESS)
}
