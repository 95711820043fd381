//! Tests of rates and usage.

use super::super::usage::{Report, ReportCause, collect, collect_all};
use super::*;
use crate::policer::{Meter, Rate};

/// Meter of 8 kbit/s, that is 1,000 bytes a second, with this burst in bytes.
fn meter(burst: u64) -> Option<Meter> {
    Some(Meter::new(Rate::Bits(8000), burst))
}

/// Returns how many of ten packets of 100 bytes pass at one time.
fn pass(rig: &mut ChainRig, frame: &[u8], second: u64) -> usize {
    rig.run(&vec![frame.to_vec(); 10], Nanos::from_secs(second)).len()
}

fn up(number: u32, port: u16) -> Vec<u8> {
    let key = FlowKey::v4(user(number), SERVER, protocol::UDP, 4000, port);
    let frame = FrameBuilder::new(&key).payload(&[0; 72]).to_vec().unwrap();
    tunnelled(number, datagram(&frame))
}

/// Each session has its own buckets, also per rule with rates. Packets a rule refuses take no tokens of the session.
#[test]
fn sessions_and_rules_have_rates_of_their_own() {
    let rule = |flows: &str, rates, in_session_rate| Rule {
        flows: parse_flows(flows).unwrap(),
        treatment: Treatment {
            rates,
            in_session_rate,
            ..treatment(None)
        },
    };
    let profile = Profile {
        rules: vec![
            rule("permit out udp from any 53 to assigned", [meter(200), meter(300)], true),
            rule("permit out udp from any 54 to assigned", [None, meter(900)], false),
        ],
        session_rates: [meter(500), meter(700)],
        ..profile("limited", None)
    };
    let sessions = [session(1, false), session(2, false)];
    let mut rig = rig(&table(options(Role::Core), &[profile], &sessions));
    let down = |number, port| {
        let key = FlowKey::v4(SERVER, user(number), protocol::UDP, port, 4000);
        FrameBuilder::new(&key).payload(&[0; 72]).to_vec().unwrap()
    };
    for number in [1, 2] {
        let second = u64::from(number) * 100;
        assert_eq!(pass(&mut rig, &up(number, 53), second), 2);
        assert_eq!(pass(&mut rig, &up(number, 80), second), 3);
        assert_eq!(pass(&mut rig, &down(number, 53), second), 3);
        assert_eq!(pass(&mut rig, &down(number, 80), second), 4);
        // Exempt from the session's rate.
        assert_eq!(pass(&mut rig, &down(number, 54), second), 9);
        assert_eq!(pass(&mut rig, &up(number, 54), second), 10);
    }
    assert_eq!(rig.count("upf/over-rate"), 2 * (8 + 7 + 1));
    assert_eq!(rig.count("upf/over-session-rate"), 2 * (7 + 6));
    // 100 ms later there are tokens for 100 bytes more: one packet.
    let now = Nanos::from_millis(200_100);
    let frames = vec![down(2, 80); 10];
    assert_eq!(rig.run(&frames, now).len(), 1);
}

#[test]
fn usage_is_counted_and_reported() {
    let free = Rule {
        flows: parse_flows("permit out udp from any 99 to assigned").unwrap(),
        treatment: Treatment {
            counted: false,
            ..treatment(None)
        },
    };
    let profile = Profile {
        rules: vec![free],
        volume: Some(1000),
        time: Some(Nanos::from_secs(60)),
        ..profile("counted", None)
    };
    let sessions = [session(1, false), session(2, true)];
    let table = table(options(Role::Core), &[profile], &sessions);
    let mut rig = rig(&table);
    let reports = |times| {
        let mut reports: Vec<Report> = Vec::new();
        collect(&table, times, &mut |report| reports.push(report));
        reports
    };
    // After 900 bytes nothing is due.
    for _ in 0..9 {
        run(&mut rig, &down(1, 100));
    }
    assert_eq!(reports(true), []);
    run(&mut rig, &up(1, 80));
    let [report] = reports(true)[..] else {
        panic!("one report is due");
    };
    let usage = Usage {
        bytes: [100, 900],
        packets: [1, 9],
    };
    assert_eq!((report.session, report.cause), (1, ReportCause::Volume));
    assert_eq!((report.user, report.usage), (user(1).into(), usage));
    assert_eq!(reports(true), []);
    // Uncounted and dropped packets leave the usage unchanged.
    for _ in 0..20 {
        run(&mut rig, &up(1, 99));
    }
    assert_eq!(run(&mut rig, &down(1, 1480)), None);
    assert_eq!(table.session(1).unwrap().1, usage);
    // A minute later a time report is due for both, whether or not they had traffic.
    run_at(&mut rig, &down(2, 100), Nanos::from_secs(61));
    assert_eq!(reports(false), []);
    let due = reports(true);
    let found: Vec<_> = due.iter().map(|r| (r.session, r.cause, r.usage.volume())).collect();
    assert_eq!(found, [(1, ReportCause::Time, 1000), (2, ReportCause::Time, 100)]);
    assert_eq!(due[0].time, Nanos::from_secs(61));
    assert_eq!(reports(true), []);
    table.remove(1).unwrap();
    let [report] = reports(true)[..] else {
        panic!("one report is due");
    };
    assert_eq!((report.session, report.cause), (1, ReportCause::Removed));
    assert_eq!(report.usage, usage);
    let mut rest = Vec::new();
    collect_all(&table, &mut |report| rest.push((report.session, report.cause)));
    assert_eq!(rest, [(2, ReportCause::End)]);
}

#[test]
fn what_was_due_is_not_reported_of_an_heir() {
    let profile = Profile {
        volume: Some(1000),
        ..profile("counted", None)
    };
    let options = Options {
        capacity: 1,
        ..options(Role::Core)
    };
    let table = table(options, &[profile], &[session(1, false)]);
    let mut rig = rig(&table);
    run(&mut rig, &down(1, 1200));
    table.remove(1).unwrap();
    // The new session gets the only slot.
    table.set(&session(2, false), Owner::Api).unwrap();
    let reports = || {
        let mut reports = Vec::new();
        collect(&table, false, &mut |report| {
            reports.push((report.session, report.cause))
        });
        reports
    };
    assert_eq!(reports(), [(1, ReportCause::Removed)]);
    run(&mut rig, &down(2, 1200));
    assert_eq!(reports(), [(2, ReportCause::Volume)]);
}
