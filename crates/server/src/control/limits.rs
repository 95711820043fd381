//! Limits of what clients of the control API can use.

use std::time::Duration;

/// Limits of the control API.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Maximum number of clients. One more closes the connection that has been idle longest, or is refused.
    pub clients: usize,
    /// Maximum number of calls of a client at a time.
    pub calls: u32,
    /// Maximum number of calls of all clients that follow events or statuses.
    pub followers: usize,
    /// Largest message of a client in bytes.
    pub message_bytes: usize,
    /// Time after which a connection without calls is closed.
    pub idle: Duration,
    /// Longest time that a client takes to send a request.
    pub request: Duration,
    /// Longest time that a client takes to read what is sent.
    pub stalled: Duration,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            clients: 64,
            calls: 16,
            followers: 64,
            message_bytes: 4 << 20,
            idle: Duration::from_secs(60),
            request: Duration::from_secs(10),
            stalled: Duration::from_secs(10),
        }
    }
}
