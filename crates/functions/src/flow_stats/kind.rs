//! Kind `flowStats` of functions.

use super::spec::FlowStatsConfig;
use super::{FlowStats, FlowStatsTable};
use crate::exporter::{ExportError, Exported};
use crate::kind::{BuildContext, FunctionConfig, FunctionError, FunctionFactory, FunctionKind, StateTransfer};
use std::path::PathBuf;
use std::sync::Arc;
use tailwater_chain::function::NetworkFunction;

/// Kind `flowStats`.
pub static KIND: FunctionKind = FunctionKind {
    name: "flowStats",
    summary: "Packets and bytes of each flow, exported to collectors",
    fields: &super::spec::FIELDS,
    parse: |node, context| Ok(FlowStatsConfig::parse(node, context)?.into()),
};

impl FunctionConfig for FlowStatsConfig {
    fn kind(&self) -> &'static str {
        KIND.name
    }

    fn reads_only(&self) -> bool {
        true
    }

    fn can_be_bypassed(&self) -> bool {
        true
    }

    fn state_transfer(&self) -> StateTransfer {
        StateTransfer::Converted(super::function::state_format())
    }

    fn build(&self, _context: &BuildContext<'_>) -> Result<Box<dyn FunctionFactory>, FunctionError> {
        let table = FlowStatsTable::new(self.options.clone())?;
        Ok(Box::new(FlowStatsFactory { table: Arc::new(table) }))
    }

    fn outputs(&self) -> Vec<(&'static str, PathBuf)> {
        self.files().map(|file| ("export.file", file.clone())).collect()
    }

    fn exports(&self) -> bool {
        !self.options.outlets.is_empty()
    }

    fn remove_exports(&mut self) {
        self.options.outlets.clear();
    }
}

/// Exporter that all instances share.
struct FlowStatsFactory {
    table: Arc<FlowStatsTable>,
}

impl FunctionFactory for FlowStatsFactory {
    fn instance(&self) -> Box<dyn NetworkFunction> {
        Box::new(FlowStats::new(Arc::clone(&self.table)))
    }

    fn finish_exports(&self) -> Result<Vec<Exported>, ExportError> {
        self.table.finish()
    }
}
