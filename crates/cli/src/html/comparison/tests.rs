//! Pages of example comparisons.

use super::super::tests::{count, elements, embedded};
use super::page;
use crate::simulate::{Bound, Document, Run};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use tailwater_sim::RackPolicy;

/// Returns a chain's report, in which `late` of 100,000 packets are late.
fn chain(name: &str, policy: &str, slo_us: f64, late: u64, windows: usize) -> Value {
    let points = (0..150).map(|i| {
        let packets = 1000 + (100_000 - 1000 - late) * i / 149;
        json!({"latency_us": 1.03_f64.powi(i as i32) * (1.0 + late as f64), "packets": packets})
    });
    let windows = (0..windows).map(|i| {
        json!({"start_s": i as f64 * 0.01, "offered": 1234, "delivered": 1200, "lost": 34, "late": 40,
            "new_flows": 12, "p50_us": 12.345, "p99_us": 123.45, "p999_us": 234.5, "max_us": 300.1,
            "cores": 3.0 + (i % 7) as f64 + late as f64 / 1e3, "dedicated": 2})
    });
    let steps = (0..80).map(|i| {
        json!({"start_s": 0.5 + f64::from(i) * 1e-4, "offered": 500 + i, "delivered": 500, "lost": 1,
            "late": 2, "waiting": 1000 + i, "longest_queue": 600, "dedicated": 2, "helpers": i % 5,
            "decisions": 3, "flows_moved": 2, "packets_handed": 120})
    });
    let burst = policy
        .contains("tail")
        .then(|| json!({"start_s": 0.502, "steps": steps.collect::<Vec<_>>()}));
    json!({
        "chain": name, "traffic": name, "policy": policy, "slo_us": slo_us, "slo_met": late <= 1000,
        "latency_us": {"p50": 10.0, "p90": 20.0, "p99": 50.0 + late as f64, "p999": 500.0,
            "max": 800.0, "mean": 12.0},
        "latency_distribution": points.collect::<Vec<_>>(),
        "packets": {"offered": 100_000, "delivered": 100_000 - late, "delivered_bytes": 1, "lost": late,
            "lost_by_reason": {"nic-ring-full": late}, "flows": 123},
        "loss_rate": late as f64 / 1e5,
        "late_by_cause": {"nic-ring-full": late, "queued-behind-others": late / 3},
        "cores": {"dedicated": 2.0, "auxiliary": 1.5, "total": 3.5, "busy": 0.3},
        "decisions": {"decisions": 1, "moves": 1, "flows_moved": 1, "packets_handed": 1, "relieved": 0, "packets_held": 0, "recruited": 1,
            "released": 1, "boosts": 1, "splits": 1, "whales_beyond_split": 1, "out_of_cores": 1,
            "remaps": 1, "buckets_moved": 1, "flows_migrated": 1, "kept_back": 1, "longest_move_ns": 1,
            "rules": 1, "waited_for_rule": 1},
        "windows": windows.collect::<Vec<_>>(),
        "burst": burst,
    })
}

fn document(names: [&str; 2], policies: &[&'static str], windows: usize) -> Document {
    let mut runs = Vec::new();
    for (number, &policy) in policies.iter().enumerate() {
        for slo in [100.0, 200.0] {
            for seed in [1, 2] {
                let late = number as u64 * 700;
                let report = json!({
                    "chains": names.map(|name| chain(name, policy, slo, late, windows)),
                    "cores": {"average": 8.0 - number as f64, "most": 12},
                    "duration_s": windows as f64 * 0.01, "seed": seed,
                });
                let report = serde_json::from_value(report).unwrap();
                runs.push(Run { policy, report });
            }
        }
    }
    Document {
        model: "packets",
        chain_state_bytes: None,
        bounds: Vec::new(),
        rack: names[0].to_owned(),
        servers: 4,
        cores: 256,
        interrupted: false,
        runs,
    }
}

const POLICIES: [&str; 3] = ["tailwater", "static", "metron"];

#[test]
fn a_page_has_all_charts_and_refers_to_nothing() {
    let document = document(["first", "second"], &POLICIES, 20);
    let page = page(&document, "kind: Rack\n").unwrap();
    let names = elements(&page).unwrap();
    // Cores, a scatter plot per chain; per chain and objective a distribution and four charts of the burst.
    assert_eq!(count(&names, "svg"), 1 + 2 + 4 * 5);
    assert_eq!(page.matches("class=\"bars\"").count(), 4);
    assert_eq!(page.matches("class=\"figures\"").count(), 4);
    let ids: Vec<&str> = page
        .split(" id=\"")
        .skip(1)
        .filter_map(|rest| rest.split('"').next())
        .collect();
    assert_eq!(ids.iter().collect::<BTreeSet<_>>().len(), ids.len());
    let page = page.replace("xmlns=\"http://www.w3.org/2000/svg\"", "");
    for outside in ["http:", "https:", "src=", "href=", "@import", "url("] {
        assert!(!page.contains(outside), "{outside}");
    }
    assert!(!page.contains("NaN") && !page.contains(">inf"));
}

#[test]
fn figures_are_the_documents() {
    let document = document(["first", "second"], &POLICIES, 20);
    let page = page(&document, "").unwrap();
    for text in [
        // In the third more than one percent of packets are late.
        "<strong>static</strong><span>holds every objective with the fewest cores of the rack, 7 on \
         average. So do tailwater (8).</span>",
        "4 servers with 256 cores, 2 chains; 12 runs with 2 seeds",
        "static\nSLO 100 µs: met\np99 750 µs\n3.5 cores",
        "metron\nSLO 200 µs: missed\np99 1.45 ms\n3.5 cores",
        "<th scope=\"row\">metron, seed 2</th><td>10.00</td><td>1,450.00</td>",
        "tailwater: 1,000, longest queue 600</title>",
        "tailwater: 3 decisions, 2 flows moved, 120 packets offloaded",
        "<td class=\"n\">0.933 %</td>",
    ] {
        assert!(page.contains(text), "{text}");
    }
    // Lost packets never arrive, so the distribution ends below 100 %.
    assert!(page.contains("static: 99.3 %\nmetron: 98.6 %</title>"));
    let data = serde_json::to_string(&document).unwrap();
    assert!(embedded(&page) == serde_json::from_str::<Value>(&data).unwrap());
}

#[test]
fn the_oracles_bound_is_a_point_for_each_objective() {
    let mut document = document(["first", "second"], &POLICIES, 20);
    let plain = page(&document, "").unwrap();
    for (slo, cores) in [(100.0, 2.5), (200.0, 1.5)] {
        let rack = json!({"average": 3.0, "most": 4, "core_epochs": 60});
        let chain = |name: &str| {
            json!({"chain": name, "traffic": "x", "slo_us": slo, "packets": 100_000, "flows": 1,
                "late_allowed": 1000, "late_unavoidable": 0, "attainable": true, "cores": cores,
                "cores_none_late": 3.0})
        };
        let report = json!({"cores": rack, "cores_none_late": rack, "epochs": 20,
            "chains": [chain("first"), chain("second")]});
        let report = serde_json::from_value(report).unwrap();
        document.bounds.push(Bound { seed: 1, report });
    }
    let page = page(&document, "").unwrap();
    elements(&page).unwrap();
    for text in [
        "oracle\nSLO 100 µs\nat least 2.5 cores",
        "oracle\nSLO 200 µs\nat least 1.5 cores",
        "With fewer cores than the oracle's",
    ] {
        assert_eq!(page.matches(text).count(), 2, "{text}");
        assert!(!plain.contains(text), "{text}");
    }
}

#[test]
fn policies_have_colours_of_their_own() {
    let names: Vec<_> = RackPolicy::names().collect();
    let document = document(["first", "second"], &names, 2);
    let palette = super::super::policies::Palette::of(&document);
    let classes: BTreeSet<_> = names.iter().map(|name| palette.class(name)).collect();
    assert_eq!(classes.len(), names.len());
    for name in names {
        let variant = name.starts_with("netblaze-") || name == "quadrant-metron";
        assert_eq!(palette.class(name).contains("dash"), variant, "{name}");
    }
}

#[test]
fn names_cannot_become_markup() {
    let evil = "\"><img src=x onerror='alert(1)'></title></style></script><script>alert(2)</script>&lt;";
    let document = document([evil, "second"], &POLICIES, 3);
    let page = page(&document, &format!("name: {evil}\n</pre>{evil}\u{0}\n")).unwrap();
    let names = elements(&page).unwrap();
    assert_eq!((count(&names, "script"), count(&names, "img")), (2, 0));
    assert!(!page.contains("<img") && !page.contains("alert(2)</script>"));
    assert_eq!(embedded(&page)["rack"], evil);
}

#[test]
fn nothing_and_little_have_pages() {
    let mut empty = document(["first", "second"], &POLICIES, 0);
    empty.interrupted = true;
    for run in &mut empty.runs {
        for chain in &mut run.report.chains {
            chain.latency_distribution.clear();
            chain.packets = Default::default();
            chain.latency_us = Default::default();
            chain.late_by_cause.clear();
            chain.burst = None;
        }
    }
    let text = page(&empty, "").unwrap();
    elements(&text).unwrap();
    assert!(text.contains("interrupted, some runs are missing"));
    assert!(!text.contains("NaN") && !text.contains(">inf"));
    empty.runs.clear();
    elements(&page(&empty, "").unwrap()).unwrap();
}

/// One minute with all policies, with long lists everywhere.
#[test]
fn a_large_page_is_below_6_mb() {
    let names: Vec<_> = RackPolicy::names().collect();
    let document = document(["first", "second"], &names, 6000);
    let page = page(&document, "").unwrap();
    assert!(page.len() < 6_000_000, "{} bytes", page.len());
    assert!(page.contains("without its longest lists"));
    assert_eq!(embedded(&page)["runs"].as_array().map(Vec::len), Some(60));
}
