//! Clients that are connected, and which of them has to leave for another.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::oneshot;

/// Clients that are connected.
#[derive(Clone, Debug)]
pub(super) struct Clients {
    inner: Arc<Mutex<Inner>>,
    most: usize,
}

#[derive(Debug, Default)]
struct Inner {
    clients: BTreeMap<u64, Entry>,
    last: u64,
}

#[derive(Debug)]
struct Entry {
    activity: Activity,
    /// Closes the connection when dropped.
    _open: oneshot::Sender<()>,
}

/// Calls of a client, shared between its connection and the bodies of its responses.
#[derive(Clone, Debug)]
pub(super) struct Activity(Arc<Mutex<Calls>>);

#[derive(Debug)]
struct Calls {
    /// For each call, the time since which the client has not taken what was sent; `None` if it has.
    unread: BTreeMap<u64, Option<Instant>>,
    last: u64,
    idle_since: Instant,
}

/// Client that is connected. Dropped when its connection ends.
#[derive(Debug)]
pub(super) struct Registered {
    clients: Clients,
    number: u64,
    /// Calls of the client.
    pub(super) activity: Activity,
    /// Resolves when the client has to leave.
    pub(super) closed: oneshot::Receiver<()>,
}

impl Clients {
    /// No clients, of at most `most`.
    pub(super) fn new(most: usize) -> Clients {
        Clients {
            inner: Arc::default(),
            most,
        }
    }

    /// Adds a client. If there are too many, the one that has been without calls longest has to leave. Returns `None`
    /// if there is none without calls.
    pub(super) fn register(&self, now: Instant) -> Option<Registered> {
        let mut inner = self.lock();
        if inner.clients.len() >= self.most {
            let idle = inner
                .clients
                .iter()
                .filter_map(|(number, entry)| Some((entry.activity.idle_since()?, *number)));
            let (_, number) = idle.min()?;
            inner.clients.remove(&number);
        }
        inner.last += 1;
        let number = inner.last;
        let activity = Activity(Arc::new(Mutex::new(Calls {
            unread: BTreeMap::new(),
            last: 0,
            idle_since: now,
        })));
        let (open, closed) = oneshot::channel();
        let entry = Entry {
            activity: activity.clone(),
            _open: open,
        };
        inner.clients.insert(number, entry);
        Some(Registered {
            clients: self.clone(),
            number,
            activity,
            closed,
        })
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Registered {
    fn drop(&mut self) {
        self.clients.lock().clients.remove(&self.number);
    }
}

impl Activity {
    /// Begins a call, and returns its number.
    pub(super) fn begin(&self) -> u64 {
        let mut calls = self.lock();
        calls.last += 1;
        let number = calls.last;
        calls.unread.insert(number, None);
        number
    }

    /// Ends a call.
    pub(super) fn end(&self, number: u64, now: Instant) {
        let mut calls = self.lock();
        calls.unread.remove(&number);
        calls.idle_since = now;
    }

    /// Records that something was sent in a call at this time, or, with `None`, that the client has taken everything.
    pub(super) fn sent(&self, number: u64, since: Option<Instant>) {
        if let Some(unread) = self.lock().unread.get_mut(&number) {
            *unread = since;
        }
    }

    /// Returns `true` if a client without calls is idle for longer than `idle`, or does not take what was sent for
    /// longer than `stalled`.
    pub(super) fn is_overdue(&self, now: Instant, idle: Duration, stalled: Duration) -> bool {
        let calls = self.lock();
        let is_stalled = |since: &Option<Instant>| since.is_some_and(|since| now.duration_since(since) > stalled);
        match calls.unread.is_empty() {
            true => now.duration_since(calls.idle_since) > idle,
            false => calls.unread.values().any(is_stalled),
        }
    }

    /// Time since which the client has no calls.
    fn idle_since(&self) -> Option<Instant> {
        let calls = self.lock();
        calls.unread.is_empty().then_some(calls.idle_since)
    }

    fn lock(&self) -> MutexGuard<'_, Calls> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn the_client_that_is_idle_longest_leaves() {
        let start = Instant::now();
        let clients = Clients::new(2);
        let mut one = clients.register(start).unwrap();
        let mut two = clients.register(start + SECOND).unwrap();
        let call = one.activity.begin();
        let mut three = clients.register(start + 2 * SECOND).unwrap();
        let is_closed = |client: &mut Registered| client.closed.try_recv() == Err(oneshot::error::TryRecvError::Closed);
        assert!(is_closed(&mut two) && !is_closed(&mut one));
        // Its end does not make room twice.
        drop(two);
        let _calling = three.activity.begin();
        assert!(clients.register(start).is_none());
        one.activity.end(call, start + 3 * SECOND);
        assert!(clients.register(start).is_some());
        assert!(is_closed(&mut one) && !is_closed(&mut three));
    }

    #[test]
    fn idle_and_stalled_clients_are_overdue() {
        let start = Instant::now();
        let client = Clients::new(1).register(start).unwrap();
        let activity = &client.activity;
        let is_overdue = |after: Duration| activity.is_overdue(start + after, 5 * SECOND, 2 * SECOND);
        assert!(!is_overdue(5 * SECOND) && is_overdue(6 * SECOND));
        let call = activity.begin();
        // A call that has nothing to send may take any time.
        assert!(!is_overdue(60 * SECOND));
        activity.sent(call, Some(start + 60 * SECOND));
        assert!(!is_overdue(62 * SECOND) && is_overdue(63 * SECOND));
        activity.sent(call, None);
        assert!(!is_overdue(90 * SECOND));
        activity.end(call, start + 90 * SECOND);
        assert!(!is_overdue(95 * SECOND) && is_overdue(96 * SECOND));
    }
}
