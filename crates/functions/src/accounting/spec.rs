//! Configuration of `accounting`.

use crate::accounting::ExportFormat;
use crate::kind::Context;
use std::path::PathBuf;
use tailwater_api::error::SpecError;
use tailwater_api::located::Located;
use tailwater_api::schema::{FILE, Field, Map, Type};

/// Fields of the configuration.
pub(super) static FIELDS: Map = Map {
    fields: &[Field::new(
        "export",
        Type::Map(&EXPORT),
        "Destination of flow records; without it only totals are kept.",
    )
    .otherwise("none")],
    nullable: true,
    ..Map::PLAIN
};
/// Fields of an output file.
pub(crate) static EXPORT: Map = Map {
    fields: &[
        Field::new(
            "file",
            Type::Text(&FILE),
            "File, which is overwritten; relative to the program's working directory.",
        )
        .required()
        .example("flows.csv"),
        Field::new(
            "format",
            Type::Words(&["csv", "json"]),
            "CSV with a header line, or JSON Lines.",
        )
        .otherwise("`json` if the name ends in `.json`, `.jsonl` or `.ndjson`, else `csv`"),
    ],
    ..Map::PLAIN
};

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
        let fields = node.fields_of(&FIELDS)?;
        let export = fields.optional("export").map(|node| export(&node));
        Ok(AccountingConfig {
            export: export.transpose()?,
        })
    }
}

/// Parses an output file and its format.
pub(crate) fn export(node: &Located<'_>) -> Result<ExportConfig, SpecError> {
    const WHAT: &str = "the name of a file";
    let fields = node.fields_of(&EXPORT)?;
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
