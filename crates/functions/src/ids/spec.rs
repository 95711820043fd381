//! Configuration of `ids`.

use super::sources::InvalidRules;
use crate::ids::{Classes, Loaded, Options, Sources};
use crate::kind::{ALLOW_EMPTY, Context, allows_empty, check_not_empty};
use std::collections::{BTreeMap, HashMap};
use std::path::PathBuf;
use tailwater_api::error::SpecError;
use tailwater_api::files::{read_bytes_up_to, read_text};
use tailwater_api::located::{Fields, Located};
use tailwater_api::schema::{Entries, FILE, Field, Map, Rule as Condition, Text, Type};
use tailwater_api::values::PacketAction;
use tailwater_ids::inspector::Settings;
use tailwater_ids::language::{Parsed, Reader, Variables};
use tailwater_ids::rule::{Action, Rule};

/// Maximum number of files, and of rules in the spec itself.
const MAX_FILES: usize = 256;
/// Maximum size of a rules file in bytes: a published set with its disabled rules and comments has some 40 MiB.
const MAX_RULES_FILE: usize = 256 << 20;
/// Maximum number of rules that are changed to drop.
const MAX_DROPS: usize = 10_000;
/// Maximum memory in bytes for streams that all workers share.
const MAX_MEMORY: u64 = 16 << 30;

const RULE: Type = Type::Any(65_536);
const SID: Type = Type::Whole(1, u32::MAX as u64);
const CLASS: Type = Type::Any(256);
/// Fields of the configuration.
pub(super) static FIELDS: Map = Map {
    fields: &[
        Field::new(
            "rulesFiles",
            Type::List(&Type::Text(&FILE), 1, MAX_FILES),
            "Files with rules, relative to the spec's folder, of up to 256 MiB.",
        ),
        Field::new(
            "rules",
            Type::List(&RULE, 1, MAX_FILES),
            "Rules, in the language of Suricata.",
        )
        .example("['alert tcp any any -> any 80 (msg:\"a\"; content:\"abc\"; sid:1;)']"),
        Field::new(
            "variables",
            Type::Entries(&VARIABLES),
            "Addresses or ports in rule syntax, such as `\"[10.0.0.0/8,!10.1.0.0/16]\"`.",
        )
        .otherwise("as in Suricata's own configuration"),
        Field::new(
            "classificationFile",
            Type::Text(&FILE),
            "File with descriptions and severities of classes, for alerts.",
        )
        .otherwise("none"),
        Field::new(
            "mode",
            Type::Words(&["alert", "drop"]),
            "Whether `drop` and `reject` rules drop, or only alert.",
        )
        .or("alert"),
        Field::new("drop", Type::Map(&DROP), "Rules that drop although they say `alert`.")
            .otherwise("none")
            .only_if("mode", "drop"),
        Field::new(
            "eve",
            Type::Text(&FILE),
            "File of alerts; relative to the program's working directory.",
        )
        .otherwise("none"),
        Field::new(
            "streams",
            Type::Whole(1, 1_000_000),
            "TCP connections followed at a time, of all cores.",
        )
        .or("4096"),
        Field::new(
            "windowBytes",
            Type::Whole(2048, 32_768),
            "Bytes kept per direction: headers, bodies and content matches must fit.",
        )
        .or("8192"),
        Field::new(
            "depthBytes",
            Type::Whole(1024, 1 << 40),
            "Bytes inspected per direction.",
        )
        .or("1048576"),
        Field::new(
            "decodedBytes",
            Type::Whole(1024, 1 << 20),
            "Bytes of a decompressed body that are inspected.",
        )
        .or("32768"),
        Field::new(
            "onOverflow",
            PacketAction::TYPE,
            "Packets that cannot be inspected; `drop` only with `mode: drop`.",
        )
        .or("pass"),
        Field::new(
            "checksums",
            Type::Words(&["verify", "ignore"]),
            "Packets with a wrong checksum are ignored, as their receivers do, or inspected.",
        )
        .or("verify"),
        Field::new(
            ALLOW_EMPTY,
            Type::Bool,
            "Accepts `rulesFiles` without a rule: nothing is then detected.",
        )
        .or("false")
        .only_with("rulesFiles"),
        Field::new(
            "strict",
            Type::Bool,
            "Whether an invalid rule in a file refuses the spec, or is listed and left out.",
        )
        .or("false"),
    ],
    rules: &[Condition::AtLeastOne(&["rulesFiles", "rules"])],
    nullable: true,
};
static VARIABLE: Text = Text {
    what: "the name of a variable",
    pattern: "^[^\\n\\r]+$",
    most: 256,
    example: "HOME_NET",
    whole: None,
};
static VARIABLES: Entries = Entries {
    key: "NAME",
    keys: &VARIABLE,
    value: Type::Any(65_536),
    least: 0,
    most: 1024,
};
static DROP: Map = Map {
    fields: &[
        Field::new("sids", Type::List(&SID, 1, MAX_DROPS), "Numbers of rules.").otherwise("none"),
        Field::new("classes", Type::List(&CLASS, 1, MAX_DROPS), "Classes of rules.").otherwise("none"),
    ],
    ..Map::PLAIN
};

/// Detection rules on packets, streams and messages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IdsConfig {
    /// Sources of the rules.
    pub sources: Sources,
    /// Loaded rules.
    pub loaded: Loaded,
    /// General options.
    pub options: Options,
}

impl IdsConfig {
    pub(super) fn parse(node: &Located<'_>, context: &Context<'_>) -> Result<Self, SpecError> {
        let fields = node.fields_of(&FIELDS)?;
        let allow_empty = allows_empty(&fields, "rulesFiles")?;
        let options = options(&fields)?;
        let mut sources = Sources::default();
        if let Some(node) = fields.optional("strict") {
            sources.strict = node.word(&[("true", true), ("false", false)])?;
        }
        if let Some(list) = fields.optional("rulesFiles") {
            for item in list.list("names of files", MAX_FILES)? {
                sources.files.push(context.file(item.string("the name of a file")?));
            }
        }
        if let Some(list) = fields.optional("rules") {
            for item in list.list("rules", MAX_FILES)? {
                sources.inline.push(item.string("a rule, in quotes")?.to_owned());
            }
        }
        if sources.files.is_empty() && sources.inline.is_empty() {
            let message = "expected rulesFiles, rules or both, found neither";
            return Err(fields.error(message));
        }
        if let Some(node) = fields.optional("variables") {
            for (name, node) in node.entries("variables and their values")? {
                let value = node.string("addresses or ports in the syntax of rules")?;
                sources.variables.set(name, value);
            }
            Reader::new(&sources.variables).map_err(|wrong| node.error(wrong.to_string()))?;
        }
        if let Some(node) = fields.optional("classificationFile") {
            let path = context.file(node.string("the name of a file")?);
            sources.classes = classes(&path, &node)?;
        }
        if let Some(node) = fields.optional("drop") {
            if !options.settings.drops {
                return Err(node.error("expected drop only with mode: drop"));
            }
            let fields = node.fields_of(&DROP)?;
            if let Some(list) = fields.optional("sids") {
                for item in list.list("numbers of rules", MAX_DROPS)? {
                    sources.drop_sids.push(item.whole(1..=u64::from(u32::MAX))? as u32);
                }
            }
            if let Some(list) = fields.optional("classes") {
                for item in list.list("classes of rules", MAX_DROPS)? {
                    let class = item.string("a class of rules")?;
                    sources.drop_classes.push(class.to_owned());
                }
            }
        }
        for (path, item) in sources.files.iter().zip(items(&fields)?) {
            if let Err(error) = std::fs::metadata(path) {
                let name = path.display();
                return Err(item.error(format!("{name} cannot be read: {error}")));
            }
        }
        let inline = fields.optional("rules");
        let inline = inline.map_or(Ok(Vec::new()), |list| list.list("rules", MAX_FILES))?;
        let loaded = load_rules(&sources, &inline)?;
        if let Some(first) = sources.files.first().filter(|_| !allow_empty) {
            let skipped: usize = loaded.skipped.iter().map(|(_, rules)| rules).sum();
            check_not_empty(&first.display().to_string(), "rule", loaded.rules.len() + skipped)?;
        }
        Ok(IdsConfig {
            sources,
            loaded,
            options,
        })
    }
}

/// Returns the nodes of the files' names.
fn items<'a>(fields: &Fields<'a>) -> Result<Vec<Located<'a>>, SpecError> {
    let list = fields.optional("rulesFiles");
    list.map_or(Ok(Vec::new()), |list| list.list("names of files", MAX_FILES))
}

fn options(fields: &Fields<'_>) -> Result<Options, SpecError> {
    let whole = |name, range, default| {
        let node: Option<Located<'_>> = fields.optional(name);
        node.map_or(Ok(default), |node| node.whole(range))
    };
    let mode = fields.optional("mode");
    let drops = mode.map_or(Ok(false), |node| node.word(&[("alert", false), ("drop", true)]))?;
    let strict = match fields.optional("onOverflow") {
        None => false,
        Some(node) => match PacketAction::parse(&node)? {
            PacketAction::Drop if !drops => {
                return Err(node.error("expected onOverflow: drop only with mode: drop"));
            }
            fate => fate == PacketAction::Drop,
        },
    };
    let checksums = fields.optional("checksums");
    let checksums = checksums.map_or(Ok(true), |node| node.word(&[("verify", true), ("ignore", false)]))?;
    const WHAT: &str = "the name of a file";
    let eve = match fields.optional("eve") {
        None => None,
        Some(node) => {
            let file = PathBuf::from(node.string(WHAT)?);
            if file.file_name().is_none() {
                return Err(node.expected(WHAT));
            }
            Some(file)
        }
    };
    let options = Options {
        settings: Settings {
            window: whole("windowBytes", 2048..=32_768, 8192)? as usize & !7,
            depth: whole("depthBytes", 1024..=1 << 40, 1 << 20)?,
            decoded: whole("decodedBytes", 1024..=1 << 20, 1 << 15)? as usize,
            drops,
            strict,
            checksums,
        },
        streams: whole("streams", 1..=1_000_000, 4096)? as usize,
        eve,
    };
    let memory = options.stream_memory();
    if memory > MAX_MEMORY {
        let (memory, most) = (memory >> 20, MAX_MEMORY >> 20);
        return Err(fields.error(format!(
            "expected at most {most} MiB for streams and windowBytes, found {memory} MiB"
        )));
    }
    Ok(options)
}

/// Reads the classes of a file: `config classification: name,description,priority`.
fn classes(path: &std::path::Path, node: &Located<'_>) -> Result<Classes, SpecError> {
    let name = path.display().to_string();
    let text = read_text(path, &name).map_err(|error| match error.line {
        0 => node.error(format!("{name} {}", error.message)),
        _ => error,
    })?;
    let (mut classes, mut wrong) = (Classes::new(), Vec::new());
    for (i, line) in text.lines().enumerate() {
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let parts = line
            .strip_prefix("config classification:")
            .map(|rest| rest.splitn(3, ','));
        let parts: Vec<&str> = parts.map_or(Vec::new(), |parts| parts.map(str::trim).collect());
        let class = match parts[..] {
            [class, about, priority] => priority.parse().ok().map(|priority| (class, about, priority)),
            _ => None,
        };
        match class {
            Some((class, about, priority)) => {
                classes.insert(class.to_owned(), (about.to_owned(), priority));
            }
            None => {
                let message = "expected \"config classification: name,description,priority\"";
                wrong.push(SpecError::whole_file(&name, message).at(i + 1, 1));
            }
        }
    }
    match SpecError::all(wrong) {
        Some(error) => Err(error),
        None => Ok(classes),
    }
}

/// Loads all rules. An error in a rule in the spec itself is reported with its position there, if that is known.
/// Invalid rules in files are left out, unless the sources are strict.
///
/// # Errors
/// If a file cannot be read, the spec is invalid, or no rule is valid: all problems.
pub(crate) fn load_rules(sources: &Sources, inline: &[Located<'_>]) -> Result<Loaded, SpecError> {
    let variables: &Variables = &sources.variables;
    let reader = Reader::new(variables);
    let mut reader = reader.map_err(|wrong| SpecError::whole_file("variables", wrong.to_string()))?;
    let (mut rules, mut reasons, mut errors) = (Vec::new(), BTreeMap::new(), Vec::new());
    let (mut texts, mut taken) = (Vec::new(), HashMap::new());
    let mut invalid = InvalidRules::default();
    for path in &sources.files {
        let name = path.display().to_string();
        match read_bytes_up_to(path, &name, MAX_RULES_FILE) {
            Ok(text) => texts.push((name, text, None)),
            Err(error) => errors.push(error),
        }
    }
    let files = texts.len();
    let nodes = inline.iter().map(Some).chain(std::iter::repeat(None));
    let inline = sources.inline.iter().zip(nodes);
    texts.extend(inline.map(|(rule, node)| ("rules".to_owned(), rule.clone().into_bytes(), node)));
    for (i, (name, text, node)) in texts.iter().enumerate() {
        let wrong = |message: String, line: usize, column: usize| match node {
            Some(node) => node.error(message),
            None => SpecError::whole_file(name, message).at(line, column),
        };
        let Parsed {
            rules: read,
            skipped,
            mistakes,
            more,
        } = reader.read_bytes(text);
        // Rules in the spec itself are part of it.
        let refuses = sources.strict || i >= files;
        for mistake in mistakes {
            let error = wrong(mistake.message, mistake.line, mistake.column);
            let error = error.suggest(mistake.suggestion);
            match refuses {
                true => errors.push(error),
                false => invalid.add(&error),
            }
        }
        match (refuses, more) {
            (_, 0) => {}
            (true, _) => errors.push(SpecError::whole_file(name, format!("{more} more invalid rules"))),
            (false, _) => invalid.add_more(more),
        }
        for skipped in skipped {
            *reasons.entry(skipped.reason).or_insert(0) += 1;
        }
        for rule in read {
            let sid = rule.about.sid;
            let known = taken.entry((rule.about.generator, sid)).or_insert(rules.len());
            let Some(other): Option<&mut Rule> = rules.get_mut(*known) else {
                rules.push(dropping(rule, sources));
                continue;
            };
            let message = format!("expected each sid once, found {sid} again");
            let error = wrong(message, rule.line as usize, 1);
            match refuses {
                true => errors.push(error),
                false => invalid.add(&error),
            }
            // The newer revision stays.
            if rule.about.revision > other.about.revision {
                *other = dropping(rule, sources);
            }
        }
    }
    if rules.is_empty()
        && let Some(first) = invalid.first()
    {
        let message = format!("expected at least one valid rule, found none; the first error: {first}");
        errors.push(SpecError::whole_file("rulesFiles", message));
    }
    match SpecError::all(errors) {
        Some(error) => Err(error),
        None => {
            let texts = texts.into_iter().map(|(_, text, _)| text).collect();
            Ok(Loaded::new(rules, reasons, texts).with_invalid(invalid))
        }
    }
}

/// Returns the rule, changed to drop if it is listed for that.
fn dropping(mut rule: Rule, sources: &Sources) -> Rule {
    let named = sources.drop_sids.contains(&rule.about.sid);
    let drops = named || sources.drop_classes.contains(&rule.about.class);
    if drops && rule.header.action == Action::Alert {
        rule.header.action = Action::Drop;
    }
    rule
}
