//! Chains that take the place of others.

use crate::common::alone;
use crate::rig::*;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use tailwater_chain::batch::Batch;
use tailwater_chain::function::{FlowStates, NetworkFunction};
use tailwater_dataplane::report::RunReport;
use tailwater_dataplane::shared_port::Unmatched;
use tailwater_net::Nanos;

/// Packets behind a translation: the external port of each of the 50 flows of a network, and its last packet.
#[derive(Default)]
pub struct Translated {
    pub flows: BTreeMap<u32, (u16, u32)>,
    pub moved: u64,
    pub overtaken: u64,
}

/// Records translated packets.
pub struct Observer(pub Arc<Mutex<Translated>>);

impl NetworkFunction for Observer {
    fn kind(&self) -> &'static str {
        "Observer"
    }

    fn process(&mut self, batch: &mut Batch, _: &mut FlowStates<'_>) {
        let mut seen = self.0.lock().expect("no panic");
        for i in 0..batch.len() {
            let frame = batch.frame(i);
            let port = u16::from_be_bytes([frame[34], frame[35]]);
            let number = frame[42..46].try_into().map(u32::from_be_bytes).expect("four bytes");
            let before = seen.flows.insert(number / 2 % 50, (port, number));
            if let Some((before, last)) = before {
                seen.moved += u64::from(before != port);
                seen.overtaken += u64::from(last >= number);
            }
        }
    }
}

/// Functions are inserted, removed and reordered while packets pass: each packet passes one list, in order, and
/// connections keep their translation.
#[test]
fn functions_come_and_go_and_flows_stay() {
    let _alone = alone();
    // More than arrive until the test ends.
    const PACKETS: u32 = 400_000;
    const NAT: &str = "{nat: {external: [203.0.113.0/28]}}";
    let server = Server::start(trace(2, Nanos(20_000), PACKETS), 1, false, Unmatched::Drop);
    let translated = Arc::<Mutex<Translated>>::default();
    let observer = || {
        let translated = Arc::clone(&translated);
        let make = move || -> Box<dyn NetworkFunction> { Box::new(Observer(Arc::clone(&translated))) };
        Some(own_function("observer", make))
    };
    let lists = [
        format!("{NAT}, {{accounting: }}"),
        format!("{{acl: {{default: allow, rules: [{{action: deny, protocol: tcp}}]}}}}, {NAT}, {{accounting: }}"),
        format!("{{accounting: }}, {NAT}"),
        NAT.to_owned(),
    ];
    let steady = server.run("10.1.0.0/16", "{accounting: }", 1);
    let mut current = server.run_with("10.0.0.0/16", &lists[0], 1, (observer(), None));
    let mut reports = Vec::new();
    for number in 1..=9 {
        // Every third change follows the one before at once: flows of two chains have yet to move.
        let packets = if number % 3 == 0 { 0 } else { 2_500 };
        server.await_received(server.port.counts().received + packets);
        let list = &lists[number % lists.len()];
        let next = server.succeed("10.0.0.0/16", list, 1, (observer(), None), Some(&current));
        reports.push(std::mem::replace(&mut current, next).drain().unwrap());
    }
    server.await_received(server.port.counts().received + 2_500);
    reports.push(current.drain().unwrap());
    let steady = steady.drain().unwrap();
    server.host.stop();
    let opened = |report: &RunReport| report.flows.as_ref().map_or(0, |flows| flows.opened);
    for report in &reports {
        assert_books(report);
        assert_eq!(report.packets.dropped_by_nf, 0, "{:?}", report.packets);
    }
    // The last one has all flows, and none was opened again.
    let last = reports.last().and_then(|report| report.flows).unwrap();
    assert_eq!((last.active, last.opened), (50, 0));
    assert_eq!(reports.iter().map(opened).sum::<u64>(), 50, "each flow once");
    let seen = translated.lock().unwrap();
    assert_eq!((seen.flows.len(), seen.moved, seen.overtaken), (50, 0, 0));
    let offered: u64 = reports.iter().map(|report| report.packets.offered).sum();
    let counts = server.port.counts();
    assert_eq!(
        counts.received,
        offered + steady.packets.offered + counts.unmatched + counts.lost,
        "{counts:?}"
    );
    assert_few_lost(&steady);
    let lost: u64 = reports.iter().map(|report| report.packets.lost).sum();
    assert!(lost * 20 < offered, "{lost} of {offered}");
}
