//! Fewest buckets whose removal brings a core inside its capacity.
//!
//! Flows and rates both count, so this is a covering problem in two dimensions, which is hard in general. Three steps
//! solve it. First, a lower bound takes the largest rates and the largest flow counts, as if one bucket could have
//! both. Second, greedy choices use several mixtures of rate and flows. Third, if bound and choice differ, a search
//! covers sets of the sizes between, up to a number of steps. The result is proven minimal when bound and choice meet
//! or the search ends, which it always does for up to ten buckets.

/// Maximum number of sets that the search visits. More than the 9 * 2^10 sets of ten buckets.
const SEARCH_STEPS: u32 = 1 << 14;

/// Weights of the flow count against the rate in the greedy choices, both as shares of the core's sum.
const MIXTURES: [f64; 7] = [0.0, 0.1, 0.3, 0.5, 0.7, 0.9, 1.0];

/// A bucket on the core.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Item {
    pub bucket: u16,
    pub flows: f64,
    pub rate: f64,
}

/// Finds sets of buckets to shed. Its memory is reused, so it does not allocate in steady state.
#[derive(Debug, Default)]
pub(super) struct Shedder {
    items: Vec<Item>,
    /// Prefix sums: entry `i` holds the sum of the `i` largest values, of flow counts and of rates.
    most_flows: Vec<f64>,
    most_rate: Vec<f64>,
    order: Vec<u16>,
    chosen: Vec<u16>,
    trial: Vec<u16>,
}

impl Shedder {
    /// Reserves memory for `buckets` buckets.
    pub(super) fn reserve(&mut self, buckets: usize) {
        for sums in [&mut self.most_flows, &mut self.most_rate] {
            sums.clear();
            sums.reserve(buckets + 1);
        }
        for indices in [&mut self.order, &mut self.chosen, &mut self.trial] {
            indices.clear();
            indices.reserve(buckets);
        }
        self.items.clear();
        self.items.reserve(buckets);
    }

    /// Returns the fewest of `items` to shed, so that `fits(flows, rate)` holds for the sums of those that stay. Among
    /// sets of that size, it prefers small buckets. `fits` must hold for an empty core, and for any load smaller than
    /// one that fits.
    pub(super) fn fewest(
        &mut self,
        items: impl Iterator<Item = Item>,
        fits: impl Fn(f64, f64) -> bool,
    ) -> impl Iterator<Item = Item> {
        self.items.clear();
        self.items.extend(items);
        let flows: f64 = self.items.iter().map(|item| item.flows).sum();
        let rate: f64 = self.items.iter().map(|item| item.rate).sum();
        self.chosen.clear();
        if !fits(flows, rate) {
            let stay = |f: f64, r: f64| fits((flows - f).max(0.0), (rate - r).max(0.0));
            self.greedy(flows, rate, &stay);
            self.search(&stay);
            self.shrink(&stay);
        }
        self.chosen.iter().map(|&i| self.items[usize::from(i)])
    }

    /// Finds the best greedy choice.
    fn greedy(&mut self, flows: f64, rate: f64, stay: &impl Fn(f64, f64) -> bool) {
        let items = &self.items;
        self.chosen.extend(0..items.len() as u16);
        for mixture in MIXTURES {
            let weight = |i: u16| {
                let item = &items[usize::from(i)];
                let share = |part: f64, of: f64| if of > 0.0 { part / of } else { 0.0 };
                mixture * share(item.flows, flows) + (1.0 - mixture) * share(item.rate, rate)
            };
            self.order.clear();
            self.order.extend(0..items.len() as u16);
            self.order
                .sort_unstable_by(|&a, &b| weight(b).total_cmp(&weight(a)).then(a.cmp(&b)));
            let (mut f, mut r, mut count) = (0.0, 0.0, 0);
            while count < items.len() && !stay(f, r) {
                let item = &items[usize::from(self.order[count])];
                f += item.flows;
                r += item.rate;
                count += 1;
            }
            if count < self.chosen.len() {
                self.chosen.clear();
                self.chosen.extend_from_slice(&self.order[..count]);
            }
        }
    }

    /// Searches for a set smaller than the chosen one.
    fn search(&mut self, stay: &impl Fn(f64, f64) -> bool) {
        let items = &self.items;
        let sums = |sorted: &mut Vec<f64>, part: fn(&Item) -> f64| {
            sorted.clear();
            sorted.extend(items.iter().map(part));
            sorted.sort_unstable_by(|a, b| b.total_cmp(a));
            let mut sum = 0.0;
            for value in sorted.iter_mut() {
                (*value, sum) = (sum, sum + *value);
            }
            sorted.push(sum);
        };
        sums(&mut self.most_flows, |item| item.flows);
        sums(&mut self.most_rate, |item| item.rate);
        let possible = |count: &usize| stay(self.most_flows[*count], self.most_rate[*count]);
        let Some(least) = (1..self.chosen.len()).find(possible) else {
            return;
        };
        self.order.sort_unstable_by(|&a, &b| {
            let weight = |i: u16| {
                let item = &items[usize::from(i)];
                let (flows, rate) = (self.most_flows[items.len()], self.most_rate[items.len()]);
                item.flows * rate + item.rate * flows
            };
            weight(b).total_cmp(&weight(a)).then(a.cmp(&b))
        });
        let mut steps = SEARCH_STEPS;
        for count in least..self.chosen.len() {
            self.trial.clear();
            let mut sets = Sets {
                items,
                order: &self.order,
                most_flows: &self.most_flows,
                most_rate: &self.most_rate,
                stay,
                trial: &mut self.trial,
                steps: &mut steps,
            };
            if sets.find(0, count, 0.0, 0.0) {
                std::mem::swap(&mut self.chosen, &mut self.trial);
                return;
            }
        }
    }

    /// Replaces chosen buckets by smaller ones that suffice too, since small buckets are easier to place.
    fn shrink(&mut self, stay: &impl Fn(f64, f64) -> bool) {
        let items = &self.items;
        let sum = |chosen: &[u16], part: fn(&Item) -> f64| -> f64 {
            chosen.iter().map(|&i| part(&items[usize::from(i)])).sum()
        };
        let mut flows = sum(&self.chosen, |item| item.flows);
        let mut rate = sum(&self.chosen, |item| item.rate);
        let smaller = |a: &u16, b: &u16| {
            let (x, y) = (&items[usize::from(*a)], &items[usize::from(*b)]);
            x.rate
                .total_cmp(&y.rate)
                .then(x.flows.total_cmp(&y.flows))
                .then(a.cmp(b))
        };
        self.chosen.sort_unstable_by(|a, b| smaller(b, a));
        self.order.clear();
        self.order
            .extend((0..items.len() as u16).filter(|i| !self.chosen.contains(i)));
        self.order.sort_unstable_by(smaller);
        for chosen in &mut self.chosen {
            let old = items[usize::from(*chosen)];
            for other in &mut self.order {
                let new = items[usize::from(*other)];
                let less =
                    new.rate <= old.rate && new.flows <= old.flows && new.rate + new.flows < old.rate + old.flows;
                let (f, r) = (flows - old.flows + new.flows, rate - old.rate + new.rate);
                if less && stay(f, r) {
                    (flows, rate) = (f, r);
                    std::mem::swap(chosen, other);
                    break;
                }
            }
        }
    }
}

/// Search through the sets of one size.
struct Sets<'a, F> {
    items: &'a [Item],
    order: &'a [u16],
    most_flows: &'a [f64],
    most_rate: &'a [f64],
    stay: &'a F,
    trial: &'a mut Vec<u16>,
    steps: &'a mut u32,
}

impl<F: Fn(f64, f64) -> bool> Sets<'_, F> {
    /// Adds `count` of the items from `first` on, until the remaining ones fit.
    fn find(&mut self, first: usize, count: usize, flows: f64, rate: f64) -> bool {
        if *self.steps == 0 {
            return false;
        }
        *self.steps -= 1;
        if count == 0 {
            return (self.stay)(flows, rate);
        }
        if !(self.stay)(flows + self.most_flows[count], rate + self.most_rate[count]) {
            return false;
        }
        for i in first..self.order.len() + 1 - count {
            let item = self.items[usize::from(self.order[i])];
            self.trial.push(self.order[i]);
            if self.find(i + 1, count - 1, flows + item.flows, rate + item.rate) {
                return true;
            }
            self.trial.pop();
        }
        false
    }
}
