//! Kind `urlFilter` of functions.

use super::spec::UrlFilterConfig;
use super::{FilterTable, UrlFilter, UrlTable};
use crate::kind::{
    BuildContext, ConfigUpdate, FunctionConfig, FunctionError, FunctionFactory, FunctionKind, PreparedUpdate,
    UpdateError, count,
};
use std::sync::Arc;
use tailwater_chain::function::NetworkFunction;

/// Kind `urlFilter`.
pub static KIND: FunctionKind = FunctionKind {
    name: "urlFilter",
    summary: "Filtering by host, URL and TLS server name",
    fields: &super::spec::FIELDS,
    parse: |node, context| Ok(UrlFilterConfig::parse(node, context)?.into()),
};

impl FunctionConfig for UrlFilterConfig {
    fn kind(&self) -> &'static str {
        KIND.name
    }

    fn build(&self, _context: &BuildContext<'_>) -> Result<Box<dyn FunctionFactory>, FunctionError> {
        let table = FilterTable::new(&self.patterns, self.filter.clone())?;
        Ok(Box::new(UrlFilterFactory { table: Arc::new(table) }))
    }

    fn remove_sources(&mut self) {
        self.source = None;
    }
}

/// Patterns that all instances share.
struct UrlFilterFactory {
    table: Arc<FilterTable>,
}

impl FunctionFactory for UrlFilterFactory {
    fn instance(&self) -> Box<dyn NetworkFunction> {
        Box::new(UrlFilter::new(Arc::clone(&self.table)))
    }

    fn prepare_update(&self, update: &ConfigUpdate<'_>) -> Result<PreparedUpdate, UpdateError> {
        let (old, new) = update.configs::<UrlFilterConfig>()?;
        if old.filter != new.filter {
            return Err(UpdateError::Fixed("all fields except patterns"));
        }
        let patterns = UrlTable::new(&new.patterns).map_err(UpdateError::rejected)?;
        let summary = count(new.patterns.len(), "pattern");
        Ok(PreparedUpdate::of_live(
            summary,
            &self.table,
            patterns,
            FilterTable::live,
        ))
    }
}
