//! Threads other than workers: usage reports and the socket.

use super::api::Api;
use super::spec::UpfConfig;
use super::table::{SessionError, UpfTable};
use super::usage::Reports;
use crate::exporter::{ExportError, Exported, UnwrittenRecords};
use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

/// Reasons a user plane function cannot start.
#[derive(Debug, thiserror::Error)]
pub enum UpfError {
    /// A session is refused.
    #[error("session {session}: {why}")]
    Session {
        /// Number of the session.
        session: u64,
        /// Reason.
        why: SessionError,
    },
    /// Usage reports cannot be written.
    #[error("{0}")]
    Usage(#[from] ExportError),
    /// The socket cannot be served.
    #[error("{}: cannot be served: {source}", path.display())]
    Api {
        /// Path of the socket.
        path: PathBuf,
        /// Error of the operating system.
        source: io::Error,
    },
}

/// Threads of a user plane function; they stop when this is dropped.
#[derive(Debug, Default)]
pub struct Services {
    // Dropped first: sessions no longer change when the last reports are made.
    api: Mutex<Option<Api>>,
    reports: Mutex<Option<Reports>>,
    /// Reports that could not be written, if there is a file for them.
    unwritten: Option<Arc<UnwrittenRecords>>,
}

/// Builds the table with the configured sessions, and starts its threads. `seed` keys the hashes.
///
/// # Errors
/// A session is refused, the report file cannot be written, or the socket cannot be served.
pub fn start(config: &UpfConfig, seed: u64) -> Result<(Arc<UpfTable>, Services), UpfError> {
    let reports = config.usage.is_some();
    let options = config.options.clone();
    let table = Arc::new(UpfTable::new(options, &config.profiles, reports, seed));
    let services = start_with(config, &table)?;
    Ok((table, services))
}

/// Sets the configured sessions of a table without any, and starts its threads.
pub(super) fn start_with(config: &UpfConfig, table: &Arc<UpfTable>) -> Result<Services, UpfError> {
    let refused = match UpfTable::prepare(table, &config.sessions) {
        Ok(sessions) => sessions.put().left_out.into_iter().next(),
        Err(refused) => {
            let mut refused = refused.into_iter();
            refused.next().map(|(at, why)| (config.sessions[at].id, why))
        }
    };
    if let Some((session, why)) = refused {
        return Err(UpfError::Session { session, why });
    }
    let reports = config
        .usage
        .as_ref()
        .map(|usage| Reports::start(Arc::clone(table), &usage.file, usage.format));
    let reports = reports.transpose()?;
    let api = config.api.as_ref().map(|path| {
        Api::start(Arc::clone(table), path).map_err(|source| UpfError::Api {
            path: path.clone(),
            source,
        })
    });
    Ok(Services {
        api: Mutex::new(api.transpose()?),
        unwritten: reports.as_ref().map(|reports| Arc::clone(reports.unwritten())),
        reports: Mutex::new(reports),
    })
}

impl Services {
    /// Returns the counter of reports that could not be written, if there is a file for them.
    pub(super) fn unwritten(&self) -> Option<&UnwrittenRecords> {
        self.unwritten.as_deref()
    }

    /// Makes the last reports, once no worker processes packets any more.
    pub(super) fn end_reports(&self) {
        let mut api = self.api.lock().unwrap_or_else(PoisonError::into_inner);
        // Sessions no longer change.
        drop(api.take());
        let reports = self.reports.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(reports) = reports.as_ref() {
            reports.end();
        }
    }

    /// Stops the threads. With a report file, waits until all reports are written.
    ///
    /// # Errors
    /// The first write error.
    pub fn finish(&self) -> Result<Option<Exported>, ExportError> {
        let mut api = self.api.lock().unwrap_or_else(PoisonError::into_inner);
        drop(api.take());
        let mut reports = self.reports.lock().unwrap_or_else(PoisonError::into_inner);
        reports.take().map(Reports::finish).transpose()
    }
}
