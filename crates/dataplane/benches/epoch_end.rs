//! Cost of an epoch's end for the deciding core: the mapper's plan, and moving the queue's packets accordingly, into
//! the rings to the auxiliary cores.
//!
//! `scaling/epoch-end/...` is NetBlaze's mapper by flow, `scaling/epoch-end-by-bucket/...` Tailwater's by RSS bucket,
//! with all packets in the queue, as if it had placed none on arrival. Further figures are the cost of an offloaded
//! packet on this core, from its look-up, or its RSS hash if buckets are lent, to its receipt. The port's part is not
//! included.
//!
//! `cargo bench -p tailwater-dataplane --bench epoch_end` prints one JSON line per figure: the median, and the 5th and
//! 95th percentile as `min` and `max`.

use tailwater_baselines::netblaze::{NetBlazeMapper, NetBlazeOptions};
use tailwater_dataplane::scaling::overhead::EpochEnd;
use tailwater_net::Nanos;
use tailwater_policy::capacity::{EpochFrontier, ServiceCosts, SplitProfile};
use tailwater_policy::core::{CoreMapper, Destination, Flowlet, Load, Loads, Plan, Unit, View};
use tailwater_policy::tailwater::{TailwaterMapper, TailwaterOptions};

/// Places everything on an auxiliary core.
struct Away(Unit);

impl CoreMapper for Away {
    fn unit(&self) -> Unit {
        self.0
    }

    fn due(&self, _now: Nanos, _packets: u32) -> bool {
        false
    }

    fn decide(&mut self, _view: &View<'_>, _plan: &mut Plan) {}

    fn place(&mut self, _flowlet: Flowlet, _loads: &Loads<'_>) -> Destination {
        Destination::auxiliary(0)
    }
}

/// Cost of an offloaded packet.
fn offloaded() {
    const PACKETS: usize = 1024;
    const RUNS: usize = 301;
    for flows in [32u32, 310, 2000] {
        let units = [("bucket", Unit::Bucket), ("flow", Unit::Flow)];
        let mut rigs = units.map(|(_, unit)| EpochEnd::new(PACKETS, flows, 1, Box::new(Away(unit))));
        let mut times: [Vec<f64>; 2] = Default::default();
        for run in 1..=RUNS as u64 {
            // In turns.
            for (rig, times) in rigs.iter_mut().zip(&mut times) {
                let (took, moved) = rig.offload(Nanos::from_millis(run));
                assert!(moved == PACKETS, "{moved} packets were offloaded");
                times.push(took.0 as f64 / PACKETS as f64);
            }
        }
        for ((unit, _), mut times) in units.into_iter().zip(times) {
            times.sort_by(f64::total_cmp);
            println!(
                "{{\"name\":\"scaling/offloaded-packet/by-{unit}/{flows}-flows\",\"value\":{:.2},\"unit\":\"ns\",\
                 \"min\":{:.2},\"max\":{:.2},\"runs\":{RUNS}}}",
                times[RUNS / 2],
                times[RUNS / 20],
                times[RUNS * 19 / 20]
            );
        }
    }
}

/// Tailwater's mapper, which places no flowlet: packets are moved by its decisions only.
struct Late(TailwaterMapper);

impl CoreMapper for Late {
    fn unit(&self) -> Unit {
        self.0.unit()
    }

    fn due(&self, now: Nanos, packets: u32) -> bool {
        self.0.due(now, packets)
    }

    fn decide(&mut self, view: &View<'_>, plan: &mut Plan) {
        self.0.decide(view, plan);
    }
}

/// A decision of Tailwater's mapper about buckets. Packets cost so much that this core keeps a share, and the auxiliary
/// cores get the rest.
fn by_bucket() {
    const RUNS: usize = 301;
    for packets in [128u32, 256, 512, 1024] {
        for flows in [32u32, 310, 1024] {
            for groups in [2u32, 3, 4] {
                let flows = flows.min(packets);
                // The own core keeps a fifth of the objective, and each auxiliary core takes less than all of it.
                let packet = 1000.0 * (40.0 + 110.0 * f64::from(groups - 1)) / f64::from(packets);
                let options = TailwaterOptions {
                    network_allowance: Nanos::ZERO,
                    boost_after: None,
                    costs: Some(ServiceCosts {
                        packet,
                        ..ServiceCosts::default()
                    }),
                    ..TailwaterOptions::new(Nanos::from_micros(200))
                };
                let mapper = TailwaterMapper::new(options, SplitProfile::default()).expect("a budget");
                let mut rig = EpochEnd::new(packets as usize, flows, groups as usize - 1, Box::new(Late(mapper)));
                let mut moved = 0;
                let mut times: Vec<f64> = (1..=RUNS as u64)
                    .map(|run| {
                        let (took, handed) = rig.run(Nanos::from_millis(run));
                        moved = handed;
                        took.as_micros_f64()
                    })
                    .collect();
                times.sort_by(f64::total_cmp);
                println!(
                    "{{\"name\":\"scaling/epoch-end-by-bucket/{packets}-packets/{flows}-flows/{groups}-groups\",\
                     \"value\":{:.3},\"unit\":\"us\",\"min\":{:.3},\"max\":{:.3},\"runs\":{RUNS},\
                     \"moved\":{moved}}}",
                    times[RUNS / 2],
                    times[RUNS / 20],
                    times[RUNS * 19 / 20]
                );
            }
        }
    }
}

/// Planning and re-mapping at an epoch's end, on the deciding core.
fn main() {
    offloaded();
    by_bucket();
    const RUNS: usize = 301;
    for packets in [128u32, 256, 512, 1024] {
        for flows in [1u32, 32, 310] {
            for groups in [2u32, 3, 4] {
                let flows = flows.min(packets);
                let mut frontier = EpochFrontier::default();
                // As many groups as wanted, with a small margin.
                let most = (packets / groups + packets / 16).max(packets / flows);
                frontier.insert(Load {
                    flows: u32::MAX,
                    packets: most,
                });
                let options = NetBlazeOptions {
                    network_allowance: Nanos::ZERO,
                    boost_after: None,
                    release_after: u32::MAX,
                    ..NetBlazeOptions::new(Nanos::from_micros(200))
                };
                let mapper = NetBlazeMapper::new(options, &frontier, SplitProfile::default());
                let helpers = groups as usize;
                let mapper = Box::new(mapper.expect("an epoch"));
                let mut rig = EpochEnd::new(packets as usize, flows, helpers, mapper);
                let mut moved = 0;
                let mut times: Vec<f64> = (1..=RUNS as u64)
                    .map(|run| {
                        let (took, handed) = rig.run(Nanos::from_millis(run));
                        moved = handed;
                        took.as_micros_f64()
                    })
                    .collect();
                times.sort_by(f64::total_cmp);
                println!(
                    "{{\"name\":\"scaling/epoch-end/{packets}-packets/{flows}-flows/{groups}-groups\",\
                     \"value\":{:.3},\"unit\":\"us\",\"min\":{:.3},\"max\":{:.3},\"runs\":{RUNS},\
                     \"moved\":{moved}}}",
                    times[RUNS / 2],
                    times[RUNS / 20],
                    times[RUNS * 19 / 20]
                );
            }
        }
    }
}
