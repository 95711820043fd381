//! Branches: subsets of a chain's functions that a classifier selects for a packet.
//!
//! A chain's functions form one list. A classifier is followed by the functions of its branches, and these by the
//! functions after the classifier. A packet passes the list from front to back on any branch and skips the functions
//! that are not on its path, so there are no cycles.

pub use tailwater_api::chain::{MAX_BRANCHES, SEND};

/// Branch of a chain, to which a classifier sends packets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Branch {
    /// Name, unique within its classifier; [`SEND`] for packets that leave the chain at once.
    pub name: String,
    /// Name of the classifier's function.
    pub classifier: String,
    /// Index in the chain's list of the branch that contains the classifier; `None` if it is in none.
    pub within: Option<usize>,
    /// `true` if packets leave the chain at the branch's end. Otherwise they continue with the function after the
    /// classifier.
    pub ends: bool,
}

/// Set of a chain's branches, one bit each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct BranchSet(u32);

const _: () = assert!(MAX_BRANCHES <= u32::BITS as usize);

impl BranchSet {
    /// Empty set.
    pub const START: BranchSet = BranchSet(0);

    /// Set that holds only the branch at this index of the chain's list.
    ///
    /// # Panics
    /// If the index is not below [`MAX_BRANCHES`].
    pub const fn with_branch(branch: usize) -> BranchSet {
        assert!(branch < MAX_BRANCHES, "no branch has that index");
        BranchSet(1 << branch)
    }

    /// Union of both sets.
    #[must_use]
    pub const fn and(self, other: BranchSet) -> BranchSet {
        BranchSet(self.0 | other.0)
    }

    /// Returns `true` if the sets have a branch in common.
    pub const fn meets(self, other: BranchSet) -> bool {
        self.0 & other.0 != 0
    }

    /// Intersection with `other`.
    #[must_use]
    pub const fn within(self, other: BranchSet) -> BranchSet {
        BranchSet(self.0 & other.0)
    }
}

impl FromIterator<BranchSet> for BranchSet {
    fn from_iter<I: IntoIterator<Item = BranchSet>>(paths: I) -> BranchSet {
        paths.into_iter().fold(BranchSet::START, BranchSet::and)
    }
}

/// Number of the path through a chain before any classifier.
pub const START: u8 = 0;

/// Maximum number of paths through a chain: a packet stores its path in one byte.
pub const MAX_PATHS: usize = 256;

/// One value for each path through a chain.
pub type ByPath<T> = Box<[T; MAX_PATHS]>;

/// All paths that packets can have taken through a chain: sets of the classifier branches they have passed. Each path
/// has a number, which the packet carries; [`START`] is the first.
#[derive(Clone, Debug)]
pub struct PathTable(Vec<BranchSet>);

impl PathTable {
    /// Paths of a chain without branches.
    pub fn without_branches() -> PathTable {
        PathTable(vec![BranchSet::START])
    }

    /// Returns all paths through these functions, or `None` if there are more than [`MAX_PATHS`].
    pub fn new(branches: &[Branch], functions: &[FunctionPosition<'_>]) -> Option<PathTable> {
        let PathTable(mut paths) = PathTable::without_branches();
        for ((name, _), route) in functions.iter().zip(routes(branches, functions)) {
            let known = paths.len();
            for (at, _) in of_classifier(branches, name) {
                let further = paths[..known].iter().filter(|path| route.passes(**path));
                let further: Vec<BranchSet> = further.map(|path| path.and(BranchSet::with_branch(at))).collect();
                paths.extend(further);
                if paths.len() > MAX_PATHS {
                    return None;
                }
            }
        }
        Some(PathTable(paths))
    }

    /// Iterates over the paths' numbers and branches.
    pub fn iter(&self) -> impl Iterator<Item = (u8, BranchSet)> {
        let paths = self.0.iter().enumerate();
        paths.map(|(number, path)| (number as u8, *path))
    }

    /// Computes `of` of each path's branches; unused numbers hold `none`.
    pub fn each<T: Copy>(&self, none: T, of: impl Fn(BranchSet) -> T) -> ByPath<T> {
        let mut by_path = Box::new([none; MAX_PATHS]);
        for (number, path) in self.iter() {
            by_path[usize::from(number)] = of(path);
        }
        by_path
    }

    /// Returns the number of the path with exactly these branches.
    pub fn number(&self, path: BranchSet) -> Option<u8> {
        let mut paths = self.iter();
        paths.find(|(_, known)| *known == path).map(|(number, _)| number)
    }
}

/// Iterates over the branches of a classifier and their indices.
pub fn of_classifier<'b>(branches: &'b [Branch], name: &str) -> impl Iterator<Item = (usize, &'b Branch)> {
    let branches = branches.iter().enumerate();
    branches.filter(move |(_, branch)| branch.classifier == name)
}

/// Condition under which packets pass a function.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Route {
    /// Branch that contains the function, if any, and all enclosing branches.
    pub within: BranchSet,
    /// Innermost branch of these; packets in it are in all of them.
    innermost: BranchSet,
    /// Preceding branches at whose end packets leave the chain.
    pub gone: BranchSet,
}

impl Route {
    /// Returns `true` if packets on this path pass the function.
    #[inline]
    pub const fn passes(self, path: BranchSet) -> bool {
        path.0 & (self.innermost.0 | self.gone.0) == self.innermost.0
    }
}

/// Iterates over `branch`, if any, and its enclosing branches, innermost first.
pub fn enclosing(branches: &[Branch], branch: Option<usize>) -> impl Iterator<Item = usize> + '_ {
    std::iter::successors(branch, |at| branches[*at].within)
}

/// Position of a function: its name and the innermost branch that contains it.
pub type FunctionPosition<'a> = (&'a str, Option<usize>);

/// Returns the routes of a chain's functions, or of a consecutive part of them.
pub fn routes(branches: &[Branch], functions: &[FunctionPosition<'_>]) -> Vec<Route> {
    let mut in_front = BranchSet::START;
    let route = |(name, branch): &FunctionPosition<'_>| {
        let within: BranchSet = enclosing(branches, *branch).map(BranchSet::with_branch).collect();
        let route = Route {
            within,
            innermost: branch.map_or(BranchSet::START, BranchSet::with_branch),
            gone: BranchSet(in_front.0 & !within.0),
        };
        let ends = of_classifier(branches, name).filter(|(_, branch)| branch.ends);
        in_front = ends
            .map(|(at, _)| BranchSet::with_branch(at))
            .chain([in_front])
            .collect();
        route
    };
    functions.iter().map(route).collect()
}

/// Returns `true` if a packet can pass the function at index `first` and then the one at `second`.
pub fn can_follow(branches: &[Branch], functions: &[FunctionPosition<'_>], [first, second]: [usize; 2]) -> bool {
    let routes = routes(branches, functions);
    let [before, behind] = [routes[first], routes[second]];
    let siblings = enclosing(branches, functions[first].1).any(|one| {
        enclosing(branches, functions[second].1)
            .any(|other| one != other && branches[one].classifier == branches[other].classifier)
    });
    first < second && !siblings && !behind.gone.meets(before.within)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `[c: {a: [f, d: {x: [g], send}, h], b (ends): [i]}, j]`
    fn branches() -> Vec<Branch> {
        let branch = |name: &str, classifier: &str, within, ends| Branch {
            name: name.to_owned(),
            classifier: classifier.to_owned(),
            within,
            ends,
        };
        vec![
            branch("a", "c", None, false),
            branch("b", "c", None, true),
            branch("x", "d", Some(0), false),
            branch(SEND, "d", Some(0), true),
        ]
    }

    const FUNCTIONS: [FunctionPosition<'_>; 8] = [
        ("c", None),
        ("f", Some(0)),
        ("d", Some(0)),
        ("g", Some(2)),
        ("h", Some(0)),
        ("i", Some(1)),
        ("j", None),
        ("k", None),
    ];

    #[test]
    fn a_path_passes_what_is_on_its_way() {
        let routes = routes(&branches(), &FUNCTIONS);
        for (taken, passed) in [(&[][..], "cjk"), (&[0], "cfdhjk"), (&[0, 2], "cfdghjk"), (&[1], "ci")] {
            let path = taken.iter().copied().map(BranchSet::with_branch).collect();
            let found: String = routes
                .iter()
                .zip(FUNCTIONS)
                .filter(|(route, _)| route.passes(path))
                .map(|(_, (name, _))| name)
                .collect();
            assert_eq!(found, passed);
        }
        // Packets that have left the chain pass no later function.
        let left = BranchSet::with_branch(0).and(BranchSet::with_branch(3));
        assert!(routes[3..].iter().all(|route| !route.passes(left)));
        assert!(routes[..3].iter().all(|route| route.passes(left)));
    }

    #[test]
    fn ways_are_told_apart_by_branches_taken() {
        let paths = PathTable::new(&branches(), &FUNCTIONS).unwrap();
        let (a, b) = (BranchSet::with_branch(0), BranchSet::with_branch(1));
        let taken: Vec<BranchSet> = paths.iter().map(|(_, path)| path).collect();
        let [x, left] = [2, 3].map(|at| a.and(BranchSet::with_branch(at)));
        assert_eq!(taken, [BranchSet::START, a, b, x, left]);
        assert_eq!(paths.number(x), Some(3));
        assert_eq!(paths.number(BranchSet::with_branch(3)), None, "d is in a");
        // Nine consecutive classifiers with one branch each have 512 paths.
        let branch = |i: usize| Branch {
            name: "a".to_owned(),
            classifier: NAMES[i].to_owned(),
            within: None,
            ends: false,
        };
        const NAMES: [&str; 9] = ["1", "2", "3", "4", "5", "6", "7", "8", "9"];
        let functions: Vec<_> = NAMES.iter().map(|name| (*name, None)).collect();
        let branches: Vec<_> = (0..9).map(branch).collect();
        let eight = PathTable::new(&branches[..8], &functions).unwrap();
        assert_eq!(eight.iter().count(), MAX_PATHS);
        assert!(PathTable::new(&branches, &functions).is_none());
    }

    #[test]
    fn functions_follow_each_other_on_some_path() {
        let follow = |first, second| can_follow(&branches(), &FUNCTIONS, [first, second]);
        assert!(follow(0, 1) && follow(1, 3) && follow(3, 4) && follow(4, 6) && follow(0, 5));
        assert!(!follow(1, 5), "other branches of one classifier");
        assert!(!follow(3, 5), "inside them, too");
        assert!(!follow(5, 6), "what leaves does not go on");
        assert!(!follow(4, 3), "there are no ways back");
    }
}
