//! Kind `firewall` of functions.

use super::rule_set::RuleSet;
use super::spec::FirewallConfig;
use super::{Firewall, FirewallTable};
use crate::kind::{
    BuildContext, ConfigUpdate, FunctionConfig, FunctionError, FunctionFactory, FunctionKind, IsolationContext,
    PreparedUpdate, Requirements, SharedTable, StateTransfer, UpdateError, count,
};
use std::sync::Arc;
use tailwater_chain::function::NetworkFunction;

/// Kind `firewall`.
pub static KIND: FunctionKind = FunctionKind {
    name: "firewall",
    summary: "Stateful connection filter, by rules from zone to zone",
    fields: &super::spec::FIELDS,
    parse: |node, context| Ok(FirewallConfig::parse(node, context)?.into()),
};

impl FirewallConfig {
    /// Names the rules' file in explanations, if they come from one.
    fn name_file(&self, rules: &RuleSet) {
        if let Some(file) = &self.source {
            rules.set_file(file);
        }
    }
}

impl FunctionConfig for FirewallConfig {
    fn kind(&self) -> &'static str {
        KIND.name
    }

    fn reads_only(&self) -> bool {
        true
    }

    fn build(&self, context: &BuildContext<'_>) -> Result<Box<dyn FunctionFactory>, FunctionError> {
        let rules = (&self.zones[..], &self.rules[..], self.default);
        let table = FirewallTable::new(rules, self.options, context.capacity, context.seed)?;
        self.name_file(&table.rules.current().value);
        Ok(Box::new(FirewallFactory { table: Arc::new(table) }))
    }

    fn build_isolated(
        &self,
        _context: &BuildContext<'_>,
        isolation: &IsolationContext,
    ) -> Result<Box<dyn FunctionFactory>, FunctionError> {
        let rules = (&self.zones[..], &self.rules[..], self.default);
        let table = FirewallTable::sharing(rules, self.options, isolation.capacity, &isolation.shared_counters)?;
        self.name_file(&table.rules.current().value);
        Ok(Box::new(FirewallFactory { table: Arc::new(table) }))
    }

    fn tracks_connections(&self) -> bool {
        true
    }

    fn decides_lifetimes(&self) -> bool {
        true
    }

    fn requirements(&self, capacity: usize) -> Requirements {
        Requirements {
            shared_bytes: FirewallTable::shared_bytes(capacity),
            tracks_connections: true,
            reads_only: self.reads_only(),
            lifetimes: Some((Arc::new(self.options.timeouts), FirewallTable::STATE_BYTES)),
            transfer: StateTransfer::Converted(super::transfer::state_format(self.options, capacity)),
            ..Requirements::default()
        }
    }

    fn notices(&self) -> Vec<String> {
        self.shadowed_rules()
    }
}

/// Rules and counters that all instances share.
struct FirewallFactory {
    table: Arc<FirewallTable>,
}

impl FunctionFactory for FirewallFactory {
    fn instance(&self) -> Box<dyn NetworkFunction> {
        Box::new(Firewall::new(Arc::clone(&self.table)))
    }

    fn prepare_update(&self, update: &ConfigUpdate<'_>) -> Result<PreparedUpdate, UpdateError> {
        let (old, new) = update.configs::<FirewallConfig>()?;
        let fixed = (&old.zones, old.default, old.options);
        if fixed != (&new.zones, new.default, new.options) {
            return Err(UpdateError::Fixed("all fields except rules"));
        }
        let rules = self.table.prepare(&new.rules).map_err(UpdateError::rejected)?;
        new.name_file(&rules);
        let summary = count(new.rules.len(), "rule");
        let table = Arc::clone(&self.table);
        Ok(PreparedUpdate::new(summary, move || (table.activate(rules), None)))
    }

    fn table(&self) -> Option<SharedTable> {
        Some(self.table.clone())
    }
}
