//! The processes of one worker's chain.

use super::area::Area;
use super::error::IsolationError;
use super::process::Process;
use super::report::{FunctionReport, StandardErrorReport};
use super::schedule::{self, ProcessState};
use super::shared_core::{SharedCore, WorkerCore};
use super::slot::{Attaching, EndReason, FunctionSlot, Standby};
use super::starter::{self, Starter};
use super::status::Status;
use super::turn_watch::{Fault, GroupLimits, Sample, States, TurnWatch};
use crate::message::{Description, FromProgram, FromServer};
use crate::socket::receive_within;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tailwater_sdk::program::ProcessPart;

/// Time a process has to map its memory.
const ATTACHING: Duration = Duration::from_millis(500);
/// Time the watchdog blocks for that. Afterwards it polls, so that a slow process does not delay others.
const ATTACHED_SOON: Duration = Duration::from_millis(1);
/// Interval at which processes are checked for having been killed.
const LOOK: Duration = Duration::from_millis(20);
/// Time all processes have to exit voluntarily.
const ENDING: Duration = Duration::from_millis(200);

/// Description of [`EndReason::OverBudget`] for reports.
const OVER_BUDGET: &str = "it exceeded its budget of processor time a turn again and again";

/// The step that a process failed at during attachment.
const NOT_ATTACHED: &str = "map its memory";

/// States of the processes of a group, and of its worker's thread.
struct ProcessStates<'a> {
    slots: &'a [FunctionSlot],
    core: usize,
    worker: u32,
}

impl States for ProcessStates<'_> {
    fn is_idle(&self, k: usize) -> bool {
        // The exit status of one that has ended is known once it has fully exited.
        let state = self.slots[k]
            .process
            .as_ref()
            .map(|process| schedule::state(process.id()));
        matches!(state, Some(ProcessState::Idle | ProcessState::Stopped))
    }

    fn is_worker_ready(&self) -> bool {
        schedule::state(self.worker) == ProcessState::Runnable
    }

    fn wait_for_core(&self) -> Instant {
        schedule::visit(self.core);
        Instant::now()
    }
}

/// Processes of one worker's chain.
pub(super) struct Group {
    pub(super) core: usize,
    part: ProcessPart,
    pub(super) slots: Vec<FunctionSlot>,
    pub(super) area: Option<Arc<Area>>,
    pub(super) status: Arc<Status>,
    /// `true`: threads drop the rights that they do not need.
    limited: bool,
    /// Core whose thread gives other groups turns, too.
    pub(super) shared: Option<SharedCore>,
    /// The core is an auxiliary one: the processes [rest](schedule::rest) while the worker sleeps.
    pub(super) is_auxiliary: bool,
    /// The processes were moved to another core, at ordinary priority.
    has_left: bool,
    /// They had real-time priority before.
    was_real_time: bool,
    turn_watch: TurnWatch,
    /// Time of the next check for processes that were killed.
    check_dying_at: Instant,
}

impl Group {
    pub(super) fn new(core: WorkerCore, part: ProcessPart, seats: Vec<FunctionSlot>, limited: bool) -> Group {
        Group {
            core: core.number,
            part,
            limited,
            shared: core.shared,
            is_auxiliary: core.is_auxiliary,
            has_left: false,
            was_real_time: false,
            area: None,
            status: Arc::new(Status::new(seats.len())),
            turn_watch: TurnWatch::new(seats.len()),
            check_dying_at: Instant::now(),
            slots: seats,
        }
    }

    pub(super) fn descriptions(&self) -> Vec<Description> {
        let seats = self.slots.iter();
        seats.map(|seat| seat.description.clone()).collect()
    }

    /// Returns `true` if the processes take turns at real-time priority, or did until they left the core.
    pub(super) fn is_real_time(&self) -> bool {
        self.status.is_real_time() || self.was_real_time
    }

    /// Moves the processes to another core of the calling thread, at ordinary priority. The worker has ended.
    pub(super) fn leave_core(&mut self) {
        if !self.status.is_real_time() {
            return;
        }
        let Some(core) = schedule::another_core(self.core) else {
            return;
        };
        (self.core, self.has_left, self.was_real_time) = (core, true, true);
        self.status.set_real_time(false);
        self.status.set_worker(0);
        if let Some(shared) = &self.shared {
            shared.leave(&self.status);
        }
        for process in self.slots.iter().filter_map(|slot| slot.process.as_ref()) {
            // One that cannot move does not take its last turn, and is ended for that.
            let _ = process.leave_core(core);
        }
    }

    /// Attaches the first processes.
    pub(super) fn attach(&mut self, area: Arc<Area>, patience: Duration) -> Result<(), IsolationError> {
        self.area = Some(area);
        for k in 0..self.slots.len() {
            let seat = &mut self.slots[k];
            let (program, shared, part) = (seat.program.clone(), seat.shared.clone(), self.part);
            let start = move |over: &_| starter::start(&program, &shared, part, patience, over);
            seat.starter = Some(Starter::new(self.limited, start).map_err(IsolationError::Thread)?);
            if let Some(first) = seat.first.take() {
                let mut attaching = Attaching::new(first);
                self.offer(k, &attaching.process)?;
                // Without huge pages, all of the flow state is mapped page by page.
                if !self.try_attach(&mut attaching, patience)? {
                    let late = attaching.process.silent(NOT_ATTACHED, "timeout");
                    return Err(late);
                }
                self.seat(k, attaching);
            }
        }
        self.queue_from(0)
    }

    /// Sends a process the memory that function `k` may map.
    fn offer(&self, k: usize, process: &Process) -> Result<(), IsolationError> {
        let Some(area) = &self.area else {
            unreachable!("a group that has its memory");
        };
        let slate = &area.response_areas[k];
        // The previous process cannot have taken more than there were.
        let taken = slate.handled_ended().min(area.request_area.ended());
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

    /// Waits up to `bound` for the process to map its memory, then pins it to its core. Returns `true` if it is
    /// attached.
    fn try_attach(&self, Attaching { process, .. }: &mut Attaching, bound: Duration) -> Result<bool, IsolationError> {
        let answer = receive_within(&process.socket, bound);
        match answer.map(|(message, _)| FromProgram::decode(&message)) {
            Ok(Ok(FromProgram::Ready)) => {}
            Ok(_) => return Err(process.silent(NOT_ATTACHED, "it sent another message")),
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

    /// Makes the process function `k`'s current one.
    fn seat(&mut self, k: usize, Attaching { process, began }: Attaching) {
        let seat = &mut self.slots[k];
        seat.process = Some(process);
        seat.attached += 1;
        let took = began.elapsed();
        seat.attached_at = began + took;
        seat.report.attach_us = seat.report.attach_us.max(took.as_secs_f64() * 1e6);
        seat.turns_before = self.status.turns(k);
        self.turn_watch.replaced(k);
    }

    /// Returns the last round that a process attached now does not take part in. A round under way belongs to its
    /// predecessor.
    pub(super) fn last_round(&self, area: &Area) -> u64 {
        area.request_area.round().max(self.status.busy())
    }

    /// Queues function `k` and all functions behind it on their core, in chain order, and marks them as attached.
    fn queue_from(&mut self, k: usize) -> Result<(), IsolationError> {
        // A process that is being ended has another priority.
        let seats = self.slots[k..].iter();
        let seats = seats.filter(|seat| seat.ending.is_none());
        let processes = seats.filter_map(|seat| seat.process.as_ref());
        let queued = match &self.shared {
            _ if self.has_left => Ok(false),
            // The worker may sleep. It queues them before their first turn.
            _ if self.is_auxiliary => schedule::rest(processes.map(Process::id)),
            // Another group may have the core. The worker queues them before their first turn.
            Some(_) => schedule::hold(processes.map(Process::id)),
            None => schedule::queue(processes.map(Process::id)),
        };
        match queued {
            Ok(is_real_time) => self.status.set_real_time(is_real_time),
            Err(error) => {
                return Err(IsolationError::ProtocolViolation {
                    function: self.slots[k].program.function.clone(),
                    due: "get real-time priority",
                    reason: error.to_string(),
                });
            }
        }
        for (k, seat) in self.slots.iter().enumerate().skip(k) {
            if let Some(process) = &seat.process
                && self.status.up(k) == 0
            {
                self.status.set_process(k, process.id());
                self.status.set_up(k, seat.attached);
                self.status.announce(k, false);
            }
        }
        Ok(())
    }

    /// Ends failed processes and attaches standby ones.
    pub(super) fn poll(&mut self, limits: &GroupLimits, now: Instant) {
        let fault = self.find_fault(limits, now);
        self.let_dying_run(now);
        for k in 0..self.slots.len() {
            let fault = fault.filter(|(of, _)| *of == k).map(|(_, fault)| fault);
            self.end_if_failed(k, fault);
            self.take_down(k, now);
            if self.status.is_last_round() {
                // A replacement would have nothing left to do.
                continue;
            }
            self.replace(k, now);
            self.slots[k].poll_standby(now);
        }
    }

    /// Returns `true` if a process is being ended or attached, which a worker may be waiting for.
    pub(super) fn needs_fast_poll(&self) -> bool {
        let mut seats = self.slots.iter();
        let waits = |seat: &FunctionSlot| seat.process.is_none() && matches!(seat.standby, Standby::Ready(_));
        seats.any(|seat| seat.ending.is_some() || seat.attaching.is_some() || waits(seat))
    }

    /// Gives processes that were killed, by whomever, or exit by themselves, a core at once. At a function's priority
    /// one would wait until its worker next yields to it, and meanwhile it may hold locks of the kernel: the one of
    /// expedited grace periods, without which no namespace is removed on the whole machine.
    fn let_dying_run(&mut self, now: Instant) {
        if now < self.check_dying_at {
            return;
        }
        self.check_dying_at = now + LOOK;
        for process in self.slots.iter().filter_map(|slot| slot.process.as_ref()) {
            if schedule::is_dying(process.id()) {
                schedule::let_run(process.id());
            }
        }
    }

    /// Ends function `k`'s process if it violated the protocol, has this fault, or has ended.
    fn end_if_failed(&mut self, k: usize, fault: Option<Fault>) {
        let seat = &mut self.slots[k];
        let Some(process) = seat.process.as_mut().filter(|_| seat.ending.is_none()) else {
            return;
        };
        let violation = self.status.violation(k);
        let cause = if let Some(violation) = violation {
            seat.report.note_end(violation.text().to_owned());
            Some(EndReason::Violation)
        } else if let Some(fault) = fault {
            Some(match fault {
                Fault::Overdue => EndReason::Overdue,
                Fault::OverBudget => {
                    seat.report.note_end(OVER_BUDGET.to_owned());
                    EndReason::OverBudget
                }
            })
        } else {
            // In the last round processes exit by themselves after their turn.
            let ended = self.status.take_ended(k, || process.ended()).is_some();
            (ended && (!self.status.is_last_round() || self.has_pending_turn(k))).then_some(EndReason::Ended)
        };
        let seat = &mut self.slots[k];
        if let (Some(_), Some(process)) = (cause, &mut seat.process) {
            self.status.set_process(k, 0);
            process.kill();
        }
        seat.ending = cause;
    }

    /// Detaches function `k`'s process once it has ended, so that the worker continues without it.
    fn take_down(&mut self, k: usize, now: Instant) {
        let seat = &mut self.slots[k];
        let Some(mut cause) = seat.ending else {
            return;
        };
        let Some(ended) = seat.process.as_mut().and_then(Process::ended) else {
            return;
        };
        // A process stopped by a defence occupies its turn until it has fully exited.
        if matches!(cause, EndReason::Overdue | EndReason::OverBudget) && !ended.killed {
            cause = EndReason::Ended;
        }
        match cause {
            EndReason::Ended if self.status.was_ended_by_guard(k) => cause = EndReason::Overdue,
            EndReason::Ended => seat.report.note_end(ended.how),
            _ => {}
        }
        seat.ending = None;
        if let Some(process) = seat.process.take() {
            seat.reap(process);
        }
        self.status.set_down(k);
        let uptime = now.saturating_duration_since(seat.attached_at);
        seat.fail(uptime, now, |restarts| match cause {
            EndReason::Ended => &mut restarts.ended,
            EndReason::Overdue => &mut restarts.overdue,
            EndReason::OverBudget => &mut restarts.over_budget,
            EndReason::Violation => &mut restarts.lied,
        });
        self.turn_watch.replaced(k);
    }

    /// Returns `true` if function `k` has not yet finished its turn of the current round.
    fn has_pending_turn(&self, k: usize) -> bool {
        let round = self.status.busy();
        let area = self.area.as_ref();
        round != 0 && area.is_some_and(|area| area.response_areas[k].done() != round)
    }

    /// Attaches the standby process if the slot is free.
    fn replace(&mut self, k: usize, now: Instant) {
        let seat = &mut self.slots[k];
        if seat.process.is_some() {
            return;
        }
        if seat.attaching.is_none() {
            // The predecessor's response in a round under way is yet to be read by the next function and by the worker.
            // The worker begins no round while a process is missing, except one that bypasses the function, and none of
            // these either once the attachment is announced.
            let is_ready = matches!(seat.standby, Standby::Ready(_));
            self.status.announce(k, is_ready);
            if !is_ready || self.status.busy() != 0 {
                return;
            }
        }
        let (mut attaching, offered, bound) = match seat.attaching.take() {
            Some(attaching) => (attaching, Ok(()), Duration::ZERO),
            None => match std::mem::replace(&mut seat.standby, Standby::None) {
                Standby::Ready(detached) => {
                    let attaching = Attaching::new(detached);
                    let offered = self.offer(k, &attaching.process);
                    (attaching, offered, ATTACHED_SOON)
                }
                spare => {
                    seat.standby = spare;
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
                    Err(_) => self.slots[k].process.take(),
                }
            }
            Ok(false) if now.duration_since(attaching.began) <= ATTACHING => {
                self.slots[k].attaching = Some(attaching);
                None
            }
            Ok(false) | Err(_) => Some(attaching.process),
        };
        if let Some(process) = failed {
            let seat = &mut self.slots[k];
            seat.reap(process);
            seat.fail(Duration::ZERO, now, |restarts| &mut restarts.not_attached);
            self.status.announce(k, false);
        }
    }

    /// Returns the function that holds up the worker, or exceeds its budget again and again.
    fn find_fault(&mut self, limits: &GroupLimits, now: Instant) -> Option<(usize, Fault)> {
        let (area, busy) = (self.area.as_ref()?, self.status.busy());
        let slots = &self.slots;
        let process = |k: usize| slots[k].process.as_ref().filter(|_| slots[k].ending.is_none());
        let time = |k| process(k).and_then(|process| schedule::processor_time(process.id()));
        let times: Vec<_> = (0..slots.len()).map(time).collect();
        let due = area.response_areas.iter().position(|it| it.done() != busy);
        let sample = Sample {
            now,
            round: busy.max(area.request_area.round()),
            is_under_way: busy != 0,
            due: due.filter(|k| busy != 0 && process(*k).is_some()),
            gave_up: self.status.gave_up(),
            times: &times,
            worker: schedule::thread_time(self.status.worker()),
        };
        let is_last = self.status.is_last_round();
        let turn_limits = |k: usize| match is_last {
            true => limits.of_last_turn(slots[k].program.single_instance),
            false => limits.of_turn(self.status.turns(k) - slots[k].turns_before),
        };
        let states = ProcessStates {
            slots,
            core: self.core,
            worker: self.status.worker(),
        };
        self.turn_watch.check(&sample, turn_limits, &states)
    }

    /// Ends all processes and adds their results to the report.
    pub(super) fn finish(mut self, reports: &mut Vec<FunctionReport>, failures: &mut Vec<String>) {
        let until = Instant::now() + ENDING;
        for (k, seat) in self.slots.iter_mut().enumerate() {
            if let Some(process) = &mut seat.process
                && let Ok((message, _)) =
                    receive_within(&process.socket, until.saturating_duration_since(Instant::now()))
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
            // All workers' processes share one.
            let (forwarded, discarded) = seat.shared.errors.counts();
            report.standard_error = StandardErrorReport { forwarded, discarded };
            match reports.get_mut(k) {
                None => reports.push(report),
                Some(all) => {
                    all.turns += report.turns;
                    all.standard_error = report.standard_error;
                    let (to, more) = (&mut all.restarts, report.restarts);
                    to.ended += more.ended;
                    to.overdue += more.overdue;
                    to.lied += more.lied;
                    to.over_budget += more.over_budget;
                    to.not_attached += more.not_attached;
                    all.attach_us = all.attach_us.max(report.attach_us);
                    all.start_ms = all.start_ms.max(report.start_ms);
                    report.ends.into_iter().for_each(|how| all.note_end(how));
                }
            }
        }
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        if let Some(shared) = &self.shared {
            shared.leave(&self.status);
        }
    }
}

#[cfg(test)]
mod tests;
