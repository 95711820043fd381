//! Lists of 5-tuple rules, in the spec or a file: the language that `acl` and `classifier` share.

use crate::acl::classifier::MAX_RULES;
use crate::acl::{Action, Rule, classbench};
use crate::kind::{Context, allows_empty, check_not_empty};
use ipnet::IpNet;
use std::path::{Path, PathBuf};
use tailwater_api::error::{MAX_REPORTED, SpecError};
use tailwater_api::files::read_text;
use tailwater_api::located::{Fields, Located};
use tailwater_api::schema::{Field, Map, PORTS, PREFIX_OR_ANY, PROTOCOL_OR_ANY, Type};
use tailwater_api::values::{ports, prefix, protocol};
use tailwater_api::yaml;

/// Source addresses of a rule.
pub(crate) const SOURCE: Field = Field::new(
    "source",
    Type::Text(&PREFIX_OR_ANY),
    "Source addresses; of the IP version of `destination`.",
)
.or("any");
/// Destination addresses of a rule.
pub(crate) const DESTINATION: Field = Field::new(
    "destination",
    Type::Text(&PREFIX_OR_ANY),
    "Destination addresses; of the IP version of `source`.",
)
.or("any");
/// Source ports of a rule.
pub(crate) const SOURCE_PORTS: Field = Field::new(
    "sourcePorts",
    Type::Text(&PORTS),
    "Source ports. Packets without ports have port 0.",
)
.or("any");
/// Destination ports of a rule.
pub(crate) const DESTINATION_PORTS: Field = Field::new(
    "destinationPorts",
    Type::Text(&PORTS),
    "Destination ports. Packets without ports have port 0.",
)
.or("any");
/// Protocol of a rule.
pub(crate) const IP_PROTOCOL: Field = Field::new("protocol", Type::Text(&PROTOCOL_OR_ANY), "IP protocol.").or("any");
/// File with rules.
pub(crate) const RULES_FILE: Field = Field::new(
    "rulesFile",
    Type::Text(&tailwater_api::schema::FILE),
    "File with the rules, relative to the spec's folder, at most 16 MiB.",
);
/// Format of the file.
pub(crate) const FORMAT: Field = Field::new("format", Type::Words(&["classbench", "yaml"]), "Format of the file.")
    .otherwise("`yaml` if the name ends in `.yaml` or `.yml`, else `classbench`")
    .only_with("rulesFile");
/// Cache of decisions.
pub(crate) const CACHE: Field = Field::new(
    "cache",
    Type::Words(&["none", "flow"]),
    "`flow`: the decision is kept with the flow. `none`: every packet is classified.",
);

/// Decisions that the rules of a list can make, and their syntax.
pub(crate) struct Decisions<'d, T> {
    /// Field of a rule that holds the decision.
    pub(crate) field: &'static str,
    /// Fields of a rule.
    pub(crate) table: &'static Map,
    /// Description of valid values in errors.
    pub(crate) what: &'d str,
    /// Field that holds the decision for all rules of a ClassBench file, whose rules have none.
    pub(crate) of_file: &'static str,
    /// Default decision; `None` if the field is required.
    pub(crate) unsaid: Option<T>,
    /// Parser of the decision.
    pub(crate) read: &'d dyn Fn(&Located<'_>) -> Result<T, SpecError>,
}

/// Rules in order. None only if an empty file is allowed.
pub(crate) struct RuleList<T> {
    /// Rules; their actions are not used.
    pub(crate) rules: Vec<Rule>,
    /// Decision of each rule.
    pub(crate) decisions: Vec<T>,
    /// Line of each rule in the file, or its position in the spec's list, from 1.
    pub(crate) lines: Vec<u32>,
    /// File that the rules were read from; `None` if they are in the spec.
    pub(crate) source: Option<PathBuf>,
}

/// Rules with their decisions, and the line of each.
type Lined<T> = (Vec<(Rule, T)>, Vec<u32>);

/// Format of a rules file.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Format {
    Classbench,
    Yaml,
}

/// Reads the rules of `rules` or `rulesFile`, with the latter's `format` and related fields.
pub(crate) fn rule_list<T: Copy>(
    fields: &Fields<'_>,
    context: &Context<'_>,
    decisions: &Decisions<'_, T>,
) -> Result<RuleList<T>, SpecError> {
    let ((rules, lines), source) = match (fields.optional("rules"), fields.optional("rulesFile")) {
        (Some(_), Some(file)) => {
            let message = "expected either rules or rulesFile, found both";
            return Err(file.error(message));
        }
        (None, None) => {
            let message = "expected either rules or rulesFile, found neither";
            return Err(fields.error(message));
        }
        (Some(list), None) => {
            allows_empty(fields, "rulesFile")?;
            for name in ["format", decisions.of_file] {
                if let Some(node) = fields.optional(name) {
                    return Err(node.error(format!("expected {name} only with rulesFile")));
                }
            }
            let (rules, _) = rules(&list, decisions)?;
            let places = (1..=rules.len() as u32).collect();
            ((rules, places), None)
        }
        (None, Some(file)) => {
            let (rules, path) = rules_file(&file, fields, context, decisions)?;
            (rules, Some(path))
        }
    };
    let (rules, decisions) = rules.into_iter().unzip();
    Ok(RuleList {
        rules,
        decisions,
        lines,
        source,
    })
}

/// Reads the file that `rulesFile` names.
fn rules_file<T: Copy>(
    node: &Located<'_>,
    fields: &Fields<'_>,
    context: &Context<'_>,
    decisions: &Decisions<'_, T>,
) -> Result<(Lined<T>, PathBuf), SpecError> {
    let path = context.file(node.string("the name of a file")?);
    let name = path.display().to_string();
    let format = match fields.optional("format") {
        Some(node) => node.word(&[("classbench", Format::Classbench), ("yaml", Format::Yaml)])?,
        None => format_by_extension(&path),
    };
    let allow_empty = allows_empty(fields, "rulesFile")?;
    let (of_file, read) = (decisions.of_file, decisions.read);
    let given = fields.optional(of_file);
    let text = read_text(&path, &name).map_err(|error| match error.line {
        // The file does not exist: the error is in the spec.
        0 => node.error(format!("{name} {}", error.message)),
        _ => error,
    })?;
    let rules = match format {
        Format::Classbench => {
            let decision = match (given, decisions.unsaid) {
                (Some(node), _) => read(&node)?,
                (None, Some(unsaid)) => unsaid,
                (None, None) => {
                    let what = decisions.what;
                    let message =
                        format!("expected {of_file} with a ClassBench file ({what}), whose rules have no such field");
                    return Err(node.error(message));
                }
            };
            let told = |error: classbench::ParseError| {
                let (field, expected, found) = (error.field, error.expected, error.found);
                let message = format!("{field}: expected {expected}, found {found}");
                SpecError::whole_file(&name, message)
                    .at(error.line, error.column)
                    .in_field(node.path())
            };
            let (rules, errors) = classbench::parse_lines(text.as_bytes(), Action::Allow);
            let rules = rules.into_iter();
            let rules = rules.map(|(rule, line)| ((rule, decision), line));
            all(rules.collect(), errors.into_iter().map(told).collect())?
        }
        Format::Yaml => {
            if let Some(given) = given {
                let field = decisions.field;
                let message = format!(
                    "expected {of_file} only with a ClassBench file; the rules of a YAML file have their own {field}s"
                );
                return Err(given.error(message));
            }
            yaml_rules(&text, &name, decisions, allow_empty)?
        }
    };
    if !allow_empty {
        check_not_empty(&name, "rule", rules.0.len())?;
    }
    Ok((rules, path))
}

fn format_by_extension(path: &Path) -> Format {
    match path.extension().and_then(|extension| extension.to_str()) {
        Some("yaml" | "yml") => Format::Yaml,
        _ => Format::Classbench,
    }
}

/// Parses the rules of a YAML file: a list, or a map with a list under `rules`.
fn yaml_rules<T: Copy>(
    text: &str,
    name: &str,
    decisions: &Decisions<'_, T>,
    allow_empty: bool,
) -> Result<Lined<T>, SpecError> {
    let Some(root) = yaml::parse(text, name)? else {
        return Ok((Vec::new(), Vec::new()));
    };
    let root = Located::root(name, &root);
    let list = match root.is_map() {
        true => root.fields(&["rules"])?.required("rules", "a list of rules")?,
        false => root,
    };
    match list.is_empty_list() {
        true if allow_empty => Ok((Vec::new(), Vec::new())),
        _ => rules(&list, decisions),
    }
}

fn rules<T: Copy>(list: &Located<'_>, decisions: &Decisions<'_, T>) -> Result<Lined<T>, SpecError> {
    let items = list.list("rules", MAX_RULES)?;
    let (mut rules, mut errors) = (Vec::new(), Vec::new());
    for item in &items {
        match rule(item, decisions) {
            Ok(rule) => rules.push((rule, item.line())),
            Err(error) => errors.push(error),
        }
    }
    all(rules, errors)
}

/// Returns the rules with their lines, or the errors of all invalid lines.
fn all<T>(rules: Vec<((Rule, T), usize)>, mut errors: Vec<SpecError>) -> Result<Lined<T>, SpecError> {
    let more = errors.len().saturating_sub(MAX_REPORTED);
    errors.truncate(MAX_REPORTED);
    match SpecError::all_of_lines(errors, more) {
        Some(error) => Err(error),
        None => Ok(rules.into_iter().map(|(rule, line)| (rule, line as u32)).unzip()),
    }
}

fn rule<T>(node: &Located<'_>, decisions: &Decisions<'_, T>) -> Result<(Rule, T), SpecError> {
    let fields = node.fields_of(decisions.table)?;
    let decision = fields.required(decisions.field, decisions.what)?;
    let decision = (decisions.read)(&decision)?;
    Ok((conditions(node, &fields, Action::Allow)?, decision))
}

/// Reads the fields of a rule that determine its matches.
pub(crate) fn conditions(node: &Located<'_>, fields: &Fields<'_>, action: Action) -> Result<Rule, SpecError> {
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
