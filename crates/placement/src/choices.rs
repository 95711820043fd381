//! Choices to meet an SLO: number and sizes of its instances.

use crate::demand::{Demand, Slot};

/// Maximum steps of the search for choices, before only even ones are used.
const MOST_STEPS: usize = 20_000;
/// Maximum number of choices, before only even ones are used.
const MOST_CHOICES: usize = 1000;
/// Maximum number of instances of all choices together, which bounds their memory.
const MOST_SLOTS: usize = 1 << 16;
/// Numbers of instances that are tried when there are too many choices.
const MOST_EVEN: usize = 64;

/// Minimal choices that meet an SLO: with one way less for any instance, or without it, the rate would be too low.
#[derive(Clone, Debug, PartialEq)]
pub struct Choices {
    /// Sizes of the instances of each choice. Empty only if no number of instances suffices.
    pub list: Vec<Vec<Slot>>,
    /// `true` if these are all choices. If there are too many, only choices with even sizes on one kind of servers are
    /// listed.
    pub complete: bool,
}

/// Returns the choices that meet a demand, with at most `most` instances.
pub fn choices(demand: &Demand, most: usize) -> Choices {
    // Sizes that are faster than smaller ones, fastest first.
    let mut sizes: Vec<Size> = Vec::new();
    for offer in &demand.offers {
        let mut below: Option<f64> = None;
        for ways in offer.least_ways()..=offer.rates.len() as u16 {
            let rate = offer.rate(ways);
            if below.is_none_or(|below| rate > below) {
                sizes.push(Size {
                    slot: offer.slot(ways),
                    rate,
                    below: below.unwrap_or(0.0),
                });
                below = Some(rate);
            }
        }
    }
    sizes.sort_by(|a, b| b.rate.total_cmp(&a.rate).then(a.slot.cmp(&b.slot)));
    let mut search = Search {
        demand,
        sizes: &sizes,
        most,
        chosen: Vec::new(),
        steps: 0,
        slots: 0,
        found: Vec::new(),
    };
    if search.from(0, 0.0) {
        return Choices {
            list: search.found,
            complete: true,
        };
    }
    Choices {
        list: even(demand, most),
        complete: false,
    }
}

/// Size of an instance, its rate, and the rate of the next smaller size of the same kind.
struct Size {
    slot: Slot,
    rate: f64,
    below: f64,
}

struct Search<'a> {
    demand: &'a Demand,
    sizes: &'a [Size],
    most: usize,
    chosen: Vec<usize>,
    steps: usize,
    /// Number of instances in all choices found.
    slots: usize,
    found: Vec<Vec<Slot>>,
}

impl Search<'_> {
    /// Extends the current choice with sizes from number `first` on. Returns `false` if there are too many choices.
    fn from(&mut self, first: usize, rate: f64) -> bool {
        for i in first..self.sizes.len() {
            self.steps += 1;
            let found = self.found.len();
            if self.steps > MOST_STEPS || found > MOST_CHOICES || self.slots > MOST_SLOTS {
                return false;
            }
            let left = self.most - self.chosen.len();
            // Later sizes are slower: if the maximum number of this size is too little, so is that of any later size.
            if !self.demand.is_met(rate + self.sizes[i].rate * left as f64) {
                return true;
            }
            self.chosen.push(i);
            let sum = rate + self.sizes[i].rate;
            let all = if self.demand.is_met(sum) {
                if self.is_least(sum) {
                    self.slots += self.chosen.len();
                    let slots = self.chosen.iter().map(|&i| self.sizes[i].slot);
                    self.found.push(slots.collect());
                }
                true
            } else {
                self.chosen.len() == self.most || self.from(i, sum)
            };
            self.chosen.pop();
            if !all {
                return false;
            }
        }
        true
    }

    /// Returns `true` if no instance of the choice can be smaller.
    fn is_least(&self, sum: f64) -> bool {
        let mut sizes = self.chosen.iter().map(|&i| &self.sizes[i]);
        sizes.all(|size| !self.demand.is_met(sum - size.rate + size.below))
    }
}

/// Returns choices of equal instances, within one way, on one kind of servers.
fn even(demand: &Demand, most: usize) -> Vec<Vec<Slot>> {
    let mut found = Vec::new();
    for offer in &demand.offers {
        let least = offer.rate(offer.least_ways());
        let largest = offer.rate(offer.rates.len() as u16);
        let fewest = (demand.need / largest).ceil().max(1.0);
        let enough = (demand.need / least).ceil().max(1.0).min(most as f64);
        if fewest > enough {
            continue;
        }
        let (fewest, enough) = (fewest as usize, enough as usize);
        let step = (enough - fewest).div_ceil(MOST_EVEN).max(1);
        let counts = (fewest..=enough).step_by(step).chain([enough]);
        let mut last = 0;
        for count in counts {
            if count == last {
                continue;
            }
            last = count;
            let ways = dealt(count, |ways| offer.rate(ways), offer.rates.len() as u16, demand);
            found.extend(ways.map(|ways| ways.into_iter().map(|w| offer.slot(w)).collect()));
        }
    }
    found
}

/// Returns the ways of `count` instances, largest first, when each gets one more way in turn until they suffice (ResQ
/// §5.3.1). Returns `None` if `most` ways each do not suffice.
pub fn dealt(count: usize, rate: impl Fn(u16) -> f64, most: u16, demand: &Demand) -> Option<Vec<u16>> {
    // All of them with the same number of ways, then the first few with one more.
    let enough =
        |ways: u16, more: usize| demand.is_met(rate(ways) * (count - more) as f64 + rate(ways + 1) * more as f64);
    let least = (1..=most).find(|&ways| rate(ways) > 0.0)?;
    let ways = (least..=most).find(|&ways| enough(ways, 0))?;
    if ways == least {
        return Some(vec![ways; count]);
    }
    let base = ways - 1;
    // The minimum number that needs one more way. The total rate never falls with that number.
    let (mut low, mut high) = (0, count);
    while low + 1 < high {
        let middle = (low + high) / 2;
        match enough(base, middle) {
            true => high = middle,
            false => low = middle,
        }
    }
    Some((0..count).map(|i| base + u16::from(i < high)).collect())
}

#[cfg(test)]
mod tests;
