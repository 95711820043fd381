//! Chains are read without any function's code: unknown kinds are kept, errors in the structure are reported.

use super::*;
use crate::SpecError;
use crate::document::Document;
use crate::slo::WhenOverloaded;
use std::fs;
use std::path::Path;

fn text(functions: &str, rest: &str) -> String {
    format!(
        "apiVersion: tailwater.dev/v1alpha1\nkind: Chain\nmetadata: {{name: test, labels: {{tier: gold}}}}\nspec:\n  \
         functions: {functions}\n{rest}"
    )
}

fn document(text: &str) -> Document {
    Document::parse(text, "chain.yaml", DESCRIPTION).unwrap()
}

/// Error of a chain with these functions and settings, without its file.
fn error(functions: &str, rest: &str) -> String {
    let document = document(&text(functions, rest));
    let error = ChainDocument::new(&document, Path::new("")).err().expect("an error");
    let text = error.to_string();
    text.strip_prefix("chain.yaml:").expect("the file").to_owned()
}

const SLO: &str = "  slo: {latency: 1ms}\n";

#[test]
fn a_chain_names_a_port_of_the_server_or_has_ports_of_its_own() {
    let named = document(&text("[forward:]", &format!("{SLO}  port: north\n")));
    let chain = ChainDocument::new(&named, Path::new("")).unwrap();
    assert_eq!(chain.settings.port.as_deref(), Some("north"));
    let both = error(
        "[forward:]",
        &format!("{SLO}  port: north\n  ports: {{entry: net_null0}}\n"),
    );
    assert!(
        both.contains("spec.port: expected either port, the name of a server's port, or ports"),
        "{both}"
    );
    let wrong = error("[forward:]", &format!("{SLO}  port: net_null0\n"));
    assert!(
        wrong.contains("spec.port: expected a name of lower-case letters"),
        "{wrong}"
    );
}

#[test]
fn functions_are_kept_as_written() {
    let functions = "
  - name: edge
    acl: {rules: [{action: deny}]}
  - quantumFilter: {depth: 3, keys: [a, b]}
  - forward:
";
    let document = document(&text(
        functions,
        "  slo: {latency: 1ms, throughput: 2Mpps}\n  flows: {capacity: 512}\n",
    ));
    let chain = ChainDocument::new(&document, Path::new("")).unwrap();
    let found: Vec<_> = chain.functions.iter().map(|f| (f.name.as_deref(), f.kind)).collect();
    assert_eq!(
        found,
        [(Some("edge"), "acl"), (None, "quantumFilter"), (None, "forward")]
    );
    let json: Vec<_> = chain.functions.iter().map(|f| f.config.json().unwrap()).collect();
    assert_eq!(
        json,
        [
            r#"{"rules":[{"action":"deny"}]}"#,
            r#"{"depth":3,"keys":["a","b"]}"#,
            "null"
        ]
    );
    // An error about a configuration names its position in the document.
    let keys = chain.functions[1].config.descendant("keys[1]").error("unexpected");
    assert_eq!(
        keys.to_string(),
        "chain.yaml:8:41: spec.functions[1].quantumFilter.keys[1]: unexpected"
    );
    assert!(chain.branches.is_empty() && chain.functions.iter().all(|f| f.branch.is_none()));
    let settings = &chain.settings;
    assert_eq!((&*settings.name, &*settings.metadata.labels["tier"]), ("test", "gold"));
    assert_eq!((settings.slo.latency.0, settings.flows.capacity), (1_000_000, 512));
    assert_eq!(settings.when_overloaded, WhenOverloaded::InOrder);
    assert_eq!(
        (&settings.match_, &settings.ports, &settings.state),
        (&Match::default(), &None, &None)
    );
}

#[test]
fn branches_are_read_in_the_order_of_packets() {
    let functions = "
  - classifier:
      rulesFile: not-read.rules
      branches:
        web: {functions: [{name: inner, classifier: {branches: {deep: {functions: [{novel: }]}}}}, {forward: }]}
        voice: {functions: [{name: fast, forward: }], then: send}
  - name: last
    forward:
";
    let document = document(&text(functions, SLO));
    let chain = ChainDocument::new(&document, Path::new("")).unwrap();
    let found: Vec<_> = chain.functions.iter().map(|f| (f.kind, f.branch)).collect();
    let expected = [
        ("classifier", None),
        ("classifier", Some(0)),
        ("novel", Some(2)),
        ("forward", Some(0)),
        ("forward", Some(1)),
        ("forward", None),
    ];
    assert_eq!(found, expected);
    let branch = |name: &str, classifier, within, ends| ChainBranch {
        name: name.to_owned(),
        classifier,
        within,
        ends,
    };
    let expected = [
        branch("web", 0, None, false),
        branch("voice", 0, None, true),
        branch("deep", 1, Some(0), false),
    ];
    assert_eq!(chain.branches, expected);
}

#[test]
fn external_functions_are_read() {
    let functions =
        "[{external: {port: net_memif0}}, {name: other, external: {port: net_memif1, returnPort: net_memif2}}]";
    let document = document(&text(
        functions,
        "  slo: {latency: 1ms}\n  ports: {entry: net_memif3}\n",
    ));
    let chain = ChainDocument::new(&document, Path::new("")).unwrap();
    let ports = chain.externals().flat_map(|external| external.ports());
    let ports: Vec<_> = ports.map(ToString::to_string).collect();
    assert_eq!(ports, ["net_memif0", "net_memif1", "net_memif2"]);
    let taken = error(
        "[{external: {port: net_memif0}}]",
        "  slo: {latency: 1ms}\n  ports: {entry: net_memif0}\n",
    );
    assert!(
        taken.contains("spec.ports.entry: expected a separate device and interface"),
        "{taken}"
    );
    assert!(taken.contains("which function external uses"), "{taken}");
    let twice = error(
        "[{external: {port: net_memif0}}, {name: b, external: {port: net_memif0}}]",
        SLO,
    );
    assert!(
        twice.contains("spec.functions[1]: expected a separate device"),
        "{twice}"
    );
}

#[test]
fn errors_in_the_structure_are_reported() {
    let classifier = |branches: &str| format!("[{{classifier: {{branches: {branches}}}}}]");
    for (functions, rest, expected) in [
        (
            "[]",
            SLO,
            "5:14: spec.functions: expected a list of 1 to 16 functions, found 0",
        ),
        (
            "[forward]",
            SLO,
            "5:15: spec.functions[0]: expected a map with one function, found \"forward\"",
        ),
        (
            "[{}]",
            SLO,
            "5:15: spec.functions[0]: expected one function, found none",
        ),
        (
            "[{name: a}]",
            SLO,
            "5:15: spec.functions[0]: expected one function, found only a name",
        ),
        (
            "[{a: , b: }]",
            SLO,
            "5:21: spec.functions[0].b: expected one function in each item, found \"b\" and \"a\"",
        ),
        (
            "[{name: x, a: }, {name: x, b: }]",
            SLO,
            "5:31: spec.functions[1]: expected a different name for each function, found \"x\" as in functions[0]",
        ),
        ("[{a: }]", "", "5:3: spec.slo: missing, expected a map with latency"),
        (
            "[{a: }]",
            "  slo: {latency: 1ms}\n  sla: 1\n",
            "7:3: spec.sla: expected one of the fields",
        ),
        (
            &classifier("{next: {functions: [{a: }]}}"),
            SLO,
            "5:40: spec.functions[0].classifier.branches.next: ",
        ),
        (
            &classifier("{b: {functions: []}}"),
            SLO,
            "expected a list of 1 to 16 functions, found 0",
        ),
        (&classifier("{b: {}}"), SLO, "missing, expected a list of functions"),
        (
            &classifier("{b: {functions: [{external: {port: net_memif0}}]}}"),
            SLO,
            "expected no external function in a branch",
        ),
        (
            &classifier("{b: {functions: [{a: }]}}"),
            "  slo: {latency: 1ms}\n  state: {redis: {socket: redis.sock}}\n",
            "spec.state: expected no classifier in a chain with external state",
        ),
    ] {
        let found = error(functions, rest);
        assert!(found.contains(expected), "{found}\ninstead of {expected}");
    }
    let many = vec!["{a: }"; MAX_FUNCTIONS].join(", ");
    assert!(ChainDocument::new(&document(&text(&format!("[{many}]"), SLO)), Path::new("")).is_ok());
    let nested = format!("[{{classifier: {{branches: {{b: {{functions: [{many}]}}}}}}}}]");
    let found = error(&nested, SLO);
    assert!(found.contains("those of branches included, found more"), "{found}");
}

/// The chains of the examples are read. Their functions' files are not.
#[test]
fn examples_are_read_without_functions() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples");
    let mut chains = 0;
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let text = fs::read_to_string(&path).unwrap_or_default();
        if path.extension().is_none_or(|extension| extension != "yaml") || !text.contains("\nkind: Chain\n") {
            continue;
        }
        let document = Document::parse(&text, "example", DESCRIPTION).unwrap();
        let chain: Result<_, SpecError> = ChainDocument::new(&document, Path::new("no-such-folder"));
        let chain = chain.unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        assert!(!chain.functions.is_empty());
        chains += 1;
    }
    assert!(chains >= 10, "{chains}");
}
