//! Benchmark of placement: machines for the SLO mixes of ResQ's evaluation (Figures 8 and 9), and the time of
//! decisions.
//!
//! `cargo bench -p tailwater-baselines --features milp --bench placement [-- NAME]` runs the figures whose names
//! contain NAME. It prints one JSON line per figure on standard output. Without the feature `milp` its rows are
//! omitted.

use std::time::Instant;
use tailwater_baselines::schedulers::ResqGreedy;
use tailwater_baselines::schedulers::{
    Servers, Tenant, agnostic, elastic, predictor, violated_evenly, violated_sharing,
};
use tailwater_placement::bound::whole;
use tailwater_placement::check::check;
use tailwater_placement::cluster::Cluster;
use tailwater_placement::plan::Plan;
use tailwater_placement::published::{ALL_WAYS, MIXES, Mix, TARGET, WAY_BYTES, server, slos};
use tailwater_placement::schedule::{Request, Scheduler, place_all};
use tailwater_placement::slo::{Slo, Target};
use tailwater_placement::tailwater::Tailwater;

/// Machines of Figure 9 for a mix.
#[derive(Clone, Copy)]
struct Machines {
    #[cfg_attr(not(feature = "milp"), expect(dead_code))]
    optimal: u32,
    greedy: u32,
    dynamic: u32,
    predictor: u32,
}

/// SLO violations of Figure 8 for a mix, percent.
#[derive(Clone, Copy)]
struct Violations {
    agnostic: u32,
    even_split: u32,
}

/// Figure 9, by mix.
const FIGURE_9: [Machines; 3] = [
    Machines {
        optimal: 22,
        greedy: 22,
        dynamic: 22,
        predictor: 22,
    },
    Machines {
        optimal: 30,
        greedy: 35,
        dynamic: 35,
        predictor: 48,
    },
    Machines {
        optimal: 38,
        greedy: 45,
        dynamic: 44,
        predictor: 128,
    },
];
/// Figure 8, by mix.
const FIGURE_8: [Violations; 3] = [
    Violations {
        agnostic: 0,
        even_split: 0,
    },
    Violations {
        agnostic: 11,
        even_split: 55,
    },
    Violations {
        agnostic: 91,
        even_split: 100,
    },
];
/// Number of available servers.
const SERVERS: usize = 400;

/// Prints figures whose names match.
struct Printer {
    wanted: Option<String>,
}

impl Printer {
    fn wants(&self, name: &str) -> bool {
        let wanted = self.wanted.as_deref();
        wanted.is_none_or(|part| name.contains(part))
    }

    /// Returns `true` if any name with this prefix is selected. Otherwise its computation can be skipped.
    fn wants_any(&self, start: &str, ends: &[&str]) -> bool {
        ends.iter().any(|end| self.wants(&format!("{start}/{end}")))
    }

    fn print(&self, name: &str, value: f64, unit: &str, more: &str) {
        if self.wants(name) {
            println!(r#"{{"name": "{name}", "value": {value}, "unit": "{unit}"{more}}}"#);
        }
    }
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    // `cargo test --benches` runs this without the flag, as a smoke test only.
    let bench = arguments.iter().any(|a| a == "--bench");
    let printer = Printer {
        wanted: arguments.into_iter().find(|a| !a.starts_with('-')),
    };
    for (number, mix) in MIXES.into_iter().enumerate() {
        isolated(&printer, mix, FIGURE_9[number]);
        shared(&printer, mix, FIGURE_9[number], FIGURE_8[number]);
    }
    if bench {
        admission(&printer);
        #[cfg(feature = "milp")]
        milp::speed(&printer);
    }
}

/// Returns the requests of a mix.
fn requests(mix: Mix, cluster: &Cluster) -> Vec<Request> {
    let slos = slos(mix).expect("published curves").into_iter();
    slos.map(|slo| Request::new(slo, cluster).expect("a server holds it"))
        .collect()
}

/// Admits all requests one after the other, and checks the plan against the curves.
fn placed(scheduler: &dyn Scheduler, cluster: &Cluster, requests: &[Request]) -> Plan {
    let mut plan = Plan::new(cluster.clone());
    place_all(scheduler, &mut plan, requests).expect("room");
    assert_eq!(check(cluster, plan.placed()), []);
    plan
}

/// Figures of schedulers that give each instance its own cache.
fn isolated(printer: &Printer, mix: Mix, published: Machines) {
    let cluster = Cluster::uniform(server(), SERVERS).expect("servers");
    let requests = requests(mix, &cluster);
    for (scheduler, published) in [
        (&ResqGreedy as &dyn Scheduler, Some(published.greedy)),
        (&Tailwater, None),
    ] {
        let name = format!("placement/{}/{}/machines", mix.name, scheduler.name());
        if !printer.wants(&name) {
            continue;
        }
        let plan = placed(scheduler, &cluster, &requests);
        let bound = whole(plan.cheapest().servers());
        let published = published.map_or(String::new(), |p| format!(r#", "published": {p}"#));
        let more = format!(r#", "bound": {bound}{published}, "violations": 0"#);
        printer.print(&name, plan.active() as f64, "machines", &more);
    }
    #[cfg(feature = "milp")]
    milp::machines(printer, mix, &cluster, &requests, published.optimal);
}

/// Figures of schedulers whose instances share caches, by the model of contention.
fn shared(printer: &Printer, mix: Mix, machines: Machines, violations: Violations) {
    let ends = [
        "agnostic/machines",
        "agnostic/violations",
        "even-cat/machines",
        "even-cat/violations",
        "elastic/machines",
        "predictor/machines",
    ];
    if !printer.wants_any(&format!("placement/{}", mix.name), &ends) {
        return;
    }
    let slos = slos(mix).expect("published curves");
    let tenants: Vec<Tenant<'_>> = slos
        .iter()
        .enumerate()
        .map(|(i, slo)| {
            let function = &mix.functions[i % mix.functions.len()];
            Tenant {
                curves: &slo.chain.curves[0],
                references: function.references,
                target: function.rate() * TARGET,
            }
        })
        .collect();
    let server = server();
    // No part of the cache is reserved for the NICs' packets here.
    let bytes = u64::from(ALL_WAYS) * WAY_BYTES;
    let print = |name: &str, servers: &Servers, published: Option<u32>| {
        let name = format!("placement/{}/{name}/machines", mix.name);
        let more = published.map_or(String::new(), |p| format!(r#", "published": {p}"#));
        printer.print(&name, servers.len() as f64, "machines", &more);
    };
    let packed = agnostic(&tenants, &server);
    for (name, violated, published) in [
        (
            "agnostic",
            violated_sharing(&tenants, bytes, &packed),
            violations.agnostic,
        ),
        (
            "even-cat",
            violated_evenly(&tenants, &server, &packed),
            violations.even_split,
        ),
    ] {
        print(name, &packed, None);
        let name = format!("placement/{}/{name}/violations", mix.name);
        let more = format!(r#", "published": {published}"#);
        printer.print(&name, (violated * 1000.0).round() / 10.0, "%", &more);
    }
    match elastic(&tenants, &server, bytes) {
        Some(servers) => print("elastic", &servers, Some(machines.dynamic)),
        None => eprintln!("placement/{}/elastic: instances without end", mix.name),
    }
    print(
        "predictor",
        &predictor(&tenants, &server, bytes),
        Some(machines.predictor),
    );
}

/// Returns SLOs with different targets each, of the functions of the combination.
fn different(count: usize, cluster: &Cluster) -> Vec<Request> {
    let mix = Mix {
        slos: count,
        ..MIXES[1]
    };
    let slos = slos(mix).expect("published curves");
    let varied = slos.into_iter().enumerate().map(|(i, slo)| {
        // From 0.3 to 2.3 times the rate of one instance, as a low-discrepancy sequence.
        let times = 0.3 + 2.0 * (i as f64 * 0.618_033_988_75).fract();
        let target = match slo.target {
            Target::Reserved { throughput } => Target::Reserved {
                throughput: (throughput * times).round(),
            },
            other => other,
        };
        Slo { target, ..slo }
    });
    varied
        .map(|slo| Request::new(slo, cluster).expect("a server holds it"))
        .collect()
}

/// Measures an admission into 1,000 servers, most of which are in use.
fn admission(printer: &Printer) {
    let name = "placement/admission/1000-servers";
    if !printer.wants_any(name, &["p50", "p99", "most"]) {
        return;
    }
    let cluster = Cluster::uniform(server(), 1000).expect("servers");
    let all = different(3600, &cluster);
    let mut plan = Plan::new(cluster.clone());
    let mut times = Vec::new();
    for request in &all {
        let slo = request.slo.clone();
        let began = Instant::now();
        let request = Request::new(slo, &cluster).expect("a server holds it");
        let Some(instances) = Tailwater.place(&plan, &request) else {
            break;
        };
        plan.put(&request, instances).expect("room");
        times.push(began.elapsed().as_nanos() as f64 / 1e3);
    }
    let (count, used) = (times.len(), plan.active());
    times.sort_by(f64::total_cmp);
    for (part, percentile) in [(0.5, "p50"), (0.99, "p99"), (1.0, "most")] {
        let at = ((count as f64 * part).ceil() as usize).clamp(1, count) - 1;
        let more = format!(r#", "slos": {count}, "servers": {used}"#);
        let value = times[at].round();
        printer.print(&format!("{name}/{percentile}"), value, "us", &more);
    }
}

#[cfg(feature = "milp")]
mod milp {
    use super::{Printer, different, placed};
    use std::time::{Duration, Instant};
    use tailwater_placement::check::check;
    use tailwater_placement::cluster::Cluster;
    use tailwater_placement::milp::{Effort, Optimised, optimise};
    use tailwater_placement::published::{Mix, server};
    use tailwater_placement::schedule::Request;
    use tailwater_placement::tailwater::Tailwater;

    /// Prints the machines of the program's plan for a mix.
    pub fn machines(printer: &Printer, mix: Mix, cluster: &Cluster, requests: &[Request], published: u32) {
        let name = format!("placement/{}/milp/machines", mix.name);
        if printer.wants(&name) {
            let optimised = optimise(cluster, requests, Effort::default()).expect("a plan");
            let published = format!(r#", "published": {published}"#);
            print(printer, &name, &optimised, &published);
        }
    }

    /// Measures the program with different targets for all SLOs.
    pub fn speed(printer: &Printer) {
        for (count, servers, seconds, part) in [(200, 200, 60, 1000), (5000, 2500, 10, 500)] {
            let name = format!("placement/different-{count}/milp/machines");
            if !printer.wants(&name) {
                continue;
            }
            let cluster = Cluster::uniform(server(), servers).expect("servers");
            let requests = different(count, &cluster);
            let greedy = placed(&Tailwater, &cluster, &requests).active();
            let effort = Effort {
                time: Duration::from_secs(seconds),
                part,
                ..Effort::default()
            };
            let began = Instant::now();
            let optimised = optimise(&cluster, &requests, effort).expect("a plan");
            let took = began.elapsed().as_secs_f64();
            let more = format!(r#", "tailwater": {greedy}, "seconds": {took:.1}"#);
            print(printer, &name, &optimised, &more);
        }
    }

    fn print(printer: &Printer, name: &str, optimised: &Optimised, more: &str) {
        assert_eq!(check(optimised.plan.cluster(), optimised.plan.placed()), []);
        let more = format!(
            r#", "bound": {}, "gap": {:.4}, "proven": {}, "parts": {}, "violations": 0{more}"#,
            optimised.least(),
            optimised.gap(),
            optimised.gap() == 0.0,
            optimised.parts,
        );
        printer.print(name, optimised.plan.active() as f64, "machines", &more);
    }
}
