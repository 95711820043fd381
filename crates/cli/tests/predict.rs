//! `tailwater predict` on campaigns whose competitors and targets are made up.

mod common;

use common::*;
use std::process::Output;
use std::sync::Arc;
use tailwater_predict::metric::Resource;
use tailwater_predict::{Campaign, Key, Metric, Observation, Schema, Source, Vector};

fn predict(args: &[&str]) -> Output {
    tailwater().arg("predict").args(args).output().unwrap()
}

/// A campaign of a chain that memory bandwidth slows down, and that occupies some of it.
fn campaign(function: &str, machine: &str) -> String {
    let metrics = vec![
        Metric::new("cacheAccessRate", "accesses/s", Resource::Cache),
        Metric::new("memoryRead", "GB/s", Resource::MemoryBandwidth),
    ];
    let schema = Arc::new(Schema::new(Source::Modelled, metrics).unwrap());
    let key = Key {
        function: function.to_owned(),
        configuration: "0123456789abcdef".to_owned(),
        traffic: "64B".to_owned(),
        machine: machine.to_owned(),
    };
    let mut campaign = Campaign::new(key, schema.clone());
    for at in 0..40u32 {
        let bandwidth = f64::from(at);
        let vector = |rate: f64, bandwidth: f64| Vector::new(schema.clone(), vec![Some(rate), Some(bandwidth)]);
        campaign
            .push(Observation {
                group: at,
                competitors: at.min(1),
                competition: vector(f64::from(at * 7 % 40) * 1e6, bandwidth).unwrap(),
                throughput: 1e6 / (1.0 + bandwidth / 40.0),
                p99_us: Some(20.0 * (1.0 + bandwidth / 40.0)),
                own: Some(vector(1e7, 20.0).unwrap()),
                flagged: false,
            })
            .unwrap();
    }
    campaign.to_string()
}

#[test]
fn a_prediction_has_intervals_and_the_resource_that_binds() {
    let folder = Folder::new();
    let nat = folder.write("nat.yaml", campaign("nat", "server-1"));
    let ids = folder.write("ids.yaml", campaign("ids", "server-1"));
    let model = folder.path("model.yaml");
    let [nat, ids, model] = [&nat, &ids, &model].map(|path| path.to_str().unwrap());
    let args = ["--target", nat, "--with", ids, "--method", "boosted-ridge"];
    let output = predict(&[&args[..], &["--save", model, "--output", "json"]].concat());
    assert!(output.status.success(), "{output:?}");
    let document: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let throughput = |field: &str| document["throughput_pps"][field].as_f64().unwrap();
    assert!((throughput("value") / (1e6 / 1.5) - 1.0).abs() < 0.05, "{document}");
    assert!(throughput("low") < throughput("value") && throughput("value") < throughput("high"));
    assert_eq!(document["attributions"][0]["resource"], "memory bandwidth");
    assert_eq!(document["competitors"][0], "ids");
    // The saved model says the same, and the table, too.
    let output = predict(&["--target", model, "--with", ids, "--output", "json"]);
    assert_eq!(
        serde_json::from_slice::<serde_json::Value>(&output.stdout).unwrap(),
        document
    );
    let output = predict(&["--target", model, "--with", ids]);
    let table = String::from_utf8(output.stdout).unwrap();
    assert!(
        table.contains("binds               memory bandwidth (memoryRead): "),
        "{table}"
    );
    // Without its only competitor the chain is alone.
    assert!(
        table.contains("would help          move one ids to another socket: 1.00Mpps, "),
        "{table}"
    );
    let remedy = &document["remedies"][0];
    assert_eq!(remedy["throughput_pps"]["value"], document["solo_pps"]);
    assert!((remedy["gain"].as_f64().unwrap() - 0.5).abs() < 0.08, "{remedy}");
    let joining = document["as_competitors_join"].as_array().unwrap();
    assert_eq!(joining.len(), 2);
    assert_eq!(joining[0]["throughput_pps"]["value"], document["solo_pps"]);
    assert_eq!(joining[1]["throughput_pps"], document["throughput_pps"]);
}

#[test]
fn a_page_shows_the_prediction() {
    let folder = Folder::new();
    let nat = folder.write("nat.yaml", campaign("nat", "server-1"));
    let page = folder.path("page.html");
    let [nat, report] = [&nat, &page].map(|path| path.to_str().unwrap());
    let args = ["--target", nat, "--with", nat, "--method", "ridge", "--report", report];
    let output = predict(&args);
    assert!(output.status.success(), "{output:?}");
    let text = std::fs::read_to_string(&page).unwrap();
    for part in [
        "id=\"throughput\"",
        "id=\"p99\"",
        "id=\"losses\"",
        "id=\"remedies\"",
        "move one nat to another socket",
    ] {
        assert!(text.contains(part), "{part}");
    }
    assert!(text.contains("memory bandwidth (memoryRead)"));
    let output = predict(&["--target", nat, "--report", nat]);
    let error = String::from_utf8(output.stderr).unwrap();
    assert!(
        output.status.code() == Some(2) && error.contains("would overwrite the input"),
        "{error}"
    );
    // Alone there is nothing to draw but figures.
    let output = predict(&["--target", nat, "--method", "ridge", "--report", report]);
    assert!(output.status.success(), "{output:?}");
    assert!(
        std::fs::read_to_string(&page)
            .unwrap()
            .contains("There are no competitors.")
    );
}

#[test]
fn a_prediction_that_nothing_supports_is_refused() {
    let folder = Folder::new();
    let nat = folder.write("nat.yaml", campaign("nat", "server-1"));
    let other = folder.write("other.yaml", campaign("ids", "server-2"));
    let cut = folder.write(
        "cut.yaml",
        campaign("ids", "server-1").rsplit_once("    - {").unwrap().0,
    );
    let [nat, other, cut] = [&nat, &other, &cut].map(|path| path.to_str().unwrap());
    let two = format!("{nat},{nat}");
    for (args, expected) in [
        (["--target", nat, "--with", other], "expected models of one machine"),
        (["--target", nat, "--with", cut], "the file was cut short or changed"),
        (
            ["--target", nat, "--with", &two],
            "the number of co-runners is 2, outside of what was measured",
        ),
        (
            ["--target", nat, "--confidence", "100"],
            "expected a percentage above 0 and below 100",
        ),
        (
            ["--target", nat, "--property", "rules=5"],
            "expected one of cacheAccessRate, memoryRead, found rules",
        ),
        (["--target", nat, "--method", "oracle"], "oracle"),
        (
            ["--target", nat, "--machine", "server-2"],
            "--machine: expected models of server-2, found server-1 in ",
        ),
    ] {
        let output = predict(
            &[
                &args[..],
                &["--method", "ridge"][..if args[2] == "--method" { 0 } else { 2 }],
            ]
            .concat(),
        );
        let error = String::from_utf8(output.stderr).unwrap();
        assert!(
            output.status.code() == Some(2) && error.contains(expected),
            "{args:?}: {error}"
        );
    }
}
