//! The processes of one worker's chain.

use super::area::Area;
use super::error::IsolationError;
use super::process::{Detached, Process, Program, Starting};
use super::report::{FunctionReport, Restarts};
use super::schedule;
use super::status::Status;
use crate::message::{Description, FromProgram, FromServer};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long a process may take to map its memory.
const ATTACHING: Duration = Duration::from_millis(500);
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
    pub(super) description: Description,
    process: Option<Process>,
    /// The process to be attached first, until it is.
    first: Option<Detached>,
    spare: Spare,
    /// Processes attached so far.
    attached: u32,
    attached_at: Instant,
    /// Processes that failed one after the other.
    failures: u32,
    /// Before then none is attached.
    not_before: Instant,
    report: FunctionReport,
}

/// The process that waits to be attached.
enum Spare {
    None,
    Starting(Starting),
    Ready(Detached),
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
    pub(super) fn new(program: Program, first: Detached, spare: Option<Detached>) -> Seat {
        let now = Instant::now();
        Seat {
            report: FunctionReport {
                name: program.function.clone(),
                start_ms: first.took.as_secs_f64() * 1e3,
                ..FunctionReport::default()
            },
            description: first.description.clone(),
            program,
            process: None,
            first: Some(first),
            spare: spare.map_or(Spare::None, Spare::Ready),
            attached: 0,
            attached_at: now,
            failures: 0,
            not_before: now,
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
    fn tend_spare(&mut self, part: [u16; 2], patience: Duration, now: Instant) {
        if now < self.not_before || (self.program.alone && self.process.is_some()) {
            return;
        }
        let launched = match std::mem::replace(&mut self.spare, Spare::None) {
            Spare::Ready(detached) => Ok(Spare::Ready(detached)),
            Spare::None => Starting::launch(&self.program, part).map(Spare::Starting),
            Spare::Starting(starting) if starting.began() + patience < now => {
                Err(IsolationError::Differ)
            }
            Spare::Starting(starting) => starting.poll().and_then(|ready| match ready {
                // It is to be what the others are.
                Ok(detached) if detached.description != self.description => {
                    Err(IsolationError::Differ)
                }
                Ok(detached) => {
                    let took = detached.took.as_secs_f64() * 1e3;
                    self.report.start_ms = self.report.start_ms.max(took);
                    Ok(Spare::Ready(detached))
                }
                Err(starting) => Ok(Spare::Starting(starting)),
            }),
        };
        match launched {
            Ok(spare) => self.spare = spare,
            Err(_) => self.fail(now, |restarts| &mut restarts.not_attached),
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
    is_real_time: bool,
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
            is_real_time: false,
            turn: None,
        }
    }

    pub(super) fn descriptions(&self) -> Vec<Description> {
        let seats = self.seats.iter();
        seats.map(|seat| seat.description.clone()).collect()
    }

    pub(super) fn is_real_time(&self) -> bool {
        self.is_real_time
    }

    /// Attaches the first processes.
    pub(super) fn attach(&mut self, area: Arc<Area>) -> Result<(), IsolationError> {
        self.area = Some(area);
        for k in 0..self.seats.len() {
            if let Some(first) = self.seats[k].first.take() {
                self.seat(k, first)?;
            }
        }
        self.queue_from(0)
    }

    /// Gives a process what function `k` may see, and its core.
    fn seat(&mut self, k: usize, detached: Detached) -> Result<(), IsolationError> {
        let Some(area) = &self.area else {
            return Ok(());
        };
        let Detached { mut process, .. } = detached;
        let began = Instant::now();
        let slate = &area.slates[k];
        // The process before cannot have looked at more.
        let taken = slate.taken().min(area.board.ended());
        slate.reset(0, taken);
        let files = area.files(k);
        let attach = FromServer::Attach {
            buffer_bytes: area.buffer_bytes as u32,
            flows: area.capacity as u32,
            round: area.board.round(),
            files: files.len() as u8,
        };
        let sent = process.socket.send(&attach.encode(), &files);
        sent.map_err(|error| process.silent(NOT_ATTACHED, error))?;
        let answer = process.socket.wait_at_most(ATTACHING);
        let answer = answer.and_then(|()| process.socket.receive());
        match answer.map(|(message, _)| FromProgram::decode(&message)) {
            Ok(Ok(FromProgram::Ready)) => {}
            Ok(_) => return Err(process.silent(NOT_ATTACHED, "it said something else")),
            Err(error) => {
                let reason = process.ended().unwrap_or_else(|| error.to_string());
                return Err(process.silent(NOT_ATTACHED, reason));
            }
        }
        let placed = process.put_to_work(self.core);
        placed.map_err(|error| process.silent("run on its worker's core", error))?;
        let seat = &mut self.seats[k];
        seat.process = Some(process);
        seat.attached += 1;
        let took = began.elapsed();
        seat.attached_at = began + took;
        seat.report.attach_us = seat.report.attach_us.max(took.as_secs_f64() * 1e6);
        Ok(())
    }

    /// Queues function `k` and all behind it on their core, in the chain's order, and lets them take turns.
    fn queue_from(&mut self, k: usize) -> Result<(), IsolationError> {
        let processes = self.seats[k..]
            .iter()
            .filter_map(|seat| seat.process.as_ref());
        let queued = schedule::queue(processes.map(Process::id));
        match queued {
            Ok(is_real_time) => self.is_real_time = is_real_time,
            Err(error) => {
                return Err(IsolationError::Silent {
                    function: self.seats[k].program.function.clone(),
                    due: "get real-time priority",
                    reason: error.to_string(),
                });
            }
        }
        for (k, seat) in self.seats.iter().enumerate().skip(k) {
            if seat.process.is_some() && self.status.up(k) == 0 {
                self.status.set_up(k, seat.attached);
            }
        }
        Ok(())
    }

    /// Ends what has failed, and attaches what waits.
    pub(super) fn tend(&mut self, deadline: Duration, patience: Duration, now: Instant) {
        let overdue = self.overdue(deadline, now);
        for k in 0..self.seats.len() {
            let seat = &mut self.seats[k];
            let cause = match &mut seat.process {
                None => None,
                Some(_) if self.status.has_lied(k) => Some(Cause::Lied),
                Some(_) if overdue == Some(k) => Some(Cause::Overdue),
                // In the last round processes end by themselves.
                Some(_) if self.status.is_patient() => None,
                Some(process) => process.ended().map(|how| {
                    seat.report.note_end(how);
                    Cause::Ended
                }),
            };
            if let Some(mut cause) = cause {
                // First it ends, then the worker goes on.
                let ended = seat.process.take().and_then(|mut process| process.end());
                // What a defence stopped keeps its turn until nothing is left of it.
                if let Some(how) = ended.filter(|_| cause == Cause::Overdue) {
                    seat.report.note_end(how);
                    cause = Cause::Ended;
                }
                self.status.set_down(k);
                seat.fail(now, |restarts| match cause {
                    Cause::Ended => &mut restarts.ended,
                    Cause::Overdue => &mut restarts.overdue,
                    Cause::Lied => &mut restarts.lied,
                });
                self.turn = None;
            }
            self.replace(k, now);
            self.seats[k].tend_spare(self.part, patience, now);
        }
    }

    /// Attaches the process that waits, if there is one and a place for it.
    fn replace(&mut self, k: usize, now: Instant) {
        let seat = &mut self.seats[k];
        if seat.process.is_some() || now < seat.not_before {
            return;
        }
        match std::mem::replace(&mut seat.spare, Spare::None) {
            Spare::Ready(detached) => {
                let attached = self.seat(k, detached).and_then(|()| self.queue_from(k));
                if attached.is_err() {
                    let seat = &mut self.seats[k];
                    seat.process = None;
                    seat.fail(now, |restarts| &mut restarts.not_attached);
                }
            }
            spare => seat.spare = spare,
        }
    }

    /// The function whose turn it has been for too long.
    fn overdue(&mut self, deadline: Duration, now: Instant) -> Option<usize> {
        let (area, round) = (self.area.as_ref()?, self.status.busy());
        let k = area.slates.iter().position(|slate| slate.done() != round);
        let Some((k, process)) = k
            .filter(|_| round != 0 && !self.status.is_patient())
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
                ((waited >= deadline && idle) || waited >= 10 * deadline).then_some(k)
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
            if let Some(process) = &mut seat.process {
                let told = process.socket.wait_at_most(ENDING);
                if let Ok((message, _)) = told.and_then(|()| process.socket.receive())
                    && let Ok(FromProgram::Failed { message }) = FromProgram::decode(&message)
                {
                    failures.push(format!("{}: {message}", seat.program.function));
                }
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
