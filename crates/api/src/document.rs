//! Objects in YAML, shaped as Kubernetes has them: what all kinds of specs have in common, and what their
//! fields are read with.

use crate::error::SpecError;
use crate::files::read_text;
use crate::yaml::{self, Node};
use std::collections::BTreeMap;
use std::path::Path;

pub use crate::error::nearest;
pub use crate::located::{Fields, Located};
pub use crate::values::{duration, label, line, percentile, throughput};
pub use tailwater_sdk::host::is_label;

/// The `apiVersion` of all kinds.
const API_VERSION: &str = "tailwater.dev/v1alpha1";

/// A file of YAML, whose nodes know where they stand.
pub struct Document {
    file: String,
    root: Node,
}

/// The metadata of a Kubernetes object, as far as a spec has it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Metadata {
    /// The object's name.
    pub name: String,
    /// The Kubernetes namespace.
    pub namespace: Option<String>,
    /// Labels, kept as they are.
    pub labels: BTreeMap<String, String>,
    /// Annotations, kept as they are.
    pub annotations: BTreeMap<String, String>,
}

impl Document {
    /// Reads a file that is `what`.
    ///
    /// # Errors
    /// It cannot be read, is too large, not YAML, or empty.
    pub fn read(path: &Path, what: &str) -> Result<Self, SpecError> {
        let name = path.display().to_string();
        Document::parse(&read_text(path, &name)?, &name, what)
    }

    /// Parses a text that is `what`. `name` is the file's name in errors.
    ///
    /// # Errors
    /// The text is too large, not YAML, or empty.
    pub fn parse(text: &str, name: &str, what: &str) -> Result<Self, SpecError> {
        let Some(root) = yaml::parse(text, name)? else {
            let message = format!("expected {what}, found an empty file");
            return Err(SpecError::whole_file(name, message));
        };
        let file = name.to_string();
        Ok(Document { file, root })
    }

    /// What every object has around its own: its version, its kind, its metadata, and `spec`, which holds
    /// `what`.
    ///
    /// # Errors
    /// It is another object, or none.
    pub fn object(&self, kind: &str, what: &str) -> Result<(Metadata, Located<'_>), SpecError> {
        let root = Located::root(&self.file, &self.root);
        let fields = root.fields(&["apiVersion", "kind", "metadata", "spec"])?;
        fields.required("apiVersion", API_VERSION)?.word(&[(API_VERSION, ())])?;
        fields.required("kind", kind)?.word(&[(kind, ())])?;
        let metadata = metadata(&fields.required("metadata", "a map with name")?, kind)?;
        Ok((metadata, fields.required("spec", what)?))
    }
}

fn metadata(node: &Located<'_>, kind: &str) -> Result<Metadata, SpecError> {
    let fields = node.fields(&["name", "namespace", "labels", "annotations"])?;
    let strings = |name: &str| {
        let node = fields.optional(name);
        node.map_or(Ok(BTreeMap::new()), |node| {
            let entries = node.entries("strings")?.into_iter();
            entries
                .map(|(key, value)| Ok((key.to_string(), value.string("a string")?.to_string())))
                .collect()
        })
    };
    let name = format!("the {}'s name", kind.to_lowercase());
    Ok(Metadata {
        name: label(&fields.required("name", &name)?)?,
        namespace: fields.optional("namespace").map(|node| label(&node)).transpose()?,
        labels: strings("labels")?,
        annotations: strings("annotations")?,
    })
}
