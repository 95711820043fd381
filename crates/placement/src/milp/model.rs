//! The program: its variables and rows, and the generated columns.

use super::effort::Effort;
use super::patterns::{Node, NodePattern, Pattern};
use crate::bound::cheapest;
use crate::cluster::Cluster;
use crate::demand::Slot;
use crate::plan::Plan;
use crate::schedule::{Request, Scheduler};
use crate::tailwater::Tailwater;
use highs::{ColProblem, HighsModelStatus, HighsSolutionStatus, Model, Row, Sense};
use std::collections::{BTreeSet, HashMap};
use std::time::Instant;

/// Maximum number of a kind's patterns for which all of them are put into the program at the start.
const MOST_PATTERNS: usize = 3000;
/// Maximum rounds of pattern generation. Each adds patterns that are worth more than a server, so the rounds also
/// terminate without this limit.
const MOST_ROUNDS: usize = 500;
/// Cost of a server that does not exist: more than any existing one could save.
const MISSING: f64 = 1000.0;
/// Excess over a server's cost from which on a pattern counts as worth more.
const ROUNDING: f64 = 1e-7;

/// Reason why there is no plan.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SolveError {
    /// The solver ended unexpectedly.
    #[error("the solver failed: {0}")]
    Solver(String),
    /// The solver found no plan in its time, or none exists.
    #[error("found no plan for all SLOs on the cluster")]
    NoPlan,
}

/// SLOs with the same choices.
pub(super) struct Sort<'a> {
    pub choices: &'a [Vec<Slot>],
    /// Their indices among the requests.
    pub members: Vec<usize>,
}

/// Prices of instances, such that no node holds more than its share of a server's value.
pub(super) struct Prices {
    prices: Vec<(Slot, f64)>,
}

impl Prices {
    /// Returns the price of an instance of any size: at least that of any smaller one, which would fit in its place.
    pub(super) fn of(&self, slot: Slot) -> f64 {
        let smaller = |other: &Slot| other.kind == slot.kind && other.cores <= slot.cores && other.ways <= slot.ways;
        let prices = self.prices.iter().filter(|(other, _)| smaller(other));
        prices.map(|&(_, price)| price).fold(0.0, f64::max)
    }
}

/// Result of the solver.
pub(super) struct Solution<'a> {
    pub sorts: Vec<Sort<'a>>,
    pub sizes: Vec<Slot>,
    /// Number of SLOs of each sort that take each of its choices.
    pub taken: Vec<Vec<usize>>,
    /// Patterns of nodes, and the number of each.
    pub nodes: Vec<(NodePattern, usize)>,
    pub prices: Prices,
    pub out_of_time: bool,
}

/// Rows of the program.
struct Rows {
    sorts: Vec<Row>,
    sizes: Vec<Row>,
    kinds: Vec<Row>,
}

/// The program without its patterns.
struct Program<'a> {
    sorts: Vec<Sort<'a>>,
    sizes: Vec<Slot>,
    nodes: Vec<Node<'a>>,
    /// Usable servers, by kind.
    servers: Vec<usize>,
}

/// Solves the program for these SLOs on the servers that a plan does not use. Returns `None` if the time is over before
/// there is a solution.
pub(super) fn solve<'a>(
    cluster: &'a Cluster,
    requests: &[&'a Request],
    plan: &Plan,
    effort: Effort,
) -> Result<Option<Solution<'a>>, SolveError> {
    let deadline = Instant::now() + effort.time;
    let program = Program::new(cluster, requests, plan);
    let greedy = Greedy::new(&program, cluster, requests, plan);
    let mut patterns: Vec<NodePattern> = greedy.nodes.iter().map(|(p, _)| p.clone()).collect();
    let mut all = true;
    for node in &program.nodes {
        match node.full_patterns(MOST_PATTERNS) {
            Some(full) => patterns.extend(full.into_iter().map(|pattern| NodePattern {
                kind: node.kind,
                pattern,
            })),
            None => {
                all = false;
                let alone = node.sizes.iter().map(|&(size, _)| vec![(size, 1)]);
                patterns.extend(alone.map(|pattern| NodePattern {
                    kind: node.kind,
                    pattern,
                }));
            }
        }
    }
    let mut seen = std::collections::HashSet::new();
    patterns.retain(|pattern| seen.insert(pattern.clone()));
    let Some(prices) = program.relaxed(&mut patterns, effort, deadline, all)? else {
        return Ok(None);
    };
    let bound: f64 = requests
        .iter()
        .map(|r| cheapest(&r.demand, &r.choices, |slot| prices.of(slot)))
        .sum();
    let (mut problem, rows) = program.columns(true);
    let first = problem.num_cols();
    for pattern in &patterns {
        let factors = rows.of_pattern(pattern);
        problem.add_integer_column(0.0, 0.., factors);
    }
    let Some(mut model) = quiet(problem, effort, deadline)? else {
        return Ok(None);
    };
    model.set_option("mip_rel_gap", effort.gap);
    // There are never fewer servers than the bound: a solution that reaches it cannot be improved.
    let least = crate::bound::whole(bound) as f64;
    model.set_option("objective_target", least + 0.5);
    if let Some(start) = greedy.start(&program, &patterns, first) {
        // If the solver rejects the start, nothing is lost.
        let _ = model.try_set_solution(Some(&start), None, None, None);
    }
    let solved = model.try_solve().map_err(failed)?;
    if solved.primal_solution_status() != HighsSolutionStatus::Feasible {
        return match solved.status() {
            HighsModelStatus::ReachedTimeLimit => Ok(None),
            HighsModelStatus::Infeasible => Err(SolveError::NoPlan),
            status => Err(SolveError::Solver(format!("{status:?}"))),
        };
    }
    let solution = solved.get_solution();
    let mut values = solution.columns().iter().map(|v| v.round() as usize);
    for &servers in &program.servers {
        let (used, missing) = (values.next(), values.next());
        if missing.is_none_or(|missing| missing > 0) || used.is_none_or(|used| used > servers) {
            return Err(SolveError::NoPlan);
        }
    }
    let taken = program.sorts.iter();
    let taken = taken.map(|sort| values.by_ref().take(sort.choices.len()).collect());
    let taken: Vec<Vec<usize>> = taken.collect();
    let counts: Vec<usize> = solution.columns()[first..].iter().map(|v| v.round() as usize).collect();
    let nodes = patterns.into_iter().zip(counts);
    Ok(Some(Solution {
        nodes: nodes.filter(|&(_, count)| count > 0).collect(),
        taken,
        prices,
        out_of_time: solved.status() == HighsModelStatus::ReachedTimeLimit,
        sorts: program.sorts,
        sizes: program.sizes,
    }))
}

impl<'a> Program<'a> {
    fn new(cluster: &'a Cluster, requests: &[&'a Request], plan: &Plan) -> Self {
        let mut sorts: Vec<Sort<'a>> = Vec::new();
        let mut numbers: HashMap<&'a [Vec<Slot>], usize> = HashMap::new();
        for (i, request) in requests.iter().enumerate() {
            let choices = &request.choices.list[..];
            let sort = *numbers.entry(choices).or_insert_with(|| {
                let members = Vec::new();
                sorts.push(Sort { choices, members });
                sorts.len() - 1
            });
            sorts[sort].members.push(i);
        }
        let slots = sorts.iter().flat_map(|sort| sort.choices).flatten();
        let sizes: Vec<Slot> = slots.copied().collect::<BTreeSet<_>>().into_iter().collect();
        let mut servers = vec![0; cluster.kinds().len()];
        for (number, server) in cluster.servers().iter().enumerate() {
            servers[server.kind] += usize::from(!plan.is_active(number));
        }
        let kinds = cluster.kinds().iter().enumerate();
        Program {
            nodes: kinds.map(|(k, room)| Node::new(k, room, &sizes)).collect(),
            sorts,
            sizes,
            servers,
        }
    }

    /// Returns the columns of servers, of choices, and of larger instances in place of smaller ones, in this order, and
    /// all rows.
    fn columns(&self, whole: bool) -> (ColProblem, Rows) {
        let mut problem = ColProblem::new();
        let rows = Rows {
            sorts: self
                .sorts
                .iter()
                .map(|sort| problem.add_row(sort.members.len() as f64..=sort.members.len() as f64))
                .collect(),
            sizes: self.sizes.iter().map(|_| problem.add_row(0..)).collect(),
            kinds: self.nodes.iter().map(|_| problem.add_row(..=0)).collect(),
        };
        let mut column = |cost: f64, most: f64, factors: Vec<(Row, f64)>| {
            problem.add_column_with_integrality(cost, 0.0..=most, factors, whole);
        };
        for (node, &servers) in self.nodes.iter().zip(&self.servers) {
            let nodes = (rows.kinds[node.kind], -f64::from(node.room.nodes));
            column(1.0, servers as f64, vec![nodes]);
            column(MISSING, f64::INFINITY, vec![nodes]);
        }
        for (sort, &row) in self.sorts.iter().zip(&rows.sorts) {
            for choice in sort.choices {
                let mut factors = self.counted(choice, -1.0, &rows);
                factors.push((row, 1.0));
                column(0.0, sort.members.len() as f64, factors);
            }
        }
        // Sizes of one kind are sorted by ways, then cores.
        for (larger, smaller) in self.steps_down() {
            let factors = vec![(rows.sizes[larger], -1.0), (rows.sizes[smaller], 1.0)];
            column(0.0, f64::INFINITY, factors);
        }
        (problem, rows)
    }

    /// Returns sizes, each with the next smaller one of as many cores on the same kind of servers.
    fn steps_down(&self) -> impl Iterator<Item = (usize, usize)> {
        self.sizes.iter().enumerate().filter_map(|(i, slot)| {
            let same = |other: &Slot| other.kind == slot.kind && other.cores == slot.cores;
            let smaller = self.sizes[..i].iter().rposition(same)?;
            Some((i, smaller))
        })
    }

    fn counted(&self, slots: &[Slot], sign: f64, rows: &Rows) -> Vec<(Row, f64)> {
        let mut counts: HashMap<usize, f64> = HashMap::new();
        for slot in slots {
            if let Ok(size) = self.sizes.binary_search(slot) {
                *counts.entry(size).or_default() += sign;
            }
        }
        let mut counts: Vec<_> = counts.into_iter().collect();
        counts.sort_unstable_by_key(|&(size, _)| size);
        counts
            .into_iter()
            .map(|(size, count)| (rows.sizes[size], count))
            .collect()
    }

    /// Solves the linear program, with new patterns until none is worth more than a server. Returns the prices of
    /// instances, or `None` if the time is over before.
    fn relaxed(
        &self,
        patterns: &mut Vec<NodePattern>,
        effort: Effort,
        deadline: Instant,
        all: bool,
    ) -> Result<Option<Prices>, SolveError> {
        let (mut problem, rows) = self.columns(false);
        for pattern in patterns.iter() {
            problem.add_column(0.0, 0.., rows.of_pattern(pattern));
        }
        let Some(mut model) = quiet(problem, effort, deadline)? else {
            return Ok(None);
        };
        for _ in 0..MOST_ROUNDS {
            let solved = model.try_solve().map_err(failed)?;
            if solved.status() == HighsModelStatus::ReachedTimeLimit || Instant::now() >= deadline {
                return Ok(None);
            }
            if solved.status() != HighsModelStatus::Optimal {
                return Err(SolveError::Solver(format!("{:?}", solved.status())));
            }
            let solution = solved.get_solution();
            let duals = solution.dual_rows();
            let (sorts, sizes) = (self.sorts.len(), self.sizes.len());
            let worth: Vec<f64> = duals[sorts..sorts + sizes].iter().map(|d| d.max(0.0)).collect();
            let kinds = &duals[sorts + sizes..];
            let mut found = Vec::new();
            let mut scale = f64::INFINITY;
            for node in &self.nodes {
                let (value, pattern) = node.best(&worth);
                if value > -kinds[node.kind] + ROUNDING && !all {
                    found.push(NodePattern {
                        kind: node.kind,
                        pattern,
                    });
                }
                if value > 0.0 {
                    scale = scale.min(1.0 / f64::from(node.room.nodes) / value);
                }
            }
            found.retain(|pattern| !patterns.contains(pattern));
            if found.is_empty() {
                let scale = if scale.is_finite() { scale } else { 0.0 };
                let priced = self.sizes.iter().zip(worth);
                let prices = priced.map(|(&slot, worth)| (slot, worth * scale)).collect();
                return Ok(Some(Prices { prices }));
            }
            model = Model::from(solved);
            for pattern in found {
                model.add_col(0.0, 0.., rows.of_pattern(&pattern));
                patterns.push(pattern);
            }
        }
        Err(SolveError::Solver("patterns without end".to_owned()))
    }
}

impl Rows {
    fn of_pattern(&self, of: &NodePattern) -> Vec<(Row, f64)> {
        let sizes = of.pattern.iter();
        let sizes = sizes.map(|&(size, count)| (self.sizes[size], f64::from(count)));
        sizes.chain([(self.kinds[of.kind], 1.0)]).collect()
    }
}

/// Result of Tailwater's algorithm, in terms of the program.
struct Greedy {
    /// Choices of the SLOs, by sort, or `None` if not all found room.
    taken: Option<Vec<Vec<usize>>>,
    nodes: Vec<(NodePattern, usize)>,
    servers: Vec<usize>,
}

impl Greedy {
    fn new(program: &Program<'_>, cluster: &Cluster, requests: &[&Request], used: &Plan) -> Self {
        let mut taken: Vec<Vec<usize>> = Vec::new();
        taken.extend(program.sorts.iter().map(|sort| vec![0; sort.choices.len()]));
        let mut rooms: HashMap<(usize, u16), HashMap<usize, u32>> = HashMap::new();
        let mut plan = used.without_active();
        let mut complete = true;
        for (sort, taken) in program.sorts.iter().zip(&mut taken) {
            for &member in &sort.members {
                let request = Request {
                    slo: crate::slo::Slo {
                        name: format!("{member}"),
                        spread: false,
                        apart: None,
                        ..requests[member].slo.clone()
                    },
                    ..requests[member].clone()
                };
                let instances = Tailwater.place(&plan, &request);
                let Some(instances) = instances else {
                    complete = false;
                    continue;
                };
                let mut slots: Vec<Slot> = Vec::new();
                for instance in &instances {
                    let kind = cluster.servers()[instance.server].kind;
                    let Some(offer) = request.demand.on(kind) else {
                        continue;
                    };
                    let slot = offer.slot(instance.ways);
                    slots.push(slot);
                    if let Ok(size) = program.sizes.binary_search(&slot) {
                        let node = rooms.entry((instance.server, instance.node)).or_default();
                        *node.entry(size).or_default() += 1;
                    }
                }
                slots.sort_unstable();
                let chosen = sort.choices.iter().position(|choice| {
                    let mut choice = choice.clone();
                    choice.sort_unstable();
                    choice == slots
                });
                match chosen {
                    Some(choice) if plan.put(&request, instances).is_ok() => taken[choice] += 1,
                    _ => complete = false,
                }
            }
        }
        let mut nodes: HashMap<NodePattern, usize> = HashMap::new();
        let mut servers = vec![BTreeSet::new(); program.servers.len()];
        for ((server, _), sizes) in rooms {
            let kind = cluster.servers()[server].kind;
            let mut pattern: Pattern = sizes.into_iter().collect();
            pattern.sort_unstable();
            *nodes.entry(NodePattern { kind, pattern }).or_default() += 1;
            servers[kind].insert(server);
        }
        let mut nodes: Vec<_> = nodes.into_iter().collect();
        nodes.sort_unstable();
        Greedy {
            taken: complete.then_some(taken),
            nodes,
            servers: servers.iter().map(BTreeSet::len).collect(),
        }
    }

    /// Returns the values of all columns.
    fn start(&self, program: &Program<'_>, patterns: &[NodePattern], first: usize) -> Option<Vec<f64>> {
        let taken = self.taken.as_ref()?;
        let servers = self.servers.iter().flat_map(|&n| [n as f64, 0.0]);
        let taken = taken.iter().flatten().map(|&n| n as f64);
        let mut values: Vec<f64> = servers.chain(taken).collect();
        values.extend(program.steps_down().map(|_| 0.0));
        debug_assert_eq!(values.len(), first);
        let nodes: HashMap<_, _> = self.nodes.iter().map(|(p, n)| (p, *n)).collect();
        let count = |pattern| nodes.get(pattern).copied().unwrap_or(0) as f64;
        values.extend(patterns.iter().map(count));
        Some(values)
    }
}

/// Returns a model without output that stops at the deadline, or `None` if the deadline has passed.
fn quiet(problem: ColProblem, effort: Effort, deadline: Instant) -> Result<Option<Model>, SolveError> {
    let left = deadline.saturating_duration_since(Instant::now());
    if left.is_zero() {
        return Ok(None);
    }
    let mut model = problem.try_optimise(Sense::Minimise).map_err(failed)?;
    model.make_quiet();
    if let Some(threads) = std::num::NonZeroU32::new(effort.threads) {
        model.set_threads(threads);
    }
    // The time counts since the model was created, over all runs of the solver.
    model.set_option("time_limit", left.as_secs_f64());
    Ok(Some(model))
}

fn failed(status: highs::HighsStatus) -> SolveError {
    SolveError::Solver(format!("{status:?}"))
}
