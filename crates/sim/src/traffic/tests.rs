use super::*;

/// Returns all packets and flow starts of a feed.
fn all(workload: &mut Workload<'_>) -> (Vec<Packet>, Vec<FlowStart>) {
    let mut feed = ChunkReader::new(workload);
    let (mut packets, mut starts) = (Vec::new(), Vec::new());
    loop {
        let chunk = feed.next(u64::MAX).unwrap();
        if chunk.packets.is_empty() {
            return (packets, starts);
        }
        packets.extend_from_slice(chunk.packets);
        starts.extend_from_slice(chunk.starts);
    }
}

fn preset(name: &str) -> Box<dyn Arrivals> {
    let preset = tailwater_traffic::generate::preset(name).unwrap();
    preset.with(3, Nanos::from_millis(50)).arrivals().unwrap()
}

#[test]
fn a_recording_is_what_was_streamed() {
    for name in ["bursty", "backbone"] {
        let options = FlowOptions::default();
        let recording = Recording::load(preset(name), options, 1 << 30).unwrap();
        assert!(recording.packets() > 5000, "{name}");
        assert_eq!(recording.iter().next().unwrap().0, Nanos::ZERO);
        let recorded = all(&mut Workload::from(Arc::new(recording)));
        let streamed = all(&mut Workload::stream(preset(name), options));
        assert!(recorded == streamed, "{name}");
        assert!(recorded.0.is_sorted_by_key(|packet| packet.arrival));
    }
}

#[test]
fn a_packet_keeps_what_it_is_told() {
    let packet = Packet::new(5, 7, 100_000, 511, true).of_chain(MOST_CHAINS - 1);
    assert_eq!(size_of_val(&packet), 16);
    assert_eq!((packet.bucket(), packet.is_first()), (511, true));
    assert_eq!((packet.bytes, packet.chain()), (u16::MAX, MOST_CHAINS - 1));
}

#[test]
fn the_memory_limit_holds() {
    let error = Recording::load(preset("bursty"), FlowOptions::default(), 1 << 10).unwrap_err();
    assert!(matches!(error, TrafficError::MemoryLimit { .. }), "{error}");
}

#[test]
fn packets_without_a_place_say_so() {
    let packets = (0..100).map(|i| (Nanos(i * 10), i as u32, 64));
    let source = ByHand {
        name: "many flows",
        packets,
        key: FlowKey::default(),
        destinations: 1,
    };
    let options = FlowOptions {
        most: 60,
        ..FlowOptions::default()
    };
    let recording = Recording::load(Box::new(source), options, 1 << 20).unwrap();
    assert_eq!(recording.flows(), 60);
    let lost = recording.iter().filter(|packet| packet.1 == NO_FLOW_INDEX);
    assert_eq!(lost.count(), 40);
}
