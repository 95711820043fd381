//! The tables of fields agree with the parser of chains: each sample that is made from them is accepted or refused as
//! they say.

use std::fs;
use std::path::PathBuf;
use tailwater_api::chain::SCHEMA;
use tailwater_api::schema::samples::{Expected, defaults, samples};
use tailwater_functions::registry;
use tailwater_functions::spec::ChainSpec;

/// Paths of values that must meet conditions that tables cannot express, and the conditions.
const OTHER_CONDITIONS: &[(&str, &str)] = &[
    ("spec.slo.network", "less than latency"),
    (".ipsec.policies[0].protect", "one of the associations"),
    (".upf.profiles.edge.usage", "the function's usage is required"),
    (".classifier.rules[0].to", "one of the branches"),
    (".classifier.rulesFile", "ClassBench requires matchTo"),
    (".classifier.matchTo", "one of the branches"),
    (".classifier.default", "one of the branches"),
    (".synthetic.stride", "below workingSet"),
    (".ids.variables", "syntax of rules"),
    (".ids.onOverflow", "drop requires mode: drop"),
    (".wanOptimizer.remote", "other than local"),
    (".wanOptimizer.port", "room for the streams' ports"),
    (".library.file", "the library is loaded"),
    (".xdp.file", "an object of clang"),
    (".wasm.file", "a WebAssembly module"),
    (".onFailure", "bypass of functions that stop and change no packets"),
    (".nat.ports", "at least 512 ports"),
    (".backends[0].mac", "mode: mac"),
    (".keyFile", "a file with digits"),
    (".ipForward.routesFile", "a file with routes"),
    (".ipForward.default", "one of the next hops"),
    (".policer.limits[0].peak.rate", "no lower than the rate"),
    (".firstSequence", "below 2^32 without esn"),
    (".external.returnPort", "of the kind of port"),
];

/// Paths of values that the parser does not come to, and the reasons.
const NOT_REACHED: &[(&str, &str)] = &[
    (".classifier.branches", "a rule must lead to each branch"),
    (".program.", "programs require isolation"),
];

/// Folder with the file that samples name.
fn folder(test: &str) -> PathBuf {
    let folder = std::env::temp_dir().join(format!("tailwater-{test}-{}", std::process::id()));
    fs::create_dir_all(&folder).expect("a folder");
    let rules = "@0.0.0.0/0 0.0.0.0/0 0 : 65535 0 : 65535 0x00/0x00\n";
    fs::write(folder.join("file.txt"), rules).expect("a file");
    folder
}

#[test]
fn the_parser_of_chains_agrees_with_the_tables() {
    let folder = folder("schema");
    let samples = samples(&SCHEMA, &registry::schemas());
    assert!(samples.len() > 2000, "only {} samples", samples.len());
    let mut differences = Vec::new();
    for sample in &samples {
        let outcome = ChainSpec::parse(&sample.text, "sample", &folder).map(drop);
        let listed = |list: &[(&str, &str)]| list.iter().any(|(path, _)| sample.path.contains(path));
        let is_known = listed(NOT_REACHED) || (listed(OTHER_CONDITIONS) && sample.expected == Expected::Accepted);
        if let Some(difference) = sample.difference(outcome).filter(|_| !is_known) {
            differences.push(difference);
        }
    }
    fs::remove_dir_all(&folder).expect("a folder");
    assert!(
        differences.is_empty(),
        "{} of {} differ:\n{}",
        differences.len(),
        samples.len(),
        differences.join("\n")
    );
}

#[test]
fn defaults_of_the_tables_are_those_of_the_parser() {
    let folder = folder("defaults");
    let (mut compared, mut differences) = (0, Vec::new());
    for same in defaults(&SCHEMA, &registry::schemas()) {
        let parse = |text: &str| ChainSpec::parse(text, "sample", &folder);
        // Some defaults need other fields, such as a rule that leads to a branch.
        let (Ok(with), Ok(without)) = (parse(&same.with), parse(&same.without)) else {
            continue;
        };
        compared += 1;
        let config = |spec: &ChainSpec| spec.functions.iter().map(|f| f.config.clone()).collect::<Vec<_>>();
        if with.settings != without.settings || config(&with) != config(&without) {
            differences.push(format!("{}\n    {}", same.path, same.with));
        }
    }
    fs::remove_dir_all(&folder).expect("a folder");
    assert!(differences.is_empty(), "{}", differences.join("\n"));
    assert!(compared > 150, "only {compared} defaults");
}
