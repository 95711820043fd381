//! Functions of a chain in order, including those of branches.

use super::chain::{FIELDS, FUNCTIONS, KIND, PARTS, WHAT};
use super::item;
use crate::classifier::{ClassifierConfig, Target, functions_of_branches};
use crate::external::ExternalConfig;
use crate::ipsec::{Identity, IpsecConfig};
use crate::kind::{AnyConfig, Context, FunctionConfig};
use crate::library::ExecutionMode;
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use tailwater_api::document::Document;
use tailwater_api::error::{SpecError, quoted};
use tailwater_api::located::Located;
use tailwater_api::port_name::PortName;
use tailwater_chain::branches::{Branch, FunctionPosition, MAX_PATHS, PathTable, SEND, enclosing};

/// Maximum number of functions in a chain.
const MAX_FUNCTIONS: usize = 16;

/// Function of a chain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FunctionSpec {
    /// Name of the function in reports, unique in its chain.
    pub name: String,
    /// Configuration, which is of the function's kind.
    pub config: AnyConfig,
    /// Files other than the spec that its configuration was read from: rules, keys, a library.
    pub files: Vec<PathBuf>,
    /// Index in the chain's [list](super::ChainSpec::branches) of the innermost branch that contains it, if any.
    pub branch: Option<usize>,
}

impl FunctionSpec {
    /// Returns the configuration as `T`, if the function is of that kind.
    pub fn config_as<T: FunctionConfig>(&self) -> Option<&T> {
        self.config.get()
    }

    /// Reads one function, by its index in the [chain's list](super::ChainSpec::functions), of a spec that another
    /// process has read as a whole. Errors in and between other functions are not detected, and none of their files is
    /// read, so the function's branch is unknown. A library is loaded without a trial.
    ///
    /// # Errors
    /// If there is no such function, or if it is invalid: the first problem, with its position.
    pub fn read_at(path: &Path, place: usize) -> Result<FunctionSpec, SpecError> {
        let document = Document::read(path, WHAT)?;
        let (_, spec) = document.object(KIND, PARTS)?;
        let node = spec.fields(FIELDS)?.required("functions", FUNCTIONS)?;
        let mut items = Vec::new();
        with_branches(&node, &mut items)?;
        let item = items
            .get(place)
            .ok_or_else(|| node.error(format!("expected functions[{place}], found {}", items.len())))?;
        let base_dir = path.parent().unwrap_or(Path::new(""));
        let (_, function) = function(item, &Context::new(base_dir, ExecutionMode::InProcess))?;
        Ok(function)
    }
}

/// Flattens a list of functions: each is followed by those of its branches, as in the chain's list.
fn with_branches<'a>(node: &Located<'a>, items: &mut Vec<Located<'a>>) -> Result<(), SpecError> {
    for item in node.list("functions", MAX_FUNCTIONS)? {
        let branches = functions_of_branches(&item)?;
        if items.len() == MAX_FUNCTIONS {
            return Err(item.error(too_many()));
        }
        items.push(item);
        for branch in &branches {
            with_branches(branch, items)?;
        }
    }
    Ok(())
}

fn too_many() -> String {
    format!("expected at most {MAX_FUNCTIONS} functions in a chain, those of branches included, found more")
}

/// Reads a function. Also returns `true` if the spec names it.
fn function(item: &Located<'_>, context: &Context<'_>) -> Result<(bool, FunctionSpec), SpecError> {
    let (name, config) = item::parse(item, context)?;
    let named = name.is_some();
    let function = FunctionSpec {
        name: name.unwrap_or_else(|| config.default_name().to_string()),
        config,
        files: context.take_named(),
        branch: None,
    };
    Ok((named, function))
}

/// State while the functions of a chain are read.
struct Reader<'c> {
    context: &'c Context<'c>,
    functions: Vec<FunctionSpec>,
    /// Field path of each function.
    paths: Vec<String>,
    branches: Vec<Branch>,
    /// Keys of tunnel ends, with the indices of their functions.
    keys: HashMap<Vec<u8>, (usize, Identity)>,
}

/// Reads the functions of a chain, with its branches.
pub(super) fn functions(
    node: &Located<'_>,
    context: &Context<'_>,
) -> Result<(Vec<FunctionSpec>, Vec<Branch>), SpecError> {
    let mut reader = Reader {
        context,
        functions: Vec::new(),
        paths: Vec::new(),
        branches: Vec::new(),
        keys: HashMap::new(),
    };
    reader.list(node, None)?;
    let (functions, branches) = (reader.functions, reader.branches);
    if PathTable::new(&branches, &places(&functions)).is_none() {
        let message = format!(
            "expected at most {MAX_PATHS} paths through the branches of a chain, found more: each classifier \
             multiplies them"
        );
        return Err(node.error(message));
    }
    Ok((functions, branches))
}

/// Positions of the functions.
pub(crate) fn places(functions: &[FunctionSpec]) -> Vec<FunctionPosition<'_>> {
    let places = functions.iter();
    places
        .map(|function| (function.name.as_str(), function.branch))
        .collect()
}

impl Reader<'_> {
    /// Reads a list of functions, of a branch or of none. Returns `true` if packets leave at its end.
    fn list(&mut self, node: &Located<'_>, branch: Option<usize>) -> Result<bool, SpecError> {
        let mut reached = true;
        for item in node.list("functions", MAX_FUNCTIONS)? {
            if !reached {
                let message = "expected no unreachable function: all packets leave the chain before it";
                return Err(item.error(message));
            }
            reached = self.function(&item, branch)?;
        }
        Ok(reached)
    }

    /// Reads a function, and those of its branches. Returns `true` if packets continue behind it.
    fn function(&mut self, item: &Located<'_>, branch: Option<usize>) -> Result<bool, SpecError> {
        let (named, function) = function(item, self.context)?;
        let FunctionSpec {
            name, config, files, ..
        } = function;
        let (functions, paths) = (&self.functions, &self.paths);
        if let Some(other) = functions.iter().position(|function| function.name == name) {
            let hint = if named { "" } else { "; give one of them a name" };
            let message = format!(
                "expected a different name for each function, found \"{name}\" as in \
                 {}{hint}",
                paths[other]
            );
            return Err(item.error(message));
        }
        let translates = |config: &AnyConfig| config.translates_addresses();
        let nat = functions.iter().position(|function| translates(&function.config));
        if let Some(other) = nat.filter(|_| translates(&config)) {
            // Both directions run the functions in the same order, so with two translations the return path would undo
            // the wrong one first.
            let message = format!("expected at most one nat in a chain, found {} too", paths[other]);
            return Err(item.error(message));
        }
        let tracks = |config: &AnyConfig| config.tracks_connections();
        let tracking = functions.iter().position(|function| tracks(&function.config));
        let both = (nat, tracking, translates(&config), tracks(&config));
        if let (_, Some(other), true, _) | (Some(other), _, _, true) = both {
            // Behind a translation, the two directions of a connection have different addresses.
            let message = format!(
                "expected no nat in the chain of a firewall or ids, found {} too: run two chains, with the firewall \
                 or ids on the inner side",
                paths[other]
            );
            return Err(item.error(message));
        }
        let written = config.outputs();
        let other = functions.iter().enumerate().find_map(|(other, function)| {
            let outputs = function.config.outputs();
            let same = |(_, file): &&(_, PathBuf)| outputs.iter().any(|(_, other)| other == file);
            Some((&written.iter().find(same)?.1, other))
        });
        if let Some((file, other)) = other {
            let message = format!(
                "expected a separate file for each export, found {} as in {}",
                quoted(&file.display().to_string()),
                paths[other]
            );
            return Err(item.error(message));
        }
        if let Some(external) = config.get::<ExternalConfig>() {
            let mut names = external.ports();
            let taken = names.find_map(|name| Some((name, user_of(functions, name)?)));
            if let Some((name, user)) = taken {
                return Err(item.error(self::taken(name, user)));
            }
        }
        let tunnels = config.get::<IpsecConfig>();
        for end in tunnels.into_iter().flat_map(|ipsec| ipsec.rules.ends()) {
            let key = end.association.keying.secret().to_vec();
            let place = functions.len();
            if let Some((other, far)) = self.keys.insert(key, (place, end.identity()))
                && !end.is_far_end_of(far)
            {
                let message = format!(
                    "expected a unique key for each association, found that of {} in {}",
                    end.association.name, paths[other]
                );
                return Err(item.error(message));
            }
        }
        if functions.len() == MAX_FUNCTIONS {
            return Err(item.error(too_many()));
        }
        if let Some(message) = self.out_of_place(&config, branch) {
            return Err(item.error(message));
        }
        let classifier = config.get::<ClassifierConfig>().cloned();
        self.functions.push(FunctionSpec {
            name: name.clone(),
            config,
            files,
            branch,
        });
        let path = item.path();
        self.paths.push(path.strip_prefix("spec.").unwrap_or(&path).to_owned());
        let Some(classifier) = classifier else {
            return Ok(true);
        };
        let first = self.branches.len();
        let out = classifier.sends().then(|| (SEND.to_owned(), true));
        let branches = classifier.branches.iter();
        let branches = branches.map(|branch| (branch.name.clone(), branch.ends));
        self.branches
            .extend(branches.chain(out).map(|(branch_name, ends)| Branch {
                name: branch_name,
                classifier: name.clone(),
                within: branch,
                ends,
            }));
        let mut reached = classifier.ways_out().any(|target| target == Target::Next);
        for (place, node) in functions_of_branches(item)?.iter().enumerate() {
            let goes_on = self.list(node, Some(first + place))?;
            reached |= goes_on && !self.branches[first + place].ends;
        }
        Ok(reached)
    }

    /// Reason why a function is not allowed at its position among branches.
    fn out_of_place(&self, config: &AnyConfig, branch: Option<usize>) -> Option<&'static str> {
        let external = config.is::<ExternalConfig>();
        let tracks = config.tracks_connections();
        if external && branch.is_some() {
            return Some(
                "expected no external function in a branch: packets that return from it enter a separate chain at \
                 its start",
            );
        }
        if external && self.branches.iter().any(|branch| branch.ends) {
            return Some("expected no external function after branches that leave the chain: all packets must pass it");
        }
        if config.decides_lifetimes() && (branch.is_some() || self.branches.iter().any(|branch| branch.ends)) {
            return Some(
                "expected no firewall in a branch, or after branches that leave the chain: it sets the idle timeouts \
                 of all flows of the chain, and would expire those that bypass it; put it before the classifier",
            );
        }
        let directed = |branch: usize| {
            let name = &self.branches[branch].classifier;
            let classifier = self.functions.iter().find(|function| function.name == *name);
            let classifier = classifier.and_then(|function| function.config_as::<ClassifierConfig>());
            classifier.is_some_and(|classifier| !classifier.both)
        };
        let mut out = (0..self.branches.len()).filter(|&at| self.branches[at].ends);
        if tracks && (enclosing(&self.branches, branch).any(directed) || out.any(directed)) {
            return Some(
                "expected `directions: both` in the classifier before it: this function requires both directions of \
                 each connection",
            );
        }
        None
    }
}

/// Function that uses this port, or the device or interface behind it.
pub(super) fn user_of<'f>(functions: &'f [FunctionSpec], port: &PortName) -> Option<&'f str> {
    let uses = |function: &&FunctionSpec| {
        let external = function.config_as::<ExternalConfig>();
        external.is_some_and(|external| external.ports().any(|other| other.conflicts(port)))
    };
    let user = functions.iter().find(uses);
    user.map(|function| function.name.as_str())
}

pub(super) fn taken(port: &PortName, user: &str) -> String {
    format!(
        "expected a separate device and interface for each port, found \"{port}\", which function {user} uses; \
         number devices of one driver differently"
    )
}
