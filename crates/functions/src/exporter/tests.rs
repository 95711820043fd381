use super::*;
use crate::out_file::GRACE;
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// State that tests share with a sink.
#[derive(Debug, Default)]
struct Probe {
    /// Records of each sender in the order in which they were exported.
    seen: Mutex<Vec<(usize, u32)>>,
    discarded: AtomicU64,
    idle: AtomicU64,
    refuses: AtomicBool,
    abandoned: AtomicBool,
}

/// Sink into memory that sleeps for an hour without records.
#[derive(Debug)]
struct Memory(Arc<Probe>);

impl Sink for Memory {
    type Record = u32;
    type PerSender = usize;

    const THREAD: &'static str = "memory";
    const POLL_INTERVAL: Duration = Duration::from_secs(3600);
    const WAKE_EVERY: Option<u32> = Some(4);
    const RECORDS_PER_POLL: usize = 3;
    const BLANK: Option<u32> = Some(u32::MAX);

    fn is_ready(&mut self) -> bool {
        !self.0.refuses.load(Ordering::Relaxed)
    }

    fn put(&mut self, record: &u32, sender: &mut usize) {
        self.0.seen.lock().unwrap().push((*sender, *record));
    }

    fn discard(&mut self, _record: &u32) {
        self.0.discarded.fetch_add(1, Ordering::Relaxed);
    }

    fn on_idle(&mut self, _sources: &[Source<Self>]) -> ControlFlow<()> {
        self.0.idle.fetch_add(1, Ordering::Relaxed);
        ControlFlow::Continue(())
    }

    fn finish(self, _sources: &[Source<Self>], abandoned: bool) -> io::Result<u64> {
        self.0.abandoned.store(abandoned, Ordering::Relaxed);
        Ok(self.0.seen.lock().unwrap().len() as u64)
    }
}

fn paused() -> (Exporter<Memory>, Arc<Probe>) {
    (Exporter::paused(Pulse::default()), Arc::default())
}

fn launch(exporter: &Exporter<Memory>, probe: &Arc<Probe>) {
    exporter.launch(Memory(Arc::clone(probe))).unwrap();
}

/// Waits for a condition, for at most a minute.
fn until(mut is_done: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while !is_done() {
        assert!(Instant::now() < deadline, "not done within a minute");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// At the end senders wait for room, also if they wake a thread that would sleep for an hour.
#[test]
fn every_record_is_exported_in_its_senders_order() {
    let (exporter, probe) = paused();
    launch(&exporter, &probe);
    let senders = [0, 1, 2].map(|number| exporter.sender(8, number));
    std::thread::scope(|scope| {
        for mut sender in senders {
            scope.spawn(move || (0..1000).for_each(|record| assert!(sender.send_waiting(record))));
        }
    });
    assert_eq!(exporter.finish().unwrap().unwrap(), 3000);
    assert!(exporter.finish().is_none());
    let seen = probe.seen.lock().unwrap();
    for number in 0..3 {
        let of_sender = seen.iter().filter(|(sender, _)| *sender == number);
        assert!(of_sender.map(|(_, record)| *record).eq(0..1000));
    }
}

#[test]
fn a_full_ring_loses_records_until_the_thread_runs() {
    let (exporter, probe) = paused();
    let mut sender = exporter.sender(8, 0);
    let sent = (0..20).filter(|record| sender.send(*record)).count();
    assert_eq!(sent, 8);
    // All or nothing.
    assert!(!sender.send_all(0..1));
    launch(&exporter, &probe);
    assert!(sender.send_waiting(8));
    until(|| {
        exporter.state.wake();
        probe.seen.lock().unwrap().len() == 9
    });
    assert!(!sender.send_all(9..18));
    until(|| sender.send_all(9..12));
    // The open sender holds nothing up.
    assert_eq!(exporter.finish().unwrap().unwrap(), 12);
    let seen = probe.seen.lock().unwrap();
    assert!(seen.iter().map(|(_, record)| *record).eq(0..12));
    // Nobody waits for a thread that has ended.
    assert!(sender.wait(|| false));
}

#[test]
fn the_thread_wakes_after_some_records() {
    let (exporter, probe) = paused();
    launch(&exporter, &probe);
    let mut sender = exporter.sender(8, 0);
    until(|| probe.idle.load(Ordering::Relaxed) > 0);
    (0..4).for_each(|record| assert!(sender.send(record)));
    until(|| probe.seen.lock().unwrap().len() == 4);
}

/// While workers receive packets, records wait for the sink. At the end they wait for 5 seconds.
#[test]
fn a_sink_that_is_not_ready_is_given_up_at_the_end() {
    let (exporter, probe) = paused();
    probe.refuses.store(true, Ordering::Relaxed);
    let mut sender = exporter.sender(8, 0);
    (0..8).for_each(|record| assert!(sender.send(record)));
    launch(&exporter, &probe);
    until(|| probe.idle.load(Ordering::Relaxed) > 0);
    let began = Instant::now();
    exporter.begin_drain();
    let waking = exporter.state.clone();
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        // In place of a short polling interval; bounded, so that a failed assertion ends the test.
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) && began.elapsed() < Duration::from_secs(60) {
                waking.wake();
                std::thread::sleep(Duration::from_millis(10));
            }
        });
        assert!(sender.send_waiting(8));
        drop(sender);
        assert_eq!(exporter.finish().unwrap().unwrap(), 0);
        done.store(true, Ordering::Relaxed);
    });
    assert!(began.elapsed() >= GRACE);
    assert_eq!(probe.discarded.load(Ordering::Relaxed), 9);
}

#[test]
fn an_exporter_that_is_dropped_is_abandoned() {
    let (exporter, probe) = paused();
    probe.refuses.store(true, Ordering::Relaxed);
    let mut sender = exporter.sender(8, 0);
    assert!(sender.send(7));
    launch(&exporter, &probe);
    drop(exporter);
    assert!(probe.abandoned.load(Ordering::Relaxed));
    assert!(probe.seen.lock().unwrap().is_empty());
}
