//! `urlFilter` allocates nothing per packet, whatever it has to store.

use std::path::Path;
use tailwater_chain::batch::Batch;
use tailwater_chain::buffer::BufferPool;
use tailwater_functions::build::ChainBuilder;
use tailwater_functions::spec::ChainSpec;
use tailwater_net::builder::{FrameBuilder, TcpFields};
use tailwater_net::parse::parse;
use tailwater_net::tcp::TcpFlags;
use tailwater_net::toeplitz::RssHasher;
use tailwater_net::{FlowKey, Nanos};

const SPEC: &str = "
apiVersion: tailwater.dev/v1alpha1
kind: Chain
metadata: {name: test}
spec:
  functions:
    - urlFilter:
        patterns: [blocked.example, 'good.example/blocked', /blocked, '*needle*']
        streams: 64
  slo: {latency: 200us}
  flows: {capacity: 4096}
";

/// Segments of a connection: a request in one piece, one in three pieces out of order, and, in every third connection,
/// one that is blocked.
fn connection(number: u32) -> Vec<Vec<u8>> {
    let key = FlowKey::v4((0x0a00_0000 + number).into(), [198, 18, 0, 1].into(), 6, 4000, 80);
    let first = b"GET /index.html HTTP/1.1\r\nHost: www.good.example\r\nCookie: x\r\n\r\n";
    let last: &[u8] = match number % 3 {
        0 => b"GET / HTTP/1.1\r\nHost: www.blocked.example\r\n\r\n",
        _ => b"GET / HTTP/1.1\r\nHost: www.other.example\r\n\r\n",
    };
    let stream = [&first[..], first, last].concat();
    let third = first.len() / 3;
    let at = first.len();
    let pieces = [
        0..at,
        at + 2 * third..2 * at,
        at..at + third,
        at + third..at + 2 * third,
        2 * at..stream.len(),
    ];
    let syn = (0, TcpFlags::SYN, &[][..]);
    let data = pieces.map(|piece| (1 + piece.start as u32, TcpFlags::ACK, &stream[piece]));
    std::iter::once(syn)
        .chain(data)
        .map(|(sequence, flags, payload)| {
            let fields = TcpFields {
                sequence,
                flags,
                ..TcpFields::default()
            };
            FrameBuilder::new(&key).tcp(fields).payload(payload).to_vec().unwrap()
        })
        .collect()
}

#[test]
fn nothing_is_allocated_per_packet() {
    let spec = ChainSpec::parse(SPEC, "test", Path::new(".")).unwrap();
    let rss = RssHasher::default();
    let mut chain = ChainBuilder::new(&spec, &rss, 1).unwrap().instance(|_| true);
    let mut pool = BufferPool::new(32, 2048).unwrap();
    let mut batch = Batch::new(&pool, 32);
    // More flows than fit the table: some are evicted.
    let frames: Vec<_> = (0..8_000).flat_map(connection).collect();
    let mut sent = 0;
    let mut run = |frames: &[Vec<u8>]| {
        for frames in frames.chunks(32) {
            for frame in frames {
                let hash = parse(frame).map_or(0, |headers| rss.hash_headers(&headers));
                assert!(batch.push(&mut pool, frame, Nanos::from_secs(1), hash));
            }
            chain.process(&mut batch, Nanos::from_secs(1));
            sent += batch.len();
            batch.release(&mut pool);
        }
    };
    run(&frames[..6_000]);
    let info = allocation_counter::measure(|| run(&frames[6_000..]));
    assert_eq!(info.count_total, 0);
    // The last packet of every third connection.
    assert_eq!(frames.len() - sent, 8_000usize.div_ceil(3));
}
