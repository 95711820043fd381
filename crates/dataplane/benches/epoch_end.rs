//! Cost of an epoch's end for the deciding core: the mapper's plan, and moving the queue's packets accordingly, into
//! the rings to the auxiliary cores.
//!
//! `cargo bench -p tailwater-dataplane --bench epoch_end` prints one JSON line per figure: the median, and the 5th and
//! 95th percentile as `min` and `max`.

use tailwater_baselines::netblaze::{NetBlazeMapper, NetBlazeOptions};
use tailwater_dataplane::scaling::overhead::EpochEnd;
use tailwater_net::Nanos;
use tailwater_policy::capacity::{EpochFrontier, SplitProfile};
use tailwater_policy::core::Load;

/// Planning and re-mapping at an epoch's end, on the deciding core.
fn main() {
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
