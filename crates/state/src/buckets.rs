//! RSS buckets whose flows go to another worker: when nothing of theirs waits here.

use tailwater_chain::batch::Packet;
use tailwater_net::toeplitz::{BUCKETS, bucket_of};

/// What a worker has under way of each bucket's flows.
#[derive(Debug)]
pub(crate) struct PerBucket(Box<[OfBucket]>);

#[derive(Clone, Copy, Debug, Default)]
struct OfBucket {
    /// Packets in the lines.
    waiting: u32,
    /// The last request about one of the flows.
    request: u64,
}

impl PerBucket {
    pub(crate) fn new() -> PerBucket {
        PerBucket(vec![OfBucket::default(); BUCKETS].into())
    }

    /// Packets join a line.
    #[inline]
    pub(crate) fn join<'p>(&mut self, packets: impl Iterator<Item = &'p Packet>) {
        for packet in packets {
            self.0[usize::from(bucket_of(packet.rss_hash))].waiting += 1;
        }
    }

    /// Packets leave a line.
    #[inline]
    pub(crate) fn leave<'p>(&mut self, packets: impl Iterator<Item = &'p Packet>) {
        for packet in packets {
            self.0[usize::from(bucket_of(packet.rss_hash))].waiting -= 1;
        }
    }

    /// A request is about a flow of the bucket.
    #[inline]
    pub(crate) fn note(&mut self, bucket: u16, request: u64) {
        self.0[usize::from(bucket)].request = request;
    }

    /// The last request about a flow of the bucket, if none of its packets waits.
    pub(crate) fn last_request(&self, bucket: u16) -> Option<u64> {
        let of = &self.0[usize::from(bucket)];
        (of.waiting == 0).then_some(of.request)
    }
}
