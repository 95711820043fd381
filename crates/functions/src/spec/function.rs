//! Function of a chain with its configuration.

use crate::classifier::ClassifierConfig;
use crate::external::ExternalConfig;
use crate::kind::{AnyConfig, Context, FunctionConfig};
use crate::library::ExecutionMode;
use crate::registry;
use std::path::{Path, PathBuf};
use tailwater_api::chain::{
    ChainNode, DESCRIPTION, Exits, FunctionItem, MAX_FUNCTIONS, OnFailure, Visitor, too_many, visit,
};
use tailwater_api::document::Document;
use tailwater_api::error::SpecError;
use tailwater_api::located::Located;
use tailwater_api::port_name::PortName;
use tailwater_chain::branches::FunctionPosition;

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
    /// Treatment of packets while the function, isolated, has no process.
    pub on_failure: OnFailure,
}

impl FunctionSpec {
    /// Returns the configuration as `T`, if the function is of that kind.
    pub fn config_as<T: FunctionConfig>(&self) -> Option<&T> {
        self.config.get()
    }

    /// Reads one function, by its index in the [chain's list](super::ChainSpec::functions), of a spec that another
    /// process has read as a whole. Errors in and between other functions are not detected, and none of their files is
    /// read, so the function's branch is unknown. A library is loaded without a trial. Files are relative to
    /// `base_dir`.
    ///
    /// # Errors
    /// If there is no such function, or if it is invalid: the first problem, with its position.
    pub fn read_at(path: &Path, base_dir: &Path, place: usize) -> Result<FunctionSpec, SpecError> {
        let document = Document::read(path, DESCRIPTION)?;
        let node = ChainNode::new(&document)?.functions()?;
        let mut items = Items(Vec::new());
        visit(&node, &mut items)?;
        let Items(items) = items;
        let item = items
            .get(place)
            .ok_or_else(|| node.error(format!("expected functions[{place}], found {}", items.len())))?;
        let (_, function) = resolve(item, &Context::new(base_dir, ExecutionMode::InProcess))?;
        Ok(function)
    }
}

/// Items of all functions of a chain, in order.
struct Items<'d>(Vec<Located<'d>>);

impl<'d> Visitor<'d> for Items<'d> {
    fn function(&mut self, item: &Located<'d>, _: Option<usize>) -> Result<Exits, SpecError> {
        if self.0.len() == MAX_FUNCTIONS {
            return Err(item.error(too_many()));
        }
        self.0.push(item.clone());
        Ok(Exits::linear())
    }
}

/// Reads a function: its kind resolves the configuration. Also returns `true` if the spec names it.
pub(super) fn resolve(item: &Located<'_>, context: &Context<'_>) -> Result<(bool, FunctionSpec), SpecError> {
    let kinds: Vec<_> = registry::names().collect();
    let FunctionItem {
        name,
        kind,
        config,
        on_failure,
    } = FunctionItem::parse(item, &kinds, registry::kind)?;
    let config = (kind.parse)(&config, context)?;
    if let Some(message) = on_failure.and_then(|on_failure| wrong_on_failure(on_failure, &config)) {
        return Err(item.error_at_key(OnFailure::KEY, message));
    }
    let named = name.is_some();
    let function = FunctionSpec {
        name: name.unwrap_or_else(|| config.default_name().to_string()),
        config,
        files: context.take_named(),
        branch: None,
        on_failure: on_failure.unwrap_or_default(),
    };
    Ok((named, function))
}

/// Returns the reason why a function cannot have this treatment of packets, if there is one.
fn wrong_on_failure(on_failure: OnFailure, config: &AnyConfig) -> Option<String> {
    let kind = config.kind();
    if config.is::<ExternalConfig>() || config.is::<ClassifierConfig>() {
        return Some(format!(
            "expected no {} of {kind}, which has no process",
            OnFailure::KEY
        ));
    }
    let is_bypass = on_failure == OnFailure::Bypass;
    (is_bypass && !config.can_be_bypassed()).then(|| {
        format!("expected hold or drop, found bypass: packets that {kind} stops or changes would leave as they came")
    })
}

/// Positions of the functions.
pub(crate) fn places(functions: &[FunctionSpec]) -> Vec<FunctionPosition<'_>> {
    let places = functions.iter();
    places
        .map(|function| (function.name.as_str(), function.branch))
        .collect()
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
