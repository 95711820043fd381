//! Kind `acl` of functions.

use super::classifier::ClassifierError;
use super::naming::RuleOrigin;
use super::spec::AclConfig;
use super::{Acl, AclRules, AclTable};
use crate::kind::{
    BuildContext, ConfigUpdate, FunctionConfig, FunctionError, FunctionFactory, FunctionKind, PreparedUpdate,
    UpdateError, count,
};
use std::sync::Arc;
use tailwater_chain::function::NetworkFunction;

/// Kind `acl`.
pub static KIND: FunctionKind = FunctionKind {
    name: "acl",
    summary: "Access control by ordered 5-tuple rules",
    fields: &super::spec::FIELDS,
    parse: |node, context| Ok(AclConfig::parse(node, context)?.into()),
};

impl FunctionConfig for AclConfig {
    fn kind(&self) -> &'static str {
        KIND.name
    }

    fn reads_only(&self) -> bool {
        true
    }

    fn build(&self, _context: &BuildContext<'_>) -> Result<Box<dyn FunctionFactory>, FunctionError> {
        let table = AclTable::of(self.compiled()?);
        Ok(Box::new(AclFactory {
            table: Arc::new(table),
            cached: self.cached,
        }))
    }

    fn remove_sources(&mut self) {
        self.source = None;
    }

    fn notices(&self) -> Vec<String> {
        self.shadowed_rules()
    }
}

impl AclConfig {
    fn compiled(&self) -> Result<AclRules, ClassifierError> {
        let origin = RuleOrigin::new(self.source.as_deref(), self.lines.iter().copied());
        Ok(AclRules::new(&self.rules, self.default)?.of(origin))
    }
}

/// Rules that all instances share.
struct AclFactory {
    table: Arc<AclTable>,
    /// `true` if decisions are cached with flows.
    cached: bool,
}

impl FunctionFactory for AclFactory {
    fn instance(&self) -> Box<dyn NetworkFunction> {
        let table = Arc::clone(&self.table);
        match self.cached {
            true => Box::new(Acl::new(table)),
            false => Box::new(Acl::without_flows(table)),
        }
    }

    fn prepare_update(&self, update: &ConfigUpdate<'_>) -> Result<PreparedUpdate, UpdateError> {
        let (old, new) = update.configs::<AclConfig>()?;
        if old.cached != new.cached {
            return Err(UpdateError::Fixed("cache"));
        }
        let rules = new.compiled().map_err(UpdateError::rejected)?;
        let summary = count(new.rules.len(), "rule");
        Ok(PreparedUpdate::of_live(summary, &self.table, rules, AclTable::live))
    }
}
