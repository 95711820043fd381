use std::collections::{HashMap, HashSet};

use proptest::prelude::*;
use tailwater_net::FlowKey;
use tailwater_net::builder::FrameBuilder;
use tailwater_net::checksum::{Checksum, verify_network, verify_transport};
use tailwater_net::protocol;

use super::*;

/// Packets in memory.
#[derive(Clone, Debug)]
struct List {
    packets: Vec<(u64, Vec<u8>)>,
    next: usize,
}

impl List {
    fn new(packets: &[(u64, Vec<u8>)]) -> Self {
        List {
            packets: packets.to_vec(),
            next: 0,
        }
    }
}

impl PacketSource for List {
    fn next_packet(&mut self) -> Result<Option<Packet<'_>>, TrafficError> {
        let packet = self.packets.get(self.next);
        self.next += 1;
        Ok(packet.map(|(time, data)| Packet {
            timestamp: Nanos(*time),
            data,
            wire_length: data.len() as u32,
        }))
    }

    fn notices(&self) -> Vec<Notice> {
        let file = "list".to_owned();
        vec![Notice::Padded { file, packets: 1 }]
    }

    fn name(&self) -> &str {
        "list"
    }
}

fn all<S: PacketSource>(mut source: S) -> Vec<(u64, Vec<u8>)> {
    let mut packets = vec![];
    while let Some(packet) = source.next_packet().unwrap() {
        packets.push((packet.timestamp.0, packet.data.to_vec()));
    }
    assert!(source.next_packet().unwrap().is_none());
    packets
}

fn frame(flow: u16, tcp: bool) -> Vec<u8> {
    let protocol = if tcp { protocol::TCP } else { protocol::UDP };
    let source = [10, 0, (flow >> 8) as u8, flow as u8].into();
    let key = FlowKey::v4(source, [192, 0, 2, 1].into(), protocol, 1000 + flow, 80);
    FrameBuilder::new(&key).payload(b"data").to_vec().unwrap()
}

fn traffic(times: &[u64]) -> Vec<(u64, Vec<u8>)> {
    let packet = |(i, time): (usize, &u64)| (*time, frame(i as u16 % 5, i % 3 == 0));
    times.iter().enumerate().map(packet).collect()
}

const AS_IS: Conversion = Conversion {
    part: Part::ALL,
    copies: 1,
    shift: Nanos::ZERO,
    speed: 1.0,
};

proptest! {
    #[test]
    fn merging_is_sorting(mut a in prop::collection::vec(0u64..1000, 0..40),
                          mut b in prop::collection::vec(0u64..1000, 0..40)) {
        a.sort_unstable();
        b.sort_unstable();
        let (a, b) = (traffic(&a), traffic(&b));
        let merged = all(Merge::new(vec![List::new(&a), List::new(&b)]));
        let mut expected = [a, b].concat();
        expected.sort_by_key(|(time, _)| *time);
        prop_assert_eq!(merged, expected);
    }

    #[test]
    fn pieces_make_the_whole(times in prop::collection::vec(0u64..1000, 1..60), at in 1u64..1000) {
        let whole = traffic(&times);
        let part = |from, to| {
            let part = Part { from: Nanos(from), to: Nanos(to), packets: u64::MAX };
            all(Cut::new(List::new(&whole), part))
        };
        let (first, second) = (part(0, at), part(at, u64::MAX));
        prop_assert_eq!(first.len() + second.len(), whole.len());
        let start = whole[0].0;
        prop_assert!(first.iter().all(|(time, _)| time.saturating_sub(start) < at));
        prop_assert!(second.iter().all(|(time, _)| time.saturating_sub(start) >= at));
    }

    /// Each copy equals the original, with other addresses, correct checksums and the same intervals.
    #[test]
    fn copies_keep_bursts_and_checksums(mut times in prop::collection::vec(0u64..10_000, 1..60),
                                        copies in 2u32..6, shift in 0u64..500) {
        times.sort_unstable();
        let original = traffic(&times);
        let conversion = Conversion { copies, shift: Nanos(shift), ..AS_IS };
        let open = || Ok(vec![List::new(&original)]);
        let made = all(conversion.open(open).unwrap());
        prop_assert_eq!(made.len(), original.len() * copies as usize);
        prop_assert!(made.is_sorted_by_key(|(time, _)| *time));
        type Flows = HashMap<FlowKey, Vec<u64>>;
        let flows = |packets: &[(u64, Vec<u8>)]| -> Flows {
            let mut flows = Flows::new();
            for (time, data) in packets {
                let headers = parse(data).unwrap();
                assert_ne!(verify_network(data, &headers), Checksum::Wrong);
                assert_eq!(verify_transport(data, &headers), Checksum::Correct);
                flows.entry(headers.key).or_default().push(*time);
            }
            flows
        };
        let (before, after) = (flows(&original), flows(&made));
        prop_assert_eq!(after.len(), before.len() * copies as usize);
        for (key, times) in &before {
            prop_assert_eq!(&after[key], times, "copy 0 is the original");
        }
        let mut shapes: Vec<Vec<u64>> = before.values().flat_map(|times| {
            (0..u64::from(copies)).map(|n| times.iter().map(|t| t + n * shift).collect())
        }).collect();
        let mut found: Vec<Vec<u64>> = after.into_values().collect();
        shapes.sort();
        found.sort();
        prop_assert_eq!(found, shapes);
    }
}

#[test]
fn every_copy_has_a_mask_of_its_own() {
    let masks: HashSet<u16> = (0..MOST_COPIES)
        .map(|number| Copy::new(List::new(&[]), number, Nanos::ZERO).mask)
        .collect();
    assert_eq!(masks.len(), MOST_COPIES as usize);
}

#[test]
fn speed_divides_times_since_the_first_packet() {
    let times = |factor| {
        let source = List::new(&traffic(&[1_000, 1_100, 900, 3_000]));
        let made = all(Speed::new(source, factor).unwrap());
        made.iter().map(|(time, _)| *time).collect::<Vec<u64>>()
    };
    assert_eq!(times(2.0), [1_000, 1_050, 950, 2_000]);
    assert_eq!(times(0.5), [1_000, 1_200, 800, 5_000]);
    assert_eq!(times(1e-300)[3], u64::MAX);
    for wrong in [0.0, -1.0, f64::NAN, f64::INFINITY] {
        assert!(Speed::new(List::new(&[]), wrong).is_err());
    }
}

#[test]
fn a_conversion_does_one_thing_after_the_other() {
    let original = traffic(&[100, 200, 300, 400, 500]);
    let conversion = Conversion {
        part: Part {
            from: Nanos(100),
            to: Nanos(400),
            packets: 2,
        },
        copies: 2,
        shift: Nanos(50),
        speed: 10.0,
    };
    let made = conversion.open(|| Ok(vec![List::new(&original)])).unwrap();
    assert_eq!(made.name(), "list");
    assert_eq!(made.notices().len(), 1, "not once for each copy");
    let times: Vec<u64> = all(made).iter().map(|(time, _)| *time).collect();
    // 200 and 300, again at 250 and 350, ten times as fast from 200 on.
    assert_eq!(times, [200, 205, 210, 215]);
    for copies in [0, MOST_COPIES + 1] {
        let wrong = Conversion { copies, ..AS_IS };
        assert!(wrong.open(|| Ok(vec![List::new(&original)])).is_err());
    }
}

#[test]
fn what_cannot_be_parsed_is_copied_as_it_is() {
    let original = vec![(1, vec![1, 2, 3]), (2, vec![0xff; 64])];
    let conversion = Conversion { copies: 2, ..AS_IS };
    let made = all(conversion.open(|| Ok(vec![List::new(&original)])).unwrap());
    assert_eq!(made.len(), 4);
    assert!(made.iter().all(|packet| original.contains(packet)));
}
