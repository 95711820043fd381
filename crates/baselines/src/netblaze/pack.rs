//! Cutting a backlog into groups: first fit, then largest first if that may be better, and exhaustive if small.

use super::exact::{self, MAX_BINS, MAX_ITEMS};
use super::load::{grown, sum};
use super::lower_bound::{Line, hull};
use tailwater_policy::capacity::EpochFrontier;
use tailwater_policy::core::{Destination, Load, MAX_AUXILIARY_CORES, QueuedFlow, View};

/// Number of classes of packet counts by which flows are sorted. They are equally wide, up to the maximum packets of a
/// group.
pub const SIZE_CLASSES: usize = 512;

/// Core that flows can be placed on.
#[derive(Clone, Copy, Debug)]
struct Bin {
    place: Destination,
    /// Its load, including flows placed so far.
    load: Load,
    /// Its load before any flow is placed.
    before: Load,
}

/// Quality of a packing. Less is better.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct PackingCost {
    /// Packets that found no room.
    left: u32,
    /// Auxiliary cores to be activated.
    activated: usize,
}

/// Flows checked together.
const CHUNK: usize = 8;

/// Bins during first-fit packing: each flow goes into the first bin with room.
struct Filling<'a> {
    frontier: &'a EpochFrontier,
    bins: &'a mut [Bin],
    /// Index of the first bin that is not full.
    current: usize,
    /// Local copy of that bin, to be stored back.
    bin: Bin,
    /// Load that found no room.
    left: Load,
    /// Smallest flow, in packets, that found no room. Bins only fill up, so no larger flow fits either.
    hopeless: u32,
}

impl Filling<'_> {
    /// Puts several flows into the first bin that is not full, if all of them fit.
    #[inline]
    fn put_together(&mut self, flows: u32, packets: u32) -> Option<Destination> {
        let load = Load {
            flows: self.bin.load.flows.saturating_add(flows),
            packets: self.bin.load.packets.saturating_add(packets),
        };
        if !self.frontier.admits(load) {
            return None;
        }
        self.bin.load = load;
        Some(self.bin.place)
    }

    /// Puts a flow into the first bin that has room for it.
    #[inline]
    fn put(&mut self, packets: u32) -> Destination {
        match self.put_together(1, packets) {
            Some(place) => place,
            None => self.put_elsewhere(packets),
        }
    }

    /// Puts a flow into a bin after the current one, which has no room for it.
    fn put_elsewhere(&mut self, packets: u32) -> Destination {
        if packets >= self.hopeless {
            self.left = grown(self.left, packets);
            return Destination::OWN_CORE;
        }
        self.bins[self.current].load = self.bin.load;
        let room = |bin: &&mut Bin| self.frontier.admits(grown(bin.load, packets));
        let place = match self.bins[self.current + 1..].iter_mut().find(room) {
            Some(bin) => {
                bin.load = grown(bin.load, packets);
                bin.place
            }
            None => {
                self.left = grown(self.left, packets);
                self.hopeless = packets;
                Destination::OWN_CORE
            }
        };
        while self.current + 1 < self.bins.len() && !self.frontier.admits(grown(self.bin.load, 1)) {
            self.current += 1;
            self.bin = self.bins[self.current];
        }
        place
    }

    /// Stores all loads and returns the load that found no room.
    fn finish(self) -> Load {
        self.bins[self.current].load = self.bin.load;
        self.left
    }
}

/// Packs flows on cores. Its memory is reused.
#[derive(Debug)]
pub(super) struct Packer {
    pub frontier: EpochFrontier,
    lines: Vec<Line>,
    /// This core, then the active auxiliary cores, then the idle ones, each sorted by number.
    bins: [Bin; MAX_AUXILIARY_CORES + 1],
    /// Number of bins that are this core or active auxiliary cores.
    working: usize,
    /// Number of bins.
    count: usize,
    /// Maximum packets of a flow that is not bound.
    largest_flow: u32,
    /// Auxiliary cores that split flows were assigned to, as a bit map.
    split: u64,
    /// Flows in the order in which they are placed.
    order: Vec<u32>,
    /// Alternative placement of the flows.
    other: Vec<Destination>,
    /// Loads of the bins with the flows placed in order of arrival.
    by_arrival: [Load; MAX_AUXILIARY_CORES + 1],
}

impl Packer {
    pub fn new(frontier: EpochFrontier) -> Self {
        let nothing = Bin {
            place: Destination::OWN_CORE,
            load: Load::default(),
            before: Load::default(),
        };
        Packer {
            lines: hull(&frontier),
            frontier,
            bins: [nothing; MAX_AUXILIARY_CORES + 1],
            working: 1,
            count: 1,
            largest_flow: 0,
            split: 0,
            order: Vec::new(),
            other: Vec::new(),
            by_arrival: [Load::default(); MAX_AUXILIARY_CORES + 1],
        }
    }

    /// Reads the view. Bound flows stay here.
    pub fn gather(&mut self, view: &View<'_>) {
        let (mut bound, mut largest) = (Load::default(), 0);
        for flow in view.queued {
            // Branch-free: this runs for every flow of every backlog.
            let (stays, goes) = match flow.bound {
                true => (flow.packets, 0),
                false => (0, flow.packets),
            };
            bound.flows += u32::from(flow.bound);
            bound.packets = bound.packets.wrapping_add(stays);
            largest = largest.max(goes);
        }
        self.largest_flow = largest;
        self.split = 0;
        self.count = 0;
        self.push(Destination::OWN_CORE, bound);
        for (i, auxiliary) in view.auxiliaries.iter().enumerate() {
            if auxiliary.active && !auxiliary.taken {
                self.push(Destination::auxiliary(i), auxiliary.load);
            }
        }
        self.working = self.count;
        for (i, auxiliary) in view.auxiliaries.iter().enumerate() {
            if !auxiliary.active && !auxiliary.taken {
                self.push(Destination::auxiliary(i), auxiliary.load);
            }
        }
    }

    fn push(&mut self, place: Destination, load: Load) {
        self.bins[self.count] = Bin {
            place,
            load,
            before: load,
        };
        self.count += 1;
    }

    /// Returns `true` if a flow that is not bound exceeds a core by itself.
    pub fn has_whales(&self) -> bool {
        self.largest_flow > self.frontier.largest()
    }

    /// Charges a split flow to this core and an auxiliary core, as packets of each. Returns the auxiliary core, or
    /// `None` without charging anything if there is no room.
    pub fn take_split(&mut self, first: u32, last: u32) -> Option<usize> {
        let here = grown(self.bins[0].before, first);
        if !self.frontier.admits(here) {
            return None;
        }
        let fits = |bin: &Bin| self.frontier.admits(grown(bin.before, last));
        let found = 1 + self.bins[1..self.count].iter().position(fits)?;
        // Idle auxiliary cores are alike, so the first of them with room is the first of all.
        self.working = self.working.max(found + 1);
        self.bins[0].before = here;
        self.bins[found].before = grown(self.bins[found].before, last);
        let auxiliary = self.bins[found].place.as_auxiliary()?;
        self.split |= 1 << auxiliary;
        Some(auxiliary)
    }

    /// Charges work that stays here.
    pub fn keep(&mut self, work: Load) {
        self.bins[0].before = sum(self.bins[0].before, work);
    }

    /// Returns the load of this core after packing, including the load that found no room.
    pub fn here(&self) -> Load {
        self.bins[0].load
    }

    /// Returns the auxiliary cores that flows were placed on, as a bit map.
    pub fn used(&self) -> u64 {
        let auxiliaries = self.bins[1..self.count].iter();
        let given = auxiliaries.filter(|bin| bin.load != bin.before);
        given.fold(self.split, |used, bin| {
            used | bin.place.as_auxiliary().map_or(0, |auxiliary| 1 << auxiliary)
        })
    }

    /// Places all flows that are neither bound nor whales, on this core only if `here`. Returns `true` if all found
    /// room. Those without room are placed here.
    pub fn pack(&mut self, queued: &[QueuedFlow], here: bool, places: &mut [Destination]) -> bool {
        let open = usize::from(!here);
        if self.count == open {
            return false;
        }
        // Sized for the longest queue seen, also if that one does not need an alternative.
        if self.other.capacity() < queued.len() {
            self.other.resize(queued.len(), Destination::OWN_CORE);
            self.order.resize(queued.len(), 0);
        }
        let mut best = self.first_fit(queued, open, places);
        if !self.improvable(best, open) {
            return best.left == 0;
        }

        // Another order may need fewer auxiliary cores.
        for (kept, bin) in self.by_arrival.iter_mut().zip(&self.bins[..self.count]) {
            *kept = bin.load;
        }
        let mut other = std::mem::take(&mut self.other);
        other.resize(queued.len(), Destination::OWN_CORE);
        let sorted = self.largest_first(queued, open, &mut other);
        if sorted < best {
            places.copy_from_slice(&other);
            best = sorted;
        } else {
            for (bin, kept) in self.bins[..self.count].iter_mut().zip(&self.by_arrival) {
                bin.load = *kept;
            }
        }
        if self.improvable(best, open) && self.exact(queued, open, best, &mut other) {
            places.copy_from_slice(&other);
            self.recount(queued, places);
            best.left = 0;
        }
        self.other = other;
        best.left == 0
    }

    /// Packs first fit, in order of arrival, into the bins from `open` on.
    fn first_fit(&mut self, queued: &[QueuedFlow], open: usize, places: &mut [Destination]) -> PackingCost {
        let whales = self.has_whales();
        let largest = self.frontier.largest();
        let mut filling = self.fill(open);
        let put_each = |filling: &mut Filling<'_>, flows: &[QueuedFlow], places: &mut [Destination]| {
            for (flow, place) in flows.iter().zip(places) {
                *place = match flow.bound || flow.packets > largest {
                    true => Destination::OWN_CORE,
                    false => filling.put(flow.packets),
                };
            }
        };
        let (chunks, rest) = queued.as_chunks::<CHUNK>();
        let (places, rest_places) = places.as_chunks_mut::<CHUNK>();
        for (flows, places) in chunks.iter().zip(places) {
            // Flows that fit together also fit one after the other.
            let bound = flows.iter().fold(false, |any, flow| any | flow.bound);
            if !whales && !bound {
                let packets = flows.iter().map(|flow| flow.packets);
                let packets = packets.fold(0, u32::saturating_add);
                if let Some(place) = filling.put_together(CHUNK as u32, packets) {
                    places.fill(place);
                    continue;
                }
            }
            put_each(&mut filling, flows, places);
        }
        put_each(&mut filling, rest, rest_places);
        let left = filling.finish();
        self.outcome(left)
    }

    /// Packs first fit, largest first, into the bins from `open` on.
    fn largest_first(&mut self, queued: &[QueuedFlow], open: usize, places: &mut [Destination]) -> PackingCost {
        self.sort(queued);
        let order = std::mem::take(&mut self.order);
        let largest = self.frontier.largest();
        let mut filling = self.fill(open);
        for i in &order {
            let flow = queued[*i as usize];
            places[*i as usize] = match flow.bound || flow.packets > largest {
                true => Destination::OWN_CORE,
                false => filling.put(flow.packets),
            };
        }
        let left = filling.finish();
        self.order = order;
        self.outcome(left)
    }

    /// Returns the bins from `open` on, without any flow placed.
    fn fill(&mut self, open: usize) -> Filling<'_> {
        for bin in &mut self.bins[..self.count] {
            bin.load = bin.before;
        }
        let bins = &mut self.bins[open..self.count];
        Filling {
            frontier: &self.frontier,
            bin: bins[0],
            bins,
            current: 0,
            left: Load::default(),
            hopeless: u32::MAX,
        }
    }

    /// Returns the quality of the packing. The load in `left` stays here.
    fn outcome(&mut self, left: Load) -> PackingCost {
        self.bins[0].load = sum(self.bins[0].load, left);
        let idle = &self.bins[self.working..self.count];
        PackingCost {
            left: left.packets,
            activated: idle.iter().filter(|bin| bin.load != bin.before).count(),
        }
    }

    /// Returns `true` if the lower bound permits less load without room, or fewer activated auxiliary cores. Called
    /// after packing, when the bins hold the work.
    fn improvable(&self, outcome: PackingCost, open: usize) -> bool {
        let activated = match outcome {
            PackingCost { left: 1.., .. } => self.count - self.working,
            PackingCost { activated: 0, .. } => return false,
            PackingCost { activated, .. } => activated - 1,
        };
        let mut work = Load::default();
        for bin in &self.bins[..self.count] {
            work.flows = work.flows.saturating_add(bin.load.flows - bin.before.flows);
            work.packets = (work.packets).saturating_add(bin.load.packets - bin.before.packets);
        }
        self.lines.iter().all(|line| {
            let working = self.bins[open.min(self.working)..self.working].iter();
            let room = working.map(|bin| line.capacity.saturating_sub(line.weight(bin.before)));
            line.weight(work) <= room.sum::<u128>() + line.capacity * activated as u128
        })
    }

    /// Sorts the flows into `order` by size class, largest first, and by arrival within a class.
    fn sort(&mut self, queued: &[QueuedFlow]) {
        let largest = self.frontier.largest();
        let used = u32::BITS - largest.leading_zeros();
        let shift = used.saturating_sub(SIZE_CLASSES.trailing_zeros());
        let class = |flow: &QueuedFlow| {
            let size = flow.packets.min(largest) >> shift;
            SIZE_CLASSES - 1 - size as usize
        };
        let mut next = [0_u32; SIZE_CLASSES];
        for flow in queued {
            next[class(flow)] += 1;
        }
        let mut before = 0;
        for next in &mut next {
            before += std::mem::replace(next, before);
        }
        self.order.resize(queued.len(), 0);
        for (i, flow) in queued.iter().enumerate() {
            let next = &mut next[class(flow)];
            self.order[*next as usize] = i as u32;
            *next += 1;
        }
    }

    /// Searches exhaustively for a better packing than `outcome`, if there are few flows and active cores. Returns
    /// `true` if one was found and written to `places`.
    fn exact(&self, queued: &[QueuedFlow], open: usize, outcome: PackingCost, places: &mut [Destination]) -> bool {
        let largest = self.frontier.largest();
        let free = |flow: &QueuedFlow| !flow.bound && flow.packets <= largest;
        let flows = queued.iter().enumerate().filter(|(_, flow)| free(flow));
        let mut items = [(0, 0); MAX_ITEMS];
        let mut count = 0;
        for (i, flow) in flows {
            if count == MAX_ITEMS {
                return false;
            }
            items[count] = (i, flow.packets);
            count += 1;
        }
        let items = &items[..count];

        let mut bins = [self.bins[0]; MAX_BINS];
        let mut count = 0;
        let room = |bin: &&Bin| self.frontier.admits(grown(bin.before, 1));
        for bin in self.bins[open.min(self.working)..self.working].iter().filter(room) {
            if count == MAX_BINS - MAX_ITEMS {
                return false;
            }
            bins[count] = *bin;
            count += 1;
        }
        let idle = &self.bins[self.working..self.count];
        let activated = match outcome.left {
            0 => outcome.activated - 1,
            _ => idle.len(),
        };
        for bin in idle.iter().take(activated.min(MAX_ITEMS)) {
            bins[count] = *bin;
            count += 1;
        }

        let before = bins.map(|bin| bin.before);
        let packets = items.iter().map(|item| item.1);
        let Some(found) = exact::assign(&self.frontier, packets, &before[..count]) else {
            return false;
        };
        places.fill(Destination::OWN_CORE);
        for ((i, _), bin) in items.iter().zip(found) {
            places[*i] = bins[bin as usize].place;
        }
        true
    }

    /// Recomputes each bin's load from `places`.
    fn recount(&mut self, queued: &[QueuedFlow], places: &[Destination]) {
        let mut of_place = [0; MAX_AUXILIARY_CORES + 1];
        for (i, bin) in self.bins[..self.count].iter_mut().enumerate() {
            bin.load = bin.before;
            of_place[bin.place.index()] = i;
        }
        let largest = self.frontier.largest();
        for (flow, place) in queued.iter().zip(places) {
            if !flow.bound && flow.packets <= largest {
                let bin = &mut self.bins[of_place[place.index()]];
                bin.load = grown(bin.load, flow.packets);
            }
        }
    }
}
