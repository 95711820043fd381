mod relief;

use super::auxiliary::{AuxiliaryEnds, AuxiliaryWorker};
use super::dispatch::Dispatch;
use super::link::{Helper, link};
use crate::clock::Clock;
use crate::port::round_robin;
use crate::telemetry::{Window, windows};
use crate::trace_nic::{TraceNic, TraceNicConfig};
use crate::worker::{Worker, WorkerConfig};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};
use tailwater_api::{PacketAction, WhenOverloaded};
use tailwater_chain::batch::Batch;
use tailwater_chain::buffer::BufferPool;
use tailwater_chain::chain::{Chain, Cuts, InputPolicy};
use tailwater_chain::function::{FlowStates, NetworkFunction};
use tailwater_chain::parcel::PacketStore;
use tailwater_handover::park::{Mode, park};
use tailwater_net::Nanos;
use tailwater_net::toeplitz::RssHasher;
use tailwater_policy::core::{CoreMapper, Plan, Split, Unit, View};
use tailwater_traffic::generate::{FrameSize, Transport, Uniform, UniformConfig};
use tailwater_traffic::{LoadOptions, Trace};

/// Number of rendezvous of the two functions.
const MEETINGS: u32 = 5;

/// Rendezvous that each of the two functions has reached, and the number that took place.
#[derive(Default)]
struct Meetings {
    come: [AtomicU32; 2],
    met: AtomicU32,
}

impl Meetings {
    /// Arrives at a rendezvous, and waits for the other function, with a timeout.
    fn come(&self, me: usize, meeting: u32) {
        self.come[me].store(meeting, Ordering::Release);
        let until = Instant::now() + Duration::from_secs(10);
        while self.come[1 - me].load(Ordering::Acquire) < meeting {
            if Instant::now() > until {
                return;
            }
            std::thread::yield_now();
        }
        self.met.fetch_add(1, Ordering::Relaxed);
    }
}

/// Function that finishes a batch only while another one has a batch, too.
struct Meeting {
    meetings: Arc<Meetings>,
    me: usize,
    /// Batches so far. The other function cannot have arrived before the first.
    batches: u32,
    packets: Arc<AtomicU32>,
}

impl NetworkFunction for Meeting {
    fn kind(&self) -> &'static str {
        "Meeting"
    }

    fn process(&mut self, batch: &mut Batch, _: &mut FlowStates<'_>) {
        self.packets.fetch_add(batch.len() as u32, Ordering::Relaxed);
        self.batches += 1;
        let meeting = match self.me {
            0 => self.batches - 1,
            _ => self.batches,
        };
        if (1..=MEETINGS).contains(&meeting) {
            self.meetings.come(self.me, meeting);
        }
    }
}

/// Mapper that splits every queued flow.
struct Splitting;

impl CoreMapper for Splitting {
    fn split_points(&mut self, _: usize) -> u64 {
        1 << 1
    }

    fn due(&self, _: Nanos, packets: u32) -> bool {
        packets > 0
    }

    fn decide(&mut self, view: &View<'_>, plan: &mut Plan) {
        let movable = view.queued.iter().enumerate().filter(|(_, flow)| !flow.bound);
        plan.splits.extend(movable.map(|(flow, _)| Split {
            flow,
            last_functions: 1,
            auxiliary: 0,
        }));
    }
}

/// One flow, two functions, each of which waits until the other is at work, too. This ends only if the first has a
/// batch on one core while the last has the previous batch on another.
#[test]
fn a_split_flow_is_processed_by_two_cores_at_once() {
    const PACKETS: u32 = 640;
    let (clock, rss) = (Clock::start(), RssHasher::default());
    let config = UniformConfig {
        seed: 1,
        flows: 1,
        size: FrameSize::Fixed(200),
        transport: Transport::Udp,
        rate_pps: 1_000_000_000,
        packets: PACKETS.into(),
    };
    let mut whale = Uniform::new(config).unwrap();
    let trace = Trace::load(&mut whale, &LoadOptions::default()).unwrap();
    let config = TraceNicConfig {
        in_parts: true,
        ..TraceNicConfig::default()
    };
    let nic = TraceNic::new(trace, rss, 1, &round_robin(1), config, clock.clone()).unwrap();
    let meetings = Arc::new(Meetings::default());
    let packets = [0, 1].map(|_| Arc::new(AtomicU32::new(0)));
    let chain = || {
        let functions = [0, 1].map(|me| {
            let function = Meeting {
                meetings: Arc::clone(&meetings),
                me,
                batches: 0,
                packets: Arc::clone(&packets[me]),
            };
            let function: Box<dyn NetworkFunction> = Box::new(function);
            (format!("meeting-{me}"), function)
        });
        let input = InputPolicy {
            malformed: PacketAction::Drop,
            non_ip: PacketAction::Drop,
        };
        let cuts = Cuts::before_last(Splitting.split_points(1));
        Chain::with_cuts(functions.into(), None, input, cuts)
    };
    let pool = BufferPool::new(1024, nic.longest_frame()).unwrap();
    let store = PacketStore::new(&pool);
    let (sleeper, waker) = park(Mode::Sleep);
    let (to, from) = link(1024, store.clone(), Helper::auxiliary(waker));
    let ends = AuxiliaryEnds {
        links: vec![(from, pool.memory().clone())],
        sleeper: Some(sleeper),
        unit: Unit::Flow,
    };
    let start = clock.now();
    let config = WorkerConfig {
        slo: Nanos::from_secs(60),
        when_overloaded: WhenOverloaded::InOrder,
        window: Nanos::from_secs(60),
        start,
        batch: 32,
        late: Default::default(),
    };
    let (queue, own) = (Box::new(nic.queues(start).remove(0)), chain());
    let (mut senders, receiver) = windows(2, [own.reasons().len(), 0]);
    let (sender, port) = (senders.remove(1), Box::new(nic.sender()));
    let helper = AuxiliaryWorker::new(ends, chain(), port, clock.clone(), &config, sender);
    let dispatch = Dispatch::new(0, Box::new(Splitting), store, vec![to], &pool, &own);
    let worker = Worker::new(queue, own, pool, clock, config, senders.remove(0));
    std::thread::scope(|scope| {
        scope.spawn(|| helper.run(&AtomicBool::new(false)));
        drop(worker.dispatching(dispatch).run(|| false));
    });
    let (mut delivered, mut splits) = (0, 0);
    let mut add = |window: &Window| {
        delivered += window.delivered;
        splits += window.scaling.splits;
    };
    while receiver.receive(Duration::ZERO, &mut add).is_ok() {}
    assert_eq!((delivered, splits), (u64::from(PACKETS), 1));
    assert_eq!(packets.map(|count| count.load(Ordering::Relaxed)), [PACKETS; 2]);
    // Both count each.
    assert_eq!(meetings.met.load(Ordering::Relaxed), 2 * MEETINGS);
}
