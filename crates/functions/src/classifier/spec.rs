//! Configuration of `classifier`. The functions of its branches are read with the chain's.

use crate::acl::Rule;
use crate::acl::classifier::{ClassifierError, MAX_RULES};
use crate::acl::rule_list::{
    CACHE, DESTINATION, DESTINATION_PORTS, Decisions, FORMAT, IP_PROTOCOL, RULES_FILE, RuleList, SOURCE, SOURCE_PORTS,
    rule_list,
};
use crate::acl::shadow::{ShadowedRule, find_shadowed};
use crate::acl::shadowed_rules::{Idle, describe};
use crate::kind::{ALLOW_EMPTY_RULES, Context};
use std::collections::HashSet;
use std::path::PathBuf;
use tailwater_api::chain::{BRANCHES, BranchConfig, NEXT, SEND, branches};
use tailwater_api::error::SpecError;
use tailwater_api::located::Located;
use tailwater_api::schema::{Field, LABEL, Map, Rule as Condition, Type};

/// Fields of the configuration.
pub(super) static FIELDS: Map = Map {
    fields: &[
        Field::new(
            "branches",
            Type::Entries(&BRANCHES),
            "Branches by name. `next` and `send` are reserved: behind the classifier, and out of the chain.",
        )
        .otherwise("none"),
        Field::new(
            "rules",
            Type::List(&Type::Map(&RULE), 1, MAX_RULES),
            "Rules in order; the first that matches decides.",
        )
        .example("[{to: send, protocol: tcp}]"),
        RULES_FILE,
        FORMAT,
        Field::new(
            "matchTo",
            Type::Text(&LABEL),
            "Target of a ClassBench file's rules: a branch, `next` or `send`. Required with such a file.",
        )
        .only_with("rulesFile"),
        Field::new(
            "default",
            Type::Text(&LABEL),
            "Target of packets that no rule matches: a branch, `next` or `send`.",
        )
        .or("next"),
        Field::new(
            "directions",
            Type::Words(&["both", "each"]),
            "Whether a rule that matches one direction of a connection applies to the other, too.",
        )
        .or("both"),
        CACHE.or("flow"),
        ALLOW_EMPTY_RULES,
    ],
    rules: &[Condition::ExactlyOne(&["rules", "rulesFile"])],
    ..Map::PLAIN
};
static RULE: Map = Map {
    fields: &[
        Field::new(
            "to",
            Type::Text(&LABEL),
            "Target of matching packets: a branch, `next` or `send`.",
        )
        .required()
        .example("send"),
        SOURCE,
        DESTINATION,
        SOURCE_PORTS,
        DESTINATION_PORTS,
        IP_PROTOCOL,
    ],
    ..Map::PLAIN
};

/// Branches by rule: the first rule that matches a packet determines its branch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClassifierConfig {
    /// Branches, in order.
    pub branches: Vec<BranchConfig>,
    /// Rules in order. None only if an empty file is allowed. Their actions are not used.
    pub rules: Vec<Rule>,
    /// Target of each rule.
    pub targets: Vec<Target>,
    /// Target of packets that no rule matches.
    pub default: Target,
    /// `true` if rules match both directions of a connection.
    pub both: bool,
    /// `true` if a flow's decision is cached with the flow; otherwise every packet is classified.
    pub cached: bool,
    /// File that the rules were read from; `None` if they are in the spec.
    pub source: Option<PathBuf>,
    /// Line of each rule in the file, or its position in the list, from 1.
    pub lines: Vec<u32>,
}

/// Target of packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    /// Function after the classifier.
    Next,
    /// Exit from the chain; the packet is sent.
    Send,
    /// Branch at this index of the list.
    Branch(usize),
}

impl ClassifierConfig {
    pub(super) fn parse(node: &Located<'_>, context: &Context<'_>) -> Result<Self, SpecError> {
        let fields = node.fields_of(&FIELDS)?;
        let branches_node = fields.optional("branches");
        let branches = match &branches_node {
            None => Vec::new(),
            Some(node) => branches(node)?,
        };
        let places = branches.iter().enumerate();
        let mut targets: Vec<_> = places
            .map(|(batch_index, branch)| (branch.name.as_str(), Target::Branch(batch_index)))
            .collect();
        targets.extend([(NEXT, Target::Next), (SEND, Target::Send)]);
        let names = targets.iter().map(|(name, _)| *name);
        let what = names.collect::<Vec<_>>().join(" or ");
        let decisions = Decisions {
            field: "to",
            table: &RULE,
            what: &what,
            of_file: "matchTo",
            unsaid: None,
            read: &|node: &Located<'_>| node.word(&targets),
        };
        let default = match fields.optional("default") {
            None => Target::Next,
            Some(node) => node.word(&targets)?,
        };
        let RuleList {
            rules,
            decisions,
            lines,
            source,
        } = rule_list(&fields, context, &decisions)?;
        let both = match fields.optional("directions") {
            None => true,
            Some(node) => node.word(&[("both", true), ("each", false)])?,
        };
        let cached = match fields.optional("cache") {
            None => true,
            Some(node) => node.word(&[("none", false), ("flow", true)])?,
        };
        let classifier = ClassifierConfig {
            targets: decisions,
            branches,
            rules,
            default,
            both,
            cached,
            source,
            lines,
        };
        if let Some(node) = branches_node {
            classifier.check_reached(&node)?;
        }
        if classifier.ways_out().all(|target| target == Target::Next) {
            let message = "expected a rule or a default with a target other than next";
            return Err(node.error(message));
        }
        Ok(classifier)
    }

    /// Iterates over the targets of all rules, and of packets that none matches.
    pub(crate) fn ways_out(&self) -> impl Iterator<Item = Target> {
        self.targets.iter().copied().chain([self.default])
    }

    /// Returns all targets by their names in rules: the branches, `next`, and `send` if it is used.
    pub(crate) fn names(&self) -> Vec<(&str, Target)> {
        let branches = self.branches.iter().enumerate();
        let mut names: Vec<_> = branches
            .map(|(batch_index, branch)| (branch.name.as_str(), Target::Branch(batch_index)))
            .collect();
        names.push((NEXT, Target::Next));
        if self.sends() {
            names.push((SEND, Target::Send));
        }
        names
    }

    /// Returns `true` if it sends packets out of the chain itself.
    pub(crate) fn sends(&self) -> bool {
        self.ways_out().any(|target| target == Target::Send)
    }

    fn find_shadowed(&self) -> Result<Vec<ShadowedRule>, ClassifierError> {
        let classes = vec![0; self.rules.len()];
        find_shadowed(&self.rules, (&classes, 1), |_, _| true)
    }

    /// Checks that packets can reach each branch.
    fn check_reached(&self, node: &Located<'_>) -> Result<(), SpecError> {
        // A list that is too complex to analyse is rejected when it is built.
        let idle = self.find_shadowed().unwrap_or_default();
        let idle: HashSet<usize> = idle.iter().map(|covered| covered.rule).collect();
        for (batch_index, branch) in self.branches.iter().enumerate() {
            let target = Target::Branch(batch_index);
            let led = self.ways_out().any(|direction| direction == target);
            let mut rules = self.targets.iter().enumerate();
            let decides = rules.any(|(rule, direction)| *direction == target && !idle.contains(&rule));
            if decides || self.default == target {
                continue;
            }
            let found = match led {
                true => "found only shadowed rules",
                false => "found none",
            };
            let message = format!("expected a rule or the default to lead to each branch, {found}");
            return Err(node.error_at_key(&branch.name, message));
        }
        Ok(())
    }

    /// Returns notices about shadowed rules, one line each.
    pub(super) fn shadowed_rules(&self) -> Vec<String> {
        let names = self.names();
        let name = |target: Target| {
            let known = names.iter().find(|(_, known)| *known == target);
            known.map_or(String::new(), |(name, _)| (*name).to_owned())
        };
        let told = |ShadowedRule { rule, by }| {
            let [first, second] = [by, rule].map(|at: usize| self.targets[at]);
            Idle {
                line: self.lines[rule],
                by: self.lines[by],
                conflict: (first != second).then(|| (name(first), name(second))),
            }
        };
        let found = self.find_shadowed();
        let found = found.map(|found| found.into_iter().map(told).collect());
        describe(found, self.source.as_deref())
    }
}
