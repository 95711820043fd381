//! The tables of fields agree with the parser of servers; every field is described; paths lead to fields.

use std::path::Path;
use tailwater_api::document::Document;
use tailwater_api::schema::samples::{Expected, defaults, samples};
use tailwater_api::schema::{Child, Field, Foreign, FunctionSchema, Map, Type, children, find, structural_schema};
use tailwater_api::server::{DESCRIPTION, SCHEMA, ServerSpec};
use tailwater_api::{chain, server};

/// Paths of values that must meet conditions that tables cannot express, and the conditions.
const OTHER_CONDITIONS: &[(&str, &str)] = &[("spec.auxiliary", "none of the dedicated cores")];
/// Paths of values that the parser leaves to the machine.
const UNBOUNDED: &[&str] = &["spec.control.readers"];

static FORWARD: FunctionSchema = FunctionSchema {
    name: "forward",
    doc: "Forwarding",
    config: &Map::PLAIN,
};

#[test]
fn the_parser_of_servers_agrees_with_the_tables() {
    let samples = samples(&SCHEMA, &[]);
    assert!(samples.len() > 200, "only {} samples", samples.len());
    let is_listed = |path: &str| OTHER_CONDITIONS.iter().any(|(start, _)| path.starts_with(start));
    let differences: Vec<String> = samples
        .iter()
        .filter(|sample| !UNBOUNDED.contains(&&*sample.path))
        .filter(|sample| sample.expected != Expected::Accepted || !is_listed(&sample.path))
        .filter_map(|sample| {
            let document = Document::parse(&sample.text, "sample", DESCRIPTION);
            let outcome = document.and_then(|document| ServerSpec::new(&document, Path::new("/")));
            sample.difference(outcome.map(drop))
        })
        .collect();
    assert!(differences.is_empty(), "{}", differences.join("\n"));
}

#[test]
fn defaults_of_the_tables_are_those_of_the_parser() {
    let mut compared = 0;
    for same in defaults(&SCHEMA, &[]) {
        let parse = |text: &str| {
            let document = Document::parse(text, "sample", DESCRIPTION);
            document
                .and_then(|document| ServerSpec::new(&document, Path::new("/")))
                .ok()
        };
        if let (Some(with), Some(without)) = (parse(&same.with), parse(&same.without)) {
            assert_eq!(with, without, "{}", same.path);
            compared += 1;
        }
    }
    assert!(compared >= 10, "only {compared} defaults");
}

fn each_field(map: &'static Map, visit: &mut dyn FnMut(&'static Map, &'static Field)) {
    for field in map.fields {
        visit(map, field);
        each_type(&field.ty, visit);
    }
}

fn each_type(ty: &Type, visit: &mut dyn FnMut(&'static Map, &'static Field)) {
    match ty {
        Type::Map(map) => each_field(map, visit),
        Type::List(item, ..) => each_type(item, visit),
        Type::Entries(entries) => each_type(&entries.value, visit),
        Type::OneOf(types) => types.iter().for_each(|ty| each_type(ty, visit)),
        _ => {}
    }
}

#[test]
fn every_field_is_described_and_conditions_name_fields() {
    let mut count = 0;
    for kind in [&chain::SCHEMA, &server::SCHEMA] {
        each_field(kind.spec, &mut |map, field| {
            count += 1;
            let name = field.name;
            assert!(
                field.doc.ends_with('.') && field.doc.starts_with(|c: char| c.is_uppercase() || "`\"1".contains(c)),
                "{name}"
            );
            let is_bound = map.rules.iter().any(|rule| rule.fields().contains(&name));
            let has_default = field.default.is_some() || field.otherwise.is_some();
            let is_map = matches!(field.ty, Type::Map(_) | Type::OneOf(_));
            assert!(
                field.required || has_default || is_bound || field.only.is_some() || is_map,
                "{name}"
            );
            for rule in map.rules {
                assert!(rule.fields().iter().all(|name| map.field(name).is_some()), "{rule:?}");
            }
        });
    }
    assert!(count > 60, "only {count} fields");
}

fn path_of(path: &str) -> Result<Child, String> {
    let start = Child {
        name: "spec",
        ty: Type::Map(chain::SCHEMA.spec),
        doc: "",
        field: None,
        is_entry: false,
    };
    find("spec", start, path.split('.'), &[FORWARD]).map_err(|error| error.to_string())
}

#[test]
fn paths_lead_to_fields_or_to_the_nearest_name() {
    let latency = path_of("slo.latency").unwrap();
    assert_eq!(latency.ty.to_words(), "duration, 1us to 10s");
    assert_eq!(path_of("functions[3].onFailure").unwrap().name, "onFailure");
    assert_eq!(
        path_of("flows.idleTimeout.udp").unwrap().field.unwrap().default,
        Some("60s")
    );
    let error = path_of("slo.latncy").unwrap_err();
    assert_eq!(
        error,
        "spec.slo: expected one of the fields latency, network, percentile, throughput, found \"latncy\""
    );
    assert!(
        path_of("cores.first")
            .unwrap_err()
            .contains("expected no field below it")
    );
    let below = children(&path_of("functions").unwrap().ty, &[FORWARD]);
    let names: Vec<&str> = below.iter().map(|child| child.name).collect();
    assert_eq!(names, ["name", "onFailure", "forward"]);
}

#[test]
fn foreign_functions_are_accepted_only_where_allowed() {
    let item = |foreign| {
        let schema = structural_schema(chain::SCHEMA.spec, &[FORWARD], foreign);
        schema["properties"]["functions"]["items"].clone()
    };
    let [refused, allowed] = [Foreign::Refused, Foreign::Allowed].map(item);
    assert!(refused.get("x-kubernetes-preserve-unknown-fields").is_none());
    assert_eq!(allowed["x-kubernetes-preserve-unknown-fields"], true);
    assert!(refused["properties"]["forward"]["type"] == "object", "{refused}");
}
