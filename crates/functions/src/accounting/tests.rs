use super::*;
use proptest::prelude::*;
use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;
use tailwater_chain::rig::{ChainRig, INPUT, udp};
use tailwater_net::builder::{FrameBuilder, TcpFields};
use tailwater_net::tcp::TcpFlags;
use tailwater_net::{FlowKey, Nanos, protocol};

/// Temporary file that is removed when the test ends.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Scratch {
        let name = format!("tailwater-accounting-{}-{name}", std::process::id());
        Scratch(std::env::temp_dir().join(name))
    }

    fn text(&self) -> String {
        std::fs::read_to_string(&self.0).unwrap()
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

fn rig(table: &Arc<AccountingTable>) -> ChainRig {
    ChainRig::new(vec![Box::new(Accounting::new(Arc::clone(table)))], INPUT)
}

fn tcp(port: u16, flags: TcpFlags, payload: &[u8]) -> Vec<u8> {
    let key = FlowKey::v4([10, 0, 0, 1].into(), [192, 0, 2, 1].into(), protocol::TCP, port, 80);
    let fields = TcpFields {
        flags,
        ..TcpFields::default()
    };
    FrameBuilder::new(&key).tcp(fields).payload(payload).to_vec().unwrap()
}

#[test]
fn a_flow_is_a_line() {
    let file = Scratch::new("lines");
    let table = Arc::new(AccountingTable::with_export(&file.0, ExportFormat::Csv).unwrap());
    let mut rig = rig(&table);
    rig.run(&[tcp(7, TcpFlags::SYN, b"")], Nanos::from_micros(1500));
    rig.run(&[tcp(7, TcpFlags::ACK, b"12345"), udp(9)], Nanos::from_millis(3));
    rig.run(&[tcp(7, TcpFlags::FIN | TcpFlags::ACK, b"")], Nanos(4_000_999));
    rig.chain.drain();
    let exported = table.finish().unwrap().unwrap();
    assert_eq!((exported.records, &exported.file), (2, &file.0));
    let text = file.text();
    let mut lines: Vec<_> = text.lines().collect();
    lines[1..].sort_unstable();
    let expected = [
        "source,destination,protocol,source_port,destination_port,fragments,packets,bytes,\
         tcp_flags,first_us,last_us",
        "10.0.0.1,192.0.2.1,6,7,80,0,3,167,FIN|SYN|ACK,1500,4000",
        "10.0.0.1,198.18.0.1,17,9,53,0,1,50,-,3000,3000",
    ];
    assert_eq!(lines, expected);
    assert!(table.finish().unwrap().is_none());
}

#[test]
fn json_is_an_object_a_line() {
    let file = Scratch::new("objects");
    let table = Arc::new(AccountingTable::with_export(&file.0, ExportFormat::Json).unwrap());
    let mut rig = rig(&table);
    let v6 = FlowKey::v6(1u128.into(), 2u128.into(), protocol::TCP, 5, 6);
    let frame = FrameBuilder::new(&v6).payload(b"x").to_vec().unwrap();
    rig.run(&[frame], Nanos::from_micros(10));
    rig.chain.drain();
    table.finish().unwrap();
    assert_eq!(
        file.text(),
        "{\"source\":\"::1\",\"destination\":\"::2\",\"protocol\":6,\"source_port\":5,\
         \"destination_port\":6,\"fragments\":false,\"packets\":1,\"bytes\":75,\
         \"tcp_flags\":\"ACK\",\"first_us\":10,\"last_us\":10}\n"
    );
}

/// Returns each flow's packets and bytes, summed over all its records in the file.
fn sums(csv: &str) -> HashMap<String, (u64, u64)> {
    let mut sums: HashMap<String, (u64, u64)> = HashMap::new();
    for line in csv.lines().skip(1) {
        let fields: Vec<&str> = line.split(',').collect();
        let sum = sums.entry(fields[..6].join(",")).or_default();
        sum.0 += fields[6].parse::<u64>().unwrap();
        sum.1 += fields[7].parse::<u64>().unwrap();
    }
    sums
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]
    /// Checks the records against a map from flow to counters. The records add up to the packets sent, however many
    /// flows expire on the way or are split because they last too long.
    #[test]
    fn records_add_up(
        packets in prop::collection::vec((0u16..30, 0usize..200, 0u64..3_000), 1..400),
    ) {
        let file = Scratch::new("sums");
        let table = Arc::new(AccountingTable::with_export(&file.0, ExportFormat::Csv).unwrap());
        let mut rig = rig(&table);
        let mut expected: HashMap<String, (u64, u64)> = HashMap::new();
        let mut now = Nanos::from_secs(1);
        for (i, (port, length, pause)) in packets.iter().enumerate() {
            // Every 50th step is half an hour, so that idle flows expire.
            now += match i % 50 {
                49 => Nanos::from_secs(*pause),
                _ => Nanos::from_millis(*pause),
            };
            (0..64).for_each(|_| rig.chain.expire(now));
            let frame = tcp(*port, TcpFlags::ACK, &vec![0; *length]);
            let sum = expected.entry(format!("10.0.0.1,192.0.2.1,6,{port},80,0")).or_default();
            *sum = (sum.0 + 1, sum.1 + frame.len() as u64);
            rig.run(&[frame], now);
        }
        rig.chain.drain();
        table.finish().unwrap();
        prop_assert_eq!(sums(&file.text()), expected.clone());
        let totals = table.totals();
        let (packets, bytes) = expected.values().fold((0, 0), |a, b| (a.0 + b.0, a.1 + b.1));
        prop_assert_eq!((totals.packets, totals.bytes, totals.lost_records), (packets, bytes, 0));
    }
}

/// A flow that lasts longer than its counters' 71 minutes continues in another record.
#[test]
fn a_long_flow_has_several_records() {
    let file = Scratch::new("long");
    let table = Arc::new(AccountingTable::with_export(&file.0, ExportFormat::Csv).unwrap());
    let mut rig = rig(&table);
    // One packet every 50 seconds, below the rig's idle timeout, for about 2 hours 47 minutes.
    for i in 0..200 {
        let now = Nanos::from_secs(50 * i);
        (0..512).for_each(|_| rig.chain.expire(now));
        rig.run(&[udp(1)], now);
    }
    rig.chain.drain();
    table.finish().unwrap();
    let text = file.text();
    let lines: Vec<_> = text
        .lines()
        .skip(1)
        .map(|line| line.rsplit(',').collect::<Vec<_>>())
        .collect();
    assert_eq!(lines.len(), 3);
    // Last and first time: the second record begins with the first packet that the first record lacks.
    assert_eq!((lines[0][1], lines[0][0]), ("0", "4250000000"));
    assert_eq!(lines[1][1], "4300000000");
    assert_eq!(sums(&text).values().map(|sum| sum.0).sum::<u64>(), 200);
}

#[test]
fn without_a_file_there_are_totals() {
    let table = Arc::new(AccountingTable::new());
    let mut rig = rig(&table);
    for port in 0..100 {
        rig.run(&[udp(port), udp(port)], Nanos::from_secs(1));
    }
    assert_eq!(table.totals(), Totals::default());
    rig.chain.drain();
    let totals = Totals {
        records: 100,
        packets: 200,
        bytes: 200 * udp(1).len() as u64,
        lost_records: 0,
    };
    assert_eq!(table.totals(), totals);
    assert_eq!(table.finish().unwrap(), None);
}

/// With a full disk, the data path continues and the error is reported at the end.
#[test]
fn a_full_disk_is_an_error_at_the_end() {
    let full = PathBuf::from("/dev/full");
    if !full.exists() {
        eprintln!("skipped: no /dev/full");
        return;
    }
    let table = Arc::new(AccountingTable::with_export(&full, ExportFormat::Csv).unwrap());
    let mut rig = rig(&table);
    (0..2000).for_each(|port| drop(rig.run(&[udp(port)], Nanos::from_secs(1))));
    rig.chain.drain();
    let error = table.finish().unwrap_err().to_string();
    assert!(error.starts_with("/dev/full: cannot write records: "), "{error}");
    let missing = PathBuf::from("/nonexistent/records.csv");
    assert!(AccountingTable::with_export(&missing, ExportFormat::Csv).is_err());
}

/// Records that find the ring full are counted as lost, and packets continue. At the end the function waits for room.
#[test]
fn a_writer_that_is_too_slow_costs_records_not_packets() {
    let scratch = Scratch::new("slow");
    let (table, file) = AccountingTable::paused(&scratch.0, ExportFormat::Csv).unwrap();
    let table = Arc::new(table);
    let mut rig = rig(&table);
    let mut offered = 0;
    for round in 0..3 {
        let now = Nanos::from_secs(1 + 100 * round);
        // The flows of the previous round have expired.
        (0..512).for_each(|_| rig.chain.expire(now));
        for port in 0..10_000 {
            offered += rig.run(&[udp(port)], now + Nanos::from_millis(port.into())).len() as u64;
        }
    }
    assert_eq!(offered, 30_000);
    table.launch(file).unwrap();
    rig.chain.drain();
    let error = table.finish().unwrap_err();
    assert!(matches!(error, ExportError::Lost { .. }), "{error}");
    let totals = table.totals();
    assert_eq!((totals.packets, totals.records), (30_000, 30_000));
    // Of the 20,000 flows that ended during the run, 16,384 records found room.
    assert_eq!(totals.lost_records, 20_000 - 16_384);
    let received: u64 = sums(&scratch.text()).values().map(|sum| sum.0).sum();
    assert_eq!(received + totals.lost_records, 30_000);
}
