//! Where to cut a chain when one flow is too much for one core.

/// The most split points: a chain has fewer functions.
pub const MAX_SPLITS: usize = 64;

/// A cut of the chain: the first functions on one core, the last on another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SplitPoint {
    /// How many functions, counted from the chain's end, the second core has; at least 1.
    pub last_functions: usize,
    /// Packets of one flow that the first core processes in an epoch.
    pub first: u32,
    /// Packets of one flow that the second core processes in an epoch.
    pub last: u32,
}

impl SplitPoint {
    /// Packets that pass both cores in an epoch.
    pub fn capacity(&self) -> u32 {
        self.first.min(self.last)
    }
}

/// For each split point, what the two cores can process (NetBlaze, section 3.2: the predictor for
/// whales, profiled by packet counts and splitting strategies).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SplitProfile {
    /// By `last_functions`, rising.
    points: Vec<SplitPoint>,
}

impl SplitProfile {
    /// No split is known.
    pub const fn new() -> Self {
        SplitProfile { points: Vec::new() }
    }

    /// Adds a split point, or replaces the one of as many last functions. Returns whether it was
    /// taken: a point needs a function to move and packets on both sides, and there are at
    /// most [`MAX_SPLITS`].
    pub fn insert(&mut self, point: SplitPoint) -> bool {
        if point.last_functions == 0 || point.capacity() == 0 {
            return false;
        }
        let functions = |known: &SplitPoint| known.last_functions;
        match self.points.binary_search_by_key(&point.last_functions, functions) {
            Ok(found) => self.points[found] = point,
            Err(_) if self.points.len() == MAX_SPLITS => return false,
            Err(after) => self.points.insert(after, point),
        }
        true
    }

    /// The split that could process most, and of equals the one that moves fewest functions.
    pub fn best(&self) -> Option<SplitPoint> {
        let points = self.points.iter().rev();
        points.max_by_key(|point| point.capacity()).copied()
    }

    /// The split for a flow of `packets` packets: the [best](SplitProfile::best), if its two sides
    /// process as many in an epoch.
    pub fn choose(&self, packets: u32) -> Option<SplitPoint> {
        self.best().filter(|point| point.capacity() >= packets)
    }

    /// The only split that is ever [chosen](SplitProfile::choose), as a
    /// [bit map](crate::core::CoreMapper::split_points).
    pub fn chosen(&self) -> u64 {
        let last = self.best().map_or(0, |point| point.last_functions);
        1u64.checked_shl(last as u32).unwrap_or(0) & !1
    }

    /// The split points, by number of functions moved.
    pub fn points(&self) -> &[SplitPoint] {
        &self.points
    }
}
