//! Chain as its document gives it, with the configurations of its functions as written.

use super::branches::{CLASSIFIER, branches, branches_of};
use super::item::FunctionItem;
use super::on_failure::OnFailure;
use super::sequence::{Exits, MAX_FUNCTIONS, Visitor, duplicate_name, misplaced_external, short_path, too_many, visit};
use super::settings::{ChainNode, ChainSettings, FunctionFacts};
use crate::document::Document;
use crate::error::SpecError;
use crate::external::{EXTERNAL, ExternalConfig};
use crate::located::Located;
use crate::port_name::PortName;
use crate::ports::port_taken;
use std::path::Path;

/// Chain whose structure and settings are valid. Kinds and configurations of its functions are not checked, except of
/// `external`, which cuts the chain, and the branches of `classifier`. Nor are names that a kind determines.
///
/// ```
/// use std::path::Path;
/// use tailwater_api::chain::{ChainDocument, DESCRIPTION};
/// use tailwater_api::document::Document;
///
/// let text = "
/// apiVersion: tailwater.dev/v1alpha1
/// kind: Chain
/// metadata: {name: edge}
/// spec:
///   slo: {latency: 200us}
///   functions:
///   - name: sieve
///     futureFilter: {depth: 3}
/// ";
/// let document = Document::parse(text, "edge.yaml", DESCRIPTION).unwrap();
/// let chain = ChainDocument::new(&document, Path::new(".")).unwrap();
/// assert_eq!(chain.settings.slo.latency.0, 200_000);
/// assert_eq!(chain.functions[0].kind, "futureFilter");
/// assert_eq!(chain.functions[0].config.json().unwrap(), r#"{"depth":3}"#);
/// ```
pub struct ChainDocument<'d> {
    /// Everything but the functions.
    pub settings: ChainSettings,
    /// Functions in the order in which packets pass them: 1 to 16. A classifier is followed by the functions of its
    /// branches, and then by the functions after it.
    pub functions: Vec<ChainFunction<'d>>,
    /// Branches of all classifiers, in order; empty in a linear chain.
    pub branches: Vec<ChainBranch>,
}

/// Function of a chain, as its document gives it.
#[derive(Clone)]
pub struct ChainFunction<'d> {
    /// Name, if the document gives one; unique in the chain. The kind determines the name of the others.
    pub name: Option<String>,
    /// Name of its kind, such as `loadBalancer`. Any name is accepted.
    pub kind: &'d str,
    /// Configuration of that kind, not read yet.
    pub config: Located<'d>,
    /// Index in the chain's [list](ChainDocument::branches) of the innermost branch that contains it, if any.
    pub branch: Option<usize>,
    /// Configuration of an external function: its ports, and the treatment of its packets.
    pub external: Option<ExternalConfig>,
    /// Treatment of packets while the function, isolated, has no process.
    pub on_failure: OnFailure,
}

impl ChainFunction<'_> {
    /// Name in errors: that of the kind, if the document gives none.
    fn label(&self) -> &str {
        self.name.as_deref().unwrap_or(self.kind)
    }
}

/// Branch of a chain, as its document gives it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChainBranch {
    /// Name, unique within its classifier.
    pub name: String,
    /// Index in the chain's [list](ChainDocument::functions) of its classifier.
    pub classifier: usize,
    /// Index of the branch that contains the classifier; `None` if it is in none.
    pub within: Option<usize>,
    /// `true` if packets leave the chain at the branch's end. Otherwise they continue with the function after the
    /// classifier.
    pub ends: bool,
}

impl<'d> ChainDocument<'d> {
    /// Reads the chain of a document. Files that it names are relative to `base_dir`; none is read.
    ///
    /// # Errors
    /// If the structure or a setting is invalid: the first problem, with its position.
    pub fn new(document: &'d Document, base_dir: &Path) -> Result<Self, SpecError> {
        let node = ChainNode::new(document)?;
        let mut sequence = Sequence::default();
        visit(&node.functions()?, &mut sequence)?;
        let settings = node.settings(base_dir, &sequence)?;
        Ok(ChainDocument {
            settings,
            functions: sequence.functions,
            branches: sequence.branches,
        })
    }

    /// Iterates over the external functions, in order.
    pub fn externals(&self) -> impl Iterator<Item = &ExternalConfig> {
        self.functions.iter().filter_map(|function| function.external.as_ref())
    }
}

/// Functions and branches read so far.
#[derive(Default)]
struct Sequence<'d> {
    functions: Vec<ChainFunction<'d>>,
    /// Path of each function.
    paths: Vec<String>,
    branches: Vec<ChainBranch>,
}

impl<'d> Visitor<'d> for Sequence<'d> {
    fn function(&mut self, item: &Located<'d>, branch: Option<usize>) -> Result<Exits, SpecError> {
        let FunctionItem {
            name,
            kind,
            config,
            on_failure,
        } = FunctionItem::parse(item, &[], Some)?;
        let external = match kind {
            EXTERNAL => Some(ExternalConfig::parse(&config)?),
            _ => None,
        };
        if let Some(message) = self.problem(name.as_deref(), external.as_ref(), branch) {
            return Err(item.error(message));
        }
        let exits = match kind {
            CLASSIFIER => self.add_branches(&config, branch)?,
            _ => Exits::linear(),
        };
        self.functions.push(ChainFunction {
            name,
            kind,
            config,
            branch,
            external,
            on_failure: on_failure.unwrap_or_default(),
        });
        self.paths.push(short_path(item));
        Ok(exits)
    }
}

impl Sequence<'_> {
    /// Returns the reason why a function cannot follow those read so far, if there is one.
    fn problem(&self, name: Option<&str>, external: Option<&ExternalConfig>, branch: Option<usize>) -> Option<String> {
        let known = self.functions.iter().zip(&self.paths);
        let mut named = known.filter(|(function, _)| name.is_some() && function.name.as_deref() == name);
        if let (Some(name), Some((_, other))) = (name, named.next()) {
            return Some(duplicate_name(name, other, true));
        }
        let mut ports = external.into_iter().flat_map(ExternalConfig::ports);
        if let Some(message) = ports.find_map(|port| Some(port_taken(port, self.port_user(port)?))) {
            return Some(message);
        }
        if self.functions.len() == MAX_FUNCTIONS {
            return Some(too_many());
        }
        external?;
        let after_exit = self.branches.iter().any(|branch| branch.ends);
        misplaced_external(branch.is_some(), after_exit).map(str::to_owned)
    }

    /// Adds the branches of the next function, a classifier in `within`.
    fn add_branches(&mut self, config: &Located<'_>, within: Option<usize>) -> Result<Exits, SpecError> {
        let first_branch = self.branches.len();
        let own = branches_of(config)?.map(|node| branches(&node)).transpose()?;
        let own = own.unwrap_or_default();
        let ends = own.iter().map(|branch| branch.ends).collect();
        let classifier = self.functions.len();
        self.branches.extend(own.into_iter().map(|branch| ChainBranch {
            name: branch.name,
            classifier,
            within,
            ends: branch.ends,
        }));
        // Rules decide whether packets also continue without a branch, and their syntax is the function's.
        Ok(Exits {
            next: true,
            first_branch,
            ends,
        })
    }
}

impl FunctionFacts for Sequence<'_> {
    fn port_user(&self, port: &PortName) -> Option<&str> {
        let uses = |function: &&ChainFunction<'_>| {
            let mut ports = function.external.iter().flat_map(ExternalConfig::ports);
            ports.any(|other| other.conflicts(port))
        };
        self.functions.iter().find(uses).map(ChainFunction::label)
    }

    /// Returns `true`, too, if a function has no name but its kind's, which only its code knows.
    fn has_function(&self, name: &str) -> bool {
        let mut names = self.functions.iter().map(|function| function.name.as_deref());
        names.any(|own| own.is_none_or(|own| own == name))
    }

    /// Returns `false`: only the code of a function knows.
    fn tracks_connections(&self) -> bool {
        false
    }

    fn has_branches(&self) -> bool {
        self.functions.iter().any(|function| function.kind == CLASSIFIER)
    }
}
