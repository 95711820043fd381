mod bounds;
mod episodes;
mod server;

use super::*;
use std::sync::atomic::AtomicBool;
use tailwater_baselines::netblaze::{NetBlazeMapper, NetBlazeOptions};
use tailwater_policy::capacity::{CapacityProfile, EpochFrontier, SplitPoint, SplitProfile};
use tailwater_policy::core::{AuxiliaryCore, Load, MAX_AUXILIARY_CORES, Notice, QueuedFlow, Split};

/// File that is deleted on drop.
struct TestFile(PathBuf);

impl TestFile {
    fn new() -> TestFile {
        static FILES: AtomicU32 = AtomicU32::new(0);
        let number = FILES.fetch_add(1, Ordering::Relaxed);
        let name = format!("tailwater-record-{}-{number}", std::process::id());
        TestFile(std::env::temp_dir().join(name))
    }

    fn bytes(&self) -> Vec<u8> {
        std::fs::read(&self.0).unwrap()
    }
}

impl Drop for TestFile {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 8) % limit
    }
}

const HELPERS: usize = 3;

fn header(profile: &str) -> Header {
    Header {
        chain: "edge – north".to_owned(),
        policy: "netblaze".to_owned(),
        slo: Nanos::from_micros(200),
        epoch: Nanos::from_micros(80),
        auxiliary: HELPERS,
        dedicated: 1,
        profile: profile.to_owned(),
        started: Nanos(1_800_000_000_123_456_789),
        dedicated_cpus: vec![3, 1],
        auxiliary_cpus: vec![0, 2, 300],
    }
}

/// Queue and auxiliary cores as a mapper may see them.
struct Situation {
    now: Nanos,
    oldest: Nanos,
    queued: Vec<QueuedFlow>,
    held: Load,
    helpers: Vec<AuxiliaryCore>,
}

impl Situation {
    fn random(random: &mut Random, now: Nanos, flows: u64) -> Situation {
        let queued = (0..flows).map(|_| QueuedFlow {
            packets: 1 + (random.below(300) * random.below(2)) as u32,
            bound: random.below(5) == 0,
        });
        let queued = queued.collect();
        let oldest = Nanos(now.0 - random.below(now.0));
        let held = Load {
            flows: random.below(9) as u32,
            packets: random.below(99) as u32,
        };
        let helpers = (0..HELPERS).map(|_| {
            let recruited = random.below(2) == 0;
            let flows = (random.below(9) * u64::from(recruited)) as u32;
            let load = Load {
                flows,
                packets: 7 * flows,
            };
            AuxiliaryCore {
                active: recruited,
                taken: !recruited && random.below(3) == 0,
                dedicated: random.below(4) == 0,
                load,
                last_done: Nanos(now.0 - random.below(now.0)),
            }
        });
        Situation {
            now,
            oldest,
            queued,
            held,
            helpers: helpers.collect(),
        }
    }

    fn quiet(now: Nanos, queued: Vec<QueuedFlow>) -> Situation {
        Situation {
            now,
            oldest: now - Nanos::from_micros(50),
            queued,
            held: Load::default(),
            helpers: vec![AuxiliaryCore::default(); HELPERS],
        }
    }

    fn packets(&self) -> u32 {
        self.queued.iter().map(|flow| flow.packets).sum()
    }

    fn view(&self) -> View<'_> {
        View {
            now: self.now,
            oldest: self.oldest,
            queued: &self.queued,
            packets: self.packets(),
            parked: self.held,
            auxiliaries: &self.helpers,
        }
    }

    fn ask(&self, mapper: &mut dyn CoreMapper) -> Plan {
        let mut plan = Plan::default();
        plan.clear(self.queued.len());
        mapper.decide(&self.view(), &mut plan);
        plan
    }
}

/// Mapper with random plans.
struct Anything(Random);

impl CoreMapper for Anything {
    fn due(&self, _now: Nanos, _packets: u32) -> bool {
        true
    }

    fn decide(&mut self, view: &View<'_>, plan: &mut Plan) {
        for place in &mut plan.destinations {
            *place = match self.0.below(1 + view.auxiliaries.len() as u64) {
                0 => Destination::OWN_CORE,
                helper => Destination::auxiliary(helper as usize - 1),
            };
        }
        plan.release = self.0.below(1 << view.auxiliaries.len());
        plan.relieve = self.0.below(1 << view.auxiliaries.len());
        plan.boost = self.0.below(2) == 0;
        let packets = self.0.below(1 << 32) as u32;
        plan.notice = match self.0.below(3) {
            0 => None,
            1 => Some(Notice::WhaleBeyondSplit { packets }),
            _ => Some(Notice::OutOfCores { packets }),
        };
        if !view.queued.is_empty() && self.0.below(2) == 0 {
            plan.splits.push(Split {
                flow: self.0.below(view.queued.len() as u64) as usize,
                last_functions: 2,
                auxiliary: self.0.below(view.auxiliaries.len() as u64) as usize,
            });
        }
    }

    fn place(&mut self, _flowlet: Flowlet, _loads: &Loads<'_>) -> Destination {
        Destination::auxiliary(0)
    }
}

fn anything() -> MakeMapper {
    Arc::new(|| Box::new(Anything(Random(88172645463325252))))
}

/// Record of these situations, and the plans.
fn recorded(situations: &[Situation], make: MakeMapper, profile: &str) -> (Vec<u8>, Vec<Plan>) {
    let file = TestFile::new();
    let recorder = Recorder::create(&file.0, &header(profile)).unwrap();
    let mut mapper = recorder.recording(make)();
    let plans = situations.iter().map(|s| s.ask(&mut *mapper)).collect();
    drop(mapper);
    let decisions = situations.len() as u64;
    let lost = 0;
    let outcome = recorder.finish().unwrap();
    assert_eq!(outcome, Some(Recorded { decisions, lost }));
    assert_eq!(recorder.finish().unwrap(), None);
    (file.bytes(), plans)
}

fn random_situations(count: u64, most_flows: u64) -> Vec<Situation> {
    let mut random = Random(2463534242);
    let at = |i| Nanos(1_000 + i * 80_000);
    (0..count)
        .map(|i| {
            let flows = random.below(most_flows);
            Situation::random(&mut random, at(i), flows)
        })
        .collect()
}

/// Next decision of a core mapper.
fn next_decision<'a>(reader: &'a mut Reader<&[u8]>) -> Result<Option<&'a Decision>, ReadError> {
    Ok(match reader.next_entry()? {
        Some(Entry::Core(decision)) => Some(decision),
        Some(Entry::Server(decision)) => panic!("about buckets: {decision:?}"),
        None => None,
    })
}

/// All decisions, cloned.
fn decisions(bytes: &[u8]) -> Result<Vec<Decision>, ReadError> {
    let mut reader = Reader::new(bytes)?;
    let mut all = Vec::new();
    while let Some(decision) = next_decision(&mut reader)? {
        all.push(decision.clone());
    }
    Ok(all)
}

#[test]
fn what_is_recorded_is_read() {
    let situations = random_situations(200, 40);
    let (bytes, plans) = recorded(&situations, anything(), "profile");
    let reader = Reader::new(&*bytes).unwrap();
    assert_eq!(*reader.header(), header("profile"));
    let read = decisions(&bytes).unwrap();
    assert_eq!(read.len(), situations.len());
    for (i, ((decision, situation), plan)) in read.iter().zip(&situations).zip(&plans).enumerate() {
        assert_eq!((decision.dispatcher, decision.sequence), (0, i as u64));
        assert_eq!((decision.now, decision.oldest), (situation.now, situation.oldest));
        assert_eq!(decision.queue.packets, situation.packets());
        assert!(decision.is_whole());
        let queued = decision.listed.iter().map(|flow| QueuedFlow {
            packets: flow.packets,
            bound: flow.bound,
        });
        assert_eq!(queued.collect::<Vec<_>>(), situation.queued);
        assert_eq!(decision.helpers, situation.helpers);
        let places = decision.listed.iter().map(|flow| flow.place);
        assert_eq!(places.collect::<Vec<_>>(), plan.destinations);
        assert_eq!(decision.release, plan.release);
        assert_eq!((decision.relieve, decision.held), (plan.relieve, situation.held));
        assert_eq!(decision.splits, plan.splits);
        assert_eq!((decision.boost, decision.notice), (plan.boost, plan.notice));
    }
}

#[test]
fn of_a_long_queue_the_largest_flows_are_recorded() {
    let now = Nanos::from_millis(1);
    let queued = |i: u32| QueuedFlow {
        packets: 1 + i * 7919 % 2003,
        bound: false,
    };
    let situation = Situation::quiet(now, (0..2000).map(queued).collect());
    let (bytes, plans) = recorded(&[situation], anything(), "");
    let decision = &decisions(&bytes).unwrap()[0];
    assert_eq!((decision.queue.flows, decision.listed.len()), (2000, MOST_LARGEST));
    assert!(!decision.is_whole());
    let mut packets: Vec<u32> = (0..2000).map(|i| queued(i).packets).collect();
    packets.sort_unstable();
    assert_eq!(decision.largest(), packets[1999]);
    let least = decision.listed.iter().map(|flow| flow.packets).min();
    assert_eq!(least, Some(packets[2000 - MOST_LARGEST]));
    for flow in &decision.listed {
        assert_eq!(flow.packets, queued(flow.position).packets);
        assert_eq!(flow.place, plans[0].destinations[flow.position as usize]);
    }
    // It is shown to another mapper, but not compared.
    let mut reader = Reader::new(&*bytes).unwrap();
    let make = anything();
    let outcome = replay(&mut reader, &make, 8);
    assert_eq!((outcome.decisions, outcome.partial), (1, 1));
    assert_eq!((outcome.same, outcome.different), (0, 0));
}

/// Replays the rest of a record with another mapper.
fn replay(reader: &mut Reader<&[u8]>, make: &MakeMapper, most: usize) -> Replay {
    let mut replayer = Replayer::new(Arc::clone(make), most);
    while let Some(decision) = next_decision(reader).unwrap() {
        replayer.add(decision);
    }
    replayer.finish()
}

fn netblaze(packets: u32) -> MakeMapper {
    let options = NetBlazeOptions::new(Nanos::from_micros(200));
    let frontier = EpochFrontier::constant(packets);
    Arc::new(move || {
        let mapper = NetBlazeMapper::new(options, &frontier, SplitProfile::default());
        Box::new(mapper.unwrap())
    })
}

#[test]
fn a_deterministic_mapper_says_the_same_again_and_another_does_not() {
    let situations = random_situations(300, 60);
    let (bytes, plans) = recorded(&situations, netblaze(500), "");
    assert!(plans.iter().any(|plan| plan.boost));
    assert!(plans.iter().any(|plan| plan.release != 0));
    assert!(plans.iter().any(|plan| plan.notice.is_some()));
    let mut reader = Reader::new(&*bytes).unwrap();
    let make = netblaze(500);
    let outcome = replay(&mut reader, &make, 8);
    assert_eq!(reader.lost(), Some(0));
    assert_eq!((outcome.decisions, outcome.same), (300, 300));
    assert_eq!(outcome.packets_moved_recorded, outcome.packets_moved_replayed);
    assert_eq!((outcome.not_due, outcome.missing, outcome.different), (0, 0, 0));

    let mut reader = Reader::new(&*bytes).unwrap();
    let make = netblaze(5000);
    let outcome = replay(&mut reader, &make, 8);
    assert_eq!(outcome.same + outcome.different, 300);
    assert!(outcome.differences.places > 0 && outcome.differences.boost > 0);
    assert_eq!(outcome.first.len(), 8);
    assert!(outcome.packets_moved_recorded > outcome.packets_moved_replayed);
    let first = &outcome.first[0];
    assert_ne!(first.recorded, first.replayed);
}

#[test]
fn reliefs_are_replayed_and_compared() {
    let situations = random_situations(300, 9);
    let (bytes, plans) = recorded(&situations, netblaze(40), "");
    let relieved = plans.iter().filter(|plan| plan.relieve != 0).count();
    assert!(relieved > 10 && relieved < 290, "{relieved}");
    let mut reader = Reader::new(&*bytes).unwrap();
    let outcome = replay(&mut reader, &netblaze(40), 300);
    assert_eq!((outcome.same, outcome.differences.reliefs), (300, 0));

    let mut reader = Reader::new(&*bytes).unwrap();
    let outcome = replay(&mut reader, &netblaze(5000), 300);
    assert_eq!(outcome.differences.reliefs, relieved as u64);
    let helpers = |outline: &Outline| outline.relieved;
    let recorded = outcome.first.iter().map(|each| helpers(&each.recorded));
    let replayed = outcome.first.iter().map(|each| helpers(&each.replayed));
    let bits = plans.iter().map(|plan| plan.relieve.count_ones());
    assert_eq!((recorded.sum(), replayed.sum()), (bits.sum::<u32>(), 0));
}

#[test]
fn a_slow_writer_costs_decisions_but_no_time() {
    let (recorder, receiver) = Recorder::unattended();
    let mut mapper = recorder.recording(anything())();
    let situation = Situation::quiet(
        Nanos::from_millis(1),
        vec![
            QueuedFlow {
                packets: 1,
                bound: false
            };
            1000
        ],
    );
    const ASKED: u64 = 1000;
    // No reader takes chunks, so this ends only if the recorder never waits.
    (0..ASKED).for_each(|_| drop(situation.ask(&mut *mapper)));
    let lost = recorder.shared.lost.load(Ordering::Relaxed);
    assert!(lost > 0 && lost < ASKED, "{lost}");
    let (done, bytes) = std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            let mut bytes = Vec::new();
            bytes.extend(header("").encoded());
            let lost = &recorder.shared.lost;
            let done = write_records(&mut bytes, receiver, lost).unwrap();
            (done, bytes)
        });
        // Chunks come back, sooner or later.
        let before = ASKED;
        let mut asked = before;
        while recorder.shared.lost.load(Ordering::Relaxed) - lost == asked - before && asked < 1 << 20 {
            drop(situation.ask(&mut *mapper));
            asked += 1;
            std::thread::yield_now();
        }
        drop(mapper);
        recorder.finish().unwrap();
        thread.join().unwrap()
    });
    let mut reader = Reader::new(&*bytes).unwrap();
    let make = netblaze(10_000);
    let outcome = replay(&mut reader, &make, 0);
    assert_eq!(outcome.decisions, done);
    let lost = recorder.shared.lost.load(Ordering::Relaxed);
    assert_eq!(reader.lost(), Some(lost));
    assert_eq!(outcome.missing, lost);
}

#[test]
fn recording_allocates_nothing() {
    let (recorder, receiver) = Recorder::unattended();
    let mut mapper = recorder.recording(anything())();
    let now = Nanos::from_millis(1);
    let flow = QueuedFlow {
        packets: 3,
        bound: false,
    };
    let situations = [900, 1500].map(|flows| Situation::quiet(now, vec![flow; flows]));
    let mut plan = Plan::default();
    // An allocation by the mapper itself.
    plan.splits.reserve(1);
    let mut ask = || {
        for situation in &situations {
            plan.clear(situation.queued.len());
            mapper.decide(&situation.view(), &mut plan);
        }
    };
    ask();
    // Several chunks are filled and sent.
    let allocated = allocation_counter::measure(|| (0..60).for_each(|_| ask()));
    assert_eq!(allocated.count_total, 0);
    drop(receiver);
}

#[test]
fn a_live_run_is_recorded_and_replayed_alike() {
    use crate::{RunConfig, RunControl, RunPlan, cores, run, scaling::ScalingConfig, trace_nic::TraceNicConfig};
    use tailwater_functions::spec::ChainSpec;
    use tailwater_traffic::{LoadOptions, Trace, generate::preset};

    let text = "apiVersion: tailwater.dev/v1alpha1\nkind: Chain\nmetadata: {name: live}\n\
                spec: {slo: {latency: 200us}, functions: [{accounting: {}}]}";
    let spec = ChainSpec::parse(text, "live", Path::new(".")).unwrap();
    let length = Nanos::from_millis(30);
    let mut source = preset("backbone").unwrap().with(1, length).open().unwrap();
    let trace = Trace::load(&mut *source, &LoadOptions::default()).unwrap();
    // A capacity so small that there are decisions to make on any machine.
    let profile = CapacityProfile {
        chain: "live".to_owned(),
        slo: spec.slo.latency,
        epoch: Nanos::from_micros(80),
        frontier: EpochFrontier::constant(4),
        ..CapacityProfile::default()
    };
    let header = Header {
        auxiliary: 1,
        dedicated: 0,
        profile: profile.to_string(),
        ..header("")
    };
    let make = netblaze(4);
    let cores = cores::available();
    let live = || {
        let file = TestFile::new();
        let recorder = Recorder::create(&file.0, &header.clone().now()).unwrap();
        let config = RunConfig {
            cores: vec![cores[cores.len() - 1]],
            nic: TraceNicConfig::default(),
            window: Nanos::from_millis(20),
            capture_out: None,
            keep_packets: None,
            not_matched: 0,
            seed: 1,
            scaling: Some(ScalingConfig {
                auxiliary: vec![cores[0]],
                dedicated_help: false,
                mapper: recorder.recording(Arc::clone(&make)),
                park: tailwater_handover::park::Mode::Sleep,
                buffers: 4096,
            }),
            server: None,
            isolation: None,
        };
        let stop = AtomicBool::new(false);
        let plan = RunPlan::new(spec.clone(), config).unwrap();
        let report = run(&plan, trace.clone(), RunControl::new(&stop)).unwrap();
        let outcome = recorder.finish().unwrap().unwrap();
        let counted = report.scaling.unwrap();
        assert_eq!(outcome.decisions + outcome.lost, counted.decisions);
        (outcome, file.bytes())
    };
    // A busy machine may preempt the core for the whole run: then there are no decisions.
    let found = (0..40).map(|_| live()).find(|run| run.0.decisions > 0);
    let (outcome, bytes) = found.expect("40 runs");
    let mut reader = Reader::new(&*bytes).unwrap();
    let text = reader.header().profile.clone();
    assert_eq!(CapacityProfile::parse(text.as_bytes(), "record").unwrap(), profile);
    let replayed = replay(&mut reader, &make, 8);
    assert_eq!(replayed.decisions, outcome.decisions);
    if outcome.lost == 0 {
        // The same views give the same plans.
        assert_eq!(replayed.different, 0, "{:?}", replayed.first);
        assert_eq!(replayed.same + replayed.partial, replayed.decisions);
    }
}

/// Mapper that helps others while it has at most two packets.
struct Helpful;

impl CoreMapper for Helpful {
    fn can_help(&self, packets: u32) -> bool {
        packets <= 2
    }

    fn due(&self, _: Nanos, _: u32) -> bool {
        false
    }

    fn decide(&mut self, _: &View<'_>, _: &mut Plan) {}

    fn place(&mut self, flowlet: Flowlet, _: &Loads<'_>) -> Destination {
        match flowlet.packets {
            1 => Destination::OWN_CORE,
            packets => Destination::auxiliary(packets as usize - 2),
        }
    }
}

/// Otherwise a run with `--record` would be another one than without.
#[test]
fn a_recorded_mapper_helps_as_it_does_unrecorded() {
    let (recorder, _receiver) = Recorder::unattended();
    let mapper = recorder.recording(Arc::new(|| Box::new(Helpful)))();
    assert!(mapper.can_help(2) && !mapper.can_help(3));
}

#[test]
fn flowlets_on_dedicated_cores_are_counted() {
    let (recorder, receiver) = Recorder::unattended();
    let mut mapper = recorder.recording(Arc::new(|| Box::new(Helpful)))();
    let dedicated = AuxiliaryCore {
        dedicated: true,
        ..AuxiliaryCore::default()
    };
    let mut situation = Situation::quiet(Nanos::from_secs(1), Vec::new());
    situation.helpers[1] = dedicated;
    let loads = Loads {
        now: situation.now,
        here: Load::default(),
        auxiliaries: &situation.helpers,
    };
    for packets in [1, 2, 3, 3] {
        let flowlet = Flowlet {
            arrival: situation.now,
            new: false,
            packets,
            parked: packets > 1,
        };
        mapper.place(flowlet, &loads);
    }
    let mut plan = Plan::default();
    plan.clear(0);
    mapper.decide(&situation.view(), &mut plan);
    drop((mapper, recorder));
    let mut bytes = header("").encoded();
    receiver.for_each(|_, words| words.iter().for_each(|word| format::put(&mut bytes, *word)));
    format::put_end(&mut bytes, 0);
    let mut reader = Reader::new(&*bytes).unwrap();
    let mut explainer = Explainer::new(reader.header(), EpochFrontier::default(), 1);
    while let Some(Entry::Core(decision)) = reader.next_entry().unwrap() {
        assert_eq!(decision.helpers, situation.helpers);
        explainer.add(decision);
    }
    let explanation = explainer.finish();
    assert_eq!((explanation.auxiliary, explanation.dedicated), (HELPERS - 1, 1));
    let summary = explanation.summary;
    assert_eq!(
        (summary.flowlets, summary.flowlets_away, summary.flowlets_to_dedicated),
        (4, 3, 2)
    );
}

#[test]
fn the_longest_decision_fits() {
    let helpers = MAX_AUXILIARY_CORES;
    let situation = Situation {
        helpers: vec![AuxiliaryCore::default(); helpers],
        ..Situation::quiet(
            Nanos::from_secs(1),
            vec![
                QueuedFlow {
                    packets: 1,
                    bound: true
                };
                MOST_LISTED
            ],
        )
    };
    let mut plan = Plan::default();
    plan.clear(MOST_LISTED);
    let split = Split {
        flow: 0,
        last_functions: 1,
        auxiliary: 0,
    };
    plan.splits = vec![split; 100];
    let mut encoder = Encoder::new(0);
    let words = encoder.decision(&situation.view(), &plan, Nanos(1), Flowlets::default());
    assert_eq!(words.len(), MOST_WORDS);
}
