//! Shadowed rules: rules that never decide, because an earlier rule matches everything they match.

use super::rules::{Action, Rule, States};
use crate::acl;
use crate::acl::classifier::ClassifierError;
use crate::acl::shadow::find_shadowed;
use std::collections::HashMap;

/// A rule shadowed by an earlier one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShadowedRules {
    /// Line of the shadowed rule.
    pub line: u32,
    /// Line of the earlier rule.
    pub by: u32,
    /// Actions of the earlier and the shadowed rule if they differ. The first action applies.
    pub conflict: Option<(Action, Action)>,
}

/// Match conditions of a rule other than the 5-tuple: source zone, destination zone and states.
type Class = (Option<u8>, Option<u8>, States);

/// Returns the rules that one earlier rule shadows, in order. Rules that only several earlier ones shadow together are
/// not found.
///
/// # Errors
/// If the rules overlap in so many ways that the check exceeds its memory limit.
pub fn shadowed(rules: &[Rule]) -> Result<Vec<ShadowedRules>, ClassifierError> {
    let mut numbers: HashMap<Class, u16> = HashMap::new();
    let mut classes: Vec<Class> = Vec::new();
    let of_rule = rules.iter().map(|rule| {
        let class = (rule.from, rule.to, rule.states);
        *numbers.entry(class).or_insert_with(|| {
            classes.push(class);
            // At most 17 zones on each side, and 16 sets of states.
            (classes.len() - 1) as u16
        })
    });
    let of_rule: Vec<u16> = of_rule.collect();
    let tuples: Vec<acl::Rule> = rules.iter().map(Rule::five_tuple).collect();
    let holds = |outer: u16, inner: u16| {
        let [outer, inner] = [outer, inner].map(|class| classes[usize::from(class)]);
        let zone = |outer: Option<u8>, inner| outer.is_none() || outer == inner;
        zone(outer.0, inner.0) && zone(outer.1, inner.1) && outer.2.contain(inner.2)
    };
    let found = find_shadowed(&tuples, (&of_rule, classes.len() as u16), holds)?;
    let told = found.into_iter().map(|covered| {
        let (rule, by) = (&rules[covered.rule], &rules[covered.by]);
        ShadowedRules {
            line: rule.line,
            by: by.line,
            conflict: (by.action != rule.action).then_some((by.action, rule.action)),
        }
    });
    Ok(told.collect())
}
