//! Configuration of `acl`.

use crate::acl::classifier::MAX_RULES;
use crate::acl::rule_list::{
    CACHE, DESTINATION, DESTINATION_PORTS, Decisions, FORMAT, IP_PROTOCOL, RULES_FILE, RuleList, SOURCE, SOURCE_PORTS,
    rule_list,
};
use crate::acl::shadow::{ShadowedRule, find_shadowed};
use crate::acl::shadowed_rules::{Idle, describe};
use crate::acl::{Action, Rule};
use crate::kind::{ALLOW_EMPTY_RULES, Context};
use std::path::PathBuf;
use tailwater_api::error::SpecError;
use tailwater_api::located::Located;
use tailwater_api::schema::{Field, Map, Rule as Condition, Type};

const ACTIONS: [(&str, Action); 2] = [("allow", Action::Allow), ("deny", Action::Deny)];

const ACTION: Type = Type::Words(&["allow", "deny"]);
/// Fields of the configuration.
pub(super) static FIELDS: Map = Map {
    fields: &[
        Field::new(
            "rules",
            Type::List(&Type::Map(&RULE), 1, MAX_RULES),
            "Rules in order; the first that matches decides.",
        )
        .example("[{action: allow, source: 10.0.0.0/8}]"),
        RULES_FILE,
        FORMAT,
        Field::new(
            "matchAction",
            ACTION,
            "Action of ClassBench rules, which have none of their own.",
        )
        .or("allow")
        .only_with("rulesFile"),
        Field::new("default", ACTION, "Packets that no rule matches.").or("deny"),
        CACHE.or("flow"),
        ALLOW_EMPTY_RULES,
    ],
    rules: &[Condition::ExactlyOne(&["rules", "rulesFile"])],
    nullable: true,
};
static RULE: Map = Map {
    fields: &[
        Field::new("action", ACTION, "Treatment of matching packets.")
            .required()
            .example("deny"),
        SOURCE,
        DESTINATION,
        SOURCE_PORTS,
        DESTINATION_PORTS,
        IP_PROTOCOL,
    ],
    ..Map::PLAIN
};

/// Access control by ordered rules; the first match decides.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AclConfig {
    /// Rules in order. None only if an empty file is allowed.
    pub rules: Vec<Rule>,
    /// Action for packets that no rule matches.
    pub default: Action,
    /// `true` if a flow's decision is cached with the flow; otherwise every packet is classified.
    pub cached: bool,
    /// File that the rules were read from; `None` if they are in the spec.
    pub source: Option<PathBuf>,
    /// Line of each rule in the file, or its position in the list, from 1.
    pub lines: Vec<u32>,
}

impl AclConfig {
    pub(super) fn parse(node: &Located<'_>, context: &Context<'_>) -> Result<Self, SpecError> {
        let fields = node.fields_of(&FIELDS)?;
        let default = match fields.optional("default") {
            None => Action::Deny,
            Some(node) => node.word(&ACTIONS)?,
        };
        let cached = match fields.optional("cache") {
            None => true,
            Some(node) => node.word(&[("none", false), ("flow", true)])?,
        };
        let decisions = Decisions {
            field: "action",
            table: &RULE,
            what: "allow or deny",
            of_file: "matchAction",
            unsaid: Some(Action::Allow),
            read: &|node: &Located<'_>| node.word(&ACTIONS),
        };
        let RuleList {
            mut rules,
            decisions,
            lines,
            source,
        } = rule_list(&fields, context, &decisions)?;
        for (rule, action) in rules.iter_mut().zip(decisions) {
            rule.action = action;
        }
        Ok(AclConfig {
            rules,
            default,
            cached,
            source,
            lines,
        })
    }

    /// Returns notices about shadowed rules, one line each.
    pub(super) fn shadowed_rules(&self) -> Vec<String> {
        let name = |action: Action| match action {
            Action::Allow => "allow",
            Action::Deny => "deny",
        };
        let told = |ShadowedRule { rule, by }| {
            let actions = [by, rule].map(|at: usize| self.rules[at].action);
            Idle {
                line: self.lines[rule],
                by: self.lines[by],
                conflict: (actions[0] != actions[1])
                    .then(|| (name(actions[0]).to_owned(), name(actions[1]).to_owned())),
            }
        };
        let classes = vec![0; self.rules.len()];
        let found = find_shadowed(&self.rules, (&classes, 1), |_, _| true);
        let found = found.map(|found| found.into_iter().map(told).collect());
        describe(found, self.source.as_deref())
    }
}
