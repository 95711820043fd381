//! Fields of the schemas and fields of the reference pages are the same.

use super::{PROJECT, printed};
use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use tailwater_api::schema::{Map, Type, children};
use tailwater_functions::registry;
use tailwater_placement::spec::{CLUSTER, SLO_SET};

/// Names of all fields of a map, those of maps in it included.
fn names(map: &'static Map, found: &mut BTreeSet<String>) {
    below(&Type::Map(map), found);
}

fn below(ty: &Type, found: &mut BTreeSet<String>) {
    for child in children(ty, &[]) {
        if !child.is_entry {
            found.insert(child.name.to_owned());
        }
        if !matches!(child.ty, Type::Functions) {
            below(&child.ty, found);
        }
    }
}

fn page(path: &str) -> String {
    let path = Path::new(PROJECT).join("docs").join(path);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path:?}: {error}"))
}

/// Names of fields in the first columns of a page's tables of fields.
fn documented(page: &str) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    let mut in_fields = false;
    let mut before = "";
    for line in page.lines() {
        let Some(row) = line.strip_prefix('|').map(str::trim_start) else {
            in_fields = false;
            before = line;
            continue;
        };
        if !before.starts_with('|') {
            // The first row of a table.
            in_fields = [
                "field |",
                "field of `spec`",
                "field of `to`",
                "field of `profile`",
                "field of `dispatch`",
            ]
            .iter()
            .any(|start| row.starts_with(start))
                && !row.starts_with("field of a record");
            before = line;
            continue;
        }
        before = line;
        if !in_fields {
            continue;
        }
        let cell = row.split(" | ").next().unwrap_or_default();
        for code in cell.split('`').skip(1).step_by(2) {
            for name in code.split(['.', '[', ']']) {
                let is_name = !name.is_empty() && name.chars().all(|c| c.is_ascii_alphanumeric());
                if is_name && name != "NAME" && !["spec", "...", "metadata"].contains(&name) {
                    found.insert(name.to_owned());
                }
            }
        }
    }
    found
}

/// Returns `true` if the text contains the word.
fn has_word(text: &str, word: &str) -> bool {
    let is_part = |c: Option<char>| c.is_some_and(|c| c.is_ascii_alphanumeric());
    text.match_indices(word)
        .any(|(at, _)| !is_part(text[..at].chars().next_back()) && !is_part(text[at + word.len()..].chars().next()))
}

/// Name of a function's page.
fn page_of(function: &str) -> String {
    match function {
        "library" | "program" => "how-to/write-a-function-in-c.md".to_owned(),
        name => {
            let letters = name.chars().flat_map(|c| match c.is_ascii_uppercase() {
                true => vec!['-', c.to_ascii_lowercase()],
                false => vec![c],
            });
            format!("reference/functions/{}.md", letters.collect::<String>())
        }
    }
}

#[test]
fn every_field_is_documented_and_the_other_way_round() {
    let mut pages: Vec<(String, BTreeSet<String>)> = Vec::new();
    let mut add = |page: String, maps: &[&'static Map], more: &[&str]| {
        let mut fields: BTreeSet<String> = more.iter().map(|name| (*name).to_owned()).collect();
        for map in maps {
            names(map, &mut fields);
        }
        pages.push((page, fields));
    };
    let object = ["apiVersion", "kind", "name", "namespace", "labels", "annotations"];
    let of_functions: Vec<&str> = registry::names().chain(["onFailure"]).collect();
    let of_chain = [&object[..], &of_functions].concat();
    add(
        "reference/chain-spec.md".to_owned(),
        &[tailwater_api::chain::SCHEMA.spec],
        &of_chain,
    );
    add(
        "reference/server-spec.md".to_owned(),
        &[tailwater_api::server::SCHEMA.spec],
        &object,
    );
    add(
        "reference/rack-spec.md".to_owned(),
        &[tailwater_sim::spec::SCHEMA.spec],
        &[],
    );
    add(
        "reference/placement-files.md".to_owned(),
        &[CLUSTER.spec, SLO_SET.spec],
        &[],
    );
    for kind in registry::KINDS {
        add(page_of(kind.name), &[kind.fields], &[]);
    }
    let mut differences = Vec::new();
    let mut count = 0;
    for (name, fields) in &pages {
        let text = page(name);
        count += documented(&text).len();
        // Fields that several pages share are described on one of them.
        let shared = ["ports", "ddio"];
        for field in fields.iter().filter(|field| !has_word(&text, field)) {
            let is_elsewhere = (name.contains("chain-spec") && registry::kind(field).is_some())
                || (name.contains("server-spec") && (shared.contains(&&**field) || is_of_ports(field)))
                || (name.contains("classifier") && is_of_rules(field))
                || (name.contains("placement") && is_of_hardware(field));
            if !is_elsewhere {
                differences.push(format!("docs/{name} has no field {field}"));
            }
        }
        for field in documented(&text).difference(fields) {
            differences.push(format!("docs/{name} has a field {field} that the schema lacks"));
        }
    }
    assert!(differences.is_empty(), "{}", differences.join("\n"));
    assert!(count > 350, "only {count} fields in tables");
}

/// Fields of a chain's ports, which a server's page refers to.
fn is_of_ports(field: &str) -> bool {
    let mut fields = BTreeSet::new();
    names(&tailwater_api::ports::PORTS, &mut fields);
    fields.contains(field) || ["labels", "annotations", "namespace"].contains(&field)
}

/// Fields of rules, which the page of `acl` describes.
fn is_of_rules(field: &str) -> bool {
    ["source", "destination", "sourcePorts", "destinationPorts", "protocol"].contains(&field)
}

/// Fields of hardware, which the format of profiles describes.
fn is_of_hardware(field: &str) -> bool {
    let mut fields = BTreeSet::new();
    names(&tailwater_placement::spec::HARDWARE, &mut fields);
    fields.contains(field)
}

#[test]
fn fields_are_explained() {
    let explained = printed(&["explain-spec", "chain.spec.slo.percentile"]);
    for part in [
        "FIELD:    spec.slo.percentile",
        "above 0, below 100",
        "DEFAULT:  99",
        "EXAMPLE:  99.9",
    ] {
        assert!(explained.contains(part), "{part}: {explained}");
    }
    let by_function = printed(&["explain-spec", "acl.rules.action"]);
    assert_eq!(
        by_function,
        printed(&["explain-spec", "Chain.spec.functions[0].acl.rules[1].action"])
    );
    assert!(
        by_function.contains("allow or deny") && by_function.contains("required"),
        "{by_function}"
    );
    let all = printed(&["explain-spec", "chain", "--recursive"]);
    for field in ["percentile", "cacheWays", "rulesFile", "sessionRates", "onFailure"] {
        assert!(all.lines().any(|line| line.trim_start().starts_with(field)), "{field}");
    }
    assert!(all.lines().count() > 300, "{all}");
}
