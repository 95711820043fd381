//! The tables of fields agree with the parser of racks.

use std::path::Path;
use tailwater_api::schema::samples::{Expected, defaults, samples};
use tailwater_sim::spec::{RackSpec, SCHEMA};

/// Paths of values that must meet conditions that tables cannot express, and the conditions.
const OTHER_CONDITIONS: &[(&str, &str)] = &[
    ("spec.servers[0].count", "20,000 at flow level"),
    ("spec.servers[0].numaNodes", "at most the cores"),
    ("spec.chains[0].servers", "at flow level"),
    ("spec.chains[0].server", "coreSharing: own or broker"),
    ("spec.chains[0].profile", "a file"),
    ("spec.chains[0].frontier", "a file"),
    ("spec.chains[0].rates", "a file"),
    ("spec.chains[0].dispatch.receive", "part of the costs"),
    ("spec.chains[0].traffic.source", "a file"),
];
/// Paths of values that the parser does not come to, and the reasons.
const NOT_REACHED: &[(&str, &str)] = &[("spec.chains[0].rate", "no upper bound")];

#[test]
fn the_parser_of_racks_agrees_with_the_tables() {
    let samples = samples(&SCHEMA, &[]);
    assert!(samples.len() > 300, "only {} samples", samples.len());
    let listed = |path: &str, list: &[(&str, &str)]| list.iter().any(|(start, _)| path.starts_with(start));
    let differences: Vec<String> = samples
        .iter()
        .filter(|sample| !listed(&sample.path, NOT_REACHED))
        .filter(|sample| sample.expected != Expected::Accepted || !listed(&sample.path, OTHER_CONDITIONS))
        .filter_map(|sample| {
            let outcome = RackSpec::parse(&sample.text, "sample", Path::new("no-such-folder"));
            sample.difference(outcome.map(drop))
        })
        .collect();
    assert!(differences.is_empty(), "{}", differences.join("\n"));
}

#[test]
fn defaults_of_the_tables_are_those_of_the_parser() {
    let mut compared = 0;
    for same in defaults(&SCHEMA, &[]) {
        let parse = |text: &str| RackSpec::parse(text, "sample", Path::new("no-such-folder")).ok();
        if let (Some(with), Some(without)) = (parse(&same.with), parse(&same.without)) {
            assert_eq!(format!("{with:?}"), format!("{without:?}"), "{}", same.path);
            compared += 1;
        }
    }
    assert!(compared > 30, "only {compared} defaults");
}
