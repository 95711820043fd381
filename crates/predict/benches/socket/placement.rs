//! Online placement by predictions: servers over those by perfect knowledge, and violated objectives.

use crate::campaigns::Size;
use crate::figures::{SENSITIVE, best_kind};
use crate::functions::Chance;
use crate::print;
use crate::subjects::{Subject, mean, train};
use std::collections::BTreeMap;
use tailwater_predict::{ContentionModel, Kind, PredictOptions, predict};
use tailwater_socket::{Workload, co_run};

/// Functions of a server at most.
const CORES: usize = 5;
/// Functions of the pool at most.
const POOL: usize = 6;

/// Request: function of the pool, and share of its throughput that it may lose.
#[derive(Clone, Copy)]
struct Request {
    function: usize,
    most_loss: f64,
}

/// True throughput of a server's functions relative to that alone, without noise, by the sorted functions.
struct Truth<'a> {
    workloads: Vec<&'a Workload>,
    size: &'a Size,
    known: BTreeMap<Vec<usize>, Vec<f64>>,
    /// Packets per second alone.
    alone: BTreeMap<usize, f64>,
}

impl Truth<'_> {
    fn shares(&mut self, functions: &[usize]) -> Vec<f64> {
        let mut sorted = functions.to_vec();
        sorted.sort_unstable();
        if !self.known.contains_key(&sorted) {
            let rates = |of: &[usize]| {
                let workloads: Vec<&Workload> = of.iter().map(|at| self.workloads[*at]).collect();
                let counters = co_run(&self.size.config, &workloads, 1).unwrap_or_else(|error| panic!("{error}"));
                counters.iter().map(|of| of.packets_per_second).collect::<Vec<f64>>()
            };
            let together = rates(&sorted);
            let alone = sorted
                .iter()
                .map(|at| *self.alone.entry(*at).or_insert_with(|| rates(&[*at])[0]));
            let shares = together.iter().zip(alone).map(|(with, alone)| with / alone).collect();
            self.known.insert(sorted.clone(), shares);
        }
        let known = &self.known[&sorted];
        let share = |function: &usize| known[sorted.iter().position(|at| at == function).unwrap_or(0)];
        functions.iter().map(share).collect()
    }
}

/// Places requests one by one on the first server that stays within all its objectives; returns the servers.
fn place(requests: &[Request], mut shares: impl FnMut(&[usize]) -> Option<Vec<f64>>) -> Vec<Vec<Request>> {
    let mut servers: Vec<Vec<Request>> = Vec::new();
    for request in requests {
        let mut fits = |server: &&mut Vec<Request>| {
            if server.len() >= CORES {
                return false;
            }
            let all: Vec<Request> = server.iter().copied().chain([*request]).collect();
            let functions: Vec<usize> = all.iter().map(|of| of.function).collect();
            // Without an answer, the function is not admitted.
            let shares = shares(&functions);
            shares.is_some_and(|shares| shares.iter().zip(&all).all(|(share, of)| 1.0 - share <= of.most_loss))
        };
        match servers.iter_mut().find(|server| fits(server)) {
            Some(server) => server.push(*request),
            None => servers.push(vec![*request]),
        }
    }
    servers
}

pub fn placement(subjects: &[Subject], size: &Size) {
    let mut pool: Vec<usize> = (0..subjects.len()).collect();
    pool.sort_by(|a, b| subjects[*b].drop().total_cmp(&subjects[*a].drop()));
    // Half of them are the most sensitive, the rest is spread over the others.
    let half = POOL.min(pool.len()) / 2;
    let others: Vec<usize> = pool[half..].to_vec();
    pool.truncate(half);
    let step = others.len().div_ceil(POOL - half).max(1);
    pool.extend(others.iter().step_by(step));
    let names: Vec<&str> = pool.iter().map(|at| subjects[*at].function.name.as_str()).collect();
    eprintln!("pool: {}", names.join(", "));
    let (runs, count) = if size.is_quick { (1, 20) } else { (10, 1000) };
    let requests: Vec<Vec<Request>> = (0..runs)
        .map(|run| {
            let mut chance = Chance(size.seed << 8 | run);
            let request = |_| Request {
                function: chance.below(pool.len()),
                most_loss: 0.05 + 0.25 * chance.unit(),
            };
            (0..count).map(request).collect()
        })
        .collect();
    let mut truth = Truth {
        workloads: pool.iter().map(|at| &subjects[*at].function.workload).collect(),
        size,
        known: BTreeMap::new(),
        alone: BTreeMap::new(),
    };
    let optimal: Vec<usize> = requests
        .iter()
        .map(|of| place(of, |functions| Some(truth.shares(functions))).len())
        .collect();
    let of_pool = |kind| -> Vec<ContentionModel> {
        let all = train(subjects, kind);
        pool.iter().map(|at| all[*at].clone()).collect()
    };
    let (slomo, rate) = (of_pool(best_kind(size)), of_pool(Kind::AccessRate));
    for (name, models, is_lower_bound, published) in [
        ("slomo-lower-bound", Some(&slomo), true, None),
        ("slomo", Some(&slomo), false, Some("1.5 % more servers, 0 violations")),
        ("access-rate", Some(&rate), false, Some("14 %, 0")),
        ("no-contention", None, false, None),
    ] {
        let mut known: BTreeMap<Vec<usize>, Option<Vec<f64>>> = BTreeMap::new();
        let mut shares = |functions: &[usize]| {
            let Some(models) = models else {
                return Some(vec![1.0; functions.len()]);
            };
            let found = known.entry(functions.to_vec()).or_insert_with(|| {
                let share = |at: usize| {
                    let others = functions.iter().enumerate().filter(|(of, _)| *of != at);
                    let others: Vec<&ContentionModel> = others.map(|(_, of)| &models[*of]).collect();
                    let target = &models[functions[at]];
                    let found = predict(target, &others, &PredictOptions::default()).ok()?.throughput;
                    let value = if is_lower_bound { found.low } else { found.value };
                    Some(value / target.solo().throughput)
                };
                (0..functions.len()).map(share).collect()
            });
            found.clone()
        };
        let mut results = [Vec::new(), Vec::new(), Vec::new()];
        for (requests, optimal) in requests.iter().zip(&optimal) {
            let servers = place(requests, &mut shares);
            results[0].push(100.0 * (servers.len() as f64 / *optimal as f64 - 1.0));
            let mut violated = 0.0;
            let mut by_a_point = 0.0;
            for server in &servers {
                let functions: Vec<usize> = server.iter().map(|of| of.function).collect();
                for (share, of) in truth.shares(&functions).iter().zip(server) {
                    violated += f64::from(1.0 - share > of.most_loss);
                    by_a_point += f64::from(1.0 - share > of.most_loss + 0.01);
                }
            }
            results[1].push(100.0 * violated / requests.len() as f64);
            results[2].push(100.0 * by_a_point / requests.len() as f64);
        }
        let [over, violated, by_a_point] = results.map(|of| mean(of.into_iter()));
        let more = [
            ("violations", violated),
            ("violations_by_a_point", by_a_point),
            ("servers_by_truth", mean(optimal.iter().map(|of| *of as f64))),
            (
                "sensitive_in_pool",
                pool.iter().filter(|at| subjects[**at].drop() >= SENSITIVE).count() as f64,
            ),
        ];
        print(
            &format!("placement/{name}"),
            over,
            "percent more servers",
            published,
            &more,
        );
    }
}
