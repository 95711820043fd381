//! Kind `dnsGuard` of functions.

use super::spec::DnsGuardConfig;
use super::{DnsGuard, DnsGuardTable};
use crate::kind::{
    BuildContext, ConfigUpdate, FunctionConfig, FunctionError, FunctionFactory, FunctionKind, PreparedUpdate,
    UpdateError,
};
use std::sync::Arc;
use tailwater_chain::function::NetworkFunction;

/// Kind `dnsGuard`.
pub static KIND: FunctionKind = FunctionKind {
    name: "dnsGuard",
    summary: "Rate limits of DNS responses, and removal of unsolicited ones",
    fields: &super::spec::FIELDS,
    parse: |node, context| Ok(DnsGuardConfig::parse(node, context)?.into()),
};

impl FunctionConfig for DnsGuardConfig {
    fn kind(&self) -> &'static str {
        KIND.name
    }

    fn build(&self, context: &BuildContext<'_>) -> Result<Box<dyn FunctionFactory>, FunctionError> {
        let table = DnsGuardTable::new(self.rules.clone(), self.sizes, context.seed);
        Ok(Box::new(DnsGuardFactory { table: Arc::new(table) }))
    }

    fn in_process_only_reason(&self) -> Option<&'static str> {
        Some("it counts responses and queries of all cores together")
    }

    fn can_run_in_one_process(&self) -> bool {
        true
    }
}

/// Limits and accounts that all instances share.
struct DnsGuardFactory {
    table: Arc<DnsGuardTable>,
}

impl FunctionFactory for DnsGuardFactory {
    fn instance(&self) -> Box<dyn NetworkFunction> {
        Box::new(DnsGuard::new(Arc::clone(&self.table)))
    }

    fn prepare_update(&self, update: &ConfigUpdate<'_>) -> Result<PreparedUpdate, UpdateError> {
        let (old, new) = update.configs::<DnsGuardConfig>()?;
        let fixed = |config: &DnsGuardConfig| {
            let rules = &config.rules;
            (config.sizes, rules.mode, rules.amplification.is_some())
        };
        if fixed(old) != fixed(new) {
            return Err(UpdateError::Fixed(
                "accounts, queries, mode and the presence of amplification",
            ));
        }
        let (table, rules) = (Arc::clone(&self.table), new.rules.clone());
        Ok(PreparedUpdate::new("limits".to_owned(), move || {
            (table.replace(rules), None)
        }))
    }
}
