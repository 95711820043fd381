//! Branches: which functions of a chain a packet passes.
//!
//! A chain's functions stand in one list in which every branch's functions follow its classifier, and what is behind
//! the classifier follows its branches. So a packet goes through the list from front to back, whatever branches it
//! takes, and leaves out the functions that are not on its way: there are no cycles.

/// A branch of a chain: where a [classifier](crate::classifier::Classifier) sends packets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Branch {
    /// Its name, unique with its classifier; [`SEND`] for packets that leave the chain at once.
    pub name: String,
    /// The name of the classifier's function.
    pub classifier: String,
    /// The branch that the classifier is in, as a place in the chain's list; `None` if in none.
    pub within: Option<usize>,
    /// Whether its packets leave the chain at its end. Otherwise they go on with the function behind the
    /// classifier.
    pub ends: bool,
}

/// What rules call the way out of the chain.
pub const SEND: &str = "send";
/// What rules call the function behind the classifier.
pub const NEXT: &str = "next";

/// The most branches of a chain: each has a function of its own, or is a classifier's only way out.
pub const MAX_BRANCHES: usize = 32;

/// Branches of a chain, a bit each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Path(u32);

impl Path {
    /// None.
    pub const START: Path = Path(0);

    /// Of the branch at this place of the chain's list.
    ///
    /// # Panics
    /// If the place is beyond [`MAX_BRANCHES`].
    pub const fn of(branch: usize) -> Path {
        assert!(branch < MAX_BRANCHES, "no branch has that place");
        Path(1 << branch)
    }

    /// Both.
    #[must_use]
    pub const fn and(self, other: Path) -> Path {
        Path(self.0 | other.0)
    }

    /// Whether there is a branch in both.
    pub const fn meets(self, other: Path) -> bool {
        self.0 & other.0 != 0
    }

    /// What of it is in `other`.
    #[must_use]
    pub const fn within(self, other: Path) -> Path {
        Path(self.0 & other.0)
    }
}

impl FromIterator<Path> for Path {
    fn from_iter<I: IntoIterator<Item = Path>>(paths: I) -> Path {
        paths.into_iter().fold(Path::START, Path::and)
    }
}

/// The number of packets' way through a chain before any classifier.
pub const START: u8 = 0;

/// The most ways through a chain: a packet has a byte for its own.
pub const MAX_WAYS: usize = 256;

/// For each way through a chain something that depends on it.
pub type ByWay<T> = Box<[T; MAX_WAYS]>;

/// Every way that packets may have come through a chain so far: the branches of classifiers that they have passed.
/// Each has a number, which the packet bears; [`START`] is the first.
#[derive(Clone, Debug)]
pub struct Ways(Vec<Path>);

impl Ways {
    /// Those of a chain without branches.
    pub fn of_line() -> Ways {
        Ways(vec![Path::START])
    }

    /// All ways through these functions; `None` if they are more than [`MAX_WAYS`].
    pub fn new(branches: &[Branch], functions: &[Place<'_>]) -> Option<Ways> {
        let Ways(mut ways) = Ways::of_line();
        for ((name, _), route) in functions.iter().zip(routes(branches, functions)) {
            let known = ways.len();
            for (at, _) in of_classifier(branches, name) {
                let further = ways[..known].iter().filter(|path| route.passes(**path));
                let further: Vec<Path> = further.map(|path| path.and(Path::of(at))).collect();
                ways.extend(further);
                if ways.len() > MAX_WAYS {
                    return None;
                }
            }
        }
        Some(Ways(ways))
    }

    /// The numbers of all ways, with the branches taken.
    pub fn iter(&self) -> impl Iterator<Item = (u8, Path)> {
        let ways = self.0.iter().enumerate();
        ways.map(|(way, path)| (way as u8, *path))
    }

    /// For each way, what `of` says of the branches taken.
    pub fn each<T: Copy>(&self, none: T, of: impl Fn(Path) -> T) -> ByWay<T> {
        let mut by_way = Box::new([none; MAX_WAYS]);
        for (way, path) in self.iter() {
            by_way[usize::from(way)] = of(path);
        }
        by_way
    }

    /// The way of packets that have taken these branches.
    pub fn number(&self, path: Path) -> Option<u8> {
        let mut ways = self.iter();
        ways.find(|(_, known)| *known == path).map(|(way, _)| way)
    }
}

/// The branches of a classifier, with their places.
pub fn of_classifier<'b>(branches: &'b [Branch], name: &str) -> impl Iterator<Item = (usize, &'b Branch)> {
    let branches = branches.iter().enumerate();
    branches.filter(move |(_, branch)| branch.classifier == name)
}

/// Which packets pass a function.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Route {
    /// The branch that it is in, if it is in one, and those around that.
    pub within: Path,
    /// The innermost of them: packets in it are in all.
    innermost: Path,
    /// Branches in front at whose end packets leave the chain.
    pub gone: Path,
}

impl Route {
    /// Whether packets that have come this way pass the function.
    #[inline]
    pub const fn passes(self, path: Path) -> bool {
        path.0 & (self.innermost.0 | self.gone.0) == self.innermost.0
    }
}

/// The branch, if it is one, and those around it, from the inside out.
pub fn around(branches: &[Branch], branch: Option<usize>) -> impl Iterator<Item = usize> + '_ {
    std::iter::successors(branch, |at| branches[*at].within)
}

/// A function's place: its name, and the innermost branch that it is in.
pub type Place<'a> = (&'a str, Option<usize>);

/// The routes of a chain's functions, or of some that follow each other in it.
pub fn routes(branches: &[Branch], functions: &[Place<'_>]) -> Vec<Route> {
    let mut in_front = Path::START;
    let route = |(name, branch): &Place<'_>| {
        let within: Path = around(branches, *branch).map(Path::of).collect();
        let route = Route {
            within,
            innermost: branch.map_or(Path::START, Path::of),
            gone: Path(in_front.0 & !within.0),
        };
        let ends = of_classifier(branches, name).filter(|(_, branch)| branch.ends);
        in_front = ends.map(|(at, _)| Path::of(at)).chain([in_front]).collect();
        route
    };
    functions.iter().map(route).collect()
}

/// Whether a packet may pass the function at place `first`, and then that at `second`.
pub fn follow(branches: &[Branch], functions: &[Place<'_>], [first, second]: [usize; 2]) -> bool {
    let routes = routes(branches, functions);
    let [before, behind] = [routes[first], routes[second]];
    let siblings = around(branches, functions[first].1).any(|one| {
        around(branches, functions[second].1)
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

    const FUNCTIONS: [Place<'_>; 8] = [
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
            let path = taken.iter().copied().map(Path::of).collect();
            let found: String = routes
                .iter()
                .zip(FUNCTIONS)
                .filter(|(route, _)| route.passes(path))
                .map(|(_, (name, _))| name)
                .collect();
            assert_eq!(found, passed);
        }
        // What has left passes nothing behind where it left.
        let left = Path::of(0).and(Path::of(3));
        assert!(routes[3..].iter().all(|route| !route.passes(left)));
        assert!(routes[..3].iter().all(|route| route.passes(left)));
    }

    #[test]
    fn ways_are_told_apart_by_branches_taken() {
        let ways = Ways::new(&branches(), &FUNCTIONS).unwrap();
        let (a, b) = (Path::of(0), Path::of(1));
        let taken: Vec<Path> = ways.iter().map(|(_, path)| path).collect();
        let [x, left] = [2, 3].map(|at| a.and(Path::of(at)));
        assert_eq!(taken, [Path::START, a, b, x, left]);
        assert_eq!(ways.number(x), Some(3));
        assert_eq!(ways.number(Path::of(3)), None, "d is in a");
        // Of nine classifiers in line, with a branch each, there are 512 ways.
        let branch = |i: usize| Branch {
            name: "a".to_owned(),
            classifier: NAMES[i].to_owned(),
            within: None,
            ends: false,
        };
        const NAMES: [&str; 9] = ["1", "2", "3", "4", "5", "6", "7", "8", "9"];
        let functions: Vec<_> = NAMES.iter().map(|name| (*name, None)).collect();
        let branches: Vec<_> = (0..9).map(branch).collect();
        let eight = Ways::new(&branches[..8], &functions).unwrap();
        assert_eq!(eight.iter().count(), MAX_WAYS);
        assert!(Ways::new(&branches, &functions).is_none());
    }

    #[test]
    fn functions_follow_each_other_on_some_path() {
        let follow = |first, second| follow(&branches(), &FUNCTIONS, [first, second]);
        assert!(follow(0, 1) && follow(1, 3) && follow(3, 4) && follow(4, 6) && follow(0, 5));
        assert!(!follow(1, 5), "other branches of one classifier");
        assert!(!follow(3, 5), "inside them, too");
        assert!(!follow(5, 6), "what leaves does not go on");
        assert!(!follow(4, 3), "there are no ways back");
    }
}
