//! Chains that are accepted, and those that are not.

use super::*;

fn chain(name: &str, matching: &Value) -> Arc<Chain> {
    let chain = json!({
        "apiVersion": "tailwater.dev/v1alpha1", "kind": "Chain",
        "metadata": {"name": name, "namespace": "a", "uid": matching.to_string(), "generation": 1},
        "spec": {"match": matching, "functions": [{"count": {}}], "slo": {"latency": "1ms"}},
    });
    Arc::new(serde_json::from_value(chain).unwrap())
}

fn prefixes(lengths: std::ops::Range<u8>) -> Vec<String> {
    lengths.map(|length| format!("11.0.0.0/{length}")).collect()
}

fn of(chains: Vec<Arc<Chain>>) -> Objects {
    Objects {
        chains,
        ..Objects::default()
    }
}

#[test]
fn what_the_ingress_cannot_have_is_not_accepted() {
    let wide: Vec<String> = (0..100)
        .map(|number| format!("10.{}.{}.0/24", number / 256, number % 256))
        .collect();
    let all = vec![
        chain(
            "first",
            &json!({"destinations": prefixes(8..30), "sources": prefixes(8..29)}),
        ),
        chain(
            "other",
            &json!({"destinations": ["12.0.0.0/30"], "sources": prefixes(8..29)}),
        ),
        chain(
            "small",
            &json!({"destinations": ["12.0.0.0/9"], "sources": prefixes(8..29)}),
        ),
        chain("wide", &json!({"destinations": wide, "sources": prefixes(8..19)})),
    ];
    let mut chains = Chains::new(Arc::new(DocumentReader));
    chains.read(&of(all));
    let mut reason = |name: &str| chains.facts(name).unwrap().err().map(|rejection| rejection.reason);
    let reasons = ["a/first", "a/other", "a/small", "a/wide"].map(&mut reason);
    assert_eq!(reasons, [None, Some("TooManyLengths"), None, Some("Invalid")]);
    let wide = chains.facts("a/wide").unwrap().unwrap_err();
    assert!(wide.message.contains("at most 1024 combinations"), "{}", wide.message);
}

#[test]
fn a_chain_that_was_created_again_is_read_again() {
    let mut chains = Chains::new(Arc::new(DocumentReader));
    for prefix in ["10.0.0.0/16", "10.1.0.0/16"] {
        chains.read(&of(vec![chain("web", &json!({"destinations": [prefix]}))]));
        let facts = chains.facts("a/web").unwrap().unwrap();
        assert_eq!(facts.match_.destinations[0].to_string(), prefix);
    }
}
