//! Kind `ipsec` of functions.

use super::spec::IpsecConfig;
use super::{Ipsec, IpsecTable};
use crate::kind::{
    BuildContext, ConfigUpdate, FunctionConfig, FunctionError, FunctionFactory, FunctionKind, IsolationContext,
    PreparedUpdate, Requirements, UpdateError, count,
};
use std::sync::Arc;
use tailwater_chain::function::NetworkFunction;
use tailwater_chain::live::Live;

/// Kind `ipsec`.
pub static KIND: FunctionKind = FunctionKind {
    name: "ipsec",
    summary: "ESP tunnels",
    fields: &super::fields::FIELDS,
    parse: |node, context| Ok(IpsecConfig::parse(node, context)?.into()),
};

impl FunctionConfig for IpsecConfig {
    fn kind(&self) -> &'static str {
        KIND.name
    }

    fn build(&self, _context: &BuildContext<'_>) -> Result<Box<dyn FunctionFactory>, FunctionError> {
        Ok(Box::new(IpsecFactory::new(IpsecTable::new(&self.rules)?)))
    }

    fn build_isolated(
        &self,
        _context: &BuildContext<'_>,
        isolation: &IsolationContext,
    ) -> Result<Box<dyn FunctionFactory>, FunctionError> {
        let table = IpsecTable::sharing(&self.rules, &isolation.shared_counters)?;
        Ok(Box::new(IpsecFactory::new(table)))
    }

    fn requirements(&self, _capacity: usize) -> Requirements {
        Requirements {
            shared_bytes: IpsecTable::shared_bytes(&self.rules),
            mixes_flows: !self.rules.inbound.is_empty(),
            ..Requirements::default()
        }
    }

    fn warnings(&self) -> &[String] {
        &self.warnings
    }
}

/// Security associations that all instances share.
struct IpsecFactory {
    live: Arc<Live<IpsecTable>>,
}

impl FunctionFactory for IpsecFactory {
    fn instance(&self) -> Box<dyn NetworkFunction> {
        Box::new(Ipsec::new(Arc::clone(&self.live)))
    }

    fn prepare_update(&self, update: &ConfigUpdate<'_>) -> Result<PreparedUpdate, UpdateError> {
        let (_, new) = update.configs::<IpsecConfig>()?;
        let rules = &new.rules;
        let next = self
            .live
            .current()
            .value
            .next_version(rules)
            .map_err(UpdateError::rejected)?;
        let summary = count(rules.outbound.len() + rules.inbound.len(), "association");
        Ok(PreparedUpdate::of_live(summary, &self.live, next, |live| live))
    }
}

impl IpsecFactory {
    fn new(table: IpsecTable) -> IpsecFactory {
        IpsecFactory {
            live: Arc::new(Live::new(table)),
        }
    }
}
