//! Kind `classifier` of functions.

use super::spec::ClassifierConfig;
use super::{Classifier, ClassifierRules, ClassifierTable};
use crate::acl::classifier::ClassifierError;
use crate::kind::{
    BuildContext, ConfigUpdate, FunctionConfig, FunctionError, FunctionFactory, FunctionKind, PreparedUpdate,
    SharedTable, UpdateError, count,
};
use std::sync::Arc;
use tailwater_api::chain::CLASSIFIER;
use tailwater_chain::branches::of_classifier;
use tailwater_chain::function::NetworkFunction;

/// Kind `classifier`.
pub static KIND: FunctionKind = FunctionKind {
    name: CLASSIFIER,
    summary: "Branches by rule",
    fields: &super::spec::FIELDS,
    parse: |node, context| Ok(ClassifierConfig::parse(node, context)?.into()),
};

impl FunctionConfig for ClassifierConfig {
    fn kind(&self) -> &'static str {
        KIND.name
    }

    fn build(&self, context: &BuildContext<'_>) -> Result<Box<dyn FunctionFactory>, FunctionError> {
        let of_chain = |target: &str| {
            let mut own = of_classifier(context.branches, context.name);
            own.find(|(_, branch)| branch.name == target).map(|(at, _)| at)
        };
        let rules = self.to_rules()?;
        let targets = self.names();
        let targets: Vec<_> = targets.iter().map(|(target, _)| (*target, of_chain(target))).collect();
        let table = ClassifierTable::new(rules, &targets, context.paths);
        Ok(Box::new(ClassifierFactory {
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

impl ClassifierConfig {
    /// Returns the rules, with their targets as indices into the [names](ClassifierConfig::names).
    fn to_rules(&self) -> Result<ClassifierRules, ClassifierError> {
        let names = self.names();
        let batch_index = |target| names.iter().position(|(_, known)| *known == target);
        let batch_index = |target| batch_index(target).unwrap_or_default() as u8;
        let targets = self.targets.iter().map(|target| batch_index(*target)).collect();
        ClassifierRules::new(&self.rules, targets, batch_index(self.default), self.both)
    }
}

/// Rules that all instances share.
struct ClassifierFactory {
    table: Arc<ClassifierTable>,
    /// `true` if decisions are cached with flows.
    cached: bool,
}

impl FunctionFactory for ClassifierFactory {
    fn instance(&self) -> Box<dyn NetworkFunction> {
        let table = Arc::clone(&self.table);
        match self.cached {
            true => Box::new(Classifier::new(table)),
            false => Box::new(Classifier::without_flows(table)),
        }
    }

    fn prepare_update(&self, update: &ConfigUpdate<'_>) -> Result<PreparedUpdate, UpdateError> {
        let (old, new) = update.configs::<ClassifierConfig>()?;
        let fixed = (&old.branches, old.sends(), old.cached);
        if fixed != (&new.branches, new.sends(), new.cached) {
            return Err(UpdateError::Fixed("cache, branches and the use of send"));
        }
        let rules = new.to_rules().map_err(UpdateError::rejected)?;
        let summary = count(new.rules.len(), "rule");
        Ok(PreparedUpdate::of_live(
            summary,
            &self.table,
            rules,
            ClassifierTable::live,
        ))
    }

    fn table(&self) -> Option<SharedTable> {
        Some(self.table.clone())
    }
}
