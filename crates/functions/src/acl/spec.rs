//! Configuration of `acl`.

use crate::acl::rule_list::{Decisions, RuleList, rule_list};
use crate::acl::shadow::{ShadowedRule, find_shadowed};
use crate::acl::shadowed_rules::{Idle, describe};
use crate::acl::{Action, Rule};
use crate::kind::{ALLOW_EMPTY, Context};
use std::path::PathBuf;
use tailwater_api::error::SpecError;
use tailwater_api::located::Located;

const ACTIONS: [(&str, Action); 2] = [("allow", Action::Allow), ("deny", Action::Deny)];

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
        let fields = node.fields_or_none(&[
            "rules",
            "rulesFile",
            "format",
            "matchAction",
            "default",
            "cache",
            ALLOW_EMPTY,
        ])?;
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
