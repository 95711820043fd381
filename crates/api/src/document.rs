//! YAML objects in the shape of Kubernetes objects: the parts that all kinds of specs share, and access to their
//! fields.

use crate::error::SpecError;
use crate::files::{argument_name, read_argument};
use crate::schema::{Entries, Field, LABEL, Map, Text, Type};
use crate::yaml::{self, Node};
use std::collections::BTreeMap;
use std::path::Path;

pub use crate::error::nearest;
pub use crate::located::{Fields, Located};
pub use crate::values::{duration, label, line, percentile, throughput};
pub use tailwater_sdk::host::is_label;

/// `apiVersion` of all kinds.
pub(crate) const API_VERSION: &str = "tailwater.dev/v1alpha1";

/// Key of a label or annotation.
static LABEL_KEY: Text = Text {
    what: "the name of a label",
    pattern: "^[^\\n\\r]+$",
    most: 317,
    example: "tier",
    whole: None,
};
/// Labels or annotations.
static STRINGS: Entries = Entries {
    key: "KEY",
    keys: &LABEL_KEY,
    value: Type::Any(262_144),
    least: 0,
    most: 1024,
};

/// Fields of `metadata`.
pub static METADATA: Map = Map {
    fields: &[
        Field::new("name", Type::Text(&LABEL), "Name of the object: a label (RFC 1123).")
            .required()
            .example("edge"),
        Field::new(
            "namespace",
            Type::Text(&LABEL),
            "Kubernetes namespace. Not used otherwise.",
        )
        .otherwise("none"),
        Field::new("labels", Type::Entries(&STRINGS), "Labels, not interpreted.").otherwise("none"),
        Field::new("annotations", Type::Entries(&STRINGS), "Annotations, not interpreted.").otherwise("none"),
    ],
    ..Map::PLAIN
};

/// YAML file whose nodes record their position.
pub struct Document {
    file: String,
    root: Node,
}

/// Metadata of a Kubernetes object, as far as specs use it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Metadata {
    /// Name of the object.
    pub name: String,
    /// Kubernetes namespace.
    pub namespace: Option<String>,
    /// Labels, not interpreted.
    pub labels: BTreeMap<String, String>,
    /// Annotations, not interpreted.
    pub annotations: BTreeMap<String, String>,
}

impl Document {
    /// Reads a file, or standard input if that is `-`; errors call it `what`.
    ///
    /// # Errors
    /// If the file cannot be read, is too large, is not YAML, or is empty.
    pub fn read(path: &Path, what: &str) -> Result<Self, SpecError> {
        let (text, _) = read_argument(path)?;
        Document::parse(&text, &argument_name(path), what)
    }

    /// Parses a text; errors call it `what`, and its file `name`.
    ///
    /// # Errors
    /// If the text is too large, is not YAML, or is empty.
    pub fn parse(text: &str, name: &str, what: &str) -> Result<Self, SpecError> {
        let Some(root) = yaml::parse(text, name)? else {
            let message = format!("expected {what}, found an empty file");
            return Err(SpecError::whole_file(name, message));
        };
        let file = name.to_string();
        Ok(Document { file, root })
    }

    /// Checks the object's version and kind, and returns its metadata and `spec`, which errors call `what`.
    ///
    /// # Errors
    /// If the document is not an object of this kind.
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
    let fields = node.fields_of(&METADATA)?;
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
