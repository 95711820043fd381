//! Pages of example reports.

use super::page;
use std::collections::BTreeMap;
use std::time::UNIX_EPOCH;
use tailwater_dataplane::report::{
    ArrivalReport, CoreReport, DistributionPoint, DropOutcome, DropReport, FlowReport, LatencyReport, NoVerdict,
    PacketReport, ReloadReport, RunReport, SloReport, StepReport, TimelineReport, WindowReport, WindowsReport,
};

const CAUSES: [&str; 9] = [
    "service",
    "queued-behind-own-flow",
    "queued-behind-others",
    "descheduled",
    "waiting-for-helper",
    "migration",
    "nic-ring-full",
    "no-resources",
    "external",
];

fn latencies(us: f64) -> LatencyReport {
    LatencyReport {
        p50: us,
        p90: us * 2.123_456,
        p99: us * 17.345_678,
        p999: us * 90.123_456,
        max: us * 312.123_456,
        mean: us * 1.987_654_321,
    }
}

/// Returns a report with many problems, with this number of steps, windows and reasons.
fn example(steps: usize, windows: usize, reasons: usize, name: &str) -> RunReport {
    let by_reason = |fate: &str| -> BTreeMap<String, u64> {
        let reasons = (0..reasons).map(|i| (format!("{name}-{i}/{fate}"), 123_456 + i as u64));
        reasons.collect()
    };
    let step = |i: usize| StepReport {
        start_s: i as f64 * 0.3,
        windows: 3,
        flagged: i.is_multiple_of(5).into(),
        offered: 1_234_567_890,
        delivered: if i % 7 == 3 { 0 } else { 1_234_000_000 },
        dropped_by_nf: 123_456,
        lost: 123_456,
        late_by_cause: CAUSES.iter().map(|&cause| (cause, 123_456)).collect(),
        dropped_by_reason: by_reason("denied"),
        lost_by_reason: by_reason("no-resources"),
        latency_us: latencies(5.123 + i as f64),
        busy: 0.123_456_789,
    };
    let window = |i: usize| WindowReport {
        start_s: i as f64 * 0.3,
        offered: 1_234_567_890,
        delivered: 1_234_567_890,
        lost: 123_456,
        late: 123_456,
        latency_us: latencies(5.123),
        gaps: 12,
        gap_us: 1234.567,
        longest_gap_us: 123.456,
        flagged: true,
        slo_met: Some(false),
    };
    let arrivals = if steps == 0 { 0 } else { 1024 };
    RunReport {
        chain: name.to_owned(),
        traffic: format!("{name}.pcap"),
        slo: SloReport {
            latency_us: 200.0,
            network_us: 0.0,
            percentile: 99.0,
        },
        slo_met: Some(false),
        no_verdict: None,
        latency_us: latencies(5.123),
        latency_distribution: (0..steps * 2)
            .map(|i| DistributionPoint {
                latency_us: 1.03f64.powi(i as i32),
                packets: 1000 + i as u64,
            })
            .collect(),
        packets: PacketReport {
            offered: 10_000,
            delivered: 9_000.min(1000 + (steps as u64 * 2).saturating_sub(1)),
            dropped_by_nf: 600,
            lost: 400,
            not_matched: 5,
            drops: (0..reasons)
                .map(|i| DropReport {
                    function: Some(format!("{name}-{i}")),
                    reason: "denied".to_owned(),
                    outcome: DropOutcome::Dropped,
                    packets: 123_456 + i as u64,
                })
                .collect(),
            packet_events: Vec::new(),
            reasons: by_reason("denied"),
        },
        loss_rate: 0.04,
        throughput_mpps: 0.2,
        throughput_gbps: 1.5,
        duration_s: steps as f64 * 0.3,
        cores: CoreReport {
            dedicated: 2,
            dedicated_avg: 1.75,
            auxiliary_avg: 0.25,
            avg: 2.0,
        },
        late_by_cause: CAUSES.iter().map(|&cause| (cause, steps as u64)).collect(),
        scaling: None,
        wake_us: None,
        server: None,
        state: None,
        isolation: None,
        reloads: ReloadReport::default(),
        flows: Some(FlowReport {
            active: 1,
            opened: 2,
            expired: 3,
            evicted: 4,
            refused: 5,
            memory_bytes: 6_000_000,
            capacity: 100_000,
            bytes_per_flow: 60.0,
            content_bytes: 80,
            state_bytes: 20,
        }),
        windows: WindowsReport {
            length_ms: 300.0,
            count: windows as u64,
            flagged: windows as u64 / 2,
            unflagged_judged: windows as u64 - windows as u64 / 2,
            unflagged_slo_met: Some(0.5),
            median_latency_us: latencies(5.0),
            omitted: 7,
            list: (0..windows).map(window).collect(),
        },
        timeline: TimelineReport {
            step_ms: 300.0,
            list: (0..steps).map(step).collect(),
        },
        arrivals: ArrivalReport {
            bin_ms: 1.0,
            step_ms: steps as f64 * 300.0 / 1024.0,
            packets: vec![123_456_789; arrivals],
            busiest_bin: vec![12_345_678; arrivals],
        },
        interrupted: true,
        began_us: 0,
        ports: Vec::new(),
        externals: Vec::new(),
    }
}

fn html(report: &RunReport, spec: &str) -> String {
    page(report, spec, UNIX_EPOCH).unwrap()
}

/// Returns the names of a document's elements. A simplified parser, sufficient for escaped text.
///
/// # Errors
/// An element is not closed or not well formed.
pub fn elements(page: &str) -> Result<Vec<String>, String> {
    let mut rest = page.strip_prefix("<!DOCTYPE html>\n").ok_or("no document type")?;
    let (mut open, mut names): (Vec<String>, Vec<String>) = (Vec::new(), Vec::new());
    while let Some((text, after)) = rest.split_once('<') {
        for reference in text.split('&').skip(1) {
            let known = ["amp;", "lt;", "gt;", "quot;", "#39;"];
            if !known.iter().any(|name| reference.starts_with(name)) {
                return Err(format!("a bare & before {reference:.20}"));
            }
        }
        let (tag, after) = after.split_once('>').ok_or("an open tag")?;
        rest = after;
        if let Some(name) = tag.strip_prefix('/') {
            if open.pop().as_deref() != Some(name) {
                return Err(format!("</{name}> closes nothing"));
            }
            continue;
        }
        let (tag, closed) = match tag.strip_suffix('/') {
            Some(tag) => (tag, true),
            None => (tag, false),
        };
        if tag.contains('<') || tag.matches('"').count() % 2 != 0 {
            return Err(format!("the tag <{tag}>"));
        }
        let name = tag.split([' ', '\n']).next().unwrap_or_default();
        names.push(name.to_owned());
        if !closed {
            open.push(name.to_owned());
        }
        if ["script", "style"].contains(&name) {
            let end = rest.find("</").ok_or("no end of script or style")?;
            rest = &rest[end..];
        }
    }
    match open.is_empty() {
        true => Ok(names),
        false => Err(format!("{open:?} are not closed")),
    }
}

pub fn count(names: &[String], name: &str) -> usize {
    names.iter().filter(|other| *other == name).count()
}

#[test]
fn a_page_has_all_charts_and_refers_to_nothing() {
    let page = html(&example(20, 20, 2, "chain"), "kind: Chain\n");
    let names = elements(&page).unwrap();
    assert_eq!(count(&names, "svg"), 6);
    for id in [
        "verdict",
        "latency-cdf",
        "latency-over-time",
        "arrivals",
        "drops",
        "late",
        "cores",
        "latency-table",
        "packets",
        "flows",
        "windows",
        "spec",
        "report",
    ] {
        assert_eq!(page.matches(&format!("id=\"{id}\"")).count(), 1, "{id}");
    }
    let page = page.replace("xmlns=\"http://www.w3.org/2000/svg\"", "");
    for outside in ["http:", "https:", "src=", "@import", "url("] {
        assert!(!page.contains(outside), "{outside}");
    }
    // Links lead to parts of the page only.
    let links: Vec<&str> = page.split("href=").skip(1).collect();
    assert!(!links.is_empty());
    for link in links {
        let id = link.strip_prefix("\"#").and_then(|rest| rest.split_once('"'));
        let (id, _) = id.expect("a link within the page");
        assert_eq!(page.matches(&format!("id=\"{id}\"")).count(), 1, "{id}");
    }
    // Each chart has its explanation.
    assert_eq!(page.matches("<summary>Explain this to me</summary>").count(), 6);
    assert!(!page.contains("NaN") && !page.contains("inf"));
}

#[test]
fn a_run_in_which_nothing_happened_has_a_page() {
    let mut empty = example(0, 0, 0, "chain");
    (empty.packets, empty.duration_s) = (PacketReport::default(), 0.0);
    (empty.slo_met, empty.no_verdict, empty.flows) = (None, Some(NoVerdict::NoPackets), None);
    empty.late_by_cause.clear();
    empty.windows = WindowsReport::default();
    empty.timeline = TimelineReport::default();
    empty.arrivals = ArrivalReport::default();
    empty.latency_us = LatencyReport::default();
    let page = html(&empty, "");
    let names = elements(&page).unwrap();
    assert_eq!(count(&names, "svg"), 0);
    assert!(page.contains("Reason: no packets arrived for the chain."));
    assert!(!page.contains("NaN") && !page.contains("inf"));
}

#[test]
fn one_packet_is_enough_for_a_page() {
    let mut one = example(1, 1, 0, "chain");
    (one.packets.delivered, one.packets.offered) = (1, 1);
    one.latency_distribution = vec![DistributionPoint {
        latency_us: 0.0,
        packets: 1,
    }];
    (one.arrivals.packets, one.arrivals.busiest_bin) = (vec![1], vec![1]);
    (one.arrivals.step_ms, one.duration_s) = (1.0, 0.000_01);
    let page = html(&one, "");
    elements(&page).unwrap();
    assert!(!page.contains("NaN") && !page.contains("inf"));
}

/// Names come from third-party files and specs.
#[test]
fn names_cannot_become_markup() {
    let evil = "\"><img src=x onerror='alert(1)'></title></style></script><script>alert(2)</script>&lt;";
    let spec = format!("name: {evil}\n</pre>{evil}\u{0}\u{202e}\n");
    let page = html(&example(10, 10, 20, evil), &spec);
    let names = elements(&page).unwrap();
    assert_eq!((count(&names, "script"), count(&names, "img")), (2, 0));
    assert!(!page.contains("<img") && !page.contains("alert(2)</script>"));
    assert!(!page.contains(['\u{0}', '\u{202e}']));
    // The embedded data are unchanged.
    let json = embedded(&page);
    assert_eq!(json["chain"], evil);
}

pub fn embedded(page: &str) -> serde_json::Value {
    let (_, rest) = page.split_once("id=\"report\">").unwrap();
    serde_json::from_str(rest.split_once("</script>").unwrap().0).unwrap()
}

#[test]
fn the_data_of_a_page_are_the_report() {
    let report = example(20, 20, 3, "chain");
    let page = html(&report, "");
    let json = serde_json::to_string(&report).unwrap();
    assert!(embedded(&page) == serde_json::from_str::<serde_json::Value>(&json).unwrap());
    assert!(!page.contains("without its longest lists"));
}

/// The longest lists of a run, with figures of many digits and long names.
#[test]
fn the_longest_page_is_below_2_mb() {
    let spec = "name: \"<&>'\"\n".repeat(100_000);
    for reasons in [3, 60] {
        let name = "<\"a-name-as-long-as-a-name-may-be\">".repeat(2);
        let report = example(400, 10_000, reasons, &name);
        let page = html(&report, &spec);
        assert!(page.len() < 2_000_000, "{} bytes", page.len());
        let names = elements(&page).unwrap();
        assert_eq!(count(&names, "svg"), 6);
        let json = embedded(&page);
        assert_eq!(json["windows"]["count"], 10_000);
        assert!(page.contains("without its longest lists"));
    }
}

/// The figures on the page are those of the report.
#[test]
fn figures_are_the_reports() {
    let page = html(&example(20, 20, 0, "chain"), "");
    for text in [
        "<dt>p50</dt><dd>5.12 µs</dd>",
        "<dt>p99</dt><dd>88.9 µs</dd>",
        "<dt>longest</dt><dd>1.6 ms</dd>",
        "<dt>lost</dt><dd>4 %</dd>",
        "<th scope=\"row\">p99.9</th><td>461.70</td>",
        "<th scope=\"row\">dropped by the chain</th><td>600</td><td>6 %</td>",
        "SLO missed",
        "In 10 of 20 windows",
    ] {
        assert!(page.contains(text), "{text}");
    }
}

/// The page contains the spec's text, in which an encryption key must not appear.
#[test]
fn keys_in_the_spec_are_withheld() {
    let key = "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f";
    let spec = format!("name: abc123\n- encrypt: {{key: {key}, mtu: 1508}}\nlast: 0\n");
    assert_eq!(
        super::without_keys(&spec),
        "name: abc123\n- encrypt: {key: (withheld), mtu: 1508}\nlast: 0\n"
    );
    assert_eq!(super::without_keys(key), "(withheld)");
}

/// Returns the rules of a style sheet: the media that they are for, selectors, declarations.
fn rules(css: &str) -> Vec<(String, String, String)> {
    let (mut found, mut open) = (Vec::new(), Vec::new());
    let mut text = String::new();
    for c in css.chars() {
        match c {
            '{' => open.push(std::mem::take(&mut text).trim().to_owned()),
            '}' => {
                let selector = open.pop().expect("an open brace");
                let declarations = std::mem::take(&mut text).trim().to_owned();
                match open.as_slice() {
                    [] if selector.starts_with("@media") => assert_eq!(declarations, "", "{selector}"),
                    [] => found.push((String::new(), selector, declarations)),
                    [media] => found.push((media.clone(), selector, declarations)),
                    _ => panic!("{selector} is within {open:?}"),
                }
            }
            c => text.push(c),
        }
    }
    assert!(open.is_empty() && text.trim().is_empty(), "{open:?} {text}");
    found
}

/// Regression: on paper and on narrow screens, two rules had become one, `.grid, .part { font-size: 21px }`: large type
/// instead of one column, and tables beyond the edge.
#[test]
fn narrow_and_printed_pages_have_columns_that_fit_and_small_type() {
    let rules = rules(super::STYLE.0);
    let mut columns = 0;
    for (media, selector, declarations) in &rules {
        // Each has declarations only.
        assert!(
            !selector.contains([';', '}']) && !declarations.contains('{'),
            "{selector}"
        );
        if media.is_empty() {
            continue;
        }
        let size = declarations
            .split(';')
            .find_map(|part| part.trim().strip_prefix("font-size: "));
        let size = size.and_then(|size| size.strip_suffix("px")?.parse::<f64>().ok());
        assert!(
            size.is_none_or(|size| size < 20.0 || selector == "h1"),
            "{media} {selector}"
        );
        let is_layout = selector
            .split(',')
            .any(|one| [".grid", ".tables", ".tiles"].contains(&one.trim()));
        if is_layout {
            assert!(declarations.contains("grid-template-columns"), "{media} {selector}");
            columns += 1;
        }
    }
    // Tiles at three widths and on paper, figures and tables at one width and on paper.
    assert_eq!(columns, 6);
    let large = rules
        .iter()
        .filter(|(_, _, declarations)| declarations.contains("font-size: 21px"));
    let large: Vec<&str> = large.map(|(_, selector, _)| &**selector).collect();
    assert_eq!(large, [".section"]);
}

/// Every cause of a run has advice, and every chart an explanation of several words.
#[test]
fn causes_have_advice_and_charts_have_explanations() {
    for (cause, _) in crate::table::CAUSES {
        assert!(super::explain::advice_id(cause).is_some(), "{cause}");
    }
    for id in [
        "latency-cdf",
        "latency-cdf-3",
        "late",
        "late-0",
        "cores",
        "p99-cores-1",
        "burst-waiting-2",
    ] {
        let text = super::explain::chart(id).expect(id);
        assert!(text.split_whitespace().count() > 10, "{id}");
    }
    assert_eq!(super::explain::chart("spec"), None);
}
