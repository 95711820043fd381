//! The ways to keep an SLO: how many instances, of which sizes.

use crate::demand::{Demand, Slot};

/// Steps of the search for choices before it makes do with even ones.
const MOST_STEPS: usize = 20_000;
/// Choices before the search makes do with even ones.
const MOST_CHOICES: usize = 1000;
/// Instances of all choices together, likewise: what bounds their memory.
const MOST_SLOTS: usize = 1 << 16;
/// Numbers of instances that are tried where there are too many choices.
const MOST_EVEN: usize = 64;

/// Choices that keep an SLO, of which none is more than needed: an instance with a way less, or none in its
/// place, would be too little.
#[derive(Clone, Debug, PartialEq)]
pub struct Choices {
    /// The choices; of each the instances, by size. Empty only where no number of instances is enough.
    pub list: Vec<Vec<Slot>>,
    /// Whether these are all choices. Where there are too many, only those with sizes as even as can be, on one
    /// kind of servers, are listed.
    pub complete: bool,
}

/// The choices that keep a demand, with at most so many instances.
pub fn choices(demand: &Demand, most: usize) -> Choices {
    // Sizes that do more than smaller ones, the fastest first.
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

/// A size of instances, what it does, and what the next smaller one of the kind does.
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
    /// Instances of what was found.
    slots: usize,
    found: Vec<Vec<Slot>>,
}

impl Search<'_> {
    /// All choices that go on from those chosen with sizes from number `first`; `false` if there are too many.
    fn from(&mut self, first: usize, rate: f64) -> bool {
        for i in first..self.sizes.len() {
            self.steps += 1;
            let found = self.found.len();
            if self.steps > MOST_STEPS || found > MOST_CHOICES || self.slots > MOST_SLOTS {
                return false;
            }
            let left = self.most - self.chosen.len();
            // Later sizes are slower: if this one as often as may be is too little, so are they.
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

    /// Whether nothing of what is chosen can be smaller.
    fn is_least(&self, sum: f64) -> bool {
        let mut sizes = self.chosen.iter().map(|&i| &self.sizes[i]);
        sizes.all(|size| !self.demand.is_met(sum - size.rate + size.below))
    }
}

/// Choices of equally large instances, a way more or less, on one kind of servers.
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

/// So many instances, which are given a way each in turn until they are enough (ResQ §5.3.1); the largest
/// first. `None` if they are not, with `most` ways each.
pub fn dealt(count: usize, rate: impl Fn(u16) -> f64, most: u16, demand: &Demand) -> Option<Vec<u16>> {
    // All of them with as many ways, then the first few with one more.
    let enough =
        |ways: u16, more: usize| demand.is_met(rate(ways) * (count - more) as f64 + rate(ways + 1) * more as f64);
    let least = (1..=most).find(|&ways| rate(ways) > 0.0)?;
    let ways = (least..=most).find(|&ways| enough(ways, 0))?;
    if ways == least {
        return Some(vec![ways; count]);
    }
    let base = ways - 1;
    // The fewest that need one more: more of them never do less.
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
