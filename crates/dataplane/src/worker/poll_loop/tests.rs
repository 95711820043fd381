use super::*;
use crate::capture::CaptureTap;
use crate::clock::Clock;
use crate::port::{PortQueue, PortSender};
use crate::telemetry::{Window, windows};
use crate::worker::WorkerConfig;
use crate::worker::processing::ChainProcessing;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use tailwater_api::WhenOverloaded;
use tailwater_chain::batch::Batch;
use tailwater_chain::buffer::BufferPool;
use tailwater_chain::chain::{Chain, FunctionTotals};
use tailwater_chain::function::{FlowStates, FunctionProperties, NetworkFunction};
use tailwater_chain::rig::{ChainRig, INPUT};

/// Calls in order, shared by a queue and a processing.
type Calls = Arc<Mutex<Vec<&'static str>>>;

/// Queue with one packet in its ring.
struct OnePacket(Calls);

impl PortSender for OnePacket {
    fn transmit(&mut self, _: &mut Batch) -> usize {
        0
    }

    fn capture(&mut self, _: CaptureTap) {}
}

impl PortQueue for OnePacket {
    fn receive(&mut self, _: Nanos, _: &mut BufferPool, _: &mut Batch) -> Received {
        Received::default()
    }

    fn received_before(&self) -> Nanos {
        Nanos::MAX
    }

    fn leave_out_hashes(&mut self) {
        self.0.lock().unwrap().push("leave out hashes");
    }

    fn stop(&mut self) {
        self.0.lock().unwrap().push("stop");
    }

    fn discard(&mut self, lost: &mut dyn FnMut(Nanos, u32)) -> u64 {
        self.0.lock().unwrap().push("discard ring");
        lost(Nanos(1), 7);
        0
    }
}

/// Processing of a queue in which nothing arrives.
struct Scripted {
    calls: Calls,
    received: Received,
    /// Turns with work, or `None` for a panic in the first turn.
    work: Option<u32>,
    /// Idle turns until the processing is done.
    idle: u32,
    sleep: Option<Duration>,
    /// Turns for other workers at the end, or `None` for a panic in the first.
    others: Option<u32>,
}

impl Scripted {
    fn call(&self, name: &'static str) {
        self.calls.lock().unwrap().push(name);
    }
}

impl Counting for Scripted {
    fn count(&self, _: &mut Vec<u64>) {}

    fn count_functions(&self, _: &mut Vec<FunctionTotals>) {}

    fn flows(&self) -> u64 {
        0
    }
}

impl Processing for Scripted {
    fn receive(&mut self, _: &mut QueueContext, _: Nanos) -> Received {
        self.received
    }

    fn process(&mut self, context: &mut QueueContext, _: &mut Received, _: Nanos) -> Option<Nanos> {
        let left = self.work.unwrap_or_else(|| panic!("in a function"));
        self.work = Some(left.checked_sub(1)?);
        self.call("process");
        Some(context.clock.now())
    }

    fn on_idle(&mut self, _: Received, _: Nanos, _: Nanos) -> Option<Duration> {
        self.idle = self.idle.saturating_sub(1);
        self.sleep
    }

    fn is_done(&self) -> bool {
        self.idle == 0
    }

    fn abort(&mut self, _: &mut QueueContext, _: Nanos) {
        self.call("abort");
    }

    fn discard(&mut self, _: &mut QueueContext, _: Nanos) {
        self.call("discard");
    }

    fn close(&mut self, _: &mut Meter) {
        self.call("close");
    }

    fn serve_others(&mut self, _: &mut QueueContext) -> bool {
        let Some(left) = self.others else {
            self.others = Some(0);
            panic!("in a function, for another worker");
        };
        self.others = Some(left.saturating_sub(1));
        left == 0
    }

    fn give_back(&mut self, _: &mut QueueContext) {
        self.call("give back");
    }

    fn finish(self, _: Nanos) -> Finished {
        self.call("finish");
        Finished::default()
    }
}

fn config() -> WorkerConfig {
    WorkerConfig {
        slo: Nanos::from_millis(1),
        when_overloaded: WhenOverloaded::InOrder,
        window: Nanos::from_secs(100),
        start: Nanos::ZERO,
        batch: 32,
        late: Default::default(),
    }
}

/// Result of a run.
struct Ran {
    calls: Vec<&'static str>,
    died: Option<String>,
    failed: bool,
    total: Window,
}

/// Runs the processing that `script` makes of the default: a port that has ended, and no work.
fn run(script: impl FnOnce(&mut Scripted), stop: impl Fn() -> bool) -> Ran {
    let (calls, clock) = (Calls::default(), Clock::start());
    let (mut senders, receiver) = windows(1, [0, 0]);
    let queue = Box::new(OnePacket(Arc::clone(&calls)));
    let mut processing = Scripted {
        calls: Arc::clone(&calls),
        received: Received {
            ended: true,
            ..Received::default()
        },
        work: Some(0),
        idle: 1,
        sleep: None,
        others: Some(0),
    };
    script(&mut processing);
    let worker = PollLoop {
        context: QueueContext::new(queue, clock, config(), senders.remove(0)),
        processing,
    };
    let failed = AtomicBool::new(false);
    let died = worker.run(stop, &failed).died;
    let mut total = Window::default();
    while receiver.receive(Duration::ZERO, |window| total.merge(window)).is_ok() {}
    let calls = calls.lock().unwrap().clone();
    Ran {
        calls,
        died,
        failed: failed.load(Ordering::Relaxed),
        total,
    }
}

/// Function that reads RSS hashes if told so.
struct Reads(bool);

impl NetworkFunction for Reads {
    fn kind(&self) -> &'static str {
        "Reads"
    }

    fn properties(&self) -> FunctionProperties {
        FunctionProperties {
            reads_hash: self.0,
            ..FunctionProperties::HEADERS_ONLY
        }
    }

    fn process(&mut self, _: &mut Batch, _: &mut FlowStates<'_>) {}
}

/// Hashes are left out for a lone worker whose chain looks no flow up and has no function that reads them, and whose
/// late packets are not discarded before they are parsed.
#[test]
fn a_worker_says_at_its_start_whether_hashes_matter() {
    let functions = |reads| vec![("reads".to_owned(), Box::new(Reads(reads)) as Box<dyn NetworkFunction>)];
    let stateless = |reads| Chain::new(functions(reads), None, INPUT);
    let with_flows = || ChainRig::new(vec![Box::new(Reads(false))], INPUT).chain;
    let (in_order, fresh) = (WhenOverloaded::InOrder, WhenOverloaded::ServeFresh);
    for (chain, when_overloaded, left_out) in [
        (stateless(false), in_order, true),
        (stateless(true), in_order, false),
        (stateless(false), fresh, false),
        (with_flows(), in_order, false),
    ] {
        let calls = Calls::default();
        let config = WorkerConfig {
            when_overloaded,
            ..config()
        };
        let (mut senders, _receiver) = windows(1, [0, 0]);
        let mut worker = PollLoop {
            processing: ChainProcessing::new(chain, BufferPool::new(64, 64).unwrap(), config.batch),
            context: QueueContext::new(
                Box::new(OnePacket(Arc::clone(&calls))),
                Clock::start(),
                config,
                senders.remove(0),
            ),
        };
        worker.begin();
        assert_eq!(calls.lock().unwrap().contains(&"leave out hashes"), left_out);
    }
}

#[test]
fn a_worker_works_until_its_processing_is_done() {
    let ran = run(|script| (script.work, script.idle) = (Some(2), 3), || false);
    assert_eq!(ran.calls, ["process", "process", "close", "finish"]);
    assert_eq!((ran.died, ran.failed, ran.total.lost()), (None, false, 0));
}

#[test]
fn a_stopped_queue_is_stopped_once_and_drained() {
    // The deadline ends the run: the port does not.
    let ran = run(|script| script.received.ended = false, || true);
    assert_eq!(ran.calls, ["stop", "discard ring", "discard", "close", "finish"]);
    assert_eq!((ran.total.lost_undrained, ran.total.lost()), (1, 1));
}

#[test]
fn packets_beyond_the_deadline_are_lost() {
    let ran = run(|script| script.idle = u32::MAX, || false);
    assert_eq!(ran.calls, ["discard ring", "discard", "close", "finish"]);
    assert_eq!((ran.total.lost_undrained, ran.total.lost()), (1, 1));
}

#[test]
fn packets_of_a_panicked_worker_are_lost_with_it() {
    let ran = run(|script| script.work = None, || false);
    assert_eq!(
        ran.calls,
        ["stop", "abort", "discard ring", "discard", "close", "finish"]
    );
    assert_eq!((ran.died.as_deref(), ran.failed), (Some("in a function"), true));
    assert_eq!((ran.total.lost_with_worker, ran.total.lost()), (1, 1));
}

#[test]
fn a_worker_serves_others_after_its_end() {
    let ran = run(|script| script.others = Some(5), || false);
    assert_eq!((ran.calls, ran.died), (vec!["close", "finish"], None));
    let ran = run(|script| script.others = None, || false);
    assert_eq!(ran.calls, ["close", "give back", "finish"]);
    let message = Some("in a function, for another worker");
    assert_eq!((ran.died.as_deref(), ran.failed), (message, true));
}

#[test]
fn an_idle_worker_sleeps_only_before_the_port_ends() {
    let sleep = |script: &mut Scripted| script.sleep = Some(Duration::from_millis(1));
    assert_eq!(run(sleep, || false).total.rested, Nanos::ZERO);
    let running = |script: &mut Scripted| {
        sleep(script);
        script.received.ended = false;
    };
    let stopped = std::cell::Cell::new(0);
    let stop = || stopped.replace(stopped.get() + 1) > 1;
    assert!(run(running, stop).total.rested >= Nanos::from_millis(2));
}
