//! The configuration of `library`.

use super::Context;
use crate::library::{LibraryError, LibraryFunction};
use crate::spec::error::SpecError;
use crate::spec::located::Located;

/// A function from a shared library.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LibraryConfig {
    /// The library, with its configuration.
    pub function: LibraryFunction,
}

impl LibraryConfig {
    pub(super) fn parse(node: &Located<'_>, context: &Context<'_>) -> Result<Self, SpecError> {
        const WHAT: &str = "the name of a shared library, such as ./limit.so";
        let fields = node.fields(&["file", "config"])?;
        let file_node = fields.required("file", WHAT)?;
        let file = context.file(file_node.string(WHAT)?);
        let config_node = fields.optional("config");
        let config = match &config_node {
            None => "{}".to_owned(),
            Some(node) if !node.is_map() => return Err(node.expected("a map")),
            Some(node) => node.json()?,
        };
        let open = match context.tried {
            true => LibraryFunction::open_tried,
            false => LibraryFunction::open,
        };
        let function = open(&file, &config).map_err(|error| match error {
            LibraryError::Config { field, message } => match &config_node {
                Some(node) => node.descendant(&field).error(message),
                None => fields.error(format!("config: {message}")),
            },
            // The message begins where the file's name ends.
            other => file_node.error(format!("{} {other}", file.display())),
        })?;
        Ok(LibraryConfig { function })
    }
}
