//! Turns of several chains on one core.
//!
//! Each chain has a share of the core's time. It is within its share as long as it has credit: credit grows with time
//! by the share and is spent by turns. Chains within their shares run first, those with the tightest objective before
//! others. Chains beyond their shares use the time that is left. So a chain under overload delays one within its share
//! by no more than one of its turns, and no time is wasted. A turn is a batch, which nobody interrupts: a [`TurnSize`]
//! bounds its time by the number of packets.
//!
//! Credit and debt are small, so that the past matters little: what a chain left to others does not entitle it to delay
//! them later, and a chain that had the core for itself is not excluded when another one wakes.
//!
//! Pure: the core's loop passes in times, and the simulator can do the same.

use tailwater_net::Nanos;

/// Shares are in 1/1024 of a core.
const WHOLE: u32 = 1024;

/// Maximum credit: this part of the objective, but no more than the time. A chain with credit may delay the others as
/// long in addition to its share.
const CREDIT_OF_OBJECTIVE: u64 = 10;
const MOST_CREDIT: Nanos = Nanos::from_micros(50);

/// Maximum debt, as a multiple of the maximum credit, or the last turn if that took longer.
const DEBT_FACTOR: i64 = 4;

/// Longest turn, for the ports that a core polls between two turns: their rings of 1,024 packets last for as long at two
/// million packets a second.
const LONGEST_TURN: Nanos = Nanos::from_micros(500);

/// Longest turn as a part of the tightest objective of the core's other chains, and what no objective shortens.
const TURN_OF_OBJECTIVE: u64 = 4;
const LEAST_TURN: Nanos = Nanos::from_micros(50);

/// Claim of a chain to a core.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TurnShare {
    /// Latency objective of the chain.
    pub objective: Nanos,
    /// Weight among the chains of the core, at least 1: a chain's share is its part of their sum.
    pub weight: u32,
}

/// Chain on a core.
#[derive(Clone, Copy, Debug)]
struct Account {
    key: usize,
    claim: TurnShare,
    /// Share in 1/1024 of the core.
    share: i64,
    /// Credit in 1/1024 nanoseconds.
    credit: i64,
    most: i64,
}

/// Order of turns on one core.
#[derive(Clone, Debug, Default)]
pub struct TurnOrder {
    /// By objective, the tightest first.
    accounts: Vec<Account>,
}

impl TurnOrder {
    /// Adds a chain, known by `key`. It begins with full credit.
    pub fn add(&mut self, key: usize, claim: TurnShare) {
        let most = (claim.objective.0 / CREDIT_OF_OBJECTIVE).clamp(1, MOST_CREDIT.0) as i64 * i64::from(WHOLE);
        let account = Account {
            key,
            claim,
            share: 0,
            credit: most,
            most,
        };
        let at = self
            .accounts
            .partition_point(|other| other.claim.objective <= claim.objective);
        self.accounts.insert(at, account);
        self.divide();
    }

    /// Removes a chain.
    pub fn remove(&mut self, key: usize) {
        self.accounts.retain(|account| account.key != key);
        self.divide();
    }

    /// Divides the core by weight.
    fn divide(&mut self) {
        let weight = |account: &Account| u64::from(account.claim.weight.max(1));
        let all = self.accounts.iter().map(weight).sum::<u64>().max(1);
        for account in &mut self.accounts {
            account.share = (weight(account) * u64::from(WHOLE) / all).max(1) as i64;
        }
    }

    /// Number of chains.
    pub fn len(&self) -> usize {
        self.accounts.len()
    }

    /// Returns `true` without chains.
    pub fn is_empty(&self) -> bool {
        self.accounts.is_empty()
    }

    /// Key of the chain at this position, by objective.
    #[inline]
    pub fn key(&self, position: usize) -> usize {
        self.accounts[position].key
    }

    /// Returns `true` if the chain at this position is within its share.
    #[inline]
    pub fn is_within(&self, position: usize) -> bool {
        self.accounts[position].credit > 0
    }

    /// Time that a turn of the chain at this position should take at most: a part of the tightest objective of the
    /// others.
    #[inline]
    pub fn longest_turn(&self, position: usize) -> Nanos {
        let other = self.accounts.get(usize::from(position == 0));
        let part = other.map_or(LONGEST_TURN, |other| Nanos(other.claim.objective.0 / TURN_OF_OBJECTIVE));
        part.clamp(LEAST_TURN, LONGEST_TURN)
    }

    /// Notes that time has passed.
    #[inline]
    pub fn pass(&mut self, time: Nanos) {
        // Longer than any credit lasts, and short enough not to overflow.
        let time = time.0.min(1 << 40) as i64;
        for account in &mut self.accounts {
            account.credit = (account.credit + time * account.share).min(account.most);
        }
    }

    /// Notes that the chain at this position ran for some time.
    #[inline]
    pub fn charge(&mut self, position: usize, time: Nanos) {
        let account = &mut self.accounts[position];
        let time = time.0.min(1 << 40) as i64 * i64::from(WHOLE);
        let least = -time.max(DEBT_FACTOR * account.most);
        account.credit = (account.credit - time).max(least);
    }

    /// Position of the chain to run next with time that those within their shares left, among those for which `waits`
    /// returns `true`: the one with the most credit.
    #[inline]
    pub fn next_beyond(&self, mut waits: impl FnMut(usize) -> bool) -> Option<usize> {
        let beyond = (0..self.accounts.len()).filter(|position| !self.is_within(*position));
        let waiting = beyond.filter(|position| waits(self.accounts[*position].key));
        waiting.max_by_key(|position| self.accounts[*position].credit)
    }
}

/// Number of packets in a chain's turns, by the time that they take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TurnSize {
    most: usize,
    packets: usize,
}

impl TurnSize {
    /// Turns of at most this many packets, and of one to begin with: nobody knows yet what a packet costs.
    pub fn new(most: usize) -> TurnSize {
        TurnSize {
            most: most.max(1),
            packets: 1,
        }
    }

    /// Number of packets of the next turn.
    pub fn packets(self) -> usize {
        self.packets
    }

    /// Returns the number of packets from the next turn on, if it changes after a turn that took this long, and should
    /// take at most `longest`. Only a turn that left packets behind (`is_full`) shows that more have room.
    #[inline]
    pub fn after(&mut self, took: Nanos, longest: Nanos, is_full: bool) -> Option<usize> {
        if took > longest {
            if self.packets == 1 {
                return None;
            }
            self.packets /= 2;
        } else if is_full && self.packets < self.most && took.0.saturating_mul(2) <= longest.0 {
            self.packets = (2 * self.packets).min(self.most);
        } else {
            return None;
        }
        Some(self.packets)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const BATCH: u64 = 5_000;

    fn share(objective_us: u64, weight: u32) -> TurnShare {
        TurnShare {
            objective: Nanos::from_micros(objective_us),
            weight,
        }
    }

    /// Runs chains whose work arrives as nanoseconds per microsecond, in turns of at most [`BATCH`], for 100 ms.
    /// Returns each chain's longest wait for a turn while it had work and was within its share, and its time.
    fn run(chains: &[(TurnShare, u64)]) -> Vec<(u64, u64)> {
        let mut order = TurnOrder::default();
        for (key, (share, _)) in chains.iter().enumerate() {
            order.add(key, *share);
        }
        let (mut now, mut seen) = (0u64, 0u64);
        let mut backlog = vec![0u64; chains.len()];
        let mut waits_since = vec![None; chains.len()];
        let mut result = vec![(0, 0); chains.len()];
        let mut remainder = vec![0u64; chains.len()];
        while now < 100_000_000 {
            order.pass(Nanos(now - seen));
            for (key, (_, load)) in chains.iter().enumerate() {
                let work = (now - seen) * load + remainder[key];
                backlog[key] += work / 1000;
                remainder[key] = work % 1000;
            }
            seen = now;
            let mut worked = false;
            for position in 0..order.len() {
                let key = order.key(position);
                let within = order.is_within(position) && backlog[key] > 0;
                if !within {
                    waits_since[key] = None;
                    continue;
                }
                let since = waits_since[key].unwrap_or(now);
                result[key].0 = result[key].0.max(now - since);
                let time = backlog[key].min(BATCH);
                backlog[key] -= time;
                now += time;
                result[key].1 += time;
                order.charge(position, Nanos(time));
                worked = true;
                waits_since[key] = (backlog[key] > 0).then_some(now);
            }
            if worked {
                continue;
            }
            match order.next_beyond(|key| backlog[key] > 0) {
                Some(position) => {
                    let key = order.key(position);
                    let time = backlog[key].min(BATCH);
                    backlog[key] -= time;
                    now += time;
                    result[key].1 += time;
                    order.charge(position, Nanos(time));
                }
                None => now += 100,
            }
        }
        result
    }

    #[test]
    fn the_tightest_objective_is_first() {
        let mut order = TurnOrder::default();
        for (key, objective) in [300, 100, 200].into_iter().enumerate() {
            order.add(key, share(objective, 300));
        }
        let keys = |order: &TurnOrder| (0..order.len()).map(|at| order.key(at)).collect::<Vec<_>>();
        assert_eq!(keys(&order), [1, 2, 0]);
        order.remove(2);
        assert_eq!(keys(&order), [1, 0]);
    }

    #[test]
    fn the_longest_turn_respects_the_others() {
        let mut order = TurnOrder::default();
        order.add(0, share(400, 1));
        assert_eq!(order.longest_turn(0), LONGEST_TURN);
        order.add(1, share(300_000, 1));
        // The first one's neighbour has time; the second one's has not.
        assert_eq!(
            [0, 1].map(|at| order.longest_turn(at)),
            [500, 100].map(Nanos::from_micros)
        );
        order.add(2, share(20, 1));
        assert_eq!(order.longest_turn(2), LEAST_TURN);
    }

    #[test]
    fn a_chain_in_overload_takes_only_what_is_left() {
        // The first offers five times the core; the second uses 40 % of it.
        let result = run(&[(share(100, 512), 5000), (share(200, 512), 400)]);
        let [(_, of_first), (wait, of_second)] = result[..] else {
            unreachable!("two chains")
        };
        assert!(of_second >= 39_900_000, "{result:?}");
        assert!(of_first >= 59_000_000, "no time is wasted: {result:?}");
        assert!(wait <= 2 * BATCH, "{result:?}");
    }

    #[test]
    fn chains_in_overload_share_what_is_left_by_their_shares() {
        let result = run(&[(share(100, 768), 5000), (share(100, 256), 5000)]);
        let ratio = result[0].1 as f64 / result[1].1 as f64;
        assert!((2.7..3.3).contains(&ratio), "{result:?}");
    }

    proptest! {
        /// Turns become as short as they should be, if one packet is, and not much shorter.
        #[test]
        fn turns_fit_their_time(most in 1usize..300, cost in 1u64..5_000_000, before in 1u64..5_000_000) {
            let mut size = TurnSize::new(most);
            let longest = LONGEST_TURN.0;
            for cost in [before, cost] {
                let took = |size: &TurnSize| Nanos(size.packets as u64 * cost);
                while size.after(took(&size), LONGEST_TURN, true).is_some() {}
                let packets = size.packets as u64;
                prop_assert!(packets * cost <= longest || packets == 1);
                prop_assert!(2 * packets * cost > longest || size.packets == most, "{:?}", size);
            }
            // Nor do they change while there is little to do.
            prop_assert_eq!(size.after(Nanos::ZERO, LONGEST_TURN, false), None);
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(24))]

        #[test]
        fn a_chain_within_its_share_gets_all_it_needs(
            loads in proptest::collection::vec((50u64..500, 10u64..3000), 2..6),
        ) {
            let each = WHOLE / loads.len() as u32;
            let chains: Vec<_> = loads.iter().map(|(objective, load)| (share(*objective, each), *load)).collect();
            let result = run(&chains);
            let longest: u64 = BATCH * chains.len() as u64;
            for ((_, load), (wait, time)) in chains.iter().zip(&result) {
                let guaranteed = u64::from(each) * 100_000_000 / u64::from(WHOLE);
                let needed = (load * 100_000).min(guaranteed);
                // Less what waits at the end.
                prop_assert!(*time + 10 * longest >= needed * 98 / 100, "{:?}", result);
                prop_assert!(*wait <= longest, "{:?}", result);
            }
            let all: u64 = result.iter().map(|(_, time)| time).sum();
            let offered: u64 = loads.iter().map(|(_, load)| load * 100_000).sum();
            prop_assert!(all + 20 * longest >= offered.min(100_000_000) * 99 / 100, "{:?}", result);
        }
    }
}
