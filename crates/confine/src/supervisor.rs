//! Supervisor of a confined program: a thread that starts it, answers its seccomp notifications, and cleans up when it
//! ends.
//!
//! The kernel ties the parent-death signal to the *thread* that created the child, so each program has a thread of its
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

use crate::agent::{ThreadRole, keep_capabilities};
use crate::cgroup::Group;
use crate::child::{self, Plan, Report, Step};
use crate::error::Error;
use crate::filter::{Filter, Listener, Notified, Syscall};
use crate::instance::Instance;
use crate::schedule;
use crate::shared::Shared;
use crate::stopped::{Status, Stopped};
use crate::sys::{self, Side};

/// Time limit of a start, on a busy machine.
const START: Duration = Duration::from_secs(30);

/// Start request: the child's plan, and the resources that go with it.
#[derive(Debug)]
pub(crate) struct StartRequest {
    pub plan: Plan,
    /// Namespaces of the child (`CLONE_NEW*`).
    pub flags: u64,
    /// System calls allowed while loading; none: all calls.
    pub filter: Option<Filter>,
    /// Status socket: our end and the child's.
    pub status: (OwnedFd, OwnedFd),
    /// Descriptors kept open until the child has them.
    pub given: Vec<OwnedFd>,
    pub group: Group,
    pub instance: Instance,
    /// User ID in the child's user namespace, if it has one.
    pub map_user: Option<u32>,
    pub core: Option<usize>,
    pub container: Option<Runtime>,
}

/// Container runtime, if the child is one and the program is its child.
#[derive(Debug)]
pub(crate) struct Runtime {
    /// Path of the runtime.
    pub path: PathBuf,
    /// Socket on which it passes the notification descriptor.
    pub socket: UnixListener,
    /// Log file of its errors.
    pub log: PathBuf,
    /// Process limit once the runtime is done. Until then it needs one more.
    pub processes: Option<u32>,
}

/// Program that has started.
#[derive(Debug)]
pub(crate) struct Started {
    pub pid: Pid,
    pub process: OwnedFd,
    pub shared: Arc<Shared>,
}

/// Body of the supervisor thread.
pub(crate) fn supervise(order: StartRequest, started: &Sender<Result<Started, Error>>) {
    // The thread that requested the start may have real-time priority. The supervisor has none until the program is
    // sealed, because a loading program can keep it busy. Giving up priority is always permitted.
    let _ = schedule::raise_above(rustix::thread::gettid(), 0);
    // SAFETY: the child only runs its plan, which consists of system calls.
    let side = unsafe { sys::clone(order.flags) };
    let (pid, process) = match side {
        // SAFETY: this is the child.
        Ok(Side::Child) => unsafe { child::run(&order.plan) },
        Ok(Side::Parent { pid, pidfd }) => {
            // SAFETY: the kernel has just created this descriptor, and nothing else owns it.
            (pid, unsafe { OwnedFd::from_raw_fd(pidfd) })
        }
        Err(errno) => {
            let error = io::Error::from_raw_os_error(errno);
            let _ = started.send(Err(Error::Clone { error }));
            return;
        }
    };
    let StartRequest {
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
    let mut supervisor = Supervisor {
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
    if let Err(error) = supervisor.set_up(map_user, core) {
        supervisor.give_up(error);
    }
    supervisor.watch();
    supervisor.clean_up(instance);
}

/// Progress of the start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// The child still runs our code, or the runtime's.
    Starting,
    /// The child has executed the program.
    Program,
}

struct Supervisor {
    process: OwnedFd,
    pid: i32,
    shared: Arc<Shared>,
    /// Status socket, until the child has executed the program.
    status: Option<OwnedFd>,
    /// `true`: the child has reported that `execve` is its next step.
    executing: bool,
    filter: Option<Filter>,
    listener: Option<Listener>,
    container: Option<Runtime>,
    phase: Phase,
    /// Channel for the outcome of the start; none once it is reported.
    started: Option<Sender<Result<Started, Error>>>,
}

/// Events returned by one poll.
#[derive(Clone, Copy, Debug, Default)]
struct Ready {
    ended: bool,
    status: bool,
    listener: bool,
    /// No process with the filter is left.
    nobody_calls: bool,
    socket: bool,
}

impl Supervisor {
    /// Performs the steps only the agent can do for the child, which waits for them.
    fn set_up(&self, map_user: Option<u32>, core: Option<usize>) -> Result<(), Error> {
        if let Some(user) = map_user {
            for map in ["uid_map", "gid_map"] {
                let path = PathBuf::from(format!("/proc/{}/{map}", self.pid));
                crate::cgroup::write(&path, &format!("{user} {user} 1"))?;
            }
        }
        // A runtime is exempt from the program's limits, and moves the program into a child group.
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

    /// Reports that the start has failed, once, and kills the child.
    fn give_up(&mut self, error: Error) {
        if let Some(started) = self.started.take() {
            let _ = started.send(Err(error));
        }
        self.shared.stop(Stopped::Agent);
    }

    /// Reports that the program has started, with this process number.
    fn on_started(&mut self, pid: i32, process: OwnedFd) {
        let pid = Pid::from_raw(pid);
        if let (Some(started), Some(pid)) = (self.started.take(), pid) {
            let shared = Arc::clone(&self.shared);
            let begun = Started { pid, process, shared };
            // From here on, this thread only ends the program and removes what was created for it.
            let _ = keep_capabilities(ThreadRole::Supervisor);
            if started.send(Ok(begun)).is_err() {
                // The requester no longer waits for it.
                self.shared.stop(Stopped::Agent);
            }
        }
    }

    /// Handles the runtime's child as it is about to execute the program.
    fn on_runtime_started(&mut self, pid: i32) -> Result<(), Error> {
        let Some(runtime) = &self.container else {
            return Ok(());
        };
        // The additional process of the runtime is no longer needed.
        if let Some(limit) = runtime.processes {
            self.shared
                .with_group(|group| group.map_or(Ok(()), |group| group.limit_processes(limit)))?;
        }
        let number = Pid::from_raw(pid).ok_or(io::Error::from(io::ErrorKind::NotFound))?;
        let process = pidfd_open(number, PidfdFlags::empty())?;
        self.shared.set_program(process.try_clone()?);
        self.on_started(pid, process);
        Ok(())
    }

    /// Handles events until the child has ended.
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
                self.give_up(Error::Lost(format!("no start within {} s", START.as_secs())));
            }
            if ready.socket
                && let Err(error) = self.take_listener()
            {
                self.give_up(error.into());
            }
            if ready.listener {
                self.answer_notifications();
            }
            if ready.nobody_calls {
                self.listener = None;
            }
            if ready.status {
                self.receive_report();
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
        // A runtime passes one notification descriptor.
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

    /// Handles a report of the child: notification descriptor, failure, or end-of-file after `execve`.
    fn receive_report(&mut self) {
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
                self.give_up(Error::Lost("its report is truncated".into()));
            }
            Ok(Some((Report::Executing, _))) => self.executing = true,
            Ok(None) => {
                self.status = None;
                // A runtime has only begun its work. A child killed before `execve` closes the socket too: `clean_up`
                // reports that.
                if self.container.is_none() && self.executing {
                    self.phase = Phase::Program;
                    match self.process.try_clone() {
                        Ok(process) => self.on_started(self.pid, process),
                        Err(error) => self.give_up(error.into()),
                    }
                }
            }
        }
    }

    /// Receives the notification descriptor from the runtime.
    fn take_listener(&mut self) -> io::Result<()> {
        let Some(runtime) = &self.container else {
            return Ok(());
        };
        let (connection, _) = runtime.socket.accept()?;
        // The message also describes the container, which is known already.
        let mut about = [0u8; 16 << 10];
        let (_, listener) = receive_bytes(&connection, &mut about)?;
        self.listener = listener.map(Listener::new);
        Ok(())
    }

    /// Responds to one reported system call.
    fn answer_notifications(&mut self) {
        let Some(listener) = &self.listener else {
            return;
        };
        let notified = match listener.receive() {
            Ok(Some(notified)) => notified,
            Ok(None) => return,
            // No process with the filter is left.
            Err(_) => {
                self.listener = None;
                return;
            }
        };
        if !self.allows(&notified) {
            // The call gets no response, so it is never made: the program is dead by the time the kernel gives up on
            // it. Polling the descriptor further would only keep this thread busy on the core the program needs to end.
            self.shared.stop(Stopped::Seccomp(Syscall(notified.call)));
            self.listener = None;
            return;
        }
        if self.phase == Phase::Starting && is_execute(&notified) {
            self.phase = Phase::Program;
            if let Err(error) = self.on_runtime_started(notified.pid as i32) {
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
            // The runtime's own calls, and the one `execve` of the program.
            (None, _) | (_, Phase::Starting) => true,
            (Some(filter), Phase::Program) => {
                // The kernel reports `mmap` only for code.
                let maps_code = notified.call == libc::SYS_mmap as u32;
                let is_late = self.shared.is_sealed() || (maps_code && self.shared.refuses_code());
                !is_late && filter.allows_loading(notified.call, &notified.arguments)
            }
        }
    }

    /// Reaps the child, and removes everything created for it.
    fn clean_up(mut self, instance: Instance) {
        let status = self.reap();
        let group = self.shared.record_end(status);
        if let Some(started) = self.started.take() {
            let _ = started.send(Err(self.start_error(status)));
        }
        // Removing a group takes the kernel milliseconds.
        drop((group, instance));
        self.shared.mark_cleaned_up();
    }

    fn reap(&self) -> Status {
        /// `__WALL`: includes children whose end sends no signal.
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

    /// Status of the program from the exit code. A runtime encodes signals as shells do, above 128.
    fn exited(&self, code: i32) -> Status {
        match code - 128 {
            signal if self.container.is_some() && signal > 0 => Status::Signal(signal),
            _ => Status::Exited(code),
        }
    }

    fn start_error(&self, status: Status) -> Error {
        let Some(runtime) = &self.container else {
            // A signal alone leaves open which defence sent it.
            let by = self.shared.ended().and_then(|end| end.stopped);
            return Error::Lost(by.map_or(status.to_string(), |by| format!("{status}: {by}")));
        };
        let log = fs::read_to_string(&runtime.log).unwrap_or_default();
        let last = log.lines().last().unwrap_or("no output");
        Error::Runtime {
            runtime: runtime.path.clone(),
            reason: format!("{status}: {last}"),
        }
    }
}

fn is_execute(notified: &Notified) -> bool {
    notified.call == libc::SYS_execve as u32 || notified.call == libc::SYS_execveat as u32
}

/// Returns the child's next report, `None` at end-of-file.
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

/// Receives bytes, and the first descriptor passed with them.
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

/// Starts the supervisor thread, and waits for the outcome of the start.
pub(crate) fn start(order: StartRequest) -> Result<(Started, thread::JoinHandle<()>), Error> {
    let (tell, told) = std::sync::mpsc::channel();
    let thread = thread::Builder::new()
        .name("keeper".into())
        .spawn(move || supervise(order, &tell))?;
    match told.recv() {
        Ok(Ok(started)) => Ok((started, thread)),
        Ok(Err(error)) => {
            let _ = thread.join();
            Err(error)
        }
        Err(_) => {
            let _ = thread.join();
            Err(Error::Lost("its supervisor ended".into()))
        }
    }
}

/// Raw descriptors, for a plan.
pub(crate) fn raw(descriptors: &[OwnedFd]) -> Vec<i32> {
    descriptors.iter().map(AsRawFd::as_raw_fd).collect()
}
