//! Kind `ipForward` of functions.

use super::function::ForwardOptions;
use super::spec::IpForwardConfig;
use super::{IpForward, RouteTable, TableError};
use crate::kind::{
    BuildContext, ConfigUpdate, FunctionConfig, FunctionError, FunctionFactory, FunctionKind, PreparedUpdate,
    UpdateError, count,
};
use std::sync::Arc;
use tailwater_api::PacketAction;
use tailwater_chain::function::NetworkFunction;
use tailwater_chain::live::Live;

/// Kind `ipForward`.
pub static KIND: FunctionKind = FunctionKind {
    name: "ipForward",
    summary: "Forwarding by longest-prefix match",
    fields: &super::spec::FIELDS,
    parse: |node, context| Ok(IpForwardConfig::parse(node, context)?.into()),
};

impl FunctionConfig for IpForwardConfig {
    fn kind(&self) -> &'static str {
        KIND.name
    }

    fn build(&self, _context: &BuildContext<'_>) -> Result<Box<dyn FunctionFactory>, FunctionError> {
        Ok(Box::new(IpForwardFactory {
            live: Arc::new(Live::new(self.to_table()?)),
            options: ForwardOptions {
                pass_local: self.local == PacketAction::Pass,
                in_flow: self.cached,
            },
        }))
    }

    fn remove_sources(&mut self) {
        self.source = None;
    }
}

impl IpForwardConfig {
    fn to_table(&self) -> Result<RouteTable, TableError> {
        RouteTable::new(&self.routes, self.default, &self.next_hops, self.source_mac)
    }
}

/// Routes that all instances share.
struct IpForwardFactory {
    live: Arc<Live<RouteTable>>,
    options: ForwardOptions,
}

impl FunctionFactory for IpForwardFactory {
    fn instance(&self) -> Box<dyn NetworkFunction> {
        Box::new(IpForward::new(Arc::clone(&self.live), self.options))
    }

    fn prepare_update(&self, update: &ConfigUpdate<'_>) -> Result<PreparedUpdate, UpdateError> {
        let (old, new) = update.configs::<IpForwardConfig>()?;
        if (old.cached, old.local) != (new.cached, new.local) {
            return Err(UpdateError::Fixed("cache and local"));
        }
        let table = new.to_table().map_err(UpdateError::rejected)?;
        let summary = count(new.routes.len(), "route");
        Ok(PreparedUpdate::of_live(summary, &self.live, table, |live| live))
    }
}
