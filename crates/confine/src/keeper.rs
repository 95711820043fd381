//! Whoever keeps a confined program: a thread that starts it, answers for the kernel what it may do, and cleans up when
//! it ends.
//!
//! The kernel ties a child that is to die with its parent to the *thread* that made it, so each program has one of its
//! own, which sleeps.

use std::io::{self, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::time::{Duration, Instant};
use std::{fs, thread};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendFlags, recvmsg, send};
use rustix::process::{Pid, PidfdFlags, WaitId, WaitIdOptions, pidfd_open, waitid};

use crate::cgroup::Group;
use crate::child::{self, Plan, Report, Step};
use crate::error::Error;
use crate::filter::{Filter, Listener, Notified, Syscall};
use crate::instance::Instance;
use crate::schedule;
use crate::shared::Shared;
use crate::stopped::{Status, Stopped};
use crate::sys::{self, Side};

/// How long a start may take, on a machine that is busy.
const START: Duration = Duration::from_secs(30);

/// What is to be started, and what goes with it.
#[derive(Debug)]
pub(crate) struct Order {
    pub plan: Plan,
    /// Namespaces of the child's.
    pub flags: u64,
    /// What is let pass; none: everything.
    pub filter: Option<Filter>,
    /// Our end of the way to the child, and the child's.
    pub status: (OwnedFd, OwnedFd),
    /// Open until the child has them.
    pub given: Vec<OwnedFd>,
    pub group: Group,
    pub instance: Instance,
    /// The user in the child's user namespace, if it has one of its own.
    pub map_user: Option<u32>,
    pub core: Option<usize>,
    pub container: Option<Runtime>,
}

/// The child is a container runtime, and the program a child of its.
#[derive(Debug)]
pub(crate) struct Runtime {
    /// Its path.
    pub path: PathBuf,
    /// Where it hands over the listener.
    pub socket: UnixListener,
    /// Where it writes what goes wrong.
    pub log: PathBuf,
    /// How many processes there may be once it is done, for it needs one more.
    pub processes: Option<u32>,
}

/// A program that has begun.
#[derive(Debug)]
pub(crate) struct Started {
    pub pid: Pid,
    pub process: OwnedFd,
    pub shared: Arc<Shared>,
}

/// The keeper's thread.
pub(crate) fn keep(order: Order, started: &Sender<Result<Started, Error>>) {
    // Whoever asks for the start may have a real-time priority. The keeper has none until the program is sealed, which
    // can keep it busy until then. To give one up is always permitted.
    let _ = schedule::keep_ahead_of(rustix::thread::gettid(), 0);
    // SAFETY: the child runs its plan and nothing else, which is system calls only.
    let side = unsafe { sys::clone(order.flags) };
    let (pid, process) = match side {
        // SAFETY: this is the child.
        Ok(Side::Child) => unsafe { child::run(&order.plan) },
        Ok(Side::Parent { pid, pidfd }) => {
            // SAFETY: the kernel has just made it, for us.
            (pid, unsafe { OwnedFd::from_raw_fd(pidfd) })
        }
        Err(errno) => {
            let error = io::Error::from_raw_os_error(errno);
            let _ = started.send(Err(Error::Clone { error }));
            return;
        }
    };
    let Order {
        filter,
        status: (status, childs),
        given,
        group,
        instance,
        map_user,
        core,
        container,
        ..
    } = order;
    drop((childs, given));
    let shared = Arc::new(Shared::new(process.try_clone().ok(), group));
    let mut keeper = Keeper {
        process,
        pid,
        shared,
        status: Some(status),
        executing: false,
        filter,
        listener: None,
        container,
        phase: Phase::Starting,
        started: Some(started.clone()),
    };
    if let Err(error) = keeper.set_up(map_user, core) {
        keeper.give_up(error);
    }
    keeper.watch();
    keeper.bury(instance);
}

/// How far the program is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// It is still ours, or the runtime's.
    Starting,
    /// It is the program.
    Program,
}

struct Keeper {
    process: OwnedFd,
    pid: i32,
    shared: Arc<Shared>,
    /// Until the child has become the program.
    status: Option<OwnedFd>,
    /// Whether it was about to.
    executing: bool,
    filter: Option<Filter>,
    listener: Option<Listener>,
    container: Option<Runtime>,
    phase: Phase,
    /// Whom to tell that it has started; none once told.
    started: Option<Sender<Result<Started, Error>>>,
}

/// What has happened.
#[derive(Clone, Copy, Debug, Default)]
struct Ready {
    ended: bool,
    status: bool,
    listener: bool,
    /// Whoever had the filter is gone.
    nobody_calls: bool,
    socket: bool,
}

impl Keeper {
    /// What only the agent can do for the child, which waits for it.
    fn set_up(&self, map_user: Option<u32>, core: Option<usize>) -> Result<(), Error> {
        if let Some(user) = map_user {
            for map in ["uid_map", "gid_map"] {
                let path = PathBuf::from(format!("/proc/{}/{map}", self.pid));
                crate::cgroup::write(&path, &format!("{user} {user} 1"))?;
            }
        }
        // A runtime is not bound by the program's limits, and puts the program into a group below.
        if self.container.is_none() {
            self.shared
                .with_group(|group| group.map_or(Ok(()), |group| group.add(self.pid)))?;
        }
        if let (Some(core), Some(pid)) = (core, Pid::from_raw(self.pid)) {
            schedule::set_core(pid, core)?;
        }
        if let Some(status) = &self.status {
            send(status, &[1], SendFlags::NOSIGNAL)?;
        }
        Ok(())
    }

    /// The start has failed: tells so, once, and ends it.
    fn give_up(&mut self, error: Error) {
        if let Some(started) = self.started.take() {
            let _ = started.send(Err(error));
        }
        self.shared.stop(Stopped::Agent);
    }

    /// It is the program now, with this number.
    fn has_started(&mut self, pid: i32, process: OwnedFd) {
        let pid = Pid::from_raw(pid);
        if let (Some(started), Some(pid)) = (self.started.take(), pid) {
            let shared = Arc::clone(&self.shared);
            let begun = Started { pid, process, shared };
            if started.send(Ok(begun)).is_err() {
                // Nobody waits for it any more.
                self.shared.stop(Stopped::Agent);
            }
        }
    }

    /// The runtime has made a process that is about to become the program.
    fn runtime_has_started(&mut self, pid: i32) -> Result<(), Error> {
        let Some(runtime) = &self.container else {
            return Ok(());
        };
        // What was only for the runtime ends.
        if let Some(limit) = runtime.processes {
            self.shared
                .with_group(|group| group.map_or(Ok(()), |group| group.limit_processes(limit)))?;
        }
        let number = Pid::from_raw(pid).ok_or(io::Error::from(io::ErrorKind::NotFound))?;
        let process = pidfd_open(number, PidfdFlags::empty())?;
        self.shared.has_program(process.try_clone()?);
        self.has_started(pid, process);
        Ok(())
    }

    /// Until it has ended.
    fn watch(&mut self) {
        let deadline = Instant::now() + START;
        loop {
            let patience = self
                .started
                .is_some()
                .then(|| deadline.saturating_duration_since(Instant::now()));
            let ready = match self.poll(patience) {
                Ok(ready) => ready,
                Err(error) => {
                    self.give_up(error.into());
                    return;
                }
            };
            if let Some(patience) = patience
                && patience.is_zero()
            {
                self.give_up(Error::Lost(format!("it had {} s", START.as_secs())));
            }
            if ready.socket
                && let Err(error) = self.take_listener()
            {
                self.give_up(error.into());
            }
            if ready.listener {
                self.answer();
            }
            if ready.nobody_calls {
                self.listener = None;
            }
            if ready.status {
                self.hear();
            }
            if ready.ended {
                return;
            }
        }
    }

    fn poll(&self, patience: Option<Duration>) -> io::Result<Ready> {
        let readable = |descriptor| PollFd::from_borrowed_fd(descriptor, PollFlags::IN);
        let mut waited = vec![readable(self.process.as_fd())];
        let mut add = |descriptor: Option<_>| {
            descriptor.map(|descriptor| {
                waited.push(readable(descriptor));
                waited.len() - 1
            })
        };
        let status = add(self.status.as_ref().map(AsFd::as_fd));
        let listener = add(self.listener.as_ref().map(AsFd::as_fd));
        // A runtime hands over one listener.
        let socket = match (&self.container, &self.listener) {
            (Some(runtime), None) if self.phase == Phase::Starting => add(Some(runtime.socket.as_fd())),
            _ => None,
        };
        let timeout = patience.map(|patience| Timespec {
            tv_sec: patience.as_secs() as i64,
            tv_nsec: patience.subsec_nanos().into(),
        });
        match poll(&mut waited, timeout.as_ref()) {
            Ok(_) => {}
            Err(rustix::io::Errno::INTR) => return Ok(Ready::default()),
            Err(errno) => return Err(errno.into()),
        }
        let is = |at: Option<usize>| at.is_some_and(|at| !waited[at].revents().is_empty());
        let calls = |at: usize| waited[at].revents().contains(PollFlags::IN);
        Ok(Ready {
            ended: is(Some(0)),
            status: is(status),
            listener: listener.is_some_and(calls),
            nobody_calls: is(listener) && !listener.is_some_and(calls),
            socket: is(socket),
        })
    }

    /// What the child says: its listener, a failure, or by silence that it is the program now.
    fn hear(&mut self) {
        let Some(status) = &self.status else {
            return;
        };
        match receive(status) {
            Ok(Some((Report::Listener, Some(listener)))) => {
                self.listener = Some(Listener::new(listener));
            }
            Ok(Some((Report::Failed { step, errno }, _))) => {
                let error = io::Error::from_raw_os_error(errno);
                self.status = None;
                self.give_up(match self.container {
                    Some(ref runtime) if step == Step::Execute => Error::Runtime {
                        runtime: runtime.path.clone(),
                        reason: error.to_string(),
                    },
                    _ => Error::Step { step, error },
                });
            }
            Ok(Some((Report::Listener, None))) | Err(_) => {
                self.status = None;
                self.give_up(Error::Lost("its report is cut off".into()));
            }
            Ok(Some((Report::Executing, _))) => self.executing = true,
            Ok(None) => {
                self.status = None;
                // A runtime has only begun. A child that was killed before says no more, either: `bury` tells that.
                if self.container.is_none() && self.executing {
                    self.phase = Phase::Program;
                    match self.process.try_clone() {
                        Ok(process) => self.has_started(self.pid, process),
                        Err(error) => self.give_up(error.into()),
                    }
                }
            }
        }
    }

    /// The runtime hands over where the program's calls are put.
    fn take_listener(&mut self) -> io::Result<()> {
        let Some(runtime) = &self.container else {
            return Ok(());
        };
        let (connection, _) = runtime.socket.accept()?;
        // With it comes a description of the container, which we know.
        let mut about = [0u8; 16 << 10];
        let (_, listener) = receive_bytes(&connection, &mut about)?;
        self.listener = listener.map(Listener::new);
        Ok(())
    }

    /// Answers one call that the kernel puts to us.
    fn answer(&mut self) {
        let Some(listener) = &self.listener else {
            return;
        };
        let notified = match listener.receive() {
            Ok(Some(notified)) => notified,
            Ok(None) => return,
            // Whoever had the filter is gone.
            Err(_) => {
                self.listener = None;
                return;
            }
        };
        if !self.allows(&notified) {
            // It gets no answer, so the call is never made: it is dead when the kernel gives that up. Listening on would
            // only keep us busy, and its core from it, which it needs to end.
            self.shared.stop(Stopped::Seccomp(Syscall(notified.call)));
            self.listener = None;
            return;
        }
        if self.phase == Phase::Starting && is_execute(&notified) {
            self.phase = Phase::Program;
            if let Err(error) = self.runtime_has_started(notified.pid as i32) {
                self.give_up(error);
                return;
            }
        }
        if let Some(listener) = &self.listener {
            listener.let_pass(&notified);
        }
    }

    fn allows(&self, notified: &Notified) -> bool {
        match (&self.filter, self.phase) {
            // What the runtime still does, and becoming the program, once.
            (None, _) | (_, Phase::Starting) => true,
            (Some(filter), Phase::Program) => {
                !self.shared.is_sealed() && filter.allows_loading(notified.call, &notified.arguments)
            }
        }
    }

    /// Takes its status, and removes all that was made for it.
    fn bury(mut self, instance: Instance) {
        let status = self.reap();
        let group = self.shared.has_ended(status);
        if let Some(started) = self.started.take() {
            let _ = started.send(Err(self.why_not(status)));
        }
        // The kernel takes milliseconds to remove a group.
        drop((group, instance));
        self.shared.is_buried();
    }

    fn reap(&self) -> Status {
        /// Also children whose end signals nobody (`__WALL`).
        const ALL: u32 = 0x4000_0000;
        let options = WaitIdOptions::EXITED | WaitIdOptions::from_bits_retain(ALL);
        loop {
            match waitid(WaitId::PidFd(self.process.as_fd()), options) {
                Ok(Some(status)) => {
                    return match (status.exit_status(), status.terminating_signal()) {
                        (Some(code), _) => self.exited(code),
                        (_, Some(signal)) => Status::Signal(signal),
                        _ => Status::Unknown,
                    };
                }
                Err(rustix::io::Errno::INTR) => {}
                Ok(None) | Err(_) => return Status::Unknown,
            }
        }
    }

    /// A runtime says by its own status how the program ended, as shells do.
    fn exited(&self, code: i32) -> Status {
        match code - 128 {
            signal if self.container.is_some() && signal > 0 => Status::Signal(signal),
            _ => Status::Exited(code),
        }
    }

    fn why_not(&self, status: Status) -> Error {
        let Some(runtime) = &self.container else {
            return Error::Lost(status.to_string());
        };
        let log = fs::read_to_string(&runtime.log).unwrap_or_default();
        let last = log.lines().last().unwrap_or("it said nothing");
        Error::Runtime {
            runtime: runtime.path.clone(),
            reason: format!("{status}: {last}"),
        }
    }
}

fn is_execute(notified: &Notified) -> bool {
    notified.call == libc::SYS_execve as u32 || notified.call == libc::SYS_execveat as u32
}

/// The child's next report, none if there are no more.
fn receive(status: &OwnedFd) -> io::Result<Option<(Report, Option<OwnedFd>)>> {
    let mut bytes = [0; Report::SIZE];
    let (count, descriptor) = receive_bytes(status, &mut bytes)?;
    if count == 0 {
        return Ok(None);
    }
    match Report::decode(&bytes[..count]) {
        Some(report) => Ok(Some((report, descriptor))),
        None => Err(io::ErrorKind::InvalidData.into()),
    }
}

/// Bytes, and the first descriptor with them.
fn receive_bytes(socket: &impl AsFd, bytes: &mut [u8]) -> io::Result<(usize, Option<OwnedFd>)> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(4))];
    let mut rights = RecvAncillaryBuffer::new(&mut space);
    let received = recvmsg(
        socket,
        &mut [IoSliceMut::new(bytes)],
        &mut rights,
        RecvFlags::CMSG_CLOEXEC,
    )?;
    debug_assert!(!received.flags.contains(ReturnFlags::CTRUNC));
    let descriptor = rights
        .drain()
        .filter_map(|message| match message {
            RecvAncillaryMessage::ScmRights(mut descriptors) => descriptors.next(),
            _ => None,
        })
        .next();
    Ok((received.bytes, descriptor))
}

/// Starts the keeper's thread.
pub(crate) fn start(order: Order) -> Result<(Started, thread::JoinHandle<()>), Error> {
    let (tell, told) = std::sync::mpsc::channel();
    let thread = thread::Builder::new()
        .name("keeper".into())
        .spawn(move || keep(order, &tell))?;
    match told.recv() {
        Ok(Ok(started)) => Ok((started, thread)),
        Ok(Err(error)) => {
            let _ = thread.join();
            Err(error)
        }
        Err(_) => {
            let _ = thread.join();
            Err(Error::Lost("its keeper ended".into()))
        }
    }
}

/// Raw, for a plan.
pub(crate) fn raw(descriptors: &[OwnedFd]) -> Vec<i32> {
    descriptors.iter().map(AsRawFd::as_raw_fd).collect()
}
