//! Kind `loadBalancer` of functions.

use super::spec::LoadBalancerConfig;
use super::{LoadBalancer, LoadBalancerTable};
use crate::kind::{
    BuildContext, ConfigUpdate, FunctionConfig, FunctionError, FunctionFactory, FunctionKind, PreparedUpdate,
    SharedTable, StateTransfer, UpdateError, count,
};
use std::sync::Arc;
use tailwater_api::PacketAction;
use tailwater_chain::function::NetworkFunction;

/// Kind `loadBalancer`.
pub static KIND: FunctionKind = FunctionKind {
    name: "loadBalancer",
    summary: "Load balancing over backends by consistent hashing",
    fields: &super::spec::FIELDS,
    parse: |node, context| Ok(LoadBalancerConfig::parse(node, context)?.into()),
};

impl FunctionConfig for LoadBalancerConfig {
    fn kind(&self) -> &'static str {
        KIND.name
    }

    fn state_transfer(&self) -> StateTransfer {
        StateTransfer::Converted(super::function::state_format(self))
    }

    fn build(&self, _context: &BuildContext<'_>) -> Result<Box<dyn FunctionFactory>, FunctionError> {
        let drop_others = self.no_service == PacketAction::Drop;
        let table = LoadBalancerTable::new(&self.services, self.table_size, drop_others)?;
        Ok(Box::new(LoadBalancerFactory { table: Arc::new(table) }))
    }
}

/// Backends that all instances share.
struct LoadBalancerFactory {
    table: Arc<LoadBalancerTable>,
}

impl FunctionFactory for LoadBalancerFactory {
    fn instance(&self) -> Box<dyn NetworkFunction> {
        Box::new(LoadBalancer::new(Arc::clone(&self.table)))
    }

    fn prepare_update(&self, update: &ConfigUpdate<'_>) -> Result<PreparedUpdate, UpdateError> {
        let (old, new) = update.configs::<LoadBalancerConfig>()?;
        if (old.table_size, old.no_service) != (new.table_size, new.no_service) {
            return Err(UpdateError::Fixed("tableSize and noService"));
        }
        let choices = self.table.prepare(&new.services).map_err(UpdateError::rejected)?;
        let summary = count(new.services.len(), "service");
        Ok(PreparedUpdate::of_live(
            summary,
            &self.table,
            choices,
            LoadBalancerTable::live,
        ))
    }

    fn table(&self) -> Option<SharedTable> {
        Some(self.table.clone())
    }
}
