//! Isolated functions on auxiliary cores of a run.

use crate::common::*;
use crate::{alone, process, restarts, run_isolated};
use std::collections::BTreeMap;
use std::path::Path;
use tailwater_dataplane::cores::available;
use tailwater_traffic::{CaptureReader, PacketSource, ReadOptions};

/// Returns the sent frames of each flow in the order of their times: each core's are apart in the file.
fn by_time(sent: &Path) -> BTreeMap<[u64; 5], Vec<Vec<u8>>> {
    let mut reader = CaptureReader::open(sent, &ReadOptions::default()).unwrap();
    let mut frames = Vec::new();
    while let Some(packet) = reader.next_packet().unwrap() {
        frames.push((packet.timestamp, packet.data.to_vec()));
    }
    frames.sort_by_key(|(time, _)| *time);
    let mut flows = BTreeMap::<_, Vec<_>>::new();
    for (_, frame) in frames {
        flows.entry(key(&frame).words()).or_default().push(frame);
    }
    flows
}

/// A burst that the dedicated core cannot process in time, though in twice the objective, for which a run waits at its
/// end: the same packets leave in the same order as of one process, and the flows are the same.
#[test]
fn functions_on_an_auxiliary_core_do_what_they_do_in_one_process() {
    let _alone = alone();
    let cores = available();
    let [auxiliary, .., core] = cores[..] else {
        return println!("skipped: this needs two cores");
    };
    let folder = Folder::new();
    let packets: Vec<_> = (0..3_000u32)
        .map(|n| {
            let flow = n % 40;
            let port = 2000 + flow as u16;
            let mut frame = udp(client(flow as u8 + 1), port, SERVER, 53);
            // Without a checksum, so that packets of a flow can differ.
            frame[40..42].fill(0);
            frame.extend(n.to_be_bytes());
            (u64::from(n) * 5_000, frame)
        })
        .collect();
    let traffic = folder.capture("burst.pcap", &packets);
    let functions = "[{accounting: }, {policer: {limits: [{rate: 100000pps, burst: 1000, per: flow}]}}, {synthetic: \
                     {cycles: 4000}}]";
    let chain = folder.spec_with_slo("100ms", "offloaded.yaml", functions, "  flows: {capacity: 4096}\n");
    let core = core.to_string();
    let (one, _) = run_isolated(&chain, &traffic, "none", &core);
    let sent = by_time(&chain.with_extension("pcap"));
    let way = format!("{} --auxiliary {auxiliary}", process());
    let (other, _) = run_isolated(&chain, &traffic, &way, &core);
    assert_eq!(one["packets"], other["packets"]);
    assert_eq!(one["flows"]["opened"], other["flows"]["opened"]);
    assert!(
        by_time(&chain.with_extension("pcap")) == sent,
        "other packets were sent"
    );
    let offloaded = other["scaling"]["packets_handed"].as_u64();
    assert!(offloaded > Some(100), "{}", other["scaling"]);
    for function in other["isolation"]["functions"].as_array().unwrap() {
        assert_eq!(restarts(function), 0, "{other}");
    }
}
