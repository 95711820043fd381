//! Selection of the method that divides the cache during measurements: the requested one, or the best available.

use super::args::{CacheBy, MeasureArgs};
use crate::error::CliError;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use tailwater_profile::SweepError;
use tailwater_profile::cache::{CacheControl, CacheError, Partitioned, Pirate, sharing};
use tailwater_resctrl::{Error, Settings};

/// Selected method, with the reason.
pub struct Division {
    way: DivisionMethod,
    pub because: String,
}

enum DivisionMethod {
    Partition(Box<Partitioned>),
    Pirate,
}

impl Division {
    /// Selects the requested method, or else `resctrl` if it can assign ways of the cache, or else a pirate.
    ///
    /// # Errors
    /// The requested method is not available. Also if `resctrl` exists but cannot be used now, since others use it or
    /// the kernel refuses. Curves of both methods cannot be compared, and the method must not depend on other programs.
    pub fn choose(core: usize, args: &MeasureArgs) -> Result<Division, CliError> {
        let pirate = |because: String| {
            pirate_core(core, args.pirate_core)?;
            Ok(Division {
                way: DivisionMethod::Pirate,
                because,
            })
        };
        if let (Some(CacheBy::Resctrl), Some(_)) = (args.cache_by, args.pirate_core) {
            let told = "--pirate-core: expected --cache-by pirate, found resctrl";
            return Err(CliError::Input(told.to_owned()));
        }
        let flag = match (args.cache_by, args.pirate_core) {
            (Some(CacheBy::Pirate), _) => Some("--cache-by"),
            (None, Some(_)) => Some("--pirate-core"),
            _ => None,
        };
        if let Some(flag) = flag {
            return pirate(format!("selected by {flag}"));
        }
        let asked = args.cache_by == Some(CacheBy::Resctrl);
        match Partitioned::new(core, Settings::default()) {
            Ok(partitioned) => {
                let [ways, most] = partitioned.ways();
                let has = format!("the last-level cache has {ways} ways, {most} of them available");
                Ok(Division {
                    way: DivisionMethod::Partition(Box::new(partitioned)),
                    because: match asked {
                        true => format!("selected by --cache-by; {has}"),
                        false => has,
                    },
                })
            }
            Err(error) if asked => Err(CliError::Input(format!("--cache-by resctrl: {error}"))),
            Err(CacheError::Resctrl(error)) if is_missing(&error) => pirate(error.to_string()),
            Err(error @ (CacheError::Resctrl(_) | CacheError::NoChoice { .. })) => Err(CliError::Input(format!(
                "resctrl is present, but cannot be used now: {error}; --cache-by pirate measures without it"
            ))),
            Err(error) => Err(CliError::Sweep(SweepError::Cache(error))),
        }
    }

    /// Starts dividing the cache. A pirate's thread starts now.
    ///
    /// # Errors
    /// The pirate cannot be started.
    pub fn begin(
        self,
        core: usize,
        beside: Option<usize>,
        stop: &Arc<AtomicBool>,
    ) -> Result<Box<dyn CacheControl>, CacheError> {
        Ok(match self.way {
            DivisionMethod::Partition(partitioned) => partitioned,
            DivisionMethod::Pirate => Box::new(Pirate::new(core, beside, stop)?),
        })
    }
}

/// Returns `true` if `resctrl` does not exist, or not for this user. Transient errors do not count.
fn is_missing(error: &Error) -> bool {
    matches!(
        error,
        Error::Absent { .. } | Error::Unsupported { .. } | Error::Denied { .. } | Error::ReadOnly { .. }
    )
}

/// Checks that there is a core for the pirate.
fn pirate_core(core: usize, beside: Option<usize>) -> Result<(), CliError> {
    let others = sharing(core);
    match beside {
        Some(beside) if !others.contains(&beside) => Err(CliError::Input(format!(
            "--pirate-core: expected another core that shares the last-level cache of core {core}, found {beside}"
        ))),
        None if others.is_empty() => Err(CliError::Input(CacheError::Alone { core }.to_string())),
        _ => Ok(()),
    }
}
