//! Values that both kinds of files share.

use crate::campaign::Key;
use crate::metric::{Combine, Effect, MAX_METRICS, Metric, Resource, Schema, Scope, Source, Words};
use crate::model::finite;
use std::fmt::{self, Write as _};
use std::sync::Arc;
use tailwater_api::SpecError;
use tailwater_api::document::{Document, Fields, Located, label, line};

/// Version of both kinds of files.
pub const VERSION: u64 = 1;
/// Maximum length of a text, bytes.
pub(super) const MAX_TEXT: usize = 256;

/// Returns the fields of a file's `spec`, after its version.
pub(super) fn fields<'a>(
    document: &'a Document,
    kind: &str,
    known: &[&'static str],
) -> Result<(Located<'a>, Fields<'a>), SpecError> {
    let (_, spec) = document.object(kind, "a map with version and checksum")?;
    // The fields of another version have an unknown meaning, so they are not parsed.
    if let Some((_, node)) = spec
        .entries("version, checksum")?
        .iter()
        .find(|(name, _)| *name == "version")
        && node.number("a version")? != VERSION as f64
    {
        return Err(node.expected(&format!("{VERSION}, the version that this program reads")));
    }
    let fields = spec.fields(known)?;
    fields.required("version", &VERSION.to_string())?;
    Ok((spec, fields))
}

/// Compares a file's checksum with that of its content.
pub(super) fn check(fields: &Fields<'_>, actual: &str) -> Result<(), SpecError> {
    let node = fields.required("checksum", "the checksum of the values")?;
    match node.text("a checksum")? == actual {
        true => Ok(()),
        false => Err(node.error(format!(
            "expected {actual}, the checksum of the values, found another: the file was cut short or changed"
        ))),
    }
}

/// Reads a finite number, with sign and exponent.
pub(super) fn number(node: &Located<'_>) -> Result<f64, SpecError> {
    let text = node.text("a finite number")?;
    finite(text).ok_or_else(|| node.expected("a finite number"))
}

/// Reads a finite number above 0.
pub(super) fn positive(node: &Located<'_>) -> Result<f64, SpecError> {
    match number(node)? {
        number if (1e-9..=1e15).contains(&number) => Ok(number),
        _ => Err(node.expected("a number above 0 and at most 1e15")),
    }
}

/// Reads a list of exactly `count` numbers, of which any can be null.
pub(super) fn numbers(node: &Located<'_>, count: usize) -> Result<Vec<Option<f64>>, SpecError> {
    let list = node.list("numbers", count.max(1))?;
    if list.len() != count {
        return Err(node.error(format!("expected {count} numbers, found {}", list.len())));
    }
    let value = |node: &Located<'_>| (!node.is_null()).then(|| number(node)).transpose();
    list.iter().map(value).collect()
}

pub(super) fn text(fields: &Fields<'_>, name: &'static str) -> Result<String, SpecError> {
    let node = fields.required(name, "a text")?;
    Ok(line(&node, MAX_TEXT)?.to_owned())
}

pub(super) const KEY: [&str; 4] = ["function", "configuration", "traffic", "machine"];

pub(super) fn key(fields: &Fields<'_>) -> Result<Key, SpecError> {
    Ok(Key {
        function: label(&fields.required("function", "the function's name")?)?,
        configuration: text(fields, "configuration")?,
        traffic: text(fields, "traffic")?,
        machine: text(fields, "machine")?,
    })
}

pub(super) fn schema(fields: &Fields<'_>) -> Result<Arc<Schema>, SpecError> {
    let source = fields.required("source", "hardware, probes or modelled")?;
    let source = source.word(Source::WORDS)?;
    let node = fields.required("metrics", "a list of metrics")?;
    let metrics = node.list("metrics", MAX_METRICS)?;
    let metrics = metrics.iter().map(metric).collect::<Result<Vec<Metric>, SpecError>>()?;
    let schema = Schema::new(source, metrics).map_err(|error| node.error(error.to_string()))?;
    Ok(Arc::new(schema))
}

fn metric(node: &Located<'_>) -> Result<Metric, SpecError> {
    let fields = node.fields(&["name", "unit", "of", "combine", "resource", "effect"])?;
    let of = fields.required("of", "competitors or target")?;
    let combine = fields.required("combine", "sum or mean")?;
    let resource = fields.required("resource", "the resource")?;
    let effect = fields.required("effect", "slows or any")?;
    Ok(Metric {
        name: text(&fields, "name")?,
        unit: text(&fields, "unit")?,
        scope: of.word(Scope::WORDS)?,
        combine: combine.word(Combine::WORDS)?,
        resource: resource.word(Resource::WORDS)?,
        effect: effect.word(Effect::WORDS)?,
    })
}

/// Writes scope and metrics.
pub(super) fn write_scope(text: &mut String, key: &Key, schema: &Schema) -> fmt::Result {
    for (field, value) in KEY
        .iter()
        .zip([&key.function, &key.configuration, &key.traffic, &key.machine])
    {
        writeln!(text, "  {field}: {}", Quoted(value))?;
    }
    writeln!(text, "  source: {}", schema.source())?;
    writeln!(text, "  metrics:")?;
    for metric in schema.metrics() {
        writeln!(
            text,
            "    - {{name: {}, unit: {}, of: {}, combine: {}, resource: {}, effect: {}}}",
            Quoted(&metric.name),
            Quoted(&metric.unit),
            metric.scope.to_word(),
            metric.combine.to_word(),
            metric.resource.to_word(),
            metric.effect.to_word()
        )?;
    }
    Ok(())
}

/// List of numbers, of which any can be missing.
pub(super) fn list(values: impl IntoIterator<Item = Option<f64>>) -> String {
    let number = |value: Option<f64>| value.map_or("null".to_owned(), |value| format!("{value:e}"));
    let numbers: Vec<String> = values.into_iter().map(number).collect();
    format!("[{}]", numbers.join(", "))
}

/// Puts the head of a file before its values, with their checksum.
pub(super) fn with_head(kind: &str, name: &str, values: &str) -> String {
    format!(
        "apiVersion: tailwater.dev/v1alpha1\nkind: {kind}\nmetadata: {{name: {}}}\nspec:\n  version: {VERSION}\n  \
         checksum: {}\n{values}",
        Quoted(name),
        Quoted(&checksum(values))
    )
}

/// FNV-1a, 64 bits, as 16 hexadecimal digits. It detects accidents, not intent.
pub(super) fn checksum(text: &str) -> String {
    let step = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
    let hash = text.bytes().fold(0xcbf2_9ce4_8422_2325, step);
    format!("{hash:016x}")
}

/// Text as a double-quoted YAML scalar.
pub(super) struct Quoted<'a>(pub &'a str);

impl fmt::Display for Quoted<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_char('"')?;
        for c in self.0.chars() {
            match c {
                '"' | '\\' => write!(f, "\\{c}")?,
                // YAML does not allow all printable characters: byte order marks, surrogates and others are excluded.
                ' '..='~' | '\u{a0}'..='\u{d7ff}' if c != '\u{2028}' && c != '\u{2029}' => f.write_char(c)?,
                c => write!(f, "\\U{:08X}", u32::from(c))?,
            }
        }
        f.write_char('"')
    }
}
