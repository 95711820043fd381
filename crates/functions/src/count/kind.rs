//! Kind `count` of functions.

use super::spec::CountConfig;
use super::{Count, CountTable, Counters};
use crate::kind::{
    BuildContext, ConfigUpdate, FunctionConfig, FunctionError, FunctionFactory, FunctionKind, PreparedUpdate,
    UpdateError, count,
};
use std::sync::Arc;
use tailwater_chain::function::NetworkFunction;

/// Kind `count`.
pub static KIND: FunctionKind = FunctionKind {
    name: "count",
    summary: "Packets and bytes by rule",
    fields: &super::spec::FIELDS,
    parse: |node, context| Ok(CountConfig::parse(node, context)?.into()),
};

impl FunctionConfig for CountConfig {
    fn kind(&self) -> &'static str {
        KIND.name
    }

    fn reads_only(&self) -> bool {
        true
    }

    fn can_be_bypassed(&self) -> bool {
        true
    }

    fn build(&self, _context: &BuildContext<'_>) -> Result<Box<dyn FunctionFactory>, FunctionError> {
        let counters = Counters::new(self.counters.clone());
        Ok(Box::new(CountFactory {
            table: Arc::new(CountTable::new(counters)),
        }))
    }
}

/// Counters that all instances share.
struct CountFactory {
    table: Arc<CountTable>,
}

impl FunctionFactory for CountFactory {
    fn instance(&self) -> Box<dyn NetworkFunction> {
        Box::new(Count::new(Arc::clone(&self.table)))
    }

    fn prepare_update(&self, update: &ConfigUpdate<'_>) -> Result<PreparedUpdate, UpdateError> {
        let (_, new) = update.configs::<CountConfig>()?;
        let counters = Counters::new(new.counters.clone());
        if !self.table.has_names_of(&counters) {
            return Err(UpdateError::Fixed("the counters' names and order"));
        }
        let summary = count(new.counters.len(), "counter");
        Ok(PreparedUpdate::of_live(
            summary,
            &self.table,
            counters,
            CountTable::live,
        ))
    }
}
