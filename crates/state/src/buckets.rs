//! RSS buckets that migrate to another worker: tracking of packets and requests that must finish first.

use tailwater_chain::batch::Packet;
use tailwater_net::toeplitz::{BUCKETS, bucket_of};

/// Outstanding packets and requests of a worker, per bucket.
#[derive(Debug)]
pub(crate) struct PerBucket(Box<[OfBucket]>);

#[derive(Clone, Copy, Debug, Default)]
struct OfBucket {
    /// Packets in the queues.
    waiting: u32,
    /// Number of the last request about one of the flows.
    request: u64,
}

impl PerBucket {
    pub(crate) fn new() -> PerBucket {
        PerBucket(vec![OfBucket::default(); BUCKETS].into())
    }

    /// Counts packets that join a queue.
    #[inline]
    pub(crate) fn join<'p>(&mut self, packets: impl Iterator<Item = &'p Packet>) {
        for packet in packets {
            self.0[usize::from(bucket_of(packet.rss_hash))].waiting += 1;
        }
    }

    /// Counts packets that leave a queue.
    #[inline]
    pub(crate) fn leave<'p>(&mut self, packets: impl Iterator<Item = &'p Packet>) {
        for packet in packets {
            self.0[usize::from(bucket_of(packet.rss_hash))].waiting -= 1;
        }
    }

    /// Records a request about a flow of the bucket.
    #[inline]
    pub(crate) fn note(&mut self, bucket: u16, request: u64) {
        self.0[usize::from(bucket)].request = request;
    }

    /// Number of the last request about a flow of the bucket, or `None` while one of its packets waits.
    pub(crate) fn last_request(&self, bucket: u16) -> Option<u64> {
        let of = &self.0[usize::from(bucket)];
        (of.waiting == 0).then_some(of.request)
    }
}
