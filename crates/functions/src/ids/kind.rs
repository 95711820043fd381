//! Kind `ids` of functions.

use super::host::AlertHost;
use super::shared::SharedParts;
use super::spec::IdsConfig;
use super::{Ids, IdsTable};
use crate::exporter::{ExportError, Exported};
use crate::kind::{
    BuildContext, ConfigUpdate, FunctionConfig, FunctionError, FunctionFactory, FunctionKind, IsolationContext,
    PreparedUpdate, Requirements, SharedTable, UpdateError, count,
};
use std::path::PathBuf;
use std::sync::Arc;
use tailwater_chain::function::NetworkFunction;

/// Kind `ids`.
pub static KIND: FunctionKind = FunctionKind {
    name: "ids",
    summary: "Detection rules on packets, streams and messages",
    fields: &super::spec::FIELDS,
    parse: |node, context| Ok(IdsConfig::parse(node, context)?.into()),
};

impl FunctionConfig for IdsConfig {
    fn kind(&self) -> &'static str {
        KIND.name
    }

    fn build(&self, context: &BuildContext<'_>) -> Result<Box<dyn FunctionFactory>, FunctionError> {
        let table = IdsTable::new((&self.sources, &self.loaded), &self.options, context.seed)?;
        Ok(Box::new(IdsFactory { table: Arc::new(table) }))
    }

    fn tracks_connections(&self) -> bool {
        true
    }

    fn reads_only(&self) -> bool {
        true
    }

    fn build_isolated(
        &self,
        context: &BuildContext<'_>,
        isolation: &IsolationContext,
    ) -> Result<Box<dyn FunctionFactory>, FunctionError> {
        let table = match isolation.shared_counters.is_of_processes() {
            true => IdsTable::sharing(&self.loaded, &self.options, isolation)?,
            // Tried out without packets.
            false => {
                let mut options = self.options.clone();
                options.eve = None;
                IdsTable::new((&self.sources, &self.loaded), &options, context.seed)?
            }
        };
        Ok(Box::new(IdsFactory { table: Arc::new(table) }))
    }

    fn requirements(&self, _capacity: usize) -> Requirements {
        let own = Requirements {
            tracks_connections: true,
            reads_only: self.reads_only(),
            inspects_non_ip: true,
            host: Some(Arc::new(AlertHost(self.clone()))),
            ..Requirements::default()
        };
        SharedParts::require(self.options.shared_sizes(), own)
    }

    fn may_stay(&self) -> bool {
        true
    }

    fn outputs(&self) -> Vec<(&'static str, PathBuf)> {
        self.options.eve.iter().map(|file| ("eve", file.clone())).collect()
    }

    fn remove_exports(&mut self) {
        self.options.eve = None;
    }

    fn remove_sources(&mut self) {
        self.sources.files.clear();
    }

    fn notices(&self) -> Vec<String> {
        self.loaded.notices()
    }
}

/// Rules and streams that all instances share.
struct IdsFactory {
    table: Arc<IdsTable>,
}

impl FunctionFactory for IdsFactory {
    fn instance(&self) -> Box<dyn NetworkFunction> {
        Box::new(Ids::new(Arc::clone(&self.table)))
    }

    fn prepare_update(&self, update: &ConfigUpdate<'_>) -> Result<PreparedUpdate, UpdateError> {
        let (old, new) = update.configs::<IdsConfig>()?;
        if old.options != new.options || old.sources.classes != new.sources.classes {
            return Err(UpdateError::Fixed("all fields except rules, variables and drop"));
        }
        let rules = self.table.prepare(&new.loaded).map_err(UpdateError::rejected)?;
        let summary = count(new.loaded.rules.len(), "rule");
        let table = Arc::clone(&self.table);
        Ok(PreparedUpdate::new(summary, move || (table.put(rules), None)))
    }

    fn finish_exports(&self) -> Result<Vec<Exported>, ExportError> {
        self.table.finish().map(Vec::from_iter)
    }

    fn table(&self) -> Option<SharedTable> {
        Some(self.table.clone())
    }
}
