//! Kind `upf` of functions.

use super::host::{SessionHost, shared_table};
use super::spec::UpfConfig;
use super::{Services, Upf, UpfTable};
use crate::exporter::{ExportError, Exported};
use crate::kind::{
    BuildContext, ConfigUpdate, FunctionConfig, FunctionError, FunctionFactory, FunctionKind, IsolationContext,
    PreparedUpdate, Requirements, SharedTable, UpdateError, count,
};
use std::path::PathBuf;
use std::sync::Arc;
use tailwater_chain::function::NetworkFunction;

/// Kind `upf`.
pub static KIND: FunctionKind = FunctionKind {
    name: "upf",
    summary: "User plane of a mobile network",
    fields: &super::fields::FIELDS,
    parse: |node, context| Ok(UpfConfig::parse(node, context)?.into()),
};

impl FunctionConfig for UpfConfig {
    fn kind(&self) -> &'static str {
        KIND.name
    }

    fn build(&self, context: &BuildContext<'_>) -> Result<Box<dyn FunctionFactory>, FunctionError> {
        let (table, services) = super::start(self, context.seed)?;
        let services = Arc::new(services);
        Ok(Box::new(UpfFactory { table, services }))
    }

    fn build_isolated(
        &self,
        context: &BuildContext<'_>,
        isolation: &IsolationContext,
    ) -> Result<Box<dyn FunctionFactory>, FunctionError> {
        let shared_counters = &isolation.shared_counters;
        if shared_counters.is_of_processes() {
            let table = Arc::new(shared_table(self, shared_counters));
            let services = Arc::default();
            return Ok(Box::new(UpfFactory { table, services }));
        }
        // Tried out without packets: the sessions are checked.
        let mut config = self.clone();
        config.remove_exports();
        config.build(context)
    }

    fn requirements(&self, _capacity: usize) -> Requirements {
        Requirements {
            shared_bytes: UpfTable::shared_bytes(&self.options, &self.profiles),
            host: Some(Arc::new(SessionHost(self.clone()))),
            mixes_flows: true,
            ..Requirements::default()
        }
    }

    fn may_stay(&self) -> bool {
        true
    }

    fn outputs(&self) -> Vec<(&'static str, PathBuf)> {
        let usage = self.usage.iter().map(|usage| ("usage.file", usage.file.clone()));
        let api = self.api.iter().map(|api| ("api", api.clone()));
        usage.chain(api).collect()
    }

    fn remove_exports(&mut self) {
        (self.usage, self.api) = (None, None);
    }
}

/// Sessions that all instances share, and the services that run in the background.
struct UpfFactory {
    table: Arc<UpfTable>,
    services: Arc<Services>,
}

impl FunctionFactory for UpfFactory {
    fn instance(&self) -> Box<dyn NetworkFunction> {
        Box::new(Upf::with_services(Arc::clone(&self.table), Arc::clone(&self.services)))
    }

    fn prepare_update(&self, update: &ConfigUpdate<'_>) -> Result<PreparedUpdate, UpdateError> {
        let (old, new) = update.configs::<UpfConfig>()?;
        let fixed = (&old.options, &old.profiles, &old.usage, &old.api);
        if fixed != (&new.options, &new.profiles, &new.usage, &new.api) {
            return Err(UpdateError::Fixed("all fields except sessions"));
        }
        let sessions = UpfTable::prepare(&self.table, &new.sessions).map_err(|refused| {
            let lines = refused.iter().map(|(at, why)| {
                let session = new.sessions.get(*at).map_or(0, |session| session.id);
                format!("session {session}: {why}")
            });
            let (more, first) = (refused.len().saturating_sub(1), lines.take(1));
            let more = (more > 0).then(|| format!("and {more} more"));
            UpdateError::Rejected(first.chain(more).collect::<Vec<_>>().join("; "))
        })?;
        let summary = count(new.sessions.len(), "session");
        Ok(PreparedUpdate::new(summary, move || {
            let put = sessions.put();
            (put.version, put.message())
        }))
    }

    fn finish_exports(&self) -> Result<Vec<Exported>, ExportError> {
        self.services.finish().map(Vec::from_iter)
    }

    fn table(&self) -> Option<SharedTable> {
        Some(self.table.clone())
    }
}
