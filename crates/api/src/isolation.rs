//! Isolation of a chain's functions, as its spec requests it.

use crate::error::SpecError;
use crate::located::Located;
use crate::schema::{Field, Map, Type};

/// Largest overhead, percent.
const MOST_OVERHEAD: f64 = 1000.0;
/// Maximum number of entries of a list.
const MOST: usize = 16;

/// Modes and maps.
pub static ISOLATION: [Type; 2] = [MODE, Type::Map(&FIELDS)];
const MODE: Type = Type::Words(&["none", "process", "container"]);
const DEFENCES: Type = Type::Words(&[
    "all",
    "filter",
    "groups",
    "limits",
    "namespaces",
    "root",
    "server",
    "user",
]);
const FUNCTION: Type = Type::Any(255);
/// Fields of the map.
static FIELDS: Map = Map {
    fields: &[
        Field::new(
            "mode",
            MODE,
            "Process of the worker, confined processes, or OCI containers.",
        )
        .required()
        .example("process"),
        Field::new(
            "overhead",
            Type::Number {
                least: 0.0,
                most: MOST_OVERHEAD,
                above: true,
                below: false,
            },
            "Permitted share of switching in a packet's time, percent.",
        )
        .otherwise("3"),
        Field::new("without", Type::List(&DEFENCES, 1, MOST), "Defences left out.").otherwise("none"),
        Field::new(
            "except",
            Type::List(&FUNCTION, 1, MOST),
            "Functions that stay in the worker's process.",
        )
        .otherwise("none"),
    ],
    ..Map::PLAIN
};

/// Isolation of a chain's functions.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct IsolationSpec {
    /// Processes of the functions.
    pub mode: IsolationMode,
    /// Largest share of a packet's time spent on switching between processes, such as 0.03. `None`: the default.
    pub overhead: Option<f64>,
    /// Defences that are left out.
    pub without: Vec<Defence>,
    /// Names of functions that stay in the process of the chain's worker.
    pub except: Vec<String>,
}

/// Processes that a chain's functions run in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum IsolationMode {
    /// The process of the chain's worker.
    #[default]
    None,
    /// A process for each function.
    Process,
    /// A container for each function.
    Container,
}

impl IsolationMode {
    /// Word of the spec.
    pub fn name(self) -> &'static str {
        match self {
            IsolationMode::None => "none",
            IsolationMode::Process => "process",
            IsolationMode::Container => "container",
        }
    }

    fn parse(node: &Located<'_>) -> Result<IsolationMode, SpecError> {
        let modes = [IsolationMode::None, IsolationMode::Process, IsolationMode::Container];
        node.word(&modes.map(|mode| (mode.name(), mode)))
    }
}

/// Defence around an isolated function. Each can be left out on a machine that lacks it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Defence {
    /// All of them: functions are trusted.
    All,
    /// System call filter.
    Filter,
    /// Control groups.
    Groups,
    /// The kernel's limits of processes.
    Limits,
    /// Namespaces, except that of mounts.
    Namespaces,
    /// Root directory of its own.
    Root,
    /// Rights that the worker's process gives up.
    Server,
    /// User of its own.
    User,
}

impl Defence {
    /// All defences, with their words.
    pub const WORDS: [(&'static str, Defence); 8] = [
        ("all", Defence::All),
        ("filter", Defence::Filter),
        ("groups", Defence::Groups),
        ("limits", Defence::Limits),
        ("namespaces", Defence::Namespaces),
        ("root", Defence::Root),
        ("server", Defence::Server),
        ("user", Defence::User),
    ];
}

impl IsolationSpec {
    /// Reads `isolation`: a mode, or a map with a mode and settings.
    ///
    /// # Errors
    /// A field is unknown or invalid, or settings come without isolation.
    pub fn parse(node: &Located<'_>) -> Result<IsolationSpec, SpecError> {
        if !node.is_map() {
            let mode = IsolationMode::parse(node)?;
            return Ok(IsolationSpec {
                mode,
                ..IsolationSpec::default()
            });
        }
        let fields = node.fields_of(&FIELDS)?;
        let mode = IsolationMode::parse(&fields.required("mode", "none, process or container")?)?;
        let setting = FIELDS.fields[1..].iter().find_map(|field| fields.optional(field.name));
        if let (IsolationMode::None, Some(setting)) = (mode, setting) {
            return Err(setting.error("expected mode process or container with this field, found none"));
        }
        let without = fields.optional("without").map(|node| each(&node, "defences", defence));
        let except = fields.optional("except").map(|node| each(&node, "functions", name));
        Ok(IsolationSpec {
            mode,
            overhead: fields.optional("overhead").map(|node| overhead(&node)).transpose()?,
            without: without.transpose()?.unwrap_or_default(),
            except: except.transpose()?.unwrap_or_default(),
        })
    }

    /// Reads `isolation` of a chain with these functions.
    pub(crate) fn of_chain(node: &Located<'_>, has_function: impl Fn(&str) -> bool) -> Result<Self, SpecError> {
        let isolation = IsolationSpec::parse(node)?;
        if isolation.except.is_empty() {
            return Ok(isolation);
        }
        let except = node.fields_of(&FIELDS)?.required("except", "a list of functions")?;
        each(&except, "functions", |node| match name(node)? {
            name if has_function(&name) => Ok(()),
            name => Err(node.error(format!("expected a function of the chain, found {name}"))),
        })?;
        Ok(isolation)
    }
}

fn defence(node: &Located<'_>) -> Result<Defence, SpecError> {
    node.word(&Defence::WORDS)
}

fn name(node: &Located<'_>) -> Result<String, SpecError> {
    Ok(node.string("the name of a function")?.to_owned())
}

/// Reads a percentage as a share.
fn overhead(node: &Located<'_>) -> Result<f64, SpecError> {
    const WHAT: &str = "a percentage above 0, at most 1000, such as 3 or 0.5";
    let percent = node.number(WHAT)?;
    match percent > 0.0 && percent <= MOST_OVERHEAD {
        true => Ok(percent / 100.0),
        false => Err(node.expected(WHAT)),
    }
}

fn each<'a, T>(
    node: &Located<'a>,
    what: &str,
    parse: impl Fn(&Located<'a>) -> Result<T, SpecError>,
) -> Result<Vec<T>, SpecError> {
    node.list(what, MOST)?.iter().map(parse).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chain::{ChainDocument, DESCRIPTION};
    use crate::document::Document;
    use std::path::Path;

    fn parsed(isolation: &str) -> Result<IsolationSpec, String> {
        let text = format!(
            "apiVersion: tailwater.dev/v1alpha1\nkind: Chain\nmetadata: {{name: c}}\nspec:\n  \
             slo: {{latency: 1ms}}\n  functions: [{{name: edge, forward: }}]\n{isolation}"
        );
        let document = Document::parse(&text, "c.yaml", DESCRIPTION).map_err(|error| error.to_string())?;
        let chain = ChainDocument::new(&document, Path::new(".")).map_err(|error| error.to_string())?;
        Ok(chain.settings.isolation)
    }

    #[test]
    fn a_mode_or_a_map_is_read() {
        assert_eq!(parsed("").unwrap(), IsolationSpec::default());
        assert_eq!(parsed("  isolation: none\n").unwrap(), IsolationSpec::default());
        assert_eq!(
            parsed("  isolation: container\n").unwrap().mode,
            IsolationMode::Container
        );
        assert_eq!(
            parsed("  isolation: {mode: process, overhead: 0.5, without: [filter, all], except: [edge]}\n").unwrap(),
            IsolationSpec {
                mode: IsolationMode::Process,
                overhead: Some(0.005),
                without: vec![Defence::Filter, Defence::All],
                except: vec!["edge".to_owned()],
            }
        );
    }

    #[test]
    fn wrong_ones_are_named() {
        for (isolation, message) in [
            ("processes", "spec.isolation: expected none or process or container"),
            ("{overhead: 3}", "spec.isolation.mode: missing"),
            ("{mode: none, overhead: 3}", "expected mode process or container"),
            (
                "{mode: process, overhead: 0}",
                "spec.isolation.overhead: expected a percentage",
            ),
            ("{mode: process, without: [rot]}", "did you mean \"root\"?"),
            ("{mode: process, except: []}", "expected a list of 1 to 16 functions"),
            (
                "{mode: process, except: [edge, ids]}",
                "c.yaml:7:45: spec.isolation.except[1]: expected a function of the chain, found ids",
            ),
        ] {
            let error = parsed(&format!("  isolation: {isolation}\n")).unwrap_err();
            assert!(error.contains(message), "{error}");
        }
    }
}
