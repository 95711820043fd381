//! Configuration of `bpfFilter`.

use crate::bpf_filter::{Instruction, MAX_RULES, Rule, compile, parse_program, verify};
use crate::kind::Context;
use tailwater_api::error::SpecError;
use tailwater_api::files::read_text_up_to;
use tailwater_api::located::{Fields, Located};
use tailwater_api::schema::{FILE, Field, Map, Rule as Condition, Type};
use tailwater_api::values::PacketAction;

/// Maximum length of an expression in bytes.
const MAX_EXPRESSION: usize = 16_384;
/// Maximum size of a program file in bytes.
const MAX_FILE: usize = 1 << 20;

/// Fields of the configuration.
pub(super) static FIELDS: Map = Map {
    fields: &[
        Field::new(
            "rules",
            Type::List(&Type::Map(&RULE), 1, MAX_RULES),
            "Rules in order; the first that matches decides.",
        )
        .required()
        .example("[{expression: tcp port 80, action: drop}]"),
        Field::new(
            "default",
            PacketAction::TYPE,
            "Packets that no rule matches; `drop` counts as `no-rule`.",
        )
        .or("pass"),
    ],
    nullable: true,
    ..Map::PLAIN
};
static RULE: Map = Map {
    fields: &[
        EXPRESSION,
        PROGRAM_FILE,
        Field::new("action", PacketAction::TYPE, "Treatment of matching packets.")
            .required()
            .example("drop"),
    ],
    rules: &[Condition::ExactlyOne(&["expression", "programFile"])],
    ..Map::PLAIN
};
/// Filter as text.
pub(crate) const EXPRESSION: Field = Field::new(
    "expression",
    Type::Any(MAX_EXPRESSION),
    "Filter expression, see `man pcap-filter`; an empty one matches all.",
)
.example("tcp port 80");
/// Filter as a program.
pub(crate) const PROGRAM_FILE: Field = Field::new(
    "programFile",
    Type::Text(&FILE),
    "File with a program, relative to the spec's folder, in the format of `tcpdump -ddd -y EN10MB`.",
);

/// Packet filter by classic BPF programs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BpfFilterConfig {
    /// Rules in order, at least one; their programs are verified.
    pub rules: Vec<Rule>,
    /// Treatment of packets that no rule matches.
    pub default: PacketAction,
}

impl BpfFilterConfig {
    pub(super) fn parse(node: &Located<'_>, context: &Context<'_>) -> Result<Self, SpecError> {
        let fields = node.fields_of(&FIELDS)?;
        let list = fields.required("rules", "a list of rules")?;
        let rules = list.list("rules", MAX_RULES)?;
        let default = fields.optional("default");
        Ok(BpfFilterConfig {
            rules: rules.iter().map(|node| rule(node, context)).collect::<Result<_, _>>()?,
            default: default.map_or(Ok(PacketAction::Pass), |node| PacketAction::parse(&node))?,
        })
    }
}

fn rule(node: &Located<'_>, context: &Context<'_>) -> Result<Rule, SpecError> {
    let fields = node.fields_of(&RULE)?;
    let action = fields.required("action", "drop or pass")?;
    let action = PacketAction::parse(&action)?;
    if let Some(node) = fields.optional("expression").filter(|_| context.is_apart()) {
        // Libraries that libpcap depends on make system calls while they are loaded, which isolated functions may not.
        let message = "expected a programFile, found an expression: libpcap, which compiles it, cannot be loaded for \
            isolated functions; print the program with tcpdump -ddd -y EN10MB";
        return Err(node.error(message));
    }
    let program = program(&fields, context)?;
    Ok(Rule { program, action })
}

/// Reads and verifies the program of an `expression` or a `programFile`, one of which is required.
pub(crate) fn program(fields: &Fields<'_>, context: &Context<'_>) -> Result<Vec<Instruction>, SpecError> {
    match (fields.optional("expression"), fields.optional("programFile")) {
        (Some(node), None) => {
            let text = node.text("an expression such as tcp port 80")?;
            if text.len() > MAX_EXPRESSION {
                let what = format!("expected an expression of at most {MAX_EXPRESSION} bytes");
                return Err(node.error(what));
            }
            let program = compile(text).map_err(|error| node.error(error.to_string()))?;
            verify(&program).map_err(|refused| node.error(refused.to_string()))?;
            Ok(program)
        }
        (None, Some(node)) => {
            let path = context.file(node.string("the name of a file")?);
            let name = path.display().to_string();
            let text = read_text_up_to(&path, &name, MAX_FILE).map_err(|error| match error.line {
                // The file does not exist: the error is in the spec.
                0 => node.error(format!("{name} {}", error.message)),
                _ => error,
            })?;
            let at = |line: usize, why: String| SpecError::whole_file(&name, why).at(line, 1);
            let program = parse_program(&text).map_err(|(line, why)| at(line, why))?;
            verify(&program).map_err(|refused| {
                // The first line holds the number of instructions.
                at(refused.at.map_or(1, |at| at + 2), refused.to_string())
            })?;
            Ok(program)
        }
        _ => Err(fields.error("expected either an expression or a programFile")),
    }
}
