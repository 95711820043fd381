//! Test of the decisions against a simple oracle that tracks every packet individually.

use proptest::prelude::*;
use std::collections::VecDeque;
use tailwater_api::WhenUnavailable;
use tailwater_net::Nanos;
use tailwater_state::commits::{Bounds, Commits, LeaveReason, Stage};

const FLOWS: usize = 5;
const WAIT: u64 = 100;
const PACKETS: usize = 12;

/// Input of a worker.
#[derive(Clone, Debug)]
enum Event {
    /// A batch: each packet's flow, and a flag if it changes the flow's state.
    Batch(Vec<(usize, bool)>),
    /// The store answers this number of requests.
    Answer(u64),
    /// The store becomes available or unavailable.
    Available(bool),
    /// Time passes.
    Pause(u64),
}

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        4 => prop::collection::vec((0..FLOWS, any::<bool>()), 1..6).prop_map(Event::Batch),
        3 => (0u64..4).prop_map(Event::Answer),
        1 => any::<bool>().prop_map(Event::Available),
        2 => (0u64..WAIT).prop_map(Event::Pause),
    ]
}

/// Waiting packet.
#[derive(Clone, Copy, Debug)]
struct Waiting {
    number: u64,
    flow: usize,
    /// Its own request, without which it must not leave.
    own: u64,
    since: u64,
}

/// Packets in one queue, with the rules by which a keeper uses [`Commits`].
struct Rig {
    commits: Commits,
    then: WhenUnavailable,
    line: VecDeque<Waiting>,
    gates: [u64; FLOWS],
    now: u64,
    available: bool,
    sent: u64,
    answered: u64,
    number: u64,
    /// Last packet of each flow that left without being dropped.
    left: [u64; FLOWS],
    went: u64,
    dropped: u64,
}

impl Rig {
    fn new(then: WhenUnavailable) -> Rig {
        let bounds = Bounds {
            packets: PACKETS,
            wait: Nanos(WAIT),
            then,
        };
        Rig {
            commits: Commits::new(bounds, 0),
            then,
            line: VecDeque::new(),
            gates: [0; FLOWS],
            now: 0,
            available: true,
            sent: 0,
            answered: 0,
            number: 0,
            left: [0; FLOWS],
            went: 0,
            dropped: 0,
        }
    }

    fn leaves(&mut self, flow: usize, number: u64) -> Result<(), TestCaseError> {
        prop_assert!(self.left[flow] < number, "a packet of flow {flow} was overtaken");
        self.left[flow] = number;
        self.went += 1;
        Ok(())
    }

    fn drain(&mut self) -> Result<(), TestCaseError> {
        while let Some(leaving) = self.commits.next(Stage::Update, Nanos(self.now)) {
            prop_assert!(leaving.packets > 0);
            for _ in 0..leaving.packets {
                let packet = self.line.pop_front().expect("no more packets leave than joined");
                prop_assert_eq!(leaving.waited.0, self.now - packet.since);
                let late = self.now - packet.since >= WAIT;
                match leaving.reason {
                    // Output commit.
                    LeaveReason::Go => prop_assert!(packet.own <= self.answered),
                    LeaveReason::Pass => prop_assert_eq!(self.then, WhenUnavailable::Pass),
                    LeaveReason::Drop => {
                        prop_assert!(late || !self.available);
                        prop_assert!(self.then != WhenUnavailable::Pass);
                        prop_assert!(late || self.then == WhenUnavailable::Drop);
                    }
                }
                match leaving.reason {
                    LeaveReason::Drop => self.dropped += 1,
                    LeaveReason::Go | LeaveReason::Pass => self.leaves(packet.flow, packet.number)?,
                }
            }
        }
        // The bounds.
        prop_assert!(self.line.len() <= PACKETS);
        prop_assert_eq!(self.line.len(), self.commits.waiting());
        for packet in &self.line {
            prop_assert!(self.now - packet.since < WAIT, "it waits for too long");
            prop_assert!(self.available || self.then == WhenUnavailable::Hold);
        }
        // The packet in front never waits for an answered request.
        if let Some(first) = self.line.front() {
            prop_assert!(self.gates[first.flow] > self.answered);
        }
        Ok(())
    }

    fn batch(&mut self, packets: &[(usize, bool)]) -> Result<(), TestCaseError> {
        if packets.iter().any(|(_, changes)| *changes) {
            self.sent += 1;
        }
        for &(flow, changes) in packets {
            if changes {
                self.gates[flow] = self.sent;
            }
        }
        let mut waiting = Vec::new();
        for &(flow, _) in packets {
            self.number += 1;
            let own = self.gates[flow];
            prop_assert_eq!(self.commits.is_open(own), own <= self.answered);
            if own <= self.answered {
                self.leaves(flow, self.number)?;
            } else {
                let (number, since) = (self.number, self.now);
                waiting.push(Waiting {
                    number,
                    flow,
                    own,
                    since,
                });
            }
        }
        if waiting.is_empty() {
            return Ok(());
        }
        match self.commits.refuses(waiting.len()) {
            Some(fate) => {
                prop_assert_eq!(fate, LeaveReason::Drop);
                let full = self.line.len() + waiting.len() > PACKETS;
                prop_assert!(full || !self.available && self.then == WhenUnavailable::Drop);
                self.dropped += waiting.len() as u64;
            }
            None => {
                let gate = waiting.iter().map(|packet| packet.own).max().unwrap_or(0);
                let now = Nanos(self.now);
                let gate = self.commits.join(Stage::Update, waiting.len(), gate, now);
                prop_assert!(gate <= self.sent, "it waits for what was never asked");
                for packet in &waiting {
                    self.gates[packet.flow] = gate;
                }
                self.line.extend(waiting);
            }
        }
        Ok(())
    }

    fn happens(&mut self, event: &Event) -> Result<(), TestCaseError> {
        match event {
            Event::Answer(more) => {
                self.answered = (self.answered + more).min(self.sent);
                self.commits.answer(self.answered);
            }
            Event::Available(available) => {
                self.available = *available;
                self.commits.set_available(*available);
            }
            Event::Pause(pause) => self.now += pause,
            Event::Batch(_) => {}
        }
        // A turn: packets that may leave do so before anything else.
        self.drain()?;
        if let Event::Batch(packets) = event {
            self.batch(packets)?;
            self.drain()?;
        }
        prop_assert_eq!(
            self.went + self.dropped + self.line.len() as u64,
            self.number,
            "a packet was lost or doubled"
        );
        Ok(())
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]
    /// No packet leaves before its update is acknowledged, unless policy and bounds permit it. None overtakes another
    /// of its flow, waits beyond the bounds, is lost or duplicated. Answered requests release all of them.
    #[test]
    fn packets_wait_as_long_as_they_must_and_no_longer(
        then in prop_oneof![
            Just(WhenUnavailable::Hold),
            Just(WhenUnavailable::Pass),
            Just(WhenUnavailable::Drop),
        ],
        events in prop::collection::vec(event(), 1..60),
    ) {
        let mut rig = Rig::new(then);
        for event in &events {
            rig.happens(event)?;
        }
        rig.happens(&Event::Answer(u64::MAX / 2))?;
        prop_assert!(rig.line.is_empty());
        prop_assert_eq!(rig.commits.waiting(), 0);
    }
}
