//! RSS buckets of a worker, for packets that an external function returns.

use crate::port::Reta;
use tailwater_net::toeplitz::{BUCKETS, bucket_of};

/// Map from each RSS bucket to one of a worker's own.
///
/// An external function may change a packet's addresses, and so its bucket, to that of another worker. The packet stays
/// at the worker that has sent it, which accesses the flows of its own buckets only. So the packet's hash is changed to
/// that of an own bucket: always the same one, so that a flow stays one flow. Hashes of own buckets stay.
#[derive(Clone, Debug)]
pub(crate) struct OwnBuckets(Box<Reta>);

impl OwnBuckets {
    /// Map for the worker with this number, which owns the buckets that `reta` assigns to it.
    pub(crate) fn new(reta: &Reta, worker: u16) -> OwnBuckets {
        let is_own = |bucket: &u16| reta[usize::from(*bucket)] == worker;
        let own: Vec<u16> = (0..BUCKETS as u16).filter(is_own).collect();
        let of = |bucket: usize| match is_own(&(bucket as u16)) || own.is_empty() {
            true => bucket as u16,
            false => own[bucket % own.len()],
        };
        OwnBuckets(Box::new(std::array::from_fn(of)))
    }

    /// Hash in one of the worker's buckets for a packet with this RSS hash.
    #[inline]
    pub(crate) fn hash(&self, hash: u32) -> u32 {
        let bucket = bucket_of(hash);
        hash - u32::from(bucket) + u32::from(self.0[usize::from(bucket)])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::port::round_robin;

    #[test]
    fn each_hash_falls_into_a_bucket_of_the_worker_and_own_ones_stay() {
        for workers in [1, 2, 3, 7, 512] {
            let reta = round_robin(workers);
            for worker in [0, workers / 2, workers - 1] {
                let buckets = OwnBuckets::new(&reta, worker);
                let mut used = vec![0; BUCKETS];
                for hash in (0..BUCKETS as u32).map(|bucket| 0xabcd_e000 | bucket) {
                    let own = buckets.hash(hash);
                    assert_eq!(reta[usize::from(bucket_of(own))], worker);
                    assert_eq!(own >> 9, hash >> 9);
                    if reta[usize::from(bucket_of(hash))] == worker {
                        assert_eq!(own, hash);
                    }
                    used[usize::from(bucket_of(own))] += 1;
                }
                // All of them are used, about equally.
                let most = used.iter().max().copied().unwrap_or(0);
                assert!(most <= 2 * usize::from(workers), "{workers} workers: {most}");
            }
        }
    }
}
