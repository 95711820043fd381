//! The configuration of `acl`, and rule lists in YAML.

use super::Context;
use crate::acl::classifier::MAX_RULES;
use crate::acl::{Action, Rule, classbench};
use crate::spec::error::SpecError;
use crate::spec::files::read_text;
use crate::spec::located::{Fields, Located};
use crate::spec::values::{ports, prefix, protocol};
use crate::spec::yaml;
use ipnet::IpNet;
use std::path::{Path, PathBuf};

const ACTIONS: [(&str, Action); 2] = [("allow", Action::Allow), ("deny", Action::Deny)];

/// Access control: ordered rules, the first match decides.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AclConfig {
    /// The rules in order, at least one.
    pub rules: Vec<Rule>,
    /// What happens to packets that no rule matches.
    pub default: Action,
    /// Whether a flow's decision is kept with the flow; otherwise every packet is classified.
    pub cached: bool,
    /// The file the rules were read from; `None` if they stand in the spec.
    pub source: Option<PathBuf>,
}

/// The format of a rules file.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Format {
    Classbench,
    Yaml,
}

impl AclConfig {
    pub(super) fn parse(node: &Located<'_>, context: &Context<'_>) -> Result<Self, SpecError> {
        let fields =
            node.fields_or_none(&["rules", "rulesFile", "format", "matchAction", "default", "cache"])?;
        let default = match fields.optional("default") {
            None => Action::Deny,
            Some(node) => node.word(&ACTIONS)?,
        };
        let cached = match fields.optional("cache") {
            None => true,
            Some(node) => node.word(&[("none", false), ("flow", true)])?,
        };
        let (rules, source) = match (fields.optional("rules"), fields.optional("rulesFile")) {
            (Some(_), Some(file)) => {
                let message = "expected either rules or rulesFile, found both";
                return Err(file.error(message));
            }
            (None, None) => {
                let message = "expected either rules or rulesFile, found neither";
                return Err(fields.error(message));
            }
            (Some(list), None) => {
                for name in ["format", "matchAction"] {
                    if let Some(node) = fields.optional(name) {
                        return Err(node.error(format!("expected {name} only with rulesFile")));
                    }
                }
                (rules(&list)?, None)
            }
            (None, Some(file)) => {
                let (rules, path) = rules_file(&file, &fields, context)?;
                (rules, Some(path))
            }
        };
        Ok(AclConfig {
            rules,
            default,
            cached,
            source,
        })
    }
}

/// Reads the file that `rulesFile` names.
fn rules_file(
    node: &Located<'_>,
    fields: &Fields<'_>,
    context: &Context<'_>,
) -> Result<(Vec<Rule>, PathBuf), SpecError> {
    let path = context.file(node.string("the name of a file")?);
    let name = path.display().to_string();
    let format = match fields.optional("format") {
        Some(node) => node.word(&[("classbench", Format::Classbench), ("yaml", Format::Yaml)])?,
        None => format_by_extension(&path),
    };
    let action = fields.optional("matchAction");
    let text = read_text(&path, &name).map_err(|error| match error.line {
        // The file is not there at all: the mistake is in the spec.
        0 => node.error(format!("{name} {}", error.message)),
        _ => error,
    })?;
    let rules = match format {
        Format::Classbench => {
            let action = action.map_or(Ok(Action::Allow), |node| node.word(&ACTIONS))?;
            classbench::parse_rules(text.as_bytes(), action).map_err(|error| {
                let (field, expected, found) = (error.field, error.expected, error.found);
                let message = format!("{field}: expected {expected}, found {found}");
                SpecError::whole_file(&name, message)
                    .at(error.line, error.column)
                    .in_field(node.path())
            })?
        }
        Format::Yaml => {
            if let Some(action) = action {
                let message = "expected matchAction only with a ClassBench file; \
                               the rules of a YAML file have their own actions";
                return Err(action.error(message));
            }
            yaml_rules(&text, &name)?
        }
    };
    Ok((rules, path))
}

fn format_by_extension(path: &Path) -> Format {
    match path.extension().and_then(|extension| extension.to_str()) {
        Some("yaml" | "yml") => Format::Yaml,
        _ => Format::Classbench,
    }
}

/// Rules of a YAML file: a list, or a map with a list under `rules`.
fn yaml_rules(text: &str, name: &str) -> Result<Vec<Rule>, SpecError> {
    let Some(root) = yaml::parse(text, name)? else {
        let message = "expected a list of rules, found an empty file";
        return Err(SpecError::whole_file(name, message));
    };
    let root = Located::root(name, &root);
    if root.is_map() {
        let list = root
            .fields(&["rules"])?
            .required("rules", "a list of rules")?;
        return rules(&list);
    }
    rules(&root)
}

fn rules(list: &Located<'_>) -> Result<Vec<Rule>, SpecError> {
    let items = list.list("rules", MAX_RULES)?;
    items.iter().map(rule).collect()
}

fn rule(node: &Located<'_>) -> Result<Rule, SpecError> {
    let fields = node.fields(&[
        "action",
        "source",
        "destination",
        "sourcePorts",
        "destinationPorts",
        "protocol",
    ])?;
    let action = fields.required("action", "allow or deny")?.word(&ACTIONS)?;
    conditions(node, &fields, action)
}

/// The fields of a rule that say what it matches.
pub(super) fn conditions(
    node: &Located<'_>,
    fields: &Fields<'_>,
    action: Action,
) -> Result<Rule, SpecError> {
    let any_port = Ok(0..=u16::MAX);
    let rule = Rule {
        action,
        source: prefix_or_any(fields.optional("source"))?,
        destination: prefix_or_any(fields.optional("destination"))?,
        source_ports: fields
            .optional("sourcePorts")
            .map_or(any_port.clone(), |node| ports(&node))?,
        destination_ports: fields
            .optional("destinationPorts")
            .map_or(any_port, |node| ports(&node))?,
        protocol: match fields.optional("protocol") {
            Some(node) if !is_any(&node) => Some(protocol(&node)?),
            _ => None,
        },
    };
    if let (Some(IpNet::V4(_)), Some(IpNet::V6(_))) | (Some(IpNet::V6(_)), Some(IpNet::V4(_))) =
        (rule.source, rule.destination)
    {
        let message = "expected source and destination of one IP version, found both versions";
        return Err(node.error(message));
    }
    Ok(rule)
}

fn prefix_or_any(node: Option<Located<'_>>) -> Result<Option<IpNet>, SpecError> {
    match node {
        Some(node) if !is_any(&node) => prefix(&node).map(Some),
        _ => Ok(None),
    }
}

fn is_any(node: &Located<'_>) -> bool {
    node.text("any").is_ok_and(|text| text == "any")
}
