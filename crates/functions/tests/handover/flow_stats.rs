//! `FlowStats`: flows counted by different instances, compared with the records of a simple model.

use super::ipfix::{Record, assert_in_sequence, number, whole};
use super::rig::{Rig, SECOND};
use super::{INSTANCES, Scratch};
use proptest::prelude::*;
use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};
use tailwater_functions::flow_stats::{FlowStats, FlowStatsTable, Options, Outlet};
use tailwater_net::builder::{FrameBuilder, TcpFields};
use tailwater_net::parse::parse;
use tailwater_net::tcp::TcpFlags;
use tailwater_net::{FlowKey, Nanos, protocol};

const ACTIVE: Nanos = Nanos::from_secs(30);
const IDLE: Nanos = Nanos::from_secs(7);

/// Record of a flow, with times in milliseconds since its run's start.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Told {
    ends: [IpAddr; 2],
    protocol: u8,
    ports: [u16; 2],
    icmp: u16,
    packets: u64,
    bytes: u64,
    flags: u8,
    class: u8,
    first: u64,
    last: u64,
}

fn told(record: &Record, origin: u64) -> Told {
    let address = |v4: u16, v6: u16| match (record.get(&v4), record.get(&v6)) {
        (Some(bytes), None) => Ipv4Addr::from(<[u8; 4]>::try_from(&bytes[..]).unwrap()).into(),
        (None, Some(bytes)) => Ipv6Addr::from(<[u8; 16]>::try_from(&bytes[..]).unwrap()).into(),
        _ => panic!("one address in {record:?}"),
    };
    let or_none = |element| match record.contains_key(&element) {
        true => number(record, element) as u16,
        false => 0,
    };
    Told {
        ends: [address(8, 27), address(12, 28)],
        protocol: number(record, 4) as u8,
        ports: [or_none(7), or_none(11)],
        icmp: or_none(32) | or_none(139),
        packets: number(record, 2),
        bytes: number(record, 1),
        flags: number(record, 6) as u8,
        class: number(record, 5) as u8,
        first: number(record, 152) - origin,
        last: number(record, 153) - origin,
    }
}

/// Step: flow, packet type, milliseconds since the previous packet, and the instance that processes it.
type Step = (u16, u8, u64, usize);

/// Frame of the packet, with the model's record of it alone.
fn frame((port, sort, pause, _): Step, now: Nanos) -> (Vec<u8>, Told) {
    let ports = (1000 + port, 80);
    let v4 = |protocol, (source, destination)| {
        let ends = ([10, 0, 0, 1].into(), [192, 0, 2, 1].into());
        FlowKey::v4(ends.0, ends.1, protocol, source, destination)
    };
    let v6 = |protocol| FlowKey::v6(1u128.into(), 2u128.into(), protocol, ports.0, ports.1);
    let key = match sort % 4 {
        0 => v4(protocol::TCP, ports),
        1 => v6(protocol::TCP),
        2 => v6(protocol::UDP),
        // An echo's identifier stands for both ports of its flow.
        _ => v4(protocol::ICMP, (port, port)),
    };
    let flags = TcpFlags(1 << (pause % 6));
    let fields = TcpFields {
        flags,
        ..TcpFields::default()
    };
    let builder = FrameBuilder::new(&key);
    let builder = match key.protocol() {
        protocol::TCP => builder.tcp(fields),
        _ => builder,
    };
    let payload = vec![7; (pause % 700) as usize];
    let mut frame = builder.payload(&payload).to_vec().unwrap();
    let headers = parse(&frame).unwrap();
    assert_eq!(headers.key, key);
    let bytes = headers.datagram(&frame).len() as u64;
    let is_icmp = key.protocol() == protocol::ICMP;
    let told = Told {
        ends: [key.source(), key.destination()],
        protocol: key.protocol(),
        ports: match is_icmp {
            true => [0; 2],
            false => [key.source_port(), key.destination_port()],
        },
        icmp: match is_icmp {
            true => u16::from_be_bytes([frame[34], frame[35]]),
            false => 0,
        },
        packets: 1,
        bytes,
        flags: match key.protocol() {
            protocol::TCP => flags.0,
            _ => 0,
        },
        class: 0,
        first: now.0 / 1_000_000,
        last: now.0 / 1_000_000,
    };
    // Padding to the minimum frame is not part of the datagram.
    frame.resize(frame.len().max(60), 0);
    (frame, told)
}

/// Collects the packets of each flow in a list; each record covers a part of such a list.
fn model(steps: &[Step]) -> Vec<Told> {
    let mut records: Vec<Told> = Vec::new();
    let mut open: HashMap<(u16, u8), usize> = HashMap::new();
    let mut now = SECOND;
    for &step in steps {
        now += Nanos::from_millis(step.2);
        let (_, packet) = frame(step, now);
        let place = open.get(&(step.0, step.1 % 4)).copied();
        let goes_on = place.filter(|place| {
            let record = &records[*place];
            packet.first - record.last < IDLE.0 / 1_000_000 && packet.first - record.first < ACTIVE.0 / 1_000_000
        });
        match goes_on {
            Some(place) => {
                let record = &mut records[place];
                record.packets += 1;
                record.bytes += packet.bytes;
                record.flags |= packet.flags;
                record.last = packet.last;
            }
            None => {
                open.insert((step.0, step.1 % 4), records.len());
                records.push(packet);
            }
        }
    }
    records.sort();
    records
}

fn file() -> Scratch {
    static FILES: AtomicU32 = AtomicU32::new(0);
    let number = FILES.fetch_add(1, Ordering::Relaxed);
    let name = format!("tailwater-flow-stats-{}-{number}", std::process::id());
    Scratch(std::env::temp_dir().join(name))
}

fn table(file: &Scratch, sampling: u32) -> Arc<FlowStatsTable> {
    let options = Options {
        active: ACTIVE,
        idle: IDLE,
        sampling,
        domain: 77,
        outlets: vec![Outlet::File(file.0.clone())],
    };
    Arc::new(FlowStatsTable::new(options).unwrap())
}

/// Records exported when these packets are processed in turns, with flow timers in between.
fn records(instances: usize, steps: &[Step]) -> Vec<Told> {
    let file = file();
    let table = table(&file, 1);
    let mut rig = Rig::new((0..instances).map(|_| FlowStats::new(Arc::clone(&table))));
    let mut now = SECOND;
    let world = || {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
        since.as_millis() as u64
    };
    let mut begun = None;
    for &step in steps {
        now += Nanos::from_millis(step.2);
        let (frame, _) = frame(step, now);
        if step.2 % 2 == 0 {
            rig.expire(now);
        }
        rig.turn_to(step.3 % instances);
        if step.2 % 3 == 0 {
            rig.show_again();
        }
        begun.get_or_insert(world() - now.0 / 1_000_000);
        assert_eq!(rig.run(std::slice::from_ref(&frame), now), [frame]);
    }
    rig.finish();
    let exported = table.finish().unwrap();
    let bytes = std::fs::read(&file.0).unwrap();
    let messages = whole(&bytes);
    assert_in_sequence(&messages);
    assert_eq!(messages[0].templates, 5);
    assert!(messages.iter().all(|message| message.domain == 77));
    let records: Vec<_> = messages.iter().flat_map(|message| &message.flows).collect();
    assert_eq!(exported[0].records, records.len() as u64);
    let options = messages.last().unwrap().options.last().unwrap();
    assert_eq!((number(options, 166), number(options, 167)), (0, 0));
    // The clock's start is known up to the time the first packet took. The model's clock starts with that packet.
    let firsts = records.iter().map(|record| number(record, 152));
    let origin = firsts.min().unwrap() - (SECOND.0 / 1_000_000 + steps[0].2);
    assert!(origin.abs_diff(begun.unwrap()) < 60_000, "{origin}");
    let mut told: Vec<_> = records.iter().map(|record| told(record, origin)).collect();
    told.sort();
    told
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]
    /// Holds whichever instance counts a packet, and whether a timer or the next packet detects a flow's end.
    #[test]
    fn records_are_those_of_the_model(
        steps in prop::collection::vec((0u16..5, any::<u8>(), 0u64..9_000, 0..INSTANCES), 1..300),
    ) {
        let expected = model(&steps);
        prop_assert_eq!(records(1, &steps), &expected[..]);
        prop_assert_eq!(records(INSTANCES, &steps), expected);
    }
}

/// Timers alone export an idle flow after its idle timeout, and an active one after the active timeout. Neither a
/// packet nor the end of the flow is needed, which the table keeps for a minute.
#[test]
fn flows_are_told_of_without_packets() {
    let file = file();
    let table = table(&file, 1);
    let mut rig = Rig::new([FlowStats::new(Arc::clone(&table))]);
    let frame = |port| frame((port, 0, 0, 0), SECOND).0;
    rig.run(&[frame(1), frame(2)], SECOND);
    // The second flow sends a packet every three seconds.
    for second in 2..=33 {
        let now = Nanos::from_secs(second);
        if second % 3 == 0 {
            rig.run(&[frame(2)], now);
        }
        rig.expire(now);
        // The timer interval is seven seconds, rounded up to coarser steps.
        let expected = match second {
            ..8 => Some(0),
            17..31 => Some(1),
            _ => None,
        };
        if let Some(expected) = expected {
            assert_eq!(rig.count("records"), expected, "second {second}");
        }
    }
    let mut now = Nanos::from_secs(33);
    while rig.count("records") < 2 {
        now += SECOND;
        rig.expire(now);
        assert!(now < Nanos::from_secs(60), "the table has forgotten it");
    }
    assert_eq!(rig.flows(), 2);
    rig.finish();
    table.finish().unwrap();
    let bytes = std::fs::read(&file.0).unwrap();
    let flows: Vec<_> = whole(&bytes).into_iter().flat_map(|m| m.flows).collect();
    let reasons: Vec<_> = flows
        .iter()
        .map(|flow| (number(flow, 7), number(flow, 136), number(flow, 2)))
        .collect();
    assert_eq!(reasons[0], (1001, 1, 1));
    assert_eq!((reasons[1].0, reasons[1].1), (1002, 2));
}

/// One packet in three is counted over all flows.
#[test]
fn sampled_packets_are_counted_and_the_sampling_is_told() {
    let file = file();
    let table = table(&file, 3);
    let mut rig = Rig::new([FlowStats::new(Arc::clone(&table))]);
    for packet in 0..300 {
        rig.run(&[frame((packet % 7, 0, 0, 0), SECOND).0], SECOND);
    }
    rig.finish();
    table.finish().unwrap();
    let bytes = std::fs::read(&file.0).unwrap();
    let messages = whole(&bytes);
    assert_eq!(messages[0].templates, 6);
    let sampling = &messages[0].options[0];
    // Sampling of the whole domain: one packet, then a space of two.
    let elements = [149, 305, 306].map(|element| number(sampling, element));
    assert_eq!(elements, [77, 1, 2]);
    let counts = messages
        .iter()
        .flat_map(|message| &message.flows)
        .map(|flow| number(flow, 2));
    assert_eq!(counts.sum::<u64>(), 100);
}
