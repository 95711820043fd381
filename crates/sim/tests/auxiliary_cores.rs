//! A core and its auxiliary core, with exact times.

mod common;

use common::{bursty, checked, costs, policy, profile, run};
use std::sync::{Arc, Mutex};
use tailwater_net::Nanos;
use tailwater_policy::core::{CoreMapper, Destination, Flowlet, Loads, Plan, View};
use tailwater_sim::policies::Steered;
use tailwater_sim::{ChainModel, Rack, RackPolicy, Recording, RunOptions};

/// Recorded inputs of a mapper.
#[derive(Clone, Debug, Default, PartialEq)]
struct RecordedInputs {
    /// Decisions: time, waiting packets, waiting flows, the oldest packet's arrival.
    decisions: Vec<(u64, u32, usize, u64)>,
    /// Batches: packets, new flows, time.
    batches: Vec<(u32, u32, u64)>,
    /// Flowlets: time, and packets on the first auxiliary core.
    flowlets: Vec<(u64, u32)>,
}

/// Mapper with scripted decisions that records its inputs.
struct Scripted {
    inputs: Arc<Mutex<RecordedInputs>>,
    /// Place of flowlets.
    place: Destination,
    /// Number of waiting packets from which on it moves all flows to the first auxiliary core.
    move_from: u32,
    /// `true` if it releases an idle auxiliary core.
    release: bool,
}

impl CoreMapper for Scripted {
    fn due(&self, _: Nanos, packets: u32) -> bool {
        packets >= self.move_from || self.release && packets == 0
    }

    fn decide(&mut self, view: &View<'_>, plan: &mut Plan) {
        let mut inputs = self.inputs.lock().unwrap();
        if view.packets >= self.move_from {
            let flows = view.queued.len();
            inputs.decisions.push((view.now.0, view.packets, flows, view.oldest.0));
            plan.destinations.fill(Destination::auxiliary(0));
        }
        plan.release = u64::from(view.auxiliaries[0].active && view.auxiliaries[0].load.packets == 0);
    }

    fn place(&mut self, _: Flowlet, loads: &Loads<'_>) -> Destination {
        let mut inputs = self.inputs.lock().unwrap();
        inputs.flowlets.push((loads.now.0, loads.auxiliaries[0].load.packets));
        self.place
    }

    fn completed(&mut self, packets: u32, new: u32, took: Nanos) {
        self.inputs.lock().unwrap().batches.push((packets, new, took.0));
    }
}

fn scripted(place: Destination, move_from: u32, release: bool) -> (RackPolicy, Arc<Mutex<RecordedInputs>>) {
    let inputs = Arc::new(Mutex::new(RecordedInputs::default()));
    let shared = Arc::clone(&inputs);
    let make = move || {
        let inputs = Arc::clone(&shared);
        let mapper = Scripted {
            inputs,
            place,
            move_from,
            release,
        };
        Box::new(mapper) as Box<dyn CoreMapper>
    };
    let policy = RackPolicy {
        name: "scripted".to_owned(),
        steered: Steered::Rack(None),
        core: Some(Arc::new(make)),
        start_cores: Some(1),
    };
    (policy, inputs)
}

fn model(batch: u16) -> ChainModel {
    ChainModel {
        batch,
        receive_packet: 100.0,
        dispatch_packet: 50.0,
        hand_over_batch: 30.0,
        hand_over_packet: 20.0,
        auxiliary_batch: 40.0,
        auxiliary_packet: 10.0,
        decide: 500.0,
        decide_flow: 5.0,
        move_packet: 1.0,
        ..ChainModel::new("test", costs(1000.0, 100.0))
    }
}

fn rack() -> Rack {
    let mut rack = Rack::of_one(2);
    rack.timing.wake = Nanos(20_000);
    rack.timing.hand_over = Nanos(300);
    rack.timing.receipt = Nanos(200);
    rack.timing.poll_interval = Nanos(1_000);
    rack
}

fn packets(list: &[(u64, u32)]) -> Arc<Recording> {
    let list = list.iter().map(|(at, flow)| (Nanos(*at), *flow, 100));
    Arc::new(Recording::of_packets("test", list, 1))
}

/// Returns the sum of latencies and the longest.
fn latencies(report: &tailwater_sim::ChainReport) -> (u64, u64) {
    (report.latency.sum().0, report.latency.max().0)
}

#[test]
fn a_packet_alone_goes_straight_through() {
    let (policy, inputs) = scripted(Destination::auxiliary(0), u32::MAX, false);
    let report = checked(&rack(), model(1), policy, &packets(&[(0, 1), (5000, 2)]));
    assert_eq!(latencies(&report), (2200, 1100));
    assert_eq!(*inputs.lock().unwrap(), RecordedInputs::default(), "nobody was asked");
}

#[test]
fn placed_flows_pass_the_auxiliary_core_in_known_time() {
    // Two packets at once are received one by one, 150 ns each, and offloaded together: 30 + 2 * 20. The auxiliary core
    // is awake 20 us later, and takes 100 + 900 + 40 + 10 for each.
    let traffic = packets(&[(0, 1), (0, 2), (30_000, 1)]);
    let (policy, inputs) = scripted(Destination::auxiliary(0), u32::MAX, false);
    let report = checked(&rack(), model(1), policy, &traffic);
    let (first, second) = (370 + 20_000 + 1050, 370 + 20_000 + 2 * 1050);
    // The third packet finds it asleep again: 150 to receive, 50 to offload.
    let third = 200 + 20_000 + 1050;
    assert_eq!(latencies(&report), (first + second + third, second));
    let flowlets = inputs.lock().unwrap().flowlets.clone();
    assert_eq!(flowlets, [(0, 0), (150, 1), (30_000, 0)]);
    assert_eq!((report.decisions.activated, report.decisions.packets_handed), (1, 3));

    // A polling auxiliary core takes it after 300 ns.
    let mut spinning = rack();
    spinning.timing.spin = Nanos(1_000_000);
    let (policy, _) = scripted(Destination::auxiliary(0), u32::MAX, false);
    let report = checked(&spinning, model(1), policy, &traffic);
    let (first, second, third) = (670 + 1050, 670 + 2 * 1050, 500 + 1050);
    assert_eq!(latencies(&report), (first + second + third, second));
}

#[test]
fn a_flow_stays_where_its_packets_are() {
    // While the first packet of flow 1 is on the auxiliary core, the second is not placed again.
    let traffic = packets(&[(0, 1), (0, 2), (10_000, 1), (60_000, 1)]);
    let (policy, inputs) = scripted(Destination::auxiliary(0), u32::MAX, false);
    let report = checked(&rack(), model(1), policy, &traffic);
    let times: Vec<u64> = inputs.lock().unwrap().flowlets.iter().map(|f| f.0).collect();
    assert_eq!(times, [0, 150, 60_000]);
    assert_eq!(report.packets.delivered, 4);
}

#[test]
fn queued_flows_move_with_their_packets_in_order() {
    // Four packets of two flows in batches of two. The first iteration receives 2 + 2 in 2 * 300 ns. Then four wait.
    // The mapper, called with the time at which the last were received, moves both flows: 500 + 2 * 5 + 4 ns.
    let traffic = packets(&[(0, 1), (0, 2), (0, 1), (0, 2)]);
    let (policy, inputs) = scripted(Destination::OWN_CORE, 4, false);
    let report = checked(&rack(), model(2), policy, &traffic);
    let inputs = inputs.lock().unwrap().clone();
    assert_eq!(inputs.decisions, [(300, 4, 2, 0)]);
    assert_eq!(report.decisions.flows_moved, 2);
    // Offloaded by 600 + 514 + 30 + 80. The auxiliary core's batches of two take 100 + 1800 + 40 + 20.
    let begins = 1224 + 20_000;
    let (first, second) = (begins + 1960, begins + 2 * 1960);
    assert_eq!(latencies(&report), (2 * first + 2 * second, second));
    assert!(inputs.batches.is_empty());
}

#[test]
fn the_own_queue_is_processed_and_told() {
    let traffic = packets(&[(0, 1), (0, 2), (0, 1)]);
    let (policy, inputs) = scripted(Destination::OWN_CORE, u32::MAX, false);
    let report = checked(&rack(), model(1), policy, &traffic);
    // Three are received in 450 ns, then processed one by one: 100 + 900 each. The first iteration began at 0.
    assert_eq!(latencies(&report), (1450 + 2450 + 3450, 3450));
    let batches = inputs.lock().unwrap().batches.clone();
    assert_eq!(batches, [(1, 1, 1450), (1, 1, 1000), (1, 0, 1000)]);
}

#[test]
fn an_idle_auxiliary_core_is_released_and_counts_no_more() {
    let traffic = packets(&[(0, 1), (0, 2), (1_000_000, 9), (1_999_000, 9)]);
    let (policy, _) = scripted(Destination::auxiliary(0), u32::MAX, true);
    let report = checked(&rack(), model(1), policy, &traffic);
    assert_eq!((report.decisions.activated, report.decisions.released), (1, 1));
    // From 0 to about 23 us of two milliseconds.
    let auxiliary = report.cores.auxiliary;
    assert!((0.011..0.013).contains(&auxiliary), "{auxiliary}");
}

/// Mapper that places flows on the first auxiliary core once, then relieves it and places them on the second.
struct Relieving {
    placed: Arc<Mutex<Vec<Flowlet>>>,
}

impl CoreMapper for Relieving {
    fn due(&self, now: Nanos, _: u32) -> bool {
        now < Nanos(1_000)
    }

    fn decide(&mut self, _: &View<'_>, plan: &mut Plan) {
        plan.relieve = 1;
    }

    fn place(&mut self, flowlet: Flowlet, _: &Loads<'_>) -> Destination {
        self.placed.lock().unwrap().push(flowlet);
        Destination::auxiliary(usize::from(flowlet.parked))
    }
}

#[test]
fn parked_packets_go_to_another_auxiliary_core_in_known_time() {
    // Two packets at once, received one by one, 150 ns each, in two iterations, then a decision without flows: 500.
    // They are offloaded in 30 + 2 * 20. The auxiliary core is awake 20 us later and takes 1050 for each. Receipts take
    // 200 ns.
    let traffic = packets(&[(0, 1), (0, 1), (10_000, 1), (12_500, 1)]);
    let placed = Arc::default();
    let shared = Arc::clone(&placed);
    let make = move || -> Box<dyn CoreMapper> {
        Box::new(Relieving {
            placed: Arc::clone(&shared),
        })
    };
    let (mut policy, _) = scripted(Destination::OWN_CORE, u32::MAX, false);
    policy.core = Some(Arc::new(make));
    let mut rack = rack();
    rack.servers[0].cores = 3;
    let report = checked(&rack, model(1), policy, &traffic);
    let helped = 870 + 20_000;
    let (first, second) = (helped + 1050, helped + 2 * 1050);
    // The third and fourth are parked. The core polls every 1000 ns. It finds both receipts at the first poll from
    // 23,170 on, moves two packets, 1 ns each, and offloads them: 30 + 2 * 20.
    let looks = (12_650..).step_by(1_000);
    let decided = looks.clone().find(|look| *look >= second + 200).unwrap();
    let begins = decided + 2 + 70 + 20_000;
    let (third, fourth) = (begins + 1050 - 10_000, begins + 2 * 1050 - 12_500);
    assert_eq!(latencies(&report), (first + second + third + fourth, third));
    let decisions = report.decisions;
    assert_eq!((decisions.relieved, decisions.packets_parked), (1, 2));
    assert_eq!((decisions.activated, decisions.packets_handed), (2, 4));
    let flowlet = |arrival, new, packets| Flowlet {
        arrival: Nanos(arrival),
        new,
        packets,
        parked: !new,
    };
    let expected = [flowlet(0, true, 1), flowlet(10_000, false, 2)];
    assert_eq!(*placed.lock().unwrap(), expected);
}

/// Packets cause no allocations in steady state: more packets need no more allocations, except for windows, runs of
/// server mappers, and the lists of dispatchers, which are new and grow whenever a core is dedicated.
#[test]
fn packets_take_no_allocations() {
    let allocations = |length: u64, name: &str| {
        let traffic = bursty(9, length * 1_000_000, 70, 4);
        let mut rack = Rack::of_one(16);
        rack.servers = vec![rack.servers[0].clone(); 2];
        let options = RunOptions::default();
        let model = ChainModel::from_profile(&profile()).unwrap();
        let info = allocation_counter::measure(|| {
            run(&rack, model, policy(name), &traffic, &options);
        });
        (info.count_total, traffic.packets())
    };
    for name in ["static", "netblaze", "tailwater"] {
        let (short, fewer) = allocations(60, name);
        let (long, more) = allocations(180, name);
        let per_packet = (long - short) as f64 / (more - fewer) as f64;
        assert!(per_packet < 0.02, "{name}: {short} for {fewer}, {long} for {more}");
    }
}

/// Offloading costs the dispatcher more than processing: it would lose half of the packets, instead of a sixth. So it
/// stops, and tries again only now and then.
#[test]
fn auxiliary_cores_of_no_benefit_are_not_used() {
    let model = ChainModel {
        dispatch_packet: 1_500.0,
        ..model(32)
    };
    // 1.1 times what a core does alone, in 1,000 flows, for 200 ms.
    let list: Vec<_> = (0..240_000).map(|i| (i * 830, i as u32 * 7 % 1000)).collect();
    let traffic = packets(&list);
    let mut rack = rack();
    rack.timing.wake = Nanos(5_000);
    let (policy, _) = scripted(Destination::auxiliary(0), u32::MAX, true);
    let report = checked(&rack, model.clone(), policy, &traffic);
    let alone = checked(&Rack::of_one(1), model, common::policy("static"), &traffic);
    let (lost, lost_alone) = (report.packets.lost, alone.packets.lost);
    assert!(report.decisions.no_benefit >= 3, "{:?}", report.decisions);
    assert!(lost_alone > 10_000 && lost < lost_alone + 24_000, "{lost} {lost_alone}");
}
