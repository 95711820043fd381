//! Chains that take the place of others.

use crate::common::alone;
use crate::rig::*;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tailwater_chain::batch::Batch;
use tailwater_chain::function::{FlowStates, NetworkFunction};
use tailwater_dataplane::report::RunReport;
use tailwater_dataplane::shared_port::Unmatched;
use tailwater_functions::spec::FunctionSpec;
use tailwater_net::Nanos;

/// Packets of the trace: more than arrive until a test ends that does not repeat it.
const PACKETS: u32 = 400_000;
/// Each connection has two flows.
const FLOWS: u64 = 100;
const NAT: &str = "{nat: {external: [203.0.113.0/28], internal: [192.0.2.0/24]}}";

/// Packets behind a translation: the external port of each of the 50 flows of a network, and its last packet.
#[derive(Default)]
pub struct Translated {
    pub flows: BTreeMap<u32, (u16, u32)>,
    pub moved: u64,
    pub overtaken: u64,
    /// Number of the first overtaken packet, and of the one of its flow that came before it.
    first: Option<[u32; 2]>,
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
                // A repeated trace begins with 0 again.
                if number <= last && last - number < PACKETS / 2 {
                    seen.overtaken += 1;
                    seen.first.get_or_insert([number, last]);
                }
            }
        }
    }
}

/// Number of flows that a run has opened, apart from those that it inherited.
fn opened(report: &RunReport) -> u64 {
    report.flows.as_ref().map_or(0, |flows| flows.opened)
}

/// Last function of a chain, which records what it translates.
fn observer(translated: &Arc<Mutex<Translated>>) -> FunctionSpec {
    let translated = Arc::clone(translated);
    let make = move || -> Box<dyn NetworkFunction> { Box::new(Observer(Arc::clone(&translated))) };
    own_function("observer", make)
}

/// Functions are inserted, removed and reordered while packets pass: each packet passes one list, in order, and
/// connections keep their translation.
#[test]
fn functions_come_and_go_and_flows_stay() {
    let _alone = alone();
    let server = Server::start(trace(2, Nanos(20_000), PACKETS), 1, false, Unmatched::Drop);
    let translated = Arc::<Mutex<Translated>>::default();
    let observer = || Some(observer(&translated));
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
        let next = server.succeed("10.0.0.0/16", list, &server.cores, (observer(), None), Some(&current));
        reports.push(std::mem::replace(&mut current, next).drain().unwrap());
    }
    server.await_received(server.port.counts().received + 2_500);
    reports.push(current.drain().unwrap());
    let steady = steady.drain().unwrap();
    server.host.stop();
    for report in &reports {
        assert_books(report);
        assert_eq!(report.packets.dropped_by_nf, 0, "{:?}", report.packets);
    }
    // The last one has all flows, and none was opened again.
    let last = reports.last().and_then(|report| report.flows).unwrap();
    assert_eq!((last.active, last.opened), (FLOWS, 0));
    assert_eq!(reports.iter().map(opened).sum::<u64>(), FLOWS, "each flow once");
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

/// Two chains exchange their cores while packets pass: connections keep their translation, and no packet is overtaken.
/// `EXCHANGE_SECONDS` is the time for which they do, once a second.
#[test]
fn chains_exchange_cores_and_flows_stay() {
    let _alone = alone();
    const NETWORKS: [&str; 2] = ["10.0.0.0/16", "10.1.0.0/16"];
    let seconds = std::env::var("EXCHANGE_SECONDS").ok().map(|text| text.parse::<u64>());
    let seconds = seconds.map(|seconds| seconds.expect("EXCHANGE_SECONDS is a number"));
    let server = Server::start(trace(2, Nanos(20_000), PACKETS), 2, true, Unmatched::Drop);
    let [one, two] = [server.cores[0], server.cores[1]];
    let translated: [Arc<Mutex<Translated>>; 2] = Default::default();
    let start = |chain: usize, core: usize, before: Option<&Running>| {
        let last = (Some(observer(&translated[chain])), None);
        server.succeed(NETWORKS[chain], NAT, &[core], last, before)
    };
    let mut current = [start(0, one, None), start(1, two, None)];
    let unmatched = server.port.counts().unmatched;
    let mut ended: [Vec<RunReport>; 2] = Default::default();
    for number in 0..seconds.unwrap_or(8) {
        match seconds {
            Some(_) => std::thread::sleep(Duration::from_secs(1)),
            None => server.await_received(server.port.counts().received + 2_500),
        }
        let cores = if number % 2 == 0 { [two, one] } else { [one, two] };
        // Both move before the first one has left.
        let next = [0, 1].map(|chain| start(chain, cores[chain], Some(&current[chain])));
        for (before, ended) in std::mem::replace(&mut current, next).into_iter().zip(&mut ended) {
            let report = before.drain().unwrap();
            assert_books(&report);
            ended.push(report);
        }
    }
    server.await_received(server.port.counts().received + 2_500);
    assert_eq!(server.port.counts().unmatched, unmatched, "each packet has a chain");
    for (last, ended) in current.into_iter().zip(&mut ended) {
        ended.push(last.drain().unwrap());
    }
    server.host.stop();
    for (ended, translated) in ended.iter().zip(&translated) {
        let last = ended.last().and_then(|report| report.flows).unwrap();
        assert_eq!((last.active, last.opened), (FLOWS, 0), "the last one has all flows");
        let sum = |count: fn(&RunReport) -> u64| ended.iter().map(count).sum::<u64>();
        assert_eq!(sum(opened), FLOWS, "each flow once");
        let seen = translated.lock().unwrap();
        let counts = (seen.flows.len(), seen.moved, seen.overtaken);
        assert_eq!(counts, (50, 0, 0), "{:?}", seen.first);
        assert!(sum(|report| report.packets.lost) * 20 < sum(|report| report.packets.offered));
    }
    let offered: u64 = ended.iter().flatten().map(|report| report.packets.offered).sum();
    let counts = server.port.counts();
    assert_eq!(counts.received, offered + counts.unmatched + counts.lost, "{counts:?}");
}

/// Regression: who had ended a chain after its end took the packets of the chain that had got its slot.
#[test]
fn a_chain_that_has_ended_is_withdrawn_without_harm_to_another() {
    let _alone = alone();
    let server = Server::start(trace(2, Nanos(20_000), PACKETS), 1, true, Unmatched::Drop);
    let first = server.run("10.0.0.0/16", "{forward: }", 1);
    let slot = first.withdrawal.slot();
    let second = server.succeed("10.0.0.0/16", "{forward: }", &server.cores, (None, None), Some(&first));
    while first.withdrawal.slot().is_some() {
        std::thread::sleep(Duration::from_millis(1));
    }
    let other = server.run("10.1.0.0/16", "{forward: }", 1);
    assert_eq!(other.withdrawal.slot(), slot);
    first.drain().unwrap();
    server.await_received(server.port.counts().received + 5_000);
    let reports = [second, other].map(|chain| chain.drain().unwrap());
    assert!(reports[1].packets.offered > 1_000, "{:?}", reports[1].packets);
    reports.iter().for_each(assert_books);
}

/// A chain is succeeded by others on as many cores, on fewer, and on more, while packets pass: connections keep their
/// translation, and no packet is lost or overtaken.
#[test]
fn flows_pass_to_other_numbers_of_cores() {
    let _alone = alone();
    let server = Server::start(trace(2, Nanos(100_000), PACKETS), 2, false, Unmatched::Drop);
    let [one, two] = [server.cores[0], server.cores[1]];
    let translated = Arc::<Mutex<Translated>>::default();
    let start = |cores: &[usize], before: Option<&Running>| {
        let last = (Some(observer(&translated)), None);
        server.succeed("10.0.0.0/16", NAT, cores, last, before)
    };
    let mut current = start(&[one], None);
    let mut reports = Vec::new();
    let all = [&[one, two][..], &[one], &[two, one], &[one, two], &[two], &[one, two]];
    for (number, cores) in all.into_iter().enumerate() {
        // Every third change follows the one before at once: flows have yet to move.
        let packets = if number % 3 == 2 { 0 } else { 600 };
        server.await_received(server.port.counts().received + packets);
        let next = start(cores, Some(&current));
        reports.push(std::mem::replace(&mut current, next).drain().unwrap());
    }
    server.await_received(server.port.counts().received + 600);
    reports.push(current.drain().unwrap());
    server.host.stop();
    for report in &reports {
        assert_books(report);
        assert_eq!(report.packets.dropped_by_nf, 0, "{:?}", report.packets);
    }
    let last = reports.last().and_then(|report| report.flows).unwrap();
    assert_eq!((last.active, last.opened), (FLOWS, 0), "the last one has all flows");
    assert_eq!(reports.iter().map(opened).sum::<u64>(), FLOWS, "each flow once");
    let seen = translated.lock().unwrap();
    assert_eq!((seen.flows.len(), seen.moved, seen.overtaken), (50, 0, 0));
    let offered: u64 = reports.iter().map(|report| report.packets.offered).sum();
    let lost: u64 = reports.iter().map(|report| report.packets.lost).sum();
    let counts = server.port.counts();
    // Nothing but packets of the other network, and those before the first chain.
    assert_eq!(counts.received, offered + counts.unmatched + counts.lost, "{counts:?}");
    // A machine that takes a core away for longer than the ring lasts makes packets late for it: no others are lost.
    let reasons: Vec<_> = reports.iter().map(|report| &report.packets.reasons).collect();
    let full: u64 = reasons.iter().filter_map(|reasons| reasons.get("nic-ring-full")).sum();
    assert_eq!(lost, full, "of {offered}: {reasons:?}");
    assert!(lost <= offered / 5, "{lost} of {offered}: {reasons:?}");
}
