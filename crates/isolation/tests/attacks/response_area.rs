//! Invalid responses of a hostile function: forged slots, packets that reappear or vanish.

use crate::turns::descendants_with;
use crate::{Rig, frame, program, raw, ways};
use std::thread::sleep;
use std::time::{Duration, Instant};
use tailwater_chain::chain::Outcome;
use tailwater_confine::Confinement;

/// Every second frame has destination port 1, by which `drop-odd` identifies the packets to drop.
fn frames() -> Vec<Vec<u8>> {
    let frame = |i: usize| {
        let mut frame = frame();
        frame[37] = (i % 2) as u8;
        frame
    };
    (0..8).map(frame).collect()
}

/// Runs a function that drops every second packet, with a hostile one behind it. Returns the packets sent, the invalid
/// responses of the hostile one, and all restarts of the others.
fn batches(attack: &str, container: &Option<tailwater_confine::ContainerRuntime>) -> [u64; 3] {
    let good = |name| program(name, &Confinement::full(), container);
    let mut hostile = raw(attack, &Confinement::full(), container);
    hostile.launch.arguments.push("liar".into());
    let programs = vec![good("drop-odd"), hostile, good("nothing")];
    let mut rig = Rig::new(programs, Duration::from_secs(10));
    let before = descendants_with("liar");
    let sent = rig.send(&frames());
    // The watchdog ends the process shortly after the invalid response.
    let until = Instant::now() + Duration::from_secs(30);
    let lies = sent.is_empty();
    while lies && before.iter().all(|it| descendants_with("liar").contains(it)) {
        assert!(Instant::now() < until, "{attack}: it was not ended");
        sleep(Duration::from_millis(1));
    }
    // The forwarded frames are the sent ones, in order, and no others.
    for (i, sent) in sent.iter().enumerate() {
        assert_eq!(sent[..42], frames()[2 * i][..42], "{attack}");
    }
    let told = rig.chain.reasons();
    let counts: Vec<u64> = rig.chain.reason_counts().collect();
    let gone: u64 = told
        .iter()
        .zip(&counts)
        .filter(|(reason, _)| reason.outcome != Outcome::Passed)
        .map(|(_, count)| count)
        .sum();
    assert_eq!(gone + sent.len() as u64, 8, "{attack}: {told:?} {counts:?}");
    let reports = rig.finish();
    let others = reports[0].restarts.total() + reports[2].restarts.total();
    [sent.len() as u64, reports[1].restarts.lied, others]
}

#[test]
fn forged_places_are_lies_and_nobody_else_feels_them() {
    for container in ways() {
        // A valid response: the half that the function in front left.
        assert_eq!(batches("truth", &container), [4, 0, 0]);
        for attack in [
            "long",
            "beyond-its-buffer",
            "no-length",
            "of-another-round",
            "no-word",
            "vanish",
            "come-back",
            "move-dropped",
            "masks-of-another-round",
            "one-more",
        ] {
            assert_eq!(batches(attack, &container), [0, 1, 0], "{attack}");
        }
        // Slots far beyond the batch are not read.
        assert_eq!(batches("one-far-beyond", &container), [4, 0, 0]);
    }
}
