//! `UrlFilter`: requests in segments that different instances process.

use super::INSTANCES;
use super::rig::{Rig, SECOND, segment, sums};
use proptest::prelude::*;
use std::sync::Arc;
use tailwater_api::PacketAction;
use tailwater_functions::url_filter::{Action, FilterConfig, FilterTable, Pattern, Ports, Rest, UrlFilter};
use tailwater_net::Nanos;
use tailwater_net::tcp::TcpFlags;

const STREAMS: usize = 8;

fn rig(instances: usize, change: impl FnOnce(&mut FilterConfig)) -> Rig {
    let mut config = FilterConfig {
        action: Action::Drop,
        rest: Rest::Drop,
        http_ports: Ports::any(),
        tls_ports: Ports::any(),
        streams: STREAMS,
        buffer_bytes: 1024,
        on_overflow: PacketAction::Drop,
        fragments: PacketAction::Pass,
    };
    change(&mut config);
    let patterns = ["bad.example", "ok.example/secret", "*needle*"];
    let patterns = patterns.map(|text| Pattern::parse(text).unwrap());
    let table = Arc::new(FilterTable::new(&patterns, config).unwrap());
    Rig::new((0..instances).map(|_| UrlFilter::new(Arc::clone(&table))))
}

/// Returns `true` if all buffers are free, in any instance: one new stream more than there are buffers overflows once.
fn all_buffers_are_free(rig: &mut Rig, now: Nanos, turns: impl Iterator<Item = usize>) -> bool {
    let before = rig.count("overflow");
    let last = STREAMS as u16 + 1;
    for (port, turn) in (60_000..60_000 + last).zip(turns) {
        rig.turn_to(turn);
        let start = segment(port, 1, TcpFlags::SYN, b"GET / HTTP/1.1\r\nHost: ba");
        rig.run(&[start], now);
    }
    rig.count("overflow") == before + 1
}

#[test]
fn halves_of_a_request_at_different_instances_make_one() {
    let request = b"GET / HTTP/1.1\r\nHost: bad.example\r\n\r\n";
    for cut in 1..request.len() {
        // In order, and with the second half first.
        for (first, second) in [(0..cut, cut..request.len()), (cut..request.len(), 0..cut)] {
            let mut rig = rig(INSTANCES, |_| {});
            rig.run(&[segment(1, 0, TcpFlags::SYN, b"")], SECOND);
            for (turn, piece) in [(1, first), (2, second)] {
                rig.turn_to(turn);
                let sequence = 1 + piece.start as u32;
                rig.run(&[segment(1, sequence, TcpFlags::ACK, &request[piece])], SECOND);
            }
            assert_eq!((rig.count("url-blocked"), rig.count("overflow")), (1, 0), "{cut}");
            assert!(all_buffers_are_free(&mut rig, SECOND, std::iter::repeat(0)));
        }
    }
}

/// A flow ends at the first instance, whichever instance has the buffer last.
#[test]
fn memory_comes_back_when_a_flow_ends_elsewhere() {
    let mut rig = rig(INSTANCES, |_| {});
    for round in 0..10 {
        let now = Nanos::from_secs(1 + 100 * round);
        rig.expire(now);
        assert_eq!(rig.flows(), 0);
        let turns = (0..).map(|i| (i + round as usize) % INSTANCES);
        assert!(all_buffers_are_free(&mut rig, now, turns), "round {round}");
    }
    assert_eq!(rig.count("overflow"), 10);
}

fn request() -> impl Strategy<Value = String> {
    let hosts = prop::sample::select(vec!["ok.example", "fine.example", "ok.example", "bad.example"]);
    let targets = prop::sample::select(vec!["/", "/a/b", "/x", "/secret", "/?needle"]);
    (hosts, targets, 0..50usize).prop_map(|(host, target, size)| {
        let body = "x".repeat(size);
        format!("POST {target} HTTP/1.1\r\nHost: {host}\r\nContent-Length: {size}\r\n\r\n{body}")
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]
    #[test]
    fn verdicts_are_those_of_one_instance(
        requests in prop::collection::vec(request(), 1..5),
        cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..12),
        moves in prop::collection::vec((0..4usize, 0..INSTANCES, any::<bool>()), 13),
        strict in any::<bool>(),
        alert in any::<bool>(),
    ) {
        let stream = requests.concat().into_bytes();
        let mut bounds: Vec<_> = cuts.iter().map(|cut| cut.index(stream.len())).collect();
        bounds.extend([0, stream.len()]);
        bounds.sort_unstable();
        bounds.dedup();
        let mut segments: Vec<(&[usize], usize, bool)> = Vec::new();
        for (pair, (back, turn, again)) in bounds.windows(2).zip(&moves) {
            segments.insert(segments.len().saturating_sub(*back), (pair, *turn, *again));
        }
        let change = |config: &mut FilterConfig| {
            config.on_overflow = if strict { PacketAction::Drop } else { PacketAction::Pass };
            config.action = if alert { Action::Alert } else { Action::Drop };
        };
        let (mut one, mut relay) = (rig(1, change), rig(INSTANCES, change));
        // Three connections with the same stream, so that several hold a buffer at once.
        let ports = [1, 2, 3];
        let syns = ports.map(|port| segment(port, u32::MAX - 100, TcpFlags::SYN, b""));
        prop_assert_eq!(one.run(&syns, SECOND), relay.run(&syns, SECOND));
        for (bounds, turn, again) in segments {
            if again {
                relay.show_again();
            }
            let sequence = (u32::MAX - 99).wrapping_add(bounds[0] as u32);
            for port in ports {
                let data = &stream[bounds[0]..bounds[1]];
                let frames = [segment(port, sequence, TcpFlags::ACK, data)];
                relay.turn_to((turn + usize::from(port)) % INSTANCES);
                prop_assert_eq!(one.run(&frames, SECOND), relay.run(&frames, SECOND));
            }
        }
        prop_assert_eq!(sums(&one), sums(&relay));
        let later = Nanos::from_secs(100);
        relay.expire(later);
        if strict {
            prop_assert!(all_buffers_are_free(&mut relay, later, (0..INSTANCES).cycle()));
        }
    }
}
