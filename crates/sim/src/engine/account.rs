//! Load of each RSS bucket, counted as in the live data plane.
//!
//! Flows are counted without storing them: within an epoch each flow sets one of 64 bits of its bucket, and the number
//! of set bits gives an estimate of the flows (linear counting).

use tailwater_net::toeplitz::BUCKETS;

/// Bits per bucket for the flows of an epoch.
const BITS: usize = 64;

/// Flow counts are stored in this fraction of a flow.
const FLOW: f64 = 256.0;

#[derive(Clone, Copy, Debug, Default)]
struct Count {
    seen: u64,
    packets: u64,
}

/// Counts packets and flows by bucket.
#[derive(Debug)]
pub(crate) struct Account {
    counts: Box<[Count; BUCKETS]>,
    /// Buckets with packets in the epoch. Later entries are undefined.
    touched: Box<[u16; 2 * BUCKETS]>,
    count: usize,
    flows_of: Box<[u64; BITS + 1]>,
    epoch: u64,
    /// End of the epoch.
    ends: u64,
    /// By bucket, since the last query: packets, and flows summed over epochs.
    packets: Box<[u64; BUCKETS]>,
    flows: Box<[u64; BUCKETS]>,
}

impl Account {
    pub fn new(epoch: u64) -> Account {
        let flows = |bits: usize| {
            // With all bits set the number is unknown, but higher than with one bit unset.
            let unset = (BITS as f64 - bits as f64).max(0.5);
            (BITS as f64 * libm::log(BITS as f64 / unset) * FLOW) as u64
        };
        Account {
            counts: Box::new([Count::default(); BUCKETS]),
            touched: Box::new([0; 2 * BUCKETS]),
            count: 0,
            flows_of: Box::new(std::array::from_fn(flows)),
            epoch,
            ends: 0,
            packets: Box::new([0; BUCKETS]),
            flows: Box::new([0; BUCKETS]),
        }
    }

    /// Counts a packet.
    #[inline]
    pub fn packet(&mut self, now: u64, bucket: usize, flow_hash: u32) {
        if now >= self.ends {
            self.publish(now);
        }
        let count = &mut self.counts[bucket];
        // Branch-free: the branch on the first touch of a bucket would be unpredictable.
        self.touched[self.count % (2 * BUCKETS)] = bucket as u16;
        self.count += usize::from(count.seen == 0);
        count.seen |= 1 << (flow_hash >> 26);
        count.packets += 1;
    }

    #[cold]
    fn publish(&mut self, now: u64) {
        for &bucket in &self.touched[..self.count] {
            let bucket = usize::from(bucket);
            let Count { seen, packets } = std::mem::take(&mut self.counts[bucket]);
            self.packets[bucket] += packets;
            self.flows[bucket] += self.flows_of[seen.count_ones() as usize];
        }
        self.count = 0;
        self.ends = (now / self.epoch + 1) * self.epoch;
    }

    /// Returns a bucket's active flows, averaged over the epochs, and its packets per second, of the `elapsed`
    /// nanoseconds since the last query. Call [`close`](Account::close) before the first bucket.
    pub fn take(&mut self, bucket: usize, elapsed: u64) -> (f64, f64) {
        let elapsed = elapsed.max(1) as f64;
        let flows = std::mem::take(&mut self.flows[bucket]) as f64;
        let packets = std::mem::take(&mut self.packets[bucket]) as f64;
        (flows / FLOW * self.epoch as f64 / elapsed, packets * 1e9 / elapsed)
    }

    /// Ends the epoch.
    pub fn close(&mut self, now: u64) {
        self.publish(now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::meter::flow_hash;

    #[test]
    fn packets_and_flows_are_counted_by_bucket() {
        let mut account = Account::new(100);
        for epoch in 0..10 {
            for packet in 0..100_u32 {
                account.packet(epoch * 100 + 5, 3, flow_hash(packet % 20));
            }
            account.packet(epoch * 100 + 50, 511, flow_hash(9));
        }
        account.close(1000);
        let (flows, rate) = account.take(3, 1000);
        assert!((17.0..30.0).contains(&flows), "{flows}");
        assert_eq!(rate, 1e9);
        let (flows, rate) = account.take(511, 1000);
        assert!((0.99..1.02).contains(&flows), "{flows}");
        assert_eq!(rate, 1e7);
        assert_eq!(account.take(511, 1000), (0.0, 0.0), "nothing twice");
        assert_eq!(account.take(0, 1000), (0.0, 0.0));
    }
}
