//! Start of a server: alone, or with what a running one hands over; and its end by another one.

use crate::error::ServeError;
use crate::events::Severity;
use crate::generation::{StateFolder, Store, StoredGeneration};
use crate::machine::Machine;
use crate::manager::Manager;
use crate::state::{LockedState, Paths, now, state_error};
#[cfg(feature = "control")]
use crate::take_over::{Predecessor, Successor, TakeOverSocket};
use std::cell::RefCell;
use std::io::{self, ErrorKind};
use std::rc::Rc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

/// Longest wait for the state folder and the sockets of a server that was taken over.
#[cfg(feature = "control")]
const HANDED_OVER: Duration = Duration::from_secs(30);
/// Time between two attempts.
const RETRY: Duration = Duration::from_millis(5);

/// Start of a server.
#[derive(Debug)]
pub enum Start {
    /// With the last generation in its state folder.
    Alone(LockedState),
    /// With everything of a running server.
    #[cfg(feature = "control")]
    TakeOver(Box<Predecessor>),
}

/// Result of a server's run.
#[derive(Debug, Default)]
pub struct Served {
    /// Server that has taken over, if one has. It waits for the final counts.
    #[cfg(feature = "control")]
    pub successor: Option<Successor>,
}

/// Store in a state folder that may be locked later.
#[derive(Clone, Debug, Default)]
pub(super) struct LateStore(Rc<RefCell<Option<StateFolder>>>);

impl Store for LateStore {
    fn store_after(&mut self, generation: &StoredGeneration, carry_out: &mut dyn FnMut() -> bool) -> io::Result<()> {
        match &mut *self.0.borrow_mut() {
            Some(folder) => folder.store_after(generation, carry_out),
            None => Err(ErrorKind::WouldBlock.into()),
        }
    }
}

/// Server to take over from, if there is one.
pub(super) struct FromPredecessor {
    #[cfg(feature = "control")]
    predecessor: Option<Box<Predecessor>>,
}

/// Take-over that has taken place, if one has.
pub(super) struct Taken {
    /// Message of its event, and whether something is missing.
    event: Option<(String, bool)>,
    /// Time of the take-over.
    at: Instant,
}

impl Start {
    /// Returns the generation to start with, and files that were removed.
    pub(super) fn begin(
        self,
        store: &mut LateStore,
        paths: &Paths,
    ) -> Result<(StoredGeneration, Vec<String>, FromPredecessor), ServeError> {
        match self {
            Start::Alone(LockedState { store: folder, removed }) => {
                let stored = folder.load().map_err(|source| state_error(&paths.state, source))?;
                *store.0.borrow_mut() = Some(folder);
                let nobody = FromPredecessor {
                    #[cfg(feature = "control")]
                    predecessor: None,
                };
                Ok((stored, removed, nobody))
            }
            #[cfg(feature = "control")]
            Start::TakeOver(predecessor) => {
                let predecessor = Some(predecessor);
                let stored = predecessor.as_ref().map(|predecessor| predecessor.generation());
                Ok((stored.unwrap_or_default(), Vec::new(), FromPredecessor { predecessor }))
            }
        }
    }
}

impl FromPredecessor {
    /// Takes over, and locks the state folder once the other server has ended.
    pub(super) fn take_over<M: Machine, S: Store>(
        self,
        manager: &mut Manager<M, S>,
        (store, paths): (&LateStore, &Paths),
        stop: &AtomicBool,
    ) -> Result<Taken, ServeError> {
        let none = Taken {
            event: None,
            at: Instant::now(),
        };
        #[cfg(not(feature = "control"))]
        let _ = (manager, store, paths, stop);
        #[cfg(feature = "control")]
        if let Some(predecessor) = self.predecessor {
            let completed = predecessor.take(manager, stop)?;
            let at = Instant::now();
            let locked = retry(|| LockedState::lock_after(paths))?;
            *store.0.borrow_mut() = Some(locked.store);
            // With the other server's counts, before the first client reads them.
            manager.observe(now());
            let taken = completed.taken;
            let refused = match taken.refused {
                0 => String::new(),
                refused => format!(", {refused} more found no slot in a flow table"),
            };
            let counts = match &completed.counts {
                Some(_) => "",
                None => "; its final counts are missing",
            };
            let message = format!(
                "took over from process {}: {:.1} ms without processing, {} flows ({} bytes) passed \
                 over{refused}{counts}",
                completed.process,
                taken.gap as f64 / 1e6,
                taken.flows,
                taken.bytes,
            );
            let is_incomplete = taken.refused > 0 || completed.counts.is_none();
            return Ok(Taken {
                event: Some((message, is_incomplete)),
                at,
            });
        }
        Ok(none)
    }
}

/// Repeats a step while a server that ends still has what it needs.
#[cfg(feature = "control")]
fn retry<T>(mut step: impl FnMut() -> Result<T, ServeError>) -> Result<T, ServeError> {
    let end = Instant::now() + HANDED_OVER;
    loop {
        match step() {
            Err(ServeError::Running(_)) if Instant::now() < end => std::thread::sleep(RETRY),
            result => return result,
        }
    }
}

/// Longest wait until packets that waited are counted.
const COUNTED: Duration = Duration::from_millis(50);

impl Taken {
    /// Returns `true` if a take-over has taken place.
    pub(super) fn is_some(&self) -> bool {
        self.event.is_some()
    }

    /// Reports the take-over.
    pub(super) fn report<M: Machine, S: Store>(self, manager: &mut Manager<M, S>) {
        let Some((message, is_incomplete)) = self.event else {
            return;
        };
        // They are counted while the chains process them.
        while self.at.elapsed() < COUNTED {
            std::thread::sleep(RETRY);
        }
        let message = format!("{message}, {} packets waited", manager.machine().waited());
        let severity = match is_incomplete {
            true => Severity::Warning,
            false => Severity::Normal,
        };
        manager.report(severity, "TookOver", &message, now());
    }
}

/// Servers that want to take over from this one.
#[cfg(feature = "control")]
pub(super) struct Successors(Option<TakeOverSocket>);

#[cfg(feature = "control")]
impl Successors {
    /// Listens for them. If that is not possible, an event says so.
    pub(super) fn bind<M: Machine, S: Store>(paths: &Paths, manager: &mut Manager<M, S>) -> Successors {
        let socket = retry(|| TakeOverSocket::bind(paths));
        let socket = socket.map_err(|error| {
            let message = format!("no other process can take over: {error}");
            manager.report(Severity::Warning, "NoTakeOver", &message, now());
        });
        Successors(socket.ok())
    }

    /// Answers them. Returns `true` if one has taken over.
    pub(super) fn poll<M: Machine, S: Store>(&mut self, manager: &mut Manager<M, S>, served: &mut Served) -> bool {
        served.successor = self.0.as_mut().and_then(|socket| socket.poll(manager, now()));
        served.successor.is_some()
    }
}

/// Without the control API, no other server can take over.
#[cfg(not(feature = "control"))]
pub(super) struct Successors;

#[cfg(not(feature = "control"))]
impl Successors {
    pub(super) fn bind<M: Machine, S: Store>(_: &Paths, _: &mut Manager<M, S>) -> Successors {
        Successors
    }

    pub(super) fn poll<M: Machine, S: Store>(&mut self, _: &mut Manager<M, S>, _: &mut Served) -> bool {
        false
    }
}
