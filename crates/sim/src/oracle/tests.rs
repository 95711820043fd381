//! Comparison with exhaustive search, and with closed forms.

mod brute;

use super::demand::{Blocks, Demand};
use super::peak::Peak;
use super::*;
use crate::chain::SplitCost;
use crate::traffic::Recording;
use brute::{Problem, SLOTS};
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;
use std::sync::Arc;
use tailwater_policy::capacity::ServiceCosts;

const US: u64 = 1_000;
/// Length of a slot of the exhaustive search.
const SLOT: u64 = COUNTED.0 / SLOTS;

fn model(packet: u64, batch: u64, most: u16) -> ChainModel {
    let costs = ServiceCosts {
        packet: packet as f64,
        batch: batch as f64,
        ..ServiceCosts::default()
    };
    ChainModel {
        batch: most,
        ..ChainModel::new("test", costs)
    }
}

fn chain(model: ChainModel, slo: u64, packets: impl IntoIterator<Item = (u64, u32)>) -> BoundedChain<'static> {
    let packets = packets.into_iter().map(|(at, flow)| (Nanos(at), flow, 64));
    let recording = Recording::of_packets("test", packets, 1);
    BoundedChain {
        model,
        slo: Nanos(slo),
        workload: Workload::from(Arc::new(recording)),
    }
}

/// Returns the bounds of one chain, of whose packets one in `late` may be late.
fn bound(model: ChainModel, slo: u64, late: u64, packets: impl IntoIterator<Item = (u64, u32)>) -> OracleReport {
    bounds(vec![chain(model, slo, packets)], Nanos::ZERO, late, |_| true).unwrap()
}

impl Problem {
    /// Returns the bound for the same problem, with `late` late packets in total.
    fn bound(&self, late: usize) -> OracleReport {
        let model = model(self.packet * SLOT, self.batch * SLOT, self.most as u16);
        let packets = self.packets.iter().map(|p| (p.at * SLOT, u32::from(p.flow)));
        let one_in = self.packets.len().checked_div(late).unwrap_or(100) as u64;
        bound(model, self.slo * SLOT, one_in, packets)
    }
}

fn problems() -> impl Strategy<Value = Problem> {
    let gaps = prop::collection::vec((prop_oneof![3 => Just(0), 2 => 1..6_u64], 0..3_u8), 1..=5);
    let costs = (0..=1_u64, 1..=3_u64, 1..=2_usize);
    (gaps, costs, 3..=9_u64, 1..=3_usize).prop_map(|(gaps, (batch, packet, most), slo, cores)| {
        let mut at = 0;
        let packets = gaps.iter().enumerate().map(|(i, (gap, flow))| {
            // The first packet arrives at the start.
            at += if i == 0 { 0 } else { *gap };
            brute::Packet { at, flow: *flow }
        });
        Problem {
            packets: packets.collect(),
            batch,
            packet,
            most,
            slo,
            cores,
        }
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    /// No schedule has fewer core-epochs, or fewer cores. If the bound reports an objective as unattainable, no
    /// schedule meets it.
    #[test]
    fn no_schedule_is_below_the_bound(problem in problems(), late in 0..=1_usize) {
        let late = late.min(problem.packets.len() - 1);
        let bound = problem.bound(late);
        prop_assert_eq!(bound.chains[0].late_allowed, late as u64);
        if let Some(best) = problem.best(late) {
            prop_assert!(bound.chains[0].attainable);
            prop_assert!(bound.cores.core_epochs <= best, "{:?} > {}", bound.cores, best);
            prop_assert!(bound.cores.most as usize <= problem.cores);
            if late == 0 {
                prop_assert!(bound.cores_none_late.core_epochs <= best);
                prop_assert!(bound.cores_none_late.most as usize <= problem.cores);
            }
        }
    }
}

/// Counts how often the bound equals the best schedule. It is lower because of partly filled batches, the order of
/// flows, and effects within epochs.
#[test]
fn most_bounds_are_what_the_best_schedule_comes_to() {
    let mut runner = TestRunner::deterministic();
    let (mut solved, mut equal, mut equal_most) = (0, 0, 0);
    for number in 0..600 {
        let problem = problems().new_tree(&mut runner).unwrap().current();
        let late = (number % 2).min(problem.packets.len() - 1);
        let Some(best) = problem.best(late) else {
            continue;
        };
        let bound = problem.bound(late).cores;
        let fewest = (1..problem.cores).find(|cores| {
            let fewer = Problem {
                cores: *cores,
                ..problem.clone()
            };
            fewer.best(late).is_some()
        });
        solved += 1;
        equal += u32::from(bound.core_epochs == best);
        equal_most += u32::from(bound.most as usize == fewest.unwrap_or(problem.cores));
    }
    assert!(solved > 400, "{solved}");
    assert!(equal * 10 > solved * 9, "{equal} of {solved}");
    assert!(equal_most * 100 > solved * 98, "{equal_most} of {solved}");
}

/// Returns the fewest core-epochs for work that can be done from one epoch on and is due in another, by trying all
/// numbers of cores. The work is in whole parts of a core-epoch of `capacity`.
fn fewest(work: &[(usize, usize, u64)], capacity: u64) -> u64 {
    let epochs = work.iter().map(|(_, due, _)| due + 1).max().unwrap_or(0);
    // An epoch with a given number of cores does available work, earliest due first.
    fn from(epoch: usize, epochs: usize, mut left: Vec<(usize, usize, u64)>, capacity: u64) -> Option<u64> {
        if left.iter().any(|(_, due, work)| *due < epoch && *work > 0) {
            return None;
        }
        if epoch == epochs {
            return Some(0);
        }
        let mut best = None;
        for cores in 0_u64.. {
            let next = from(epoch + 1, epochs, left.clone(), capacity);
            best = [best, next.map(|next| next + cores)].into_iter().flatten().min();
            let mut room = capacity;
            for (_, _, work) in left.iter_mut().filter(|(from, ..)| *from <= epoch) {
                let done = room.min(*work);
                (*work, room) = (*work - done, room - done);
            }
            if room == capacity {
                break;
            }
        }
        best
    }
    let mut left = work.to_vec();
    left.sort_by_key(|(_, due, _)| *due);
    from(0, epochs, left, capacity).unwrap()
}

proptest! {
    /// Theorem 1, with due times in any order: several chains have several objectives.
    #[test]
    fn no_numbers_of_cores_are_fewer_than_the_procedures(
        mut work in prop::collection::vec((0..5_usize, 0..4_usize, 1..9_u64), 0..6),
    ) {
        let capacity = 4;
        work.sort_by_key(|(from, ..)| *from);
        work.iter_mut().for_each(|(from, due, _)| *due += *from);
        let mut demand = Demand::new(capacity);
        for &(from, due, work) in &work {
            demand.add(from as u64, due as u64, work);
        }
        let (core_epochs, blocks) = demand.finish();
        prop_assert_eq!(core_epochs, fewest(&work, capacity));
        prop_assert!(blocks.core_epochs(0) <= core_epochs);
    }

    /// The cheapest savings are the maximum.
    #[test]
    fn no_other_savings_are_more(
        demands in prop::collection::vec(1..2_000_u64, 1..5),
        left_out in 0..4_000_u64,
    ) {
        // Every class is one number.
        let capacity = 512;
        let mut blocks = Blocks::new(capacity);
        demands.iter().for_each(|demand| blocks.add((*demand).into()));
        // By work left out so far: the fewest core-epochs.
        let mut best = vec![(0, 0)];
        for demand in &demands {
            let cores = |cores: u64| (demand.saturating_sub(cores * capacity), cores);
            let choices = (0..=demand.div_ceil(capacity)).map(cores);
            let choices: Vec<_> = choices.collect();
            let sums = best.iter().flat_map(|(gone, sum)| {
                choices.iter().map(move |(more, cores)| (gone + more, sum + cores))
            });
            best = sums.filter(|(gone, _)| *gone <= left_out).collect();
        }
        let fewest = best.iter().map(|(_, sum)| *sum).min().unwrap();
        prop_assert_eq!(blocks.core_epochs(left_out.into()), fewest);
    }

    /// Theorem 3: no choice of packets that a number of cores can process in time leaves out less.
    #[test]
    fn no_choice_leaves_out_less_than_overflows(
        mut packets in prop::collection::vec((0..400_000_u64, 1..200_000_000_u64), 1..8),
        objective in 50_000..200_000_u64,
    ) {
        packets.sort_unstable();
        let mut peak = Peak::new(objective);
        packets.iter().for_each(|&(at, work)| peak.add(at, work));
        for cores in 1..=3 {
            // Work that arrived in an interval is at most the capacity between its start and the time when its last
            // packet is due.
            let fits = |chosen: &Vec<(u64, u64)>| {
                chosen.iter().enumerate().all(|(i, (from, _))| {
                    let mut sum = 0;
                    chosen[i..].iter().all(|(to, work)| {
                        sum += work;
                        sum <= cores * (to - from + objective) * 1000
                    })
                })
            };
            let all: u64 = packets.iter().map(|(_, work)| work).sum();
            let choices = (0..1_u32 << packets.len()).map(|set| -> Vec<(u64, u64)> {
                let chosen = packets.iter().enumerate();
                chosen.filter(|(i, _)| set & 1 << i != 0).map(|(_, p)| *p).collect()
            });
            let work = |chosen: Vec<(u64, u64)>| chosen.iter().map(|(_, work)| work).sum::<u64>();
            let least = all - choices.filter(fits).map(work).max().unwrap();
            prop_assert!(peak.cores(least.into()) <= cores as u32);
        }
        // With nothing left out, the densest interval determines the number, except for the carry-over.
        let needed = |carried: u64| {
            let from = |i: usize| {
                let (from, mut sum) = (packets[i].0, 0);
                let cores = packets[i..].iter().map(move |(to, work)| {
                    sum += work;
                    let time = to - from + objective;
                    sum.div_ceil(time * 1000 + carried * (time / 100 + 5_000))
                });
                cores.max().unwrap()
            };
            (0..packets.len()).map(from).max().unwrap()
        };
        let cores = u64::from(peak.cores(0));
        prop_assert!(needed(1) <= cores && cores <= needed(0));
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    /// Theorem 2: whatever is left out, the bound is never too high. With one objective and nothing left out, it equals
    /// that of theorem 1.
    #[test]
    fn whatever_is_left_out_saves_no_more_than_the_theorem_says(
        mut froms in prop::collection::vec((0..9_usize, 1..=4_u64), 1..5),
        objective in 0..4_usize,
    ) {
        let capacity = 4;
        froms.sort_unstable();
        let all = froms.iter().map(|(from, work)| (*from, *from + objective, *work));
        let all: Vec<_> = all.collect();
        let mut demand = Demand::new(capacity);
        for &(from, due, work) in &all {
            demand.add(from as u64, due as u64, work);
        }
        let (core_epochs, blocks) = demand.finish();
        prop_assert_eq!(blocks.core_epochs(0), core_epochs);
        let mut rests = vec![Vec::new()];
        for &(from, due, work) in &all {
            let with = |rest: Vec<_>| {
                (0..=work).map(move |left| [&rest[..], &[(from, due, left)]].concat())
            };
            rests = rests.into_iter().flat_map(with).collect();
        }
        let sum = |work: &[(usize, usize, u64)]| work.iter().map(|(.., work)| work).sum::<u64>();
        for rest in rests {
            let left_out = sum(&all) - sum(&rest);
            prop_assert!(blocks.core_epochs(left_out.into()) <= fewest(&rest, capacity));
        }
    }
}

/// Constant load: all work, and as many cores as it keeps busy.
#[test]
fn smooth_load_takes_as_many_cores_as_it_keeps_busy() {
    // 2.75 cores: 5.5 packets of 500 ns per microsecond.
    let packets = (0..55_000_u64).map(|i| (i * 2_000 / 11, (i % 997) as u32));
    let report = bound(model(470, 960, 32), 200 * US, LATE, packets);
    let near = |value: f64, expected: f64| {
        assert!((value / expected - 1.0).abs() < 1e-4, "{value} is not {expected}");
    };
    // All packets take the same time: a hundredth of the work may be left out.
    let whole: f64 = 55_000.0 * 0.5 / 100.0;
    near(report.cores_none_late.core_epochs as f64, whole.ceil());
    near(report.cores.core_epochs as f64, (whole * 0.99).ceil());
    assert_eq!((report.cores_none_late.most, report.cores.most), (3, 3));
    assert_eq!(report.epochs, 102);
    near(report.chains[0].cores_none_late, 27_500.0 / 10_199.818);
    near(report.chains[0].cores, 27_500.0 * 0.99 / 10_199.818);
    assert_eq!(
        (report.chains[0].late_allowed, report.chains[0].late_unavoidable),
        (550, 0)
    );
}

/// Sparse packets: an epoch with one core for each, minus one in a hundred.
#[test]
fn packets_far_apart_take_an_epoch_each() {
    let packets = (0..1000_u64).map(|i| (i * 1000 * US, 0));
    let report = bound(model(500, 0, 32), 200 * US, LATE, packets);
    assert_eq!(report.cores_none_late.core_epochs, 1000);
    assert_eq!(report.cores.core_epochs, 990);
    assert_eq!((report.cores.most, report.cores_none_late.most), (1, 1));
}

/// A burst needs as many cores as process it within the objective, in one epoch or several.
#[test]
fn a_burst_takes_cores_for_its_objective() {
    // 1,000 us of work.
    let burst = |slo: u64| {
        let packets = (0..1000_u32).map(|flow| (0, flow));
        bound(model(1000, 0, 32), slo * US, 1_000_000, packets).cores
    };
    assert_eq!((burst(50).core_epochs, burst(50).most), (10, 19), "a tick is 3.1 us");
    assert_eq!((burst(100).core_epochs, burst(100).most), (10, 10));
    assert_eq!((burst(500).core_epochs, burst(500).most), (10, 2));
}

/// Several chains share epochs: each has packets that would need an epoch of their own.
#[test]
fn chains_share_cores() {
    let packets = |from: u64| (0..100_u64).map(move |i| (i * 1000 * US + from, 0));
    let chains = || {
        let first = chain(model(10_000, 0, 32), 200 * US, packets(0));
        vec![first, chain(model(20_000, 0, 32), 500 * US, packets(0))]
    };
    let both = oracle(chains(), &RunOptions::default()).unwrap();
    assert_eq!(both.cores_none_late.core_epochs, 100);
    // One packet of each may be late, which saves the core if they arrive together.
    assert_eq!(both.cores.core_epochs, 99);
    assert_eq!(both.chains.len(), 2);
}

/// A flow beyond a core, and the same flow with a chain cut in two.
#[test]
fn a_whale_is_too_much_for_any_number_of_cores() {
    let whale = |model: ChainModel, late| {
        // 1.5 cores of one flow, for 10 ms.
        let packets = (0..1500_u64).map(|i| (i * 20_000 / 3, 7));
        bound(model, 500 * US, late, packets).chains.remove(0)
    };
    // All packets beyond 10.5 ms of a core.
    let whole = whale(model(10_000, 0, 32), 100);
    assert!((449..=452).contains(&whole.late_unavoidable), "{whole:?}");
    assert!(!whole.attainable);
    assert!(whale(model(10_000, 0, 32), 3).attainable);
    let cut = ChainModel {
        splits: vec![SplitCost {
            last_functions: 1,
            first: 0.6,
            last: 0.5,
        }],
        ..model(10_000, 0, 32)
    };
    let cut = whale(cut, 100);
    assert_eq!((cut.late_unavoidable, cut.attainable), (0, true));
}

/// Minimum work of a packet: a full batch of minimum duration, and a cut that saves work.
#[test]
fn weights_are_the_least_that_there_can_be() {
    let costs = ServiceCosts {
        batch: 320.0,
        packet: 490.0,
        byte: 0.5,
        new_flow: 200.0,
    };
    let whole = ChainModel::new("x", costs);
    let packet = |first: bool| {
        let packets = [(Nanos(0), 1, 100), (Nanos(1), 1, 100)];
        let recording = Arc::new(Recording::of_packets("x", packets, 1));
        let mut feed = Workload::from(recording);
        let mut feed = ChunkReader::new(&mut feed);
        feed.next(0).unwrap().packets[usize::from(!first)]
    };
    let work = |model: &ChainModel, first| Weights::of(&model.compile().unwrap()).work(&packet(first));
    assert_eq!(work(&whole, false), 490_000 + 50_000 + 10_000 - 4);
    assert_eq!(work(&whole, true), 490_000 + 50_000 + 10_000 + 200_000 - 4);
    let cut = ChainModel {
        receive_packet: 90.0,
        receive_batch: 32.0,
        splits: vec![SplitCost {
            last_functions: 1,
            first: 0.25,
            last: 0.5,
        }],
        ..whole.clone()
    };
    assert_eq!(work(&cut, false), 90_000 + 300_000 + 37_500 + 10_000 - 4);
    let serial = Weights::of(&cut.compile().unwrap()).serial(&packet(false));
    assert_eq!(serial, 200_000 + 25_000 + 9_000 - 1_004);
    let jittery = ChainModel {
        jitter: crate::Jitter::log_normal(0.3),
        ..whole
    };
    // The shortest of 256 draws: its logarithm is 2.9 standard deviations below the mean.
    let share = work(&jittery, false) as f64 / 550_000.0;
    assert!((0.38..0.42).contains(&share), "{share}");
}

#[test]
fn wrong_chains_are_errors() {
    let error = |chains| oracle(chains, &RunOptions::default()).unwrap_err().to_string();
    assert!(error(Vec::new()).contains("found 0 chains"));
    let zero = chain(model(500, 0, 32), 0, [(0, 1)]);
    assert!(error(vec![zero]).contains("slo: expected more than 0s"));
    let nothing = chain(model(0, 0, 32), 200 * US, [(0, 1)]);
    assert!(error(vec![nothing]).contains("chain \"test\""));
}

/// Packets of a warm-up take nothing away from the reported ones.
#[test]
fn a_warm_up_is_left_out() {
    let packets = |from: u64| (from..1000).map(|i| (i * 1000 * US, 0));
    let options = RunOptions {
        warm_up: Nanos(250_500 * US),
        window: Nanos(1000 * US),
        ..RunOptions::default()
    };
    let all = chain(model(500, 0, 32), 200 * US, packets(0));
    let report = oracle(vec![all], &options).unwrap();
    assert_eq!(report.chains[0].packets, 749);
    assert_eq!(report.cores_none_late.core_epochs, 749);
    assert_eq!(report.epochs, 999 * 10 + 2 - 2510);
    let rest = chain(model(500, 0, 32), 200 * US, packets(251));
    let alone = oracle(vec![rest], &RunOptions::default()).unwrap();
    assert_eq!(report.cores, alone.cores);
    assert_eq!(report.chains[0].cores, alone.chains[0].cores);
}

#[test]
fn no_packets_need_no_cores() {
    let report = bound(model(500, 0, 32), 200 * US, LATE, []);
    assert_eq!((report.cores.core_epochs, report.cores.most, report.epochs), (0, 0, 2));
    assert!(report.chains[0].attainable);
}
