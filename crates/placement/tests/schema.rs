//! The tables of fields agree with the parsers of clusters and sets of SLOs.

#![cfg(feature = "spec")]

use tailwater_api::SpecError;
use tailwater_api::schema::Kind;
use tailwater_api::schema::samples::{Expected, samples};
use tailwater_placement::spec::{CLUSTER, ClusterSpec, SLO_SET, SloSet};

/// Paths of values that must meet conditions that tables cannot express, and the conditions.
const OTHER_CONDITIONS: &[(&str, &str)] = &[
    ("spec.slos[0].chain", "one of the chains"),
    ("spec.slos[0].traffic", "the chain's"),
    ("spec.slos[0].percentile", "the chain's"),
    ("spec.chains[0].curves[0].throughput[0][0]", "a cache of at most a TiB"),
    ("spec.chains[0].curves[0].latency[0][0]", "a load of at most 1"),
];
/// Paths of values that the parser does not come to, and the reasons.
const NOT_REACHED: &[(&str, &str)] = &[
    ("spec.chains[0].profile", "read by the command"),
    ("spec.profiles", "read by the command"),
    ("spec.servers[0].hardware", "read by the command"),
];

fn check(kind: &Kind, least: usize, parse: impl Fn(&str) -> Result<(), SpecError>) {
    let samples = samples(kind, &[]);
    assert!(samples.len() > least, "only {} samples", samples.len());
    let listed = |path: &str, list: &[(&str, &str)]| list.iter().any(|(start, _)| path.starts_with(start));
    let differences: Vec<String> = samples
        .iter()
        .filter(|sample| !listed(&sample.path, NOT_REACHED))
        .filter(|sample| sample.expected != Expected::Accepted || !listed(&sample.path, OTHER_CONDITIONS))
        .filter_map(|sample| sample.difference(parse(&sample.text)))
        .collect();
    assert!(differences.is_empty(), "{}", differences.join("\n"));
}

#[test]
fn the_parser_of_clusters_agrees_with_the_tables() {
    check(&CLUSTER, 40, |text| ClusterSpec::parse(text, "sample").map(drop));
}

#[test]
fn the_parser_of_slos_agrees_with_the_tables() {
    check(&SLO_SET, 100, |text| SloSet::parse(text, "sample").map(drop));
}
