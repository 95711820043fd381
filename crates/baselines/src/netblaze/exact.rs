//! Exhaustive search over all assignments of a few flows.

use super::load::{grown, sum};
use tailwater_policy::capacity::EpochFrontier;
use tailwater_policy::core::Load;

/// Maximum number of flows for the exhaustive search.
pub(super) const MAX_ITEMS: usize = 8;
/// Maximum number of bins: as many partly filled ones as flows, and one per flow.
pub(super) const MAX_BINS: usize = 2 * MAX_ITEMS;

/// Number of sets of flows, with one bit per flow.
const SETS: usize = 1 << MAX_ITEMS;

/// Assigns all flows, given by their packets, to bins with the loads in `before`. Returns each flow's bin, or `None` if
/// no assignment exists. Later bins are empty unless the earlier ones cannot hold all flows.
///
/// Bin by bin it records the sets of flows that fit into the bins so far. Of these it keeps only sets that no other one
/// contains, so a bin costs some hundreds of steps.
pub(super) fn assign(
    frontier: &EpochFrontier,
    packets: impl Iterator<Item = u32>,
    before: &[Load],
) -> Option<[u8; MAX_ITEMS]> {
    let mut loads = [Load::default(); SETS];
    let mut sets = 1;
    for packets in packets {
        for set in 0..sets {
            loads[set + sets] = grown(loads[set], packets);
        }
        sets *= 2;
    }
    let all = sets - 1;

    // For each bin and each set that fits into the bins up to it: the part in this bin.
    let mut taken = [[0_u8; SETS]; MAX_BINS];
    let mut reached = [false; SETS];
    reached[0] = true;
    // Sets that fit into this bin.
    let mut fits = [false; SETS];
    let mut bins = 0;
    while !reached[all] {
        let load = before.get(bins)?;
        if bins == 0 || *load != before[bins - 1] {
            for (fits, subset) in fits[..sets].iter_mut().zip(&loads) {
                *fits = frontier.admits(sum(*load, *subset));
            }
        }
        let mut next = [false; SETS];
        for set in (0..sets).filter(|set| reached[*set]) {
            let rest = all & !set;
            if fits[rest] {
                next[all] = true;
                taken[bins][all] = rest as u8;
                break;
            }
            // All subsets of the remaining flows. The empty set always fits. Branches on `fits` would be unpredictable,
            // so there are none.
            next[set] = true;
            taken[bins][set] = 0;
            let mut subset = rest;
            while subset != 0 {
                next[set | subset] |= fits[subset];
                let taken = &mut taken[bins][set | subset];
                *taken = if fits[subset] { subset as u8 } else { *taken };
                subset = (subset - 1) & rest;
            }
        }
        keep_largest(&mut next[..sets]);
        reached = next;
        bins += 1;
    }

    let mut bin_of = [0; MAX_ITEMS];
    let mut set = all;
    for bin in (0..bins).rev() {
        let subset = usize::from(taken[bin][set]);
        for (i, bin_of) in bin_of.iter_mut().enumerate() {
            if subset & 1 << i != 0 {
                *bin_of = bin as u8;
            }
        }
        set &= !subset;
    }
    Some(bin_of)
}

/// Unmarks all marked sets that another marked set contains.
fn keep_largest(marked: &mut [bool]) {
    // Sets that are marked or contained in a marked one, then those that lack one flow of a marked one.
    let mut covered = [false; SETS];
    let mut contained = [false; SETS];
    let (covered, contained) = (&mut covered[..marked.len()], &mut contained[..marked.len()]);
    covered.copy_from_slice(marked);
    let flows = marked.len().trailing_zeros();
    // Pairs of blocks of sets: the second block contains the flow that the first lacks.
    let halves = |flow: u32| 2 << flow;
    for flow in 0..flows {
        for sets in covered.chunks_exact_mut(halves(flow)) {
            let (without, with) = sets.split_at_mut(1 << flow);
            without.iter_mut().zip(with).for_each(|(a, b)| *a |= *b);
        }
    }
    for flow in 0..flows {
        let larger = covered.chunks_exact(halves(flow));
        for (sets, larger) in contained.chunks_exact_mut(halves(flow)).zip(larger) {
            let with = &larger[1 << flow..];
            sets.iter_mut().zip(with).for_each(|(a, b)| *a |= *b);
        }
    }
    for (marked, contained) in marked.iter_mut().zip(contained) {
        *marked &= !*contained;
    }
}
