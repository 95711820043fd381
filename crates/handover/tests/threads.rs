//! Protocol between a dispatcher and its auxiliary cores, with real threads and many packets.
#![cfg(not(loom))]

mod model;

use model::{Setup, run};
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
