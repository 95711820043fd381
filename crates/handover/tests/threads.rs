//! Protocol between a dispatcher and its auxiliary cores, with real threads and many packets.
#![cfg(not(loom))]

mod model;

use model::{Setup, Step, run, run_steps};
use std::time::Duration;
use tailwater_handover::owner::Placement;
use tailwater_handover::park::Mode;

/// Small deterministic generator (xorshift).
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % bound
    }
}

#[test]
fn many_flows_move_at_random_and_stay_in_order() {
    let modes = [Mode::Sleep, Mode::SpinThenSleep(Duration::from_micros(5)), Mode::Spin];
    for (round, mode) in modes.into_iter().enumerate() {
        for auxiliaries in [1, 2] {
            let setup = Setup {
                flows: 5,
                segments: 2,
                auxiliaries,
                ring: 64,
                batch: 32,
                mode,
                hasty: false,
            };
            let mut random = Random(0x9e37_79b9_7f4a_7c15 + round as u64);
            let packets = (0..50_000).map(|_| {
                let flow = random.below(setup.flows.into()) as u32;
                let split = random.below(2) == 0;
                let wanted = match random.below(u64::from(auxiliaries) + 1) as u8 {
                    0 => Placement::Home,
                    auxiliary if split => Placement::Split {
                        from: 1,
                        auxiliary: auxiliary - 1,
                    },
                    auxiliary => Placement::Auxiliary(auxiliary - 1),
                };
                (flow, wanted)
            });
            let outcome = run(&setup, packets);
            // The number is random, but with rings this busy it is never 0.
            assert!(outcome.stayed > 0);
            println!("{mode:?}, {auxiliaries} helpers: {outcome:?}");
        }
    }
}

#[test]
fn a_flow_is_divided_and_joined_at_random_and_stays_in_order() {
    let setup = Setup {
        flows: 1,
        segments: 4,
        auxiliaries: 3,
        ring: 64,
        batch: 32,
        mode: Mode::SpinThenSleep(Duration::from_micros(5)),
        hasty: false,
    };
    let mut random = Random(0x2545_f491_4f6c_dd1d);
    let split = Placement::Split { from: 2, auxiliary: 1 };
    let mut steps = vec![Step::Packet(0, split)];
    for _ in 0..50 {
        let packets = |random: &mut Random| random.below(200) as usize;
        steps.extend([Step::Routed(0)].repeat(packets(&mut random)));
        // The auxiliary core's last segment, and the dispatcher's, in any order.
        let mut divisions = [Step::Divide(0, 3, 2), Step::Divide(0, 1, 0)];
        divisions.rotate_left(random.below(2) as usize);
        for division in divisions {
            steps.push(division);
            steps.extend([Step::Routed(0)].repeat(packets(&mut random)));
        }
        // The last two parts are joined first. What is left begins with the dispatcher's first segment.
        steps.extend([Step::Join(0), Step::Routed(0), Step::Join(0)]);
        steps.extend([Step::Routed(0)].repeat(packets(&mut random)));
        steps.push(Step::Drain(0));
        steps.push(Step::Packet(0, split));
    }
    run_steps(&setup, steps.into_iter());
}
