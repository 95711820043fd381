use super::*;
use crate::{LoadOptions, Trace};
use proptest::prelude::*;
use std::collections::HashMap;

/// Packets in memory, each with a number of its own as its bytes.
#[derive(Clone, Debug)]
struct Numbers {
    times: Vec<u64>,
    next: usize,
    data: Vec<u8>,
}

fn frame(number: usize) -> Vec<u8> {
    let mut frame = (number as u64).to_be_bytes().to_vec();
    frame.resize(8 + number % 100, number as u8);
    frame
}

impl PacketSource for Numbers {
    fn next_packet(&mut self) -> Result<Option<Packet<'_>>, TrafficError> {
        let Some(time) = self.times.get(self.next) else {
            return Ok(None);
        };
        self.data = frame(self.next);
        self.next += 1;
        Ok(Some(Packet {
            timestamp: Nanos(*time),
            data: &self.data,
            wire_length: self.data.len() as u32,
        }))
    }

    fn notices(&self) -> Vec<Notice> {
        Vec::new()
    }

    fn name(&self) -> &str {
        "numbers"
    }
}

fn impaired(times: &[u64], impairments: Impairments) -> (Vec<(u64, Vec<u8>)>, Done) {
    let numbers = Numbers {
        times: times.to_vec(),
        next: 0,
        data: Vec::new(),
    };
    let mut source = Impaired::new(numbers, impairments).unwrap();
    let mut packets = Vec::new();
    while let Some(packet) = source.next_packet().unwrap() {
        assert!((1..=MAX_FRAME).contains(&packet.data.len()));
        assert!(packet.wire_length as usize >= packet.data.len());
        packets.push((packet.timestamp.0, packet.data.to_vec()));
    }
    assert!(source.next_packet().unwrap().is_none(), "the end is lasting");
    (packets, source.done())
}

fn number(frame: &[u8]) -> usize {
    u64::from_be_bytes(frame[..8].try_into().unwrap()) as usize
}

fn probability() -> impl Strategy<Value = f64> {
    prop_oneof![Just(0.0), 0.0..1.0, Just(1.0)]
}

proptest! {
    /// With any impairments: no packet is invented, missing ones were counted as lost, additional ones as repeated, and
    /// everything comes within its delay, in order of time.
    #[test]
    fn what_is_yielded_is_what_was_read_but_for_what_was_done(
        gaps in prop::collection::vec(0u64..5000, 0..200),
        seed: u64,
        [lose, repeat, overtake, stall] in [probability(), probability(), probability(), probability()],
        delay_max in 0u64..20_000,
    ) {
        let times: Vec<u64> = gaps.iter().scan(7, |time, gap| { *time += gap; Some(*time) }).collect();
        let impairments = Impairments {
            seed, lose, repeat, overtake, stall, damage: 0.0, delay_max: Nanos(delay_max),
        };
        let (packets, done) = impaired(&times, impairments);
        prop_assert_eq!(done.read, times.len() as u64);
        prop_assert_eq!(done.yielded, packets.len() as u64);
        prop_assert_eq!(done.yielded, done.read - done.lost + done.repeated);
        prop_assert!(packets.is_sorted_by_key(|(time, _)| *time));
        let mut seen: HashMap<usize, u64> = HashMap::new();
        for (time, data) in &packets {
            let number = number(data);
            prop_assert_eq!(data, &frame(number));
            let count = seen.entry(number).or_default();
            *count += 1;
            prop_assert!(*count <= 4);
            // A stall, and a delay of its own.
            let late = time - times[number];
            prop_assert!(late <= 2 * delay_max, "{} late", late);
        }
        prop_assert_eq!(seen.len() as u64, done.read - done.lost);
        prop_assert_eq!(seen.values().map(|count| count - 1).sum::<u64>(), done.repeated);
        if overtake == 0.0 && repeat == 0.0 {
            prop_assert!(packets.is_sorted_by_key(|(_, data)| number(data)), "a stall keeps order");
        }
        // The same seed has the same effect; the trace reads the packets back as yielded.
        prop_assert_eq!(impaired(&times, impairments), (packets, done));
    }

    #[test]
    fn damage_always_changes_something(length in 1usize..3000, seed: u64) {
        let mut random = Random::new(seed);
        let mut data = vec![0x5a; length];
        damage(&mut data, &mut random);
        prop_assert!(!data.is_empty() && data.len() <= MAX_FRAME);
        prop_assert_ne!(data, vec![0x5a; length]);
    }
}

#[test]
fn each_thing_happens_as_often_as_it_was_asked_for() {
    let times: Vec<u64> = (0..20_000).map(|i| i * 100).collect();
    let some = |change: fn(&mut Impairments)| {
        let mut impairments = Impairments::NONE;
        change(&mut impairments);
        impaired(&times, impairments)
    };
    let (packets, done) = some(|_| {});
    assert!(packets.iter().map(|(time, _)| *time).eq(times.iter().copied()));
    assert_eq!(done.yielded, 20_000);
    let near = |found: u64| assert!((1700..2300).contains(&found), "{found} of 20,000 at 10 %");
    near(some(|what| what.lose = 0.1).1.lost);
    let (packets, done) = some(|what| what.overtake = 0.1);
    near(done.delayed);
    let numbers: Vec<usize> = packets.iter().map(|(_, data)| number(data)).collect();
    assert!(!numbers.is_sorted(), "some were overtaken");
    near(some(|what| what.repeat = 0.1).1.repeated / 2);
    near(some(|what| what.damage = 0.1).1.damaged);
    let (packets, done) = some(|what| (what.stall, what.delay_max) = (0.1, Nanos(5000)));
    near(done.stalls);
    let at_once = packets.windows(2).filter(|pair| pair[0].0 == pair[1].0).count();
    assert!(at_once > 5000, "{at_once}");
}

#[test]
fn a_trace_takes_what_is_left() {
    let source = |lose| {
        let numbers = Numbers {
            times: (0..50).collect(),
            next: 0,
            data: Vec::new(),
        };
        let impairments = Impairments {
            lose,
            overtake: 0.5,
            ..Impairments::NONE
        };
        Impaired::new(numbers, impairments)
    };
    let trace = Trace::load(&mut source(0.0).unwrap(), &LoadOptions::default()).unwrap();
    assert_eq!(trace.len(), 50);
    assert!(trace.notices().is_empty(), "in order of time");
    let nothing = Trace::load(&mut source(1.0).unwrap(), &LoadOptions::default());
    assert!(matches!(nothing, Err(TrafficError::NoPackets { .. })));
    let error = source(1.5).unwrap_err().to_string();
    assert!(error.contains("lose") && error.contains("0 to 1"), "{error}");
}
