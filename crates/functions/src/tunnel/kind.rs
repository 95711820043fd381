//! Kind `tunnel` of functions.

use super::spec::TunnelConfig;
use super::{Action, Tunnel, TunnelRules};
use crate::kind::{
    BuildContext, ConfigUpdate, FunctionConfig, FunctionError, FunctionFactory, FunctionKind, PreparedUpdate,
    UpdateError, count,
};
use std::sync::Arc;
use tailwater_api::PacketAction;
use tailwater_chain::function::NetworkFunction;
use tailwater_chain::live::Live;

/// Kind `tunnel`.
pub static KIND: FunctionKind = FunctionKind {
    name: "tunnel",
    summary: "VLAN tags pushed and popped by rule",
    fields: &super::spec::FIELDS,
    parse: |node, context| Ok(TunnelConfig::parse(node, context)?.into()),
};

impl FunctionConfig for TunnelConfig {
    fn kind(&self) -> &'static str {
        KIND.name
    }

    fn build(&self, _context: &BuildContext<'_>) -> Result<Box<dyn FunctionFactory>, FunctionError> {
        Ok(Box::new(TunnelFactory {
            live: Arc::new(Live::new(self.to_rules())),
            cached: self.cached,
        }))
    }
}

impl TunnelConfig {
    fn to_rules(&self) -> TunnelRules {
        let default = match self.default {
            PacketAction::Pass => Action::Pass,
            PacketAction::Drop => Action::Drop,
        };
        TunnelRules::new(&self.rules, default)
    }
}

/// Rules that all instances share.
struct TunnelFactory {
    live: Arc<Live<TunnelRules>>,
    /// `true` if decisions are cached with flows.
    cached: bool,
}

impl FunctionFactory for TunnelFactory {
    fn instance(&self) -> Box<dyn NetworkFunction> {
        Box::new(Tunnel::new(Arc::clone(&self.live), self.cached))
    }

    fn prepare_update(&self, update: &ConfigUpdate<'_>) -> Result<PreparedUpdate, UpdateError> {
        let (old, new) = update.configs::<TunnelConfig>()?;
        if old.cached != new.cached {
            return Err(UpdateError::Fixed("cache"));
        }
        let summary = count(new.rules.len(), "rule");
        Ok(PreparedUpdate::of_live(summary, &self.live, new.to_rules(), |live| {
            live
        }))
    }
}
