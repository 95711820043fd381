//! Rows: consecutive functions of a chain that process the same packets.

use super::chain::ChainSpec;
use super::function::{FunctionSpec, places};
use crate::classifier::ClassifierConfig;
use tailwater_chain::branches::{BranchSet, can_follow, routes};

/// Consecutive functions of a chain. Every packet that reaches the first continues with the next unless it is dropped,
/// and none reaches a later one on another path.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Row<'s> {
    /// Functions, at least one.
    pub functions: &'s [FunctionSpec],
    /// `true` if packets reach further functions of the chain behind them.
    pub followed: bool,
    /// `true` if some of the chain's packets do not reach them, because they take other branches or have left.
    pub passed_by: bool,
}

impl ChainSpec {
    /// Splits the chain's functions into rows, in order. Functions that are `left_out` and classifiers belong to no
    /// row, and end the row in front of them.
    pub fn rows(&self, left_out: impl Fn(&FunctionSpec) -> bool) -> Vec<Row<'_>> {
        let places = places(&self.functions);
        let routes = routes(&self.branches, &places);
        let is_in = |function: &FunctionSpec| !function.config.is::<ClassifierConfig>() && !left_out(function);
        let mut end = 0;
        // A classifier marks where packets leave the chain or take branches; a change of branch marks where they join.
        let alike = |one: &FunctionSpec, next: &FunctionSpec| one.branch == next.branch && is_in(one) == is_in(next);
        let rows = self.functions.chunk_by(alike).filter_map(|functions| {
            let first = end;
            end += functions.len();
            let route = routes[first];
            functions.first().is_some_and(&is_in).then(|| Row {
                functions,
                followed: (end..places.len()).any(|behind| can_follow(&self.branches, &places, [end - 1, behind])),
                passed_by: route.within.and(route.gone) != BranchSet::START,
            })
        });
        rows.collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(functions: &str) -> ChainSpec {
        let text = format!(
            "apiVersion: tailwater.dev/v1alpha1\nkind: Chain\nmetadata: {{name: test}}\nspec:\n  functions: {functions}\n  \
             slo: {{latency: 1ms}}\n"
        );
        ChainSpec::parse(&text, "test.yaml", std::path::Path::new("")).unwrap()
    }

    /// Formats each row's functions, with `>` if it is followed, and in parentheses if other packets bypass it.
    fn rows(spec: &ChainSpec, left_out: &str) -> String {
        let rows = spec.rows(|function| function.name == left_out);
        let text = |row: &Row<'_>| {
            let names = row.functions.iter().map(|function| function.name.as_str());
            let names = names.collect::<Vec<_>>().join(" ");
            let next = if row.followed { ">" } else { "" };
            match row.passed_by {
                true => format!("({names}{next})"),
                false => format!("{names}{next}"),
            }
        };
        rows.iter().map(text).collect::<Vec<_>>().join(" | ")
    }

    fn forward(name: &str) -> String {
        format!("{{name: {name}, forward: }}")
    }

    #[test]
    fn a_line_is_one_row_and_ends_where_functions_are_left_out() {
        let line = spec(&format!("[{}, {}, {}]", forward("a"), forward("b"), forward("c")));
        assert_eq!(rows(&line, ""), "a b c");
        assert_eq!(rows(&line, "b"), "a> | c");
        assert_eq!(rows(&line, "a"), "b c");
        assert_eq!(rows(&line, "c"), "a b>");
    }

    #[test]
    fn rows_end_where_packets_take_branches_and_come_together() {
        let [a, b, x, y, z, out, behind, last] = ["a", "b", "x", "y", "z", "out", "behind", "last"].map(forward);
        let inner = format!(
            "{{name: inner, classifier: {{rules: [{{to: deep, protocol: udp}}], branches: {{deep: {{functions: [{z}]}}}}}}}}"
        );
        let outer = |then: &str| {
            format!(
                "[{a}, {b}, {{name: outer, classifier: {{rules: [{{to: one, protocol: tcp}}, {{to: two, protocol: udp}}], \
                 branches: {{one: {{functions: [{x}, {inner}, {y}]}}, two: {{functions: [{out}], then: {then}}}}}}}}}, {behind}, {last}]"
            )
        };
        let ends = spec(&outer("send"));
        assert_eq!(rows(&ends, ""), "a b> | (x>) | (z>) | (y>) | (out) | (behind last)");
        assert_eq!(rows(&ends, "x"), "a b> | (z>) | (y>) | (out) | (behind last)");
        let joins = spec(&outer("next"));
        assert_eq!(rows(&joins, ""), "a b> | (x>) | (z>) | (y>) | (out>) | behind last");
    }
}
