//! Request and answer rings between a worker and its thread for the store.

use crate::request::{Entry, Request};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use tailwater_chain::chain::PersistState;
use tailwater_handover::park::{Mode, Sleeper, Waker, park};
use tailwater_handover::ring::{Consumer, Producer, ring};

/// Requests per worker. While all are in flight, the open one gathers entries.
const REQUESTS: usize = 16;

/// Requests in flight while the store is responsive. More would each be small, and the rest buffer entries during an
/// outage.
const WINDOW: usize = 4;

/// Backend that answers requests.
pub trait Store: Send {
    /// Answers requests in order, and returns the store's incarnation, a number that changes if the store may have lost
    /// data.
    ///
    /// # Errors
    /// The cause of the failure. No request counts as answered then: all of them are sent again, in order.
    fn serve(&mut self, requests: &mut [Request]) -> Result<u32, Failure>;
}

/// Failure of the store to answer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Failure {
    /// One-line message for the operator.
    pub message: String,
    /// Only the connection may be lost while the store is available: worth an immediate retry.
    pub connection_lost: bool,
    /// Another instance has replaced this one: no further requests are allowed.
    pub fenced: bool,
}

/// Health of the store, shared by all threads.
#[derive(Debug)]
pub struct Health {
    available: AtomicBool,
    fenced: AtomicBool,
    failures: AtomicU64,
    last: Mutex<Option<String>>,
}

impl Health {
    /// An available store.
    pub fn new() -> Health {
        Health {
            available: AtomicBool::new(true),
            fenced: AtomicBool::new(false),
            failures: AtomicU64::new(0),
            last: Mutex::new(None),
        }
    }

    /// Returns `true` if the store answers.
    #[inline]
    pub fn is_available(&self) -> bool {
        self.available.load(Ordering::Relaxed)
    }

    /// Returns `true` if another instance has replaced this one, for good.
    #[inline]
    pub fn is_fenced(&self) -> bool {
        self.fenced.load(Ordering::Relaxed)
    }

    /// Number of failures.
    pub fn failures(&self) -> u64 {
        self.failures.load(Ordering::Relaxed)
    }

    /// Message of the last failure.
    pub fn last_failure(&self) -> Option<String> {
        let last = self.last.lock();
        last.unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn note(&self, failure: &Failure, available: bool) {
        self.fenced.fetch_or(failure.fenced, Ordering::Relaxed);
        self.available.store(available, Ordering::Relaxed);
        self.failures.fetch_add(1, Ordering::Relaxed);
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        *last = Some(failure.message.clone());
    }
}

impl Default for Health {
    fn default() -> Health {
        Health::new()
    }
}

/// Worker's end.
#[derive(Debug)]
pub struct Link {
    /// Request that gathers entries.
    open: Request,
    free: Vec<Request>,
    to: Producer<Request>,
    from: Consumer<Request>,
    /// Declared after the rings: wakes the server once they are closed.
    waker: LastCall,
    health: Arc<Health>,
    entries: usize,
}

/// Wakes the server on drop, too.
#[derive(Debug)]
struct LastCall(Waker);

impl Drop for LastCall {
    fn drop(&mut self) {
        self.0.wake();
    }
}

/// Store thread's end.
#[derive(Debug)]
pub struct Server {
    from: Consumer<Request>,
    to: Producer<Request>,
    sleeper: Sleeper,
    health: Arc<Health>,
}

/// Request number that counts as answered from the start.
pub const NONE: u64 = PersistState::ANSWERED;

/// Creates a link with room for `entries` entries in all requests together.
pub fn link(entries: usize, row_bytes: usize, health: Arc<Health>) -> (Link, Server) {
    let each = entries.div_ceil(REQUESTS).next_power_of_two();
    let (to, from_worker) = ring(REQUESTS);
    let (to_worker, from) = ring(REQUESTS);
    let (sleeper, waker) = park(Mode::Sleep);
    let request = || Request::with_room(each, row_bytes);
    let mut open = request();
    open.number = NONE + 1;
    let link = Link {
        open,
        free: (1..REQUESTS).map(|_| request()).collect(),
        to,
        from,
        waker: LastCall(waker),
        health: Arc::clone(&health),
        entries: each * REQUESTS,
    };
    let server = Server {
        from: from_worker,
        to: to_worker,
        sleeper,
        health,
    };
    (link, server)
}

impl Link {
    /// Health of the store.
    pub fn health(&self) -> &Health {
        &self.health
    }

    /// Number of the open request.
    #[inline]
    pub fn open(&self) -> u64 {
        self.open.number
    }

    /// Number of entries there is still room for.
    #[inline]
    pub fn room(&self) -> usize {
        self.open.room() + self.free.len() * self.open.entries.capacity()
    }

    /// Returns `true` if more than half of the total room is free.
    #[inline]
    pub fn has_half(&self) -> bool {
        2 * self.room() > self.entries
    }

    /// Returns `true` if every entry has been answered.
    pub fn is_quiet(&self) -> bool {
        self.open.entries.is_empty() && self.free.len() == REQUESTS - 1
    }

    /// Adds an entry, for which there must be [room](Link::room). Returns the request's number and the entry's index.
    #[inline]
    pub fn push(&mut self, entry: Entry) -> (u64, usize) {
        if self.open.room() == 0 {
            self.send();
        }
        let place = self.open.push(entry);
        (self.open.number, place)
    }

    /// Entry of the open request, with its row.
    #[inline]
    pub fn entry(&mut self, place: usize) -> (&mut Entry, &mut [u8]) {
        let request = &mut self.open;
        let row = place * request.row_bytes..(place + 1) * request.row_bytes;
        (&mut request.entries[place], &mut request.rows[row])
    }

    /// Sends the open request. While several requests are in flight, it stays open instead.
    #[inline]
    pub fn flush(&mut self) {
        let under_way = REQUESTS - 1 - self.free.len();
        if under_way < WINDOW && !self.open.entries.is_empty() {
            self.send();
        }
    }

    fn send(&mut self) {
        let Some(mut next) = self.free.pop() else {
            return;
        };
        next.number = self.open.number + 1;
        let full = std::mem::replace(&mut self.open, next);
        // The ring has room for all requests.
        let pushed = self.to.push(full);
        debug_assert!(pushed.is_ok());
        self.waker.0.wake();
    }

    /// Next answered request, which must be [returned](Link::give_back).
    #[inline]
    pub fn answer(&mut self) -> Option<Request> {
        self.from.pop()
    }

    /// Returns a request for reuse.
    #[inline]
    pub fn give_back(&mut self, mut request: Request) {
        request.clear();
        self.free.push(request);
    }
}

impl Server {
    /// Passes requests to the store and answers to the worker until the worker's end is dropped.
    pub fn run(mut self, store: &mut dyn Store) {
        /// Upper bound of a sleep, in case the worker cannot wake the server.
        const NAP: Duration = Duration::from_millis(200);
        const SHORTEST: Duration = Duration::from_millis(1);
        const LONGEST: Duration = Duration::from_millis(100);
        let mut asked: Vec<Request> = Vec::with_capacity(REQUESTS);
        let (mut pause, mut lost) = (SHORTEST, false);
        loop {
            let gone = self.from.is_closed();
            self.from
                .pop_each(REQUESTS - asked.len(), |request| asked.push(request));
            if asked.is_empty() {
                if gone {
                    return;
                }
                let from = &mut self.from;
                self.sleeper.wait(NAP, || !from.is_empty() || from.is_closed());
                continue;
            }
            match store.serve(&mut asked) {
                Ok(incarnation) => {
                    (pause, lost) = (SHORTEST, false);
                    self.health.available.store(true, Ordering::Relaxed);
                    for mut request in asked.drain(..) {
                        request.incarnation = incarnation;
                        let pushed = self.to.push(request);
                        debug_assert!(pushed.is_ok());
                    }
                }
                Err(failure) => {
                    let again = failure.connection_lost && !lost;
                    self.health.note(&failure, again);
                    if again {
                        lost = true;
                        continue;
                    }
                    if gone {
                        return;
                    }
                    if failure.fenced {
                        // Outstanding requests stay unanswered.
                        while !self.from.is_closed() {
                            self.rest(NAP);
                        }
                        return;
                    }
                    self.rest(pause);
                    pause = (2 * pause).min(LONGEST);
                }
            }
        }
    }

    /// Pauses before the next attempt, or until the worker's end is dropped.
    fn rest(&mut self, pause: Duration) {
        let until = Instant::now() + pause;
        while let Some(rest) = until.checked_duration_since(Instant::now())
            && !self.from.is_closed()
        {
            // New requests also end the wait.
            self.sleeper.wait(rest, || self.from.is_closed());
        }
    }
}
