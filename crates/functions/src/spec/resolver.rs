//! Resolution of a chain's functions by their kinds, and checks between functions.

use super::function::{FunctionSpec, places, resolve, user_of};
use crate::classifier::{ClassifierConfig, Target};
use crate::external::ExternalConfig;
use crate::ipsec::{Identity, IpsecConfig};
use crate::kind::{AnyConfig, Context};
use std::collections::HashMap;
use std::path::PathBuf;
use tailwater_api::chain::{
    Exits, FunctionFacts, MAX_FUNCTIONS, SEND, Visitor, duplicate_name, misplaced_external, short_path, too_many,
};
use tailwater_api::error::{SpecError, quoted};
use tailwater_api::located::Located;
use tailwater_api::port_name::PortName;
use tailwater_api::ports::port_taken;
use tailwater_chain::branches::{Branch, MAX_PATHS, PathTable, enclosing};

/// Functions and branches resolved so far.
pub(super) struct Resolver<'c> {
    context: &'c Context<'c>,
    functions: Vec<FunctionSpec>,
    /// Field path of each function.
    paths: Vec<String>,
    branches: Vec<Branch>,
    /// Keys of tunnel ends, with the indices of their functions.
    keys: HashMap<Vec<u8>, (usize, Identity)>,
}

impl<'c> Resolver<'c> {
    pub(super) fn new(context: &'c Context<'c>) -> Resolver<'c> {
        Resolver {
            context,
            functions: Vec::new(),
            paths: Vec::new(),
            branches: Vec::new(),
            keys: HashMap::new(),
        }
    }

    /// Returns all functions and branches.
    pub(super) fn finish(self) -> (Vec<FunctionSpec>, Vec<Branch>) {
        (self.functions, self.branches)
    }

    /// Checks the number of paths through the branches. `node` is the chain's list.
    pub(super) fn check_paths(&self, node: &Located<'_>) -> Result<(), SpecError> {
        match PathTable::new(&self.branches, &places(&self.functions)) {
            Some(_) => Ok(()),
            None => Err(node.error(format!(
                "expected at most {MAX_PATHS} paths through the branches of a chain, found more: each classifier \
                 multiplies them"
            ))),
        }
    }

    /// Reason why a function with this configuration cannot follow those resolved so far, if there is one.
    fn problem(&mut self, function: &FunctionSpec, named: bool, branch: Option<usize>) -> Option<String> {
        let config = &function.config;
        self.same_name(&function.name, named)
            .or_else(|| self.clash_of_addresses(config))
            .or_else(|| self.same_output(config))
            .or_else(|| self.same_port(config))
            .or_else(|| self.same_key(config))
            .or_else(|| (self.functions.len() == MAX_FUNCTIONS).then(too_many))
            .or_else(|| self.out_of_place(config, branch).map(str::to_owned))
    }

    fn same_name(&self, name: &str, named: bool) -> Option<String> {
        let other = self.functions.iter().position(|function| function.name == name)?;
        Some(duplicate_name(name, &self.paths[other], named))
    }

    /// Reason against a second translation of addresses, or one next to tracked connections.
    fn clash_of_addresses(&self, config: &AnyConfig) -> Option<String> {
        let first = |has: fn(&AnyConfig) -> bool| self.functions.iter().position(|function| has(&function.config));
        let translates = |config: &AnyConfig| config.translates_addresses();
        let tracks = |config: &AnyConfig| config.tracks_connections();
        let (nat, tracking) = (first(translates), first(tracks));
        if let Some(other) = nat.filter(|_| translates(config)) {
            // Both directions run the functions in the same order, so with two translations the return path would undo
            // the wrong one first.
            return Some(format!(
                "expected at most one nat in a chain, found {} too",
                self.paths[other]
            ));
        }
        let tracking = tracking.filter(|_| translates(config));
        let other = tracking.or(nat.filter(|_| tracks(config)))?;
        // Behind a translation, the two directions of a connection have different addresses.
        Some(format!(
            "expected no nat in the chain of a firewall or ids, found {} too: run two chains, with the firewall or \
             ids on the inner side",
            self.paths[other]
        ))
    }

    /// Reason against a second function that writes to a file.
    fn same_output(&self, config: &AnyConfig) -> Option<String> {
        let written = config.outputs();
        let (file, other) = self.functions.iter().enumerate().find_map(|(other, function)| {
            let outputs = function.config.outputs();
            let same = |(_, file): &&(_, PathBuf)| outputs.iter().any(|(_, other)| other == file);
            Some((&written.iter().find(same)?.1, other))
        })?;
        Some(format!(
            "expected a separate file for each export, found {} as in {}",
            quoted(&file.display().to_string()),
            self.paths[other]
        ))
    }

    /// Reason against a second external function at a port.
    fn same_port(&self, config: &AnyConfig) -> Option<String> {
        let mut ports = config.get::<ExternalConfig>()?.ports();
        ports.find_map(|port| Some(port_taken(port, self.port_user(port)?)))
    }

    /// Reason against a second use of a tunnel's key. Records the keys.
    fn same_key(&mut self, config: &AnyConfig) -> Option<String> {
        for end in config.get::<IpsecConfig>()?.rules.ends() {
            let key = end.association.keying.secret().to_vec();
            let place = self.functions.len();
            if let Some((other, far)) = self.keys.insert(key, (place, end.identity()))
                && !end.is_far_end_of(far)
                && let Some(other) = self.paths.get(other)
            {
                return Some(format!(
                    "expected a unique key for each association, found that of {} in {other}",
                    end.association.name
                ));
            }
        }
        None
    }

    /// Reason why a function is not allowed at its position among branches.
    fn out_of_place(&self, config: &AnyConfig, branch: Option<usize>) -> Option<&'static str> {
        let after_exit = self.branches.iter().any(|branch| branch.ends);
        if config.is::<ExternalConfig>()
            && let Some(message) = misplaced_external(branch.is_some(), after_exit)
        {
            return Some(message);
        }
        if config.decides_lifetimes() && (branch.is_some() || after_exit) {
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
        if config.tracks_connections() && (enclosing(&self.branches, branch).any(directed) || out.any(directed)) {
            return Some(
                "expected `directions: both` in the classifier before it: this function requires both directions of \
                 each connection",
            );
        }
        None
    }

    /// Adds the branches of a classifier, which `within` contains.
    fn add_branches(&mut self, name: &str, classifier: &ClassifierConfig, within: Option<usize>) -> Exits {
        let first_branch = self.branches.len();
        let branches = classifier.branches.iter();
        let branches = branches.map(|branch| (branch.name.clone(), branch.ends));
        let out = classifier.sends().then(|| (SEND.to_owned(), true));
        self.branches
            .extend(branches.chain(out).map(|(branch_name, ends)| Branch {
                name: branch_name,
                classifier: name.to_owned(),
                within,
                ends,
            }));
        Exits {
            next: classifier.ways_out().any(|target| target == Target::Next),
            first_branch,
            ends: classifier.branches.iter().map(|branch| branch.ends).collect(),
        }
    }
}

impl<'d> Visitor<'d> for Resolver<'_> {
    fn function(&mut self, item: &Located<'d>, branch: Option<usize>) -> Result<Exits, SpecError> {
        let (named, function) = resolve(item, self.context)?;
        if let Some(message) = self.problem(&function, named, branch) {
            return Err(item.error(message));
        }
        let exits = match function.config_as::<ClassifierConfig>() {
            Some(classifier) => self.add_branches(&function.name, classifier, branch),
            None => Exits::linear(),
        };
        self.functions.push(FunctionSpec { branch, ..function });
        self.paths.push(short_path(item));
        Ok(exits)
    }
}

impl FunctionFacts for Resolver<'_> {
    fn port_user(&self, port: &PortName) -> Option<&str> {
        user_of(&self.functions, port)
    }

    fn has_function(&self, name: &str) -> bool {
        self.functions.iter().any(|function| function.name == name)
    }

    fn tracks_connections(&self) -> bool {
        let mut functions = self.functions.iter();
        functions.any(|function| function.config.tracks_connections())
    }

    fn has_branches(&self) -> bool {
        !self.branches.is_empty()
    }
}
