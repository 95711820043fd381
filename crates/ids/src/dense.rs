//! Aho-Corasick automaton (Aho and Corasick, "Efficient string matching", 1975) as a dense table of states and byte
//! classes. Each byte costs two loads; case-insensitive matching costs nothing.

/// Flag of a state in the table: patterns end here.
const ENDS: u32 = 1 << 31;

/// Dense automaton.
#[derive(Debug)]
pub(crate) struct Dense {
    /// Class of each byte. Bytes in no pattern share one class, as do both cases of a letter.
    classes: Box<[u8; 256]>,
    /// Offset of the next state's row for each state and class, and [`ENDS`]. Row lengths are a power of two.
    next: Vec<u32>,
    /// Per state, the end in `patterns` of the patterns it completes; they start at the previous state's end.
    ends: Vec<u32>,
    patterns: Vec<u32>,
    /// Binary logarithm of the row length.
    shift: u32,
}

impl Dense {
    /// Start state.
    pub(crate) const START: u32 = 0;

    /// Builds the automaton for patterns in lower case, some ten thousand bytes in total: table offsets have 31 bits.
    pub(crate) fn new(patterns: &[Vec<u8>]) -> Dense {
        let mut classes = Box::new([0; 256]);
        // Class 0 holds the bytes of no pattern. Patterns have no capital letters, so the count fits in a byte.
        let mut count: u8 = 1;
        for byte in patterns.iter().flatten() {
            let class = &mut classes[usize::from(*byte)];
            if *class == 0 {
                *class = count;
                count += 1;
            }
            let class = *class;
            classes[usize::from(byte.to_ascii_uppercase())] = class;
        }
        let shift = usize::from(count).next_power_of_two().trailing_zeros();
        let row = |state: u32| (state as usize) << shift;
        // First the trie: 0 marks a missing branch, since no branch leads to the root.
        let mut next = vec![0u32; row(1)];
        let mut found: Vec<Vec<u32>> = vec![Vec::new()];
        for (i, pattern) in (0..).zip(patterns) {
            let mut state = 0;
            for byte in pattern {
                let at = row(state) + usize::from(classes[usize::from(*byte)]);
                if next[at] == 0 {
                    next[at] = found.len() as u32;
                    found.push(Vec::new());
                    next.resize(row(found.len() as u32), 0);
                }
                state = next[at];
            }
            found[state as usize].push(i);
        }
        // Then, breadth first, the missing branches: those of the longest proper suffix that is a state.
        let mut fallback = vec![0u32; found.len()];
        let mut order = vec![0u32];
        let mut at = 0;
        while at < order.len() {
            let state = order[at];
            at += 1;
            for class in 0..usize::from(count) {
                let other = match state {
                    0 => 0,
                    _ => next[row(fallback[state as usize]) + class],
                };
                let branch = &mut next[row(state) + class];
                if *branch == 0 {
                    *branch = other;
                    continue;
                }
                let branch = *branch as usize;
                fallback[branch] = other;
                let more = found[other as usize].clone();
                found[branch].extend(more);
                order.push(branch as u32);
            }
        }
        for state in &mut next {
            let ends = !found[*state as usize].is_empty();
            *state = *state << shift | if ends { ENDS } else { 0 };
        }
        let ends = found.iter().scan(0, |end, patterns| {
            *end += patterns.len() as u32;
            Some(*end)
        });
        Dense {
            classes,
            next,
            ends: ends.collect(),
            patterns: found.concat(),
            shift,
        }
    }

    /// Runs over bytes from a state on, and calls `each` for every pattern that ends. Returns the final state.
    #[inline]
    pub(crate) fn run(&self, mut state: u32, bytes: &[u8], mut each: impl FnMut(u32)) -> u32 {
        let (classes, next) = (&*self.classes, &self.next[..]);
        for byte in bytes {
            state = next[state as usize + usize::from(classes[usize::from(*byte)])];
            if state & ENDS != 0 {
                state &= !ENDS;
                self.ending(state).iter().for_each(|pattern| each(*pattern));
            }
        }
        state
    }

    /// Returns the patterns that end in a state.
    #[inline]
    fn ending(&self, state: u32) -> &[u32] {
        let number = (state >> self.shift) as usize;
        let from = number.checked_sub(1).map_or(0, |before| self.ends[before]);
        &self.patterns[from as usize..self.ends[number] as usize]
    }

    /// Returns the bytes of memory used.
    pub(crate) fn memory_bytes(&self) -> usize {
        256 + 4 * (self.next.len() + self.ends.len() + self.patterns.len())
    }
}
