//! Kind `bpfFilter` of functions.

use super::spec::BpfFilterConfig;
use super::{BpfFilter, BpfRules};
use crate::kind::{
    BuildContext, ConfigUpdate, FunctionConfig, FunctionError, FunctionFactory, FunctionKind, PreparedUpdate,
    UpdateError, count,
};
use std::sync::Arc;
use tailwater_chain::function::NetworkFunction;
use tailwater_chain::live::Live;

/// Kind `bpfFilter`.
pub static KIND: FunctionKind = FunctionKind {
    name: "bpfFilter",
    summary: "Packet filter by `tcpdump` expressions or classic BPF programs",
    fields: &super::spec::FIELDS,
    parse: |node, context| Ok(BpfFilterConfig::parse(node, context)?.into()),
};

impl FunctionConfig for BpfFilterConfig {
    fn kind(&self) -> &'static str {
        KIND.name
    }

    fn reads_only(&self) -> bool {
        true
    }

    fn build(&self, _context: &BuildContext<'_>) -> Result<Box<dyn FunctionFactory>, FunctionError> {
        Ok(Box::new(BpfFilterFactory {
            live: Arc::new(Live::new(self.to_rules()?)),
        }))
    }
}

impl BpfFilterConfig {
    fn to_rules(&self) -> Result<BpfRules, String> {
        let rules = BpfRules::new(&self.rules, self.default);
        rules.map_err(|(rule, why)| format!("rule {}: {why}", rule + 1))
    }
}

/// Rules that all instances share.
struct BpfFilterFactory {
    live: Arc<Live<BpfRules>>,
}

impl FunctionFactory for BpfFilterFactory {
    fn instance(&self) -> Box<dyn NetworkFunction> {
        Box::new(BpfFilter::new(Arc::clone(&self.live)))
    }

    fn prepare_update(&self, update: &ConfigUpdate<'_>) -> Result<PreparedUpdate, UpdateError> {
        let (old, new) = update.configs::<BpfFilterConfig>()?;
        if old.rules.len() != new.rules.len() {
            return Err(UpdateError::Fixed("the number of rules"));
        }
        let rules = new.to_rules().map_err(UpdateError::Rejected)?;
        let summary = count(new.rules.len(), "rule");
        Ok(PreparedUpdate::of_live(summary, &self.live, rules, |live| live))
    }
}
