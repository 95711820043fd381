//! Configuration of `accounting`.

use crate::accounting::ExportFormat;
use crate::kind::Context;
use std::path::PathBuf;
use tailwater_api::error::SpecError;
use tailwater_api::located::Located;

/// Accounting: packets and bytes of each flow.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AccountingConfig {
    /// Output of flow records; `None` for none.
    pub export: Option<ExportConfig>,
}

/// File of flow records.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExportConfig {
    /// Path of the file, which is overwritten. Relative to the folder that the program runs in.
    pub file: PathBuf,
    /// Format of the file.
    pub format: ExportFormat,
}

impl AccountingConfig {
    pub(super) fn parse(node: &Located<'_>, _: &Context<'_>) -> Result<Self, SpecError> {
        let fields = node.fields_or_none(&["export"])?;
        let export = fields.optional("export").map(|node| export(&node));
        Ok(AccountingConfig {
            export: export.transpose()?,
        })
    }
}

/// Parses an output file and its format.
pub(crate) fn export(node: &Located<'_>) -> Result<ExportConfig, SpecError> {
    const WHAT: &str = "the name of a file";
    let fields = node.fields(&["file", "format"])?;
    let file_node = fields.required("file", WHAT)?;
    let file = PathBuf::from(file_node.string(WHAT)?);
    if file.file_name().is_none() {
        return Err(file_node.expected(WHAT));
    }
    let format = match fields.optional("format") {
        Some(node) => node.word(&[("csv", ExportFormat::Csv), ("json", ExportFormat::Json)])?,
        None => match file.extension().and_then(|extension| extension.to_str()) {
            Some("json" | "jsonl" | "ndjson") => ExportFormat::Json,
            _ => ExportFormat::Csv,
        },
    };
    Ok(ExportConfig { file, format })
}
