use super::*;
use crate::core::Load;
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::io::Read;
use tailwater_net::Nanos;

fn load((flows, packets): (u32, u32)) -> Load {
    Load { flows, packets }
}

fn frontier(points: &[(u32, u32)]) -> EpochFrontier {
    let mut frontier = EpochFrontier::new();
    for point in points {
        frontier.insert(load(*point));
    }
    frontier
}

#[test]
fn a_frontier_is_a_staircase() {
    let mut frontier = frontier(&[(10, 352), (103, 128)]);
    for (flows, packets) in [(0, 352), (1, 352), (10, 352), (11, 128), (103, 128), (104, 0)] {
        assert_eq!(frontier.capacity(flows), packets, "{flows} flows");
    }
    assert!(frontier.admits(load((10, 352))) && !frontier.admits(load((11, 352))));
    // One that is covered, then one that covers the last corner.
    assert!(!frontier.insert(load((100, 128))) && !frontier.insert(load((10, 352))));
    assert!(frontier.insert(load((200, 160))));
    assert_eq!(frontier.corners(), [load((10, 352)), load((200, 160))]);
    assert_eq!((frontier.smallest(), frontier.largest()), (160, 352));
    assert_eq!(frontier.static_safe(), EpochFrontier::constant(160));
    assert_eq!(frontier.static_unsafe(), EpochFrontier::constant(352));
}

#[test]
fn no_observation_admits_nothing() {
    let mut frontier = EpochFrontier::new();
    assert!(!frontier.insert(load((0, 10))) && !frontier.insert(load((10, 0))));
    assert!(frontier.is_empty() && !frontier.admits(load((1, 1))));
    assert!(frontier.admits(Load::default()));
}

#[test]
fn more_flows_than_a_frontier_tells_apart_count_as_the_most() {
    let frontier = frontier(&[(u32::MAX, 5)]);
    assert_eq!(frontier.capacity(MAX_FLOWS), 5);
    assert_eq!(frontier.capacity(MAX_FLOWS + 1), 0);
}

#[test]
fn a_rate_between_observations_is_interpolated() {
    let mut frontier = RateFrontier::new();
    for (flows, rate) in [(500, 2e6), (2000, 1.4e6), (1000, 1.6e6), (800, 1.5e6)] {
        frontier.insert(flows, rate);
    }
    // 800 flows met only a rate that 1000 flows met too.
    assert_eq!(frontier.corners(), [(500, 2e6), (1000, 1.6e6), (2000, 1.4e6)]);
    for (flows, rate) in [
        (0.0, 2e6),
        (500.0, 2e6),
        (750.0, 1.8e6),
        (1000.0, 1.6e6),
        (1500.0, 1.5e6),
        (2000.0, 1.4e6),
        (4000.0, 0.7e6),
    ] {
        assert_eq!(frontier.rate(flows), rate, "{flows} flows");
    }
    assert!(frontier.admits(500.0, 2e6) && !frontier.admits(501.0, 2e6));
    assert!(!frontier.insert(10, f64::NAN) && !frontier.insert(10, f64::INFINITY));
    assert_eq!(frontier.static_safe().rate(1e9), 1.4e6);
    assert_eq!(frontier.static_unsafe().rate(1e9), 2e6);
}

#[test]
fn the_split_with_most_room_is_chosen() {
    let mut splits = SplitProfile::new();
    for (last_functions, first, last) in [(2, 300, 500), (1, 200, 900), (3, 500, 300)] {
        let point = SplitPoint {
            last_functions,
            first,
            last,
        };
        assert!(splits.insert(point));
        assert!(!splits.insert(SplitPoint { last: 0, ..point }));
    }
    let chosen = |packets| splits.choose(packets).map(|point| point.last_functions);
    // Two and three functions have equal capacity: the smaller number is moved.
    assert_eq!([chosen(200), chosen(300), chosen(301)], [Some(2), Some(2), None]);
    let more = SplitPoint {
        last_functions: 1,
        first: 400,
        last: 400,
    };
    assert!(splits.insert(more));
    assert_eq!(splits.choose(301), Some(more));
    assert_eq!(splits.points().len(), 3);
}

proptest! {
    #[test]
    fn frontiers_equal_the_best_observation_of_as_many_flows(
        points in prop::collection::vec((0_u32..40, 0_u32..100), 0..30),
        any in prop_oneof![Just(0_u32), 0_u32..50],
    ) {
        let mut frontier = EpochFrontier::constant(any);
        for point in &points {
            let before = frontier.capacity(point.0);
            let grew = frontier.insert(load(*point));
            prop_assert_eq!(grew, point.0 > 0 && point.1 > before);
        }
        for flows in 0..50 {
            let seen = points.iter().filter(|point| point.0 > 0 && point.0 >= flows);
            let best = seen.map(|point| point.1).max().unwrap_or(0);
            prop_assert_eq!(frontier.capacity(flows), best.max(any));
        }
        let rebuilt = frontier.corners().iter().rev().fold(
            EpochFrontier::constant(any),
            |mut rebuilt, corner| { rebuilt.insert(*corner); rebuilt },
        );
        prop_assert_eq!(rebuilt, frontier);
    }

    #[test]
    fn rates_never_rise_with_the_flows(
        points in prop::collection::vec((0_u32..1000, 0_f64..3e6), 0..20),
        any in prop_oneof![Just(0_f64), 0_f64..2e6],
        asked in prop::collection::vec(0_f64..3000.0, 2..40),
    ) {
        let mut frontier = RateFrontier::constant(any);
        for (flows, rate) in &points {
            frontier.insert(*flows, *rate);
        }
        let mut asked = asked;
        asked.sort_by(f64::total_cmp);
        for pair in asked.windows(2) {
            prop_assert!(frontier.rate(pair[0]) >= frontier.rate(pair[1]));
        }
        for (flows, rate) in points.into_iter().filter(|point| point.0 > 0) {
            prop_assert!(frontier.admits(f64::from(flows), rate), "{flows} flows");
        }
        let rebuilt = frontier.corners().iter().fold(
            RateFrontier::constant(any),
            |mut rebuilt, corner| { rebuilt.insert(corner.0, corner.1); rebuilt },
        );
        prop_assert_eq!(rebuilt, frontier);
    }

    #[test]
    fn a_written_profile_reads_back_equal(
        names in [".{0,40}", "\\PC{1,40}", "[a-z0-9-]{1,40}"],
        times in (1_u64..1 << 40, 1_u64..1 << 40),
        points in prop::collection::vec((1_u32..=MAX_FLOWS, 1_u32..5000), 1..40),
        any in 0_u32..3,
        rates in prop::collection::vec((1_u32.., 0_f64..1e8), 0..40),
        splits in prop::collection::vec((1_usize..12, 1_u32.., 1_u32..), 0..12),
        costs in prop::option::of([0_f64..1e6, 0_f64..1e4, 0_f64..10.0, 0_f64..1e5]),
        details in prop::option::of((any::<u32>(), prop::array::uniform10(0_f64..1e6), prop::collection::vec(prop::array::uniform4(1_u64..1 << 40), 0..4),
            prop::collection::btree_map(1_u64..1_000_000, 0.1_f64..10.0, 0..9))),
    ) {
        let [chain, configuration, machine] = names;
        let mut profile = CapacityProfile {
            chain, configuration, machine,
            slo: Nanos(times.0),
            epoch: Nanos(times.1),
            frontier: EpochFrontier::constant(any),
            ..CapacityProfile::default()
        };
        for point in points {
            profile.frontier.insert(load(point));
        }
        for (flows, rate) in rates {
            profile.rates.insert(flows, rate);
        }
        for (last_functions, first, last) in splits {
            profile.splits.insert(SplitPoint { last_functions, first, last });
        }
        profile.costs = costs.map(|[batch, packet, byte, new_flow]| {
            ServiceCosts { batch, packet, byte, new_flow }
        });
        profile.details = details.map(|(cold_after, costs, mut rows, pauses)| {
            rows.iter_mut().for_each(|row| row[1..].sort());
            rows.sort();
            rows.dedup_by_key(|row| row[0]);
            let wakes = rows.iter().map(|&[asleep, p50, p90, p99]| Wake { asleep, p50, p90, p99 });
            DetailedCosts {
                traffic_packet: costs[0],
                cold_after,
                cold_batch: costs[1],
                cold_packet: costs[2],
                receive_packet: costs[3],
                ring_packet: costs[4],
                queue_packet: costs[5],
                hand_over_packet: costs[6],
                take_over_packet: costs[7],
                poll: costs[8],
                new_batch: costs[9],
                wakes: wakes.collect(),
                pauses: pauses
                    .into_iter()
                    .map(|(nanos, per_second)| Pause { per_second, nanos })
                    .collect(),
            }
        });
        let written = profile.to_string();
        let read = CapacityProfile::parse(written.as_bytes(), "written");
        prop_assert_eq!(read.as_ref(), Ok(&profile), "{}", written);
    }

    #[test]
    fn any_bytes_parse_or_are_refused_on_one_line(
        bytes in prop::collection::vec(any::<u8>(), 0..200),
        cut in any::<prop::sample::Index>(),
    ) {
        let mut mutated = SAMPLE.as_bytes().to_vec();
        let at = cut.index(mutated.len());
        mutated.splice(at.., bytes.iter().copied());
        for text in [&bytes, &mutated] {
            if let Err(error) = CapacityProfile::parse(text, "file") {
                let error = error.to_string();
                prop_assert!(error.starts_with("file:") && !error.contains('\n'), "{error}");
            }
            let _ = EpochFrontier::from_published(text, "file");
        }
    }
}

const SAMPLE: &str = "apiVersion: tailwater.dev/v1alpha1
kind: CapacityProfile
chain: acl-nat
configuration: '9f86'
machine: edge-3
sloNanoseconds: 200000
epochNanoseconds: 80000
frontier:
- [10, 352]
- [any, 64]
rates: [[500, 2.14e6]]
splits: [[1, 512, 700]]
costs: {batchNanoseconds: 110, packetNanoseconds: 42.5, byteNanoseconds: 0, newFlowNanoseconds: 210}
";

/// Example from the type's documentation.
const WRITTEN: &str = "apiVersion: tailwater.dev/v1alpha2
kind: CapacityProfile
chain: \"acl-nat\"
configuration: \"9f86d081884c7d65\"
machine: \"edge-3\"
sloNanoseconds: 200000
epochNanoseconds: 80000
# [flows, packets an epoch]
frontier: [[10, 352], [103, 128]]
# [flows, packets a second]
rates: [[500, 2140000], [5500, 1820000]]
# [last functions moved, packets an epoch of the first functions, of the last]
splits: [[1, 512, 700]]
costs: {batchNanoseconds: 110, packetNanoseconds: 42.5, byteNanoseconds: 0.02, newFlowNanoseconds: 210}
details: {trafficPacketNanoseconds: 180, coldAfterPackets: 1024, coldBatchNanoseconds: 90,
  coldPacketNanoseconds: 30, newBatchNanoseconds: 200, receivePacketNanoseconds: 20,
  ringPacketNanoseconds: 15, queuePacketNanoseconds: 25, handOverPacketNanoseconds: 40,
  takeOverPacketNanoseconds: 35, pollNanoseconds: 40}
# [nanoseconds asleep, nanoseconds to wake up: median, 90th, 99th percentile]
wakes: [[350000, 4000, 7000, 12000]]
# [pauses a second, nanoseconds each]
pauses: [[1000, 3400], [900, 5600]]
";

#[test]
fn files_look_as_documented() {
    let profile = CapacityProfile::parse(WRITTEN.as_bytes(), "written").unwrap();
    assert_eq!(profile.to_string(), WRITTEN);
}

/// Files written by earlier versions have no details.
#[test]
fn an_old_profile_is_read() {
    let old = CapacityProfile::parse(SAMPLE.as_bytes(), "old").unwrap();
    assert_eq!(old.details, None);
}

#[test]
fn wrong_details_are_told_with_their_place() {
    for (from, to, expected) in [
        (
            "coldAfterPackets: 1024, ",
            "",
            "details: expected coldAfterPackets among the details",
        ),
        (
            "ringPacketNanoseconds: 15",
            "ringPacketNanoseconds: -1",
            "details.ringPacketNanoseconds: expected nanoseconds",
        ),
        (
            "coldAfterPackets: 1024",
            "coldAfterPackets: x",
            "details.coldAfterPackets: expected a number",
        ),
        (
            "[350000, 4000, 7000, 12000]",
            "[350000, 4000, 3000, 12000]",
            "wakes[0]: expected [nanoseconds asleep",
        ),
        ("12000]]", "12000], [350000, 1, 1, 1]]", "wakes[1]: expected"),
        ("wakes", "wake", "expected one of apiVersion"),
        ("[900, 5600]", "[0, 5600]", "pauses[1]: expected"),
        ("[900, 5600]", "[900, 3400]", "pauses[1]: expected"),
        ("[900, 5600]", "[900, 560000]", "pauses[1]: expected"),
    ] {
        let text = WRITTEN.replace(from, to);
        let error = CapacityProfile::parse(text.as_bytes(), "x").unwrap_err().to_string();
        assert!(error.contains(expected), "{error} for {expected}");
    }
}

#[test]
fn a_profile_in_another_notation_is_read() {
    let profile = CapacityProfile::parse(SAMPLE.as_bytes(), "sample").unwrap();
    assert_eq!(profile.chain, "acl-nat");
    assert_eq!(profile.slo, Nanos::from_micros(200));
    assert_eq!([10, 11].map(|flows| profile.frontier.capacity(flows)), [352, 64]);
    assert_eq!(profile.rates.rate(1.0), 2.14e6);
    assert_eq!(profile.splits.choose(500).unwrap().last_functions, 1);
    assert_eq!(profile.costs.unwrap().packet, 42.5);
}

#[test]
fn what_is_wrong_is_told_with_its_place() {
    let many = "[1, 1], ".repeat(MAX_POINTS + 1);
    let many = format!("rates: [{many}]");
    for (from, to, expected) in [
        (
            "CapacityProfile",
            "Chain",
            "2:7: kind: expected CapacityProfile, found \"Chain\"",
        ),
        (
            "alpha1",
            "beta2",
            "1:13: apiVersion: expected tailwater.dev/v1alpha2 or tailwater.dev/v1alpha1, found \"tailwater.dev/v1beta2\"",
        ),
        (
            "chain: acl-nat",
            "chain: [a]",
            "3:8: chain: expected a name, found a list",
        ),
        ("machine: edge-3\n", "", "machine: expected this field, found none"),
        (
            "machine",
            "chain",
            "5:1: chain: expected each field once, found it again",
        ),
        ("machine", "machin", "5:1: expected one of apiVersion"),
        (
            "200000",
            "200us",
            "6:17: sloNanoseconds: expected nanoseconds, from 1 to 3600000000000, found \"200us\"",
        ),
        ("200000", "0", "6:17: sloNanoseconds: expected nanoseconds"),
        (
            "[10, 352]",
            "[10]",
            "9:6: frontier[0]: expected [flows, packets an epoch]",
        ),
        (
            "[10, 352]",
            "[10, 352, 1]",
            "9:13: frontier[0]: expected [flows, packets",
        ),
        (
            "[10, 352]",
            "[ten, 352]",
            "9:3: frontier[0]: expected [flows, packets an epoch], both above 0 and flows at most 16384 or, once, `any`, found \"[ten, 352]\"",
        ),
        ("[10, 352]", "[any, 352]", "10:3: frontier[1]: expected [flows, packets"),
        ("[10, 352]", "[20000, 352]", "9:3: frontier[0]: expected [flows"),
        ("[10, 352]", "[10, -1]", "9:3: frontier[0]: expected [flows"),
        (
            "\n- [10, 352]\n- [any, 64]",
            " []",
            "frontier: expected at least one point, found none",
        ),
        ("2.14e6", "inf", "11:9: rates[0]: expected [flows, packets a second]"),
        ("2.14e6", "nan", "11:9: rates[0]: expected"),
        (
            "rates: [[500, 2.14e6]]",
            &many,
            "rates: expected at most 16384 points, found more",
        ),
        ("[1, 512", "[0, 512", "12:10: splits[0]: expected [last functions"),
        (
            "byteNanoseconds: 0",
            "byteNanoseconds: -1",
            "costs.byteNanoseconds: expected nanoseconds, found \"-1\"",
        ),
        (
            "byteNanoseconds: 0, ",
            "",
            "costs: expected byteNanoseconds among the costs",
        ),
        ("byteNanoseconds", "byte", "costs: expected one of batchNanoseconds"),
        ("edge-3", "&a edge-3", "5:13: machine: expected no anchors"),
        ("edge-3", "!!str edge-3", "machine: expected no tags"),
        ("edge-3", "*a", "not valid YAML"),
        ("edge-3", "\"\n", "not valid YAML"),
        ("210}", "210}\n---\n", "expected one document"),
    ] {
        let text = SAMPLE.replacen(from, to, 1);
        assert_ne!(text, SAMPLE, "{from}");
        let error = CapacityProfile::parse(text.as_bytes(), "a.yaml").unwrap_err();
        let error = error.to_string();
        let error = error.strip_prefix("a.yaml:").unwrap();
        assert!(error.contains(expected), "{to}: {error}");
    }
    let error = |text: &[u8]| CapacityProfile::parse(text, "a").unwrap_err().to_string();
    assert_eq!(error(b"x: 1\n\xff"), "a:2: expected UTF-8 text, found other bytes");
    assert_eq!(
        error(&[b' '; MAX_BYTES + 1]),
        "a: expected at most 1 MiB, found a larger file"
    );
    assert!(error(b"").contains("expected the fields of a capacity profile, found the end"));
    let deep = error(&b"[".repeat(MAX_BYTES));
    assert!(deep.starts_with("a:1:") && deep.len() < 200, "{deep}");
    let long = SAMPLE.replace("edge-3", &"x".repeat(MAX_NAME_BYTES + 1));
    assert!(error(long.as_bytes()).contains("a name of at most 256 bytes"));
}

#[test]
fn wrong_lines_of_published_files_are_told() {
    let error = |text: &[u8]| EpochFrontier::from_published(text, "a.pro").unwrap_err().to_string();
    assert_eq!(
        error(b"1 352\n2 many\n"),
        "a.pro:2: expected flows and packets in an epoch, found \"2 many\""
    );
    for line in ["1", "1 2 3", "0 5", "-1 5", "1 5000000000"] {
        assert!(error(line.as_bytes()).starts_with("a.pro:1: "), "{line}");
    }
    assert_eq!(
        error(b"\n \n"),
        "a.pro: expected lines of flows and packets in an epoch, found none"
    );
    assert!(error(&[b' '; MAX_BYTES + 1]).contains("at most 1 MiB"));
}

/// Returns the published files by name. If they are missing, prints that the test is skipped.
fn published() -> Option<BTreeMap<String, Vec<u8>>> {
    let Some(folder) = std::env::var_os("TAILWATER_TEST_DATA") else {
        eprintln!("skipped: TAILWATER_TEST_DATA is not set");
        return None;
    };
    let path = std::path::Path::new(&folder).join("profiles/netblaze_profiles.tar.zst");
    let packed = std::fs::read(path).unwrap();
    let mut archive = Vec::new();
    ruzstd::decoding::StreamingDecoder::new(&packed[..])
        .unwrap()
        .read_to_end(&mut archive)
        .unwrap();
    // A tar archive (POSIX ustar): a header of 512 bytes precedes each file.
    let mut files = BTreeMap::new();
    let mut rest = &archive[..];
    while let Some((header, after)) = rest.split_first_chunk::<512>() {
        let text = |field: &[u8]| {
            let end = field.iter().position(|b| *b == 0).unwrap_or(field.len());
            String::from_utf8_lossy(&field[..end]).trim().to_owned()
        };
        let Ok(size) = usize::from_str_radix(&text(&header[124..136]), 8) else {
            break;
        };
        if header[156] == b'0' {
            let name = text(&header[..100]);
            let name = name.trim_start_matches("./").to_owned();
            files.insert(name, after[..size].to_vec());
        }
        rest = after.get(size.next_multiple_of(512)..).unwrap_or_default();
    }
    Some(files)
}

#[test]
fn published_profiles_load_as_they_are() {
    let Some(files) = published() else { return };
    let mut loaded = 0;
    for (name, text) in files.iter().filter(|(name, _)| name.ends_with(".pro")) {
        loaded += 1;
        let lines: Vec<(u32, u32)> = String::from_utf8_lossy(text)
            .lines()
            .map(|line| {
                let (flows, amount) = line.split_once(' ').unwrap();
                (flows.parse().unwrap(), amount.trim().parse().unwrap())
            })
            .collect();
        if name.contains("short") {
            let frontier = EpochFrontier::from_published(text, name).unwrap();
            for (flows, packets) in &lines {
                assert!(frontier.capacity(*flows) >= *packets, "{name}: {flows}");
            }
            let most = lines.iter().map(|line| line.1).max().unwrap();
            assert_eq!(frontier.largest(), most, "{name}");
            assert_eq!(frontier.any() > 0, lines.len() == 1, "{name}");
        } else {
            let frontier = RateFrontier::from_published(text, name).unwrap();
            for (flows, rate) in &lines {
                let flows = f64::from(*flows);
                assert!(frontier.admits(flows, f64::from(*rate)), "{name}: {flows}");
            }
        }
    }
    assert!(loaded > 90, "only {loaded} profiles");

    let chain1 = &files["nf_profiles/chain4/short_200.pro"];
    let chain1 = EpochFrontier::from_published(chain1, "short_200").unwrap();
    for (flows, packets) in [(1, 352), (10, 352), (11, 320), (104, 96), (312, 96), (313, 0)] {
        assert_eq!(chain1.capacity(flows), packets, "{flows} flows");
    }
    let corners = chain1.corners().iter().map(|corner| corner.flows);
    assert_eq!(corners.collect::<Vec<_>>(), [10, 31, 43, 103, 312]);
    for (variant, of_frontier) in [("safe", chain1.static_safe()), ("unsafe", chain1.static_unsafe())] {
        let file = &files[&format!("nf_profiles/chain4/short_200_{variant}.pro")];
        let published = EpochFrontier::from_published(file, variant).unwrap();
        assert_eq!(published, of_frontier);
    }
    // The published rate rises from 2000 to 2500 flows, which a frontier cannot do.
    let rates = &files["nf_profiles/chain4/long_200_p50.pro"];
    let rates = RateFrontier::from_published(rates, "long_200").unwrap();
    assert_eq!(rates.rate(2500.0), 1_880_000.0);
    assert!(rates.rate(2000.0) > 1_880_000.0 && rates.rate(2000.0) < 1_980_000.0);
}
