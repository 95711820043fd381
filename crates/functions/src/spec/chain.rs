//! Chain spec: the document of a chain with the configurations of its functions.

use super::function::{FunctionSpec, user_of};
use super::resolver::Resolver;
use super::source::{Source, Text};
use crate::external::ExternalConfig;
use crate::kind::Context;
use crate::library::{CodeExaminer, ExecutionMode};
use std::ops::{Deref, DerefMut};
use std::path::Path;
use std::time::SystemTime;
use tailwater_api::chain::{ChainNode, ChainSettings, DESCRIPTION, visit};
use tailwater_api::document::Document;
use tailwater_api::error::SpecError;
use tailwater_api::files::{argument_name, read_argument};
use tailwater_api::port_name::PortName;
use tailwater_chain::branches::Branch;
use tailwater_net::toeplitz::RssHasher;

/// Chain of network functions with its objectives. Its [settings](ChainSettings) are accessed as its own fields.
#[derive(Clone, Debug, PartialEq)]
pub struct ChainSpec {
    /// Everything in the document but the functions.
    pub settings: ChainSettings,
    /// Functions in the order in which packets pass them: 1 to 16, with unique names. A classifier is followed by the
    /// functions of its branches, and then by the functions after it.
    pub functions: Vec<FunctionSpec>,
    /// Branches of all classifiers; empty in a linear chain.
    pub branches: Vec<Branch>,
    /// Source of the spec, for reloads.
    pub source: Source,
}

impl Deref for ChainSpec {
    type Target = ChainSettings;

    fn deref(&self) -> &ChainSettings {
        &self.settings
    }
}

impl DerefMut for ChainSpec {
    fn deref_mut(&mut self) -> &mut ChainSettings {
        &mut self.settings
    }
}

impl ChainSpec {
    /// Iterates over the external functions and their names, in order.
    pub fn externals(&self) -> impl Iterator<Item = (&str, &ExternalConfig)> {
        self.functions.iter().filter_map(|function| {
            let external = function.config.get()?;
            Some((function.name.as_str(), external))
        })
    }

    /// Returns the name of the first function whose state [belongs to a
    /// core](crate::kind::FunctionConfig::bound_to_core_reason), and the reason.
    pub fn bound_to_core(&self) -> Option<(&str, &'static str)> {
        let mut functions = self.functions.iter();
        functions.find_map(|function| Some((&*function.name, function.config.bound_to_core_reason()?)))
    }

    /// Splits the chain at its external functions: one chain for the functions in front of the first, and one for those
    /// after each. A part may have no function.
    pub fn parts(&self) -> Vec<ChainSpec> {
        let is_external = |function: &FunctionSpec| function.config.is::<ExternalConfig>();
        let parts = self.functions.split(is_external);
        let part = |functions: &[FunctionSpec]| ChainSpec {
            settings: self.settings.clone(),
            functions: functions.to_vec(),
            branches: self.branches.clone(),
            source: self.source.clone(),
        };
        parts.map(part).collect()
    }

    /// External function that uses this port, or the device or interface behind it.
    pub fn external_at(&self, port: &PortName) -> Option<&str> {
        user_of(&self.functions, port)
    }

    /// Warnings about dangerous settings of a valid spec.
    pub fn warnings(&self) -> impl Iterator<Item = &str> {
        let warnings = self.functions.iter().flat_map(|function| function.config.warnings());
        warnings.map(String::as_str)
    }

    /// RSS hash that the chain's ports must use. It is symmetric if a function tracks connections.
    pub fn rss(&self) -> RssHasher {
        let mut functions = self.functions.iter();
        match functions.any(|function| function.config.tracks_connections()) {
            true => RssHasher::symmetric(),
            false => RssHasher::default(),
        }
    }
}

/// Reading of specs.
impl ChainSpec {
    /// Reads a spec, on standard input if the path is `-`, and the files it names, which are relative to its folder.
    ///
    /// # Errors
    /// If the spec is invalid: the first problem, with its position.
    pub fn read(path: &Path) -> Result<Self, SpecError> {
        let base_dir = path.parent().unwrap_or(Path::new(""));
        let name = argument_name(path);
        let source = Source::new(Text::File(path), base_dir, SystemTime::now());
        let (text, is_stream) = read_argument(path)?;
        // A stream can be read only once.
        match is_stream {
            false => ChainSpec::from_text(&text, &name, source),
            true => ChainSpec::parse(&text, &name, base_dir),
        }
    }

    /// Same as [`read`](ChainSpec::read), for a chain whose functions run in processes of their own. No third-party
    /// code is loaded here; `apart` examines it.
    ///
    /// # Errors
    /// Same as [`read`](ChainSpec::read).
    pub fn read_apart(path: &Path, apart: &dyn CodeExaminer) -> Result<Self, SpecError> {
        let base_dir = path.parent().unwrap_or(Path::new(""));
        let document = Document::read(path, DESCRIPTION)?;
        ChainSpec::resolve(&document, base_dir, ExecutionMode::Isolated(apart))
    }

    /// Same as [`parse`](ChainSpec::parse), for a chain whose functions run in processes of their own. No third-party
    /// code is loaded here; `apart` examines it.
    ///
    /// # Errors
    /// Same as [`parse`](ChainSpec::parse).
    pub fn parse_apart(text: &str, name: &str, base_dir: &Path, apart: &dyn CodeExaminer) -> Result<Self, SpecError> {
        let document = Document::parse(text, name, DESCRIPTION)?;
        let spec = ChainSpec::resolve(&document, base_dir, ExecutionMode::Isolated(apart))?;
        Ok(ChainSpec {
            source: Source::default().with_parts(&spec.settings, &spec.functions, &spec.branches),
            ..spec
        })
    }

    /// Parses the text of a spec. Errors call the file `name`; files that the spec names are relative to `base_dir`.
    ///
    /// # Errors
    /// If the spec is invalid: the first problem, with its position.
    pub fn parse(text: &str, name: &str, base_dir: &Path) -> Result<Self, SpecError> {
        let source = Source::new(Text::Given(text, name), base_dir, SystemTime::now());
        ChainSpec::from_text(text, name, source)
    }

    /// Checks that another version of the spec has the same parts, except for the configurations of functions.
    ///
    /// # Errors
    /// If it differs in anything else: the first difference.
    pub fn check_unchanged(&self, other: &ChainSpec) -> Result<(), SpecError> {
        self.source.check_unchanged(&other.source)
    }

    /// Returns this spec with the source of another version, to be read again from there.
    #[must_use]
    pub(crate) fn with_source_of(&self, other: &ChainSpec) -> ChainSpec {
        ChainSpec {
            source: other.source.clone(),
            ..self.clone()
        }
    }

    /// Reads the spec and the files that it names again, from its [source](ChainSpec::source).
    ///
    /// # Errors
    /// If the spec is invalid, or if it differs from the one first read in anything but the configurations of
    /// functions.
    pub fn read_again(&self) -> Result<ChainSpec, SpecError> {
        let again = match self.source.text() {
            Some(Text::File(path)) => ChainSpec::read(path)?,
            Some(Text::Given(text, name)) => ChainSpec::parse(text, name, self.source.base_dir())?,
            None => {
                let message = "expected a spec with a file or a text to read again, found neither";
                return Err(SpecError::whole_file("the spec", message.to_owned()));
            }
        };
        let again = match self.source.cap() {
            None => again,
            Some((rate, burst)) => again.capped(rate, burst),
        };
        self.source.check_unchanged(&again.source)?;
        Ok(again)
    }

    /// Reads a spec that can be [read again](ChainSpec::read_again) from `source`.
    fn from_text(text: &str, name: &str, source: Source) -> Result<ChainSpec, SpecError> {
        let document = Document::parse(text, name, DESCRIPTION)?;
        let spec = ChainSpec::resolve(&document, source.base_dir(), ExecutionMode::InProcess)?;
        Ok(ChainSpec {
            source: source.with_parts(&spec.settings, &spec.functions, &spec.branches),
            ..spec
        })
    }

    /// Reads the chain of a document. The kind of each function resolves its configuration.
    fn resolve(document: &Document, base_dir: &Path, runs: ExecutionMode<'_>) -> Result<ChainSpec, SpecError> {
        let node = ChainNode::new(document)?;
        let list = node.functions()?;
        let context = Context::new(base_dir, runs);
        let mut resolver = Resolver::new(&context);
        visit(&list, &mut resolver)?;
        resolver.check_paths(&list)?;
        let settings = node.settings(base_dir, &resolver)?;
        let (functions, branches) = resolver.finish();
        Ok(ChainSpec {
            settings,
            functions,
            branches,
            source: Source::default(),
        })
    }
}
