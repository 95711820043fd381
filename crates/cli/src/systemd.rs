//! Signs for systemd: that a service is ready, that it lives, that it ends. Nothing happens where systemd did not start
//! the program.

use sd_notify::NotifyState;
use std::time::{Duration, Instant};

/// Tells systemd of a service.
#[derive(Debug)]
pub struct Notifier {
    /// Time between signs of life, where systemd expects some.
    period: Option<Duration>,
    last: Instant,
}

impl Notifier {
    /// For this process.
    pub fn new() -> Notifier {
        Notifier {
            // Twice within the time that systemd waits.
            period: sd_notify::watchdog_enabled().map(|limit| limit / 2),
            last: Instant::now(),
        }
    }

    /// Called several times a second by the thread whose life is told.
    pub fn is_alive(&mut self) {
        if self.period.is_some_and(|period| self.last.elapsed() >= period) {
            self.last = Instant::now();
            send(&[NotifyState::Watchdog]);
        }
    }
}

/// The service is ready. `status` is a line for `systemctl status`.
pub fn is_ready(status: &str) {
    send(&[
        NotifyState::Ready,
        // Another process that systemd started may be the service from now on.
        NotifyState::MainPid(std::process::id()),
        NotifyState::Status(status),
    ]);
}

/// The service ends on request.
pub fn is_stopping() {
    send(&[NotifyState::Stopping]);
}

/// Messages that cannot be sent are lost: no packet waits for systemd.
fn send(states: &[NotifyState]) {
    let _ = sd_notify::notify(states);
}
