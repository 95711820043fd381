//! Between a worker and the thread that speaks to the store for it: requests go there and come back, by rings.

use crate::request::{Entry, Request};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use tailwater_handover::park::{Mode, Sleeper, Waker, park};
use tailwater_handover::ring::{Consumer, Producer, ring};

/// Requests that a worker has. While all are under way, the next one gathers what is asked.
const REQUESTS: usize = 16;

/// Requests under way in ordinary times. More would be small ones, and their room is wanted for hard times.
const WINDOW: usize = 4;

/// What answers requests.
pub trait Store: Send {
    /// Answers requests in order, and returns the store's incarnation: another number than before if it may have
    /// forgotten what it knew.
    ///
    /// # Errors
    /// What went wrong. Nothing is known of any request then: all of them are asked again, in order.
    fn serve(&mut self, requests: &mut [Request]) -> Result<u32, Failure>;
}

/// Why a store does not answer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Failure {
    /// In one line, for a person.
    pub message: String,
    /// Whether it may be so that the store is there, and only the connection is not any more: worth another try at
    /// once.
    pub connection_lost: bool,
    /// Whether another instance has taken this one's place: it is not to be asked anything any more.
    pub fenced: bool,
}

/// How a store is, for all who want to know.
#[derive(Debug)]
pub struct Health {
    available: AtomicBool,
    fenced: AtomicBool,
    failures: AtomicU64,
    last: Mutex<Option<String>>,
}

impl Health {
    /// A store that is there.
    pub fn new() -> Health {
        Health {
            available: AtomicBool::new(true),
            fenced: AtomicBool::new(false),
            failures: AtomicU64::new(0),
            last: Mutex::new(None),
        }
    }

    /// Whether the store answers.
    #[inline]
    pub fn is_available(&self) -> bool {
        self.available.load(Ordering::Relaxed)
    }

    /// Whether another instance has taken this one's place, for good.
    #[inline]
    pub fn is_fenced(&self) -> bool {
        self.fenced.load(Ordering::Relaxed)
    }

    /// How often it did not answer.
    pub fn failures(&self) -> u64 {
        self.failures.load(Ordering::Relaxed)
    }

    /// Why it last did not.
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

/// The worker's end.
#[derive(Debug)]
pub struct Link {
    /// What is being gathered.
    open: Request,
    free: Vec<Request>,
    to: Producer<Request>,
    from: Consumer<Request>,
    /// Behind the rings: when they have been closed, the server hears of it.
    waker: LastCall,
    health: Arc<Health>,
    entries: usize,
}

/// Wakes the server when the link is dropped, too.
#[derive(Debug)]
struct LastCall(Waker);

impl Drop for LastCall {
    fn drop(&mut self) {
        self.0.wake();
    }
}

/// The store's end.
#[derive(Debug)]
pub struct Server {
    from: Consumer<Request>,
    to: Producer<Request>,
    sleeper: Sleeper,
    health: Arc<Health>,
}

/// The number of the request before the first.
pub const NONE: u64 = 1;

/// A link with room for so many entries in all requests together.
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
    /// How the store is.
    pub fn health(&self) -> &Health {
        &self.health
    }

    /// The number of the request that is being gathered.
    #[inline]
    pub fn open(&self) -> u64 {
        self.open.number
    }

    /// How many more entries there is room for.
    #[inline]
    pub fn room(&self) -> usize {
        self.open.room() + self.free.len() * self.open.entries.capacity()
    }

    /// Whether more than half of all the room there is is left.
    #[inline]
    pub fn has_half(&self) -> bool {
        2 * self.room() > self.entries
    }

    /// Whether nothing is asked and not answered.
    pub fn is_quiet(&self) -> bool {
        self.open.entries.is_empty() && self.free.len() == REQUESTS - 1
    }

    /// Adds an entry, for which there is [room](Link::room), and returns the request's number and the entry's place.
    #[inline]
    pub fn push(&mut self, entry: Entry) -> (u64, usize) {
        if self.open.room() == 0 {
            self.send();
        }
        let place = self.open.push(entry);
        (self.open.number, place)
    }

    /// An entry of the request that is being gathered, with its row.
    #[inline]
    pub fn entry(&mut self, place: usize) -> (&mut Entry, &mut [u8]) {
        let request = &mut self.open;
        let row = place * request.row_bytes..(place + 1) * request.row_bytes;
        (&mut request.entries[place], &mut request.rows[row])
    }

    /// Sends what has been gathered, unless several requests are under way: then it goes on being gathered.
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
        // The ring has room for all requests there are.
        let pushed = self.to.push(full);
        debug_assert!(pushed.is_ok());
        self.waker.0.wake();
    }

    /// The next request that was answered. It is to be [given back](Link::give_back).
    #[inline]
    pub fn answer(&mut self) -> Option<Request> {
        self.from.pop()
    }

    /// Gives a request back for others.
    #[inline]
    pub fn give_back(&mut self, mut request: Request) {
        request.clear();
        self.free.push(request);
    }
}

impl Server {
    /// Hands requests to the store and answers to the worker until the worker has gone.
    pub fn run(mut self, store: &mut dyn Store) {
        /// The worker wakes its server; this is for the case that it cannot.
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
                        // What was asked stays without an answer.
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

    /// Lets the store alone for a while, or until the worker has gone.
    fn rest(&mut self, pause: Duration) {
        let until = Instant::now() + pause;
        while let Some(rest) = until.checked_duration_since(Instant::now())
            && !self.from.is_closed()
        {
            // New requests wake it, too.
            self.sleeper.wait(rest, || self.from.is_closed());
        }
    }
}
