//! Part of an isolated detection function in the host, which writes the alert file.

use super::alert_ring::AlertReader;
use super::eve::SharedEve;
use super::shared::HostParts;
use super::spec::IdsConfig;
use crate::exporter::{ExportError, Exported};
use crate::kind::{FunctionError, HostPart, HostServices};
use std::sync::Arc;
use tailwater_chain::shared_counters::SharedCounters;
use tailwater_ids::ruleset::{BitNames, RuleSet};

/// Alert file of the configuration, for the host.
#[derive(Debug)]
pub(super) struct AlertHost(pub(super) IdsConfig);

impl HostPart for AlertHost {
    fn start(&self, shared_counters: &SharedCounters, processes: u16) -> Result<Arc<dyn HostServices>, FunctionError> {
        let IdsConfig {
            options,
            sources,
            loaded,
        } = &self.0;
        let HostParts { rings, unwritten } = HostParts::new(options.shared_sizes(), processes, shared_counters)?;
        let Some(path) = &options.eve else {
            return Ok(Arc::new(NoAlertFile));
        };
        let rings = rings.into_iter().map(AlertReader::new);
        // Alerts name rules by their index: the processes load the same text.
        let rules = RuleSet::new(loaded.rules.to_vec(), &mut BitNames::default())?;
        let classes = sources.classes.clone();
        let eve = SharedEve::create(path, (Arc::new(rules), classes), (rings.collect(), unwritten))?;
        Ok(Arc::new(eve))
    }
}

/// Part in the host of a function without an alert file.
#[derive(Debug)]
struct NoAlertFile;

impl HostServices for NoAlertFile {
    fn finish(&self) -> Result<Vec<Exported>, ExportError> {
        Ok(Vec::new())
    }
}

impl HostServices for SharedEve {
    fn finish(&self) -> Result<Vec<Exported>, ExportError> {
        SharedEve::finish(self).map(Vec::from_iter)
    }
}
