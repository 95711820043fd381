//! A server from its start to its end.

mod retry;
mod start;

pub use start::{Served, Start};

use crate::consolidation::{Consolidation, solver};
use crate::error::ServeError;
use crate::events::{Event, Severity};
use crate::files::{FolderWatcher, read_all};
use crate::generation::Store;
use crate::machine::Machine;
use crate::manager::Manager;
use crate::profiling::{ProfileQueue, Progress};
use crate::request::{Command, Request};
use crate::state::{LockedState, Paths, now};
use crate::status::Snapshot;
use retry::FolderRetry;
use start::{LateStore, Successors};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use tailwater_api::server::ServerSpec;

/// Time between observations of the machine, and within which a stop is noticed.
const TICK: Duration = Duration::from_millis(100);
/// Time between looks at watched folders. A change is applied after two of them.
const WATCH_PERIOD: Duration = Duration::from_millis(500);
/// Longest time that chains drain when the server ends.
const DRAIN: Duration = Duration::from_millis(500);
/// Maximum number of requests that wait.
const WAITING: usize = 64;

/// Configuration of a server.
#[derive(Clone, Debug)]
pub struct ServerConfig {
    /// Specification.
    pub spec: ServerSpec,
    /// Paths of its socket and its state.
    pub paths: Paths,
    /// Limits of the control API.
    #[cfg(feature = "control")]
    pub limits: crate::control::Limits,
}

/// Publisher of snapshots, once there is one.
type Publisher = Arc<Mutex<Option<Publish>>>;

/// Runs a server until `stop` is set: with the chains of its last generation, of its files and folders, and of the
/// control API, whose socket exists once these chains have started. `ready` is called then, and `warn` with each
/// warning. Returns when the chains have drained or half a second has passed, and the socket is removed.
///
/// # Errors
/// The server cannot start.
pub fn serve(
    config: &ServerConfig,
    state: LockedState,
    machine: impl Machine,
    stop: &AtomicBool,
    ready: impl FnOnce(),
    warn: impl FnMut(&Event),
) -> Result<(), ServeError> {
    serve_observed(config, Start::Alone(state), machine, stop, ready, warn, |_| ()).map(drop)
}

/// Same as [`serve`]; calls `observe` with each new state of the server, from its start on. It may
/// [take over](crate::take_over) from a running server, with a machine whose ports are paused, and ends when another
/// process has taken over from it.
///
/// # Errors
/// The server cannot start.
pub fn serve_observed(
    config: &ServerConfig,
    start: Start,
    machine: impl Machine,
    stop: &AtomicBool,
    ready: impl FnOnce(),
    mut warn: impl FnMut(&Event),
    mut observe: impl FnMut(&Snapshot) + Send + 'static,
) -> Result<Served, ServeError> {
    let mut store = LateStore::default();
    let (stored, removed, predecessor) = start.begin(&mut store, &config.paths)?;
    let (commands, requests) = sync_channel(WAITING);
    let started = now();
    let publisher = Publisher::default();
    let publish = |publisher: Publisher| {
        move |snapshot: Snapshot| {
            observe(&snapshot);
            let mut publisher = publisher.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some(publish) = &mut *publisher {
                publish(snapshot);
            }
        }
    };
    let publish = publish(Arc::clone(&publisher));
    let state_lock = store.clone();
    let mut manager = Manager::new(config.spec.clone(), machine, &mut store, started, publish);
    for file in removed {
        let message = format!("removed {file}, left by a server that was killed");
        manager.report(Severity::Normal, "Cleaned", &message, started);
    }
    manager.resume(stored, started);
    let taken = predecessor.take_over(&mut manager, (&state_lock, &config.paths), stop)?;
    let mut watcher = FolderWatcher::new(config.spec.chains.clone());
    // A server without a chain is of no use, unless the control API brings some. One that has taken over has chains.
    let lenient = taken.is_some() || config.spec.watch && !manager.configuration().chains.is_empty();
    let (mut queue, mut retry) = (ProfileQueue::default(), FolderRetry::default());
    start_files(&mut manager, &mut queue, (lenient, &mut retry), stop)?;
    let (control, publish) = start_control(config, commands)?;
    *publisher.lock().unwrap_or_else(PoisonError::into_inner) = Some(publish);
    let mut successors = Successors::bind(&config.paths, &mut manager);
    manager.report(Severity::Normal, "Serving", "the server is ready for requests", now());
    taken.report(&mut manager);
    ready();
    let mut served = Served::default();
    let mut consolidation = Consolidation::new(solver());
    let mut warned = 0;
    let mut next_watch = Instant::now() + WATCH_PERIOD;
    while !stop.load(Ordering::Relaxed) {
        take_requests(&mut manager, &mut queue, &requests);
        if config.spec.watch && Instant::now() >= next_watch {
            next_watch = Instant::now() + WATCH_PERIOD;
            let is_changed = watcher.poll();
            if is_changed {
                retry.restart();
            }
            if is_changed || retry.is_due(Instant::now()) {
                match manager.measures() {
                    true => queue.add_files(),
                    // A rejected change is reported as an event.
                    false => drop(apply_files(&mut manager, (true, &mut retry))),
                }
            }
        }
        manager.observe(now());
        queue.add_drifted(manager.take_drifted(now()));
        if let Progress::Files(ready) = queue.step(&mut manager, now()) {
            drop(apply_profiled(&mut manager, ready, (true, &mut retry)));
        }
        consolidation.step(&mut manager, now());
        if successors.poll(&mut manager, &mut served) {
            break;
        }
        let new = manager.events().after(warned);
        new.filter(|event| event.severity == Severity::Warning)
            .for_each(|event| warn(event));
        warned = manager.events().last();
    }
    // No request is accepted any more, and the socket is removed.
    drop(control);
    queue.cancel(&mut manager);
    shut_down(&mut manager);
    Ok(served)
}

type Publish = Box<dyn FnMut(Snapshot) + Send>;

#[cfg(feature = "control")]
fn start_control(
    config: &ServerConfig,
    commands: SyncSender<Command>,
) -> Result<(crate::control::ControlServer, Publish), ServeError> {
    let readers = config.spec.control.readers.as_deref();
    let control = crate::control::ControlServer::start(&config.paths.socket, readers, config.limits, commands)?;
    let publish = control.publisher();
    Ok((control, Box::new(publish)))
}

/// Without the control API, the sender is kept so that the channel stays open.
#[cfg(not(feature = "control"))]
fn start_control(
    _: &ServerConfig,
    commands: SyncSender<Command>,
) -> Result<(SyncSender<Command>, Publish), ServeError> {
    Ok((commands, Box::new(drop::<Snapshot>)))
}

/// Applies the chains of the specification's files and folders. With `lenient`, the last generation stays if they are
/// wrong, and an event says so. If a step failed, they are tried again.
fn apply_files<M: Machine, S: Store>(
    manager: &mut Manager<M, S>,
    (lenient, retry): (bool, &mut FolderRetry),
) -> Result<(), ServeError> {
    let read = read_all(&manager.server().chains).map_err(ServeError::Spec);
    let applied = read.and_then(|manifests| Ok(manager.apply_listed(&manifests, now()).map(drop)?));
    let wait = retry.note(&applied, Instant::now());
    match applied {
        Err(error) if lenient => {
            reject_files(manager, &error, wait);
            Ok(())
        }
        applied => applied,
    }
}

/// Applies the chains of the specification's files and folders at the start, after their profiles have been measured.
/// Returns early if the server is to stop.
fn start_files<M: Machine, S: Store>(
    manager: &mut Manager<M, S>,
    queue: &mut ProfileQueue,
    (lenient, retry): (bool, &mut FolderRetry),
    stop: &AtomicBool,
) -> Result<(), ServeError> {
    if !manager.measures() {
        return apply_files(manager, (lenient, retry));
    }
    queue.add_files();
    while !stop.load(Ordering::Relaxed) {
        match queue.step(manager, now()) {
            Progress::Files(ready) => return apply_profiled(manager, ready, (lenient, retry)),
            Progress::Done => {}
            Progress::Waits => {
                std::thread::sleep(TICK);
                manager.observe(now());
            }
        }
    }
    Ok(())
}

/// Applies files whose chains have profiles, or reports that they have none.
fn apply_profiled<M: Machine, S: Store>(
    manager: &mut Manager<M, S>,
    ready: Result<(), ServeError>,
    (lenient, retry): (bool, &mut FolderRetry),
) -> Result<(), ServeError> {
    match ready {
        Ok(()) => apply_files(manager, (lenient, retry)),
        Err(error) if lenient => {
            reject_files(manager, &error, None);
            Ok(())
        }
        Err(error) => Err(error),
    }
}

/// Reports that files were rejected, and when they are tried again, if they are.
fn reject_files<M: Machine, S: Store>(manager: &mut Manager<M, S>, error: &ServeError, again: Option<Duration>) {
    let again = again.filter(|_| manager.server().watch);
    let again = again.map_or(String::new(), |wait| format!("; tried again in {} s", wait.as_secs()));
    let message = format!("files of chains rejected, keeping the current configuration: {error}{again}");
    manager.report(Severity::Warning, "Rejected", &message, now());
}

/// Carries out requests for one tick.
fn take_requests<M: Machine, S: Store>(
    manager: &mut Manager<M, S>,
    queue: &mut ProfileQueue,
    requests: &Receiver<Command>,
) {
    let end = Instant::now() + TICK;
    while let Ok(command) = requests.recv_timeout(end.saturating_duration_since(Instant::now())) {
        let result = match command.request {
            Request::Apply(request) => {
                queue.apply(manager, request, command.reply, now());
                continue;
            }
            Request::Delete { names, dry_run: true } => manager.delete(&names, true, now()),
            Request::Delete { names, .. } => match queue.withdraw(manager, &names, now()) {
                left if left.is_empty() && !names.is_empty() => Ok(()),
                left => manager.delete(&left, false, now()),
            },
            Request::Drain(name) => {
                queue.supersede(manager, std::slice::from_ref(&name));
                manager.drain(&name, now())
            }
        };
        let generation = manager.generation();
        (command.reply)(result.map(|()| (Vec::new(), generation)));
    }
}

fn shut_down<M: Machine, S: Store>(manager: &mut Manager<M, S>) {
    manager.shut_down(now());
    let end = Instant::now() + DRAIN;
    while !manager.is_idle() && Instant::now() < end {
        std::thread::sleep(Duration::from_millis(5));
    }
}
