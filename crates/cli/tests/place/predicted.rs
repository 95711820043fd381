//! `tailwater place --predictor`: models from files, and what is told about neighbours.

use super::{example, place};
use crate::common::*;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tailwater_predict::metric::Resource;
use tailwater_predict::{
    Campaign, ContentionModel, Key, Kind, Metric, Observation, Schema, Source, TrainOptions, Vector,
};

/// Text of a model of a chain on the machine of the example.
fn model(function: &str, traffic: &str, bandwidth: f64) -> String {
    let key = Key {
        function: function.to_owned(),
        configuration: "0123456789abcdef".to_owned(),
        traffic: traffic.to_owned(),
        machine: "xeon-45mb".to_owned(),
    };
    model_of(key, bandwidth)
}

/// Text of a model of a chain that memory bandwidth slows down by up to half, and that occupies some of it itself.
/// Measured beside up to three others.
fn model_of(key: Key, bandwidth: f64) -> String {
    let metrics = vec![Metric::new("memoryRead", "GB/s", Resource::MemoryBandwidth)];
    let schema = Arc::new(Schema::new(Source::Modelled, metrics).unwrap());
    let mut campaign = Campaign::new(key, schema.clone());
    for at in 0..40u32 {
        let vector = |value| Vector::new(schema.clone(), vec![Some(value)]).unwrap();
        let observation = Observation {
            group: at,
            competitors: at.min(1) * (1 + at % 3),
            competition: vector(f64::from(at)),
            throughput: 5e6 / (1.0 + f64::from(at) / 40.0),
            p99_us: None,
            own: Some(vector(bandwidth)),
            flagged: false,
        };
        campaign.push(observation).unwrap();
    }
    let options = TrainOptions {
        kind: Kind::Ridge,
        folds: 4,
        ..TrainOptions::default()
    };
    ContentionModel::train(&campaign, &options).unwrap().to_string()
}

/// SLOs of two chains of the example that share a server without a predictor, and their models.
fn two(folder: &Folder, bandwidth: f64) -> (PathBuf, PathBuf) {
    let spec = std::fs::read_to_string(example("slos.yaml")).unwrap();
    let (chains, _) = spec.split_once("  slos:\n").unwrap();
    let slos = "  slos:\n    - {name: billing, chain: stats, throughput: 3.3Mpps, latency: 100us}\n    \
                - {name: border, chain: lpm, throughput: 4.9Mpps, latency: 100us}\n";
    let models = folder.path("models");
    std::fs::create_dir(&models).unwrap();
    for chain in ["stats", "lpm"] {
        let text = model(chain, "backbone", bandwidth);
        std::fs::write(models.join(format!("{chain}.model.yaml")), text).unwrap();
    }
    (folder.write("two.yaml", format!("{chains}{slos}")), models)
}

fn document(slos: &Path, more: &[&str]) -> serde_json::Value {
    let (status, stdout, stderr) = place(slos, &example("cluster.yaml"), &[more, &["--output", "json"]].concat());
    assert_eq!((status, &*stderr), (Some(0), ""), "{stdout}");
    serde_json::from_str(&stdout).unwrap()
}

#[test]
fn chains_that_would_slow_each_other_too_much_have_a_server_each_and_the_reason_is_told() {
    let folder = Folder::new();
    let (slos, models) = two(&folder, 20.0);
    let with = ["--predictor", "slomo", "--models", models.to_str().unwrap()];
    let without = document(&slos, &[]);
    assert_eq!(without["servers_used"], 1);
    assert!(without.get("predictor").is_none() && without["slos"][0].get("conflicts").is_none());
    // By the fourth server at the latest each instance is alone. Shared caches change nothing about memory bandwidth.
    for cache in ["partitioned", "shared"] {
        let found = document(&slos, &[&with[..], &["--cache", cache]].concat());
        assert!(found["servers_used"].as_u64() > Some(1), "{found}");
        assert_eq!(found["scheduler"], "slomo");
        let predictor = &found["predictor"];
        assert_eq!((&predictor["cache"], &predictor["models"]), (&cache.into(), &2.into()));
        for slo in found["slos"].as_array().unwrap() {
            let rate = |field: &str| slo["predicted_packets_per_second"][field].as_f64().unwrap();
            assert!(rate("low") <= rate("value") && rate("value") <= rate("high"), "{slo}");
            assert!(rate("low") >= 3.3e6, "{slo}");
            let ways = slo["instances"][0]["ways"].as_u64().unwrap();
            assert_eq!(ways == 0, cache == "shared", "{slo}");
        }
        let conflict = &found["slos"][0]["conflicts"][0];
        assert_eq!(conflict["resource"], "memory bandwidth");
        let predicted = &conflict["predicted_packets_per_second"];
        assert!(
            predicted["low"].as_f64() < conflict["objective_packets_per_second"].as_f64(),
            "{conflict}"
        );
    }
    let (_, table, _) = place(&slos, &example("cluster.yaml"), &with);
    assert!(
        table.contains("\npredicted with 90 %, partitioned cache:\nbilling  "),
        "{table}"
    );
    let line = table
        .lines()
        .skip_while(|line| *line != "not together:")
        .nth(1)
        .unwrap();
    assert!(line.starts_with("billing not on server-"), "{line}");
    assert!(
        line.contains(" would get ") && line.contains(" with 90 %) within 100us, objective "),
        "{line}"
    );
    assert!(line.ends_with("; binds memory bandwidth (memoryRead)"), "{line}");
    let (_, table, _) = place(
        &slos,
        &example("cluster.yaml"),
        &[&with[..], &["--cache", "shared"]].concat(),
    );
    assert!(table.contains("(1 core, shared cache)"), "{table}");
}

#[test]
fn chains_that_leave_each_other_enough_share_a_server() {
    let folder = Folder::new();
    let (slos, models) = two(&folder, 0.5);
    let models = models.to_str().unwrap();
    let found = document(&slos, &["--predictor", "slomo", "--models", models]);
    assert_eq!(found["servers_used"], 1, "{found}");
    assert!(found["slos"][0].get("conflicts").is_none());
    // With a state everything stays.
    let state = folder.path("state.json");
    let more = [
        "--predictor",
        "slomo",
        "--models",
        models,
        "--state",
        state.to_str().unwrap(),
    ];
    document(&slos, &more);
    let again = document(&slos, &more);
    assert_eq!(again["slos"][0]["course"], "kept");
}

#[test]
fn a_chain_without_a_model_is_named_and_has_its_node_for_itself() {
    let folder = Folder::new();
    let (slos, models) = two(&folder, 0.5);
    let lpm = models.join("lpm.model.yaml");
    let with = ["--predictor", "slomo", "--models", models.to_str().unwrap()];
    std::fs::write(&lpm, model("lpm", "imix", 0.5)).unwrap();
    let (status, table, stderr) = place(&slos, &example("cluster.yaml"), &with);
    assert_eq!(status, Some(0), "{stderr}");
    let expected = "expected a model of chain lpm, traffic backbone measured on machine xeon-45mb, found configuration \
                    0123456789abcdef, traffic imix, machine xeon-45mb in ";
    assert!(stderr.contains(expected), "{stderr}");
    assert!(
        stderr.contains("each of its instances there has a node for itself"),
        "{stderr}"
    );
    assert!(
        table.contains("is not predicted: there is no model of chain lpm on machine xeon-45mb"),
        "{table}"
    );
    assert!(
        table.contains("2 of 4 servers used") || table.contains("3 of 4 servers used"),
        "{table}"
    );
}

#[test]
fn models_that_cannot_be_used_are_refused_before_the_state_changes() {
    let folder = Folder::new();
    let (slos, models) = two(&folder, 0.5);
    let empty = folder.path("empty");
    std::fs::create_dir(&empty).unwrap();
    let text = model("lpm", "backbone", 0.5);
    let second = folder.write("again.yaml", &text);
    let cut = folder.write("cut.yaml", text.rsplit_once("  throughput:").unwrap().0);
    let [models, empty, second, cut] = [&models, &empty, &second, &cut].map(|path| path.to_str().unwrap());
    let both = format!("{models},{second}");
    let state = folder.path("state.json");
    for (more, expected) in [
        (&["--predictor", "slomo"][..], "--models"),
        (&["--models", models], "--predictor"),
        (&["--cache", "shared"], "--predictor"),
        (&["--predictor", "oracle", "--models", models], "slomo"),
        (&["--predictor", "slomo", "--models", models, "--optimal"], "--optimal"),
        (
            &["--predictor", "slomo", "--models", models, "--scheduler", "resq-greedy"],
            "--scheduler",
        ),
        (
            &["--predictor", "slomo", "--models", empty],
            "expected files *.model.yaml in folder",
        ),
        (
            &["--predictor", "slomo", "--models", "missing"],
            "--models: missing cannot be read",
        ),
        (&["--predictor", "slomo", "--models", cut], "cut.yaml"),
        (
            &["--predictor", "slomo", "--models", &both],
            "expected one model of chain lpm for machine xeon-45mb, found 2",
        ),
        (
            &["--predictor", "slomo", "--models", models, "--confidence", "99%"],
            "expected a confidence above 0 and at most 97.6 %",
        ),
    ] {
        let more = [more, &["--state", state.to_str().unwrap()]].concat();
        let (status, stdout, stderr) = place(&slos, &example("cluster.yaml"), &more);
        assert_eq!((status, &*stdout), (Some(2), ""), "{more:?}: {stderr}");
        assert_eq!(stderr.lines().count(), 1, "{stderr}");
        assert!(stderr.contains(expected), "{more:?}: {stderr}");
        assert!(!state.exists());
    }
}

#[test]
fn a_model_of_the_hardware_of_a_machine_is_found() {
    let folder = Folder::new();
    let key = Key {
        function: "acl-nat".to_owned(),
        configuration: "bf62e19f264a799e".to_owned(),
        traffic: "backbone, seed 1".to_owned(),
        machine: "AMD EPYC, 32768 KiB of last-level cache in 16 ways, 2596 MHz".to_owned(),
    };
    let model = folder.write("acl-nat.yaml", model_of(key, 0.5));
    let more = [
        "--predictor",
        "slomo",
        "--models",
        model.to_str().unwrap(),
        "--output",
        "json",
    ];
    let (status, stdout, stderr) = place(&example("measured.yaml"), &example("measured-cluster.yaml"), &more);
    assert!(!stderr.contains("expected a model"), "{stderr}");
    let found: serde_json::Value = serde_json::from_str(&stdout).unwrap();
    assert_eq!((status, &found["predictor"]["models"]), (Some(0), &1.into()));
}
