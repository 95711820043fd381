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

#[cfg(test)]
mod tests {
    use super::*;

    /// Exit code 2 says that repeating the command does not help.
    #[test]
    fn a_take_over_that_may_succeed_later_is_no_mistake_of_the_input() {
        let is_input = |error: TakeOverError| match not_served(error.into()) {
            CliError::Server { is_input, message } => {
                assert_eq!(message, "take-over refused, the running server goes on: start it again");
                is_input
            }
            other => panic!("{other}"),
        };
        assert!(!is_input(TakeOverError::RefusedForNow("start it again".to_owned())));
        assert!(is_input(TakeOverError::Refused("start it again".to_owned())));
    }
}
