//! Kind `wanOptimizer` of functions.

use super::spec::WanOptimizerConfig;
use super::{WanOptimizer, WanTable};
use crate::kind::{
    BuildContext, ConfigUpdate, FunctionConfig, FunctionError, FunctionFactory, FunctionKind, IsolationContext,
    PreparedUpdate, Requirements, UpdateError, count,
};
use std::sync::Arc;
use tailwater_chain::function::NetworkFunction;

/// Kind `wanOptimizer`.
pub static KIND: FunctionKind = FunctionKind {
    name: "wanOptimizer",
    summary: "Redundancy elimination over a slow link",
    fields: &super::spec::FIELDS,
    parse: |node, context| Ok(WanOptimizerConfig::parse(node, context)?.into()),
};

impl FunctionConfig for WanOptimizerConfig {
    fn kind(&self) -> &'static str {
        KIND.name
    }

    fn build(&self, _context: &BuildContext<'_>) -> Result<Box<dyn FunctionFactory>, FunctionError> {
        let table = WanTable::new(self.options.clone(), self.destinations.clone())?;
        Ok(Box::new(WanOptimizerFactory { table: Arc::new(table) }))
    }

    fn build_isolated(
        &self,
        _context: &BuildContext<'_>,
        isolation: &IsolationContext,
    ) -> Result<Box<dyn FunctionFactory>, FunctionError> {
        let (options, destinations) = (self.options.clone(), self.destinations.clone());
        let [part, _] = isolation.part;
        let table = WanTable::sharing(options, destinations, part, &isolation.shared_counters)?;
        Ok(Box::new(WanOptimizerFactory { table: Arc::new(table) }))
    }

    fn may_stay(&self) -> bool {
        true
    }

    fn requirements(&self, _capacity: usize) -> Requirements {
        Requirements {
            shared_bytes: WanTable::shared_bytes(&self.options),
            private_bytes: WanTable::private_bytes(&self.options),
            mixes_flows: true,
            ..Requirements::default()
        }
    }
}

/// Caches that all instances share.
struct WanOptimizerFactory {
    table: Arc<WanTable>,
}

impl FunctionFactory for WanOptimizerFactory {
    fn instance(&self) -> Box<dyn NetworkFunction> {
        Box::new(WanOptimizer::new(Arc::clone(&self.table)))
    }

    fn prepare_update(&self, update: &ConfigUpdate<'_>) -> Result<PreparedUpdate, UpdateError> {
        let (old, new) = update.configs::<WanOptimizerConfig>()?;
        if old.options != new.options {
            return Err(UpdateError::Fixed("all fields except destinations"));
        }
        let destinations = new.destinations.clone();
        let summary = count(destinations.len(), "destination");
        Ok(PreparedUpdate::of_live(
            summary,
            &self.table,
            destinations,
            WanTable::destinations,
        ))
    }
}
