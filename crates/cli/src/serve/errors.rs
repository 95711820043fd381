//! Errors of a server's start.

use crate::error::CliError;
use tailwater_server::ServeError;
use tailwater_server::take_over::TakeOverError;

/// Error of a server that did not start.
pub(super) fn not_served(error: ServeError) -> CliError {
    CliError::Server {
        message: error.to_string(),
        is_input: matches!(
            error,
            ServeError::Spec(_)
                | ServeError::Chains(_)
                | ServeError::NoGroup(_)
                | ServeError::TakeOver(TakeOverError::NoServer { .. } | TakeOverError::Refused(_))
        ),
    }
}
