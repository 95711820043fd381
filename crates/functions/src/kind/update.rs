//! Change of a function's configuration while its chain runs.

use std::any::Any;
use std::sync::Arc;
use tailwater_chain::live::Live;

/// Change of a function's configuration.
#[derive(Clone, Copy, Debug)]
pub struct ConfigUpdate<'a> {
    /// Current configuration, which has the type of its function's kind.
    pub old: &'a dyn Any,
    /// Configuration to change to.
    pub new: &'a dyn Any,
    /// `true` if flow state is stored externally.
    pub has_external_state: bool,
}

impl<'a> ConfigUpdate<'a> {
    /// Returns the current and the new configuration as `T`.
    ///
    /// # Errors
    /// If the function's kind has changed.
    pub fn configs<T: Any>(&self) -> Result<(&'a T, &'a T), UpdateError> {
        let both = self.old.downcast_ref().zip(self.new.downcast_ref());
        both.ok_or(UpdateError::Fixed("this function"))
    }
}

/// Reason why a configuration is rejected, on one line.
#[derive(Debug, thiserror::Error)]
pub enum UpdateError {
    /// These settings cannot change while the chain runs.
    #[error("expected {0} as at the start of the run: this change requires a restart")]
    Fixed(&'static str),
    /// The configuration is valid but cannot run.
    #[error("{0}")]
    Rejected(String),
}

impl UpdateError {
    /// Creates an error from its cause.
    pub fn rejected(cause: impl ToString) -> UpdateError {
        UpdateError::Rejected(cause.to_string())
    }
}

/// Prepared version of a function.
pub struct PreparedUpdate {
    /// Summary for a user: a number and a noun.
    pub(crate) summary: String,
    /// Applies the version. Returns its number, and a note on parts that are left out, if any.
    pub(crate) apply: Box<dyn FnOnce() -> (u32, Option<String>)>,
}

impl PreparedUpdate {
    /// Creates an update that `apply` puts into force. `apply` returns the version's number, and a note on parts that
    /// are left out, if any.
    pub fn new(summary: String, apply: impl FnOnce() -> (u32, Option<String>) + 'static) -> PreparedUpdate {
        let apply = Box::new(apply);
        PreparedUpdate { summary, apply }
    }

    /// Prepares the next value of a [`Live`] in `holder`.
    pub fn of_live<H: 'static, T: 'static>(
        summary: String,
        holder: &Arc<H>,
        value: T,
        live: fn(&H) -> &Live<T>,
    ) -> PreparedUpdate {
        let holder = Arc::clone(holder);
        live(&holder).free_unused();
        PreparedUpdate::new(summary, move || (live(&holder).replace(value), None))
    }
}

/// Formats a number with its noun.
pub(crate) fn count(number: usize, what: &str) -> String {
    match number {
        1 => format!("1 {what}"),
        _ => format!("{number} {what}s"),
    }
}
