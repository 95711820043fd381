//! Division of a whale's chain over several cores: where it is cut, by the costs in the split profile.

use crate::capacity::{SplitPoint, SplitProfile};

/// Maximum number of points that are considered: those with the highest capacity.
const MOST_POINTS: usize = 6;
/// Maximum number of cuts of a chain.
const MOST_CUTS: usize = 4;
/// A cut is made only if it shortens the slowest part's time by this share: handing over costs other cores' time, too.
const GAIN: (u64, u64) = (1, 8);

/// Point at which the chain can be cut. Times are in picoseconds per packet.
#[derive(Clone, Copy, Debug, Default)]
struct Point {
    last_functions: usize,
    /// Functions in front of it, on the dispatching core, and those behind it, on an auxiliary core.
    first: u64,
    last: u64,
    /// Excess of both over the time of the whole chain: the cost of handing over.
    over: u64,
}

/// Set of cuts, as a bit map of the points.
pub(super) type Cuts = u32;

/// Divisions of a chain.
#[derive(Clone, Debug)]
pub(super) struct Divisions {
    /// The first `len` are points, in the chain's order. An array, since simulations create many mappers.
    points: [Point; MOST_POINTS],
    len: usize,
    /// Time of a packet that passes the whole chain on one core.
    whole: u64,
    /// Time that the dispatching core takes to pass a packet on from one auxiliary core to the next.
    relay: u64,
}

impl Divisions {
    /// Creates the divisions for a profile of packets per `epoch`, and packets that take `whole`; both in nanoseconds.
    pub fn new(profile: &SplitProfile, epoch: u64, whole: u64) -> Divisions {
        let time = |packets: u32| epoch * 1000 / u64::from(packets.max(1));
        let whole = whole * 1000;
        let mut best = [None; MOST_POINTS];
        for point in profile.points() {
            let is_less = |other: &Option<&SplitPoint>| other.is_none_or(|other| other.capacity() < point.capacity());
            if let Some(at) = best.iter().position(is_less) {
                best[at..].rotate_right(1);
                best[at] = Some(point);
            }
        }
        let mut points = [Point::default(); MOST_POINTS];
        let mut len = 0;
        for point in best.into_iter().flatten() {
            points[len] = Point {
                last_functions: point.last_functions,
                first: time(point.first),
                last: time(point.last),
                over: (time(point.first) + time(point.last)).saturating_sub(whole),
            };
            len += 1;
        }
        points[..len].sort_by_key(|point| std::cmp::Reverse(point.last_functions));
        Divisions {
            relay: points[..len].iter().map(|point| point.over / 2).max().unwrap_or(0),
            points,
            len,
            whole,
        }
    }

    fn points(&self) -> &[Point] {
        &self.points[..self.len]
    }

    /// Returns the cuts in front of these numbers of last functions, or `None` if there is another one.
    pub fn cuts(&self, last_functions: impl Iterator<Item = usize>) -> Option<Cuts> {
        let at = |last_functions| {
            self.points()
                .iter()
                .position(|point| point.last_functions == last_functions)
        };
        last_functions.map(at).try_fold(0, |cuts, at| Some(cuts | 1 << at?))
    }

    /// Returns the number of last functions behind a cut.
    pub fn last_functions(&self, cut: usize) -> usize {
        self.points[cut].last_functions
    }

    /// Returns the time of a packet in each part, in picoseconds, in the chain's order.
    pub fn parts(&self, cuts: Cuts) -> impl Iterator<Item = u64> + '_ {
        let cut = move |(at, point)| (cuts >> at & 1 != 0).then_some(point);
        let relays = u64::from(cuts.count_ones().saturating_sub(1));
        let chosen = move || self.points().iter().enumerate().filter_map(cut);
        let first = chosen()
            .next()
            .map_or(self.whole, |point| point.first + relays * self.relay);
        let others = chosen().zip(chosen().skip(1).map(Some).chain([None]));
        let time = |(point, next): (&Point, Option<&Point>)| match next {
            None => point.last,
            Some(next) => point.last.saturating_sub(next.last) + next.over,
        };
        std::iter::once(first).chain(others.map(time))
    }

    /// Returns the time of a packet in the slowest part, in picoseconds.
    pub fn slowest(&self, cuts: Cuts) -> u64 {
        self.parts(cuts).max().unwrap_or(self.whole)
    }

    /// Returns the division with up to `more` cuts in addition to `cuts` that has the fewest of those whose slowest
    /// part takes at most `need` picoseconds. If there is none, returns the one with the shortest time of the slowest
    /// part, or `cuts` itself if none is worth it.
    pub fn best(&self, cuts: Cuts, more: usize, need: u64) -> Cuts {
        let before = self.slowest(cuts);
        let most = before - before * GAIN.0 / GAIN.1;
        let limit = (cuts.count_ones() as usize + more).min(MOST_CUTS) as u32;
        let all = 0..1_u32 << self.len;
        let worth = all.filter(|set| set & cuts == cuts && set.count_ones() <= limit);
        let worth = worth.map(|set| (self.slowest(set), set));
        let worth = worth.filter(|(slowest, set)| *set != cuts && *slowest <= most);
        // Among equal ones, that which moves the fewest functions to auxiliary cores.
        let key = |(slowest, set): &(u64, Cuts)| match *slowest <= need {
            true => (0, set.count_ones(), *slowest, std::cmp::Reverse(*set)),
            false => (*slowest, set.count_ones(), *slowest, std::cmp::Reverse(*set)),
        };
        worth.min_by_key(key).map_or(cuts, |(_, set)| set)
    }

    /// Returns the cut to begin with, of a division: the one that makes two parts of the most similar time.
    pub fn first(&self, cuts: Cuts) -> Option<usize> {
        let among = (0..self.len).rev().filter(|at| cuts >> at & 1 != 0);
        among.min_by_key(|at| self.slowest(1 << at))
    }

    /// Returns the cut to make next, of `wanted` in addition to `cuts`.
    pub fn next(&self, cuts: Cuts, wanted: Cuts) -> Option<usize> {
        let among = (0..self.len).rev().filter(|at| (wanted & !cuts) >> at & 1 != 0);
        among.min_by_key(|at| self.slowest(cuts | 1 << at))
    }

    /// Returns the cuts without the last one.
    pub fn without_last(&self, cuts: Cuts) -> Cuts {
        match cuts.checked_ilog2() {
            None => 0,
            Some(last) => cuts & !(1 << last),
        }
    }

    /// Returns the points that are ever used with this many auxiliary cores, as a [bit
    /// map](crate::core::CoreMapper::split_points).
    pub fn used(&self, auxiliaries: usize) -> u64 {
        let used = (1..=auxiliaries.min(MOST_CUTS)).fold(0, |used, more| used | self.best(0, more, 0));
        let bit = |(at, point): (usize, &Point)| u64::from(used >> at & 1) << (point.last_functions & 63);
        self.points()
            .iter()
            .enumerate()
            .map(bit)
            .fold(0, |points, bit| points | bit)
    }

    /// Keeps only the points of a [bit map](crate::core::CoreMapper::split_points).
    pub fn keep(&mut self, points: u64) {
        let mut kept = 0;
        for at in 0..self.len {
            if points >> (self.points[at].last_functions & 63) & 1 != 0 {
                self.points[kept] = self.points[at];
                kept += 1;
            }
        }
        self.len = kept;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Chain of functions with these times, in nanoseconds, where a cut costs 10 ns on both sides.
    fn chain(times: &[u64]) -> Divisions {
        const EPOCH: u64 = 10_000_000;
        let whole: u64 = times.iter().sum();
        let mut profile = SplitProfile::new();
        for last_functions in 1..times.len() {
            let last: u64 = times[times.len() - last_functions..].iter().sum();
            profile.insert(SplitPoint {
                last_functions,
                first: (EPOCH / (whole - last + 10)) as u32,
                last: (EPOCH / (last + 10)) as u32,
            });
        }
        Divisions::new(&profile, EPOCH, whole)
    }

    fn points(divisions: &Divisions, cuts: Cuts) -> Vec<usize> {
        let cuts = (0..32).filter(|at| cuts >> at & 1 != 0);
        cuts.map(|cut| divisions.last_functions(cut)).collect()
    }

    fn best(divisions: &Divisions, more: usize) -> Vec<usize> {
        points(divisions, divisions.best(0, more, 0))
    }

    #[test]
    fn the_slowest_part_is_as_short_as_possible() {
        let divisions = chain(&[200, 200, 200, 200]);
        assert_eq!(best(&divisions, 1), [2]);
        // Three parts are no shorter than two.
        assert_eq!(best(&divisions, 2), [2]);
        assert_eq!(best(&divisions, 3), [3, 2, 1]);
        let divisions = chain(&[100, 300, 500]);
        assert_eq!((best(&divisions, 1), best(&divisions, 2)), (vec![1], vec![1]));
        let divisions = chain(&[300, 300, 300]);
        assert_eq!(best(&divisions, 2), [2, 1]);
    }

    #[test]
    fn parts_take_their_functions_time_and_that_of_handing_over() {
        let divisions = chain(&[200, 300, 500]);
        let parts = |last: &[usize]| -> Vec<u64> {
            let cuts = divisions.cuts(last.iter().copied()).unwrap();
            divisions.parts(cuts).map(|picos| (picos + 500) / 1000).collect()
        };
        assert_eq!(parts(&[]), [1000]);
        assert_eq!(parts(&[1]), [510, 510]);
        // The first core passes each packet on a second time.
        assert_eq!(parts(&[2, 1]), [220, 320, 510]);
        assert!(divisions.cuts([3].into_iter()).is_none());
    }

    #[test]
    fn no_cut_is_made_that_brings_little() {
        // Handing over costs 10 ns on each side, of 24.
        assert_eq!(best(&chain(&[12, 12]), 1), [0; 0]);
        assert_eq!(best(&chain(&[900, 50]), 1), [0; 0]);
        assert_eq!(chain(&[900, 50]).used(4), 0);
    }

    #[test]
    fn no_more_cuts_are_made_than_necessary() {
        let divisions = chain(&[300, 300, 300]);
        assert_eq!(points(&divisions, divisions.best(0, 2, 700_000)), [1]);
        assert_eq!(points(&divisions, divisions.best(0, 2, 500_000)), [2, 1]);
        let one = divisions.cuts([1].into_iter()).unwrap();
        let two = divisions.best(one, 1, 0);
        assert_eq!(points(&divisions, two), [2, 1]);
        assert_eq!(divisions.next(one, two), Some(0));
        assert_eq!(points(&divisions, divisions.without_last(two)), [2]);
        assert_eq!(divisions.best(two, 3, 0), two);
    }

    #[test]
    fn only_points_that_are_used_separate_the_flow_state() {
        let divisions = chain(&[300, 300, 300]);
        assert_eq!(
            (divisions.used(0), divisions.used(1), divisions.used(2)),
            (0, 1 << 1, 1 << 1 | 1 << 2)
        );
        let mut kept = divisions;
        kept.keep(1 << 1);
        assert_eq!(best(&kept, 2), [1]);
        assert_eq!(Divisions::new(&SplitProfile::new(), 1000, 10).best(0, 3, 0), 0);
    }
}
