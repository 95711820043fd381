//! Split points of a chain, for a flow that exceeds one core.

/// Maximum number of split points. A chain has fewer functions.
pub const MAX_SPLITS: usize = 64;

/// Cut of the chain, with the first functions on one core and the last on another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SplitPoint {
    /// Number of functions on the second core, counted from the chain's end. At least 1.
    pub last_functions: usize,
    /// Packets of one flow that the first core processes in an epoch.
    pub first: u32,
    /// Packets of one flow that the second core processes in an epoch.
    pub last: u32,
}

impl SplitPoint {
    /// Returns the packets that pass both cores in an epoch.
    pub fn capacity(&self) -> u32 {
        self.first.min(self.last)
    }
}

/// Capacity of the two cores for each split point (NetBlaze, section 3.2: the predictor for whales, profiled by packet
/// counts and splitting strategies).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SplitProfile {
    /// Sorted by `last_functions`, ascending.
    points: Vec<SplitPoint>,
}

impl SplitProfile {
    /// Creates a profile without split points.
    pub const fn new() -> Self {
        SplitProfile { points: Vec::new() }
    }

    /// Adds a split point, or replaces the one with the same number of last functions. Returns `true` if the point was
    /// accepted: it must move a function, have packets on both sides, and not exceed [`MAX_SPLITS`].
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

    /// Returns the split with the highest capacity. Among equal ones it moves the fewest functions.
    pub fn best(&self) -> Option<SplitPoint> {
        let points = self.points.iter().rev();
        points.max_by_key(|point| point.capacity()).copied()
    }

    /// Returns the [best](SplitProfile::best) split for a flow of `packets` packets, or `None` if its two sides cannot
    /// process them in an epoch.
    pub fn choose(&self, packets: u32) -> Option<SplitPoint> {
        self.best().filter(|point| point.capacity() >= packets)
    }

    /// Returns the only split that is ever [chosen](SplitProfile::choose), as a [bit
    /// map](crate::core::CoreMapper::split_points).
    pub fn chosen(&self) -> u64 {
        let last = self.best().map_or(0, |point| point.last_functions);
        1u64.checked_shl(last as u32).unwrap_or(0) & !1
    }

    /// Returns the split points, sorted by the number of functions moved.
    pub fn points(&self) -> &[SplitPoint] {
        &self.points
    }
}
