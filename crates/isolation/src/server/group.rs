//! The processes of one worker's chain.

use super::area::Area;
use super::error::IsolationError;
use super::process::{Detached, Process, Program};
use super::report::{FunctionReport, Restarts};
use super::schedule;
use super::starter::{self, Starter};
use super::status::Status;
use crate::message::{Description, FromProgram, FromServer};
use crate::socket::receive_within;
use std::fs::File;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long a process may take to map its memory.
const ATTACHING: Duration = Duration::from_millis(500);
/// How long the watch waits for that; then it looks again later, for other processes are not to suffer from a slow one.
const ATTACHED_SOON: Duration = Duration::from_millis(1);
/// How often it is looked whether a process that waits is stopped.
const LOOK: Duration = Duration::from_millis(50);
/// A process that lasted for this long was not to blame for what happened to it before.
const HEALTHY: Duration = Duration::from_secs(10);
/// Processes that may fail one after the other before there is a pause.
const AT_ONCE: u32 = 3;
/// The first pause; each is twice the one before, up to the longest.
const PAUSE: Duration = Duration::from_millis(20);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);
/// How long a process may take to end by itself.
const ENDING: Duration = Duration::from_millis(200);

/// One function's place in a group.
pub(super) struct Seat {
    pub(super) program: Program,
    /// What all processes of the function share.
    commons: Option<Arc<File>>,
    pub(super) description: Description,
    process: Option<Process>,
    /// Why it is being ended, if it is.
    ending: Option<Cause>,
    /// The process to be attached first, until it is.
    first: Option<Detached>,
    /// The process that is being attached.
    attaching: Option<Attaching>,
    spare: Spare,
    /// When it is to be looked at.
    look_at: Instant,
    /// Processes attached so far.
    attached: u32,
    attached_at: Instant,
    /// Processes that failed one after the other.
    failures: u32,
    /// Before then none is attached.
    not_before: Instant,
    report: FunctionReport,
    /// Once the first process is attached.
    starter: Option<Starter>,
}

/// The process that waits to be attached.
enum Spare {
    None,
    Starting,
    Ready(Detached),
}

/// A process that has been told to map its memory, and when.
struct Attaching {
    process: Process,
    began: Instant,
}

impl Attaching {
    fn new(detached: Detached) -> Attaching {
        Attaching {
            process: detached.process,
            began: Instant::now(),
        }
    }
}

/// Why a process is ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Cause {
    /// It has ended already.
    Ended,
    /// It did not yield in time.
    Overdue,
    /// It lied.
    Lied,
}

/// What a process failed to do that was to be attached.
const NOT_ATTACHED: &str = "map its memory";

impl Seat {
    /// A place for `first`, behind which another process waits, unless the program is
    /// [alone](Program::alone).
    pub(super) fn new(
        (program, commons): (Program, Option<Arc<File>>),
        first: Detached,
        spare: Option<Detached>,
    ) -> Seat {
        let now = Instant::now();
        Seat {
            report: FunctionReport {
                name: program.function.clone(),
                start_ms: first.took.as_secs_f64() * 1e3,
                ..FunctionReport::default()
            },
            description: first.description.clone(),
            program,
            commons,
            process: None,
            ending: None,
            first: Some(first),
            attaching: None,
            look_at: now,
            spare: spare.map_or(Spare::None, Spare::Ready),
            attached: 0,
            attached_at: now,
            failures: 0,
            not_before: now,
            starter: None,
        }
    }

    /// A place that nobody has.
    #[cfg(test)]
    pub(super) fn vacant(program: Program, description: Description) -> Seat {
        let now = Instant::now();
        Seat {
            report: FunctionReport::default(),
            program,
            commons: None,
            description,
            process: None,
            ending: None,
            first: None,
            attaching: None,
            look_at: now,
            spare: Spare::None,
            attached: 0,
            attached_at: now,
            failures: 0,
            not_before: now,
            starter: None,
        }
    }

    /// Notes a failure: after several, the next process has to wait.
    fn fail(&mut self, now: Instant, count: impl FnOnce(&mut Restarts) -> &mut u64) {
        *count(&mut self.report.restarts) += 1;
        if now.duration_since(self.attached_at) > HEALTHY {
            self.failures = 0;
        }
        self.failures += 1;
        if let Some(more) = self.failures.checked_sub(AT_ONCE) {
            let pause = PAUSE.saturating_mul(1 << more.min(16)).min(LONGEST_PAUSE);
            self.not_before = now + pause;
        }
    }

    /// Goes on with the process that is to wait. A program that cannot be started any more is tried again
    /// after a pause.
    fn tend_spare(&mut self, now: Instant) {
        let is_served = self.process.is_some() || self.attaching.is_some();
        let Some(starter) = &self.starter else {
            return;
        };
        if now < self.not_before || (self.program.alone && is_served) {
            return;
        }
        let useless = match std::mem::replace(&mut self.spare, Spare::None) {
            Spare::None => {
                starter.start();
                self.spare = Spare::Starting;
                return;
            }
            Spare::Starting => match starter.started() {
                None => {
                    self.spare = Spare::Starting;
                    return;
                }
                // It is to be what the others are.
                Some(Ok(detached)) if detached.description == self.description => {
                    let took = detached.took.as_secs_f64() * 1e3;
                    self.report.start_ms = self.report.start_ms.max(took);
                    self.spare = Spare::Ready(detached);
                    return;
                }
                Some(started) => started.ok(),
            },
            Spare::Ready(mut detached) => {
                let look = now >= self.look_at;
                if look {
                    self.look_at = now + LOOK;
                }
                // One that has ended, or is stopped, would not be there when it is needed.
                let process = &mut detached.process;
                let is_stopped = look && schedule::state(process.id()).0 == 'T';
                if process.ended().is_none() && !is_stopped {
                    self.spare = Spare::Ready(detached);
                    return;
                }
                Some(detached)
            }
        };
        if let Some(Detached { process, .. }) = useless {
            starter.bury(process);
        }
        self.fail(now, |restarts| &mut restarts.not_attached);
    }

    /// Has a process ended that is not to be the function's.
    fn bury(&self, process: Process) {
        if let Some(starter) = &self.starter {
            starter.bury(process);
        }
    }
}

/// The processes of one worker's chain.
pub(super) struct Group {
    core: usize,
    part: [u16; 2],
    pub(super) seats: Vec<Seat>,
    pub(super) area: Option<Arc<Area>>,
    pub(super) status: Arc<Status>,
    /// Which function has been at which round since when, and the time it had had on its core then.
    turn: Option<(usize, u64, Instant, Duration)>,
}

impl Group {
    pub(super) fn new(core: usize, part: [u16; 2], seats: Vec<Seat>) -> Group {
        Group {
            core,
            part,
            area: None,
            status: Arc::new(Status::new(seats.len())),
            seats,
            turn: None,
        }
    }

    pub(super) fn descriptions(&self) -> Vec<Description> {
        let seats = self.seats.iter();
        seats.map(|seat| seat.description.clone()).collect()
    }

    pub(super) fn is_real_time(&self) -> bool {
        self.status.is_real_time()
    }

    /// Attaches the first processes.
    pub(super) fn attach(&mut self, area: Arc<Area>, patience: Duration) -> Result<(), IsolationError> {
        self.area = Some(area);
        for k in 0..self.seats.len() {
            let seat = &mut self.seats[k];
            let (program, commons, part) = (seat.program.clone(), seat.commons.clone(), self.part);
            let start = move |over: &_| starter::start((&program, commons.clone()), part, patience, over);
            seat.starter = Some(Starter::new(start).map_err(IsolationError::Thread)?);
            if let Some(first) = seat.first.take() {
                let mut attaching = Attaching::new(first);
                self.offer(k, &attaching.process)?;
                // Where there are no huge pages, all of the flows' memory is mapped page by page.
                if !self.try_attach(&mut attaching, patience)? {
                    let late = attaching.process.silent(NOT_ATTACHED, "it takes too long");
                    return Err(late);
                }
                self.seat(k, attaching);
            }
        }
        self.queue_from(0)
    }

    /// Gives a process what function `k` may see.
    fn offer(&self, k: usize, process: &Process) -> Result<(), IsolationError> {
        let Some(area) = &self.area else {
            unreachable!("a group that has its memory");
        };
        let slate = &area.slates[k];
        // The process before cannot have looked at more.
        let taken = slate.taken().min(area.board.ended());
        slate.reset(0, taken);
        let files = area.files(k);
        let attach = FromServer::Attach {
            buffer_bytes: area.buffer_bytes as u32,
            flows: area.capacity as u32,
            round: self.last_round(area),
            origin: area.origin.map(|origin| origin.0),
            files: files.len() as u8,
        };
        let sent = process.socket.send(&attach.encode(), &files);
        sent.map_err(|error| process.silent(NOT_ATTACHED, error))
    }

    /// Waits at most so long until it has mapped that, and puts it on its core. Whether it has.
    fn try_attach(&self, Attaching { process, .. }: &mut Attaching, bound: Duration) -> Result<bool, IsolationError> {
        let answer = receive_within(&process.socket, bound);
        match answer.map(|(message, _)| FromProgram::decode(&message)) {
            Ok(Ok(FromProgram::Ready)) => {}
            Ok(_) => return Err(process.silent(NOT_ATTACHED, "it said something else")),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
            Err(error) => {
                let reason = process.why_silent(&error, Duration::ZERO);
                return Err(process.silent(NOT_ATTACHED, reason));
            }
        }
        let placed = process.put_to_work(self.core);
        placed.map_err(|error| process.silent("run on its worker's core", error))?;
        Ok(true)
    }

    /// It is function `k`'s process from now on.
    fn seat(&mut self, k: usize, Attaching { process, began }: Attaching) {
        let seat = &mut self.seats[k];
        seat.process = Some(process);
        seat.attached += 1;
        let took = began.elapsed();
        seat.attached_at = began + took;
        seat.report.attach_us = seat.report.attach_us.max(took.as_secs_f64() * 1e6);
    }

    /// The last round that a process which is attached now has no part in: one under way was the process's before.
    pub(super) fn last_round(&self, area: &Area) -> u64 {
        area.board.round().max(self.status.busy())
    }

    /// Queues function `k` and all behind it on their core, in the chain's order, and lets them take turns.
    fn queue_from(&mut self, k: usize) -> Result<(), IsolationError> {
        // One that is to end has another priority.
        let seats = self.seats[k..].iter();
        let seats = seats.filter(|seat| seat.ending.is_none());
        let processes = seats.filter_map(|seat| seat.process.as_ref());
        let queued = schedule::queue(processes.map(Process::id));
        match queued {
            Ok(is_real_time) => self.status.set_real_time(is_real_time),
            Err(error) => {
                return Err(IsolationError::Silent {
                    function: self.seats[k].program.function.clone(),
                    due: "get real-time priority",
                    reason: error.to_string(),
                });
            }
        }
        for (k, seat) in self.seats.iter().enumerate().skip(k) {
            if let Some(process) = &seat.process
                && self.status.up(k) == 0
            {
                self.status.set_process(k, process.id());
                self.status.set_up(k, seat.attached);
            }
        }
        Ok(())
    }

    /// Ends what has failed, and attaches what waits.
    pub(super) fn tend(&mut self, deadline: Duration, patience: Duration, now: Instant) {
        let overdue = match self.status.is_patient() {
            // Files are written, and who waits for a disk is idle.
            true => self.overdue([patience, patience], now),
            false => self.overdue([deadline, 10 * deadline], now),
        };
        for k in 0..self.seats.len() {
            self.condemn(k, overdue == Some(k));
            self.take_down(k, now);
            if self.status.is_patient() {
                // Nothing is left to do for another one.
                continue;
            }
            self.replace(k, now);
            self.seats[k].tend_spare(now);
        }
    }

    /// Whether something is under way that the worker may be waiting for.
    pub(super) fn is_hurried(&self) -> bool {
        let mut seats = self.seats.iter();
        seats.any(|seat| seat.ending.is_some() || seat.attaching.is_some())
    }

    /// Ends function `k`'s process, if it is to be ended.
    fn condemn(&mut self, k: usize, is_overdue: bool) {
        let seat = &mut self.seats[k];
        let Some(process) = seat.process.as_mut().filter(|_| seat.ending.is_none()) else {
            return;
        };
        let cause = if self.status.has_lied(k) {
            Some(Cause::Lied)
        } else if is_overdue {
            Some(Cause::Overdue)
        } else {
            // In the last round processes end by themselves, when they have done it.
            let ended = self.status.take_ended(k, || process.ended()).is_some();
            (ended && (!self.status.is_patient() || self.owes(k))).then_some(Cause::Ended)
        };
        let seat = &mut self.seats[k];
        if let (Some(_), Some(process)) = (cause, &mut seat.process) {
            self.status.set_process(k, 0);
            process.kill();
        }
        seat.ending = cause;
    }

    /// Once function `k`'s process that is to end has ended, the worker goes on without it.
    fn take_down(&mut self, k: usize, now: Instant) {
        let seat = &mut self.seats[k];
        let Some(mut cause) = seat.ending else {
            return;
        };
        let Some(ended) = seat.process.as_mut().and_then(Process::ended) else {
            return;
        };
        // What a defence stopped keeps its turn until nothing is left of it.
        if cause == Cause::Overdue && !ended.killed {
            cause = Cause::Ended;
        }
        if cause == Cause::Ended {
            seat.report.note_end(ended.how);
        }
        seat.ending = None;
        if let Some(process) = seat.process.take() {
            seat.bury(process);
        }
        self.status.set_down(k);
        seat.fail(now, |restarts| match cause {
            Cause::Ended => &mut restarts.ended,
            Cause::Overdue => &mut restarts.overdue,
            Cause::Lied => &mut restarts.lied,
        });
        self.turn = None;
    }

    /// Whether function `k` has yet to take its turn of the round under way.
    fn owes(&self, k: usize) -> bool {
        let round = self.status.busy();
        let area = self.area.as_ref();
        round != 0 && area.is_some_and(|area| area.slates[k].done() != round)
    }

    /// Attaches the process that waits, if there is one and a place for it.
    fn replace(&mut self, k: usize, now: Instant) {
        // What the process before said of a round under way is yet to be read, by the next function and by the worker,
        // who begins none while there is no process.
        let is_read = self.status.busy() == 0;
        let seat = &mut self.seats[k];
        if seat.process.is_some() || now < seat.not_before || (seat.attaching.is_none() && !is_read) {
            return;
        }
        let (mut attaching, offered, bound) = match seat.attaching.take() {
            Some(attaching) => (attaching, Ok(()), Duration::ZERO),
            None => match std::mem::replace(&mut seat.spare, Spare::None) {
                Spare::Ready(detached) => {
                    let attaching = Attaching::new(detached);
                    let offered = self.offer(k, &attaching.process);
                    (attaching, offered, ATTACHED_SOON)
                }
                spare => {
                    seat.spare = spare;
                    return;
                }
            },
        };
        let attached = offered.and_then(|()| self.try_attach(&mut attaching, bound));
        let failed = match attached {
            Ok(true) => {
                self.seat(k, attaching);
                match self.queue_from(k) {
                    Ok(()) => None,
                    Err(_) => self.seats[k].process.take(),
                }
            }
            Ok(false) if now.duration_since(attaching.began) <= ATTACHING => {
                self.seats[k].attaching = Some(attaching);
                None
            }
            Ok(false) | Err(_) => Some(attaching.process),
        };
        if let Some(process) = failed {
            let seat = &mut self.seats[k];
            seat.bury(process);
            seat.fail(now, |restarts| &mut restarts.not_attached);
        }
    }

    /// The function whose turn it has been for too long: for `deadline`, if it was idle, or had that much time on its
    /// core; for `at_most` in any case.
    fn overdue(&mut self, [deadline, at_most]: [Duration; 2], now: Instant) -> Option<usize> {
        let (area, round) = (self.area.as_ref()?, self.status.busy());
        let k = area.slates.iter().position(|slate| slate.done() != round);
        let Some((k, process)) = k
            .filter(|_| round != 0)
            .and_then(|k| Some((k, self.seats[k].process.as_ref()?)))
        else {
            self.turn = None;
            return None;
        };
        let (state, on_core) = schedule::state(process.id());
        match self.turn {
            Some((same, at, since, before)) if (same, at) == (k, round) => {
                let waited = now.duration_since(since);
                // A process that could run and did not get its core is not to blame, unless for very long.
                let idle = state != 'R' || on_core.saturating_sub(before) >= deadline;
                // One that has ended is not either; how it did is known when nothing is left of it.
                let idle = idle && !matches!(state, 'Z' | 'X' | '?');
                ((waited >= deadline && idle) || waited >= at_most).then_some(k)
            }
            _ => {
                self.turn = Some((k, round, now, on_core));
                None
            }
        }
    }

    /// Ends all processes. Adds to the report what they did.
    pub(super) fn finish(mut self, reports: &mut Vec<FunctionReport>, failures: &mut Vec<String>) {
        for (k, seat) in self.seats.iter_mut().enumerate() {
            if let Some(process) = &mut seat.process
                && let Ok((message, _)) = receive_within(&process.socket, ENDING)
                && let Ok(FromProgram::Failed { message }) = FromProgram::decode(&message)
            {
                failures.push(format!("{}: {message}", seat.program.function));
            }
            if self.status.has_missed(k) {
                let function = &seat.program.function;
                failures.push(format!(
                    "{function}: its process failed at the end of the run; what it had yet to write is missing"
                ));
            }
            let mut report = std::mem::take(&mut seat.report);
            report.turns = self.status.turns(k);
            match reports.get_mut(k) {
                None => reports.push(report),
                Some(all) => {
                    all.turns += report.turns;
                    let (to, more) = (&mut all.restarts, report.restarts);
                    to.ended += more.ended;
                    to.overdue += more.overdue;
                    to.lied += more.lied;
                    to.not_attached += more.not_attached;
                    all.attach_us = all.attach_us.max(report.attach_us);
                    all.start_ms = all.start_ms.max(report.start_ms);
                    report.ends.into_iter().for_each(|how| all.note_end(how));
                }
            }
        }
    }
}

#[cfg(test)]
mod tests;
