//! Part of an isolated user plane function in the host: it sets the sessions, serves the socket, and writes the reports
//! of the usage that the function's processes count.

use super::services::{Services, start_with};
use super::spec::UpfConfig;
use super::table::UpfTable;
use crate::exporter::{ExportError, Exported};
use crate::kind::{FunctionError, HostPart, HostServices};
use std::sync::Arc;
use tailwater_chain::shared_counters::SharedCounters;

/// Returns the table of one of the processes that share it, or of the host.
pub(super) fn shared_table(config: &UpfConfig, shared_counters: &SharedCounters) -> UpfTable {
    let options = config.options.clone();
    UpfTable::sharing(options, &config.profiles, config.usage.is_some(), shared_counters)
}

/// Sessions of the configuration, for the host.
#[derive(Debug)]
pub(super) struct SessionHost(pub(super) UpfConfig);

impl HostPart for SessionHost {
    fn start(&self, shared_counters: &SharedCounters, _processes: u16) -> Result<Arc<dyn HostServices>, FunctionError> {
        let table = Arc::new(shared_table(&self.0, shared_counters));
        Ok(Arc::new(start_with(&self.0, &table)?))
    }
}

impl HostServices for Services {
    fn finish(&self) -> Result<Vec<Exported>, ExportError> {
        Services::finish(self).map(Vec::from_iter)
    }
}
